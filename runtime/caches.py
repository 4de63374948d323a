"""Caches that grow in memory of the caller's, for artifacts that were compiled for that.

A cache of `length` rows lies in a buffer with room for more of them, and a run stores its new rows after these. What
the run gives back is a view of the buffer, with the new rows: the next run's input, whose base tells the room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

import numpy as np

from .artifact import address_of
from .dtypes import dtype_name
from .errors import InputError
from .feeds import dlpack_view
from .program import Cache, Program, ValueSpec
from .sizes import value_of
from .solver import Solver

GROWTH = 2
"""A buffer that is full is replaced by one so many times as large."""
LEAST_ROOM = 16


class Caches:
    """The caches of a model. `donated`: patterns of the names of inputs whose memory may be written to."""

    def __init__(self, programs: Sequence[Program], names: Sequence[str], donated: Sequence[str]) -> None:
        self._programs = programs
        self._names = names
        self._known = [_as_known(program) for program in programs]
        self._solvers = [Solver(program) for program in self._known]
        self.inputs = tuple(cache.input for cache in programs[0].caches)
        self._outputs = {cache.output for cache in programs[0].caches}
        for pattern in donated:
            if not any(fnmatchcase(name, pattern) for name in self.inputs):
                known = ", ".join(self.inputs) or "none"
                raise InputError(
                    f"donate: no cache is named {pattern!r}; there are {known}. Compile with --donate {pattern!r}"
                )
        self._donated = {name for name in self.inputs if any(fnmatchcase(name, pattern) for pattern in donated)}

    def __bool__(self) -> bool:
        return bool(self.inputs)

    def lent(self, feeds: Mapping[str, Any], out: Mapping[str, Any] | None) -> Lent:
        """What a run is given in place of the caches. Raises `InputError`."""
        for name in self._outputs.intersection(out or ()):
            raise InputError(f"out: {name!r} is a cache, which lies where its rows were; leave it out")
        arrays = {name: self._array(name, feeds) for name in self.inputs}
        others = {name: value for name, value in feeds.items() if name not in arrays}
        sizes = self._lengths(arrays)
        caches, symbols = self._solved({**others, **arrays})
        lengths = {c.input: (sizes[c.sizes], sizes[c.sizes] + value_of(c.new, symbols)) for c in caches}
        buffers = self._buffers(caches, arrays, lengths)
        for name, length in sizes.items():
            capacity = next(buffers[c.input].shape[c.axis] for c in caches if c.sizes == name)
            others[name] = np.empty((length, capacity, 0), np.bool_)
        return Lent(others, caches, buffers, {name: total for name, (_, total) in lengths.items()})

    def _array(self, name: str, feeds: Mapping[str, Any]) -> np.ndarray:
        if name not in feeds:
            raise InputError(f"input {name!r} is missing; inputs are {', '.join(self._names)}")
        given = feeds[name]
        cache = next(cache for cache in self._programs[0].caches if cache.input == name)
        if not isinstance(given, np.ndarray) and hasattr(given, "__dlpack__"):
            given = dlpack_view(given, cache.type.dtype)
        array = np.asarray(given)
        shape = cache.type.shape
        if dtype_name(array.dtype) != cache.type.dtype or array.ndim != len(shape or ()):
            raise InputError(f"input {name!r} must be {cache.type}, not {array.dtype}{list(array.shape)}")
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    def _lengths(self, arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
        """The length of the caches by the input that tells it."""
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
        """The caches of the first program that takes inputs of such shapes, and the values of its symbols."""
        problem: InputError | None = None
        for program, solver in zip(self._known, self._solvers):
            shapes = [np.shape(feeds.get(program.values[n].name, ())) for n in program.inputs]
            try:
                for number, shape in zip(program.inputs, shapes):
                    _check_fixed(program.values[number], shape)
                return program.caches, solver.solve(shapes)
            except InputError as error:
                problem = problem or error
        assert problem is not None
        raise problem

    def _buffers(
        self, caches: Sequence[Cache], arrays: Mapping[str, np.ndarray], lengths: Mapping[str, tuple[int, int]]
    ) -> dict[str, np.ndarray]:
        """For each cache the buffer that has its rows, and room: where it lies, or a copy. Those whose length one input
        tells have one capacity.
        """
        found: dict[str, np.ndarray] = {}
        for name in dict.fromkeys(cache.sizes for cache in caches):
            group = [cache for cache in caches if cache.sizes == name]
            have = {c.input: self._room(c, arrays[c.input]) for c in group}
            total = max(lengths[c.input][1] for c in group)
            capacities = {0 if buffer is None else buffer.shape[c.axis] for c, buffer in zip(group, have.values())}
            buffers = {name: buffer for name, buffer in have.items() if buffer is not None}
            if (
                len(capacities) == 1
                and min(capacities) >= max(total, 1)
                and _are_apart([*found.values(), *buffers.values()])
            ):
                found.update(buffers)
                continue
            kept = any(c.input in self._donated for c in group)
            capacity = max(GROWTH * total, LEAST_ROOM) if kept else max(total, 1)
            for cache in group:
                found[cache.input] = _grown(arrays[cache.input], cache.axis, capacity)
        return found

    def _room(self, cache: Cache, array: np.ndarray) -> np.ndarray | None:
        """The donated buffer whose first rows an array is."""
        base = array.base
        if cache.input not in self._donated or not array.flags.writeable:
            return None
        if not isinstance(base, np.ndarray) or base.dtype != array.dtype:
            return None
        shape = (
            (*array.shape[: cache.axis], base.shape[cache.axis], *array.shape[cache.axis + 1 :])
            if (base.ndim == array.ndim)
            else ()
        )
        same = base.shape == shape and base.ctypes.data == array.ctypes.data and base.strides == array.strides
        return base if same and base.flags.c_contiguous and base.flags.writeable and base.flags.aligned else None


class Lent:
    """The caches of one run: `feeds` have their sizes in their place. `buffers` are written to."""

    def __init__(
        self, feeds: dict[str, Any], caches: Sequence[Cache], buffers: Mapping[str, np.ndarray],
        totals: Mapping[str, int],
    ) -> None:  # fmt: skip
        self.feeds, self._caches, self._buffers, self._totals = feeds, caches, buffers, totals
        self.buffers = tuple(buffers.values())

    def apart(self, inputs: Sequence[Any]) -> list[Any]:
        """The other inputs, those that lie in the buffers copied."""
        return [self._apart(value) for value in inputs]

    def _apart(self, value: Any) -> Any:
        if isinstance(value, list):
            return self.apart(value)
        if not isinstance(value, np.ndarray) or not value.size or _are_apart([value, *self.buffers]):
            return value
        return value.copy()

    def check_apart(self, targets: Mapping[str, Any]) -> None:
        """Raises `InputError` for a result that is to lie where caches are."""
        for name, target in targets.items():
            if isinstance(target, np.ndarray) and target.size and not _are_apart([target, *self.buffers]):
                raise InputError(f"out: {name!r} lies in the buffer of a cache; give other memory")

    def preset(self, results: Mapping[str, int], shape_of: Any) -> dict[int, np.ndarray]:
        """The buffers by the numbers of the results. Raises `InputError` for one of another shape than the run's."""
        preset = {}
        for cache in self._caches:
            number, buffer = results[cache.output], self._buffers[cache.input]
            if shape_of(number) != buffer.shape:
                rows = self._totals[cache.input]
                raise InputError(
                    f"input {cache.input!r} of type {cache.type} does not fit the other inputs: with them it has the "
                    f"shape {_with(shape_of(number), cache.axis, rows)} after the run, not "
                    f"{_with(buffer.shape, cache.axis, rows)}"
                )
            preset[number] = buffer
        return preset

    def views(self, results: dict[str, Any]) -> None:
        """Put what the caches are now into the results."""
        for cache in self._caches:
            rows = (slice(None),) * cache.axis + (slice(self._totals[cache.input]),)
            results[cache.output] = self._buffers[cache.input][rows]


