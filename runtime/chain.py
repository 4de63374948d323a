"""Programs that native code executes from end to end, scans among their steps: what is the same in all runs with the
same sizes is made once.

Between steps, results lie where they lay in the run before. Only the steps see them: outputs are new arrays. So of all
addresses, a run looks up those of inputs and outputs only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from .hostmemory import empty_tensor, is_small
from .program import Heap, NativeStep, Program, ScanStep, ValueSpec
from .turns import Repeatable, Repetition, Turning, repetition_of
from .types import TensorType

Spec = Callable[[int], ValueSpec]
"""A value of a program, with numbers for its sizes."""


class Link(Protocol):
    def run(self, values: list[Any]) -> None: ...


class Chain:
    """The steps of a program, and the values that its runs begin with. What is small of inputs and outputs is copied
    into and out of memory that stays, so that its address does.
    """

    def __init__(self, known: list[Any], inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.values = known  # None for inputs and outputs that are not copied
        self.links: list[Link] = []
        self._copied_in = [(number, known[number]) for number in inputs if known[number] is not None]
        self._copied_out = [(number, known[number]) for number in outputs if known[number] is not None]

    def run(self, values: list[Any]) -> None:
        """Execute on the program's values, of which its inputs are set; makes those of its outputs that are not."""
        for number, memory in self._copied_in:
            memory[...] = values[number]
            values[number] = memory
        wanted = [values[number] for number, _ in self._copied_out]
        for number, memory in self._copied_out:
            values[number] = memory
        for link in self.links:
            link.run(values)
        for (number, memory), array in zip(self._copied_out, wanted):
            if array is memory:
                values[number] = memory.copy()
            else:
                array[...] = memory
                values[number] = array


def can_be_chained(program: Program) -> bool:
    """Whether kernels do all of the work, scans among it, along first axes, and all outputs are theirs."""
    outputs = [program.values[number] for number in program.outputs]
    if not all(isinstance(value.location, Heap) for value in outputs) or len(set(program.outputs)) < len(outputs):
        return False
    scans = [step for step in program.steps if isinstance(step, ScanStep)]
    others = (step for step in program.steps if not isinstance(step, ScanStep))
    return bool(scans) and all(isinstance(step, NativeStep) for step in others) and all(map(_can_be_linked, scans))


def _can_be_linked(step: ScanStep) -> bool:
    repetition = repetition_of(step)
    if repetition is None or any(step.input_axes) or any(step.output_axes) or min(step.outputs) < 0:
        return False
    return all(before != after for before, after in repetition.states)


def memory_that_stays(program: Program, spec: Spec) -> dict[int, np.ndarray] | None:
    """Arrays for small inputs and outputs, and for what is neither and not known before; None where one's size is not
    known.
    """
    ends = {*program.inputs, *program.outputs}
    inside = [
        number for number, value in enumerate(program.values) if isinstance(value.location, Heap) and number not in ends
    ]
    types = [spec(number).type for number in inside]
    if not all(isinstance(type_, TensorType) and type_.is_static for type_ in types):
        return None
    small = [number for number in ends if is_small(spec(number))]
    return {number: empty_tensor(spec(number)) for number in (*inside, *small)}


class LinkedStep:
    """A native step, with a table of its own. `known`: the values of the chain, None for inputs and outputs."""

    def __init__(self, segment: Repeatable, known: list[Any]) -> None:
        self._native = segment.repeated((), None, None)
        self._native.hold(known)

    def run(self, values: list[Any]) -> None:
        self._native.run(values, 1, None)


class LinkedScan:
    """All turns of a scan. `known`: the values of the chain, None for inputs and outputs; `body`: those of its body
    that are known; its `length` is that of all runs. Nothing else runs `turning`.
    """

    def __init__(
        self, step: ScanStep, repetition: Repetition, turning: Turning, known: Sequence[Any], body: list[Any],
        length: int, spec: Spec, inputs: Sequence[int],
    ) -> None:  # fmt: skip
        states, scans = len(step.states), len(step.scans)
        self._body, self._length, self._turning = body, length, turning
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
        for number, pair in turning.pairs.items():
            body[number] = pair[0, ...]
        self._put([(number, outer) for number, outer in given if known[outer] is not None], known)
        self._put_first([part for part in (*slices, *stored) if known[part[1]] is not None], known)
        turning.native.hold(body)
        self._given = [(number, outer) for number, outer in given if known[outer] is None]
        self._slices = [part for part in (*slices, *stored) if known[part[1]] is None]

    def run(self, values: list[Any]) -> None:
        for outer, spec in self._made:
            if values[outer] is None:
                values[outer] = empty_tensor(spec)
        self._put(self._given, values)
        self._put_first(self._slices, values)
        pairs = self._turning.pairs
        self._turning.native.run(self._body, self._length, None)
        for outer, after, source, last in self._states:
            state = pairs[after][1 - self._length % 2, ...] if source is None else values[source][last, ...]
            if values[outer] is None:
                values[outer] = state.copy()
            else:
                values[outer][...] = state

    def _put(self, whole: Sequence[tuple[int, int]], values: Sequence[Any]) -> None:
        """Give values to the body, by their numbers there and outside of it."""
        for number, outer in whole:
            self._body[number] = values[outer]

    def _put_first(self, slices: Sequence[tuple[int, int, int]], values: Sequence[Any]) -> None:
        """As `_put`, of each value the slice of the first turn."""
        for number, outer, first in slices:
            self._body[number] = values[outer][first, ...]
