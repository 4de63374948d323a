"""Small and middle models that between them use every template of code generation; no PyTorch, no downloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from onnx import ModelProto, TensorProto, helper

from tests.models import Builder, cnn, transformer
from tests.networks import bert, gpt2, half, residual_block
from tests.open_models.catalogue import fixture_of

FLOAT = TensorProto.FLOAT


def _model(
    b: Builder, name: str, result: str, inputs: Mapping[str, tuple[int, ...]], shape: tuple[int, ...]
) -> ModelProto:
    b.nodes.append(helper.make_node("Identity", [result], ["y"], name="/output"))
    given = [helper.make_tensor_value_info(key, FLOAT, size) for key, size in inputs.items()]
    return b.model(name, given, [helper.make_tensor_value_info("y", FLOAT, shape)], 20)


def _number(b: Builder, number: float) -> str:
    return b.constant(np.array(number, np.float32))


def _integers(b: Builder, *numbers: int) -> str:
    return b.constant(np.array(numbers, np.int64))


def _silu(b: Builder, x: str) -> str:
    return str(b.op("Mul", x, b.op("Sigmoid", x)))


def _rms_norm(b: Builder, x: str, width: int) -> str:
    squares = b.op("ReduceMean", b.op("Mul", x, x), _integers(b, -1), keepdims=1)
    return str(b.op("Mul", b.op("Div", x, b.op("Sqrt", b.op("Add", squares, _number(b, 1e-6)))), b.around_one(width)))


def gated_mlp(rows: int = 1, width: int = 256, hidden: int = 688) -> ModelProto:
    """A Llama-like feed-forward block: RMSNorm, gate and projection, SiLU, residual."""
    b = Builder(1)
    normed = _rms_norm(b, "x", width)
    gate = _silu(b, b.op("MatMul", normed, b.weight(width, hidden)))
    up = b.op("MatMul", normed, b.weight(width, hidden))
    result = b.op("Add", "x", b.op("MatMul", b.op("Mul", gate, up), b.weight(hidden, width)))
    return _model(b, "gated_mlp", result, {"x": (rows, width)}, (rows, width))


def attention(queries: int, keys: int, heads: int = 4, width: int = 64) -> ModelProto:
    """One query or many against keys and values that are inputs."""
    b = Builder(2)
    scores = b.op("Mul", b.op("MatMul", "q", b.op("Transpose", "k", perm=[0, 2, 1])), _number(b, width**-0.5))
    mixed = b.op("MatMul", b.op("Softmax", scores, axis=-1), "v")
    kept = (heads, keys, width)
    return _model(b, "attention", mixed, {"q": (heads, queries, width), "k": kept, "v": kept}, (heads, queries, width))


def recurrent(kind: str, gates: int, steps: int = 4, batch: int = 2, width: int = 48, hidden: int = 64) -> ModelProto:
    """A bidirectional LSTM or GRU."""
    b = Builder(3)
    weights = [b.constant(b.random.standard_normal(s).astype(np.float32) / 8) for s in (
        (2, gates * hidden, width), (2, gates * hidden, hidden), (2, 2 * gates * hidden))]  # fmt: skip
    found = b.op(kind, "x", *weights, outputs=2, hidden_size=hidden, direction="bidirectional")
    return _model(b, kind.lower(), found[0], {"x": (steps, batch, width)}, (steps, 2, batch, hidden))


def inception(channels: int = 32, size: int = 14) -> ModelProto:
    """Branches of convolutions and a pool, joined by a concat."""
    b = Builder(4)

    def conv(x: str, cin: int, cout: int, kernel: int) -> str:
        found = b.op("Conv", x, b.weight(cout, cin, kernel, kernel), b.weight(cout, scale=0.1), pads=[kernel // 2] * 4)
        return str(b.op("Relu", found))

    pooled = b.op("MaxPool", "x", kernel_shape=[3, 3], pads=[1] * 4)
    branches = [conv("x", channels, 16, 1), conv(conv("x", channels, 24, 1), 24, 32, 3),
                conv(conv("x", channels, 8, 1), 8, 16, 5), conv(pooled, channels, 16, 1)]  # fmt: skip
    shape = (1, channels, size, size)
    return _model(b, "inception", b.op("Concat", *branches, axis=1), {"x": shape}, (1, 80, size, size))


def mobile_block(channels: int = 24, size: int = 28) -> ModelProto:
    """Expansion, depthwise convolution, squeeze and excitation, projection, residual."""
    b, wide = Builder(5), 4 * channels
    h = b.op("Clip", b.op("Conv", "x", b.weight(wide, channels, 1, 1)), _number(b, 0.0), _number(b, 6.0))
    h = _silu(b, b.op("Conv", h, b.weight(wide, 1, 3, 3), b.weight(wide), group=wide, pads=[1] * 4))
    squeezed = b.op("Relu", b.op("Conv", b.op("GlobalAveragePool", h), b.weight(8, wide, 1, 1)))
    h = b.op("Mul", h, b.op("Sigmoid", b.op("Conv", squeezed, b.weight(wide, 8, 1, 1))))
    shape = (1, channels, size, size)
    result = b.op("Add", "x", b.op("Conv", h, b.weight(channels, wide, 1, 1)))
    return _model(b, "mobile_block", result, {"x": shape}, shape)


def group_norm(channels: int = 32, size: int = 16) -> ModelProto:
    """GroupNorm as PyTorch exports it, before and after a convolution."""
    b, shape = Builder(6), (1, channels, size, size)

    def norm(x: str) -> str:
        ones, zeros = b.constant(np.ones(8, np.float32)), b.constant(np.zeros(8, np.float32))
        flat = b.op("InstanceNormalization", b.op("Reshape", x, _integers(b, 0, 8, -1)), ones, zeros)
        scale, bias = (b.constant(b.random.standard_normal((channels, 1, 1)).astype(np.float32)) for _ in range(2))
        return _silu(b, b.op("Add", b.op("Mul", b.op("Reshape", flat, _integers(b, *shape)), scale), bias))

    result = norm(b.op("Conv", norm("x"), b.weight(channels, channels, 3, 3), pads=[1] * 4))
    return _model(b, "group_norm", result, {"x": shape}, shape)


def long_rows(rows: int = 2, columns: int = 200_000) -> ModelProto:
    """Softmax of few long rows and the mean of the whole tensor."""
    b = Builder(7)
    result = b.op("Sub", b.op("Softmax", "x", axis=-1), b.op("ReduceMean", "x", keepdims=1))
    return _model(b, "long_rows", result, {"x": (rows, columns)}, (rows, columns))


def columns(rows: int = 4096, width: int = 96) -> ModelProto:
    """Statistics over the first axis, and a transpose of the result."""
    b = Builder(8)
    centred = b.op("Sub", "x", b.op("ReduceMean", "x", _integers(b, 0), keepdims=1))
    return _model(b, "columns", b.op("Transpose", centred, perm=[1, 0]), {"x": (rows, width)}, (width, rows))


def sorting(rows: int = 5, width: int = 300) -> ModelProto:
    """TopK, a scatter, a running sum, a gather and a pad."""
    b = Builder(9)
    values, places = b.op("TopK", "x", _integers(b, 7), outputs=2, axis=1)
    spread = b.op("ScatterElements", "x", places, values, axis=1)
    summed = b.op("CumSum", spread, b.constant(np.array(1, np.int64)))
    taken = b.op("Gather", summed, _integers(b, *range(0, width, 3)), axis=1)
    result = b.op("Pad", taken, _integers(b, 0, 1, 0, 2))
    return _model(b, "sorting", result, {"x": (rows, width)}, (rows, width // 3 + 3))


def projections(rows: int = 128, width: int = 512) -> ModelProto:
    """A projection, bias, residual and LayerNorm, and a second projection of many columns."""
    b = Builder(10)
    h = b.op("Add", b.op("Add", b.op("MatMul", "x", b.weight(width, width)), b.weight(width)), "x")
    h = b.op("LayerNormalization", h, b.around_one(width), b.weight(width), axis=-1)
    h = b.op("Gelu", b.op("Add", b.op("MatMul", h, b.weight(width, 4 * width)), b.weight(4 * width)))
    return _model(b, "projections", h, {"x": (rows, width)}, (rows, 4 * width))


def decoder(size: int = 12, cin: int = 16) -> ModelProto:
    """A transposed convolution, a strided one, average pooling and a resize."""
    b = Builder(11)
    h = b.op("Relu", b.op("ConvTranspose", "x", b.weight(cin, 8, 4, 4), strides=[2, 2], pads=[1] * 4))
    h = b.op("Conv", h, b.weight(24, 8, 3, 3), strides=[2, 2], pads=[1] * 4)
    h = b.op("AveragePool", h, kernel_shape=[2, 2], strides=[2, 2])
    scales = b.constant(np.array([1, 1, 2, 2], np.float32))
    h = b.op("Resize", h, "", scales, mode="linear")
    return _model(b, "decoder", h, {"x": (1, cin, size, size)}, (1, 24, size, size))


MODELS: Mapping[str, Callable[[], ModelProto]] = {
    "bert_small": bert,
    "bert_middle": partial(bert, batch=1, length=128, hidden=256, heads=4),
    "bert_half": lambda: half(bert(batch=1, length=64, hidden=256, heads=4)),
    "gpt2_small": gpt2,
    "gpt2_middle": partial(gpt2, length=16, hidden=256, heads=4, layers=1),
    "transformer_causal": partial(transformer, hidden=64, sequence=33, causal=True),
    "cnn_small": cnn,
    "cnn_middle": partial(cnn, channels=64, size=64),
    "residual_block": residual_block,
    "residual_half": lambda: half(residual_block(batch=1, cin=64, cout=128, size=28)),
    "gated_mlp_decode": gated_mlp,
    "gated_mlp_prefill": partial(gated_mlp, rows=100),
    "attention_long": partial(attention, 512, 512),
    "attention_decode": partial(attention, 1, 3000),
    "lstm": partial(recurrent, "LSTM", 4),
    "gru": partial(recurrent, "GRU", 3),
    "inception": inception,
    "mobile_block": mobile_block,
    "group_norm": group_norm,
    "long_rows": long_rows,
    "columns": columns,
    "sorting": sorting,
    "projections": projections,
    "decoder": decoder,
}
"""By name; each call builds the same model anew."""

OPEN: dict[str, Callable[[], ModelProto]] = {
    "open_encoder": lambda: fixture_of("encoder.script").model,
    "open_decoder": lambda: fixture_of("gpt2.script").model,
    "open_images": lambda: fixture_of("mobilenet_sides.script").model,
}
"""Those with open dimensions."""
