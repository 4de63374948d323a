"""What kernels are tuned on: the CPU of this machine, or one of its GPUs (`gpu`). Tuners share it and measure in turns,
as what runs beside a kernel would slow it down.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from tilestitch.codegen.cpu.target import parse_target
from tilestitch.codegen.schedule import KernelsOfPlugins, Schedule
from tilestitch.compiler.machine import machine_of
from tilestitch.compiler.targets import backend_of
from tilestitch.cost_model.records import Machine as RecordedMachine
from tilestitch.passes.contract import PassContext
from tilestitch.passes.plan import StitchPlan
from tilestitch.runtime import load

from .bench import Compiler, Load, evict
from .timing import RunTime, wall_us

WAIT_S, POLL_S = 1.0, 0.002


@dataclass(frozen=True)
class Turn:
    """The file that a tuner locks while it measures; without one, its device is its own. The lock ends with the
    process, however that ends.
    """

    path: Path | None = None

    @contextmanager
    def wanted(self) -> Iterator[Callable[[], bool]]:
        """Give a function that returns whether the turn has come, after a second at most. The turn ends with the
        block.
        """
        if self.path is None:
            yield lambda: True
            return
        with self.path.open("rb") as file:
            yield partial(_locked, file)


def _locked(file: IO[bytes]) -> bool:
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(POLL_S)
        else:
            return True


Result = TypeVar("Result")


@dataclass(frozen=True)
class Share:
    """What a tuner has: cores of its own, and turns on what it shares with others."""

    cores: Sequence[int]
    turn: Turn = field(default_factory=Turn)

    def enter(self) -> None:
        """Confine this process to the share."""
        os.sched_setaffinity(0, self.cores)


class Machine(Protocol):
    """recorded: how records of kernels name it; None if there are none of its kind."""

    @property
    def recorded(self) -> RecordedMachine | None: ...

    def compiler(self, plan: StitchPlan, trying: bool) -> Compiler:
        """Return what compiles the whole model, or (`trying`) single kernels, which are not cached."""
        ...

    def apart(self, call: Callable[[], Result]) -> Result:
        """Return the result of a function that loads and runs modules."""
        ...

    def shares(self, wanted: int | None) -> Sequence[Share]:
        """Return what so many tuners have (None: as many as is usual); fewer where there is not enough."""
        ...


@dataclass(frozen=True)
class Builds:
    """How kernels are compiled. cache, nvcc: as in `compile_model`; schedules: those of plug-ins."""

    target: str
    cache: Any = True
    nvcc: str | None = None
    schedules: Sequence[Schedule] = ()

    def compiler(
        self, plan: StitchPlan, threads: int, cache: Any, load: Load, evict: Callable[[], None], run_us: RunTime
    ) -> Compiler:
        backend = backend_of(self.target, threads, cache, self.nvcc)
        kernels_of = KernelsOfPlugins(self.schedules, backend.target_of_schedules)
        context = PassContext(plan.target, kernels_of=kernels_of)
        return Compiler(context, backend, load, evict, run_us, self.schedules)


@dataclass(frozen=True)
class Cpu:
    """The CPU of this machine. threads: of a run."""

    builds: Builds
    threads: int

    @property
    def recorded(self) -> RecordedMachine:
        return machine_of(parse_target(self.builds.target), self.threads)

    def compiler(self, plan: StitchPlan, trying: bool) -> Compiler:
        loads = partial(load, device="cpu", num_threads=self.threads)
        return self.builds.compiler(plan, self.threads, not trying and self.builds.cache, loads, evict, wall_us)

    def apart(self, call: Callable[[], Result]) -> Result:
        return call()

    def shares(self, wanted: int | None) -> Sequence[Share]:
        return [Share(cores) for cores in shares_of(sorted(os.sched_getaffinity(0)), self.threads, wanted)]


def shares_of(cores: Sequence[int], threads: int, wanted: int | None = None) -> list[tuple[int, ...]]:
    """Return disjoint sets of cores, each for `threads` threads. wanted: how many; None: as many as there are.

    A model with as many threads as there are cores has one share: schedules are tuned with the threads that will run
    them.
    """
    most = max(1, len(cores) // threads)
    count = most if wanted is None else min(wanted, most)
    return [tuple(cores[number * threads : (number + 1) * threads]) for number in range(count)]
