"""The CPU as a device: a library of kernels, and teams of threads that run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilestitch.runtime.artifact import Artifact
from tilestitch.runtime.cache_memory import HostCacheMemory
from tilestitch.runtime.device import HostOnly, Memory
from tilestitch.runtime.errors import DeviceError
from tilestitch.runtime.groups import Group, Joined, Present
from tilestitch.runtime.hostmemory import HostArena
from tilestitch.runtime.loaded import Loaded
from tilestitch.runtime.members import CPU_LIBRARY
from tilestitch.runtime.program import DeviceStep, NativeStep, Program, ValueSpec
from tilestitch.runtime.sizes import known

from .threads import available_cores

if TYPE_CHECKING:
    from tilestitch.runtime.iterations import Grown, Repetition
    from tilestitch.runtime.sizing import Bound

    from .library import Library
    from .segment import Segment
    from .team import Team


def open_backend(artifact: Artifact, loaded: Loaded, ordinal: int, num_threads: int) -> CpuBackend:
    """Return the CPU backend of an artifact. Raises `DeviceError` when this CPU lacks what the kernels need, or they
    cannot be loaded.
    """
    library: Library | None = None
    if CPU_LIBRARY in artifact.member_names:
        from .features import check_cpu
        from .library import Library
        from .resizing import native_sizes

        check_cpu(artifact.manifest.target, artifact.name)
        library = Library(artifact.member(CPU_LIBRARY), artifact.name)
        for symbol in sorted(loaded.symbols(NativeStep)):
            library.address(symbol)
        for sizing in map(loaded.sizing, artifact.programs):
            if sizing and library.resize:
                sizing.native = native_sizes(sizing, library.resize)
    elif loaded.symbols(NativeStep):
        artifact.member(CPU_LIBRARY)  # raises that it is missing
    return CpuBackend(loaded, library, num_threads)


class CpuBackend(HostOnly):
    """Backend with kernels in a shared library; as many concurrent runs as the cores have room for."""

    def __init__(self, loaded: Loaded, library: Library | None, num_threads: int) -> None:
        self.cache_memory = HostCacheMemory()
        self.max_workers = max(1, available_cores() // num_threads)
        self._loaded = loaded
        self._library = library
        self._threads = num_threads if loaded.symbols(NativeStep) else 0
        self._scratch_bytes = loaded.scratch_bytes

    def worker(self) -> CpuWorker:
        team: Team | None = None
        if self._library is not None and self._threads:
            from .team import Team

            team = Team(self._library, self._threads, self._scratch_bytes)
        return CpuWorker(self._loaded, self._library, team)

    def close(self) -> None:
        """Do nothing: the library is unloaded with its last user."""


class CpuWorker(HostOnly):
    """A team of threads."""

    resizes = True
    most_kept = 1

    def __init__(self, loaded: Loaded, library: Library | None, team: Team | None) -> None:
        self._loaded, self._library, self._team = loaded, library, team

    def memory(self, program: Program) -> Memory:
        sizing = self._loaded.sizing(program)
        if sizing is None:
            return CpuMemory(program, self._loaded.file, self._library, self._team)
        from .sized_memory import SizedMemory

        return SizedMemory(sizing, self._loaded.file, self._library, self._team)

    def join(self, group: Group, present: Present) -> Joined | None:
        if self._library is None or self._team is None:
            return None
        from .joined import Surroundings, joined

        return joined(group, Surroundings(self._loaded, self._library, self._team, present))

    def grown(self, program: Program, repetition: Repetition) -> Grown | None:
        if self._library is None or self._team is None:
            return None
        from .growing import grown
        from .joined import Surroundings

        constant = lambda number: self._loaded.constant(program.values[number])  # noqa: E731
        present = Present(program.values.__getitem__, known, constant, ())
        return grown(program, repetition, Surroundings(self._loaded, self._library, self._team, present))

    def close(self) -> None:
        if self._team is not None:
            self._team.close()


class CpuMemory:
    """An arena, and launch tables that point into it."""

    on_host = True

    def __init__(self, program: Program, file: str, library: Library | None, team: Team | None) -> None:
        self._program, self._file, self._library, self._team = program, file, library, team
        self._arena = HostArena(program, file)
        if team is not None:
            steps = [step for step in program.steps if isinstance(step, NativeStep)]
            team.reserve(max((known(launch.scratch_bytes) for s in steps for launch in s.launches), default=0))

    def fixed(self, value: ValueSpec) -> np.ndarray:
        return self._arena.view(value)

    def bind(self, step: NativeStep | DeviceStep, fixed: Sequence[Any]) -> Segment:
        from .segment import Segment

        if not isinstance(step, NativeStep):
            raise DeviceError(f"{self._file}: holds launches for a GPU, which the CPU cannot run; compile again")
        if self._library is None or self._team is None:
            raise ValueError("a program with native steps was bound without kernels")
        return Segment(self._program, step, fixed, self._library, self._team)

    def overlaps(self, array: np.ndarray) -> bool:
        return self._arena.overlaps(array)

    def resize(self, bound: Bound) -> None:
        raise ValueError("the sizes of a program without symbols do not change")
