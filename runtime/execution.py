"""Execution of programs: bind one to memory of its own, then run its steps any number of times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from .bound_program import attribute_sizes, bound_attributes
from .branch_inputs import BranchInputs
from .chain import Chain, can_be_chained
from .device import Segment, Worker, to_host
from .errors import ExecutionError, InputError
from .feeds import Shapes
from .groups import Group, GroupRun, Joined, NoRoom, NotJoined, Present, groups_of, whole_group
from .host_runs import Check, ControlRun, HostRun, detached, fits, new_maps, owned_values, where
from .iterations import Done, Grown, Iterations, NativeLoop, Repetition, keeps_types, native_loop_of, repetition_of
from .launches import RecordTime
from .linking import Parts, chain_of
from .loaded import Loaded
from .moves import Repeatable
from .program import (
    Arena,
    Constant,
    ControlStep,
    DeviceStep,
    Heap,
    HostStep,
    Literal,
    LoopStep,
    NativeStep,
    Program,
    ScanStep,
    SequenceMapStep,
    Sizes,
    Step,
    ValueSpec,
)
from .reads import bodies, read_by
from .sizes import known
from .sizing import Bound, Sizing

MOST_BOUNDS = 256
"""Most shapes for which the sizes of a body are remembered."""


class Execution:
    """A program bound to memory of a device; one run at a time.

    With symbols, which only workers that `resizes` support, `resize` is called before the first run.
    """

    def __init__(self, program: Program, loaded: Loaded, worker: Worker) -> None:
        self._program = program
        self._value: Callable[[int], ValueSpec] = program.values.__getitem__
        self._bound: Bound | None = None
        self._inputs = program.inputs
        self._memory = worker.memory(program)
        self._fixed = [self._fixed_value(value, loaded) for value in program.values]
        self._input_checks: list[Check | None] | None = None
        self._nested: dict[int, Execution | SizedExecutions] = {}
        self._repetitions: dict[int, Repetition | None] = {}
        self._sized_attrs: list[tuple[HostRun, Any]] = []
        self._steps = [self._bind(index, step, loaded, worker) for index, step in enumerate(program.steps)]
        self._groups = [
            GroupRun(self._steps[group.first : group.end], partial(self._join, group, worker))
            for group in groups_of(program)
        ]
        self._planned = self._with_groups()
        self._host_runs = [run for run in self._steps if isinstance(run, (HostRun, ControlRun))]
        only: object = self._steps[0] if len(self._steps) == 1 else None
        self._repeatable = only if isinstance(only, Repeatable) else None
        group = whole_group(program)
        self._whole = None if group is None else partial(self._join, group, worker)
        self._forget_iterations()
        self._viewed = _viewed(program) if program.symbols else ()
        self._outputs = outputs = program.outputs
        self._arena_outputs = [(number, isinstance(program.values[number].location, Arena)) for number in outputs]
        self._new_outputs = [
            (number, isinstance(program.values[number].location, Heap) and number not in outputs[:position])
            for position, number in enumerate(outputs)
        ]
        self._new_maps = new_maps(program)
        owned = owned_values(program)
        self._outputs_are_new = all(is_new and number in owned for number, is_new in self._new_outputs)
        self._chained = worker.resizes and can_be_chained(program)
        self._chain: Chain | None = None
        self._runs = 0  # since the sizes were last set

    def _bind(self, index: int, step: Step, loaded: Loaded, worker: Worker) -> Segment | HostRun | ControlRun:
        if isinstance(step, (NativeStep, DeviceStep)):
            return self._memory.bind(step, self._fixed)
        if isinstance(step, HostStep):
            attrs = loaded.attributes(dict(step.attrs))
            run = HostRun(self._program, step, loaded.host[step.op], self._memory)
            if self._program.symbols and next(attribute_sizes(step.attrs), None) is not None:
                self._sized_attrs.append((run, attrs))
            else:
                run.have(attrs)
            return run
        for body in bodies(step):
            self._nested[id(body)] = executions(body.program, loaded, worker)
        repetition = repetition_of(step) if isinstance(step, (LoopStep, ScanStep, SequenceMapStep)) else None
        self._repetitions[index] = repetition
        return ControlRun(self._program, step, self._nested, repetition, self._memory)

    def _with_groups(self) -> list[Segment | HostRun | ControlRun | GroupRun]:
        """Return the steps, those of each group as one."""
        planned: list[Segment | HostRun | ControlRun | GroupRun] = list(self._steps)
        for group, run in reversed([*zip(groups_of(self._program), self._groups)]):
            planned[group.first : group.end] = [run]
        return planned

    def _join(self, group: Group, worker: Worker) -> Joined | None:
        """Return a group of steps as one, at the present sizes."""

        def fixed(number: int) -> np.ndarray:
            value = self._value(number)
            array: np.ndarray = self._memory.fixed(value) if isinstance(value.location, Arena) else self._fixed[number]
            return array

        bound = self._bound
        if bound is None:
            return worker.join(group, Present(self._value, known, fixed, ()))
        return worker.join(group, Present(self._value, bound.of, fixed, bound.values))

    def _fixed_value(self, value: ValueSpec, loaded: Loaded) -> Any:
        """Return the value's array if it is the same in every run, else None."""
        match value.location:
            case Constant() | Literal():
                return loaded.constant(value)
            case Arena():
                return None if self._program.symbols else self._memory.fixed(value)
            case Sizes(values):
                return np.array(values, np.int64)
        return None

    def resize(self, bound: Bound) -> None:
        """Set the sizes of the following runs to those of `bound`."""
        if self._bound is not None and self._bound.values == bound.values:
            return
        self._bound = None  # in case memory runs out
        self._forget_iterations()
        self._chain, self._runs = None, 0
        for number in self._viewed:
            self._fixed[number] = None
        self._memory.resize(bound)
        self._value = bound.value
        for number in self._viewed:
            self._fixed[number] = self._memory.fixed(bound.value(number))
        for run, attrs in self._sized_attrs:
            run.have(bound_attributes(attrs, bound.of))
        for host_run in self._host_runs:
            host_run.results.resize(bound.value)
        for group in self._groups:
            group.resize()
        self._input_checks = None
        self._bound = bound

    def _forget_iterations(self) -> None:
        """Forget what was prepared for iterations at other sizes."""
        self._native_loop: NativeLoop | None = None
        self._joined: Joined | None = None
        self._may_iterate = self._repeatable is not None or self._whole is not None  # as far as is known

    def release(self, worker: Worker) -> None:
        """Release the memory. The execution, and those nested in it, run no more."""
        worker.release(self._memory)
        for nested in self._nested.values():
            nested.release(worker)

    def run(
        self, inputs: Sequence[Any], record: RecordTime | None = None, preset: Mapping[int, Any] | None = None
    ) -> list[Any]:
        """Run the steps on inputs that fit the program's types. Returns the outputs, which belong to the caller.

        `preset` gives arrays for heap values that kernels write. Raises `ExecutionError` when a step fails.
        """
        if self._chained and record is None and (chain := self._ready_chain(inputs)) is not None:
            values = self._begun(chain.values, inputs, preset)
            chain.run(values)
            return [values[number] for number in self._outputs]
        values = self._execute(inputs, record, preset)
        if self._outputs_are_new:
            return [values[number] for number in self._outputs]
        return self._own_outputs(values)

    def run_nested(
        self, inputs: Sequence[Any], record: RecordTime | None, step: HostStep | ControlStep, fit: bool = False
    ) -> list[Any]:
        """Run as the body of `step`. Outputs may be inputs or constants, which no step writes to; those in the arena,
        which the next run overwrites, are copied. `fit`: whether the inputs certainly have the program's types.
        """
        values = self._execute(inputs if fit else self._fitting(inputs, step), record, None)
        return [
            detached(values[number], self._memory) if in_arena else to_host(values[number])
            for number, in_arena in self._arena_outputs
        ]

    def _fitting(self, inputs: Sequence[Any], step: HostStep | ControlStep) -> list[Any]:
        """Return the inputs converted to the program's types. Raises `ExecutionError` where they do not fit."""
        if self._input_checks is None:
            self._input_checks = [
                None if position in self._apart else Check(self._value(number))
                for position, number in enumerate(self._inputs)
            ]
        return [
            item if check is None else check(item, step) for check, item in zip(self._input_checks, inputs, strict=True)
        ]

    def repeat(
        self, repetition: Repetition, iterations: Iterations, inputs: Sequence[Any], record: RecordTime | None,
        step: ControlStep,
    ) -> Done | None:  # fmt: skip
        """Run as the body of `step`, all iterations in native code; `inputs` are those of the first one. None where
        that cannot be done.
        """
        if self._whole is not None and record is not None:
            return None  # launches between which sizes are set have no times
        loop = self.native_loop(repetition, iterations)
        if loop is None:
            return None
        values = self._fixed.copy()
        for number, item in zip(self._inputs, self._fitting(inputs, step)):
            values[number] = item
        try:
            return loop.run(values, iterations, record)
        except NoRoom:
            self._native_loop = None
            self._may_iterate = self._joined is not None and not self._joined.exhausted
            return None

    def native_loop(self, repetition: Repetition, iterations: Iterations) -> NativeLoop | None:
        """Return the iterations of this program's only step at its present sizes; None where native code cannot run
        them.
        """
        if self._may_iterate and self._native_loop is None:
            repeatable = self._repeatable or self._whole_joined()
            self._native_loop = None if repeatable is None else self._native_loop_of(repetition, iterations, repeatable)
            self._may_iterate = self._native_loop is not None
            if self._native_loop is not None:
                self._native_loop.settle(self._inputs, len(self._fixed), self._value)
        return self._native_loop

    def _native_loop_of(
        self, repetition: Repetition, iterations: Iterations, repeatable: Repeatable
    ) -> NativeLoop | None:
        try:
            return native_loop_of(repetition, iterations, repeatable, self._value)
        except NotJoined:
            return None

    def _whole_joined(self) -> Joined | None:
        """Return all steps as one table of launches."""
        if self._joined is None and self._whole is not None:
            self._joined = self._whole()
        return self._joined

    def _ready_chain(self, inputs: Sequence[Any]) -> Chain | None:
        """Return the chain for the sizes of these inputs, built on the second run with them, if it can be."""
        self._runs += 1
        if self._runs == 2:
            self._chain = chain_of(self._parts, inputs)
        return self._chain

    def linkable(self, inputs: Sequence[Any], step: ControlStep) -> Parts | None:
        """Return this program's parts as the body of `step`; None where such inputs do not fit."""
        if not all(
            position in self._apart or fits(item, self._value(number).type)
            for position, (number, item) in enumerate(zip(self._inputs, inputs, strict=True))
        ):
            return None
        return self._parts

    @cached_property
    def _apart(self) -> frozenset[int]:
        """The inputs that only branches read, which check them."""
        return BranchInputs(self._program).positions

    @property
    def _parts(self) -> Parts:
        return Parts(self._program, self._steps, self._repetitions, self._nested, self._value, self._fixed)

    def _begun(self, known: Sequence[Any], inputs: Sequence[Any], preset: Mapping[int, Any] | None) -> list[Any]:
        """Return the values at the beginning of a run."""
        values = list(known)
        for number, array in zip(self._inputs, inputs):
            values[number] = array
        if preset:
            for number, array in preset.items():
                values[number] = array
        return values

    def _execute(self, inputs: Sequence[Any], record: RecordTime | None, preset: Mapping[int, Any] | None) -> list[Any]:
        """Run the steps and return all values."""
        values = self._begun(self._fixed, inputs, preset)
        for step in self._planned:
            step.run(values, record)
        return values

    def _own_outputs(self, values: list[Any]) -> list[Any]:
        """Return the outputs, each an array that nothing else refers to; those on a device are left as they are."""
        outputs: list[Any] = []
        shared = [array for number in self._inputs for array in _arrays(values[number])]
        for number, is_new in self._new_outputs:
            result = values[number]
            if is_new and number in self._new_maps:
                outputs.append(result)
                continue
            if not is_new or not _is_owned(result, shared):
                result = _copy(result)
            outputs.append(result)
            shared += _arrays(result)
        return outputs


