"""Models of `transformers` that people export now: text with images or sound, segmentation from prompts, decoders with
caches of their encoder, detection by transformers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.zoo.language import TWO_LAYERS, model_of, padding, tokens
from benchmarks.zoo.sample import Build, Flat, Sample, optional
from benchmarks.zoo.vision import VIT, sam_model, vision_model

TEXT: dict[str, Any] = {
    "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 1000,
}  # fmt: skip


def siglip() -> Sample:
    seen = {**TEXT, "image_size": 64, "patch_size": 16}
    model = model_of(
        "SiglipModel", "SiglipConfig", text_config={**TEXT, "max_position_embeddings": 16}, vision_config=seen
    )
    inputs = {"input_ids": tokens(batch=3, length=16), "pixel_values": torch.randn(2, 3, 64, 64)}
    return Sample(Flat(model, list(inputs)), inputs, {"input_ids": {0: "texts"}, "pixel_values": {0: "images"}})


def clap() -> Sample:
    heard: dict[str, Any] = {
        "spec_size": 64, "num_mel_bins": 16, "patch_size": 4, "patch_stride": [4, 4], "hidden_size": 32,
        "patch_embeds_hidden_size": 16, "depths": [1, 1], "num_attention_heads": [2, 4], "window_size": 4,
        "projection_dim": 64, "enable_fusion": False, "num_hidden_layers": 2,
    }  # fmt: skip
    model = model_of("ClapModel", "ClapConfig", text_config=TEXT, audio_config=heard, projection_dim=64)
    inputs = {
        "input_ids": tokens(length=16), "attention_mask": padding(length=16),
        "input_features": torch.randn(2, 1, 256, 16),
    }  # fmt: skip
    return Sample(Flat(model, list(inputs)), inputs)


class MaskDecoder(torch.nn.Module):
    """SAM's prompt encoder and mask decoder on the embedding of an image."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, image_embeddings: Tensor, input_points: Tensor, input_labels: Tensor) -> tuple[Tensor, ...]:
        found = self.model(image_embeddings=image_embeddings, input_points=input_points, input_labels=input_labels)
        return found.iou_scores, found.pred_masks


def sam_decoder() -> Sample:
    inputs = {
        "image_embeddings": torch.randn(1, 64, 8, 8), "input_points": torch.rand(1, 1, 2, 2) * 128,
        "input_labels": torch.tensor([[[1, 0]]]),
    }  # fmt: skip
    return Sample(MaskDecoder(sam_model()), inputs, {"input_points": {2: "points"}, "input_labels": {2: "points"}})


def sam_encoder() -> Sample:
    return Sample(Flat(sam_model().vision_encoder, ["pixel_values"]), {"pixel_values": torch.randn(1, 3, 128, 128)})


class CrossCached(torch.nn.Module):
    """One step of a decoder whose keys and values of the past and of the encoder come in; those of the past go out."""

    def __init__(self, model: Any, layers: int) -> None:
        super().__init__()
        self.model, self.layers = model, layers

    def forward(self, decoder_input_ids: Tensor, encoder_states: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        transformers = optional("transformers")
        caches = transformers.DynamicCache(), transformers.DynamicCache()
        for index in range(self.layers):
            for cache, place in zip(caches, (4 * index, 4 * index + 2)):
                cache.update(past[place], past[place + 1], index)
        both = transformers.EncoderDecoderCache(*caches)
        outputs = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=encoder_states)
        given: dict[str, Any] = {"decoder_input_ids": decoder_input_ids, "encoder_outputs": outputs}
        out = self.model(**given, past_key_values=both, use_cache=True)
        layers = out.past_key_values.self_attention_cache.layers
        return (out.logits, *(part for layer in layers for part in (layer.keys, layer.values)))


def cross_cached(name: str, config: str, width: int, heads: int, size: int, **fields: Any) -> Build:
    """Of two layers; 12 tokens are past, the encoder saw 20."""

    def build() -> Sample:
        model = model_of(name, config, **fields)
        inputs = {"decoder_input_ids": tokens(length=1), "encoder_states": torch.randn(2, 20, width)}
        lengths = {"key": 12, "value": 12, "cross_key": 20, "cross_value": 20}
        inputs |= {
            f"{part}{layer}": torch.randn(2, heads, length, size)
            for layer in range(2) for part, length in lengths.items()
        }  # fmt: skip
        open_axes = {key: {2: "past"} for key in inputs if key[:-1] in ("key", "value")}
        return Sample(CrossCached(model, 2), inputs, open_axes)

    return build


def detector_of_sizes(name: str, config: str, **fields: Any) -> Build:
    return vision_model(
        name, config, 128, d_model=64, encoder_hidden_dim=64, encoder_in_channels=[128, 256, 512], decoder_layers=2,
        encoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
        decoder_ffn_dim=128, num_queries=20, decoder_in_channels=[64, 64, 64], anchor_image_size=None, num_denoising=0,
        num_feature_levels=3, **fields,
    )  # fmt: skip


