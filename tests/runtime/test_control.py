"""Control steps against ONNX's reference implementation and against what the standard says of the corner cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.programs import FLOAT4, module
from tests.runtime.signed import plain
from tilestitch.runtime import Module
from tilestitch.runtime.errors import ExecutionError
from tilestitch.runtime.program import (
    ABSENT,
    Arena,
    Arg,
    Body,
    Constant,
    HostStep,
    IfStep,
    Input,
    Launch,
    LoopStep,
    NativeStep,
    Program,
    ScanStep,
    SequenceMapStep,
    SequenceType,
    TensorType,
    ValueSpec,
)

BOOL, INT, FLOAT = TensorType("bool", ()), TensorType("int64", ()), TensorType("float32", ())
X = np.arange(4, dtype=np.float32)


def increment_body() -> Body:
    """A native body: two kernels with the value between them in an arena of the body's own."""
    values = (ValueSpec("a", FLOAT4, Input(0)), ValueSpec("b", FLOAT4, Arena(0, 16)), ValueSpec("c", FLOAT4))
    step = NativeStep((Launch("increment", 1, (Arg(0), Arg(1))), Launch("increment", 1, (Arg(1), Arg(2)))))
    return Body(Program("increment", (0,), (2,), values, (step,), 64), (0,))


def identity_body() -> Body:
    return Body(Program("same", (0,), (0,), (ValueSpec("a", FLOAT4, Input(0)),), ()), (0,))


def if_module(folder: Path) -> Module:
    values = (
        ValueSpec("x", FLOAT4, Input(0)),
        ValueSpec("c", TensorType("bool", None), Input(1)),
        ValueSpec("y", FLOAT4),
    )
    return module(folder, Program("p", (0, 1), (2,), values, (IfStep(1, increment_body(), identity_body(), (2,)),)))


def test_if_takes_one_branch(tmp_path: Path) -> None:
    loaded = if_module(tmp_path)
    np.testing.assert_array_equal(loaded(X, np.array(True))["y"], X + 2)
    untouched = loaded(X, np.array([False]))["y"]
    np.testing.assert_array_equal(untouched, X)
    assert not np.shares_memory(untouched, X)


def test_if_with_a_condition_of_two_elements(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match="condition has shape"):
        if_module(tmp_path)(X, np.array([True, False]))


def loop_program(max_trip: int, condition: int) -> Program:
    """carried += 1 twice per trip on the device, until its sum reaches `bound`; scans: the trip number and the carried
    value.
    """
    body_values = (
        ValueSpec("trip", INT, Input(0)), ValueSpec("going", BOOL, Input(1)), ValueSpec("carried", FLOAT4, Input(2)),
        ValueSpec("bound", FLOAT, Input(3)), ValueSpec("between", FLOAT4, Arena(0, 16)), ValueSpec("next", FLOAT4),
        ValueSpec("sum", FLOAT), ValueSpec("more", BOOL),
    )  # fmt: skip
    body_steps = (
        NativeStep((Launch("increment", 1, (Arg(2), Arg(4))), Launch("increment", 1, (Arg(4), Arg(5))))),
        HostStep("reduce_sum", (5,), (6,), {"axes": [0], "keepdims": False}),
        HostStep("less", (6, 3), (7,)),
    )
    body = Body(Program("body", (0, 1, 2, 3), (7, 5, 0, 5), body_values, body_steps, 64), (3,))
    values = (
        ValueSpec("limit", INT, Input(0)), ValueSpec("going", BOOL, Input(1)), ValueSpec("start", FLOAT4, Input(2)),
        ValueSpec("bound", FLOAT, Input(3)), ValueSpec("last", FLOAT4), ValueSpec("trips", TensorType("int64", ("n",))),
        ValueSpec("history", TensorType("float32", ("n", 4))),
    )  # fmt: skip
    step = LoopStep(max_trip, condition, (2,), body, (4, 5, 6), ("loop_1",))
    return Program("p", (0, 1, 2, 3), (4, 5, 6), values, (step,))


def run_loop(
    folder: Path, limit: int, going: bool, bound: float, max_trip: int = 0, condition: int = 1
) -> dict[str, Any]:
    feeds = {"limit": np.array(limit), "going": np.array(going), "start": X, "bound": np.float32(bound)}
    return module(folder, loop_program(max_trip, condition)).run(feeds)


def loop_reference(limit: float, going: bool, bound: float) -> tuple[np.ndarray, list[int], list[np.ndarray]]:
    value, trips, history = X, [], []
    while going and len(trips) < limit:
        value = value + 2
        trips.append(len(trips))
        history.append(value)
        going = bool(value.sum() < bound)
    return value, trips, history


