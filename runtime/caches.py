"""Caches that grow in place in the caller's memory, for artifacts compiled with that option.

A cache lies in a buffer with room for more rows, where a run stores its new ones. It returns a view of the buffer with
these: the next run's input, from which the capacity is known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from .device import CacheMemory, OnDevice, Worker
from .dtypes import dtype_name
from .errors import InputError
from .feeds import MOST_SHAPES, without_gradient
from .program import Cache, Program, ValueSpec
from .sizes import value_of
from .sizing import Bound
from .solver import Solver
from .types import with_size

GROWTH = 2
"""Factor by which a full buffer grows."""
LEAST_ROOM = 16


class Caches:
    """The caches of a model. `donated`: patterns of the names of inputs whose memory may be written to."""

    def __init__(
        self, programs: Sequence[Program], names: Sequence[str], donated: Sequence[str], memory: CacheMemory
    ) -> None:
        self._memory, self._names = memory, names
        self._known = [_Known(program) for program in programs]
        self._inputs = {cache.input: cache for cache in programs[0].caches}
        self._outputs = {cache.output: cache.input for cache in programs[0].caches}
        for pattern in donated:
            if not any(fnmatchcase(name, pattern) for name in self._inputs):
                known = ", ".join(self._inputs) or "none"
                raise InputError(
                    f"donate: no cache is named {pattern!r}; there are {known}. Compile with --donate {pattern!r}"
                )
        self._donated = {name for name in self._inputs if any(fnmatchcase(name, pattern) for pattern in donated)}
        self._others = [name for name in names if name not in self._inputs]
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._apart: Mapping[str, tuple[int, int]] = {}  # known to be

    def __bool__(self) -> bool:
        return bool(self._inputs)

    def lent(self, feeds: Mapping[str, Any], out: Mapping[str, Any] | None, stream: Any = None) -> Lent:
        """Return what a run in `stream` gets in place of the caches; those that `out` names, as the arrays that are
        inputs, are donated. Raises `InputError`.
        """
        kept = {name: out[name] for name in self._outputs if name in out} if out else {}
        for output, array in kept.items():
            if array is not feeds.get(self._outputs[output]):
                raise InputError(
                    f"out: {output!r} is a cache, which lies where its rows were; leave it out, or give the array that "
                    f"is input {self._outputs[output]!r}"
                )
        donated = self._donated.union([self._outputs[name] for name in kept])
        arrays = {name: self._array(name, feeds, stream) for name in self._inputs}
        others = {name: value for name, value in feeds.items() if name not in arrays}
        rooms = {n: self._memory.room(arrays[n], cache.axis) for n, cache in self._inputs.items() if n in donated}
        ranges = {name: self._memory.place(room) for name, room in rooms.items() if room is not None}
        lent = Lent(others, kept, arrays, rooms, ranges, self._memory)
        lent.have(self._planned(lent))
        return lent

    def _array(self, name: str, feeds: Mapping[str, Any], stream: Any) -> Any:
        if name not in feeds:
            raise InputError(f"input {name!r} is missing; inputs are {', '.join(self._names)}")
        wanted = self._inputs[name].type
        array = self._memory.given(name, without_gradient(feeds[name]), wanted.dtype, stream)
        if dtype_name(array.dtype) != wanted.dtype or array.ndim != len(wanted.shape or ()):
            raise InputError(f"input {name!r} must be {wanted}, not {array.dtype}{list(array.shape)}")
        return array

    def _planned(self, lent: Lent) -> Plan:
        """Return the plan for these inputs, which is remembered for their shapes unless buffers overlap."""
        if lent.ranges != self._apart:
            if not _are_apart(lent.ranges.values()):
                return self._plan(lent, lent.ranges)
            self._apart = lent.ranges
        key = (
            len(lent.feeds), *[_shape(lent.feeds.get(name)) for name in self._others],
            *[array.shape for array in lent.arrays.values()], *lent.rooms,
            *[getattr(room, "shape", None) for room in lent.rooms.values()],
        )  # fmt: skip
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= MOST_SHAPES:
                self._plans.clear()
            plan = self._plans[key] = self._plan(lent, {})
        return plan

    def _plan(self, lent: Lent, ranges: Mapping[str, tuple[int, int]]) -> Plan:
        """Return where each cache is to lie. Caches whose length one input tells share one capacity. `ranges`: of
        buffers that may overlap.
        """
        lengths: dict[str, int] = {}  # by the name of the input that tells the caches' sizes
        for cache in self._inputs.values():
            length = lent.arrays[cache.input].shape[cache.axis]
            if lengths.setdefault(cache.sizes, length) != length:
                raise InputError(
                    f"input {cache.input!r} has {length} rows along axis {cache.axis}, others {lengths[cache.sizes]}; "
                    "give caches of equal length"
                )
        feeds = {**lent.feeds, **lent.arrays}
        for known in self._known:
            # A kept exception keeps this frame through its traceback, and so the feeds, until garbage is collected.
            with suppress(InputError):
                caches, symbols = known.caches, known.symbols(feeds)
                break
        else:  # no program accepts them: raise what the first one objects to
            caches, symbols = (), self._known[0].symbols(feeds)
        news = {size: value_of(size, symbols) for size in {cache.new for cache in caches}}
        places: list[Place] = []
        sizes: dict[str, np.ndarray] = {}
        taken: list[tuple[int, int]] = []
        for name, length in lengths.items():
            group = [cache for cache in caches if cache.sizes == name]
            own = [ranges[cache.input] for cache in group if cache.input in ranges]
            found = [(lent.rooms.get(cache.input), cache.axis) for cache in group]
            capacities = {0 if room is None else room.shape[axis] for room, axis in found}
            total = length + max(news[cache.new] for cache in group)
            stays = len(capacities) == 1 and min(capacities) >= max(total, 1) and _are_apart([*taken, *own])
            grows = total > length and any(cache.input in lent.rooms for cache in group)
            capacity = min(capacities) if stays else max(GROWTH * total, LEAST_ROOM) if grows else max(total, 1)
            places += [Place(cache, stays, capacity, length + news[cache.new]) for cache in group]
            taken += own if stays else ()
            sizes[name] = np.empty((length, capacity, 0), np.bool_)
        return Plan(places, sizes)


class Place(NamedTuple):
    """Whether a cache stays in its buffer, which else is a new one; capacity and, after the run, length in rows."""

    cache: Cache
    stays: bool
    capacity: int
    total: int


@dataclass
class Plan:
    """Where caches are to lie. `sizes`: the inputs in their place; `bound`: the program's sizes that they fit."""

    places: Sequence[Place]
    sizes: Mapping[str, np.ndarray]
    bound: Bound | None = None


