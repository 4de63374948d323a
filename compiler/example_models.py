"""Example models, built node by node with random weights from a seed: the same bytes every time.

They have the architecture of the networks of these names, but were never trained.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, checker, helper, numpy_helper

OPSET, IR_VERSION = 20, 9
CLASSES = 1000


class _Builder:
    """Builder that collects nodes and weights; every method returns the name of the value it adds."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._weights: list[TensorProto] = []

    def constant(self, array: np.ndarray) -> str:
        name = f"weight_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(array, name))
        return name

    def normal(self, shape: Sequence[int], fan_in: int) -> str:
        """Return weights scaled so that a sum over `fan_in` inputs of variance 1 has variance 1."""
        drawn = self._random.standard_normal(shape, dtype=np.float32)
        return self.constant(drawn * np.float32(fan_in**-0.5))

    def uniform(self, size: int, low: float, high: float) -> str:
        return self.constant(self._random.uniform(low, high, size).astype(np.float32))

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op_type}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op_type, list(inputs), [name], name=f"/{name}", **attributes))
        return name

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        result = self.op("MatMul", x, self.normal((inputs, outputs), inputs))
        return self.op("Add", result, self.uniform(outputs, -0.1, 0.1))

    def norm(self, x: str, size: int) -> str:
        return self.op("LayerNormalization", x, self.uniform(size, 0.8, 1.2), self.uniform(size, -0.1, 0.1), axis=-1)

    def model(self, name: str, inputs: Sequence[ValueInfoProto], output: str, shape: Sequence[int]) -> ModelProto:
        self._nodes.append(helper.make_node("Identity", [output], ["output"], name="/output"))
        result = helper.make_tensor_value_info("output", TensorProto.FLOAT, shape)
        graph = helper.make_graph(self._nodes, name, inputs, [result], self._weights)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="tilestitch")
        checker.check_model(model)
        return model


def mlp(seed: int) -> ModelProto:
    b = _Builder(seed)
    x = "x"
    for inputs, outputs in ((64, 256), (256, 256)):
        x = b.op("Relu", b.linear(x, inputs, outputs))
    x = b.op("Softmax", b.linear(x, 256, 10), axis=-1)
    return b.model("mlp", [_tensor("x", (8, 64))], x, (8, 10))


def transformer(seed: int) -> ModelProto:
    layers, hidden, heads, length, words = 2, 128, 4, 64, 1000
    b = _Builder(seed)
    words_table, places = b.normal((words, hidden), 1), b.normal((1, length, hidden), 1)
    x = b.norm(b.op("Add", b.op("Gather", words_table, "ids"), places), hidden)
    for _ in range(layers):
        x = b.norm(b.op("Add", x, _attention(b, x, hidden, heads, length)), hidden)
        inner = b.op("Gelu", b.linear(x, hidden, 4 * hidden))
        x = b.norm(b.op("Add", x, b.linear(inner, 4 * hidden, hidden)), hidden)
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, (1, length))
    return b.model("transformer", [ids], x, (1, length, hidden))


def _attention(b: _Builder, x: str, hidden: int, heads: int, length: int) -> str:
    width = hidden // heads
    apart, together = (b.constant(np.array(s, np.int64)) for s in ((1, length, heads, width), (1, length, hidden)))

    def head(perm: Sequence[int]) -> str:
        return b.op("Transpose", b.op("Reshape", b.linear(x, hidden, hidden), apart), perm=perm)

    queries, keys, values = head((0, 2, 1, 3)), head((0, 2, 3, 1)), head((0, 2, 1, 3))
    scores = b.op("Mul", b.op("MatMul", queries, keys), b.constant(np.float32(width**-0.5)))
    mixed = b.op("MatMul", b.op("Softmax", scores, axis=-1), values)
    return b.linear(b.op("Reshape", b.op("Transpose", mixed, perm=(0, 2, 1, 3)), together), hidden, hidden)


def resnet50(seed: int) -> ModelProto:
    b = _Builder(seed)
    x = b.op("Relu", _conv(b, "image", 3, 64, 7, stride=2))
    x = b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 0 else 1
            short = x if block else _conv(b, x, channels, 4 * width, 1, stride)
            y = b.op("Relu", _conv(b, x, channels, width, 1))
            y = b.op("Relu", _conv(b, y, width, width, 3, stride))
            x = b.op("Relu", b.op("Add", _conv(b, y, width, 4 * width, 1, scale=0.3), short))
            channels = 4 * width
    x = b.op("Flatten", b.op("GlobalAveragePool", x), axis=1)
    return b.model("resnet50", [_tensor("image", (1, 3, 224, 224))], b.linear(x, channels, CLASSES), (1, CLASSES))


def _conv(b: _Builder, x: str, cin: int, cout: int, size: int, stride: int = 1, scale: float = 1.0) -> str:
    """Return a convolution and its batch normalisation, as a training framework exports them."""
    weights = b.normal((cout, cin, size, size), cin * size * size // 2)
    pads = [size // 2] * 4
    x = b.op("Conv", x, weights, kernel_shape=[size, size], strides=[stride, stride], pads=pads)
    factors = (b.uniform(cout, 0.8 * scale, 1.2 * scale), b.uniform(cout, -0.1, 0.1))
    statistics = (b.uniform(cout, -0.1, 0.1), b.uniform(cout, 0.8, 1.2))
    return b.op("BatchNormalization", x, *factors, *statistics)


def _tensor(name: str, shape: Sequence[int]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


EXAMPLES: Mapping[str, Callable[[int], ModelProto]] = {"mlp": mlp, "transformer": transformer, "resnet50": resnet50}