def rt_detr() -> Sample:
    backbone = optional("transformers").RTDetrResNetConfig(
        embedding_size=32, hidden_sizes=[64, 128, 256, 512], depths=[1, 1, 1, 1], layer_type="bottleneck",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    return detector_of_sizes("RTDetrForObjectDetection", "RTDetrConfig", backbone_config=backbone)()


def d_fine() -> Sample:
    backbone = optional("transformers").HGNetV2Config(
        stem_channels=[3, 16, 32], stage_in_channels=[32, 64, 128, 256], stage_mid_channels=[16, 32, 64, 128],
        stage_out_channels=[64, 128, 256, 512], stage_num_blocks=[1, 1, 1, 1], stage_numb_of_layers=[2, 2, 2, 2],
        hidden_sizes=[64, 128, 256, 512], depths=[1, 1, 1, 1], embedding_size=32,
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    return detector_of_sizes("DFineForObjectDetection", "DFineConfig", backbone_config=backbone)()


def depth_anything() -> Sample:
    backbone = optional("transformers").Dinov2Config(
        **VIT, image_size=112, patch_size=14, mlp_ratio=2, reshape_hidden_states=False,
        out_features=["stage1", "stage2"],
    )  # fmt: skip
    return vision_model(
        "DepthAnythingForDepthEstimation", "DepthAnythingConfig", 112, backbone_config=backbone, patch_size=14,
        reassemble_hidden_size=192, reassemble_factors=[2, 1], neck_hidden_sizes=[32, 48], fusion_hidden_size=32,
        head_hidden_size=16,
    )()  # fmt: skip


def big_bird() -> Sample:
    model = model_of(
        "BigBirdModel", "BigBirdConfig", **TEXT, attention_type="block_sparse", block_size=16, num_random_blocks=2,
        max_position_embeddings=512,
    )  # fmt: skip
    inputs = {"input_ids": tokens(length=256), "attention_mask": padding(length=256)}
    return Sample(Flat(model, list(inputs)), inputs)


def owl_vit() -> Sample:
    seen = {**VIT, "image_size": 64, "patch_size": 16}
    text = {**TEXT, "max_position_embeddings": 16, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    model = model_of(
        "OwlViTForObjectDetection", "OwlViTConfig", text_config=text, vision_config=seen, projection_dim=128
    )
    inputs = {
        "input_ids": tokens(batch=3, length=16), "pixel_values": torch.randn(1, 3, 64, 64),
        "attention_mask": torch.ones(3, 16, dtype=torch.int64),
    }  # fmt: skip
    return Sample(Flat(model, list(inputs)), inputs)


def musicgen_decoder() -> Sample:
    model = model_of(
        "MusicgenForCausalLM", "MusicgenDecoderConfig", vocab_size=200, hidden_size=128, num_hidden_layers=2,
        num_attention_heads=4, ffn_dim=256, num_codebooks=4, max_position_embeddings=64, pad_token_id=199,
    )  # fmt: skip
    inputs = {"input_ids": torch.randint(0, 199, (8, 12)), "encoder_hidden_states": torch.randn(2, 9, 128)}
    return Sample(Flat(model, list(inputs), use_cache=False), inputs)


def codec_codes() -> Sample:
    """EnCodec's decoder on codes of its quantiser."""
    model = model_of("EncodecModel", "EncodecConfig", num_filters=8, hidden_size=32, codebook_dim=32)

    class Decode(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quantizer, self.decoder = model.quantizer, model.decoder

        def forward(self, codes: Tensor) -> Tensor:
            return self.decoder(self.quantizer.decode(codes))

    return Sample(Decode(), {"codes": torch.randint(0, 1024, (2, 1, 20))})


WHISPER: dict[str, Any] = {
    **TWO_LAYERS, "num_mel_bins": 80, "max_source_positions": 20, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip

MODELS: dict[str, Build] = {
    "siglip": siglip,
    "clap": clap,
    "owl_vit": owl_vit,
    "sam_decoder": sam_decoder,
    "sam_encoder": sam_encoder,
    "rt_detr": rt_detr,
    "d_fine": d_fine,
    "depth_anything": depth_anything,
    "big_bird": big_bird,
    "whisper_cached": cross_cached("WhisperForConditionalGeneration", "WhisperConfig", 256, 4, 64, **WHISPER),
    "t5_cached": cross_cached(
        "T5ForConditionalGeneration", "T5Config", 256, 4, 64, d_model=256, d_ff=512, d_kv=64, num_layers=2, num_heads=4,
        vocab_size=1000, decoder_start_token_id=0,
    ),
    "musicgen_decoder": musicgen_decoder,
    "codec_codes": codec_codes,
}  # fmt: skip
