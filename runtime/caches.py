"""Caches that grow in place in the caller's memory, for artifacts compiled with that option.

A cache of `length` rows lies in a buffer with room for more of them, and a run stores its new rows after these. It
returns a view of the buffer with the new rows: the next run's input, from which the capacity is known. The device
(`CacheMemory`) allocates the buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from .device import CacheMemory, OnDevice, Worker
from .dtypes import dtype_name
from .errors import InputError
from .program import Cache, Program, ValueSpec
from .sizes import value_of
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
        self._memory = memory
        self._programs = programs
        self._names = names
        self._known = [_as_known(program) for program in programs]
        self._solvers = [Solver(program) for program in self._known]
        self._types = {cache.input: cache.type for cache in programs[0].caches}
        self.inputs = tuple(self._types)
        self._axes = {cache.input: cache.axis for cache in programs[0].caches}
        self._outputs = {cache.output: cache.input for cache in programs[0].caches}
        for pattern in donated:
            if not any(fnmatchcase(name, pattern) for name in self.inputs):
                known = ", ".join(self.inputs) or "none"
                raise InputError(
                    f"donate: no cache is named {pattern!r}; there are {known}. Compile with --donate {pattern!r}"
                )
        self._donated = {name for name in self.inputs if any(fnmatchcase(name, pattern) for pattern in donated)}

    def __bool__(self) -> bool:
        return bool(self.inputs)

    def lent(self, feeds: Mapping[str, Any], out: Mapping[str, Any] | None, stream: Any = None) -> Lent:
        """Return what a run in `stream` gets in place of the caches; those that `out` names, as the arrays that are
        inputs, are donated. Raises `InputError`.
        """
        written = {self._outputs[name]: name for name in self._outputs if out and name in out}
        for name, output in written.items():
            if (out or {})[output] is not feeds.get(name):
                raise InputError(
                    f"out: {output!r} is a cache, which lies where its rows were; leave it out, or give the array that "
                    f"is input {name!r}"
                )
        arrays = {name: self._array(name, feeds, stream) for name in self.inputs}
        others = {name: value for name, value in feeds.items() if name not in arrays}
        sizes = self._lengths(arrays)
        caches, symbols = self._solved({**others, **arrays})
        news = {size: value_of(size, symbols) for size in {c.new for c in caches}}
        lengths = {c.input: (sizes[c.sizes], sizes[c.sizes] + news[c.new]) for c in caches}
        places = self._places(caches, arrays, lengths, self._donated.union(written))
        for name, output in written.items():
            if places[name].room is None or places[name].total != arrays[name].shape[self._axes[name]]:
                raise InputError(f"out: {output!r} does not fit where input {name!r} lies; leave it out")
        for name, length in sizes.items():
            capacity = next(places[c.input].capacity for c in caches if c.sizes == name)
            others[name] = np.empty((length, capacity, 0), np.bool_)
        return Lent(others, caches, places, self._memory)

    def named_in(self, out: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of `out` that is caches."""
        return {name: out[name] for name in self._outputs if name in out}

    def _array(self, name: str, feeds: Mapping[str, Any], stream: Any) -> Any:
        if name not in feeds:
            raise InputError(f"input {name!r} is missing; inputs are {', '.join(self._names)}")
        wanted = self._types[name]
        array = self._memory.given(feeds[name], wanted.dtype, stream)
        if dtype_name(array.dtype) != wanted.dtype or array.ndim != len(wanted.shape or ()):
            raise InputError(f"input {name!r} must be {wanted}, not {array.dtype}{list(array.shape)}")
        return array

    def _lengths(self, arrays: Mapping[str, Any]) -> dict[str, int]:
        """Return the lengths of the caches by the name of the input that tells their size."""
        sizes: dict[str, int] = {}
        for cache in self._programs[0].caches:
            length = arrays[cache.input].shape[cache.axis]
            if sizes.setdefault(cache.sizes, length) != length:
                raise InputError(
                    f"input {cache.input!r} has {length} rows along axis {cache.axis}, others {sizes[cache.sizes]}; "
                    "give caches of equal length"
                )
        return sizes

    def _solved(self, feeds: Mapping[str, Any]) -> tuple[Sequence[Cache], Mapping[str, int]]:
        """Return the caches of the first program that accepts inputs of these shapes, and the values of its symbols."""
        for program, solver in zip(self._known, self._solvers):
            # A kept exception keeps this frame through its traceback, and so the feeds, until garbage is collected.
            with suppress(InputError):
                return program.caches, _values(program, solver, feeds)
        # No program accepts them: raise what the first one objects to.
        return self._known[0].caches, _values(self._known[0], self._solvers[0], feeds)

    def _places(
        self,
        caches: Sequence[Cache],
        arrays: Mapping[str, Any],
        lengths: Mapping[str, tuple[int, int]],
        donated: Container[str],
    ) -> dict[str, Place]:
        """Return for each cache where it is to lie: in its present buffer or in a new one. Caches whose length one
        input tells share one capacity.
        """
        memory = self._memory
        found: dict[str, Place] = {}
        for name in dict.fromkeys(cache.sizes for cache in caches):
            group = [cache for cache in caches if cache.sizes == name]
            rooms = {c.input: memory.room(arrays[c.input], c.axis) if c.input in donated else None for c in group}
            total = max(lengths[c.input][1] for c in group)
            capacities = {0 if room is None else room.shape[c.axis] for c, room in zip(group, rooms.values())}
            taken = [place.room for place in found.values() if place.room is not None]
            stays = len(capacities) == 1 and min(capacities) >= max(total, 1)
            stays = stays and _are_apart([memory.place(room) for room in (*taken, *rooms.values())])
            is_donated = any(c.input in donated for c in group)
            grows = is_donated and any(before < after for before, after in (lengths[c.input] for c in group))
            capacity = max(GROWTH * total, LEAST_ROOM) if grows else max(total, 1)
            for c in group:
                room = rooms[c.input] if stays else None
                size = min(capacities) if stays else capacity
                found[c.input] = Place(arrays[c.input], room, size, lengths[c.input][1], c.input in donated)
        return found


