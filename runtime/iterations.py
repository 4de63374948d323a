"""Iterations of a scan or loop in one native call: which bodies allow that, and where each iteration's values lie.

An iteration reads the states that the previous one has written, and its slices of the inputs; it writes states, and its
slices of the outputs. So only addresses differ between iterations. That holds where kernels do all of the work, and
states keep their types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .buffers import address_of
from .dtypes import memory_dtype
from .groups import whole_group
from .hostmemory import allocated, empty_tensor, is_small
from .launches import RecordTime
from .moves import Move, Repeatable
from .program import Constant, Heap, Input, LoopStep, NativeStep, Program, ScanStep, SequenceMapStep, ValueSpec
from .types import TensorType

MOST_ITERATIONS = 1024
"""Most iterations of a loop in one native call: it cannot be interrupted, and memory for the outputs of all of them is
allocated.
"""

KEPT_BYTES = 1 << 16
"""Results of a loop have memory of their own, from which they are copied, if that of `MOST_ITERATIONS` iterations is
at most this.
"""

MOST_BYTES = 1 << 26
"""Most memory for the output slices of iterations that may not happen, since a condition can end a loop early."""


@dataclass(frozen=True)
class Iterations:
    """The formal inputs of the next iterations, of which there are `most`, or fewer if a condition ends them.

    `leading`: of a loop, the number of the first iteration and its condition, which is true. `slices` have an entry for
    each iteration, contiguous in memory; `backwards`: those that are read from the last one. `results_backwards`: the
    output slices that are stored from the last one.
    """

    most: int
    states: Sequence[Any]
    slices: Sequence[np.ndarray] = ()
    backwards: Sequence[int] = ()
    results_backwards: Sequence[int] = ()
    leading: tuple[np.ndarray, ...] = ()

    @property
    def formal(self) -> list[Any]:
        """The inputs of the first iteration."""
        first = (part[-1 if flag else 0, ...] for part, flag in zip(self.slices, self.backwards))
        return [*self.leading, *self.states, *first]


@dataclass(frozen=True)
class Done:
    """Results of iterations: their number, whether the condition is still true, the states, and the slices of outputs.
    A loop may have more iterations to come.
    """

    count: int
    going: bool
    states: list[Any]
    results: list[np.ndarray]


@dataclass(frozen=True)
class Repetition:
    """Numbers of the body's values. `states` are pairs: what an iteration reads, and what it writes."""

    leading: tuple[int, ...]
    states: tuple[tuple[int, int], ...]
    slices: tuple[int, ...]
    results: tuple[int, ...]
    condition: int | None
    """Number of the condition's value; None if it stays true."""
    fixed: bool
    """Whether the condition is a constant."""


def repetition_of(step: LoopStep | ScanStep | SequenceMapStep) -> Repetition | None:
    """Return how native code iterates the step's body; None where it cannot."""
    program = step.body.program
    return carried_by(step) if is_native(program) or whole_group(program) is not None else None


def is_native(program: Program) -> bool:
    """Return whether a program is one segment of kernels."""
    return len(program.steps) == 1 and isinstance(program.steps[0], NativeStep)


def carried_by(step: LoopStep | ScanStep | SequenceMapStep) -> Repetition | None:
    """Return how iterations of a body of kernels follow each other; None where an iteration would have to copy."""
    program = step.body.program
    if isinstance(step, LoopStep):
        leading, inputs, count, slices = program.inputs[:2], program.inputs[2:], len(step.carried), 0
        condition: int | None = program.outputs[0]
        outputs = program.outputs[1:]
    elif isinstance(step, ScanStep):
        leading, inputs, count, slices = (), program.inputs, len(step.states), len(step.scans)
        condition, outputs = None, program.outputs
    else:  # items of sequences are slices; tensors besides them would be states that stay the same
        leading, inputs, count, slices = (), program.inputs, 0, 1 + len(step.others)
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


Grown: TypeAlias = Callable[[Iterations, Sequence[Any]], Done | None]
"""Function that runs iterations of a loop whose states may have another shape in each, given the inputs of the first;
None where it cannot.
"""


def keeps_types(program: Program, repetition: Repetition) -> bool:
    """Return whether states have the same type in all iterations."""
    return all(program.values[before].type == program.values[after].type for before, after in repetition.states)