@dataclass
class Lent:
    """The caches of one run: in `feeds` their sizes stand in their place; `kept`: those that `out` has; `rooms`: the
    buffers of donated caches, or None; `ranges`: address and bytes of these.
    """

    feeds: dict[str, Any]
    kept: Mapping[str, Any]
    arrays: Mapping[str, Any]
    rooms: Mapping[str, Any]
    ranges: Mapping[str, tuple[int, int]]
    memory: CacheMemory

    def have(self, plan: Plan) -> None:
        """Follow a plan. Raises `InputError` for an array of `out` that cannot stay."""
        for cache, stays, _, total in plan.places if self.kept else ():
            if cache.output in self.kept and not (stays and total == self.arrays[cache.input].shape[cache.axis]):
                raise InputError(f"out: {cache.output!r} does not fit where input {cache.input!r} lies; leave it out")
        self.feeds.update(plan.sizes)
        self.plan = plan
        self._taken = sorted([self.ranges[place.cache.input] for place in plan.places if place.stays])

    def check(self, results: Mapping[str, int], bound: Bound) -> None:
        """Raise `InputError` for a cache whose shape is not the run's; `results`: numbers of values."""
        if self.plan.bound is bound:
            return
        shapes: dict[Any, tuple[Any, ...]] = {}
        for cache, _, capacity, total in self.plan.places:
            number = results[cache.output]
            known = bound.sizing.program.values[number].shape
            if known not in shapes:
                shapes[known] = tuple(map(bound.of, known or ()))
            wanted = shapes[known]
            shape = with_size(self.arrays[cache.input].shape, cache.axis, capacity)
            if wanted != shape:
                raise InputError(
                    f"input {cache.input!r} of type {cache.type} does not fit the other inputs: with them it has the "
                    f"shape {with_size(wanted, cache.axis, total)} after the run, not "
                    f"{with_size(shape, cache.axis, total)}"
                )
        self.plan.bound = bound

    def placed(self, results: Mapping[str, int], worker: Worker) -> dict[int, Any]:
        """Return the buffers by the numbers of the results, allocating new ones."""
        grown = self.memory.grown
        self._buffers = [
            self.rooms[cache.input] if stays else grown(self.arrays[cache.input], cache.axis, capacity, worker)
            for cache, stays, capacity, _ in self.plan.places
        ]
        return {results[place.cache.output]: buffer for place, buffer in zip(self.plan.places, self._buffers)}

    def apart(self, value: Any, worker: Worker) -> Any:
        """Return another input, or a list of them, copied where it overlaps the buffers."""
        if isinstance(value, list):
            return [self.apart(item, worker) for item in value]
        return value if self._is_apart(value) else self.memory.copied(value, worker)

    def _is_apart(self, value: Any) -> bool:
        """Return whether a value shares no memory with the buffers."""
        if not isinstance(value, (np.ndarray, OnDevice)) or not value.nbytes:
            return True
        start, nbytes = self.memory.place(value)
        before = bisect_left(self._taken, (start + nbytes, 0))
        return not before or sum(self._taken[before - 1]) <= start

    def check_apart(self, targets: Mapping[str, Any]) -> None:
        """Raise `InputError` for a result that is to be written where caches lie."""
        for name, target in targets.items():
            if not self._is_apart(target):
                raise InputError(f"out: {name!r} lies in the buffer of a cache; give other memory")

    def end(self, named: dict[str, Any], worker: Worker, on_device: bool) -> None:
        """Put the caches as they are after the run into the results."""
        for (cache, _, _, total), buffer in zip(self.plan.places, self._buffers):
            named[cache.output] = self.memory.result(
                buffer, cache.axis, total, worker, stays=cache.input in self.rooms, on_device=on_device
            )
        named.update(self.kept)