class SizedExecutions:
    """Executions of a program with symbols, one for each of the most recently used values of these."""

    def __init__(self, program: Program, sizing: Sizing, loaded: Loaded, worker: Worker) -> None:
        self._program, self._sizing, self._loaded, self._worker = program, sizing, loaded, worker
        self._kept: dict[tuple[int, ...], Execution] = {}
        self._shapes: Shapes = ()
        self._last: Bound | None = None  # the one for inputs of these shapes
        self._fitted: Shapes | None = None  # shapes of inputs that had the program's types
        self._bounds: dict[Shapes, Bound] = {}
        self._growing: Grown | None = None
        self._is_grown = False  # whether that was asked for

    def of(self, bound: Bound) -> Execution:
        """Return the execution with the sizes of `bound`."""
        execution = self._kept.pop(bound.values, None)
        if execution is None:
            execution = self._another(bound)
        self._kept[bound.values] = execution  # the most recently used one
        return execution

    def _another(self, bound: Bound) -> Execution:
        """Return an execution for other sizes: the least recently used one if the limit is reached, else a new one."""
        worker, resizes = self._worker, self._worker.resizes
        full = len(self._kept) >= worker.most_kept
        execution = self._kept.pop(next(iter(self._kept))) if full else None
        if execution is not None and not resizes:
            execution.release(worker)
            execution = None
        if execution is None:
            execution = Execution(self._program if resizes else bound.program, self._loaded, worker)
        if resizes:
            try:
                execution.resize(bound)
            except BaseException:
                execution.release(worker)
                raise
        return execution

    def run_nested(self, inputs: Sequence[Any], record: RecordTime | None, step: HostStep | ControlStep) -> list[Any]:
        """Run as the body of `step`, as `Execution.run_nested` does. The values that a step gives to its body have the
        same data types in all runs, so that inputs of the same shapes as before fit if those did.
        """
        fitted, execution = self._fitted, self.of_inputs(inputs, step)
        fit = fitted is not None and fitted == self._shapes
        self._fitted = None
        results = execution.run_nested(inputs, record, step, fit)
        self._fitted = self._shapes
        return results

    def linkable(self, inputs: Sequence[Any], step: ControlStep) -> Parts | None:
        """Return the parts as `Execution.linkable` does."""
        try:
            return self.of_inputs(inputs, step).linkable(inputs, step)
        except ExecutionError:  # a run that gets here reports it
            return None

    def of_inputs(self, inputs: Sequence[Any], step: HostStep | ControlStep) -> Execution:
        """Return the execution, as the body of `step`, for the sizes of these inputs."""
        shapes = tuple(
            [value.shape if type(value) is np.ndarray else getattr(value, "shape", None) for value in inputs]
        )
        if shapes == self._shapes and self._last is not None:
            return self.of(self._last)
        try:
            self._shapes, self._last = shapes, self._bound_of(shapes, inputs)
            return self.of(self._last)
        except InputError as error:
            raise ExecutionError(f"{where(step)}: in its body, {error}") from error

    def _bound_of(self, shapes: Shapes, inputs: Sequence[Any]) -> Bound:
        """Return the sizes for inputs of these shapes; those of the last shapes are remembered."""
        bound = self._bounds.get(shapes)
        if bound is None:
            bound = self._sizing.bind_any(inputs, is_body=True)
            if len(self._bounds) >= MOST_BOUNDS:
                self._bounds.clear()
            self._bounds[shapes] = bound
        return bound

    def repeat(
        self, repetition: Repetition, iterations: Iterations, inputs: Sequence[Any], record: RecordTime | None,
        step: ControlStep,
    ) -> Done | None:  # fmt: skip
        """Run as the body of `step`, as `Execution.repeat` does, or where its states change their shapes."""
        if not self._worker.resizes:
            return None
        if not keeps_types(self._program, repetition):
            growing = self._grown(repetition)
            return None if growing is None or record is not None else growing(iterations, inputs)
        return self.of_inputs(inputs, step).repeat(repetition, iterations, inputs, record, step)

    def _grown(self, repetition: Repetition) -> Grown | None:
        """Return the iterations as the body of the only step that this is one of."""
        if not self._is_grown:
            self._is_grown, self._growing = True, self._worker.grown(self._program, repetition)
        return self._growing

    def release(self, worker: Worker) -> None:
        for execution in self._kept.values():
            execution.release(worker)
        self._kept.clear()


