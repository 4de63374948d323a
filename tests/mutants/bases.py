"""Models whose artifacts the mutants are made of: between them, every kind of step, location and argument."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def _value(name: str, kind: int, *shape: int | str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(
    nodes: list[NodeProto],
    inputs: list[ValueInfoProto],
    outputs: list[ValueInfoProto],
    weights: dict[str, np.ndarray] | None = None,
) -> ModelProto:
    constants = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def steps() -> ModelProto:
    """Kernels with packed weights, temporaries, faults, values side by side in the arena, and steps on the host."""
    node = helper.make_node
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((8, 24)).astype(np.float32), "b": rng.standard_normal(24).astype(np.float32),
        "table": rng.standard_normal((5, 24)).astype(np.float32), "k": np.array([3], np.int64),
        "permutation": rng.permutation(24).astype(np.int64),
    }  # fmt: skip
    nodes = [
        node("Gemm", ["x", "w", "b"], ["h"], name="gemm"),
        node("Softmax", ["h"], ["s"], name="softmax", axis=-1),
        node("Gather", ["table", "i"], ["rows"], name="gather"),
        node("Concat", ["s", "rows"], ["both"], name="concat", axis=0),
        node("Gather", ["both", "permutation"], ["mixed"], name="mixed", axis=1),
        node("MatMul", ["mixed", "turned"], ["matmuls"], name="matmul"),
        node("Transpose", ["mixed"], ["turned"], name="transpose"),
        node("TopK", ["matmuls", "k"], ["best", "where"], name="top_k"),
        node("Unique", ["where"], ["different"], name="unique"),
        node("ReduceSum", ["mixed"], ["total"], name="sum", keepdims=0),
    ]
    nodes[5], nodes[6] = nodes[6], nodes[5]
    outputs = [_value("best", FLOAT, 6, 3), _value("different", INT, "n"), _value("total", FLOAT)]
    return _model(nodes, [_value("x", FLOAT, 4, 8), _value("i", INT, 2)], outputs, weights)


def control() -> ModelProto:
    """A branch and a loop, whose bodies have kernels, a sequence, and strings."""
    node = helper.make_node
    then = helper.make_graph([node("Exp", ["x"], ["t"])], "then", [], [_value("t", FLOAT, 4)])
    other = helper.make_graph([node("Neg", ["x"], ["e"])], "else", [], [_value("e", FLOAT, 4)])
    body = helper.make_graph(
        [
            node("Add", ["carried", "step"], ["next"]), node("Identity", ["go"], ["on"]),
            node("Mul", ["next", "next"], ["scan"]),
        ],
        "body", [_value("i", INT), _value("go", BOOL), _value("carried", FLOAT, 4)],
        [_value("on", BOOL), _value("next", FLOAT, 4), _value("scan", FLOAT, 4)],
    )  # fmt: skip
    nodes = [
        node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=other),
        node("Loop", ["m", "c", "y"], ["last", "all"], name="loop", body=body),
        node("SequenceConstruct", ["last", "y"], ["list"], name="list"),
        node("SequenceAt", ["list", "zero"], ["first"], name="at"),
    ]
    inputs = [_value("x", FLOAT, 4), _value("c", BOOL), _value("m", INT)]
    outputs = [_value("first", FLOAT, 4), _value("all", FLOAT, "trips", 4)]
    weights = {"step": np.full(4, 0.5, np.float32), "zero": np.array(0, np.int64)}
    return _model(nodes, inputs, outputs, weights)


def small() -> ModelProto:
    """Two kernels, for devices that take long to build one."""
    node = helper.make_node
    weights = {"table": np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)}
    nodes = [
        node("Gather", ["table", "i"], ["rows"], name="gather"),
        node("MatMul", ["rows", "x"], ["y"], name="matmul"),
    ]
    return _model(nodes, [_value("x", FLOAT, 8, 4), _value("i", INT, 3)], [_value("y", FLOAT, 3, 4)], weights)
