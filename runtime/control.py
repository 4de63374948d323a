"""Control steps: If, Loop, Scan and SequenceMap, as the ONNX standard defines them, and calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np

from .errors import ExecutionError
from .iterations import MOST_ITERATIONS, Done, Iterations
from .program import (
    ABSENT,
    Body,
    CallStep,
    ControlStep,
    IfStep,
    LoopStep,
    ScanStep,
    SequenceMapStep,
    TensorType,
    ValueType,
)


class RunBody(Protocol):
    """A nested program as a function of its formal inputs; the captured values are added."""

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run it once."""

    def repeat(self, iterations: Iterations) -> Done | None:
        """Run the iterations in native code; None where that cannot be done."""


Get = Callable[[int], Any]
"""Function from a value's number to the value, None for an absent one."""

Bind = Callable[[Body], RunBody]


TypeOf = Callable[[int], ValueType]
"""Function from a value's number to its type, with numbers for the sizes that are known before it is computed."""


def run(step: ControlStep, get: Get, bind: Bind, type_of: TypeOf) -> list[Any]:
    """Run a control step and return its outputs. Raises `ExecutionError` for operands that do not fit."""
    match step:
        case IfStep():
            return bind(taken(step, get))([])
        case CallStep():
            return bind(step.body)([])
        case LoopStep():
            return _run_loop(step, get, bind(step.body), type_of)
        case ScanStep():
            return _run_scan(step, get, bind(step.body), type_of)
        case SequenceMapStep():
            return _run_sequence_map(step, get, bind(step.body))


def taken(step: IfStep, get: Get) -> Body:
    """Return the branch that the condition chooses."""
    return step.then_body if truth(get(step.cond), step) else step.else_body


def _run_loop(step: LoopStep, get: Get, body: RunBody, type_of: TypeOf) -> list[Any]:
    limit, going = bounds(step, get)
    carried = [get(number) for number in step.carried]
    scans = step.outputs[len(carried) :]
    collected: list[list[np.ndarray]] = [[] for _ in scans]  # one per iteration, along the first axis
    trip, native = 0, True
    while going and (limit is None or trip < limit):
        most = MOST_ITERATIONS if limit is None else min(MOST_ITERATIONS, limit - trip)
        first, done = leading(step.body, trip), None
        if native:
            done = body.repeat(Iterations(most, carried, results_backwards=(False,) * len(collected), leading=first))
            native = done is not None
        if done is not None:
            carried, going, trip = done.states, done.going, trip + done.count
            for parts, slices in zip(collected, done.results):
                parts.append(slices)
            continue
        going_now, *results = body([*first, *carried])
        carried = results[: len(carried)]
        for parts, part in zip(collected, results[len(carried) :]):
            parts.append(np.asarray(part)[np.newaxis])
        going = truth(going_now, step)
        trip += 1
    return carried + [
        _joined(parts) if parts else empty_scan(step, number, 0, type_of) for parts, number in zip(collected, scans)
    ]


def bounds(step: LoopStep, get: Get) -> tuple[int | None, bool]:
    """Return the most iterations of a loop (None for no limit) and whether it begins."""
    max_trip, condition = (None if number == ABSENT else get(number) for number in (step.max_trip, step.cond))
    limit = None if max_trip is None else int(np.asarray(max_trip).item())
    return limit, condition is None or truth(condition, step)


