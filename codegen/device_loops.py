"""Iterations of scans and loops on a device as launches, where their number is known at compile time.

An iteration reads the states that the previous one has written, and its slices of the inputs; it writes states, and its
slices of the outputs. All iterations use the same kernels, so only addresses differ. The launches of all iterations
form one step without the host: nothing is copied, and the whole loop is part of one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tilestitch.compiler.ir.types import from_numpy_dtype
from tilestitch.passes.plan import ALIGNMENT
from tilestitch.runtime import program as rt
from tilestitch.runtime.iterations import Repetition, carried_by
from tilestitch.runtime.launch_check import ARGUMENT_ALIGNMENT

MOST_LAUNCHES = 1024
"""Most launches over all iterations of a loop. A graph has a node for each."""

MOST_EDGES = 256
"""Most edges from the last launches of a step to the first ones of the next, each of which waits for all of them.
Beyond it, one launch waits in their place.
"""

Constants = Callable[[rt.ValueSpec], "np.ndarray | None"]
"""Function that returns the data of a value, or None if it is not a constant."""

Keep = Callable[[str, np.ndarray], str]
"""Function that adds a tensor to the artifact and returns its name."""


def with_iterations_as_launches(program: rt.Program, constant: Constants, keep: Keep) -> rt.Program:
    """Return the program with scans and loops as launches, where their trip counts are known and kernels do all of the
    work, and with adjacent steps of launches merged.
    """
    if program.symbols or not any(isinstance(step, (rt.ScanStep, rt.LoopStep)) for step in program.steps):
        return program
    writer = _Writer(program, constant, keep)
    steps: list[rt.Step] = []
    for step in program.steps:
        made = writer.launches(step) if isinstance(step, (rt.ScanStep, rt.LoopStep)) else None
        steps.append(made or step)
    return replace(
        program, steps=tuple(_joined(steps)), values=tuple(writer.values), arena_bytes=writer.arena_bytes,
    )  # fmt: skip


def _joined(steps: Sequence[rt.Step]) -> Iterator[rt.Step]:
    """Yield the steps with adjacent device steps merged, the second part waiting for all of the first."""
    before: rt.DeviceStep | None = None
    for step in steps:
        if isinstance(step, rt.DeviceStep):
            before = step if before is None else _in_sequence([before, step])
            continue
        if before is not None:
            yield before
        before = None
        yield step
    if before is not None:
        yield before


def _in_sequence(steps: Sequence[rt.DeviceStep]) -> rt.DeviceStep:
    """Merge steps into one, in which each step's launches wait for all of the previous step's."""
    launches: list[rt.DeviceLaunch] = []
    edges: list[rt.Edge] = []
    ends: list[int] = []
    for step in steps:
        first, inner, count = len(launches), step.dependences, len(step.launches)
        begins = sorted(set(range(count)) - {edge.after for edge in inner})
        if len(ends) * len(begins) > MOST_EDGES:
            *others, last = ends
            edges += [rt.Edge(end, last) for end in others]
            ends = [last]
        edges += [rt.Edge(end, first + begin) for end in ends for begin in begins]
        edges += [replace(edge, before=first + edge.before, after=first + edge.after) for edge in inner]
        ends = sorted(first + n for n in set(range(count)) - {edge.before for edge in inner})
        launches += step.launches
    return rt.DeviceStep(tuple(launches), tuple(sorted(edges, key=lambda edge: (edge.after, edge.before))))


@dataclass(frozen=True)
class _Loop:
    """A scan or loop with a known trip count.

    `outputs`: of the step, those for the repetition's states, then those for its results. `backwards`: for its slices
    and results, whether the last comes first.
    """

    body: rt.Body
    repetition: Repetition
    trip_count: int
    states: tuple[int, ...]
    slices: tuple[int, ...]
    outputs: tuple[int, ...]
    backwards: tuple[bool, ...]

    @property
    def step(self) -> rt.DeviceStep:
        (step,) = self.body.program.steps
        assert isinstance(step, rt.DeviceStep)
        return step

    @property
    def repeats(self) -> bool:
        """Whether the last iteration runs twice, since a state is wanted in two places: with the slices of all
        iterations, and by itself.
        """
        wanted = {after for (_, after), output in zip(self.repetition.states, self.outputs) if output != rt.ABSENT}
        return not wanted.isdisjoint(self.repetition.results)


class _Writer:
    """Adds the values and arena memory that iterations need to a program."""

    def __init__(self, program: rt.Program, constant: Constants, keep: Keep) -> None:
        self.values = list(program.values)
        self.arena_bytes = program.arena_bytes
        self._constant, self._keep = constant, keep

    def launches(self, step: rt.ScanStep | rt.LoopStep) -> rt.DeviceStep | None:
        """Return the launches of all iterations; None where the loop is left to the host."""
        loop = self._loop(step)
        if loop is None or not self._fits(loop):
            return None
        places = _Places(self, loop)
        steps = [_with_places(loop.step, partial(places.of, iteration=number)) for number in range(loop.trip_count)]
        if loop.repeats:
            steps.append(_with_places(loop.step, places.at_the_end))
        return _in_sequence(steps)

    # -- which loops -------------------------------------------------------------------------------------------------

    def _loop(self, step: rt.ScanStep | rt.LoopStep) -> _Loop | None:
        body = step.body.program
        if body.symbols or len(body.steps) != 1 or not isinstance(body.steps[0], rt.DeviceStep):
            return None
        repetition = carried_by(step)
        if repetition is None or not self._goes_on(repetition, body):
            return None
        if isinstance(step, rt.LoopStep):
            count = self._trip_count(step)
            backwards: tuple[bool, ...] = (False,) * len(repetition.results)
            return _Loop(step.body, repetition, count, step.carried, (), step.outputs, backwards) if count else None
        if any(step.input_axes) or any(step.output_axes):
            return None
        lengths = {_first(self.values[number]) for number in step.scans}
        count = (lengths.pop() if len(lengths) == 1 else None) or 0
        backwards = tuple(map(bool, (*step.input_directions, *step.output_directions)))
        return _Loop(step.body, repetition, count, step.states, step.scans, step.outputs, backwards) if count else None

    def _goes_on(self, repetition: Repetition, body: rt.Program) -> bool:
        """Return whether the condition is true after every iteration."""
        if repetition.condition is None:
            return True
        data = self._constant(body.values[repetition.condition]) if repetition.fixed else None
        return data is not None and bool(data.all())

    def _trip_count(self, step: rt.LoopStep) -> int:
        """Return the trip count of a loop; 0 if it is unknown."""
        if step.max_trip == rt.ABSENT:
            return 0
        begins = None if step.cond == rt.ABSENT else self._constant(self.values[step.cond])
        if step.cond != rt.ABSENT and (begins is None or not begins.all()):
            return 0
        limit = self._constant(self.values[step.max_trip])
        return 0 if limit is None else max(0, int(limit.item()))

    def _fits(self, loop: _Loop) -> bool:
        """Return whether kernels can access all values in place, and the launches are not too many."""
        body, repetition = loop.body.program, loop.repetition
        if not 0 < (loop.trip_count + loop.repeats) * len(loop.step.launches) <= MOST_LAUNCHES:
            return False
        if not all(_is_static(value) for value in body.values):
            return False
        for (before, after), given, output in zip(repetition.states, loop.states, loop.outputs):
            copied = before == after and output != rt.ABSENT  # not written by a kernel
            if copied or body.values[before].type != body.values[after].type:
                return False
            if not _is_like(self.values[given], body.values[before]):
                return False
        captured = zip(body.inputs[len(body.inputs) - len(loop.body.captures) :], loop.body.captures)
        if not all(_is_like(self.values[outer], body.values[number]) for number, outer in captured):
            return False
        taken = {arg.value for launch in loop.step.launches for arg in launch.args}
        sliced = [number for number in (*repetition.slices, *repetition.results) if number in taken]
        return all(_nbytes(body.values[number]) % ARGUMENT_ALIGNMENT == 0 for number in sliced)

    # -- where things lie --------------------------------------------------------------------------------------------

    def add(self, spec: rt.ValueSpec) -> int:
        self.values.append(spec)
        return len(self.values) - 1

    def scratch(self, value: rt.ValueSpec) -> int:
        """Allocate memory for a value of a body."""
        assert isinstance(self.arena_bytes, int)
        nbytes = _nbytes(value)
        place = rt.Arena(self.arena_bytes, nbytes)
        self.arena_bytes += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return self.add(replace(value, location=place))

    def arena(self, program: rt.Program) -> int:
        """Allocate the arena of a body and return its offset."""
        assert isinstance(self.arena_bytes, int) and isinstance(program.arena_bytes, int)
        start = self.arena_bytes
        self.arena_bytes += -(-program.arena_bytes // ALIGNMENT) * ALIGNMENT
        return start

    def constant(self, name: str, data: np.ndarray) -> int:
        type_ = rt.TensorType(from_numpy_dtype(data.dtype), data.shape)
        return self.add(rt.ValueSpec(name, type_, rt.Constant(self._keep(name, data))))


class _Places:
    """Locations of a body's values in each iteration: numbers of the program's values, and byte offsets."""

    def __init__(self, writer: _Writer, loop: _Loop) -> None:
        self._writer, self._loop = writer, loop
        body, repetition = loop.body.program, loop.repetition
        self._body = body
        self._arena = writer.arena(body)
        self._same: dict[int, int] = dict(zip(body.inputs[len(body.inputs) - len(loop.body.captures) :],
                                              loop.body.captures))  # fmt: skip
        outer = (*loop.slices, *loop.outputs[len(repetition.states) :])
        self._sliced = {
            number: (whole, flag)
            for number, whole, flag in zip((*repetition.slices, *repetition.results), outer, loop.backwards)
            if whole != rt.ABSENT
        }
        self._states = {before: (after, given) for (before, after), given in zip(repetition.states, loop.states)}
        self._outputs = {after: output for (_, after), output in zip(repetition.states, loop.outputs)}
        self._spare: dict[int, tuple[int, int]] = {}

    def of(self, number: int, iteration: int) -> tuple[int, int]:
        """Return the location of a body's value in an iteration."""
        if number in self._states:
            after, given = self._states[number]
            if iteration == 0 or after == number:
                return given, 0
            return self.of(after, iteration - 1)
        if number in self._sliced:
            whole, flag = self._sliced[number]
            at = self._loop.trip_count - 1 - iteration if flag else iteration
            return whole, at * _nbytes(self._body.values[number])
        if number in self._outputs:
            return self._state(number, iteration), 0
        if number in self._loop.repetition.leading:
            return self._leading(number, iteration)
        if isinstance(self._body.values[number].location, rt.Counters):
            return self._writer.add(self._body.values[number]), 0  # each launch has its own
        if number not in self._same:
            self._same[number] = self._added(self._body.values[number])
        return self._same[number], 0

    def at_the_end(self, number: int) -> tuple[int, int]:
        """Return the location as `of` does for the last iteration, but with states where they are wanted by
        themselves.
        """
        output = self._outputs.get(number, rt.ABSENT)
        return (output, 0) if output != rt.ABSENT else self.of(number, self._loop.trip_count - 1)

    def _state(self, after: int, iteration: int) -> int:
        """Return the location of the state that an iteration writes: two alternating ones, such that the last write is
        to the final one.
        """
        if after not in self._spare:
            value, output = self._body.values[after], self._outputs[after]
            last = self._writer.scratch(value) if output == rt.ABSENT else output
            self._spare[after] = last, self._writer.scratch(value) if self._loop.trip_count > 1 else last
        return self._spare[after][(self._loop.trip_count - 1 - iteration) % 2]

    def _leading(self, number: int, iteration: int) -> tuple[int, int]:
        """Return the location of the iteration number, or of the condition, which is true."""
        counter = self._loop.repetition.leading[0]
        if number not in self._same:
            numbers = np.zeros((self._loop.trip_count, ARGUMENT_ALIGNMENT // 8), np.int64)
            numbers[:, 0] = np.arange(self._loop.trip_count)
            self._same[number] = (
                self._writer.constant("iterations", numbers)
                if number == counter
                else self._writer.constant("true", np.ones(1, np.bool_))
            )
        return self._same[number], iteration * ARGUMENT_ALIGNMENT if number == counter else 0

    def _added(self, value: rt.ValueSpec) -> int:
        """Add a body's value to the program's, the same in all iterations."""
        match value.location:
            case rt.Arena(offset_bytes, nbytes):
                assert isinstance(offset_bytes, int)
                return self._writer.add(replace(value, location=rt.Arena(self._arena + offset_bytes, nbytes)))
            case rt.Heap():
                return self._writer.scratch(value)
        return self._writer.add(value)


def _with_places(step: rt.DeviceStep, place: Callable[[int], tuple[int, int]]) -> rt.DeviceStep:
    """Return the launches of an iteration with their values' locations."""
    found: dict[int, tuple[int, int]] = {}

    def placed(arg: rt.Arg) -> rt.Arg:
        if arg.value not in found:
            found[arg.value] = place(arg.value)
        number, start = found[arg.value]
        assert isinstance(arg.offset_bytes, int)
        return replace(arg, value=number, offset_bytes=start + arg.offset_bytes)

    launches = tuple(replace(launch, args=tuple(map(placed, launch.args))) for launch in step.launches)
    return rt.DeviceStep(launches, step.dependences)


def _first(value: rt.ValueSpec) -> int | None:
    """Return the size of the first axis, where the shape is known."""
    shape = value.type.static_shape if isinstance(value.type, rt.TensorType) else None
    return shape[0] if shape else None


def _is_static(value: rt.ValueSpec) -> bool:
    return isinstance(value.type, rt.TensorType) and value.type.is_static


def _is_like(outer: rt.ValueSpec, inner: rt.ValueSpec) -> bool:
    """Return whether kernels for one value can read the other."""
    return _is_static(outer) and outer.dtype == inner.dtype and _nbytes(outer) == _nbytes(inner)


def _nbytes(value: rt.ValueSpec) -> int:
    assert isinstance(value.type, rt.TensorType)
    return value.type.nbytes
