"""Reductions, softmax, running sums and order statistics."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.checks import assert_close, check_node, floats, host_steps, ints, node_model, run

REDUCTIONS = [
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
]


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("axes", [None, [0], [-1], [1, 2], [2, 0]])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes_as_constant_operand(op: str, axes: list[int] | None, keepdims: int) -> None:
    x = np.abs(floats(2, 3, 5)) + 0.1
    operands = [x] if axes is None else [x, ints(*axes)]
    imported = check_node(op, operands, {"keepdims": keepdims}, opset=18, constants={1})
    assert not host_steps(imported)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_axes_as_attribute(op: str) -> None:
    check_node(op, [np.abs(floats(2, 3, 5)) + 0.1], {"axes": [1], "keepdims": 0}, opset=11)


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceSumSquare", "ReduceL1"])
def test_no_axes_may_mean_no_reduction(op: str) -> None:
    check_node(op, [floats(2, 3), ints()], {"noop_with_empty_axes": 1}, opset=18, constants={1})


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceProd", "ReduceLogSumExp", "ReduceMax", "ReduceMin"])
def test_reduction_of_nothing(op: str) -> None:
    check_node(op, [np.zeros((2, 0, 4), np.float32), ints(1)], opset=20, constants={1})


def test_log_sum_exp_of_extreme_values_is_finite() -> None:
    x = np.array([[1000.0, 1000.0], [-np.inf, -np.inf], [-1000.0, 0.0]], np.float32)
    (y,) = run(node_model("ReduceLogSumExp", [x], {"axes": [1], "keepdims": 0}, opset=13), {"x0": x})
    assert_close(y, np.array([1000 + np.log(2), -np.inf, 0], np.float32))


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_since_opset_13(op: str, axis: int) -> None:
    check_node(op, [floats(3, 5, 7)], {"axis": axis}, opset=13)


@pytest.mark.parametrize("axis", [0, 1])
def test_hardmax_of_nothing(axis: int) -> None:
    check_node("Hardmax", [floats(2, 0, 3)], {"axis": axis})


def test_softmax_before_opset_13_flattens() -> None:
    x = floats(3, 5, 7)
    flat = np.exp(x.reshape(3, 35))
    expected = (flat / flat.sum(1, keepdims=True)).reshape(x.shape)
    imported = node_model("Softmax", [x], {"axis": 1}, opset=11)
    assert_close(run(imported, {"x0": x})[0], expected)
    (hard,) = run(node_model("Hardmax", [x], {"axis": 1}, opset=11), {"x0": x})
    assert hard.sum() == 3 and hard.reshape(3, 35).argmax(1).tolist() == x.reshape(3, 35).argmax(1).tolist()


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_arg_reductions_with_ties(op: str, last: int) -> None:
    x = np.array([[2, 2, 1], [0, 3, 3]], np.float32)
    check_node(op, [x], {"axis": 1, "keepdims": 0, "select_last_index": last})


@pytest.mark.parametrize("largest", [0, 1])
def test_top_k(largest: int) -> None:
    check_node("TopK", [floats(3, 7), ints(4)], {"axis": 1, "largest": largest}, outputs=2, constants={1})


def test_top_k_before_opset_10_takes_k_as_attribute() -> None:
    x = floats(3, 7)
    values, indices = run(node_model("TopK", [x], {"k": 2, "axis": 1}, opset=9, outputs=2), {"x0": x})
    assert_close(values, -np.sort(-x, 1)[:, :2])
    assert_close(np.take_along_axis(x, indices, 1), values)


@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
@pytest.mark.parametrize("attrs", [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}])
def test_cumulative(op: str, attrs: dict[str, int]) -> None:
    check_node(op, [floats(3, 5), ints(1).reshape(())], attrs, constants={1})


def test_run_time_axes_become_a_host_step() -> None:
    assert host_steps(check_node("ReduceSum", [floats(2, 3), ints(1)], opset=18)) == ["host.ReduceSum"]
