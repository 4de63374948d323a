"""ONNX operators with run-time shapes, axes and bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.host.reference import check_against_onnx, onnx_outputs, run
from tilestitch.runtime.host import TABLE, HostError

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Shape", (X,), {}),
    ("Shape", (X,), {"start": -2}),
    ("Shape", (X,), {"start": 1, "end": -1}),
    ("Shape", (np.float32(1),), {}),
    ("Size", (X,), {}),
    ("Size", (np.zeros((0, 2)),), {}),
    ("Reshape", (X, ints(0, -1)), {}),
    ("Reshape", (X, ints(4, 6)), {}),
    ("Reshape", (np.zeros((0, 3)), ints(3, 0)), {"allowzero": 1}),
    ("Reshape", (np.float32(3), ints(1, 1)), {}),
    ("Reshape", (X[:1, :1, :1], ints()), {}),
    ("Flatten", (X,), {"axis": 0}),
    ("Flatten", (X,), {"axis": -1}),
    ("Flatten", (X,), {"axis": 3}),
    ("Expand", (X[:, :1], ints(3, 1)), {}),
    ("Expand", (np.float32(2), ints(2, 0)), {}),
    ("Expand", (X, ints(5, 1, 1, 1)), {}),
    ("Tile", (X, ints(1, 2, 0)), {}),
    ("Tile", (X, ints(2, 1, 3)), {}),
    ("Slice", (X, ints(0, 1), ints(1, 100)), {}),
    ("Slice", (X, ints(-1), ints(-100), ints(2), ints(-1)), {}),
    ("Slice", (X, ints(3, 2), ints(0, -9), ints(-1, 1), ints(-2, -1)), {}),
    ("Slice", (X, ints(2), ints(1), ints(2)), {}),
    ("Slice", (X, ints(-100), ints(2), ints(1)), {}),
    ("Slice", (X, ints(50), ints(-60), ints(2), ints(-3)), {}),
    ("Pad", (X, ints(0, 1, 0, 1, 0, 2)), {}),
    ("Pad", (X, ints(1, 2), np.float32(9), ints(-1)), {}),
    ("Pad", (X, ints(1, 2, 1, 0), None, ints(2, 0)), {"mode": "edge"}),
    ("Pad", (X, ints(0, 0, 2, 0, 0, 1)), {"mode": "reflect"}),
    ("Pad", (X, ints(0, 0, 2, 0, 0, 3)), {"mode": "wrap"}),
    ("Squeeze", (X[:1, :, :1], ints(0, -1)), {}),
    ("Squeeze", (X[:1, :, :1],), {}),
    ("Squeeze", (X, ints()), {}),
    ("Unsqueeze", (X, ints(-1, 0)), {}),
    ("Unsqueeze", (np.float32(1), ints(0)), {}),
    ("Concat", (X, X[:, :1]), {"axis": -2}),
    ("Transpose", (X,), {}),
    ("Transpose", (X,), {"perm": [1, 2, 0]}),
    ("Range", (np.float32(1), np.float32(2), np.float32(0.3)), {}),
    ("Range", (np.int64(5), np.int64(-2), np.int64(-3)), {}),
    ("Range", (np.int32(5), np.int32(5), np.int32(1)), {}),
    ("Range", (np.int32(0), np.int32(7), np.int32(-1)), {}),
    ("CenterCropPad", (X, ints(5, 1, 3)), {}),
    ("CenterCropPad", (X, ints(7)), {"axes": [-1]}),
    ("Trilu", (X, np.int64(-1)), {"upper": 0}),
    ("Trilu", (X, np.int64(5)), {}),
    ("Trilu", (X[:, :0], None), {}),
    ("OneHot", (np.array([[0, -1], [2, 9]]), np.int64(3), np.array([2.0, 5.0], np.float32)), {}),
    ("OneHot", (np.array([1.0, 2.0], np.float32), np.int64(3), np.array([0, 1], np.int32)), {"axis": 0}),
    ("CumSum", (X, np.int64(-1)), {"reverse": 1}),
    ("CumSum", (X, np.int64(1)), {"exclusive": 1}),
    ("TopK", (X, ints(2)), {"axis": 1, "largest": 0}),
    ("ReduceSum", (X, ints(1, -1)), {}),
    ("ReduceSum", (X, None), {"keepdims": 0}),
    ("ReduceSum", (X, ints()), {"noop_with_empty_axes": 1}),
    ("ReduceMean", (X, ints(0)), {"keepdims": 0}),
    ("ReduceL1", (-X, ints(2)), {}),
    ("ReduceL2", (X, ints(1)), {}),
    ("ReduceLogSum", (X, ints(0, 1, 2)), {}),
    ("ReduceLogSumExp", (X, ints(-1)), {}),
    ("ReduceSumSquare", (X, ints(0)), {}),
    ("ReduceMax", (X, ints(0)), {}),
    ("ReduceMin", (X.astype(np.int32), ints(1)), {"keepdims": 0}),
    ("ReduceProd", (X, ints(2)), {}),
    ("Softmax", (X,), {"axis": 1}),
    ("LogSoftmax", (X,), {}),
    ("MatMul", (X, X.transpose(0, 2, 1)), {}),
    ("MatMul", (X[0, 0], X[0, 0]), {}),
    ("ArgMax", (X,), {"axis": -1, "keepdims": 0}),
    ("Gather", (X, np.array([[1, -1]])), {"axis": -1}),
    ("ReverseSequence", (X[0], ints(1, 3, 2, 2)), {"time_axis": 0, "batch_axis": 1}),
    ("ReverseSequence", (X[0], ints(4, 1, 2)), {"time_axis": 1, "batch_axis": 0}),
]


@pytest.mark.parametrize(("op", "operands", "attrs"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_agrees_with_onnx(op: str, operands: tuple[Any, ...], attrs: dict[str, Any]) -> None:
    arrays = tuple(None if x is None else np.asarray(x) for x in operands)
    check_against_onnx(op, *arrays, outputs=2 if op == "TopK" else 1, **attrs)


@pytest.mark.parametrize("sizes", [ints(1, 3), ints(4, 0), None])
def test_split_by_sizes_or_evenly(sizes: np.ndarray | None) -> None:
    attrs = {"axis": 2} if sizes is not None else {"axis": 2, "num_outputs": 2}
    expected = onnx_outputs("Split", [X, sizes], 2, **attrs)
    for got, want in zip(TABLE["Split"]([X, sizes], {"num_outputs": 2, "axis": 2}), expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_uneven_split_leaves_a_smaller_last_part() -> None:
    parts = TABLE["Split"]([np.arange(7), None], {"num_outputs": 3})
    assert [len(p) for p in parts] == [3, 3, 1]


def test_negative_pads_cut_off() -> None:
    np.testing.assert_array_equal(run("Pad", np.arange(5), ints(-1, 2)), [1, 2, 3, 4, 0, 0])


def test_constant_of_shape_repeats_its_value() -> None:
    result = run("ConstantOfShape", ints(2, 0), np.array([3], np.int8))
    assert (result.shape, result.dtype) == ((2, 0), np.int8)
    assert run("ConstantOfShape", ints(), np.array([3], np.int8)) == 3


def test_eye_like_keeps_or_changes_the_dtype() -> None:
    np.testing.assert_array_equal(run("EyeLike", np.zeros((2, 3)), k=1), [[0, 1, 0], [0, 0, 1]])
    assert run("EyeLike", np.zeros((2, 3)), dtype="int32").dtype == np.int32


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "message"),
    [
        ("Reshape", (X, ints(5, -1)), {}, "cannot reshape"),
        ("Reshape", (np.zeros((0, 2)), ints(0, -1)), {}, "no value"),
        ("Reshape", (X, ints(1, 1, 1, 0)), {}, "does not have"),
        ("Expand", (X, ints(5)), {}, "broadcast"),
        ("Slice", (X, ints(0), ints(1), ints(3)), {}, "axis 3 is out of range"),
        ("Slice", (X, ints(0), ints(1), ints(1), ints(0)), {}, "step"),
        ("Squeeze", (X, ints(0)), {}, "size 1"),
        ("Unsqueeze", (X, ints(0, 0)), {}, "twice"),
        ("Split", (X, ints(1, 1)), {"axis": 2, "num_outputs": 2}, "add up"),
        ("Range", (np.int64(0), np.int64(1), np.int64(0)), {}, "delta"),
        ("Pad", (X, ints(1, 2, 3)), {}, "pads"),
        ("Pad", (np.zeros(2), ints(-2, -1)), {}, "remove"),
        ("Tile", (X, ints(1)), {}, "repeats"),
        ("TopK", (X, ints(5)), {}, "k = 5"),
    ],
)
def test_operands_that_make_no_sense_are_errors(
    op: str, operands: tuple[Any, ...], attrs: dict[str, Any], message: str
) -> None:
    with pytest.raises(HostError, match=message):
        TABLE[op](operands, attrs)


@given(st.integers(0, 6), st.integers(-9, 9), st.integers(-9, 9), st.integers(-4, 4).filter(bool))
def test_slices_are_those_of_python_but_from_before_a_dimension(size: int, start: int, end: int, step: int) -> None:
    """Backwards from there, Python takes nothing, and ONNX begins at the first element."""
    x = np.arange(size)
    start = max(start, -size) if step < 0 and size else start
    np.testing.assert_array_equal(run("Slice", x, ints(start), ints(end), ints(0), ints(step)), x[start:end:step])
    before = start - 9 if step < 0 and start == -size else start
    np.testing.assert_array_equal(run("Slice", x, ints(before), ints(end), ints(0), ints(step)), x[start:end:step])
    extreme = 2**31 - 1 if step > 0 else -(2**63)
    np.testing.assert_array_equal(run("Slice", x, ints(start), ints(extreme), ints(0), ints(step)), x[start::step])


@given(st.data())
def test_split_puts_together_again(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    x = np.arange(2 * sum(sizes)).reshape(2, -1) if sum(sizes) else np.zeros((2, 0))
    parts = TABLE["Split"]([x, ints(*sizes)], {"axis": -1, "num_outputs": len(sizes)})
    assert [p.shape[1] for p in parts] == sizes
    np.testing.assert_array_equal(run("Concat", *parts, axis=1), x)
