"""More of `transformers`: decoders that mix attention with state spaces or linear attention, those whose experts take
as many tokens as are counted for them, image towers of models that read text, speech, codecs and forecasts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.zoo.decoders import EXPERTS, SMALL
from benchmarks.zoo.language import decoder, model_of
from benchmarks.zoo.perception import flat
from benchmarks.zoo.sample import Build, Sample, optional
from benchmarks.zoo.vision import VIT, vision_model

STATE: dict[str, Any] = {"mamba_d_state": 16, "mamba_expand": 2, "mamba_d_conv": 4}
HEADS: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_chunk_size": 16}
TOWER: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 128,
    "num_heads": 4,
    "intermediate_size": 256,
    "out_hidden_size": 64,
}
PATCHES = (8, 12)
"""Patches along the sides of the image of a tower."""


def tower(name: str, config: str, **fields: Any) -> Build:
    """The encoder of one image, as patches of two equal frames; its size is part of the export (the older exporter)."""

    def build() -> Sample:
        model = model_of(name, config, **TOWER, **fields)
        rows, columns = PATCHES
        inputs = {"hidden_states": torch.randn(rows * columns, 3 * 2 * model.config.patch_size**2)}
        return flat(model, given={"grid_thw": torch.tensor([[1, rows, columns]])}, **inputs)

    return build


def siglip2() -> Sample:
    """Images of 6 by 5 and 4 by 7 patches, padded to 30 (the older exporter)."""
    model = model_of("Siglip2VisionModel", "Siglip2VisionConfig", **VIT, patch_size=16, num_patches=64)
    mask = torch.ones(2, 30, dtype=torch.int64)
    mask[1, 28:] = 0
    inputs = {"pixel_values": torch.randn(2, 30, 768), "pixel_attention_mask": mask}
    return flat(model, given={"spatial_shapes": torch.tensor([[6, 5], [4, 7]])}, **inputs)


def florence2() -> Sample:
    config = optional("transformers").Florence2VisionConfig(
        depths=[1, 1, 2, 1], embed_dim=[32, 64, 96, 128], num_heads=[2, 4, 4, 8], num_groups=[2, 4, 4, 8],
        window_size=4,
    )  # fmt: skip
    module = optional("transformers.models.florence2.modeling_florence2")
    return flat(module.Florence2VisionBackbone(config), hidden_states=torch.randn(1, 3, 128, 128))


def univnet() -> Sample:
    """A vocoder whose convolutions have kernels that are computed from the spectrogram."""
    model = model_of(
        "UnivNetModel", "UnivNetConfig", model_in_channels=16, model_hidden_channels=16, num_mel_bins=20,
        resblock_stride_sizes=[4, 4, 2], kernel_predictor_hidden_channels=16,
    )  # fmt: skip
    return flat(model, input_features=torch.randn(1, 24, 20), noise_sequence=torch.randn(1, 24, 16))


class Called(torch.nn.Module):
    """Calls a part of a model by a function, as its own `forward` is another one or returns more."""

    def __init__(self, model: torch.nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, **inputs: torch.Tensor) -> Any:
        return self.call(self.model, **inputs)


def timesfm25() -> Sample:
    """Its exporter names the batches of values and of padding apart; they are equal."""
    model = model_of(
        "TimesFm2_5ModelForPrediction", "TimesFm2_5Config", patch_length=8, context_length=64, horizon_length=16,
        hidden_size=64, intermediate_size=96, head_dim=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4,
    ).model  # fmt: skip
    inputs = {"past_values": torch.randn(2, 64), "past_values_padding": torch.zeros(2, 64, dtype=torch.int64)}
    return flat(model, {name: {0: "batch"} for name in inputs}, **inputs)


def fastspeech2() -> Sample:
    """Speech as long as the durations that it predicts for its letters (the older exporter)."""
    model = model_of(
        "FastSpeech2ConformerModel", "FastSpeech2ConformerConfig", hidden_size=32, vocab_size=40, encoder_layers=1,
        decoder_layers=1, encoder_num_attention_heads=2, decoder_num_attention_heads=2, encoder_linear_units=48,
        decoder_linear_units=48, speech_decoder_postnet_units=16, duration_predictor_channels=16,
        pitch_predictor_channels=16, energy_predictor_channels=16, num_mel_bins=10,
    )  # fmt: skip
    spoken = Called(model, lambda model, **inputs: model(return_dict=True, **inputs).spectrogram)
    return flat(spoken, {"input_ids": {1: "letters"}}, input_ids=torch.randint(1, 40, (1, 9)))


def mimi_decoder() -> Sample:
    """Sound from the codes of Mimi, Moshi's codec (the dynamo exporter)."""
    model = model_of(
        "MimiModel", "MimiConfig", hidden_size=64, num_filters=8, num_residual_layers=1, upsampling_ratios=[4, 3, 2],
        codebook_size=32, codebook_dim=16, vector_quantization_hidden_dimension=16, num_quantizers=4,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, head_dim=16, intermediate_size=96,
        upsample_groups=64, sampling_rate=2400, sliding_window=7,
    )  # fmt: skip
    heard = Called(model, lambda model, codes: model.decode(codes).audio_values)
    return flat(heard, {"codes": {0: "batch", 2: "steps"}}, codes=torch.randint(0, 32, (2, 4, 9)))


