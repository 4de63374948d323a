"""Host steps bound to a program: what is the same in every run is computed once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from . import control
from .device import Memory, to_host
from .dtypes import dtype_name, memory_dtype
from .errors import ExecutionError
from .iterations import Done, Iterations, Repetition
from .launches import RecordTime
from .loaded import HostFunction, prepared
from .program import (
    ABSENT,
    Arena,
    Body,
    CallStep,
    ControlStep,
    DeviceStep,
    Heap,
    HostStep,
    IfStep,
    Input,
    NativeStep,
    Program,
    ValueSpec,
)
from .reads import read_by
from .types import TensorType, ValueType, holds_arrays

_STEP_FAULTS = (
    ValueError, TypeError, LookupError, ArithmeticError, MemoryError, AttributeError, AssertionError, RuntimeError,
)  # fmt: skip
"""Exceptions of host operators whose operands are not what ONNX prescribes, as in a forged program."""

_ARRAYS = frozenset({np.ndarray})

HOST_PREFIX = "host."
"""Prefix of the symbols of host steps in profiles; a kernel's symbol has no dot."""

Spec = Callable[[int], ValueSpec]
"""Function from the number of a program's value to its description with numbers for its sizes."""


class Nested(Protocol):
    """Executor of a control step's body."""

    def run_nested(self, inputs: Sequence[Any], record: RecordTime | None, step: HostStep | ControlStep) -> list[Any]:
        """Run the body once."""

    def repeat(
        self, repetition: Repetition, iterations: Iterations, inputs: Sequence[Any], record: RecordTime | None,
        step: ControlStep,
    ) -> Done | None:  # fmt: skip
        """Run the iterations in native code, `inputs` being those of the first; None where that cannot be done."""


class HostRun:
    """A host step: a numpy function on the values that it reads."""

    def __init__(self, program: Program, step: HostStep, function: HostFunction, memory: Memory) -> None:
        self._step, self._function, self._numbers = step, function, step.inputs
        self._attrs: Mapping[str, Any] = {}
        self.results = Stored(program, step, memory)

    def have(self, attrs: Mapping[str, Any]) -> None:
        """Set the attributes; again for other sizes, where some are sizes."""
        self._attrs = prepared(self._step.op, attrs)

    def run(self, values: list[Any], record: RecordTime | None) -> None:
        start = time.perf_counter_ns() if record is not None else 0
        operands = [
            None if number == ABSENT
            else value if type(value := values[number]) is np.ndarray
            else to_host(value)
            for number in self._numbers
        ]  # fmt: skip
        try:
            results = self._function(operands, self._attrs)
        except ExecutionError as error:
            raise ExecutionError(f"{where(self._step)}: {error}") from error
        except _STEP_FAULTS as error:
            raise fault(self._step, error) from error
        self.results.store(results, values)
        if record is not None:
            duration_us = (time.perf_counter_ns() - start) / 1000
            record(f"{HOST_PREFIX}{self._step.op}", self._step.origins, duration_us, 0)


class ControlRun:
    """A control step. `nested`: the executor of each of its bodies, by their ids."""

    def __init__(
        self, program: Program, step: ControlStep, nested: Mapping[int, Nested], repetition: Repetition | None,
        memory: Memory,
    ) -> None:  # fmt: skip
        self._step, self._nested, self._repetition = step, nested, repetition
        self.results = Stored(program, step, memory)

    def run(self, values: list[Any], record: RecordTime | None) -> None:
        step = self._step

        def get(number: int) -> Any:
            if number == ABSENT:
                return None
            value = values[number]
            return value if type(value) is np.ndarray else to_host(value)

        def bind(body: Body) -> BoundBody:
            captured = [get(number) for number in body.captures]
            return BoundBody(self._nested[id(body)], captured, self._repetition, record, step)

        try:
            if isinstance(step, (CallStep, IfStep)):  # nothing to prepare for iterations
                body = step.body if isinstance(step, CallStep) else control.taken(step, get)
                captured = [get(number) for number in body.captures]
                results = self._nested[id(body)].run_nested(captured, record, step)
            else:
                results = control.run(step, get, bind, lambda number: self.results.spec(number).type)
        except ExecutionError:
            raise
        except _STEP_FAULTS as error:
            raise fault(step, error) from error
        self.results.store(results, values)