def executions(program: Program, loaded: Loaded, worker: Worker) -> Execution | SizedExecutions:
    """Return the execution of a program, or the executions of one with symbols."""
    sizing = loaded.sizing(program)
    if sizing is None:
        return Execution(program, loaded, worker)
    return SizedExecutions(program, sizing, loaded, worker)


def _viewed(program: Program) -> tuple[int, ...]:
    """Return the arena values that are read by others than kernels."""
    numbers: dict[int, None] = dict.fromkeys(program.outputs)
    for step in program.steps:
        if not isinstance(step, (NativeStep, DeviceStep)):
            numbers.update(dict.fromkeys(read_by(step)))
    return tuple(n for n in numbers if isinstance(program.values[n].location, Arena))


def _is_owned(result: Any, others: Sequence[np.ndarray]) -> bool:
    """Return whether an output made by a step can be handed out without a copy."""
    if not isinstance(result, np.ndarray):
        return result is None
    if not result.flags.writeable:
        return False
    for other in others:  # noqa: SIM110 (a generator takes twice as long)
        if np.may_share_memory(result, other):
            return False
    return True


def _arrays(value: Any) -> Sequence[np.ndarray]:
    """Return the host arrays that a value is or holds."""
    if isinstance(value, np.ndarray):
        return (value,)
    return [array for item in value for array in _arrays(item)] if isinstance(value, list) else ()


def _copy(value: Any) -> Any:
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value.copy() if isinstance(value, (np.ndarray, dict)) else value
