"""More models for `benchmarks.models`: a sentence encoder, image models, speech."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.sample import optional

FRAMES = 3000
"""Of a spectrogram of 30 seconds."""


class States(nn.Module):
    """Calls a `transformers` model by keywords and gives its last states."""

    def __init__(self, model: Any, *names: str) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Any:
        return self.model(**dict(zip(self.names, inputs))).last_hidden_state


def minilm() -> nn.Module:
    """all-MiniLM-L6-v2's architecture."""
    transformers = optional("transformers")
    config = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    return States(transformers.BertModel(config, add_pooling_layer=False), "input_ids", "attention_mask")


def whisper_encoder() -> nn.Module:
    """The encoder of Whisper tiny."""
    transformers = optional("transformers")
    whisper: Any = transformers.models.whisper.modeling_whisper
    config = transformers.WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, num_mel_bins=80
    )
    return States(whisper.WhisperEncoder(config), "input_features")


def of_torchvision(name: str) -> nn.Module:
    model: nn.Module = getattr(optional("torchvision").models, name)(weights=None)
    return model


convnext_t, swin_t = partial(of_torchvision, "convnext_tiny"), partial(of_torchvision, "swin_t")


def spectrogram() -> dict[str, Tensor]:
    return {"input_features": torch.randn(1, 80, FRAMES)}