class BoundBody:
    """A body of a control step in one run."""

    __slots__ = ("_captured", "_nested", "_record", "_repetition", "_step")

    def __init__(
        self, nested: Nested, captured: Sequence[Any], repetition: Repetition | None, record: RecordTime | None,
        step: ControlStep,
    ) -> None:  # fmt: skip
        self._nested, self._captured, self._repetition = nested, captured, repetition
        self._record, self._step = record, step

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        return self._nested.run_nested([*inputs, *self._captured], self._record, self._step)

    def repeat(self, iterations: Iterations) -> Done | None:
        if self._repetition is None:
            return None
        inputs = [*iterations.formal, *self._captured]
        return self._nested.repeat(self._repetition, iterations, inputs, self._record, self._step)


class Stored:
    """Stores a step's results among a program's values after checking their types; never in the arena, which is
    overwritten.
    """

    def __init__(self, program: Program, step: HostStep | ControlStep, memory: Memory) -> None:
        self._step, self._memory = step, memory
        self._sequences = [n for n in read_by(step) if not isinstance(program.values[n].type, TensorType)]
        self._detaches = _may_lie_in_arena(program, step, memory.on_host) and any(
            number != ABSENT and holds_arrays(program.values[number].type) for number in step.outputs
        )
        self.resize(program.values.__getitem__)

    def resize(self, spec: Spec) -> None:
        """Set other sizes; `spec` describes the values from now on."""
        self.spec = spec
        self._checks: list[Check | None] | None = None
        self._only: Check | None = None  # of a step with one result, which need not be detached

    def store(self, results: Sequence[Any], values: list[Any]) -> None:
        if self._only is not None and len(results) == 1:
            values[self._step.outputs[0]] = self._only(results[0], self._step)
            return
        outputs = self._step.outputs
        if len(results) < len(outputs):
            raise ExecutionError(
                f"{where(self._step)}: {len(results)} results instead of {len(outputs)}; report this as a bug"
            )
        if self._checks is None:
            self._checks = [None if number == ABSENT else Check(self.spec(number)) for number in outputs]
            if len(outputs) == 1 and not self._detaches:
                (self._only,) = self._checks
        apart = self._items_apart(values) if self._detaches else frozenset[int]()
        for number, check, result in zip(outputs, self._checks, results):  # a host operator may give more than is used
            if check is not None:
                result = check(result, self._step)
                values[number] = detached(result, self._memory, apart) if self._detaches else result

    def _items_apart(self, values: Sequence[Any]) -> frozenset[int] | set[int]:
        """Return the identities of the arrays in sequences that the step read: these do not lie in the arena, as they
        were stored here or come from elsewhere.
        """
        found = set[int]()
        for number in self._sequences:
            items = values[number]
            if isinstance(items, list) and _ARRAYS.issuperset(map(type, items)):
                found.update(map(id, items))
        return found


class Check:
    """Check that an array has a value's type."""

    __slots__ = ("_dtype", "_known", "_rank", "_shape", "_value")

    def __init__(self, value: ValueSpec) -> None:
        self._value = value
        type_ = value.type if isinstance(value.type, TensorType) else None
        sizes = type_.shape if type_ is not None else None
        self._dtype = None if type_ is None else memory_dtype(type_.dtype)
        self._shape = None if type_ is None else type_.static_shape
        self._rank = -1 if sizes is None else len(sizes)
        self._known = [(axis, size) for axis, size in enumerate(sizes or ()) if not isinstance(size, str)]

    def __call__(self, result: Any, step: HostStep | ControlStep) -> Any:
        """Return the result if it has the type; raises `ExecutionError` otherwise."""
        if type(result) is np.ndarray and result.dtype == self._dtype:
            shape = result.shape
            if shape == self._shape or self._has_shape(shape):
                return result
        return typed(self._value, result, step)

    def _has_shape(self, shape: tuple[int, ...]) -> bool:
        if len(shape) != self._rank:
            return self._rank < 0
        for axis, size in self._known:  # noqa: SIM110 (a generator takes twice as long)
            if shape[axis] != size:
                return False
        return True