class Place(NamedTuple):
    """Where a cache is to lie: the given rows, the buffer that holds them (None for a new one), its capacity in rows,
    the number of rows after the run, and whether the buffer is donated.
    """

    array: Any
    room: Any | None
    capacity: int
    total: int
    is_donated: bool


class Lent:
    """The caches of one run: in `feeds` their sizes stand in their place. Their buffers exist once `placed` was called
    within the run.
    """

    def __init__(
        self, feeds: dict[str, Any], caches: Sequence[Cache], places: Mapping[str, Place], memory: CacheMemory
    ) -> None:
        self.feeds, self._caches, self._places, self._memory = feeds, caches, places, memory
        self._buffers: dict[str, Any] = {}
        self._taken: list[tuple[int, int]] = []

    def check(self, results: Mapping[str, int], shape_of: Callable[[int], Any]) -> None:
        """Raise `InputError` for a cache whose shape is not the run's; `results` has the numbers of the results."""
        for cache in self._caches:
            number, place = results[cache.output], self._places[cache.input]
            shape = with_size(place.array.shape, cache.axis, place.capacity)
            if shape_of(number) != shape:
                raise InputError(
                    f"input {cache.input!r} of type {cache.type} does not fit the other inputs: with them it has the "
                    f"shape {with_size(shape_of(number), cache.axis, place.total)} after the run, not "
                    f"{with_size(shape, cache.axis, place.total)}"
                )

    def placed(self, results: Mapping[str, int], worker: Worker) -> dict[int, Any]:
        """Return the buffers by the numbers of the results, allocating those that do not exist yet."""
        for cache in self._caches:
            array, room, capacity, *_ = self._places[cache.input]
            buffer = self._memory.grown(array, cache.axis, capacity, worker) if room is None else room
            self._buffers[cache.input] = buffer
        self._taken = [*map(self._memory.place, self._buffers.values())]
        return {results[cache.output]: self._buffers[cache.input] for cache in self._caches}

    def apart(self, inputs: Sequence[Any], worker: Worker) -> list[Any]:
        """Return the other inputs, copied where they overlap the buffers."""
        return [self._apart(value, worker) for value in inputs]

    def _apart(self, value: Any, worker: Worker) -> Any:
        if isinstance(value, list):
            return self.apart(value, worker)
        return value if self._is_apart(value) else self._memory.copied(value, worker)

    def _is_apart(self, value: Any) -> bool:
        """Return whether a value shares no memory with the buffers."""
        if not isinstance(value, (np.ndarray, OnDevice)):
            return True
        start, nbytes = self._memory.place(value)
        return not nbytes or all(start + nbytes <= at or at + size <= start for at, size in self._taken)

    def check_apart(self, targets: Mapping[str, Any]) -> None:
        """Raise `InputError` for a result that is to be written where caches lie."""
        for name, target in targets.items():
            if not self._is_apart(target):
                raise InputError(f"out: {name!r} lies in the buffer of a cache; give other memory")

    def end(self, named: dict[str, Any], worker: Worker, on_device: bool) -> None:
        """Put the caches as they are after the run into the results."""
        for cache in self._caches:
            place, buffer = self._places[cache.input], self._buffers[cache.input]
            named[cache.output] = self._memory.result(
                buffer, cache.axis, place.total, worker, stays=place.is_donated, on_device=on_device
            )


def _as_known(program: Program) -> Program:
    """Return the program with the caches, at their own lengths, as inputs instead of their sizes."""
    symbols, values = {symbol.name for symbol in program.symbols}, list(program.values)
    for number in program.inputs:
        value = program.values[number]
        cache = next((cache for cache in program.caches if cache.sizes == value.name), None)
        if cache is not None:
            symbols.discard(str((value.shape or ())[1]))
            values[number] = ValueSpec(cache.input, cache.type, value.location)
    return replace(program, values=tuple(values), symbols=tuple(s for s in program.symbols if s.name in symbols))


def _are_apart(places: Iterable[tuple[int, int]]) -> bool:
    """Return whether no two of these memory ranges, each (address, bytes), overlap."""
    return all(start + nbytes <= after for (start, nbytes), (after, _) in pairwise(sorted(places)))


def _values(program: Program, solver: Solver, feeds: Mapping[str, Any]) -> dict[str, int]:
    """Return the values of a program's symbols. Raises `InputError` where it does not accept inputs of such shapes."""
    names = [program.values[n].name for n in program.inputs]
    for name in names:
        if name not in feeds:
            raise InputError(f"input {name!r} is missing; inputs are {', '.join(names)}")
    shapes = [np.shape(feeds[name]) for name in names]
    for number, shape in zip(program.inputs, shapes):
        _check_fixed(program.values[number], shape)
    return solver.solve(shapes)


def _check_fixed(value: ValueSpec, shape: Sequence[int]) -> None:
    """Raise `InputError` where a shape cannot be the value's, whatever its symbols are."""
    wanted = value.shape or ()
    sizes = zip(shape, wanted)
    if len(shape) != len(wanted) or any(isinstance(w, int) and w != size for size, w in sizes):
        raise InputError(f"input {value.name!r} must be {value.type}, but its shape is {list(shape)}")