class NativeLoop:
    """Iterations of one body with known sizes. What is the same in all runs is computed once."""

    def __init__(
        self, repetition: Repetition, segment: Repeatable, spec: Callable[[int], ValueSpec],
        backwards: Sequence[int], results_backwards: Sequence[int],
    ) -> None:  # fmt: skip
        self._repetition = repetition
        self.results = [
            (number, spec(number), bool(flag)) for number, flag in zip(repetition.results, results_backwards)
        ]
        stored = {number: flag for number, _, flag in self.results}
        moves = [along(number, spec(number), flag) for number, flag in zip(repetition.slices, backwards)]
        moves += [along(number, value, flag) for number, value, flag in self.results]
        self.pairs: dict[int, np.ndarray] = {}
        for before, after in repetition.states:
            if after == before:
                continue
            if after in stored:  # a state that is stored for each iteration: the next one reads it there
                moves.append(Move(before, after, 0, along(after, spec(after), stored[after]).stride_bytes))
                continue
            self.pairs[after] = pair = stacked(2, spec(after))
            first, second = address_of(pair[0, ...]), address_of(pair[1, ...])
            moves += [Move(before, after, 0, 0, first ^ second), Move(after, after, second - first, 0, first ^ second)]
        self._count = np.zeros(1, np.int64) if repetition.leading else None
        self._condition = None if repetition.fixed else repetition.condition
        self._bytes_per_iteration = sum(_nbytes(value) for _, value, _ in self.results)
        self.native = segment.repeated(moves, self._condition, self._count)
        self.copied: list[tuple[int, np.ndarray]] = []
        self.kept: dict[int, np.ndarray] = {}
        self.stacks: dict[int, np.ndarray] = {}

    def settle(self, inputs: Sequence[int], count: int, spec: Callable[[int], ValueSpec]) -> None:
        """Give fixed memory to a loop's small inputs, condition and results, so that no run looks up their addresses.
        To be called once, before the first run. `count`: the number of the body's values.
        """
        repetition = self._repetition
        if self._count is None:
            return
        counter = repetition.leading[0]
        self.copied = [(n, empty_tensor(spec(n))) for n in inputs if n != counter and is_small(spec(n))]
        for number, value, _ in self.results:
            if 0 < MOST_ITERATIONS * _nbytes(value) <= KEPT_BYTES:
                self.stacks[number] = stacked(MOST_ITERATIONS, value)
        self.kept = {number: stack[0, ...] for number, stack in self.stacks.items()}
        self.kept |= {number: pair[0, ...] for number, pair in self.pairs.items()}
        self.kept[counter] = self._count.reshape(_shape(spec(counter)))
        if self._condition is not None and self._condition not in self.kept and is_small(spec(self._condition)):
            self.kept[self._condition] = empty_tensor(spec(self._condition))
        held: list[Any] = [None] * count
        for number, array in (*self.copied, *self.kept.items()):
            held[number] = array
        self.native.hold(held)

    @property
    def most(self) -> int:
        """Most iterations of a loop in one call."""
        return min(MOST_ITERATIONS, max(1, MOST_BYTES // max(1, self._bytes_per_iteration)))

    def stack_of(self, number: int, value: ValueSpec, most: int) -> np.ndarray:
        """Return the memory for the slices of an output over so many iterations."""
        return self.stacks[number] if number in self.stacks else stacked(most, value)

    def iterate(self, values: list[Any], trip: int, most: int) -> tuple[int, bool]:
        """Execute up to `most` iterations of a loop, starting with number `trip`; return their number and whether the
        condition is still true.
        """
        assert self._count is not None
        self._count[0] = trip
        done = self.native.run(values, most, None)
        return done, self._condition is None or bool(values[self._condition])

    def run(self, values: list[Any], iterations: Iterations, record: RecordTime | None) -> Done:
        """Execute iterations on the program's values, of which its inputs and constants are set."""
        repetition, most = self._repetition, iterations.most
        going = not repetition.fixed or bool(values[repetition.condition or 0])
        if not going:
            most = 1
        if self._count is not None:
            most = min(most, self.most)
            number = repetition.leading[0]
            self._count[0] = values[number].item()
            values[number] = self._count.reshape(values[number].shape)
        given = [values[before] for before, _ in repetition.states]
        for number, memory in self.copied:
            memory[...] = values[number]
            values[number] = memory
        stacked: dict[int, np.ndarray] = {}
        for number, value, flag in self.results:
            stacked[number] = array = self.stack_of(number, value, most)
            values[number] = array[-1 if flag else 0, ...]
        for number, pair in self.pairs.items():
            values[number] = pair[0, ...]
        for number, memory in self.kept.items():
            values[number] = memory
        done = self.native.run(values, most, record)
        if self._condition is not None:
            going = bool(values[self._condition])
        backwards = {number: flag for number, _, flag in self.results}
        states = []
        for state, (before, after) in zip(given, repetition.states):
            if after == before:
                states.append(state)
            elif after in self.pairs:
                states.append(self.pairs[after][1 - done % 2, ...].copy())
            else:
                states.append(stacked[after][-done if backwards[after] else done - 1, ...].copy())
        parts = [a[most - done :] if backwards[number] else a[:done] for number, a in stacked.items()]
        parts = [part.copy() if number in self.stacks else part for number, part in zip(stacked, parts)]
        return Done(done, going, states, parts)


def native_loop_of(
    repetition: Repetition, iterations: Iterations, segment: Repeatable, spec: Callable[[int], ValueSpec]
) -> NativeLoop | None:
    """Return the iterations of a segment; None where a state changes its type, or the size of a result is not known."""
    types = [spec(number).type for number in repetition.results]
    if not all(isinstance(type_, TensorType) and type_.is_static for type_ in types):
        return None
    if any(spec(before).type != spec(after).type for before, after in repetition.states):
        return None
    return NativeLoop(repetition, segment, spec, iterations.backwards, iterations.results_backwards)


def along(number: int, value: ValueSpec, backwards: int) -> Move:
    """Return the move from one slice to the next."""
    nbytes = -_nbytes(value) if backwards else _nbytes(value)
    return Move(number, number, nbytes, nbytes)


def _nbytes(value: ValueSpec) -> int:
    return value.type.nbytes if isinstance(value.type, TensorType) else 0


def _shape(value: ValueSpec) -> tuple[int, ...]:
    return (value.type.static_shape if isinstance(value.type, TensorType) else None) or ()


def stacked(count: int, value: ValueSpec) -> np.ndarray:
    """Return memory for the values of so many iterations."""
    assert isinstance(value.type, TensorType) and value.type.static_shape is not None
    raw = allocated(count * _nbytes(value), f"value {value.name!r}")
    return raw.view(memory_dtype(value.type.dtype)).reshape(count, *value.type.static_shape)
