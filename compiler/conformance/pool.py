"""Worker processes that survive the death of a case: a worker that dies or hangs costs that case only."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

from onnx import ModelProto

from tilestitch.compiler.conformance.cases import Case
from tilestitch.compiler.conformance.compare import compare
from tilestitch.compiler.conformance.engines import Prepare, Run
from tilestitch.compiler.conformance.outcome import PASS, Outcome, classify

# Forked, so that the cases, which take seconds to make, exist already; the engine is imported in the worker.
CONTEXT = multiprocessing.get_context("fork")
Engine = Callable[[], Prepare]
"""Function that starts an engine in a worker."""
RECYCLE_AFTER = 400  # cases; bounds the engine's leaks


def run_case(prepare: Prepare, case: Case) -> Outcome:
    """Run CASE and judge the results; never raises for faults of the engine."""
    status, reason = PASS, ""
    start = time.perf_counter()
    try:
        check_case(prepare, case)
    except Exception as error:  # noqa: BLE001 - whatever an engine raises is the outcome of the case
        status, reason = classify(error)
    return Outcome(case.name, case.kind, case.operators, status, reason, time.perf_counter() - start)


def check_case(prepare: Prepare, case: Case) -> None:
    """Run CASE; raises the engine's errors, or Mismatch."""
    run = prepare(case.model)
    for inputs, expected in case.data_sets():
        compare(list(run(inputs)), expected, case.rtol, case.atol)


@dataclass
class Worker:
    process: ForkProcess
    pipe: Connection
    served: int = 0
    index: int | None = None
    deadline: float = 0.0


def run_all(
    engine: Engine, cases: Sequence[Case], jobs: int, timeout_s: float, show: Callable[[Outcome], None]
) -> list[Outcome]:
    """Run CASES on ENGINE in JOBS processes; SHOW is called with each outcome as it comes."""
    outcomes: dict[int, Outcome] = {}
    queue = deque(range(len(cases)))
    workers: list[Worker] = []
    try:
        while queue or any(worker.index is not None for worker in workers):
            _staff(workers, engine, cases, min(jobs, len(queue)))
            for worker in workers:
                if worker.index is None and queue:
                    worker.index = queue.popleft()
                    worker.deadline = time.monotonic() + timeout_s
                    worker.pipe.send(worker.index)
            for index, outcome in _collect(workers, cases, timeout_s):
                outcomes[index] = outcome
                show(outcome)
    finally:
        for worker in workers:
            _stop(worker)
    return [outcomes[index] for index in sorted(outcomes)]


def _staff(workers: list[Worker], engine: Engine, cases: Sequence[Case], wanted: int) -> None:
    """Replace the workers that have died or have served long enough; WANTED is their number."""
    for worker in [worker for worker in workers if worker.index is None and worker.served >= RECYCLE_AFTER]:
        _stop(worker)
        workers.remove(worker)
    while len(workers) < wanted:
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=_work, args=(theirs, engine, cases), daemon=True)
        process.start()
        theirs.close()
        workers.append(Worker(process, ours))


def _collect(workers: list[Worker], cases: Sequence[Case], timeout_s: float) -> Iterator[tuple[int, Outcome]]:
    busy = [worker for worker in workers if worker.index is not None]
    patience = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
    ready = wait([worker.pipe for worker in busy], patience)
    for worker in busy:
        assert worker.index is not None
        if worker.pipe in ready:
            try:
                outcome = worker.pipe.recv()
            except (EOFError, ConnectionResetError):
                worker.process.join()
                outcome = _lost(cases[worker.index], "crash", _manner(worker.process.exitcode))
        elif time.monotonic() >= worker.deadline:
            outcome = _lost(cases[worker.index], "timeout", f"took more than {timeout_s:g} s")
        else:
            continue
        index, worker.index = worker.index, None
        worker.served += 1
        if outcome.status in ("crash", "timeout"):
            _stop(worker)
            workers.remove(worker)
        yield index, outcome


def _lost(case: Case, status: str, reason: str) -> Outcome:
    return Outcome(case.name, case.kind, case.operators, status, reason)


def _manner(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"the process was ended by {signal.Signals(-exitcode).name}"
    return f"the process exited with code {exitcode}"


def _stop(worker: Worker) -> None:
    worker.pipe.close()
    worker.process.kill()
    worker.process.join()


def _work(pipe: Connection, engine: Engine, cases: Sequence[Case]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops us
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    warnings.simplefilter("ignore")
    prepare = _start(engine)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            pipe.send(run_case(prepare, cases[pipe.recv()]))


def _start(engine: Engine) -> Prepare:
    """Return the engine's `prepare`, or, if the engine cannot start, one that fails every case for that reason."""
    try:
        return engine()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told with each case
        reason = error

    def fail(model: ModelProto) -> Run:
        raise reason

    return fail
