"""Small ONNX models with random weights from a seed, built with onnx.helper: no PyTorch, no downloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

IR_VERSION = 10


class Builder:
    """Collects nodes and weights; every method returns the name of the value it makes."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []

    def constant(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Normally distributed; by default of the scale that keeps the size of activations."""
        fan_in = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        scale = fan_in**-0.5 if scale is None else scale
        return self.constant((self.random.standard_normal(shape) * scale).astype(np.float32))

    def around_one(self, size: int) -> str:
        return self.constant(self.random.uniform(0.5, 1.5, size).astype(np.float32))

    def op(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Adds a node; returns its output's name, or a list of them when there are several."""
        name = f"{op_type}_{len(self.nodes)}"
        names = [name if outputs == 1 else f"{name}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, name=f"/{name}", **attributes))
        return names[0] if outputs == 1 else names

    def model(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any], opset: int) -> ModelProto:
        graph = helper.make_graph(self.nodes, name, list(inputs), list(outputs), self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)
        onnx.checker.check_model(model, full_check=True)
        return model


def transformer(
    layers: int = 2,
    hidden: int = 32,
    heads: int = 4,
    sequence: int = 8,
    vocabulary: int = 50,
    batch: int = 1,
    causal: bool = False,
    seed: int = 0,
    opset: int = 20,
) -> ModelProto:
    """A BERT-like (causal: GPT-like) encoder.

    Input `ids`: int64 [batch, sequence]; output `y`: float32 [batch, sequence, hidden].
    """
    b = Builder(seed)
    words = b.op("Gather", b.weight(vocabulary, hidden, scale=1.0), "ids")
    x = b.op("Add", words, b.weight(sequence, hidden, scale=0.1))
    for _ in range(layers):
        x = b.op("Add", x, _attention(b, _layer_norm(b, x, hidden), (batch, sequence, hidden), heads, causal))
        x = b.op("Add", x, _mlp(b, _layer_norm(b, x, hidden), hidden))
    y = _layer_norm(b, x, hidden)
    b.nodes.append(helper.make_node("Identity", [y], ["y"], name="/output"))
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [batch, sequence])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, sequence, hidden])
    return b.model("transformer", [ids], [result], opset)


def _layer_norm(b: Builder, x: str, hidden: int) -> str:
    return b.op("LayerNormalization", x, b.around_one(hidden), b.weight(hidden, scale=0.1), axis=-1, epsilon=1e-5)


def _linear(b: Builder, x: str, cin: int, cout: int) -> str:
    return b.op("Add", b.op("MatMul", x, b.weight(cin, cout)), b.weight(cout, scale=0.1))


def _attention(b: Builder, x: str, shape: tuple[int, int, int], heads: int, causal: bool) -> str:
    batch, sequence, hidden = shape
    size = hidden // heads
    split = b.constant(np.array([batch, sequence, heads, size], np.int64))
    q, k, v = (b.op("Reshape", _linear(b, x, hidden, hidden), split) for _ in range(3))
    q, v = (b.op("Transpose", value, perm=[0, 2, 1, 3]) for value in (q, v))
    k = b.op("Transpose", k, perm=[0, 2, 3, 1])
    scores = b.op("Mul", b.op("MatMul", q, k), b.constant(np.float32(size**-0.5)))
    if causal:
        mask = np.triu(np.full((sequence, sequence), -1e9, np.float32), 1)
        scores = b.op("Add", scores, b.constant(mask))
    mixed = b.op("Transpose", b.op("MatMul", b.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    joined = b.op("Reshape", mixed, b.constant(np.array([batch, sequence, hidden], np.int64)))
    return _linear(b, joined, hidden, hidden)


def _mlp(b: Builder, x: str, hidden: int) -> str:
    """With GELU spelled out by erf, as exporters do before opset 20."""
    h = _linear(b, x, hidden, 4 * hidden)
    erf = b.op("Erf", b.op("Div", h, b.constant(np.float32(2**0.5))))
    h = b.op("Mul", b.op("Mul", h, b.op("Add", erf, b.constant(np.float32(1)))), b.constant(np.float32(0.5)))
    return _linear(b, h, 4 * hidden, hidden)


def cnn(
    channels: int = 8, size: int = 16, classes: int = 10, batch: int = 1, seed: int = 0, opset: int = 20
) -> ModelProto:
    """A residual network with batch normalisation, a depthwise convolution and pooling.

    Input `x`: float32 [batch, 3, size, size]; output `y`: float32 [batch, classes], probabilities.
    """
    b = Builder(seed)
    x = _conv_bn_relu(b, "x", 3, channels, 3)
    x = b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    body = _conv_bn_relu(b, x, channels, channels, 3)
    body = _conv_bn(b, body, channels, channels, 3)
    x = b.op("Relu", b.op("Add", x, body))
    x = _conv_bn_relu(b, x, channels, channels, 3, group=channels, stride=2)
    x = _conv_bn_relu(b, x, channels, 2 * channels, 1)
    x = b.op("Flatten", b.op("GlobalAveragePool", x))
    x = b.op("Gemm", x, b.weight(classes, 2 * channels, scale=0.5), b.weight(classes, scale=0.1), transB=1)
    b.nodes.append(helper.make_node("Softmax", [x], ["y"], name="/output", axis=-1))
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, size, size])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, classes])
    return b.model("cnn", [image], [result], opset)


def _conv_bn(b: Builder, x: str, cin: int, cout: int, kernel: int, group: int = 1, stride: int = 1) -> str:
    weight = b.weight(cout, cin // group, kernel, kernel)
    pads = [kernel // 2] * 4
    x = b.op("Conv", x, weight, group=group, strides=[stride] * 2, pads=pads, kernel_shape=[kernel] * 2)
    statistics = (b.around_one(cout), b.weight(cout, scale=0.1), b.weight(cout, scale=0.1), b.around_one(cout))
    return b.op("BatchNormalization", x, *statistics, epsilon=1e-5)


def _conv_bn_relu(b: Builder, x: str, cin: int, cout: int, kernel: int, group: int = 1, stride: int = 1) -> str:
    return b.op("Relu", _conv_bn(b, x, cin, cout, kernel, group, stride))


def random_inputs(model: ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs for a model with static shapes: normally distributed floats, integers and booleans of 0 and 1."""
    random = np.random.default_rng(seed)
    initialised = {tensor.name for tensor in model.graph.initializer}
    inputs = {}
    for info in model.graph.input:
        if info.name in initialised:
            continue
        tensor = info.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        values = random.integers(0, 2, shape) if dtype.kind in "iub" else random.standard_normal(shape)
        inputs[info.name] = values.astype(dtype)
    return inputs


def in_half(model: ModelProto) -> ModelProto:
    """The model in float16 with inputs and outputs in float32, as the usual converters make it."""
    half = ModelProto.FromString(model.SerializeToString())
    graph = half.graph
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    for tensor in (*graph.initializer, *(a.t for a in attributes if a.HasField("t"))):
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for attribute in attributes:
        if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.FLOAT16
    renamed = {i.name: f"{i.name}_half" for i in graph.input if i.type.tensor_type.elem_type == TensorProto.FLOAT}
    casts = [helper.make_node("Cast", [name], [narrow], name=narrow, to=10) for name, narrow in renamed.items()]
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    renamed |= {output.name: f"{output.name}_half" for output in graph.output}
    for node in nodes:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
    del graph.node[:]
    graph.node.extend(casts + nodes)
    graph.node.extend(helper.make_node("Cast", [renamed[o.name]], [o.name], to=1) for o in graph.output)
    return half
