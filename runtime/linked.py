"""Links of chains: steps of a program that are prepared once for all runs with the same sizes.

`known` are the values of the chain, None for those of its inputs and outputs that differ from run to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import control
from .chain import Chain, Spec
from .host_runs import Check
from .hostmemory import empty_tensor
from .iterations import NativeLoop, Repetition
from .moves import Repeatable
from .program import ABSENT, IfStep, LoopStep, ScanStep


class LinkedStep:
    """A native step with a table of its own."""

    def __init__(self, segment: Repeatable, known: list[Any]) -> None:
        self._native = segment.repeated((), None, None)
        self._native.hold(known)

    def run(self, values: list[Any]) -> None:
        self._native.run(values, 1, None)


class LinkedScan:
    """All iterations of a scan. `body`: the known values of its body; its `length` is the same in all runs. Nothing
    else uses `loop`.
    """

    def __init__(
        self, step: ScanStep, repetition: Repetition, loop: NativeLoop, known: Sequence[Any], body: list[Any],
        length: int, spec: Spec, inputs: Sequence[int],
    ) -> None:  # fmt: skip
        states, scans = len(step.states), len(step.scans)
        self._body, self._length, self._native_loop = body, length, loop
        given = [*zip(inputs[:states], step.states), *zip(inputs[states + scans :], step.body.captures)]
        slices = [
            (number, outer, -1 if flag else 0)
            for number, outer, flag in zip(inputs[states : states + scans], step.scans, step.input_directions)
        ]
        stored = [
            (number, outer, -1 if flag else 0)
            for number, outer, flag in zip(repetition.results, step.outputs[states:], step.output_directions)
        ]
        place = {number: (outer, first) for number, outer, first in stored}
        self._states = []
        for (_, after), outer in zip(repetition.states, step.outputs):
            source, first = place.get(after, (None, 0))
            self._states.append((outer, after, source, -length if first else length - 1))
        self._made = [(outer, spec(outer)) for _, outer, _ in stored if known[outer] is None]
        for number, pair in loop.pairs.items():
            body[number] = pair[0, ...]
        self._put([(number, outer) for number, outer in given if known[outer] is not None], known)
        self._put_first([part for part in (*slices, *stored) if known[part[1]] is not None], known)
        loop.native.hold(body)
        self._given = [(number, outer) for number, outer in given if known[outer] is None]
        self._slices = [part for part in (*slices, *stored) if known[part[1]] is None]

    def run(self, values: list[Any]) -> None:
        for outer, spec in self._made:
            if values[outer] is None:
                values[outer] = empty_tensor(spec)
        self._put(self._given, values)
        self._put_first(self._slices, values)
        pairs = self._native_loop.pairs
        self._native_loop.native.run(self._body, self._length, None)
        for outer, after, source, last in self._states:
            state = pairs[after][1 - self._length % 2, ...] if source is None else values[source][last, ...]
            if values[outer] is None:
                values[outer] = state.copy()
            else:
                values[outer][...] = state
        for number, *_ in (*self._given, *self._slices):
            self._body[number] = None  # it is the caller's

    def _put(self, whole: Sequence[tuple[int, int]], values: Sequence[Any]) -> None:
        """Pass values to the body, by their numbers there and outside of it."""
        for number, outer in whole:
            self._body[number] = values[outer]

    def _put_first(self, slices: Sequence[tuple[int, int, int]], values: Sequence[Any]) -> None:
        """Pass the first iteration's slice of each value, as `_put` does whole values."""
        for number, outer, first in slices:
            self._body[number] = values[outer][first, ...]