def _shape(value: Any) -> tuple[int, ...]:
    """Return the shape of an input, which for a sequence means nothing."""
    if type(value) is np.ndarray:
        return value.shape
    with suppress(ValueError):  # numpy's, for lists of arrays that differ
        return tuple(np.shape(value))
    return ()


def _are_apart(places: Iterable[tuple[int, int]]) -> bool:
    """Return whether no two of these memory ranges, each (address, bytes), overlap."""
    return all(start + nbytes <= after for (start, nbytes), (after, _) in pairwise(sorted(places)))


class _Known:
    """A program with the caches, at their own lengths, as inputs instead of their sizes."""

    def __init__(self, program: Program) -> None:
        symbols, values = {symbol.name for symbol in program.symbols}, list(program.values)
        for number in program.inputs:
            value = program.values[number]
            cache = next((cache for cache in program.caches if cache.sizes == value.name), None)
            if cache is not None:
                symbols.discard(str((value.shape or ())[1]))
                values[number] = ValueSpec(cache.input, cache.type, value.location)
        own = tuple(symbol for symbol in program.symbols if symbol.name in symbols)
        self.caches, self._solver = program.caches, Solver(replace(program, values=tuple(values), symbols=own))
        self._inputs = [values[number] for number in program.inputs]
        self._names = [value.name for value in self._inputs]

    def symbols(self, feeds: Mapping[str, Any]) -> dict[str, int]:
        """Return the values of its symbols. Raises `InputError` where it does not accept inputs of such shapes."""
        shapes = [_shape(feeds.get(value.name)) for value in self._inputs]
        for value, shape in zip(self._inputs, shapes):
            wanted = value.shape
            if wanted is None:
                continue
            if value.name not in feeds:
                raise InputError(f"input {value.name!r} is missing; inputs are {', '.join(self._names)}")
            if len(shape) != len(wanted) or [1 for n, w in zip(shape, wanted) if n != w and isinstance(w, int)]:
                raise InputError(f"input {value.name!r} must be {value.type}, but its shape is {list(shape)}")
        return self._solver.solve(shapes)