def typed(value: ValueSpec, result: Any, step: HostStep | ControlStep) -> Any:
    """Return the result, as the program's type requires; raises `ExecutionError` otherwise."""
    if not isinstance(value.type, TensorType):
        return result
    if not isinstance(result, np.ndarray):
        result = to_host(result)
        if result is None or isinstance(result, list):
            kind = "nothing" if result is None else "a sequence"
            raise ExecutionError(f"{where(step)}: value {value.name!r} came out as {kind}, not {value.type}; "
                                 "if the model's inputs are as they should be, report this as a bug")  # fmt: skip
        result = np.asarray(result)
    if not fits(result, value.type):
        raise ExecutionError(
            f"{where(step)}: value {value.name!r} came out as {result.dtype}{list(result.shape)}, the program "
            f"needs {value.type}, as sizes that meet in an operator are taken to be equal; give inputs for which they "
            "are, or report this as a bug"
        )
    return result


def detached(value: Any, memory: Memory, apart: frozenset[int] | set[int] = frozenset()) -> Any:
    """Return the value on the host, with every array that the next run would overwrite replaced by a copy. `apart`:
    identities of items of sequences that certainly are not.
    """
    value = to_host(value)
    if isinstance(value, list):
        return [item if id(item) in apart else detached(item, memory) for item in value]
    if isinstance(value, np.ndarray) and memory.overlaps(value):
        return value.copy()
    return value


def fault(step: HostStep | ControlStep, error: Exception) -> ExecutionError:
    """Return the exception for an operator that failed without a message of its own."""
    problem = f"{type(error).__name__}: {error}"
    return ExecutionError(f"{where(step)} failed ({problem}); check the values of the model's inputs")


def where(step: HostStep | ControlStep) -> str:
    kind = step.op if isinstance(step, HostStep) else type(step).__name__.removesuffix("Step")
    return f"ONNX node {', '.join(step.origins) or '?'} ({kind})"


def _may_lie_in_arena(program: Program, step: HostStep | ControlStep, on_host: bool) -> bool:
    """Return whether results may lie in the arena: a result can be an operand or a view of one. Sequences from users
    may hold arrays on a device.
    """
    if isinstance(step, HostStep) and not may_alias(step):
        return False
    return any(
        isinstance(value.location, Arena)
        or (not on_host and isinstance(value.location, Input) and not isinstance(value.type, TensorType))
        for value in map(program.values.__getitem__, read_by(step))
    )


def may_alias(step: HostStep) -> bool:
    """Return whether results may share memory with operands."""
    from .host import ALIASING

    return step.op in ALIASING


def owned_values(program: Program) -> frozenset[int]:
    """Return values that a run makes anew, so that nothing else refers to their memory."""
    owned: set[int] = set()
    others = [step for step in program.steps if not isinstance(step, (NativeStep, DeviceStep))]
    given = {number for step in others for number in step.outputs}
    for step in program.steps:
        match step:
            case NativeStep(launches) | DeviceStep(launches):
                touched = {arg.value for launch in launches for arg in launch.args} - given
                owned |= {n for n in touched if isinstance(program.values[n].location, Heap)}
            case HostStep() if not may_alias(step):
                owned |= {n for n in step.outputs if n != ABSENT and isinstance(program.values[n].type, TensorType)}
            case CallStep(body, outputs):
                owned |= _owned_results(body, outputs)
            case IfStep():
                owned |= _owned_results(step.then_body, step.outputs) & _owned_results(step.else_body, step.outputs)
    return frozenset(owned)


def _owned_results(body: Body, outputs: Sequence[int]) -> set[int]:
    """Return the results of a body's step that a run of the body makes anew."""
    owned, inner = owned_values(body.program), body.program.outputs
    return {outer for outer, n in zip(outputs, inner) if n in owned and inner.count(n) == 1}


def new_maps(program: Program) -> frozenset[int]:
    """Return values without arrays that host steps make from tensors alone: nothing else refers to their contents."""
    values = program.values
    return frozenset(
        made
        for step in program.steps
        if isinstance(step, HostStep) and all(isinstance(values[n].type, TensorType) for n in read_by(step))
        for made in step.outputs
        if made != ABSENT and not holds_arrays(values[made].type)
    )


def fits(array: np.ndarray, type_: ValueType) -> bool:
    """Return whether an array has a tensor type."""
    if not isinstance(type_, TensorType):
        return False
    if dtype_name(array.dtype) != type_.dtype:
        return False
    if type_.shape is None or array.shape == type_.shape:
        return True
    pairs = zip(array.shape, type_.shape)
    return array.ndim == len(type_.shape) and all(isinstance(size, str) or size == actual for actual, size in pairs)
