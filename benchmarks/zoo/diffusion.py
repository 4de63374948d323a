"""Parts of pipelines that make images, film and sound, from `diffusers`: small, with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.sample import Build, Flat, Sample, optional


def denoiser(name: str, inputs: Callable[[], Mapping[str, Tensor]], **fields: Any) -> Build:
    """One step: latents, the time and what guides it."""

    def build() -> Sample:
        given = inputs()
        module = getattr(optional("diffusers"), name)(**fields)
        return Sample(Flat(module, list(given), return_dict=False), given)

    return build


class Coder(nn.Module):
    """One half of an autoencoder."""

    def __init__(self, module: Any, half: str) -> None:
        super().__init__()
        self.module, self.half = module, half

    def forward(self, x: Tensor) -> Tensor:
        if self.half == "decode":
            decoded: Tensor = self.module.decode(x, return_dict=False)[0]
            return decoded
        found = self.module.encode(x, return_dict=False)[0]
        return found.mode() if hasattr(found, "mode") and not isinstance(found, Tensor) else found


def coder(name: str, half: str, *shape: int, **fields: Any) -> Build:
    def build() -> Sample:
        return Sample(Coder(getattr(optional("diffusers"), name)(**fields), half), {"x": torch.randn(1, *shape)})

    return build


def latents(channels: int, size: int, width: int, batch: int = 2) -> dict[str, Tensor]:
    return {
        "sample": torch.randn(batch, channels, size, size), "timestep": torch.full((batch,), 7),
        "encoder_hidden_states": torch.randn(batch, 7, width),
    }  # fmt: skip


def guided() -> Mapping[str, Tensor]:
    return latents(4, 16, 32)


def sd3_inputs() -> Mapping[str, Tensor]:
    found = latents(4, 16, 32)
    found["hidden_states"] = found.pop("sample")
    return {**found, "pooled_projections": torch.randn(2, 64)}


def flux_inputs() -> Mapping[str, Tensor]:
    return {
        "hidden_states": torch.randn(1, 64, 4), "encoder_hidden_states": torch.randn(1, 7, 32),
        "pooled_projections": torch.randn(1, 32), "timestep": torch.tensor([0.5]), "guidance": torch.tensor([3.5]),
        "img_ids": torch.randint(0, 8, (64, 3)).float(), "txt_ids": torch.zeros(7, 3),
    }  # fmt: skip


def dit_inputs() -> Mapping[str, Tensor]:
    return {
        "hidden_states": torch.randn(2, 4, 16, 16), "timestep": torch.full((2,), 7),
        "class_labels": torch.tensor([3, 5]),
    }  # fmt: skip


def text_and_picture() -> Mapping[str, Tensor]:
    found = latents(4, 16, 32)
    found["hidden_states"] = found.pop("sample")
    return found


HEADS: dict[str, Any] = {"num_attention_heads": 4, "attention_head_dim": 16}
UNET: dict[str, Any] = {
    "sample_size": 16, "block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8,
}  # fmt: skip
KL: dict[str, Any] = {
    "block_out_channels": (32, 64), "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2, "latent_channels": 4, "norm_num_groups": 8,
}  # fmt: skip
CONDITIONED: dict[str, Any] = {
    **UNET, "cross_attention_dim": 32, "attention_head_dim": 4,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
}  # fmt: skip

MODELS: dict[str, Build] = {
    "sd_unet": denoiser(
        "UNet2DConditionModel", guided, up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), **CONDITIONED
    ),
    "sd_unet_plain": denoiser(
        "UNet2DModel", lambda: {"sample": torch.randn(2, 3, 32, 32), "timestep": torch.full((2,), 7)},
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        **{**UNET, "sample_size": 32},
    ),
    "sd_vae_encoder": coder("AutoencoderKL", "encode", 3, 64, 64, **KL),
    "sd_vae_decoder": coder("AutoencoderKL", "decode", 4, 16, 16, **KL),
    "tiny_vae": coder(
        "AutoencoderTiny", "decode", 4, 16, 16, encoder_block_out_channels=(32, 32),
        decoder_block_out_channels=(32, 32), num_encoder_blocks=(1, 2), num_decoder_blocks=(2, 1),
    ),
    "vq": coder(
        "VQModel", "encode", 3, 64, 64, block_out_channels=(32, 64), norm_num_groups=8, num_vq_embeddings=64,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    ),
    "sound_vae": coder(
        "AutoencoderOobleck", "decode", 8, 32, decoder_input_channels=8, encoder_hidden_size=32, decoder_channels=32,
        downsampling_ratios=[2, 4], channel_multiples=[1, 2],
    ),
    "film_vae": coder(
        "AutoencoderKLWan", "decode", 4, 2, 8, 8, base_dim=16, z_dim=4, dim_mult=[1, 2], num_res_blocks=1,
        temperal_downsample=[True], latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
    ),
    "dit": denoiser(
        "DiTTransformer2DModel", dit_inputs, **HEADS, in_channels=4, out_channels=8, num_layers=2, sample_size=16,
        num_embeds_ada_norm=10, norm_num_groups=8,
    ),
    "sd3": denoiser(
        "SD3Transformer2DModel", sd3_inputs, **HEADS, sample_size=16, in_channels=4, out_channels=4, num_layers=2,
        joint_attention_dim=32, caption_projection_dim=64, pooled_projection_dim=64, pos_embed_max_size=16,
    ),
    "flux": denoiser(
        "FluxTransformer2DModel", flux_inputs, **HEADS, in_channels=4, num_layers=1, num_single_layers=1,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 6, 6), guidance_embeds=True,
    ),
    "pixart": denoiser(
        "PixArtTransformer2DModel", text_and_picture, **HEADS, in_channels=4, out_channels=8, num_layers=2,
        cross_attention_dim=64, sample_size=16, caption_channels=32, norm_num_groups=8, use_additional_conditions=False,
    ),
    "sana": denoiser(
        "SanaTransformer2DModel", text_and_picture, **HEADS, in_channels=4, out_channels=4, num_layers=2,
        num_cross_attention_heads=4, cross_attention_head_dim=16, cross_attention_dim=64, caption_channels=32,
        sample_size=16,
    ),
    "cog_video": denoiser(
        "CogVideoXTransformer3DModel", lambda: {
            "hidden_states": torch.randn(1, 2, 4, 16, 16), "encoder_hidden_states": torch.randn(1, 7, 32),
            "timestep": torch.tensor([7]),
        }, **HEADS, in_channels=4, out_channels=4, text_embed_dim=32, num_layers=2, sample_width=16, sample_height=16,
        sample_frames=5, max_text_seq_length=7, time_embed_dim=32,
    ),
    "control_net": denoiser(
        "ControlNetModel", lambda: {**latents(4, 16, 32), "controlnet_cond": torch.randn(2, 3, 128, 128)},
        conditioning_embedding_out_channels=(16, 32, 96, 256),
        **{field: value for field, value in CONDITIONED.items() if field != "sample_size"},
    ),
    "sound_unet": denoiser(
        "UNet1DModel", lambda: {"sample": torch.randn(2, 14, 32), "timestep": torch.full((2,), 7)}, in_channels=14,
        out_channels=14, time_embedding_type="positional", use_timestep_embedding=True, act_fn="mish",
        down_block_types=("DownResnetBlock1D",) * 2, up_block_types=("UpResnetBlock1D",), block_out_channels=(32, 64),
        mid_block_type="MidResTemporalBlock1D", out_block_type="OutConv1DBlock", layers_per_block=1, norm_num_groups=8,
        downsample_each_block=False, extra_in_channels=0, flip_sin_to_cos=False, freq_shift=1.0,
    ),
}  # fmt: skip
