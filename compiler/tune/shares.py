"""Shares of the machine, each with a tuner process of its own: tasks are divided among them, and tuned side by side.

Tuners that have cores (of a GPU: multiprocessors) of their own compile and measure concurrently, which is what makes
tuning fast: Dhakal et al., "Spatial Sharing of GPU for Autotuning DNN models" (arXiv 2008.03602). Neighbours still
share memory bandwidth and the last cache, so what a share finds is confirmed alone, in the whole model (`confirm`).
"""

import multiprocessing
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

from .machine import Share
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
class _Running:
    """A tuner on its share, and the process that it runs in, which is replaced if it ends within a trial."""

    tuner: Tuner
    share: Share
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


def divided(tasks: Sequence[TuningTask], count: int) -> list[list[TuningTask]]:
    """Divide tasks so that all shares have about as much of the model's time; fewer if there are fewer tasks."""
    shares: list[list[TuningTask]] = [[] for _ in range(min(count, len(tasks)))]
    for task in sorted(tasks, key=lambda one: -one.latency_us):
        min(shares, key=lambda share: sum(one.latency_us for one in share)).append(task)
    return shares


def tune_side_by_side(
    tuners: Sequence[Tuner], shares: Sequence[Share], seconds: float, tell: Tell
) -> tuple[list[Tried], list[Lost]]:
    """Run each tuner in a process of its own, on its share, for so many seconds; return what was tried, in the
    order of the results, and the processes that ended by themselves. tell: called with each result.

    A trial during which a process ends, or that takes too long, counts as failed, and another process goes on. An
    interrupt ends all tuners, and what was found until then is returned. Raises TuningError for a schedule that gives
    other results.
    """
    until_s = time.monotonic() + seconds
    running: list[_Running] = []
    tried: list[Tried] = []
    lost: list[Lost] = []
    try:
        for tuner, share in zip(tuners, shares, strict=True):
            running.append(_started(tuner, share, until_s, running))
        for one in _results(running):
            if isinstance(one, Lost):
                lost.append(one)
            else:
                tried.append(one)
                tell(one)
    except KeyboardInterrupt:
        tried += [one for each in running for one in each.left()]
        lost.append(Lost("an interrupt ended it", None))
    finally:
        for each in running:
            each.end()
    return tried, lost


def _started(tuner: Tuner, share: Share, until_s: float, others: Sequence[_Running]) -> _Running:
    """Start a tuner. others: those that run already."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    read = [*(one.pipe for one in others if not one.pipe.closed), ours]
    process = CONTEXT.Process(target=_work, args=(tuner, share, until_s, theirs, read), daemon=True)
    process.start()
    theirs.close()
    return _Running(tuner, share, until_s, process, ours)


def _work(tuner: Tuner, share: Share, until_s: float, pipe: Connection, of_parent: Sequence[Connection]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its tuners
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for inherited in of_parent:  # so that the parent alone reads, and a tuner whose parent was killed cannot send
        inherited.close()
    share.enter()
    try:
        for one in tuner.tune(until_s, share.turn):
            pipe.send(one)
        pipe.send(None)
    except BrokenPipeError:
        return
    except TuningError as error:
        pipe.send(error)
    except Exception as error:  # noqa: BLE001 - reported by the parent, which goes on without this trial
        pipe.send(f"{type(error).__name__}: {error}")


def _results(running: list[_Running]) -> Iterator[Tried | Lost]:
    """Yield results as they come, until all tuners have ended. Replaces what ends within a trial in `running`."""
    left = list(range(len(running)))
    while left:
        ready = wait([running[place].pipe for place in left], min(running[place].left_s for place in left))
        for place in list(left):
            one = running[place]
            if one.pipe not in ready and one.left_s:
                continue
            found = one.receive() if one.pipe in ready else one.overdue()
            if isinstance(found, (Tried, Lost)):
                yield found
            if isinstance(found, (Tried, Trying)):
                continue
            failed = None if one.pipe in ready and found is None else one.failed()
            if failed is not None:
                yield failed
            if failed is None or time.monotonic() >= one.until_s:
                left.remove(place)
            else:
                running[place] = _started(one.tuner, one.share, one.until_s, running)
