"""Two-layer BERT, GPT-2 and ViT and a basic block of ResNet, node for node as PyTorch exports them, of small widths."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.models import Builder

INT, FLOAT, HALF = TensorProto.INT64, TensorProto.FLOAT, TensorProto.FLOAT16


def bert(
    batch: int = 2, length: int = 7, hidden: int = 24, heads: int = 3, layers: int = 2, seed: int = 0
) -> ModelProto:
    """Inputs `ids`, `types`, `keep`: int64 [batch, length], the last 1 for tokens, 0 for padding.

    Output `y`: float32 [batch, length, hidden]. Norms come after the residuals, GELU is spelled out by erf.
    """
    b = Builder(seed)
    words = b.op("Gather", b.weight(50, hidden, scale=1.0), "ids")
    types = b.op("Gather", b.weight(2, hidden, scale=1.0), "types")
    places = b.weight(1, length, hidden, scale=1.0)
    x = _norm(b, b.op("Add", b.op("Add", words, types), places), hidden)
    keep = b.op("Cast", b.op("Unsqueeze", "keep", _integers(b, 1, 2)), to=FLOAT)
    mask = b.op("Mul", b.op("Sub", _number(b, 1.0), keep), _number(b, -10000.0))
    for _ in range(layers):
        q, k, v = (_split_heads(b, _linear(b, x, hidden, hidden), (batch, length, hidden), heads) for _ in range(3))
        scores = b.op("MatMul", b.op("Transpose", q, perm=[0, 2, 1, 3]), b.op("Transpose", k, perm=[0, 2, 3, 1]))
        scores = b.op("Add", b.op("Div", scores, _number(b, (hidden // heads) ** 0.5)), mask)
        mixed = b.op("MatMul", b.op("Softmax", scores, axis=-1), b.op("Transpose", v, perm=[0, 2, 1, 3]))
        joined = _join_heads(b, mixed, (batch, length, hidden))
        x = _norm(b, b.op("Add", _linear(b, joined, hidden, hidden), x), hidden)
        h = _linear(b, x, hidden, 4 * hidden)
        erf = b.op("Add", b.op("Erf", b.op("Div", h, _number(b, 2**0.5))), _number(b, 1.0))
        h = b.op("Mul", b.op("Mul", h, erf), _number(b, 0.5))
        x = _norm(b, b.op("Add", _linear(b, h, 4 * hidden, hidden), x), hidden)
    inputs = [helper.make_tensor_value_info(name, INT, [batch, length]) for name in ("ids", "types", "keep")]
    return _model(b, "bert", inputs, x, (batch, length, hidden))


def gpt2(
    batch: int = 1, length: int = 9, hidden: int = 32, heads: int = 2, layers: int = 2, seed: int = 0
) -> ModelProto:
    """Input `ids`: int64 [batch, length]. Output `y`: float32 [batch, length, 50], logits.

    Norms come before GEMMs, one GEMM makes queries, keys and values, masked scores are replaced, GELU is
    spelled out by tanh, and the table of words makes the logits.
    """
    b = Builder(seed)
    table = b.weight(50, hidden, scale=1.0)
    places = b.op("Gather", b.weight(16, hidden, scale=0.1), _integers(b, *range(length)))
    x = b.op("Add", b.op("Gather", table, "ids"), places)
    seen = b.constant(np.tril(np.ones((1, 1, length, length), bool)))
    for _ in range(layers):
        packed = _linear(b, _norm(b, x, hidden), hidden, 3 * hidden)
        parts = b.op("Split", packed, _integers(b, *[hidden] * 3), outputs=3, axis=2)
        q, k, v = (_split_heads(b, part, (batch, length, hidden), heads) for part in parts)
        scores = b.op("MatMul", b.op("Transpose", q, perm=[0, 2, 1, 3]), b.op("Transpose", k, perm=[0, 2, 3, 1]))
        scores = b.op("Where", seen, b.op("Mul", scores, _number(b, (hidden // heads) ** -0.5)), _number(b, -60000.0))
        mixed = b.op("MatMul", b.op("Softmax", scores, axis=-1), b.op("Transpose", v, perm=[0, 2, 1, 3]))
        x = b.op("Add", x, _linear(b, _join_heads(b, mixed, (batch, length, hidden)), hidden, hidden))
        x = b.op("Add", x, _gelu_mlp(b, _norm(b, x, hidden), hidden))
    y = b.op("MatMul", _norm(b, x, hidden), b.op("Transpose", table, perm=[1, 0]))
    return _model(b, "gpt2", [helper.make_tensor_value_info("ids", INT, [batch, length])], y, (batch, length, 50))


def vit(
    batch: int = 1, size: int = 12, patch: int = 4, hidden: int = 24, heads: int = 3, layers: int = 2, seed: int = 0
) -> ModelProto:
    """Input `x`: float32 [batch, 3, size, size]. Output `y`: float32 [batch, patches, hidden].

    A convolution cuts patches out; norms come before GEMMs, GELU is spelled out by erf.
    """
    b = Builder(seed)
    length = (size // patch) ** 2
    patches = b.op("Conv", "x", b.weight(hidden, 3, patch, patch), kernel_shape=[patch] * 2, strides=[patch] * 2)
    x = b.op("Transpose", b.op("Reshape", patches, _integers(b, batch, hidden, length)), perm=[0, 2, 1])
    x = b.op("Add", x, b.weight(1, length, hidden, scale=0.1))
    for _ in range(layers):
        n = _norm(b, x, hidden)
        q, k, v = (_split_heads(b, _linear(b, n, hidden, hidden), (batch, length, hidden), heads) for _ in range(3))
        scores = b.op("MatMul", b.op("Transpose", q, perm=[0, 2, 1, 3]), b.op("Transpose", k, perm=[0, 2, 3, 1]))
        weights = b.op("Softmax", b.op("Div", scores, _number(b, (hidden // heads) ** 0.5)), axis=-1)
        mixed = b.op("MatMul", weights, b.op("Transpose", v, perm=[0, 2, 1, 3]))
        x = b.op("Add", _linear(b, _join_heads(b, mixed, (batch, length, hidden)), hidden, hidden), x)
        h = _linear(b, _norm(b, x, hidden), hidden, 4 * hidden)
        erf = b.op("Add", b.op("Erf", b.op("Div", h, _number(b, 2**0.5))), _number(b, 1.0))
        h = b.op("Mul", b.op("Mul", h, erf), _number(b, 0.5))
        x = b.op("Add", _linear(b, h, 4 * hidden, hidden), x)
    picture = helper.make_tensor_value_info("x", FLOAT, [batch, 3, size, size])
    return _model(b, "vit", [picture], _norm(b, x, hidden), (batch, length, hidden))


def _gelu_mlp(b: Builder, x: str, hidden: int) -> str:
    h = _linear(b, x, hidden, 4 * hidden)
    cubic = b.op("Mul", b.op("Pow", h, _number(b, 3.0)), _number(b, 0.044715))
    inner = b.op("Mul", b.op("Add", h, cubic), _number(b, (2 / np.pi) ** 0.5))
    gate = b.op("Add", b.op("Tanh", inner), _number(b, 1.0))
    return _linear(b, b.op("Mul", b.op("Mul", h, _number(b, 0.5)), gate), 4 * hidden, hidden)


def residual_block(batch: int = 2, cin: int = 6, cout: int = 10, size: int = 9, seed: int = 0) -> ModelProto:
    """A basic block of ResNet that halves the picture, so that its shortcut has a convolution of its own.

    Input `x`: float32 [batch, cin, size, size]; output `y`: float32 [batch, cout, (size + 1) // 2, (size + 1) // 2].
    """
    b = Builder(seed)
    body = b.op("Relu", _conv_norm(b, "x", cin, cout, 3, 2))
    body = _conv_norm(b, body, cout, cout, 3, 1)
    y = b.op("Relu", b.op("Add", body, _conv_norm(b, "x", cin, cout, 1, 2)))
    half = (size + 1) // 2
    picture = helper.make_tensor_value_info("x", FLOAT, [batch, cin, size, size])
    return _model(b, "residual_block", [picture], y, (batch, cout, half, half))


def half(model: ModelProto) -> ModelProto:
    """The model with float16 in place of float32."""
    copy = ModelProto.FromString(model.SerializeToString())
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.tensor_type.elem_type == FLOAT:
            value.type.tensor_type.elem_type = HALF
    for tensor in copy.graph.initializer:
        if tensor.data_type == FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for node in copy.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == FLOAT:
                attribute.i = HALF
    return copy


def _model(b: Builder, name: str, inputs: list[object], y: str, shape: tuple[int, ...]) -> ModelProto:
    b.nodes.append(helper.make_node("Identity", [y], ["y"], name="/output"))
    return b.model(name, inputs, [helper.make_tensor_value_info("y", FLOAT, shape)], opset=17)


def _number(b: Builder, number: float) -> str:
    return b.constant(np.float32(number))


def _integers(b: Builder, *numbers: int) -> str:
    return b.constant(np.array(numbers, np.int64))


def _norm(b: Builder, x: str, hidden: int) -> str:
    return b.op("LayerNormalization", x, b.around_one(hidden), b.weight(hidden, scale=0.1), axis=-1, epsilon=1e-5)


def _linear(b: Builder, x: str, cin: int, cout: int) -> str:
    return b.op("Add", b.op("MatMul", x, b.weight(cin, cout)), b.weight(cout, scale=0.1))


def _split_heads(b: Builder, x: str, shape: tuple[int, int, int], heads: int) -> str:
    batch, length, hidden = shape
    return b.op("Reshape", x, _integers(b, batch, length, heads, hidden // heads))


def _join_heads(b: Builder, x: str, shape: tuple[int, int, int]) -> str:
    return b.op("Reshape", b.op("Transpose", x, perm=[0, 2, 1, 3]), _integers(b, *shape))


def _conv_norm(b: Builder, x: str, cin: int, cout: int, kernel: int, stride: int) -> str:
    pads = [kernel // 2] * 4
    x = b.op("Conv", x, b.weight(cout, cin, kernel, kernel), kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)
    statistics = (b.around_one(cout), b.weight(cout, scale=0.1), b.weight(cout, scale=0.1), b.around_one(cout))
    return b.op("BatchNormalization", x, *statistics, epsilon=1e-5)
