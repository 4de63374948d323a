"""Shares of the machine, each with a tuner process of its own: tasks are divided among them, and tuned side by side.

Tuners that have cores (of a GPU: multiprocessors) of their own compile and measure concurrently, which is what makes
tuning fast: Dhakal et al., "Spatial Sharing of GPU for Autotuning DNN models" (arXiv 2008.03602). Neighbours still
share memory bandwidth and the last cache, so what a share finds is confirmed alone, in the whole model (`confirm`).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pickle import UnpicklingError
from typing import TypeAlias

from tilestitch.compiler.errors import TuningError
from tilestitch.passes.plan import Group

from .tasks import TuningTask
from .tuner import Tried, Trying, Tuner

# Forked, so that the graph and its weights, which may be large, are shared with the tuners.
CONTEXT = multiprocessing.get_context("fork")
GRACE_S = 60.0
"""Seconds that a tuner may take beyond its time, as for a large kernel that is being compiled, until it is ended."""
Tell: TypeAlias = Callable[[Tried], None]


@dataclass(frozen=True)
class Lost:
    """A tuner that ended before its time, and the schedule that it was trying, if any."""

    reason: str
    trying: Group | None


@dataclass
class _Process:
    process: ForkProcess
    pipe: Connection
    trying: Group | None = None

    def receive(self) -> Tried | Trying | Lost | None:
        """Return what the tuner says; None at its end. Raises the TuningError that it raised."""
        try:
            found: Tried | Trying | TuningError | str | None = self.pipe.recv()
        except (EOFError, OSError, UnpicklingError):  # it ended, perhaps in the middle of a message
            self.process.kill()
            self.process.join()
            return Lost(f"it ended with code {self.process.exitcode}", self.trying)
        if isinstance(found, TuningError):
            raise found
        if isinstance(found, str):
            return Lost(found, self.trying)
        self.trying = found.group if isinstance(found, Trying) else None
        return found

    def left(self) -> Iterator[Tried]:
        """End the tuner, and yield the results that it has sent."""
        self.process.kill()
        while not isinstance(found := self.receive(), Lost | None):
            if isinstance(found, Tried):
                yield found

    def end(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.pipe.close()


def shares_of(cores: Sequence[int], threads: int, wanted: int | None = None) -> list[tuple[int, ...]]:
    """Return disjoint sets of cores, each for `threads` threads. wanted: how many; None: as many as there are.

    A model with as many threads as there are cores has one share: schedules are tuned with the threads that will run
    them.
    """
    most = max(1, len(cores) // threads)
    count = most if wanted is None else min(wanted, most)
    return [tuple(cores[number * threads : (number + 1) * threads]) for number in range(count)]


def divided(tasks: Sequence[TuningTask], count: int) -> list[list[TuningTask]]:
    """Divide tasks so that all shares have about as much of the model's time; fewer if there are fewer tasks."""
    shares: list[list[TuningTask]] = [[] for _ in range(min(count, len(tasks)))]
    for task in sorted(tasks, key=lambda one: -one.latency_us):
        min(shares, key=lambda share: sum(one.latency_us for one in share)).append(task)
    return shares


def tune_side_by_side(
    tuners: Sequence[Tuner], shares: Sequence[tuple[int, ...]], seconds: float, tell: Tell
) -> tuple[list[Tried], list[Lost]]:
    """Run each tuner in a process of its own, on its share's cores, for so many seconds; return what was tried, in the
    order of the results, and the tuners that ended before. tell: called with each result.

    An interrupt ends all tuners, and what was found until then is returned. Raises TuningError for a schedule that
    gives other results.
    """
    until_s = time.monotonic() + seconds
    running: list[_Process] = []
    tried: list[Tried] = []
    lost: list[Lost] = []
    try:
        for tuner, cores in zip(tuners, shares, strict=True):
            running.append(_started(tuner, cores, until_s, [one.pipe for one in running]))
        for one in _results(running, until_s + GRACE_S):
            if isinstance(one, Lost):
                lost.append(one)
            else:
                tried.append(one)
                tell(one)
    except KeyboardInterrupt:
        tried += [one for process in running for one in process.left()]
        lost.append(Lost("an interrupt ended it", None))
    finally:
        for process in running:
            process.end()
    return tried, lost


def _started(tuner: Tuner, cores: Sequence[int], until_s: float, others: Sequence[Connection]) -> _Process:
    """Start a tuner. others: the pipes from which those started before are read."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_work, args=(tuner, cores, until_s, theirs, [*others, ours]), daemon=True)
    process.start()
    theirs.close()
    return _Process(process, ours)


def _work(
    tuner: Tuner, cores: Sequence[int], until_s: float, pipe: Connection, of_parent: Sequence[Connection]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its tuners
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for inherited in of_parent:  # so that the parent alone reads, and a tuner whose parent was killed cannot send
        inherited.close()
    os.sched_setaffinity(0, cores)
    try:
        for one in tuner.tune(until_s):
            pipe.send(one)
        pipe.send(None)
    except BrokenPipeError:
        return
    except TuningError as error:
        pipe.send(error)
    except Exception as error:  # noqa: BLE001 - reported by the parent, which goes on with the other tuners
        pipe.send(f"{type(error).__name__}: {error}")


def _results(running: Sequence[_Process], until_s: float) -> Iterator[Tried | Lost]:
    """Yield results as they come, until all processes have ended; those that have not by `until_s` are lost."""
    left = list(running)
    while left:
        ready = wait([one.pipe for one in left], max(0.0, until_s - time.monotonic()))
        for one in [one for one in left if not ready or one.pipe in ready]:
            found = one.receive() if ready else Lost("it did not end in time", one.trying)
            if found is None or isinstance(found, Lost):
                left.remove(one)
            if isinstance(found, (Tried, Lost)):
                yield found
