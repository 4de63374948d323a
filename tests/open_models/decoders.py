"""Decoders of two layers with a cache of open length, as PyTorch exports them: Llama, GPT-2, Whisper, older ones."""

from __future__ import annotations

from functools import partial

import numpy as np
from onnx import TensorProto, helper

from tests.open_models.fixture import OpenFixture
from tests.open_models.sizes import Feeds, Sizes
from tests.open_models.styles import Script, Style
from tests.open_models.transformers import (
    DECODER,
    FLOAT,
    GROUPS,
    HEAD,
    HEADS,
    INNER,
    INT64,
    LAYERS,
    POSITIONS,
    TOTALS,
    WIDTH,
    WORDS,
    attention,
    cache_names,
    cached,
    causal,
    conv1d,
    decoder_feeds,
    decoder_model,
    finished,
    gelu,
    grown,
    heads,
    joined,
    layer_norm,
    linear,
    named,
    positions,
    rms_norm,
    tanh_gelu,
    with_padding,
)  # fmt: skip

KEY = "past_key_values.0.key"


def llama(style: type[Style]) -> OpenFixture:
    """Rotated positions, fewer heads of keys than of queries, RMS normalisation, a gated MLP."""
    b = style(seed=2)
    x = b.op("Gather", b.weight(WORDS, WIDTH, scale=0.5), "input_ids", axis=0)
    batch, new, past = b.size("position_ids", 0), b.size("input_ids", 1), b.size(KEY, 2)
    total = b.plus(past, new)
    at = positions(b, batch, new, total, past)
    seen = b.expand(with_padding(b, causal(b, at), "attention_mask", at), batch, -1, new, total)
    angles = b.op("Cast", b.op("Unsqueeze", "position_ids", b.ints(2)), to=FLOAT)
    angles = b.op("Mul", angles, b.constant((100.0 ** -np.linspace(0, 1, HEAD // 2)).astype(np.float32)))
    angles = b.op("Concat", angles, angles, axis=-1)
    cos, sin = (b.op("Unsqueeze", b.op(function, angles), b.ints(1)) for function in ("Cos", "Sin"))

    def rotated(part: str) -> str:
        turned = b.op("Concat", b.op("Neg", b.half(part, True, HEAD)), b.half(part, False, HEAD), axis=-1)
        return b.op("Add", b.op("Mul", part, cos), b.op("Mul", turned, sin))

    for layer in range(LAYERS):
        y = rms_norm(b, x)
        q, k, v = (
            heads(b, linear(b, y, WIDTH, width, False), batch, new) for width in (WIDTH, GROUPS * HEAD, GROUPS * HEAD)
        )
        key, value = grown(b, layer, rotated(k), v)
        mixed = attention(b, rotated(q), _repeated(b, key), _repeated(b, value), seen)
        x = b.op("Add", x, linear(b, joined(b, mixed, batch, new), WIDTH, WIDTH, False))
        y = rms_norm(b, x)
        gate = linear(b, y, WIDTH, INNER, False)
        gated = b.op("Mul", b.op("Mul", gate, b.op("Sigmoid", gate)), linear(b, y, WIDTH, INNER, False))
        x = b.op("Add", x, linear(b, gated, INNER, WIDTH, False))
    named(b, linear(b, rms_norm(b, x), WIDTH, WORDS, False), "logits")
    return OpenFixture(decoder_model(b, "llama", GROUPS, TOTALS[b.name]), DECODER, partial(decoder_feeds, GROUPS))


def _repeated(b: Style, x: str) -> str:
    """Each head of keys or values for all of its group of queries."""
    batch, count, length = b.size(x, 0), b.size(x, 1), b.size(x, 2)
    times = HEADS // GROUPS
    wide = b.expand(b.op("Unsqueeze", x, b.ints(2)), batch, count, times, length, HEAD)
    if b.name == "dynamo":
        return b.reshape(wide, batch, HEADS, length, HEAD)
    return b.reshape(wide, batch, b.op("Mul", count, b.constant(np.int64(times))), length, b.size(x, 3))


def gpt2(style: type[Style]) -> OpenFixture:
    """Ids and masks go through a reshape that keeps their shape; dense layers are Gemms of all rows."""
    b = style(seed=3)
    length = b.size("input_ids", 1)
    ids = b.reshape("input_ids", -1, length)
    batch = b.size(ids, 0)
    x = b.op("Gather", b.weight(WORDS, WIDTH, scale=0.5), ids, axis=0)
    x = b.op("Add", x, b.op("Gather", b.weight(POSITIONS, WIDTH, scale=0.5), "position_ids", axis=0))
    mask = b.reshape("attention_mask", batch, -1)
    new, past = b.size(x, 1), b.size(KEY, 2)
    total = b.plus(past, new)
    at = positions(b, batch, new, total, past)
    seen = b.expand(with_padding(b, causal(b, at), mask, at), batch, -1, new, total)
    for layer in range(LAYERS):
        qkv = conv1d(b, layer_norm(b, x), WIDTH, 3 * WIDTH)
        parts = b.op("Split", qkv, b.ints(WIDTH, WIDTH, WIDTH), outputs=3, axis=2)
        q, k, v = (heads(b, part, b.size(part, 0), b.size(part, 1)) for part in parts)
        key, value = grown(b, layer, k, v)
        mixed = attention(b, q, key, value, seen)
        x = b.op("Add", conv1d(b, joined(b, mixed, batch, new), WIDTH, WIDTH), x)
        x = b.op("Add", x, conv1d(b, tanh_gelu(b, conv1d(b, layer_norm(b, x), WIDTH, INNER)), INNER, WIDTH))
    states = b.reshape(layer_norm(b, x), -1, length, WIDTH)
    named(b, linear(b, states, WIDTH, WORDS, False), "logits")
    return OpenFixture(decoder_model(b, "gpt2", HEADS, TOTALS[b.name]), DECODER, partial(decoder_feeds, HEADS))


def whisper_decoder(style: type[Style]) -> OpenFixture:
    """Attention to the cache and to the encoder's states, whose number is open; positions count from the past."""
    b = style(seed=4)
    sound = "encoder_hidden_states"
    batch, new, past = b.size("input_ids", 0), b.size("input_ids", 1), b.size(KEY, 2)
    total = b.plus(past, new)
    at = positions(b, batch, new, total, past)
    x = b.op("Gather", b.weight(WORDS, WIDTH, scale=0.5), "input_ids", axis=0)
    places = b.op("Add", b.arange(new), past if b.name == "script" else b.op("Squeeze", past))
    places = b.op("Tile", b.op("Unsqueeze", places, b.ints(0)), b.vector(batch, 1))
    x = b.op("Add", x, b.op("Gather", b.weight(POSITIONS, WIDTH, scale=0.5), places, axis=0))
    seen = b.expand(causal(b, at), batch, -1, new, total)
    for layer in range(LAYERS):
        y = layer_norm(b, x)
        q, k, v = (heads(b, linear(b, y, WIDTH, WIDTH), batch, new) for _ in "qkv")
        mixed = attention(b, q, *grown(b, layer, k, v), seen)
        x = b.op("Add", x, linear(b, joined(b, mixed, batch, new), WIDTH, WIDTH))
        q = heads(b, linear(b, layer_norm(b, x), WIDTH, WIDTH), batch, new)
        k, v = (_heads_of_all(b, linear(b, sound, WIDTH, WIDTH), batch) for _ in "kv")
        x = b.op("Add", x, linear(b, joined(b, attention(b, q, k, v, None), batch, new), WIDTH, WIDTH))
        x = b.op("Add", x, linear(b, gelu(b, linear(b, layer_norm(b, x), WIDTH, INNER)), INNER, WIDTH))
    named(b, linear(b, layer_norm(b, x), WIDTH, WORDS, False), "logits")
    past_shape: list[str | int] = ["batch", HEADS, "past", HEAD]
    inputs: dict[str, tuple[int, list[str | int]]] = {
        "input_ids": (INT64, ["batch", "new"]), sound: (FLOAT, ["batch", "sound", WIDTH]),
        **dict.fromkeys(cache_names("past_key_values"), (FLOAT, past_shape)),
    }  # fmt: skip
    kept: dict[str, list[str | int]] = {key: ["batch", HEADS, "past + new", HEAD] for key in cache_names("present")}
    model = finished(b, "whisper", inputs, {"logits": ["batch", "new", WORDS], **kept})
    return OpenFixture(model, {**DECODER, "sound": (1, 30)}, _heard)


def _heads_of_all(b: Style, x: str, batch: str) -> str:
    """The length is what is left, the number of heads is said."""
    return b.op("Transpose", b.reshape(x, batch, -1, HEADS, HEAD), perm=[0, 2, 1, 3])


def _heard(sizes: Sizes, random: np.random.Generator) -> Feeds:
    return {
        "input_ids": random.integers(0, WORDS, (sizes["batch"], sizes["new"])),
        "encoder_hidden_states": random.standard_normal((sizes["batch"], sizes["sound"], WIDTH), np.float32),
        **cached(HEADS, sizes, random),
    }


def older_decoder() -> OpenFixture:
    """As models were written before: positions are running sums of the mask, a triangle is cut to the lengths at hand,
    and the padding becomes a large negative number.
    """
    b = Script(seed=5)
    mask, ids = "attention_mask", "input_ids"
    batch, new, past = b.size(ids, 0), b.size(ids, 1), b.size(KEY, 2)
    total = b.plus(past, new)
    counted = b.op("CumSum", mask, b.constant(np.int64(1)))
    known = b.op("Clip", b.op("Sub", counted, b.constant(np.int64(1))), b.constant(np.int64(0)))
    place = _cut(b, known, 1, past, total)
    x = b.op("Gather", b.weight(WORDS, WIDTH, scale=0.5), ids, axis=0)
    x = b.op("Add", x, b.op("Gather", b.weight(POSITIONS, WIDTH, scale=0.5), place, axis=0))
    ones = helper.make_tensor("value", TensorProto.FLOAT, [1], [1])
    square = b.op("ConstantOfShape", b.vector(total, total), value=ones)
    lower = b.op("Cast", b.op("Trilu", square, b.constant(np.int64(0)), upper=0), to=TensorProto.BOOL)
    lower = _cut(b, _cut(b, lower, 0, b.op("Sub", total, new), total), 1, b.constant(np.int64(0)), total)
    padding = b.op("Unsqueeze", b.op("Cast", mask, to=FLOAT), b.ints(1, 2))
    padding = b.op("Mul", b.op("Sub", b.number(1), padding), b.number(-1e4))
    for layer in range(LAYERS):
        q, k, v = (heads(b, linear(b, layer_norm(b, x), WIDTH, WIDTH), batch, new) for _ in "qkv")
        key, value = grown(b, layer, k, v)
        scores = b.op("Div", b.op("MatMul", q, b.swapped(key)), b.number(HEAD**0.5))
        scores = b.op("Add", b.op("Where", lower, scores, b.number(-1e4)), padding)
        mixed = b.op("MatMul", b.op("Softmax", scores, axis=-1), value)
        x = b.op("Add", x, linear(b, joined(b, mixed, batch, new), WIDTH, WIDTH))
        x = b.op("Add", x, linear(b, tanh_gelu(b, linear(b, layer_norm(b, x), WIDTH, INNER)), INNER, WIDTH))
    named(b, linear(b, layer_norm(b, x), WIDTH, WORDS, False), "logits")
    model = decoder_model(b, "older", HEADS, "past + new")
    del model.graph.input[2]  # positions come from the mask
    return OpenFixture(model, DECODER, partial(_without_positions, HEADS))


def _cut(b: Style, x: str, axis: int, start: str, end: str) -> str:
    bounds = (b.op("Unsqueeze", size, b.ints(0)) for size in (start, end))
    return b.op("Slice", x, *bounds, b.ints(axis), b.ints(1))


def _without_positions(heads_kept: int, sizes: Sizes, random: np.random.Generator) -> Feeds:
    feeds = decoder_feeds(heads_kept, sizes, random)
    del feeds["position_ids"]
    return feeds