@pytest.mark.parametrize(
    ("limit", "going", "bound", "max_trip", "condition"),
    [
        (3, True, 1e9, 0, 1),
        (100, True, 40, 0, 1),
        (100, True, 40, ABSENT, 1),
        (5, False, 1e9, 0, ABSENT),
        (1, True, 0, 0, 1),
    ],
)
def test_loop(tmp_path: Path, limit: int, going: bool, bound: float, max_trip: int, condition: int) -> None:
    outputs = run_loop(tmp_path, limit, going, bound, max_trip, condition)
    last, trips, history = loop_reference(np.inf if max_trip == ABSENT else limit, going or condition == ABSENT, bound)
    np.testing.assert_array_equal(outputs["last"], last)
    np.testing.assert_array_equal(outputs["trips"], trips)
    np.testing.assert_array_equal(outputs["history"], history)


@pytest.mark.parametrize(("limit", "going"), [(0, True), (5, False)])
def test_a_loop_of_no_trips(tmp_path: Path, limit: int, going: bool) -> None:
    outputs = run_loop(tmp_path, limit, going, 1e9)
    np.testing.assert_array_equal(outputs["last"], X)
    assert outputs["trips"].shape == (0,) and outputs["trips"].dtype == np.int64
    assert outputs["history"].shape == (0, 4)


def scan_program(axis: int, backwards: int, out_axis: int, out_backwards: int) -> Program:
    """Running sum over the columns or rows of a 4 by 4 matrix."""
    body_values = (ValueSpec("sum", FLOAT4, Input(0)), ValueSpec("part", FLOAT4, Input(1)), ValueSpec("next", FLOAT4))
    body = Body(Program("body", (0, 1), (2, 2), body_values, (HostStep("add", (0, 1), (2,)),)))
    matrix = TensorType("float32", (4, 4))
    values = (
        ValueSpec("start", FLOAT4, Constant("zero")),
        ValueSpec("x", matrix, Input(0)),
        ValueSpec("last", FLOAT4),
        ValueSpec("sums", matrix),
    )
    step = ScanStep((0,), (1,), (axis,), (backwards,), (out_axis,), (out_backwards,), body, (2, 3))
    return Program("p", (1,), (2, 3), values, (step,))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("out_axis", [0, 1])
@pytest.mark.parametrize("backwards", [0, 1])
@pytest.mark.parametrize("out_backwards", [0, 1])
def test_scan(tmp_path: Path, axis: int, out_axis: int, backwards: int, out_backwards: int) -> None:
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    program = scan_program(axis, backwards, out_axis, out_backwards)
    outputs = module(tmp_path, program, weights={"zero": np.zeros(4, np.float32)}, kernels=b"")(x)
    rows = x if axis == 0 else x.T
    sums = np.cumsum(rows[::-1] if backwards else rows, axis=0)
    np.testing.assert_array_equal(outputs["last"], sums[-1])
    sums = sums[::-1] if out_backwards else sums
    np.testing.assert_array_equal(outputs["sums"], sums if out_axis == 0 else sums.T)


def test_scan_inputs_of_different_lengths(tmp_path: Path) -> None:
    body = Body(Program("b", (0, 1), (0,), (ValueSpec("a", FLOAT, Input(0)), ValueSpec("b", FLOAT, Input(1))), ()))
    vector = TensorType("float32", ("n",))
    other = TensorType("float32", ("m",))
    values = (ValueSpec("x", vector, Input(0)), ValueSpec("y", other, Input(1)), ValueSpec("z", vector))
    step = ScanStep((), (0, 1), (0, 0), (0, 0), (0,), (0,), body, (2,), ("scan_5",))
    with pytest.raises(ExecutionError, match=r"scan_5.*different lengths"):
        module(tmp_path, Program("p", (0, 1), (2,), values, (step,)), kernels=b"")(X, X[:2])


def sequence_map_module(folder: Path) -> Module:
    """Each item of `items` plus the tensor `x`, plus the item of `more` at the same place."""
    body_values = tuple(ValueSpec(name, FLOAT4, Input(i)) for i, name in enumerate("abc"))
    body_values += (ValueSpec("d", FLOAT4), ValueSpec("e", FLOAT4))
    steps = (HostStep("add", (0, 1), (3,)), HostStep("add", (3, 2), (4,)))
    body = Body(Program("body", (0, 1, 2), (4,), body_values, steps))
    sequence = SequenceType(FLOAT4)
    values = (
        ValueSpec("items", sequence, Input(0)), ValueSpec("x", FLOAT4, Input(1)), ValueSpec("more", sequence, Input(2)),
        ValueSpec("y", sequence),
    )  # fmt: skip
    step = SequenceMapStep(0, (1, 2), body, (3,), ("map",))
    return module(folder, Program("p", (0, 1, 2), (3,), values, (step,)), kernels=b"")


def test_sequence_map(tmp_path: Path) -> None:
    loaded = sequence_map_module(tmp_path)
    result = loaded([X, X * 2], X, [X * 10, X * 100])["y"]
    np.testing.assert_array_equal(result, [X * 12, X * 103])
    assert loaded([], X, [])["y"] == []