def _as_known(program: Program) -> Program:
    """The program with the caches for inputs, each as long as it is, instead of what tells their sizes."""
    symbols, values = {symbol.name for symbol in program.symbols}, list(program.values)
    for number in program.inputs:
        value = program.values[number]
        cache = next((cache for cache in program.caches if cache.sizes == value.name), None)
        if cache is not None:
            symbols.discard(str((value.shape or ())[1]))
            values[number] = ValueSpec(cache.input, cache.type, value.location)
    return replace(program, values=tuple(values), symbols=tuple(s for s in program.symbols if s.name in symbols))


def _are_apart(arrays: Sequence[np.ndarray]) -> bool:
    """Whether no two of these contiguous arrays have memory in common."""
    places = sorted((address_of(array), array.nbytes) for array in arrays)
    return all(start + nbytes <= after for (start, nbytes), (after, _) in pairwise(places))


def _check_fixed(value: ValueSpec, shape: Sequence[int]) -> None:
    """Raises `InputError` where a shape is none of the value's, whatever its symbols are."""
    wanted = value.shape or ()
    sizes = zip(shape, wanted)
    if len(shape) != len(wanted) or any(isinstance(w, int) and w != size for size, w in sizes):
        raise InputError(f"input {value.name!r} must be {value.type}, but its shape is {list(shape)}")


def _grown(array: np.ndarray, axis: int, capacity: int) -> np.ndarray:
    buffer = np.empty(_with(array.shape, axis, capacity), array.dtype)
    buffer[(slice(None),) * axis + (slice(array.shape[axis]),)] = array
    return buffer


def _with(shape: Sequence[int], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])
