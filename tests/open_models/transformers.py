"""Transformers of two layers with open batch and length, and with a cache of open length, as PyTorch exports them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from tests.open_models.fixture import OpenFixture
from tests.open_models.sizes import Feeds, Sizes
from tests.open_models.styles import Style

LAYERS, HEADS, GROUPS, HEAD, WIDTH, INNER, WORDS, POSITIONS = 2, 4, 2, 4, 16, 24, 50, 64
ENCODER = {"batch": (1, 4), "length": (1, 48)}
DECODER = {"batch": (1, 4), "past": (0, 40), "new": (1, 8)}
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def finished(
    b: Style, name: str, inputs: dict[str, tuple[int, list[str | int]]], outputs: dict[str, list[str | int]]
) -> ModelProto:
    """Names what was computed last as outputs; `inputs` have a type of elements and a shape."""
    given = [helper.make_tensor_value_info(key, type_, shape) for key, (type_, shape) in inputs.items()]
    results: list[ValueInfoProto] = [helper.make_tensor_value_info(key, FLOAT, shape) for key, shape in outputs.items()]
    return b.model(f"{name}_{b.name}", given, results, b.opset)


def named(b: Style, value: str, name: str) -> None:
    b.nodes.append(helper.make_node("Identity", [value], [name], name=f"/{name}"))


# --- parts ------------------------------------------------------------------------------------------------------------


def linear(b: Style, x: str, cin: int, cout: int, bias: bool = True) -> str:
    y = b.op("MatMul", x, b.weight(cin, cout))
    return b.op("Add", y, b.weight(cout, scale=0.1)) if bias else y


def conv1d(b: Style, x: str, cin: int, cout: int) -> str:
    """GPT-2's name for a dense layer: a Gemm of all rows, between two reshapes."""
    batch, length = b.size(x, 0), b.size(x, 1)
    y = b.op("Gemm", b.rows(x, cin), b.weight(cin, cout), b.weight(cout, scale=0.1), alpha=1.0, beta=1.0)
    return b.reshape(y, batch, length, cout)


def layer_norm(b: Style, x: str) -> str:
    return b.op("LayerNormalization", x, b.around_one(WIDTH), b.weight(WIDTH, scale=0.1), axis=-1)


def rms_norm(b: Style, x: str) -> str:
    root = b.op("Sqrt", b.op("Add", b.mean(b.op("Pow", x, b.number(2)), [-1]), b.number(1e-6)))
    scale = b.op("Div", b.number(1), root) if b.name == "script" else b.op("Reciprocal", root)
    return b.op("Mul", b.around_one(WIDTH), b.op("Mul", x, scale))


def gelu(b: Style, x: str) -> str:
    if b.name == "dynamo":
        return b.op("Gelu", x, approximate="none")
    erf = b.op("Erf", b.op("Div", x, b.number(2**0.5)))
    return b.op("Mul", b.op("Mul", x, b.op("Add", erf, b.number(1))), b.number(0.5))


def tanh_gelu(b: Style, x: str) -> str:
    cubed = b.op("Mul", b.op("Pow", x, b.number(3)), b.number(0.044715))
    inner = b.op("Mul", b.op("Add", x, cubed), b.number((2 / np.pi) ** 0.5))
    return b.op("Mul", b.op("Mul", x, b.number(0.5)), b.op("Add", b.op("Tanh", inner), b.number(1)))


def heads(b: Style, x: str, batch: str, length: str | int) -> str:
    return b.op("Transpose", b.reshape(x, batch, length, -1, HEAD), perm=[0, 2, 1, 3])


def attention(b: Style, q: str, k: str, v: str, mask: str | None) -> str:
    """scaled_dot_product_attention as both exporters take it apart; MASK is of booleans."""
    scale = b.number(HEAD**-0.25)
    scores = b.op("MatMul", b.op("Mul", q, scale), b.op("Mul", b.swapped(k), scale))
    if mask is not None:
        least = -np.inf if b.name == "script" else np.finfo(np.float32).min
        scores = b.op("Add", scores, b.op("Where", mask, b.number(0), b.number(least)))
    weights = b.op("Softmax", scores, axis=-1)
    weights = b.op("Where", b.op("IsNaN", weights), b.number(0), weights)
    return b.op("MatMul", weights, v)


def joined(b: Style, mixed: str, batch: str, length: str) -> str:
    return b.reshape(b.op("Transpose", mixed, perm=[0, 2, 1, 3]), batch, length, -1)


@dataclass(frozen=True)
class Positions:
    """Positions as the mask needs them: of rows [B, 1, 1, 1], of queries [1, 1, Q, 1], of keys [1, 1, 1, K]."""

    rows: str
    queries: str
    keys: str


def positions(b: Style, batch: str, queries: str, keys: str, offset: str | None) -> Positions:
    asked = b.arange(queries)
    if offset is not None:
        asked = b.op("Add", asked, offset if b.name == "script" else b.op("Squeeze", offset))
    return Positions(
        b.outer(b.arange(batch), 1, 2, 3), b.outer(asked, 0, 1, 3), b.outer(b.arange(keys), 0, 1, 2)
    )  # fmt: skip


def causal(b: Style, at: Positions) -> str:
    return b.op("LessOrEqual", at.keys, at.queries)


def with_padding(b: Style, allowed: str, attention_mask: str, at: Positions) -> str:
    padding = b.op("Cast", attention_mask, to=TensorProto.BOOL)
    return b.op("And", allowed, b.at(padding, at.rows, at.keys))


# --- encoders ---------------------------------------------------------------------------------------------------------


