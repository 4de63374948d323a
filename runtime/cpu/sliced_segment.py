"""A native step whose launches process a few images of a batch at a time, so that their intermediate results are read
again while they are in the cache.

Each sequence of launches has tables of its own for a full slice and for the remaining images. From slice to slice only
the addresses of batched values move on. Values lie where they would without slices: the results of a sequence are
complete when it is done. Values internal to it are overwritten by the next slice, since memory that was just used is in
the cache.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from tilestitch.runtime.buffers import aligned_bytes
from tilestitch.runtime.launch_check import ARGUMENT_ALIGNMENT
from tilestitch.runtime.launches import RecordTime
from tilestitch.runtime.moves import Move
from tilestitch.runtime.moves import Repeated as Repeats
from tilestitch.runtime.program import Arena, Input, NativeStep, Program, ValueSpec
from tilestitch.runtime.size_table import SizeTable
from tilestitch.runtime.sizes import Size
from tilestitch.runtime.sizing import Bound
from tilestitch.runtime.slices import Slices
from tilestitch.runtime.types import TensorType

from .library import Library
from .sized_segment import SizedSegment
from .team import Team


class SlicedSegment(SizedSegment):
    """Segment in slices; the same as one without them where no sequence of launches has fewer images than there are."""

    def __init__(
        self,
        program: Program,
        step: NativeStep,
        fixed: Sequence[Any],
        symbols: np.ndarray,
        table: SizeTable,
        library: Library,
        team: Team,
    ) -> None:
        super().__init__(program, step, fixed, symbols, table, library, team)
        assert step.slices is not None
        self._symbol = step.slices.symbol
        self._runs: list[_Run] = []
        begin, users = 0, _users(program, step, step.slices)
        for count, most in step.slices.runs:
            part = NativeStep(step.launches[begin : begin + count])
            stay = {number for number, runs in users.items() if runs == {len(self._runs)}}
            slices, rest = (_Slice(program, part, fixed, table, library, team, stay) for _ in range(2))
            self._runs.append(_Run(most, slices, rest))
            begin += count
        self._sliced = False

    def resize(self, bound: Bound, arena_address: int, placed: np.ndarray | None = None) -> None:
        super().resize(bound, arena_address, placed)
        images = bound.of(self._symbol)
        self._sliced = any(0 < bound.of(run.most) < images for run in self._runs)
        for run in self._runs if self._sliced else ():
            run.resize(bound, self._symbol, images, arena_address)

    def run(self, values: list[Any], record: RecordTime | None) -> None:
        if not self._sliced:
            super().run(values, record)
            return
        self.execute({number: self.address(values, number) for number in self.addressed}, record)

    def execute(self, addresses: Mapping[int, int], record: RecordTime | None) -> None:
        """Run slice by slice. `addresses`: of the values outside the arena."""
        for run in self._runs:
            run.execute(addresses, record)

    def repeated(self, moves: Sequence[Move], condition: int | None, count: np.ndarray | None) -> Repeats:
        """Return iterations of a loop. They process all images at once, as one native call, unless the iterations are
        all the same.
        """
        if self._sliced and not moves and condition is None and count is None:
            return _InSlices(self)
        return super().repeated(moves, condition, count)


class _InSlices:
    """Iterations of a segment that are all the same. Addresses of held values are looked up once."""

    def __init__(self, segment: SlicedSegment) -> None:
        self._segment = segment
        self._held: dict[int, int] = {}
        self._varying = list(segment.addressed)

    def hold(self, values: list[Any]) -> None:
        """Fix the addresses of those of these values that exist: they stay there in all runs from now on."""
        held = [number for number in self._varying if values[number] is not None]
        self._held.update((number, self._segment.address(values, number)) for number in held)
        self._varying = [number for number in self._varying if number not in self._held]

    def run(self, values: list[Any], most: int, record: RecordTime | None) -> int:
        """Execute `most` iterations on the program's current values. Returns their number."""
        varying = {number: self._segment.address(values, number) for number in self._varying}
        for _ in range(most):
            self._segment.execute({**self._held, **varying}, record)
        return most


