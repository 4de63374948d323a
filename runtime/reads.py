"""Values that steps read, themselves and in the programs nested in them."""

from __future__ import annotations

from .program import (
    ABSENT,
    Body,
    CallStep,
    ControlStep,
    HostStep,
    IfStep,
    LoopStep,
    ScanStep,
    SequenceMapStep,
    Step,
)


def bodies(step: Step) -> tuple[Body, ...]:
    """Return the nested programs of a step."""
    if isinstance(step, IfStep):
        return (step.then_body, step.else_body)
    return (step.body,) if isinstance(step, (CallStep, LoopStep, ScanStep, SequenceMapStep)) else ()


def operands(step: ControlStep) -> tuple[int, ...]:
    """Return the values that a control step reads itself, not counting its bodies."""
    match step:
        case IfStep():
            return (step.cond,)
        case CallStep():
            return ()
        case LoopStep():
            return (step.max_trip, step.cond, *step.carried)
        case ScanStep():
            return (*step.states, *step.scans)
        case SequenceMapStep():
            return (step.sequence, *step.others)


def read_by(step: HostStep | ControlStep) -> tuple[int, ...]:
    """Return the values that a host or control step reads, including those that its bodies capture."""
    numbers = list(step.inputs) if isinstance(step, HostStep) else list(operands(step))
    for body in bodies(step):
        numbers += body.captures
    return tuple(number for number in dict.fromkeys(numbers) if number != ABSENT)
