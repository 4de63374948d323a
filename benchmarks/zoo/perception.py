"""More models of images, sound and series from `transformers`: detection, segmentation, depth, documents, speech,
codecs, forecasts.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.zoo.language import model_of, tokens
from benchmarks.zoo.recent import TEXT, detector_of_sizes
from benchmarks.zoo.sample import Build, Flat, Sample, optional
from benchmarks.zoo.speech import ENCODER
from benchmarks.zoo.vision import VIT, vision_model

QUERIES: dict[str, Any] = {
    "d_model": 64, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "num_queries": 20,
}  # fmt: skip
WHOLE_TIMM = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
SWIN: dict[str, Any] = {
    "image_size": 128, "embed_dim": 32, "depths": [1, 1, 1, 1], "num_heads": [2, 2, 4, 4], "window_size": 4,
}  # fmt: skip


def backbone(name: str, **fields: Any) -> Any:
    return getattr(optional("transformers"), name)(**fields)


def resnet(**fields: Any) -> Any:
    return backbone(
        "ResNetConfig", embedding_size=32, hidden_sizes=[64, 128, 256, 512], depths=[1, 1, 1, 1],
        layer_type="bottleneck", **{"out_features": ["stage2", "stage3", "stage4"], **fields},
    )  # fmt: skip


def swin(**fields: Any) -> Any:
    return backbone("SwinConfig", **SWIN, out_features=["stage1", "stage2", "stage3", "stage4"], **fields)


def flat(model: Any, open_axes: Any = None, given: Any = None, **inputs: torch.Tensor) -> Sample:
    return Sample(Flat(model, list(inputs), **(given or {})), inputs, open_axes or {})


# --- detection and segmentation ---------------------------------------------------------------------------------------


def rt_detr_v2() -> Sample:
    parts = backbone(
        "RTDetrResNetConfig", embedding_size=32, hidden_sizes=[64, 128, 256, 512], depths=[1, 1, 1, 1],
        layer_type="bottleneck", out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    return detector_of_sizes("RTDetrV2ForObjectDetection", "RTDetrV2Config", backbone_config=parts)()


def deformable_detr() -> Sample:
    settings = {**QUERIES, **WHOLE_TIMM, "backbone_config": resnet(), "num_feature_levels": 4}
    return vision_model("DeformableDetrForObjectDetection", "DeformableDetrConfig", 128, **settings)()


def conditional_detr() -> Sample:
    settings = {**QUERIES, **WHOLE_TIMM, "backbone_config": resnet()}
    return vision_model("ConditionalDetrForObjectDetection", "ConditionalDetrConfig", 128, **settings)()


def table_transformer() -> Sample:
    settings = {**QUERIES, **WHOLE_TIMM, "backbone_config": resnet()}
    return vision_model("TableTransformerForObjectDetection", "TableTransformerConfig", 128, **settings)()


def mask2former() -> Sample:
    return vision_model(
        "Mask2FormerForUniversalSegmentation", "Mask2FormerConfig", 128, backbone_config=swin(), feature_size=64,
        mask_feature_size=64, hidden_dim=64, encoder_feedforward_dim=128, encoder_layers=1, decoder_layers=2,
        num_attention_heads=4, dim_feedforward=128, num_queries=20, **WHOLE_TIMM,
    )()  # fmt: skip


def upernet() -> Sample:
    parts = backbone(
        "ConvNextConfig", hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 1, 1],
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    return vision_model(
        "UperNetForSemanticSegmentation", "UperNetConfig", 128, backbone_config=parts, hidden_size=64,
        auxiliary_in_channels=96, auxiliary_channels=32, use_auxiliary_head=False,
    )()  # fmt: skip


def clip_seg() -> Sample:
    seen = {**VIT, "image_size": 64, "patch_size": 16, "num_hidden_layers": 3}
    text = {**TEXT, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    model = model_of(
        "CLIPSegForImageSegmentation", "CLIPSegConfig", text_config=text, vision_config=seen, projection_dim=64,
        extract_layers=[0, 1, 2], reduce_dim=32, decoder_attention_heads=4, decoder_intermediate_size=64,
    )  # fmt: skip
    ids = tokens(length=16)
    ids[:, -1] = 2
    return flat(model, input_ids=ids, pixel_values=torch.randn(2, 3, 64, 64))


def sam2_encoder() -> Sample:
    hiera = {
        "hidden_size": 32, "num_attention_heads": 1, "blocks_per_stage": [1, 1, 2, 1],
        "embed_dim_per_stage": [32, 64, 128, 256], "num_attention_heads_per_stage": [1, 2, 4, 8],
        "window_size_per_stage": [8, 4, 8, 4], "global_attention_blocks": [3], "image_size": [128, 128],
        "window_positional_embedding_background_size": [7, 7],
    }  # fmt: skip
    return vision_model(
        "Sam2VisionModel", "Sam2VisionConfig", 128, backbone_config=backbone("Sam2HieraDetConfig", **hiera),
        backbone_channel_list=[256, 128, 64, 32], fpn_hidden_size=64,
        backbone_feature_sizes=[[32, 32], [16, 16], [8, 8]],
    )()  # fmt: skip


def vit_pose() -> Sample:
    parts = backbone(
        "VitPoseBackboneConfig", **VIT, image_size=[128, 96], patch_size=[16, 16], out_indices=[2], mlp_ratio=2
    )
    model = model_of("VitPoseForPoseEstimation", "VitPoseConfig", backbone_config=parts, num_labels=17)
    return flat(model, {"pixel_values": {0: "batch"}}, pixel_values=torch.randn(2, 3, 128, 96))


# --- documents and text with images -----------------------------------------------------------------------------------


def trocr() -> Sample:
    transformers = optional("transformers")
    seen = transformers.ViTConfig(**VIT, image_size=64, patch_size=16)
    text = transformers.TrOCRConfig(
        vocab_size=1000, d_model=128, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=256,
        cross_attention_hidden_size=192, max_position_embeddings=64,
    )  # fmt: skip
    settings = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(seen, text)
    model = transformers.VisionEncoderDecoderModel(settings).eval()
    open_axes = {"decoder_input_ids": {1: "length"}}
    return flat(
        model, open_axes, {"use_cache": False}, pixel_values=torch.randn(1, 3, 64, 64),
        decoder_input_ids=tokens(batch=1, length=9),
    )  # fmt: skip


def pix2struct() -> Sample:
    seen = {
        "hidden_size": 128, "patch_embed_hidden_size": 48, "d_ff": 256, "d_kv": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "seq_len": 64,
    }  # fmt: skip
    text = {
        "vocab_size": 1000, "hidden_size": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4,
        "decoder_start_token_id": 0,
    }  # fmt: skip
    model = model_of("Pix2StructForConditionalGeneration", "Pix2StructConfig", text_config=text, vision_config=seen)
    patches = torch.randn(1, 30, 50)
    patches[:, :, 0] = torch.arange(30) // 6 + 1.0
    patches[:, :, 1] = torch.arange(30) % 6 + 1.0
    return flat(
        model, None, {"use_cache": False}, flattened_patches=patches, attention_mask=torch.ones(1, 30),
        decoder_input_ids=tokens(batch=1, length=9),
    )  # fmt: skip


def layout_lmv3() -> Sample:
    model = model_of(
        "LayoutLMv3Model", "LayoutLMv3Config", **TEXT, input_size=64, patch_size=16, coordinate_size=22, shape_size=20
    )
    corner = torch.randint(0, 500, (1, 24, 2))
    return flat(
        model, input_ids=tokens(batch=1, length=24), bbox=torch.cat([corner, corner + 50], -1),
        attention_mask=torch.ones(1, 24, dtype=torch.int64), pixel_values=torch.randn(1, 3, 64, 64),
    )  # fmt: skip


def blip() -> Sample:
    seen = {**VIT, "image_size": 64, "patch_size": 16}
    text = {**TEXT, "encoder_hidden_size": 192, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2}
    model = model_of("BlipForConditionalGeneration", "BlipConfig", text_config=text, vision_config=seen)
    return flat(model, input_ids=tokens(batch=1, length=9), pixel_values=torch.randn(1, 3, 64, 64))


# --- sound ------------------------------------------------------------------------------------------------------------


def moonshine() -> Sample:
    model = model_of(
        "MoonshineForConditionalGeneration", "MoonshineConfig", vocab_size=1000, hidden_size=128,
        intermediate_size=256, encoder_num_hidden_layers=2, decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4, decoder_num_attention_heads=4, pad_token_id=0,
    )  # fmt: skip
    open_axes = {"decoder_input_ids": {1: "length"}}
    return flat(
        model, open_axes, {"use_cache": False}, input_values=torch.randn(1, 16000),
        decoder_input_ids=tokens(batch=1, length=7),
    )  # fmt: skip


def parakeet() -> Sample:
    settings = {**ENCODER, "num_mel_bins": 80, "subsampling_conv_channels": 32, "convolution_bias": False}
    model = model_of("ParakeetForCTC", "ParakeetCTCConfig", encoder_config=settings, vocab_size=64, pad_token_id=63)
    mask = torch.ones(2, 200, dtype=torch.int64)
    mask[1, 150:] = 0
    open_axes = {name: {0: "batch", 1: "frames"} for name in ("input_features", "attention_mask")}
    return flat(model, open_axes, input_features=torch.randn(2, 200, 80), attention_mask=mask)


def w2v_bert() -> Sample:
    model = model_of("Wav2Vec2BertModel", "Wav2Vec2BertConfig", **ENCODER, feature_projection_input_dim=160)
    mask = torch.ones(2, 100, dtype=torch.int64)
    mask[1, 80:] = 0
    return flat(model, input_features=torch.randn(2, 100, 160), attention_mask=mask)


def dac() -> Sample:
    model = model_of(
        "DacModel", "DacConfig", encoder_hidden_size=16, downsampling_ratios=[2, 4, 4, 4], decoder_hidden_size=128,
        n_codebooks=4, codebook_size=256, upsampling_ratios=[4, 4, 4, 2],
    )  # fmt: skip
    return flat(model, input_values=torch.randn(1, 1, 6400))


def bark_fine() -> Sample:
    model = model_of(
        "BarkFineModel", "BarkFineConfig", hidden_size=128, num_layers=2, num_heads=4, block_size=64,
        input_vocab_size=300, output_vocab_size=300,
    )  # fmt: skip
    return flat(model, None, {"codebook_idx": 3}, input_ids=torch.randint(0, 300, (1, 40, 8)))


# --- series -----------------------------------------------------------------------------------------------------------


def mixer_series() -> Sample:
    model = model_of(
        "PatchTSMixerForPrediction", "PatchTSMixerConfig", num_input_channels=3, context_length=64, patch_length=8,
        patch_stride=8, d_model=32, num_layers=2, prediction_length=12, mode="mix_channel",
    )  # fmt: skip
    return flat(model, {"past_values": {0: "batch"}}, past_values=torch.randn(2, 64, 3))


def decision_transformer() -> Sample:
    model = model_of(
        "DecisionTransformerModel", "DecisionTransformerConfig", state_dim=17, act_dim=6, hidden_size=128, n_layer=2,
        n_head=4, max_ep_len=100,
    )  # fmt: skip
    return flat(
        model, states=torch.randn(2, 20, 17), actions=torch.randn(2, 20, 6), rewards=torch.randn(2, 20, 1),
        returns_to_go=torch.randn(2, 20, 1), timesteps=torch.arange(20).expand(2, 20).contiguous(),
        attention_mask=torch.ones(2, 20, dtype=torch.int64),
    )  # fmt: skip


MODELS: dict[str, Build] = {
    "rt_detr_v2": rt_detr_v2,
    "deformable_detr": deformable_detr,
    "conditional_detr": conditional_detr,
    "table_transformer": table_transformer,
    "mask2former": mask2former,
    "upernet": upernet,
    "clip_seg": clip_seg,
    "sam2_encoder": sam2_encoder,
    "vit_pose": vit_pose,
    "glpn": vision_model("GLPNForDepthEstimation", "GLPNConfig", 128),
    "dinov3": vision_model(
        "DINOv3ViTModel", "DINOv3ViTConfig", 112, **VIT, image_size=112, patch_size=16, num_register_tokens=4
    ),
    "dinov3_convnext": vision_model(
        "DINOv3ConvNextModel", "DINOv3ConvNextConfig", 112, hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 2, 1]
    ),
    "vit_det": vision_model(
        "VitDetModel", "VitDetConfig", 128, **{**VIT, "intermediate_size": None}, image_size=128, window_size=4,
        window_block_indices=[0], use_relative_position_embeddings=True, mlp_ratio=2,
    ),
    "i_jepa": vision_model("IJepaModel", "IJepaConfig", 112, **VIT, image_size=112, patch_size=14),
    "donut_swin": vision_model("DonutSwinModel", "DonutSwinConfig", 128, **SWIN),
    "mgp_str": vision_model(
        "MgpstrForSceneTextRecognition", "MgpstrConfig", 64, image_size=[64, 64], patch_size=16, hidden_size=128,
        num_hidden_layers=2, num_attention_heads=4, num_bpe_labels=200, num_wordpiece_labels=200,
    ),
    "swift_former": vision_model("SwiftFormerModel", "SwiftFormerConfig", 224),
    "trocr": trocr,
    "pix2struct": pix2struct,
    "layout_lmv3": layout_lmv3,
    "blip": blip,
    "moonshine": moonshine,
    "parakeet": parakeet,
    "w2v_bert": w2v_bert,
    "dac": dac,
    "bark_fine": bark_fine,
    "mixer_series": mixer_series,
    "decision_transformer": decision_transformer,
}  # fmt: skip