class _Run:
    """Successive launches. `most`: images at a time, 0 for all. `rest`: the table for the remaining ones."""

    def __init__(self, most: Size, slices: _Slice, rest: _Slice) -> None:
        self.most, self._slices, self._rest = most, slices, rest
        self._images = self._step = 1

    def resize(self, bound: Bound, symbol: str, images: int, arena_address: int) -> None:
        self._images, self._step = images, min(bound.of(self.most) or images, images)
        self._slices.share(bound, symbol, images, self._step, self._step, arena_address)
        left = images % self._step
        if left:
            self._rest.share(bound, symbol, images, self._step, left, arena_address)

    def execute(self, addresses: Mapping[int, int], record: RecordTime | None) -> None:
        launches = self._slices.launches
        times_ns = None if record is None else np.zeros(len(launches), np.int64)
        for first in range(0, self._images, self._step):
            part = self._slices if first + self._step <= self._images else self._rest
            part.execute(first, addresses, times_ns)
        if record is not None and times_ns is not None:
            for launch, duration_ns in zip(launches, times_ns.tolist()):
                record(launch.symbol, launch.origins, duration_ns / 1000, 0)


class _Slice(SizedSegment):
    """Launches for some of the images."""

    def __init__(
        self, program: Program, step: NativeStep, fixed: Sequence[Any], table: SizeTable, library: Library, team: Team,
        stay: Collection[int],
    ) -> None:  # fmt: skip
        self._symbols = aligned_bytes(8 * len(program.symbols)).view(np.int64)
        super().__init__(program, step, fixed, self._symbols, table, library, team)
        self._stay = stay
        self._numbers = [arg.value for launch in step.launches for arg in launch.args]
        self._inputs = {n for n in self._numbers if isinstance(program.values[n].location, Input)}
        self._strides_bytes = self._bases = np.zeros(0, np.int64)
        self._outside: list[tuple[int, int]] = []

    def share(self, bound: Bound, symbol: str, images: int, step: int, count: int, arena_address: int) -> None:
        """Set the segment up for `count` of the images of values of the sizes `bound`. Slices begin `step` images
        apart.

        Raises `ArtifactSchemaError` for a value that does not have one image after the other.
        """
        part = bound if count == images else bound.sizing.part(bound, symbol, count)
        self.resize(part, arena_address, bound.sizes)
        self._symbols[...] = part.values
        self.team.reserve(self.scratch_bytes(part.sizes))
        strides = {n: self._stride_bytes(n, bound, part, images, count) for n in dict.fromkeys(self._numbers)}
        for number, stride in strides.items():
            if number not in self._inputs and stride * step % ARGUMENT_ALIGNMENT:
                name = bound.value(number).name
                raise bound.sizing.broken(f"slices of {step} images of {name!r} begin where no kernel takes them")
        self._strides_bytes = np.array([strides[number] for number in self._numbers], np.int64)
        self._bases = self.args[:, 1].copy()
        self._outside = [(row, number) for number, places in self.addressed.items() for row, _ in places]

    def _stride_bytes(self, number: int, bound: Bound, part: Bound, images: int, count: int) -> int:
        """Return the bytes from one image of a value to the next; 0 for a value that all of them share."""
        value = bound.value(number)
        whole, some = _nbytes(value), _nbytes(part.value(number))
        if whole == some:
            return 0
        if whole * count != some * images or whole % images:
            raise bound.sizing.broken(f"{value.name!r} of {value.type} has not one of {images} images after the other")
        return 0 if number in self._stay else whole // images

    def execute(self, first: int, addresses: Mapping[int, int], times_ns: np.ndarray | None) -> None:
        """Run for the images from `first` on and add to the times of launches. `addresses`: of the values outside the
        arena.
        """
        column = self._bases + first * self._strides_bytes
        for row, number in self._outside:
            column[row] += addresses[number]
        self.args[:, 1] = column
        if times_ns is None:
            self._run()
        else:
            clock_ns = np.zeros(len(times_ns) + 1, np.int64)
            self.team.prepare(self.table.ctypes.data, len(times_ns), clock_ns.ctypes.data)()
            times_ns += np.diff(clock_ns)
        self.check_faults()


def _users(program: Program, step: NativeStep, slices: Slices) -> dict[int, set[int]]:
    """Return, for each value in the arena that only this step uses, the sequences of launches that use it."""
    users: dict[int, set[int]] = {}
    inside = iter(step.launches)
    for number, (count, _) in enumerate(slices.runs):
        for arg in (arg for launch in islice(inside, count) for arg in launch.args):
            users.setdefault(arg.value, set()).add(number)
    alone = len(program.steps) == 1
    return {
        number: runs for number, runs in users.items()
        if alone and isinstance(program.values[number].location, Arena) and number not in program.outputs
    }  # fmt: skip


def _nbytes(value: ValueSpec) -> int:
    assert isinstance(value.type, TensorType), "kernels take tensors"
    return value.type.nbytes
