"""Shares of a machine: disjoint cores, tasks divided evenly, and tuners whose end costs only what they had left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from multiprocessing.connection import Connection
from typing import Any

import pytest

from tilestitch.compiler.errors import TuningError
from tilestitch.compiler.tune import shares
from tilestitch.compiler.tune.machine import Share, Turn, shares_of
from tilestitch.compiler.tune.shares import divided, tune_side_by_side
from tilestitch.compiler.tune.tasks import TuningTask
from tilestitch.compiler.tune.tuner import Tried, Trying
from tilestitch.passes.plan import Group, GroupKind

KERNEL = Group("kernel", GroupKind.INJECTIVE, ("add",), None, ("x",), (), ("add",))
CORES = sorted(os.sched_getaffinity(0))


@dataclass
class Scripted:
    """A tuner that tries the schedules of a script; functions in it are called."""

    script: tuple[Any, ...]
    before: list[Tried] = field(default_factory=list)

    def tune(self, until_s: float, turn: Turn) -> Iterator[Trying | Tried]:
        for step in islice(self.script, len(self.before), None):
            yield Trying("structure", KERNEL)
            yield Tried("structure", KERNEL, step() if callable(step) else step)


def tuned(*scripts: tuple[Any, ...], seconds: float = 30.0) -> tuple[list[float | None], list[shares.Lost]]:
    tuners: Any = [Scripted(script) for script in scripts]
    tried, lost = tune_side_by_side(tuners, [Share(CORES[:1])] * len(scripts), seconds, lambda _: None)
    return sorted(one.ratio for one in tried if one.ratio is not None), lost


def test_shares_have_cores_of_their_own_for_all_threads_of_a_run() -> None:
    assert shares_of(range(8), 2) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert shares_of(range(7), 3) == [(0, 1, 2), (3, 4, 5)]
    assert shares_of(range(8), 2, wanted=3) == [(0, 1), (2, 3), (4, 5)]
    assert shares_of(range(2), 1, wanted=9) == [(0,), (1,)]


def test_a_run_with_all_cores_has_one_share() -> None:
    assert shares_of(range(2), 2) == [(0, 1)]
    assert shares_of(range(2), 16) == [(0, 1)]


def test_tasks_are_divided_by_their_time() -> None:
    tasks = [TuningTask(str(us), (KERNEL,), us) for us in (5.0, 4.0, 3.0, 3.0, 1.0)]
    found = divided(tasks, 2)
    assert [sum(task.latency_us for task in share) for share in found] == [8.0, 8.0]
    assert sorted(task.structure for share in found for task in share) == ["1.0", "3.0", "3.0", "4.0", "5.0"]
    assert len(divided(tasks[:1], 2)) == 1


def test_results_of_all_tuners_arrive() -> None:
    assert tuned((0.5, None, 0.7), (0.9,)) == ([0.5, 0.7, 0.9], [])


def test_a_tuner_runs_on_the_cores_of_its_share_only() -> None:
    found, _ = tuned((lambda: float(len(os.sched_getaffinity(0))),))
    assert found == [1.0]
    assert sorted(os.sched_getaffinity(0)) == CORES


def test_a_tuner_that_dies_loses_only_what_it_was_trying() -> None:
    found, lost = tuned((0.5, lambda: os.kill(os.getpid(), signal.SIGSEGV), 0.1), (0.9, 0.8))
    assert found == [0.1, 0.5, 0.8, 0.9]
    assert [(one.reason, one.trying) for one in lost] == [("it ended with code -11", KERNEL)]


def test_a_trial_that_takes_too_long_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "TRIAL_S", 1.0)
    assert tuned((0.5, lambda: time.sleep(600), 0.1), (0.9,)) == ([0.1, 0.5, 0.9], [])


def test_a_trial_that_takes_too_long_is_ended_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "TRIAL_S", 1.0)
    assert tuned((0.5, lambda: time.sleep(600), 0.1), (0.9,), seconds=0.5) == ([0.5, 0.9], [])


def test_a_tuner_that_begins_no_trial_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "TRIAL_S", 1.0)
    stuck: Any = Scripted(())
    stuck.tune = lambda until_s, turn: iter(lambda: time.sleep(600), 0)
    tried, lost = tune_side_by_side([stuck], [Share(CORES[:1])], 30.0, lambda _: None)
    assert (tried, [one.reason for one in lost]) == ([], ["it took more than 1 s to begin a trial"])


def fails(error: Exception) -> Any:
    def step() -> float:
        raise error

    return step


def test_an_error_of_a_tuner_is_reported() -> None:
    found, lost = tuned((0.5, fails(MemoryError("no memory")), 0.1), (0.9,))
    assert found == [0.1, 0.5, 0.9]
    assert [one.reason for one in lost] == ["MemoryError: no memory"]


def test_wrong_results_end_all_tuners() -> None:
    with pytest.raises(TuningError, match="output y differs"):
        tuned((0.5, fails(TuningError("output y differs"))), (lambda: time.sleep(600),))


def test_tuners_end_when_their_parent_is_killed() -> None:
    """They can send what they find to nothing, and must not wait for a reader for ever."""
    ours, theirs = shares.CONTEXT.Pipe(duplex=False)  # which all of them hold until they end

    def parent() -> None:
        script: Any = [chain([lambda: theirs.send(os.getpid())], repeat(0.5)) for _ in range(2)]
        tuned(*script)

    process = shares.CONTEXT.Process(target=parent)
    process.start()
    theirs.close()
    pids = ours.recv(), ours.recv()
    process.kill()
    process.join()
    ended = ours.poll(20)
    if not ended:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    assert ended
    with pytest.raises(EOFError):
        ours.recv()


def test_a_tuner_that_is_ended_within_a_message_is_lost() -> None:
    theirs, ours = os.pipe()
    os.write(ours, (1000).to_bytes(4, "big") + b"the first bytes")
    os.close(ours)
    process = shares.CONTEXT.Process(target=lambda: None)
    process.start()
    assert isinstance(shares._Running(Scripted(()), Share([]), 0.0, process, Connection(theirs)).receive(), shares.Lost)


def test_an_interrupt_keeps_what_was_found() -> None:
    """In a process of its own, so that an interrupt that comes too late is not one of the tests."""
    ours, theirs = shares.CONTEXT.Pipe(duplex=False)

    def interrupt() -> float:
        time.sleep(0.5)  # so that the first result has arrived, and the parent waits for the next one
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(600)
        return 0.0

    def parent() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
        theirs.send(tuned((0.5, interrupt)))

    process = shares.CONTEXT.Process(target=parent)
    process.start()
    theirs.close()
    found, lost = ours.recv()
    process.join()
    assert found == [0.5]
    assert [one.reason for one in lost] == ["an interrupt ended it"]
