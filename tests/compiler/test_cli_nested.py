"""What `tilestitch explain` says of loops and branches."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.explain import describe


def value(name: str, *shape: int, dtype: int = TensorProto.FLOAT) -> object:
    return helper.make_tensor_value_info(name, dtype, shape)


def branch(op: str) -> GraphProto:
    return helper.make_graph([helper.make_node(op, ["next"], ["chosen"], name=f"/{op}")], op, [], [value("chosen", 4)])


def recurrent() -> ModelProto:
    """A scan whose turns multiply by a matrix and take one of two branches, and a ReLU after it."""
    weights = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    zero = numpy_helper.from_array(np.float32(0), "zero")
    branches = {"then_branch": branch("Exp"), "else_branch": branch("Neg")}
    turn = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "w"], ["moved"], name="/MatMul"),
            helper.make_node("Add", ["moved", "element"], ["next"], name="/Add"),
            helper.make_node("ReduceSum", ["next"], ["sum"], keepdims=0, name="/ReduceSum"),
            helper.make_node("Greater", ["sum", "zero"], ["positive"], name="/Greater"),
            helper.make_node("If", ["positive"], ["result"], name="/If", **branches),
        ],
        "turn", [value("state", 4), value("element", 4)], [value("result", 4)],
    )  # fmt: skip
    nodes = [
        helper.make_node("Scan", ["s", "x"], ["last"], body=turn, num_scan_inputs=1, name="/Scan"),
        helper.make_node("Relu", ["last"], ["y"], name="/Relu"),
    ]
    graph = helper.make_graph(nodes, "g", [value("s", 4), value("x", 6, 4)], [value("y", 4)], [weights, zero])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def test_kernels_of_loops_and_branches_are_told_as_those_of_the_model() -> None:
    lines = describe(compile_model(recurrent(), "cpu:x86-64-v3").explain(), with_launches=True).splitlines()
    assert lines[0].endswith("1 kernels and 4 in loops and branches")
    turn, then, other = (
        next(n for n, line in enumerate(lines) if line.startswith(start))
        for start in (
            "/Scan, in each turn: 2",
            "/If, where its condition holds: 1",
            "/If, where its condition does not hold: 1",
        )
    )
    assert turn < then < other
    assert any("/MatMul, /Add" in line for line in lines[turn:then])
    assert any("/Exp" in line for line in lines[then:other]) and any("/Neg" in line for line in lines[other:])
