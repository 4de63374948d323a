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
from dataclasses import dataclass, field
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
TRIAL_S = 30.0
"""Seconds that a trial may take: the code of some schedules is so long that compiling it takes minutes."""
Tell: TypeAlias = Callable[[Tried], None]


@dataclass(frozen=True)
class Lost:
    """A process of a tuner that ended by itself, and the schedule that it was trying, if any."""

    reason: str
    trying: Group | None


@dataclass
class _Share:
    """A tuner on its cores, and the process that it runs in, which is replaced if it ends within a trial."""

    tuner: Tuner
    cores: Sequence[int]
    until_s: float
    process: ForkProcess
    pipe: Connection
    trying: Trying | None = None
    since_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """The seconds left for the trial."""
        return max(0.0, self.since_s + TRIAL_S - time.monotonic())

    def receive(self) -> Tried | Trying | Lost | None:
        """Return what the tuner says; None at its end. Raises the TuningError that it raised."""
        try:
            found: Tried | Trying | TuningError | str | None = self.pipe.recv()
        except (EOFError, OSError, UnpicklingError):  # it ended, perhaps in the middle of a message
            self.process.kill()
            self.process.join()
            return self._lost(f"it ended with code {self.process.exitcode}")
        if isinstance(found, TuningError):
            raise found
        if isinstance(found, str):
            return self._lost(found)
        self.trying, self.since_s = found if isinstance(found, Trying) else None, time.monotonic()
        if isinstance(found, Tried):
            self.tuner.before.append(found)
        return found

    def overdue(self) -> Lost | None:
        """Return why the tuner is ended; None if it is its trial that takes too long."""
        return None if self.trying else Lost(f"it took more than {TRIAL_S:g} s to begin a trial", None)

    def failed(self) -> Tried | None:
        """End the process within its trial, and return that as having failed; None if it is in none."""
        self.end()
        if self.trying is None:
            return None
        failed = Tried(self.trying.structure, self.trying.group, None)
        self.tuner.before.append(failed)
        return failed

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

    def _lost(self, reason: str) -> Lost:
        return Lost(reason, None if self.trying is None else self.trying.group)


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
    order of the results, and the processes that ended by themselves. tell: called with each result.

    A trial during which a process ends, or that takes too long, counts as failed, and another process goes on. An
    interrupt ends all tuners, and what was found until then is returned. Raises TuningError for a schedule that gives
    other results.
    """
    until_s = time.monotonic() + seconds
    running: list[_Share] = []
    tried: list[Tried] = []
    lost: list[Lost] = []
    try:
        for tuner, cores in zip(tuners, shares, strict=True):
            running.append(_started(tuner, cores, until_s, running))
        for one in _results(running):
            if isinstance(one, Lost):
                lost.append(one)
            else:
                tried.append(one)
                tell(one)
    except KeyboardInterrupt:
        tried += [one for share in running for one in share.left()]
        lost.append(Lost("an interrupt ended it", None))
    finally:
        for share in running:
            share.end()
    return tried, lost


def _started(tuner: Tuner, cores: Sequence[int], until_s: float, others: Sequence[_Share]) -> _Share:
    """Start a tuner. others: those that run already."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    read = [*(one.pipe for one in others if not one.pipe.closed), ours]
    process = CONTEXT.Process(target=_work, args=(tuner, cores, until_s, theirs, read), daemon=True)
    process.start()
    theirs.close()
    return _Share(tuner, cores, until_s, process, ours)


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
    except Exception as error:  # noqa: BLE001 - reported by the parent, which goes on without this trial
        pipe.send(f"{type(error).__name__}: {error}")


def _results(running: list[_Share]) -> Iterator[Tried | Lost]:
    """Yield results as they come, until all tuners have ended. Replaces what ends within a trial in `running`."""
    left = list(range(len(running)))
    while left:
        ready = wait([running[place].pipe for place in left], min(running[place].left_s for place in left))
        for place in list(left):
            share = running[place]
            if share.pipe not in ready and share.left_s:
                continue
            found = share.receive() if share.pipe in ready else share.overdue()
            if isinstance(found, (Tried, Lost)):
                yield found
            if isinstance(found, (Tried, Trying)):
                continue
            failed = None if share.pipe in ready and found is None else share.failed()
            if failed is not None:
                yield failed
            if failed is None or time.monotonic() >= share.until_s:
                left.remove(place)
            else:
                running[place] = _started(share.tuner, share.cores, share.until_s, running)
