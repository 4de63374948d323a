"""CPU memory of a program with symbols: for other sizes it grows if it must, and keeps its tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilestitch.runtime.buffers import address_of, aligned_bytes
from tilestitch.runtime.errors import DeviceError
from tilestitch.runtime.hostmemory import HostArena
from tilestitch.runtime.program import DeviceStep, NativeStep, ValueSpec
from tilestitch.runtime.sizing import Bound, Sizing

from .library import Library
from .sized_segment import SizedSegment
from .sliced_segment import SlicedSegment
from .team import Team


class SizedMemory:
    """An arena that never shrinks, the array of the symbols' values, and launch tables that point into both."""

    on_host = True

    def __init__(self, sizing: Sizing, file: str, library: Library | None, team: Team | None) -> None:
        self._sizing, self._file, self._library, self._team = sizing, file, library, team
        self._arena = HostArena(sizing.program, file)
        self._symbols = aligned_bytes(8 * len(sizing.program.symbols)).view(np.int64)
        self._segments: list[SizedSegment] = []

    def fixed(self, value: ValueSpec) -> np.ndarray:
        return self._arena.view(value)

    def bind(self, step: NativeStep | DeviceStep, fixed: Sequence[Any]) -> SizedSegment:
        if not isinstance(step, NativeStep):
            raise DeviceError(f"{self._file}: holds launches for a GPU, which the CPU cannot run; compile again")
        if self._library is None or self._team is None:
            raise ValueError("a program with native steps was bound without kernels")
        program, table = self._sizing.program, self._sizing.table
        kind = SizedSegment if step.slices is None else SlicedSegment
        segment = kind(program, step, fixed, self._symbols, table, self._library, self._team)
        self._segments.append(segment)
        return segment

    def overlaps(self, array: np.ndarray) -> bool:
        return self._arena.overlaps(array)

    def resize(self, bound: Bound) -> None:
        """Set other sizes. Raises `DeviceError` when memory runs out."""
        self._arena.reserve(bound.of(self._sizing.program.arena_bytes))
        self._symbols[...] = bound.values
        address = address_of(self._arena.raw)
        for segment in self._segments:
            segment.resize(bound, address)
        if self._team is not None:
            self._team.reserve(max((segment.scratch_bytes(bound.sizes) for segment in self._segments), default=0))
