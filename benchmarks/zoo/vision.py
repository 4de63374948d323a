"""Image models: `timm`'s at their real widths, and those of `transformers` and `torchvision`."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.zoo.language import model_of
from benchmarks.zoo.sample import Build, Flat, Sample, optional


def image(size: int, batch: int = 1) -> dict[str, torch.Tensor]:
    return {"image": torch.randn(batch, 3, size, size)}


def timm_model(name: str, size: int) -> Build:
    def build() -> Sample:
        model = optional("timm").create_model(name, pretrained=False, exportable=True)
        return Sample(model, image(size), {"image": {0: "batch"}})

    return build


def vision_model(name: str, config: str, size: int = 224, **fields: Any) -> Build:
    """Of `transformers`, with pixels as only input."""

    def build() -> Sample:
        model = model_of(name, config, **fields)
        inputs = {"pixel_values": torch.randn(1, 3, size, size)}
        return Sample(Flat(model, list(inputs)), inputs, {"pixel_values": {0: "batch"}})

    return build


def torchvision_model(path: str, size: int = 224, **fields: Any) -> Build:
    def build() -> Sample:
        part, _, name = path.rpartition(".")
        models = optional("torchvision").models
        factory = getattr(getattr(models, part) if part else models, name)
        return Sample(Flat(factory(**fields), ["x"]), image(size))

    return build


class Detector(torch.nn.Module):
    """A detector of torchvision's takes a list of images."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.model([image])[0]
        return tuple(found.values())


def detector(name: str, size: int, **fields: Any) -> Build:
    def build() -> Sample:
        detection = optional("torchvision").models.detection
        model = getattr(detection, name)(weights=None, weights_backbone=None, **fields)
        return Sample(Detector(model), {"image": torch.rand(3, size, size)})

    return build


VIT: dict[str, Any] = {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 384}


def clip() -> Sample:
    text = {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "vocab_size": 500,
        "eos_token_id": 2,
        "bos_token_id": 1,
        "pad_token_id": 0,
    }
    seen = {**VIT, "image_size": 64, "patch_size": 16}
    model = model_of("CLIPModel", "CLIPConfig", text_config=text, vision_config=seen, projection_dim=64)
    ids = torch.randint(3, 500, (3, 16))
    ids[:, -1] = 2
    inputs = {"input_ids": ids, "pixel_values": torch.randn(2, 3, 64, 64), "attention_mask": torch.ones_like(ids)}
    return Sample(Flat(model, list(inputs)), inputs)


def sam_model() -> Any:
    seen = {
        "hidden_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "image_size": 128,
        "patch_size": 16,
        "window_size": 4,
        "global_attn_indexes": [1],
        "mlp_dim": 192,
        "output_channels": 64,
        "num_pos_feats": 32,
        "initializer_range": 0.02,  # by default 1e-10: an encoder that gives next to nothing
    }
    prompt = {"hidden_size": 64, "image_size": 128, "patch_size": 16, "image_embedding_size": 8}
    mask = {"hidden_size": 64, "num_attention_heads": 4, "mlp_dim": 128, "iou_head_hidden_dim": 64}
    return model_of("SamModel", "SamConfig", vision_config=seen, prompt_encoder_config=prompt, mask_decoder_config=mask)


def sam() -> Sample:
    inputs = {
        "pixel_values": torch.randn(1, 3, 128, 128),
        "input_points": torch.rand(1, 1, 2, 2) * 128,
        "input_labels": torch.tensor([[[1, 0]]]),
    }
    return Sample(Flat(sam_model(), list(inputs)), inputs)