def leading(body: Body, trip: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what a loop passes to its body before all else: the iteration number and a condition, which is true."""
    number, condition = body.leading_shapes
    return np.array(trip, np.int64, ndmin=len(number)), _true(condition)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Return the parts concatenated, as an array that owns its memory and holds no more than it needs."""
    alone = len(parts) == 1 and parts[0].base is None
    return parts[0] if alone else np.concatenate(parts)


@cache
def _true(shape: tuple[int, ...]) -> np.ndarray:
    """Return the condition that a continuing loop passes to its body."""
    true = np.ones(shape, np.bool_)
    true.flags.writeable = False
    return true


def _run_scan(step: ScanStep, get: Get, body: RunBody, type_of: TypeOf) -> list[Any]:
    states = [get(number) for number in step.states]
    slices = [
        _moved(_array_with_axis(get(number), axis, step), axis, 0) for number, axis in zip(step.scans, step.input_axes)
    ]
    lengths = {len(part) for part in slices}
    if len(lengths) != 1:
        raise ExecutionError(
            f"{_name(step)}: the scan inputs have different lengths {sorted(lengths)}; give equal ones"
        )
    length = lengths.pop()
    collected: Sequence[Any]
    slices = [part if part.flags.c_contiguous and part.flags.aligned else np.array(part, order="C") for part in slices]
    if length and (
        done := body.repeat(Iterations(length, states, slices, step.input_directions, step.output_directions))
    ):
        states, collected = done.states, done.results
    else:
        states, collected = _iterate(step, body, states, slices, length)
    outputs = []
    for parts, number, axis in zip(collected, step.outputs[len(states) :], step.output_axes):
        stacked = _stacked(parts) if length else empty_scan(step, number, axis, type_of)
        outputs.append(np.ascontiguousarray(_moved(_array_with_axis(stacked, axis, step), 0, axis)))
    return states + outputs


def _iterate(
    step: ScanStep, body: RunBody, states: list[Any], slices: Sequence[np.ndarray], length: int
) -> tuple[list[Any], list[list[Any]]]:
    """Return the final states and the slices of outputs after all iterations."""
    collected: list[list[Any]] = [[] for _ in step.output_axes]
    ordered = [part[::-1] if flag else part for part, flag in zip(slices, step.input_directions)]
    for trip in range(length):
        results = body([*states, *(np.array(part[trip], order="C") for part in ordered)])
        states = results[: len(states)]
        for parts, part in zip(collected, results[len(states) :]):
            parts.append(part)
    return states, [parts[::-1] if flag else parts for parts, flag in zip(collected, step.output_directions)]


def _run_sequence_map(step: SequenceMapStep, get: Get, body: RunBody) -> list[Any]:
    sequence, others = get(step.sequence), [get(number) for number in step.others]
    if not isinstance(sequence, list):
        raise ExecutionError(f"{_name(step)}: the first input is no sequence; give a list of arrays")
    short = [len(other) for other in others if isinstance(other, list) and len(other) != len(sequence)]
    if short:
        raise ExecutionError(
            f"{_name(step)}: sequences of {len(sequence)} and {short[0]} items; give equally long ones"
        )
    done = _mapped(step, body, [sequence, *others])
    if done is not None:
        return [list(items) for items in done.results]
    results: list[list[Any]] = [[] for _ in step.outputs]
    for index, item in enumerate(sequence):
        made = body([item, *(other[index] if isinstance(other, list) else other for other in others)])
        for collected, value in zip(results, made):
            collected.append(value)
    return list(results)


LEAST_MAPPED = 4
"""Fewest items that a native call is prepared for."""


def _mapped(step: SequenceMapStep, body: RunBody, sequences: Sequence[Any]) -> Done | None:
    """Run the body once for the items of each place, in native code; None where that cannot be done: items of a
    sequence must have one shape.
    """
    if len(sequences[0]) < LEAST_MAPPED or not all(isinstance(items, list) for items in sequences):
        return None
    for items in sequences:
        first = items[0]
        if not isinstance(first, np.ndarray) or first.dtype.hasobject:
            return None
        if any(type(item) is not np.ndarray or item.shape != first.shape for item in items):
            return None
    stacks = [np.array(items) for items in sequences]
    results_backwards = (0,) * len(step.body.program.outputs)
    return body.repeat(Iterations(len(sequences[0]), (), stacks, (0,) * len(stacks), results_backwards))


def truth(value: Any, step: ControlStep) -> bool:
    array = value if type(value) is np.ndarray else np.asarray(value)
    if array.size != 1:
        raise ExecutionError(f"{_name(step)}: the condition has shape {list(array.shape)}, not one element")
    return bool(array.item())


def _stacked(parts: Any) -> np.ndarray:
    return parts if isinstance(parts, np.ndarray) else np.stack(parts)


def _moved(array: np.ndarray, axis: int, to: int) -> np.ndarray:
    return array if axis == to else np.moveaxis(array, axis, to)


def _array_with_axis(value: Any, axis: int, step: ControlStep) -> np.ndarray:
    if not isinstance(value, np.ndarray) or axis >= value.ndim:
        raise ExecutionError(f"{_name(step)}: a scan along axis {axis} of a value without this axis")
    return value


def empty_scan(step: LoopStep | ScanStep, number: int, axis: int, type_of: TypeOf) -> np.ndarray:
    """Return a scan output of zero iterations, `axis` moved to the front: length 0, unknown sizes taken as 0."""
    from .dtypes import numpy_dtype

    if number == ABSENT:
        return np.empty(0, np.float32)
    type_ = type_of(number)
    if not isinstance(type_, TensorType):
        raise ExecutionError(f"{_name(step)}: a scan output that is no tensor; report this as a bug")
    sizes = [size if isinstance(size, int) else 0 for size in type_.shape or ()]
    return np.empty((0, *sizes[:axis], *sizes[axis + 1 :]), numpy_dtype(type_.dtype))


def _name(step: ControlStep) -> str:
    return f"ONNX node {', '.join(step.origins) or type(step).__name__}"
