"""Transformers of `transformers` at their real size: encoders with open batch and length, decoders with a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.open_models.model import Axes, OpenModel
from benchmarks.open_models.torch_export import exported
from benchmarks.zoo.language import Cached, model_of
from benchmarks.zoo.sample import Flat
from tests.open_models.sizes import Feeds, MakeFeeds, Sizes

ENCODER = {"batch": (1, 8), "length": (1, 512)}
DECODER = {"batch": (1, 4), "past": (0, 512), "new": (1, 64)}
ROWS = {0: "batch", 1: "length"}
LLAMA: dict[str, Any] = {
    "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
    "intermediate_size": 1408, "vocab_size": 8192, "max_position_embeddings": 2048,
}  # fmt: skip


def padded_tokens(vocabulary: int) -> MakeFeeds:
    """Sentences of different lengths, each of one token or more."""

    def feeds(sizes: Sizes, random: np.random.Generator) -> Feeds:
        batch, length = sizes["batch"], sizes["length"]
        lengths = random.integers(1, length + 1, batch)
        lengths[0] = length
        mask = np.arange(length) < lengths[:, None]
        return {
            "input_ids": random.integers(0, vocabulary, (batch, length)),
            "attention_mask": mask.astype(np.int64),
        }

    return feeds


class Pooled(nn.Module):
    """A sentence encoder: the mean of the states of tokens that are not padding, of length 1."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).expand(states.size()).to(states.dtype)
        mean = (states * weights).sum(1) / torch.clamp(weights.sum(1), min=1e-9)
        return nn.functional.normalize(mean, p=2.0, dim=1)


def bert() -> nn.Module:
    return Flat(model_of("BertModel", "BertConfig"), ["input_ids", "attention_mask"])


def minilm() -> nn.Module:
    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    return Pooled(model_of("BertModel", "BertConfig", **shape))


def encoder(build: Callable[[], nn.Module], outputs: Axes) -> OpenModel:
    return exported(
        build, {"input_ids": ROWS, "attention_mask": ROWS}, ENCODER, padded_tokens(30522), {"batch": 2, "length": 24},
        outputs,
    )  # fmt: skip


def cache_names(layers: int, prefix: str) -> list[str]:
    return [f"{prefix}.{layer}.{part}" for layer in range(layers) for part in ("key", "value")]


def decoder(
    name: str, config: str, layers: int, heads: int, size: int, vocabulary: int, **fields: Any
) -> OpenModel:  # fmt: skip
    """Takes new tokens, and keys and values of the past as [batch, HEADS, past, SIZE] for each layer."""
    past, present = cache_names(layers, "past_key_values"), cache_names(layers, "present")

    def build() -> nn.Module:
        return Cached(model_of(name, config, **fields), layers)

    def feeds(sizes: Sizes, random: np.random.Generator) -> Feeds:
        batch, old, new = sizes["batch"], sizes["past"], sizes["new"]
        positions = np.broadcast_to(np.arange(old, old + new), (batch, new))
        mask = np.ones((batch, old + new), np.int64)
        mask[1:, : old // 4] = 0  # shorter prompts are padded at their beginning
        tokens = {
            "input_ids": random.integers(0, vocabulary, (batch, new)),
            "attention_mask": mask,
            "position_ids": np.ascontiguousarray(positions),
        }
        shape = (batch, heads, old, size)
        return tokens | {key: random.standard_normal(shape, np.float32) for key in past}

    axes: Axes = {
        "input_ids": {0: "batch", 1: "new"}, "attention_mask": {0: "batch", 1: "past + new"},
        "position_ids": {0: "batch", 1: "new"}, **{key: {0: "batch", 2: "past"} for key in past},
    }  # fmt: skip
    outputs: Axes = {"logits": {0: "batch", 1: "new"}, **{key: {0: "batch", 2: "past + new"} for key in present}}
    return exported(build, axes, DECODER, feeds, {"batch": 2, "past": 5, "new": 3}, outputs)


class WhisperDecoder(nn.Module):
    """One call of Whisper's decoder: tokens, the encoder's states, and the cache of self- and cross-attention."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.layers = model, model.config.decoder_layers

    def forward(self, input_ids: Tensor, encoder_hidden_states: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        from transformers import DynamicCache, EncoderDecoderCache

        cache = DynamicCache()
        for layer in range(self.layers):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        both = EncoderDecoderCache(cache, DynamicCache())
        states = self.model.model.decoder(
            input_ids=input_ids, encoder_hidden_states=encoder_hidden_states, past_key_values=both, use_cache=True
        )
        kept = states.past_key_values.self_attention_cache.layers
        return self.model.proj_out(states[0]), *(part for layer in kept for part in (layer.keys, layer.values))


def whisper_decoder() -> OpenModel:
    """Tiny: 4 layers, 6 heads of 64; the encoder gives 1500 states at most."""
    past, present = cache_names(4, "past_key_values"), cache_names(4, "present")
    fields = {
        "d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 6,
        "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536,
    }  # fmt: skip

    def build() -> nn.Module:
        return WhisperDecoder(model_of("WhisperForConditionalGeneration", "WhisperConfig", **fields))

    def feeds(sizes: Sizes, random: np.random.Generator) -> Feeds:
        batch, shape = sizes["batch"], (sizes["batch"], 6, sizes["past"], 64)
        return {
            "input_ids": random.integers(0, 50000, (batch, sizes["new"])),
            "encoder_hidden_states": random.standard_normal((batch, sizes["sound"], 384), np.float32),
            **{key: random.standard_normal(shape, np.float32) for key in past},
        }

    axes: Axes = {
        "input_ids": {0: "batch", 1: "new"}, "encoder_hidden_states": {0: "batch", 1: "sound"},
        **{key: {0: "batch", 2: "past"} for key in past},
    }  # fmt: skip
    outputs: Axes = {"logits": {0: "batch", 1: "new"}, **{key: {0: "batch", 2: "past + new"} for key in present}}
    ranges = {"batch": (1, 4), "past": (0, 384), "new": (1, 64), "sound": (1, 1500)}
    return exported(build, axes, ranges, feeds, {"batch": 2, "past": 5, "new": 3, "sound": 50}, outputs)


STATES: Axes = {"last_hidden_state": ROWS, "pooler_output": {0: "batch"}}

MODELS = {
    "bert_base": encoder(bert, STATES),
    "minilm": encoder(minilm, {"sentence": {0: "batch"}}),
    "gpt2": decoder("GPT2LMHeadModel", "GPT2Config", 12, 12, 64, 50257),
    "llama": decoder("LlamaForCausalLM", "LlamaConfig", 8, 4, 64, 8192, **LLAMA),
    "whisper_decoder": whisper_decoder(),
}
