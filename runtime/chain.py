"""Programs that native code executes from end to end; of control steps it executes the iterations and branches. What is
the same in all runs with the same sizes is prepared once.

Intermediate results stay at the same addresses from run to run, since only the steps see them; outputs are new arrays.
So a run looks up the addresses of inputs and outputs only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from .hostmemory import empty_tensor, is_small
from .iterations import Repetition, is_native, repetition_of
from .program import CallStep, Heap, IfStep, LoopStep, NativeStep, Program, ScanStep, Step, ValueSpec
from .reads import bodies
from .types import TensorType

Spec = Callable[[int], ValueSpec]
"""Function from the number of a program's value to its description with numbers for its sizes."""


class Link(Protocol):
    def run(self, values: list[Any]) -> None: ...


class Chain:
    """The steps of a program and the values that its runs begin with. Small inputs and outputs are copied into and out
    of memory at fixed addresses.
    """

    def __init__(self, known: list[Any], inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.values = known  # None for inputs and outputs that are not copied
        self.links: list[Link] = []
        self._copied_in = [(number, known[number]) for number in inputs if known[number] is not None]
        self._copied_out = [(number, known[number]) for number in outputs if known[number] is not None]

    def run(self, values: list[Any]) -> None:
        """Execute the program on its values, of which the inputs are set; allocate the outputs that are not."""
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
    """Return whether a program with control steps can be a chain."""
    return any(not isinstance(step, NativeStep) for step in program.steps) and can_be_linked(program)


def can_be_linked(program: Program) -> bool:
    """Return whether kernels do all of the work, in iterations and branches too, and write all outputs."""
    outputs = [program.values[number] for number in program.outputs]
    if not all(isinstance(value.location, Heap) for value in outputs) or len(set(program.outputs)) < len(outputs):
        return False
    return all(map(_is_link, program.steps))


def _is_link(step: Step) -> bool:
    match step:
        case NativeStep():
            return True
        case ScanStep():
            along_first = not any(step.input_axes) and not any(step.output_axes) and min(step.outputs) >= 0
            return along_first and is_native(step.body.program) and _writes_its_states(repetition_of(step))
        case LoopStep():
            return is_native(step.body.program) and _writes_its_states(repetition_of(step))
        case IfStep() | CallStep():
            return min(step.outputs) >= 0 and all(can_be_linked(body.program) for body in bodies(step))
    return False


def _writes_its_states(repetition: Repetition | None) -> bool:
    return repetition is not None and all(before != after for before, after in repetition.states)


def memory_that_stays(program: Program, spec: Spec) -> dict[int, np.ndarray] | None:
    """Return arrays for small inputs and outputs and for intermediate values whose size is known; None where an
    intermediate's size is not.
    """
    ends = {*program.inputs, *program.outputs}
    inside = [
        number for number, value in enumerate(program.values) if isinstance(value.location, Heap) and number not in ends
    ]
    types = [spec(number).type for number in inside]
    if not all(isinstance(type_, TensorType) and type_.is_static for type_ in types):
        return None
    small = [number for number in ends - program.grown if is_small(spec(number))]
    return {number: empty_tensor(spec(number)) for number in (*inside, *small)}
