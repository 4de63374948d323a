"""Programs that native code executes from end to end, scans among their steps: what is the same in all runs with the
same sizes is made once.

Between steps, results lie where they lay in the run before. Only the steps see them: outputs are new arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from .hostmemory import empty_tensor
from .program import Heap, NativeStep, Program, ScanStep, ValueSpec
from .turns import Repetition, Turning, repetition_of
from .types import TensorType

Spec = Callable[[int], ValueSpec]
"""A value of a program, with numbers for its sizes."""


class _Link(Protocol):
    def run(self, values: list[Any], record: None) -> None: ...


class Chain:
    """The steps of a program, and the values that its runs begin with."""

    def __init__(self, values: list[Any], links: Sequence[_Link]) -> None:
        self.values, self._links = values, links

    def run(self, values: list[Any]) -> None:
        """Execute on the program's values, of which its inputs are set; makes those of its outputs that are not."""
        for link in self._links:
            link.run(values, None)


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


def memory_between(program: Program, spec: Spec) -> dict[int, np.ndarray] | None:
    """Arrays for the values that are neither outputs nor known before; None where one's size is not known."""
    inside = [
        number
        for number, value in enumerate(program.values)
        if isinstance(value.location, Heap) and number not in program.outputs
    ]
    types = [spec(number).type for number in inside]
    if not all(isinstance(type_, TensorType) and type_.is_static for type_ in types):
        return None
    return {number: empty_tensor(spec(number)) for number in inside}


class LinkedScan:
    """All turns of a scan. `body`: the values of its body that are known; its `length` is that of all runs."""

    def __init__(
        self, step: ScanStep, repetition: Repetition, turning: Turning, body: list[Any], length: int, spec: Spec,
        inputs: Sequence[int],
    ) -> None:  # fmt: skip
        states, scans = len(step.states), len(step.scans)
        self._body, self._length, self._turning = body, length, turning
        self._given = [*zip(inputs[:states], step.states), *zip(inputs[states + scans :], step.body.captures)]
        self._slices = [
            (number, outer, -1 if flag else 0)
            for number, outer, flag in zip(inputs[states : states + scans], step.scans, step.input_directions)
        ]
        self._stored = [
            (number, outer, -1 if flag else 0, spec(outer))
            for number, outer, flag in zip(repetition.results, step.outputs[states:], step.output_directions)
        ]
        place = {number: (outer, flag) for number, outer, flag, _ in self._stored}
        self._states = []
        for (_, after), outer in zip(repetition.states, step.outputs):
            source, first = place.get(after, (None, 0))
            self._states.append((outer, after, source, -length if first else length - 1))

    def run(self, values: list[Any], record: None) -> None:
        body, pairs = self._body, self._turning.pairs
        for number, outer in self._given:
            body[number] = values[outer]
        for number, outer, first in self._slices:
            body[number] = values[outer][first, ...]
        for number, outer, first, spec in self._stored:
            if values[outer] is None:
                values[outer] = empty_tensor(spec)
            body[number] = values[outer][first, ...]
        for number, pair in pairs.items():
            body[number] = pair[0, ...]
        self._turning.native.run(body, self._length, None)
        for outer, after, source, last in self._states:
            state = pairs[after][1 - self._length % 2, ...] if source is None else values[source][last, ...]
            if values[outer] is None:
                values[outer] = state.copy()
            else:
                values[outer][...] = state