def rf_detr() -> Sample:
    """A detector over windows of DINOv2 (the dynamo exporter)."""
    transformers = optional("transformers")
    tower = transformers.RfDetrDinov2Config(
        hidden_size=48, num_hidden_layers=4, num_attention_heads=4, image_size=56, patch_size=14, num_windows=2,
        out_indices=[2, 4], window_block_indexes=[0, 2],
    )  # fmt: skip
    model = model_of(
        "RfDetrForObjectDetection", "RfDetrConfig", backbone_config=tower, d_model=32, decoder_layers=2,
        decoder_self_attention_heads=4, decoder_cross_attention_heads=4, decoder_ffn_dim=64, num_queries=7,
        group_detr=1, projector_in_channels=[48, 48], disable_custom_kernels=True,
    )  # fmt: skip
    found = Called(model, lambda model, **inputs: (lambda o: (o.logits, o.pred_boxes))(model(**inputs)))
    mask = torch.ones(1, 56, 56, dtype=torch.int64)
    return flat(found, given={"pixel_mask": mask}, pixel_values=torch.randn(1, 3, 56, 56))


MODELS: dict[str, Build] = {
    "jamba": decoder(
        "JambaForCausalLM", "JambaConfig", attn_layer_period=2, attn_layer_offset=1, num_experts=4,
        expert_layer_period=2, expert_layer_offset=1, use_mamba_kernels=False, mamba_dt_rank=8,
        experts_implementation="batched_mm", **STATE, **SMALL,
    ),
    "bamba": decoder("BambaForCausalLM", "BambaConfig", attn_layer_indices=[1], **HEADS, **STATE, **SMALL),
    "nemotron_h": decoder(
        "NemotronHForCausalLM", "NemotronHConfig", layers_block_type=["mamba", "attention"], ssm_state_size=16,
        mamba_num_heads=8, mamba_head_dim=32, n_groups=1, chunk_size=16, head_dim=32, **SMALL,
    ),
    "granite_hybrid": decoder(
        "GraniteMoeHybridForCausalLM", "GraniteMoeHybridConfig", layer_types=["mamba", "attention"],
        shared_intermediate_size=128, num_local_experts=0, **HEADS, **STATE, **SMALL,
    ),
    "minimax": decoder(
        "MiniMaxForCausalLM", "MiniMaxConfig", layer_types=["linear_attention", "full_attention"], head_dim=32,
        block_size=16, num_local_experts=4, **EXPERTS,
    ),
    "jetmoe": decoder("JetMoeForCausalLM", "JetMoeConfig", kv_channels=32, num_local_experts=4, **EXPERTS),
    "olmo3": decoder(
        "Olmo3ForCausalLM", "Olmo3Config", layer_types=["sliding_attention", "full_attention"], sliding_window=16,
        **SMALL,
    ),
    "qwen25_vl_tower": tower(
        "Qwen2_5_VisionTransformerPretrainedModel", "Qwen2_5_VLVisionConfig", fullatt_block_indexes=[1], window_size=56
    ),
    "qwen3_vl_tower": tower(
        "Qwen3VLVisionModel", "Qwen3VLVisionConfig", deepstack_visual_indexes=[0], num_position_embeddings=64
    ),
    "siglip2": siglip2,
    "florence2": florence2,
    "eomt": vision_model(
        "EomtForUniversalSegmentation", "EomtConfig", 128, **VIT, image_size=128, patch_size=16, num_queries=20,
        num_blocks=1, num_upscale_blocks=2,
    ),
    "univnet": univnet,
    "timesfm25": timesfm25,
    "fastspeech2": fastspeech2,
    "mimi_decoder": mimi_decoder,
    "rf_detr": rf_detr,
}  # fmt: skip