TIMM = {
    160: ("test_vit",),
    224: (
        "vgg11_bn",
        "resnet18",
        "resnet26d",
        "resnext50_32x4d",
        "seresnet18",
        "res2net50_26w_4s",
        "densenet121",
        "xception41",
        "efficientnet_b0",
        "efficientnetv2_rw_t",
        "mobilenetv3_large_100",
        "mobilenetv4_conv_small",
        "mnasnet_100",
        "ghostnet_100",
        "regnety_008",
        "repvgg_a0",
        "hrnet_w18_small",
        "dla34",
        "cspresnet50",
        "ese_vovnet19b_dw",
        "dpn68",
        "nfnet_l0",
        "convnext_atto",
        "convnextv2_atto",
        "deit_tiny_patch16_224",
        "vit_small_patch32_224",
        "swin_tiny_patch4_window7_224",
        "coatnet_pico_rw_224",
        "poolformer_s12",
        "levit_128s",
        "xcit_nano_12_p16_224",
        "pvt_v2_b0",
        "twins_svt_small",
        "cait_xxs24_224",
        "beit_base_patch16_224",
        "eva02_tiny_patch14_224",
        "mixer_s32_224",
        "resmlp_12_224",
        "gmlp_ti16_224",
        "visformer_tiny",
        "focalnet_tiny_srf",
        "davit_tiny",
        "nest_tiny",
        "sequencer2d_s",
        "volo_d1_224",
        "efficientformer_l1",
        "efficientformerv2_s0",
        "efficientvit_b0",
        "repvit_m0_9",
        "tiny_vit_5m_224",
        "mambaout_femto",
        "starnet_s1",
        "hgnetv2_b0",
        "inception_next_atto",
        "hiera_tiny_224",
        "rdnet_tiny",
        "tresnet_m",
        "skresnet18",
        "selecsls42",
        "tf_efficientnet_b0",
        "rexnet_100",
        "hardcorenas_a",
    ),
    240: ("crossvit_9_240",),
    256: (
        "swinv2_tiny_window8_256",
        "maxvit_rmlp_pico_rw_256",
        "mobilevit_xxs",
        "mobilevitv2_050",
        "edgenext_xx_small",
        "botnet26t_256",
        "halonet26t",
        "lambda_resnet26t",
        "fastvit_t8",
        "ecaresnet26t",
        "gcresnext26ts",
        "bat_resnext26ts",
    ),
    299: ("inception_v3",),
}
"""Names by the size of the image."""

MODELS: dict[str, Build] = {
    **{name: timm_model(name, size) for size, names in TIMM.items() for name in names},
    "clip": clip,
    "sam": sam,
    "detr": vision_model(
        "DetrForObjectDetection",
        "DetrConfig",
        128,
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=None,
        d_model=64,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        num_queries=20,
    ),
    "segformer": vision_model("SegformerForSemanticSegmentation", "SegformerConfig", 128, num_labels=10),
    "dpt": vision_model(
        "DPTForDepthEstimation",
        "DPTConfig",
        128,
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=3,
        intermediate_size=384,
        backbone_out_indices=[0, 1, 2, 3],
        image_size=128,
        neck_hidden_sizes=[32, 48, 64, 64],
        fusion_hidden_size=64,
        is_hybrid=False,
    ),
    "dinov2": vision_model("Dinov2Model", "Dinov2Config", 112, image_size=112, patch_size=14, mlp_ratio=2, **VIT),
    "yolos": vision_model(
        "YolosForObjectDetection", "YolosConfig", 128, image_size=[128, 128], num_detection_tokens=20, **VIT
    ),
    "swin2sr": vision_model(
        "Swin2SRForImageSuperResolution",
        "Swin2SRConfig",
        64,
        image_size=64,
        embed_dim=60,
        depths=[2],
        num_heads=[6],
        window_size=8,
    ),
    "mobilevit_deeplab": vision_model(
        "MobileViTForSemanticSegmentation", "MobileViTConfig", 128, num_labels=10, image_size=128
    ),
    "superpoint": vision_model("SuperPointForKeypointDetection", "SuperPointConfig", 128),
    "shufflenet": torchvision_model("shufflenet_v2_x0_5"),
    "squeezenet": torchvision_model("squeezenet1_1"),
    "googlenet": torchvision_model("googlenet", init_weights=True, aux_logits=False),
    "alexnet": torchvision_model("alexnet"),
    "fcn": torchvision_model("segmentation.fcn_resnet50", 128, weights_backbone=None),
    "deeplab": torchvision_model("segmentation.deeplabv3_mobilenet_v3_large", 128, weights_backbone=None),
    "lraspp": torchvision_model("segmentation.lraspp_mobilenet_v3_large", 128, weights_backbone=None),
    "ssdlite": detector("ssdlite320_mobilenet_v3_large", 320, num_classes=5),
    "retinanet": detector("retinanet_resnet50_fpn", 128, num_classes=5, min_size=128, max_size=128),
    "fcos": detector("fcos_resnet50_fpn", 128, num_classes=5, min_size=128, max_size=128),
}