def sentence_encoder(style: type[Style]) -> OpenFixture:
    """BERT, and the mean of the states of tokens that are not padding, scaled to length 1."""
    b = style(seed=1)
    ids, mask = "input_ids", "attention_mask"
    batch, length = b.size(ids, 0), b.size(ids, 1)
    table = b.constant(np.arange(POSITIONS, dtype=np.int64)[None])
    end = length if style.name == "dynamo" else b.op("Unsqueeze", length, b.ints(0))
    place = b.op("Slice", table, b.ints(0), end, b.ints(1), b.ints(1))
    kinds = b.constant(np.zeros((1, POSITIONS), np.int64))
    kinds = b.expand(kinds, b.size(place, 0), -1) if style.name == "script" else kinds
    kind = b.expand(b.op("GatherElements", kinds, place, axis=1), batch, length)
    x = b.op("Add", _embedded(b, ids, WORDS), _embedded(b, kind, 2))
    x = layer_norm(b, b.op("Add", x, _embedded(b, place, POSITIONS)))
    at = positions(b, batch, length, length, None)
    allowed = b.op("GreaterOrEqual", at.queries, b.constant(np.int64(0)))
    seen = b.expand(with_padding(b, allowed, mask, at), batch, -1, length, length)
    for _ in range(LAYERS):
        q, k, v = (heads(b, linear(b, x, WIDTH, WIDTH), batch, length) for _ in "qkv")
        mixed = joined(b, attention(b, q, k, v, seen), batch, length)
        x = layer_norm(b, b.op("Add", linear(b, mixed, WIDTH, WIDTH), x))
        x = layer_norm(b, b.op("Add", linear(b, gelu(b, linear(b, x, WIDTH, INNER)), INNER, WIDTH), x))
    weights = b.expand(b.op("Unsqueeze", mask, b.ints(-1)), *(b.size(x, axis) for axis in range(3)))
    weights = b.op("Cast", weights, to=FLOAT)
    total = b.op("ReduceSum", b.op("Mul", x, weights), b.ints(1), keepdims=0)
    count = b.op("Clip", b.op("ReduceSum", weights, b.ints(1), keepdims=0), b.number(1e-9))
    mean = b.op("Div", total, count)
    norm = b.op("ReduceL2", mean, axes=[1]) if b.name == "script" else b.op("ReduceL2", mean, b.ints(1))
    norm = b.op("Clip", norm, b.number(1e-12))
    named(b, b.op("Div", mean, b.op("Expand", norm, b.op("Shape", mean))), "sentence")
    shape: list[str | int] = ["batch", "length"]
    inputs = {ids: (INT64, shape), mask: (INT64, shape)}
    return OpenFixture(finished(b, "encoder", inputs, {"sentence": ["batch", WIDTH]}), ENCODER, sentences)


def _embedded(b: Style, ids: str, count: int) -> str:
    return b.op("Gather", b.weight(count, WIDTH, scale=0.5), ids, axis=0)


def sentences(sizes: Sizes, random: np.random.Generator) -> Feeds:
    """Of different lengths; the first is not padded."""
    batch, length = sizes["batch"], sizes["length"]
    lengths = random.integers(1, length + 1, batch)
    lengths[0] = length
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    return {"input_ids": random.integers(0, WORDS, (batch, length)), "attention_mask": mask}


# --- decoders with a cache --------------------------------------------------------------------------------------------


def cache_names(prefix: str) -> list[str]:
    return [f"{prefix}.{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]


def decoder_model(b: Style, name: str, heads_kept: int, total: str) -> ModelProto:
    """TOTAL is what the length of the mask is called: exporters write a sum of names, or a name of its own."""
    new: list[str | int] = ["batch", "new"]
    inputs: dict[str, tuple[int, list[str | int]]] = {
        "input_ids": (INT64, new), "attention_mask": (INT64, ["batch", total]), "position_ids": (INT64, new),
        **{key: (FLOAT, ["batch", heads_kept, "past", HEAD]) for key in cache_names("past_key_values")},
    }  # fmt: skip
    kept: dict[str, list[str | int]] = {
        key: ["batch", heads_kept, "past + new", HEAD] for key in cache_names("present")
    }  # fmt: skip
    return finished(b, name, inputs, {"logits": ["batch", "new", WORDS], **kept})


def decoder_feeds(heads_kept: int, sizes: Sizes, random: np.random.Generator) -> Feeds:
    """The second sequence and those after it have a shorter prompt, padded at its beginning."""
    batch, past, new = sizes["batch"], sizes["past"], sizes["new"]
    mask = np.ones((batch, past + new), np.int64)
    mask[1:, : past // 4] = 0
    tokens = {
        "input_ids": random.integers(0, WORDS, (batch, new)), "attention_mask": mask,
        "position_ids": np.broadcast_to(np.arange(past, past + new), (batch, new)).copy(),
    }  # fmt: skip
    return tokens | cached(heads_kept, sizes, random)


def cached(heads_kept: int, sizes: Sizes, random: np.random.Generator) -> Feeds:
    shape = (sizes["batch"], heads_kept, sizes["past"], HEAD)
    return {key: random.standard_normal(shape, np.float32) for key in cache_names("past_key_values")}


def grown(b: Style, layer: int, key: str, value: str) -> tuple[str, str]:
    """Past and new keys and values, which are outputs too."""
    both = []
    for part, new in (("key", key), ("value", value)):
        both.append(b.op("Concat", f"past_key_values.{layer}.{part}", new, axis=-2))
        named(b, both[-1], f"present.{layer}.{part}")
    return both[0], both[1]


TOTALS = {"script": "past + new", "dynamo": "s53"}
"""How each exporter calls the length of the mask: as it was told to, or a name of its own."""
