"""Loops whose states change their shapes, as when each turn appends to one: one table of launches for all turns and
all shapes. Before a turn `ts_resize` reads the shapes of the states, and stores those that the next turn will read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tilestitch.runtime.buffers import address_of, aligned_bytes
from tilestitch.runtime.dtypes import memory_dtype
from tilestitch.runtime.errors import InputError
from tilestitch.runtime.groups import NoRoom, NotJoined, can_be_joined
from tilestitch.runtime.host_runs import fits
from tilestitch.runtime.iterations import (
    MOST_BYTES,
    MOST_ITERATIONS,
    Done,
    Grown,
    Iterations,
    Repetition,
    along,
    stacked,
)
from tilestitch.runtime.moves import Move
from tilestitch.runtime.program import Launch, NativeStep, Program
from tilestitch.runtime.sizes import Size
from tilestitch.runtime.sizing import Sizing
from tilestitch.runtime.types import TensorType

from .joined import Dim, Frame, Key, Place, Surroundings, Table, cases_of, counts_of, nbytes_of
from .resizing import Word
from .segment import Repeated

LEAST_TURNS = 2
"""Fewest turns that a native call is prepared for: Python runs one sooner."""


def grown(program: Program, repetition: Repetition, around: Surroundings) -> Grown | None:
    """Return the turns of a loop with this body; None where they cannot be one table."""
    sizing = around.loaded.sizing(program)
    if around.library.resize is None or not repetition.leading or sizing is None:
        return None
    if not all(isinstance(step, NativeStep) or can_be_joined(step) for step in program.steps):
        return None
    return _Loop(sizing, partial(_Turn, program, repetition, around)).run


class _Loop:
    """The turns of a loop. Where they need more room than there is, or other cases, the table is made anew."""

    def __init__(self, sizing: Sizing, make: Callable[[Mapping[Key, int], Sequence[int]], _Turn]) -> None:
        self._sizing, self._make = sizing, make
        self._cases = cases_of(sizing.program)
        self._formal = [sizing.program.values[number].type for number in sizing.program.inputs]
        self._turn: _Turn | None = None
        self._refused = False

    def run(self, iterations: Iterations, inputs: Sequence[Any]) -> Done | None:
        if self._refused or iterations.most < LEAST_TURNS or not all(map(fits, inputs, self._formal)):
            return None
        try:
            turn = self._turn or self._make({}, self._choices(inputs))
            while True:
                self._turn = turn
                try:
                    return turn.run(inputs, min(iterations.most, MOST_ITERATIONS))
                except NoRoom:
                    room, choices = turn.more_room(), self._choices(inputs)
                    if (room, choices) == (turn.room, turn.choices) or max(room.values(), default=0) > MOST_BYTES:
                        return None  # something else that a turn requires: run by itself, it says so
                    turn = self._make(room, choices)
        except NotJoined:
            self._refused = True
        except InputError:
            pass
        return None

    def _choices(self, inputs: Sequence[Any]) -> list[int]:
        """Return the number of the case of each launch with cases."""
        bound = self._sizing.bind_any(inputs, is_body=True)
        return [bisect_right(cases.starts, bound.of(cases.size)) for cases in self._cases]


class _Turn(Table):
    """The launches of a turn. `_shapes`: those of the inputs, which each turn stores for the next one."""

    least_room, most_room = 1 << 16, MOST_BYTES

    def __init__(
        self, program: Program, repetition: Repetition, around: Surroundings, room: Mapping[Key, int],
        choices: Sequence[int],
    ) -> None:  # fmt: skip
        launches, arguments = counts_of(around.loaded, program.steps)
        super().__init__(around, room, 1 + launches, 1 + arguments)
        self._program, self._repetition, self.choices, self._left = program, repetition, choices, iter(choices)
        self._shapes = {
            number: np.array([size if isinstance(size, int) else 0 for size in self._sizes(number)], np.int64)
            for number in program.inputs
        }
        self._open = [at for at, n in enumerate(program.inputs) if not all(isinstance(s, int) for s in self._sizes(n))]
        self._count, self._memory = np.zeros(1, np.int64), dict[int, np.ndarray]()
        fixed = program.values[repetition.condition or 0] if repetition.fixed else None
        self._begins = fixed is None or bool(around.loaded.constant(fixed))  # else it ends after a turn
        self._condition = None if repetition.fixed else repetition.condition
        self._results = [(number, program.values[number]) for number in repetition.results]
        self._result_bytes = sum(self._nbytes(number) for number in repetition.results)
        changed = [(before, after) for before, after in repetition.states if after != before]
        numbers = [*(after for _, after in changed), *repetition.results]
        stored = {number: Place(program.values[number].dtype, (), outer=number) for number in numbers}
        if len(stored) < len(numbers):
            raise NotJoined
        if self._condition is not None:
            self._memory[self._condition] = condition = np.zeros(1, np.bool_)
            stored[self._condition] = Place("bool", (), condition)
        given = [Place(program.values[number].dtype, self._dims(number), outer=number) for number in program.inputs]
        for place, memory in zip(given, (self._count, np.ones(1, np.bool_))):
            place.array, place.outer = memory, None
        self._kept += given
        frame = self._begun(program, (1,), given, stored)
        if frame.resizing is None:
            raise NotJoined
        self._resizing_of_turn = frame.resizing
        self._put(frame, program.steps)
        moves = [along(number, value, False) for number, value in self._results]
        for before, after in changed:
            moves += self._alternating(before, after)
            for word, size, following in zip(self._dims(before), self._sizes(before), self._sizes(after), strict=True):
                if isinstance(word, Word) and self._known_dim(frame, following) is not None:
                    frame.resizing.pointer(word.address, 0, following, 0)
                elif size != following:
                    raise NotJoined
        self._end(frame)
        self._finish()
        self._repeated = Repeated(self, moves, self._condition, self._count, self.args, self.table)
        self._held: list[Any] = [self._memory.get(number) for number in range(len(program.values))]
        self._repeated.hold(self._held)

    def _put_launches(self, frame: Frame, step: NativeStep) -> None:
        slices, resizing = step.slices, frame.resizing
        for _, images in () if slices is None else slices.runs:
            if images and slices is not None and resizing is not None:
                resizing.at_most(slices.symbol, images)  # all at once
        super()._put_launches(frame, step)

    def _chosen(self, frame: Frame, launch: Launch) -> Launch:
        cases = launch.cases
        if cases is None or frame.resizing is None:
            return launch
        number = next(self._left)
        if number:
            frame.resizing.at_most(cases.starts[number - 1], cases.size)
        if number < len(cases.starts):
            frame.resizing.at_most(cases.size, cases.starts[number] - 1)
        return launch.kernels[number]

    def _sizes(self, number: int) -> Sequence[Size]:
        type_ = self._program.values[number].type
        if not isinstance(type_, TensorType) or type_.shape is None:
            raise NotJoined
        return type_.shape

    def _dims(self, number: int) -> tuple[Dim, ...]:
        """Return the sizes of an input: numbers, and words in place of those that change."""
        shape = self._shapes[number]
        return tuple(size if isinstance(size, int) else Word(shape, at) for at, size in enumerate(self._sizes(number)))

    def _nbytes(self, number: int) -> int:
        """Return the bytes that there are for a state or result, those of a result are a number."""
        nbytes = nbytes_of(self._program, self._program.values[number])
        if nbytes is None or (number in self._repetition.results and not isinstance(nbytes, int)):
            raise NotJoined
        return nbytes if isinstance(nbytes, int) else self._room(self._resizing_of_turn, (1, "state", number), nbytes)

    def _alternating(self, before: int, after: int) -> list[Move]:
        """Reserve two places for a state, which take turns."""
        self._memory[after] = pair = aligned_bytes(-(-self._nbytes(after) // 64) * 128)
        first, half = address_of(pair), pair.size // 2
        toggle = first ^ first + half
        return [Move(before, after, 0, 0, toggle), Move(after, after, half, 0, toggle)]

    def run(self, inputs: Sequence[Any], most: int) -> Done:
        """Execute up to so many turns. Raises `NoRoom`."""
        most = min(most, max(1, MOST_BYTES // max(1, self._result_bytes)))
        values, going = self._held.copy(), self._begins
        stacks = {number: stacked(most, value) for number, value in self._results}
        for number, memory in (*zip(self._program.inputs, inputs), *stacks.items()):
            values[number] = memory
        self._count[0] = inputs[0].item()
        for position in self._open:
            self._shapes[self._program.inputs[position]][:] = inputs[position].shape
        self._resizing_of_turn.forget()
        done = self._repeated.run(values, most if going else 1, None)
        if self._condition is not None:
            going = bool(self._memory[self._condition][0])
        states = [
            given if after == before else self._state(before, after, done)
            for (before, after), given in zip(self._repetition.states, inputs[2:])
        ]
        return Done(done, going, states, [stack[:done] for stack in stacks.values()])

    def _state(self, before: int, after: int, done: int) -> np.ndarray:
        """Return a state after so many turns."""
        shape, dtype = self._shapes[before].tolist(), memory_dtype(self._program.values[after].dtype)
        half = self._memory[after].reshape(2, -1)[1 - done % 2]
        return half[: prod(shape) * dtype.itemsize].view(dtype).reshape(shape).copy()