def test_sequences_of_different_lengths(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match="equally long"):
        sequence_map_module(tmp_path)([X, X], X, [X])


def test_a_nested_loop_is_profiled(tmp_path: Path) -> None:
    feeds = {"limit": np.array(3), "going": np.array(True), "start": X, "bound": np.float32(1e9)}
    times = module(tmp_path, loop_program(0, 1)).profile(feeds)
    assert [plain(time.symbol) for time in times] == ["increment", "increment", "host.reduce_sum", "host.less"] * 3
    assert [time.on_host for time in times] == [False, False, True, True] * 3


def test_a_body_never_gets_a_value_of_another_shape(tmp_path: Path) -> None:
    """The carried value grows; the kernel in the body is made for four elements."""
    grown = TensorType("float32", None)
    body_values = (
        ValueSpec("trip", INT, Input(0)), ValueSpec("going", BOOL, Input(1)), ValueSpec("a", FLOAT4, Input(2)),
        ValueSpec("b", FLOAT4), ValueSpec("c", grown),
    )  # fmt: skip
    steps = (NativeStep((Launch("increment", 1, (Arg(2), Arg(3))),)), HostStep("concat", (3, 3), (4,), {"axis": 0}))
    body = Body(Program("body", (0, 1, 2), (1, 4), body_values, steps))
    values = (ValueSpec("x", FLOAT4, Input(0)), ValueSpec("limit", INT, Input(1)), ValueSpec("y", grown))
    loaded = module(tmp_path, Program("p", (0, 1), (2,), values, (LoopStep(1, ABSENT, (0,), body, (2,), ("loop_9",)),)))
    assert loaded(X, np.array(1))["y"].shape == (8,)
    with pytest.raises(ExecutionError, match=r"loop_9 \(Loop\): value 'a' came out as float32\[8\]"):
        loaded(X, np.array(2))


def test_conditions_of_one_element(tmp_path: Path) -> None:
    one = TensorType("bool", (1,))
    trip = TensorType("int64", (1,))
    body = Body(Program("body", (0, 1), (1, 0), (ValueSpec("trip", trip, Input(0)), ValueSpec("c", one, Input(1))), ()))
    values = (
        ValueSpec("c", one, Input(0)),
        ValueSpec("n", trip, Input(1)),
        ValueSpec("y", TensorType("int64", ("k", 1))),
    )
    loaded = module(tmp_path, Program("p", (0, 1), (2,), values, (LoopStep(1, 0, (), body, (2,)),)), kernels=b"")
    np.testing.assert_array_equal(loaded(np.array([True]), np.array([3]))["y"], [[0], [1], [2]])


def test_values_in_sequences_do_not_change_later(tmp_path: Path) -> None:
    """A sequence of parts of an arena value, which a later kernel overwrites."""
    values = (
        ValueSpec("x", FLOAT4, Input(0)), ValueSpec("a", FLOAT4, Arena(0, 16)), ValueSpec("s", SequenceType(FLOAT4)),
        ValueSpec("b", FLOAT4, Arena(0, 16)), ValueSpec("y", FLOAT4),
    )  # fmt: skip
    steps = (
        NativeStep((Launch("increment", 1, (Arg(0), Arg(1))),)),
        HostStep("SequenceConstruct", (1, 1), (2,)),
        NativeStep((Launch("increment", 1, (Arg(1), Arg(4))), Launch("increment", 1, (Arg(4), Arg(3))))),
    )
    outputs = module(tmp_path, Program("p", (0,), (2, 4), values, steps, 64))(X)
    np.testing.assert_array_equal(outputs["s"], [X + 1, X + 1])
    np.testing.assert_array_equal(outputs["y"], X + 2)


def test_a_sequence_in_the_place_of_a_tensor_is_an_error_of_ours(tmp_path: Path) -> None:
    """A forged program may say that a list is a tensor."""
    values = (ValueSpec("x", FLOAT4, Input(0)), ValueSpec("y", FLOAT4))
    steps = (HostStep("SequenceConstruct", (0, 0), (1,), {}, ("list_1",)),)
    with pytest.raises(ExecutionError, match=r"list_1 .*value 'y' came out as a sequence, not float32\[4\]"):
        module(tmp_path, Program("p", (0,), (1,), values, steps), kernels=b"")(np.zeros(4, np.float32))


def test_a_missing_operand_is_an_error_of_ours(tmp_path: Path) -> None:
    values = (ValueSpec("x", FLOAT4, Input(0)), ValueSpec("y", FLOAT4))
    step = HostStep("Unique", (ABSENT,), (1,), {"axis": None, "sorted": True}, ("unique_1",))
    with pytest.raises(ExecutionError, match=r"unique_1 \(Unique\) failed"):
        module(tmp_path, Program("p", (0,), (1,), values, (step,)), kernels=b"")(np.zeros(4, np.float32))