class LinkedLoop:
    """All iterations of a loop, as many as each run asks for. `body`: the known values of its body. Nothing else uses
    `loop`, which is settled.
    """

    def __init__(
        self, step: LoopStep, repetition: Repetition, loop: NativeLoop, known: Sequence[Any], body: list[Any],
        spec: Spec, inputs: Sequence[int],
    ) -> None:  # fmt: skip
        self._step, self._native_loop, self._body, self._spec = step, loop, body, spec
        copied = dict(loop.copied)
        for number, memory in (*loop.copied, *loop.kept.items()):
            body[number] = memory
        formal = inputs[1]  # small, and always true
        copied.pop(formal)[...] = True
        places = dict(zip(inputs[2:], (*step.carried, *step.body.captures)))
        self._copied = [(memory, places[number]) for number, memory in copied.items()]
        self._given = [(number, outer) for number, outer in places.items() if number not in copied]
        self._callers = [number for number, _ in self._given]
        self._callers += [number for number in repetition.results if number not in loop.stacks]
        self._once = repetition.fixed and not body[repetition.condition or 0]
        self._most = 1 if self._once else loop.most
        order = {number: index for index, number in enumerate(repetition.results)}
        self._states = [
            (outer, given, before, after, order.get(after))
            for outer, given, (before, after) in zip(step.outputs, step.carried, repetition.states)
        ]
        outputs = [number for number in step.outputs if number != ABSENT]
        self._stay = {number for number in outputs if known[number] is not None}
        self._checks = {number: Check(spec(number)) for number in outputs}

    def run(self, values: list[Any]) -> None:
        limit, going = control.bounds(self._step, values.__getitem__)
        for memory, outer in self._copied:
            memory[...] = values[outer]
        for number, outer in self._given:
            self._body[number] = values[outer]
        trips, states = 0, [values[given] for _, given, _, _, _ in self._states]
        parts: list[list[np.ndarray]] = [[] for _ in self._native_loop.results]
        while going and (limit is None or trips < limit):
            if trips:
                self._begin_again(states)
            most = self._most if limit is None else min(self._most, limit - trips)
            done, going, states = self._iterate(trips, most, parts)
            trips += done
        self._store(values, states, parts)
        for number in self._callers:
            self._body[number] = None

    def _iterate(self, trips: int, most: int, parts: list[list[np.ndarray]]) -> tuple[int, bool, list[np.ndarray]]:
        """Execute up to so many iterations; returns their number, whether the condition is still true, and the states,
        which the next iterations overwrite. Appends to the slices of each output.
        """
        loop, body = self._native_loop, self._body
        stacks = [loop.stack_of(number, value, most) for number, value, _ in loop.results]
        for (number, _, _), stack in zip(loop.results, stacks):
            body[number] = stack[0, ...]
        done, going = loop.iterate(body, trips, most)
        for (number, _, _), part, stack in zip(loop.results, parts, stacks):
            part.append(stack if done == len(stack) and number not in loop.stacks else stack[:done].copy())
        states = [
            loop.pairs[after][1 - done % 2, ...] if index is None else parts[index][-1][-1, ...]
            for _, _, _, after, index in self._states
        ]
        return done, going and not self._once, states

    def _begin_again(self, states: Sequence[np.ndarray]) -> None:
        copied = dict(self._native_loop.copied)
        for (_, _, before, _, _), state in zip(self._states, states):
            if before in copied:
                copied[before][...] = state
            else:
                self._body[before] = state.copy()

    def _store(self, values: list[Any], states: Sequence[np.ndarray], parts: Sequence[list[np.ndarray]]) -> None:
        for (outer, _, _, _, _), state in zip(self._states, states):
            if outer != ABSENT:
                self._put(values, outer, state, copied=True)
        for outer, slices in zip(self._step.outputs[len(states) :], parts):
            if outer == ABSENT:
                continue
            if slices:
                stacked = slices[0] if len(slices) == 1 else np.concatenate(slices)
            else:
                stacked = control.empty_scan(self._step, outer, 0, lambda number: self._spec(number).type)
            self._put(values, outer, stacked, copied=False)

    def _put(self, values: list[Any], outer: int, result: np.ndarray, copied: bool) -> None:
        """Store a result as a value of the program. `copied`: its memory is overwritten later, so copy it."""
        result = self._checks[outer](result, self._step)
        if outer in self._stay:
            values[outer][...] = result
        else:
            values[outer] = result.copy() if copied else result


@dataclass(frozen=True)
class Branch:
    """A branch, or a called body, that is a chain. Pairs of numbers, inside and outside: what it captures, and its
    outputs, `stored` in the outer value's memory if there is any, or `made` anew.
    """

    chain: Chain
    captured: tuple[tuple[int, int], ...]
    stored: tuple[tuple[int, int], ...]
    made: tuple[tuple[int, int], ...]

    def run(self, values: list[Any]) -> None:
        inside = self.chain.values.copy()
        for number, outer in self.captured:
            inside[number] = values[outer]
        for number, outer in self.stored:
            if values[outer] is not None:
                inside[number] = values[outer]
        self.chain.run(inside)
        for number, outer in (*self.stored, *self.made):
            values[outer] = inside[number]


class LinkedIf:
    """Link of an If with one of two branches."""

    def __init__(self, step: IfStep, then_branch: Branch, else_branch: Branch) -> None:
        self._step, self._then, self._else = step, then_branch, else_branch

    def run(self, values: list[Any]) -> None:
        branch = self._then if control.truth(values[self._step.cond], self._step) else self._else
        branch.run(values)
