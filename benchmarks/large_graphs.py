"""ONNX models of one kind and any number of nodes, to see how compile time grows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROWS, WIDTH, HEADS = 16, 32, 2
"""Sizes are small: what is looked at is the compiler, not the kernels."""


class Builder:
    """Nodes and weights of a model in the making; values are called by number."""

    def __init__(self, prefix: str = "v", seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(seed)
        self.prefix, self.count = prefix, 0

    def op(self, op: str, *inputs: str, **attributes: object) -> str:
        return self.ops(op, inputs, 1, **attributes)[0]

    def ops(self, op: str, inputs: Sequence[str], results: int, **attributes: object) -> list[str]:
        names = [self._name() for _ in range(results)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=f"n{len(self.nodes)}", **attributes))
        return names

    def weight(self, *shape: int) -> str:
        return self.constant((self.random.standard_normal(shape) / np.sqrt(WIDTH)).astype(np.float32))

    def constant(self, array: np.ndarray) -> str:
        name = self._name()
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def model(
        self, outputs: Mapping[str, Sequence[int]], inputs: Mapping[str, Sequence[int]] | None = None
    ) -> onnx.ModelProto:
        """The model with the outputs of these shapes; inputs default to one `x` of ROWS by WIDTH."""
        infos = [
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in part.items()]
            for part in (inputs or {"x": (ROWS, WIDTH)}, outputs)
        ]
        graph = helper.make_graph(self.nodes, "large", infos[0], infos[1], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)

    def _name(self) -> str:
        self.count += 1
        return f"{self.prefix}{self.count}"


def attention(nodes: int) -> onnx.ModelProto:
    """Transformer blocks, one after the other."""
    b = Builder()
    split, merged = (b.constant(np.array(s, np.int64)) for s in ((ROWS, HEADS, WIDTH // HEADS), (ROWS, WIDTH)))
    scale = b.constant(np.array((WIDTH // HEADS) ** -0.5, np.float32))

    def heads(value: str, perm: Sequence[int]) -> str:
        projected = b.op("Add", b.op("MatMul", value, b.weight(WIDTH, WIDTH)), b.weight(WIDTH))
        return b.op("Transpose", b.op("Reshape", projected, split), perm=perm)

    def normalised(value: str) -> str:
        return b.op("LayerNormalization", value, b.weight(WIDTH), b.weight(WIDTH), axis=-1)

    x = "x"
    while len(b.nodes) < nodes:
        y = normalised(x)
        q, k, v = heads(y, (1, 0, 2)), heads(y, (1, 2, 0)), heads(y, (1, 0, 2))
        weights = b.op("Softmax", b.op("Mul", b.op("MatMul", q, k), scale), axis=-1)
        y = b.op("Reshape", b.op("Transpose", b.op("MatMul", weights, v), perm=(1, 0, 2)), merged)
        x = b.op("Add", x, b.op("MatMul", y, b.weight(WIDTH, WIDTH)))
        y = b.op("Add", b.op("MatMul", normalised(x), b.weight(WIDTH, 4 * WIDTH)), b.weight(4 * WIDTH))
        x = b.op("Add", x, b.op("MatMul", b.op("Gelu", y), b.weight(4 * WIDTH, WIDTH)))
    return b.model({x: (ROWS, WIDTH)})


def fan_out(nodes: int) -> onnx.ModelProto:
    """One value that every other node reads; every second value is an output."""
    b = Builder()
    shared = b.op("Exp", "x")
    results = [b.op("Tanh", b.op("Mul", shared, b.weight(WIDTH))) for _ in range(nodes // 2)]
    return b.model(dict.fromkeys(results, (ROWS, WIDTH)))


def fan_out_reductions(nodes: int) -> onnx.ModelProto:
    """One value that sums along rows of many GEMMs read."""
    b = Builder()
    shared, axes = b.op("Exp", "x"), b.constant(np.array([1], np.int64))
    results = [b.op("ReduceSum", b.op("Mul", shared, b.weight(WIDTH)), axes) for _ in range(nodes // 2)]
    return b.model(dict.fromkeys(results, (ROWS, 1)))


def chain(nodes: int) -> onnx.ModelProto:
    """Element-wise operators, each reading the one before."""
    b = Builder()
    x = "x"
    for i in range(nodes):
        x = b.op("Add", x, b.weight(WIDTH)) if i % 2 else b.op("Sigmoid", x)
    return b.model({x: (ROWS, WIDTH)})


def concat(nodes: int) -> onnx.ModelProto:
    """Element-wise operators that one Concat puts together."""
    b = Builder()
    parts = [b.op("Tanh", b.op("Mul", "x", b.weight(WIDTH))) for _ in range(nodes // 2)]
    whole = b.op("Concat", *parts, axis=0)
    return b.model({whole: (ROWS * len(parts), WIDTH)})


def concat_inputs(nodes: int) -> onnx.ModelProto:
    """One Concat of so many inputs of the model."""
    b = Builder()
    inputs = [f"x{i}" for i in range(nodes)]
    whole = b.op("Concat", *inputs, axis=0)
    return b.model({whole: (nodes, WIDTH)}, dict.fromkeys(inputs, (1, WIDTH)))


def sum_inputs(nodes: int) -> onnx.ModelProto:
    """One Sum of so many inputs of the model."""
    b = Builder()
    inputs = [f"x{i}" for i in range(nodes)]
    total = b.op("Sum", *inputs)
    return b.model({total: (ROWS, WIDTH)}, dict.fromkeys(inputs, (ROWS, WIDTH)))


def branches(nodes: int) -> onnx.ModelProto:
    """Independent branches of ten nodes, each with an input and an output of its own."""
    b = Builder()
    inputs, outputs = [], []
    for number in range(max(1, nodes // 10)):
        x = f"x{number}"
        inputs.append(x)
        for i in range(9):
            x = b.op("Mul", x, b.weight(WIDTH)) if i % 2 else b.op("Tanh", x)
        outputs.append(b.op("Softmax", x, axis=-1))
    return b.model(dict.fromkeys(outputs, (ROWS, WIDTH)), dict.fromkeys(inputs, (ROWS, WIDTH)))


def reductions(nodes: int) -> onnx.ModelProto:
    """Sums along rows, each of what the one before has scaled."""
    b = Builder()
    x, axes = "x", b.constant(np.array([1], np.int64))
    while len(b.nodes) < nodes:
        x = b.op("Tanh", b.op("Sub", x, b.op("ReduceMean", x, axes)))
    return b.model({x: (ROWS, WIDTH)})


def residual_mlp(nodes: int) -> onnx.ModelProto:
    """Two GEMMs and a residual connection, again and again."""
    b = Builder()
    x = "x"
    while len(b.nodes) < nodes:
        y = b.op("Relu", b.op("Gemm", x, b.weight(WIDTH, WIDTH), b.weight(WIDTH)))
        x = b.op("Add", x, b.op("Gemm", y, b.weight(WIDTH, WIDTH), b.weight(WIDTH)))
    return b.model({x: (ROWS, WIDTH)})


def gemms(nodes: int) -> onnx.ModelProto:
    """Independent small GEMMs of one value."""
    b = Builder()
    results = [b.op("Gemm", "x", b.weight(WIDTH, WIDTH), b.weight(WIDTH)) for _ in range(nodes)]
    return b.model(dict.fromkeys(results, (ROWS, WIDTH)))


def split(nodes: int) -> onnx.ModelProto:
    """A Split whose every result is used by one node."""
    b = Builder()
    parts = b.ops("Split", ["x"], nodes, axis=0, num_outputs=nodes)
    results = [b.op("Tanh", part) for part in parts]
    return b.model(dict.fromkeys(results, (1, WIDTH)), {"x": (nodes, WIDTH)})


def loop(nodes: int) -> onnx.ModelProto:
    """A Loop with a body of so many nodes."""
    b, body = Builder(), Builder("inner", seed=1)
    y = "y"
    for i in range(nodes):
        y = body.op("Add", y, body.weight(WIDTH)) if i % 2 else body.op("Tanh", y)
    again = body.op("Identity", "again")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        body.nodes, "body",
        [value("i", TensorProto.INT64, []), value("again", TensorProto.BOOL, []),
         value("y", TensorProto.FLOAT, [ROWS, WIDTH])],
        [value(again, TensorProto.BOOL, []), value(y, TensorProto.FLOAT, [ROWS, WIDTH])], body.weights,
    )  # fmt: skip
    trips, true = b.constant(np.array(3, np.int64)), b.constant(np.array(True))
    result = b.op("Loop", trips, true, "x", body=graph)
    return b.model({result: (ROWS, WIDTH)})


def dense(nodes: int) -> onnx.ModelProto:
    """Blocks of eight layers, each of which reads the results of all before it put together, as in DenseNet."""
    b = Builder()
    x = "x"
    while len(b.nodes) < nodes:
        parts = [x]
        for number in range(1, 9):
            whole = b.op("Concat", *parts, axis=1) if number > 1 else x
            parts.append(b.op("Relu", b.op("MatMul", whole, b.weight(number * WIDTH, WIDTH))))
        x = parts[-1]
    return b.model({x: (ROWS, WIDTH)})


def transposes(nodes: int) -> onnx.ModelProto:
    """Transposes, each after an element-wise operator."""
    b = Builder()
    x, shape = "x", (2, 3, 4)
    while len(b.nodes) < nodes:
        for _ in shape:
            x = b.op("Transpose", b.op("Tanh", x), perm=(1, 2, 0))
    return b.model({x: shape}, {"x": shape})


def reshapes(nodes: int) -> onnx.ModelProto:
    """Reshapes, each after an element-wise operator."""
    b = Builder()
    flat, back = (b.constant(np.array(s, np.int64)) for s in ((ROWS * WIDTH,), (ROWS, WIDTH)))
    x = "x"
    while len(b.nodes) < nodes:
        for shape in (flat, back):
            x = b.op("Reshape", b.op("Tanh", x), shape)
    return b.model({x: (ROWS, WIDTH)})


def views(nodes: int) -> onnx.ModelProto:
    """Reshapes and transposes that do not cancel, with a node that computes after every ten."""
    b = Builder()
    shapes = [b.constant(np.array(s, np.int64)) for s in ((ROWS, 4, WIDTH // 4), (ROWS * 4, WIDTH // 4))]
    back, x = b.constant(np.array((ROWS, WIDTH), np.int64)), "x"
    while len(b.nodes) < nodes:
        for _ in range(3):
            x = b.op("Transpose", b.op("Reshape", x, shapes[0]), perm=(1, 0, 2))
            x = b.op("Reshape", b.op("Reshape", x, shapes[1]), back)
        x = b.op("Tanh", x)
    return b.model({x: (ROWS, WIDTH)})


def constants(nodes: int) -> onnx.ModelProto:
    """Arithmetic of constants, most of the model, whose results one chain reads."""
    b = Builder()
    x = "x"
    while len(b.nodes) < nodes:
        value = np.float32(b.random.standard_normal())
        number = b.op("Constant", value=numpy_helper.from_array(np.array(value)))
        scale = b.op("Exp", b.op("Mul", b.op("Add", number, b.weight(WIDTH)), b.weight(WIDTH)))
        x = b.op("Tanh", b.op("Mul", x, scale))
    return b.model({x: (ROWS, WIDTH)})


KINDS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    "attention": attention, "fan_out": fan_out, "fan_out_reductions": fan_out_reductions, "chain": chain,
    "concat": concat, "concat_inputs": concat_inputs, "sum_inputs": sum_inputs, "branches": branches,
    "reductions": reductions, "residual_mlp": residual_mlp, "gemms": gemms, "split": split, "loop": loop,
    "dense": dense, "views": views, "transposes": transposes,
    "reshapes": reshapes, "constants": constants,
}  # fmt: skip
"""Every kind by its name: about as many nodes as asked for (operands or results, where one node has them all)."""
