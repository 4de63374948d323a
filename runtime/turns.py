"""Turns of a scan or loop that one native call executes: which bodies allow that, and where each turn's values lie.

A turn reads the states that the turn before has written, and its slices of the inputs; it writes states, and its slices
of the outputs. So only addresses differ from turn to turn. That holds where kernels do all of the work, and states keep
their types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .artifact import address_of
from .device import RecordTime
from .dtypes import numpy_dtype
from .hostmemory import allocated
from .program import Constant, Heap, Input, LoopStep, NativeStep, ScanStep, ValueSpec
from .types import TensorType

MOST_BYTES = 1 << 26
"""Memory for the slices of outputs of turns that may not be made, as a condition can end a loop before."""


@dataclass(frozen=True)
class Turns:
    """The formal inputs of the next turns, of which there are `most`, or fewer where a condition ends them.

    `leading`: of a loop, the number of the first turn and its condition, which is true. `slices` have an entry for each
    turn; `backwards`: those of which the last is taken first. `results_backwards`: the slices of
    outputs of which the first is stored last.
    """

    most: int
    states: Sequence[Any]
    slices: Sequence[np.ndarray] = ()
    backwards: Sequence[int] = ()
    results_backwards: Sequence[int] = ()
    leading: tuple[np.ndarray, ...] = ()

    @property
    def formal(self) -> list[Any]:
        """The inputs of the first turn."""
        first = (part[-1 if flag else 0, ...] for part, flag in zip(self.slices, self.backwards))
        return [*self.leading, *self.states, *first]


@dataclass(frozen=True)
class Done:
    """What turns gave: their number, whether the condition is still true, the states, and the slices of outputs. Of a
    loop, there can be more turns to come.
    """

    turns: int
    going: bool
    states: list[Any]
    results: list[np.ndarray]


@dataclass(frozen=True)
class Change:
    """The address of value `number`: in the second turn `following`, then that one moved by `stride` each time, or by
    `toggle`, the exclusive or of two addresses that take turns. `content`: what lies there, an int64, in its place.
    """

    number: int
    following: int
    stride: int = 0
    toggle: int = 0
    content: bool = False


@runtime_checkable
class Repeatable(Protocol):
    """A segment that can be executed many times by one native call."""

    def repeat(
        self, values: list[Any], changes: Sequence[Change], most: int, condition: int | None, record: RecordTime | None
    ) -> int:
        """Execute for `most` turns, or until the value number `condition` is false after one; returns how many."""


@dataclass(frozen=True)
class Repetition:
    """Numbers of the body's values. `states` are pairs: what a turn reads, and what it writes."""

    leading: tuple[int, ...]
    states: tuple[tuple[int, int], ...]
    slices: tuple[int, ...]
    results: tuple[int, ...]
    condition: int | None
    """None where it stays true."""
    fixed: bool
    """Whether the condition is a constant."""


def repetition_of(step: LoopStep | ScanStep) -> Repetition | None:
    """How native code can go from turn to turn of the step's body; None where it cannot."""
    program = step.body.program
    if len(program.steps) != 1 or not isinstance(program.steps[0], NativeStep):
        return None
    if isinstance(step, LoopStep):
        leading, inputs, count, slices = program.inputs[:2], program.inputs[2:], len(step.carried), 0
        condition: int | None = program.outputs[0]
        outputs = program.outputs[1:]
    else:
        leading, inputs, count, slices = (), program.inputs, len(step.states), len(step.scans)
        condition, outputs = None, program.outputs
    states, results = tuple(zip(inputs[:count], outputs[:count])), outputs[count:]
    if condition is not None and program.values[condition].location == Input(1):
        condition = None
    fixed = condition is not None and isinstance(program.values[condition].location, Constant)
    written = [after for before, after in states if after != before]
    if condition is not None and not fixed:
        written.append(condition)
    if not all(isinstance(program.values[number].location, Heap) for number in (*written, *results)):
        return None
    if len(set(written)) < len(written) or len(set(results)) < len(results) or condition in results:
        return None
    return Repetition(leading, states, inputs[count : count + slices], results, condition, fixed)


def run_turns(
    repetition: Repetition, turns: Turns, segment: Repeatable, values: list[Any], spec: Callable[[int], ValueSpec],
    record: RecordTime | None,
) -> Done | None:  # fmt: skip
    """Execute turns on a program's values, of which its inputs and constants are set; None where a state changes its
    type.
    """
    kinds = [spec(number).type for pair in repetition.states for number in pair]
    if any(before != after for before, after in zip(kinds[::2], kinds[1::2])):
        return None
    going = not repetition.fixed or bool(values[repetition.condition or 0])
    most = turns.most if going else 1
    if turns.leading:
        most = min(most, max(1, MOST_BYTES // max(1, sum(_nbytes(spec(number)) for number in repetition.results))))
    stacked = {number: _stacked(most, spec(number)) for number in repetition.results}
    results = list(stacked.values())
    changes: list[Change] = []
    for number, array, backwards in zip(repetition.slices, turns.slices, turns.backwards):
        values[number] = _begin(changes, number, np.ascontiguousarray(array), backwards)
    for (number, array), backwards in zip(stacked.items(), turns.results_backwards):
        values[number] = _begin(changes, number, array, backwards)
    backwards_of = dict(zip(stacked, turns.results_backwards))
    pairs: dict[int, np.ndarray] = {}
    for before, after in repetition.states:
        if after == before:
            continue
        if after in stacked:  # a state that is stored for each turn: the next turn reads it there
            nbytes = values[after].nbytes
            changes.append(Change(before, address_of(values[after]), -nbytes if backwards_of[after] else nbytes))
            continue
        pairs[after] = pair = _stacked(2, spec(after))
        first, second = address_of(pair[0, ...]), address_of(pair[1, ...])
        values[after] = pair[0, ...]
        changes += [Change(before, first, 0, first ^ second), Change(after, second, 0, first ^ second)]
    if repetition.leading:
        number = repetition.leading[0]
        values[number] = trip = np.array(turns.leading[0])
        changes.append(Change(number, int(trip.reshape(()).item()) + 1, 1, content=True))
    condition = None if repetition.fixed else repetition.condition
    done = segment.repeat(values, changes, most, condition, record)
    if condition is not None:
        going = bool(values[condition])
    states = []
    for before, after in repetition.states:
        if after == before:
            states.append(values[before])
        elif after in pairs:
            states.append(pairs[after][1 - done % 2, ...])
        else:
            states.append(stacked[after][-done if backwards_of[after] else done - 1, ...].copy())
    parts = [a[most - done :] if flag else a[:done] for a, flag in zip(results, turns.results_backwards)]
    return Done(done, going, states, parts)


def _begin(changes: list[Change], number: int, array: np.ndarray, backwards: int) -> np.ndarray:
    """The entry for the first turn; puts down how the others follow."""
    first = array[-1 if backwards else 0, ...]
    stride = -first.nbytes if backwards else first.nbytes
    changes.append(Change(number, address_of(first) + stride, stride))
    return first


def _nbytes(value: ValueSpec) -> int:
    return value.type.nbytes if isinstance(value.type, TensorType) else 0


def _stacked(count: int, value: ValueSpec) -> np.ndarray:
    """Memory for the values of so many turns."""
    assert isinstance(value.type, TensorType) and value.type.static_shape is not None
    raw = allocated(count * _nbytes(value), f"value {value.name!r}")
    return raw.view(numpy_dtype(value.type.dtype)).reshape(count, *value.type.static_shape)
