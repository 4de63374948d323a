"""The device queue without a device: what runs when, what a planted fault costs, how a later call goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.device import run_queue
from benchmarks.device.case import LONG_S, Case, Setup
from benchmarks.device.journal import FILE, Journal, lines_of, read
from benchmarks.device.processes import Running
from benchmarks.device.queue_parts import PARTS, Part
from benchmarks.device.run_queue import Queue, run_parts
from tests.benchmarks.device import planted

ENOUGH_S = 20.0
SOON_S = 0.3
PART = Part("X", "none", 60.0, "?")


def case(n: int, run: Callable[[], Mapping[str, Any]] | None = None, limit_s: float = ENOUGH_S, **more: Any) -> Case:
    return Case("X", {"n": n}, run or (lambda: {"value": n}), limit_s, **more)


def queue(folder: Path, cases: Sequence[Case], budget_s: float = 60.0, part: Part = PART, **more: Any) -> Queue:
    """A call of the queue with these cases; `sources` and `alive` may be given."""
    journal = Journal(folder, more.pop("sources", "sources"))
    made = Queue(journal, folder / "queue.log", time.monotonic() + budget_s, **more)
    run_parts(made, [(part, cases)])
    return made


def states(queue: Queue) -> list[tuple[int, str]]:
    return [(outcome.case.key["n"], outcome.state) for outcome in queue.outcomes]


def hang() -> dict[str, Any]:
    time.sleep(3600)
    return {}


def crash() -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGSEGV)
    return {}


def fail() -> dict[str, Any]:
    raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")


# --- faults cost their own case --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "limit_s", "state"), [(hang, SOON_S, "hung"), (crash, ENOUGH_S, "crashed"), (fail, ENOUGH_S, "failed")]
)
def test_a_fault_costs_its_own_case_and_is_tried_once_more_after_the_others(
    fault: Callable[[], dict[str, Any]], limit_s: float, state: str, tmp_path: Path
) -> None:
    cases = [case(1, fault, limit_s), case(2), case(3)]
    assert states(queue(tmp_path, cases)) == [(1, state), (2, "measured"), (3, "measured"), (1, state)]
    assert states(queue(tmp_path, cases)) == []


def test_a_case_that_spoils_its_process_spoils_no_other(tmp_path: Path) -> None:
    """What a case leaves in its process, such as a CUDA context with a sticky error, is gone with it."""
    spoilt: list[int] = []

    def spoil() -> dict[str, Any]:
        spoilt.append(1)
        raise RuntimeError("sticky")

    ran = queue(tmp_path, [case(1, spoil), case(2, lambda: {"spoilt": len(spoilt)})])
    assert ran.journal.histories[case(2).name].end["row"] == {"spoilt": 0}


def test_what_hung_waits_for_what_only_failed(tmp_path: Path) -> None:
    ran = queue(tmp_path, [case(1, hang, SOON_S), case(2, fail)])
    assert [n for n, _ in states(ran)] == [1, 2, 2, 1]


def test_what_a_hanging_case_started_is_ended_with_it(tmp_path: Path) -> None:
    def with_child() -> dict[str, Any]:
        child = subprocess.Popen(["sleep", "3600"])
        (tmp_path / "pid").write_text(str(child.pid))
        return hang()

    queue(tmp_path, [case(1, with_child, 1.0)])
    wait_for_end(int((tmp_path / "pid").read_text()))


def test_a_gpu_that_does_not_answer_after_a_fault_ends_the_call(tmp_path: Path) -> None:
    """The cases that follow are no failures: they are open for the next call."""
    cases = [case(1, crash), case(2)]
    ran = queue(tmp_path, cases, alive=lambda: False)
    assert ran.is_lost
    assert states(ran) == [(1, "crashed")]
    assert Journal(tmp_path, "sources").standing(cases[1]) == "open"


def test_the_gpu_is_asked_only_after_a_hang_or_a_crash(tmp_path: Path) -> None:
    asked: list[int] = []
    queue(tmp_path, [case(1), case(2, fail)], alive=lambda: bool(asked.append(1)))
    assert asked == []


def test_results_that_are_no_json_are_failures(tmp_path: Path) -> None:
    (first, *_) = queue(tmp_path, [case(1, lambda: {"value": object()})]).outcomes
    assert first.state == "failed"
    assert "not JSON serializable" in first.error


def test_a_result_that_was_cut_off_is_a_crash(tmp_path: Path) -> None:
    result = (tmp_path / "result").open("w+b")
    result.write(b'{"row": {"value"')
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    running = Running(case(1), pid, result, time.monotonic(), time.monotonic() + ENOUGH_S)
    while (outcome := running.outcome()) is None:
        time.sleep(0.01)
    assert outcome.state == "crashed"


def test_the_number_of_a_process_that_has_ended_is_not_used_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be another process's."""
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    assert states(queue(tmp_path, [case(1)])) == [(1, "measured")]
    assert killed == []


def test_what_a_case_prints_and_where_it_hangs_is_in_the_log(tmp_path: Path) -> None:
    queue(tmp_path, [case(1, lambda: print("said") or {}), case(2, hang, 3.0), case(3, crash)])  # type: ignore[func-returns-value]
    log = (tmp_path / "queue.log").read_text()
    assert 'X {"n": 1}\nsaid' in log
    assert "Timeout" in log and "in hang" in log
    assert "Segmentation fault" in log


# --- time ------------------------------------------------------------------------------------------------------------


def test_the_end_of_the_call_is_no_fault_of_the_case(tmp_path: Path) -> None:
    cases = [case(1, hang)]
    ran = queue(tmp_path, cases, budget_s=run_queue.LEAST_S + 0.5)
    assert states(ran) == [(1, "cut")]
    assert Journal(tmp_path, "sources").standing(cases[0]) == "open"


def test_nothing_is_started_with_too_little_time(tmp_path: Path) -> None:
    assert states(queue(tmp_path, [case(1)], budget_s=run_queue.LEAST_S / 2)) == []
    assert states(queue(tmp_path, [case(1, limit_s=LONG_S), case(2)], budget_s=LONG_S / 3)) == [(2, "measured")]


def test_parts_get_their_budget_first_and_the_rest_of_the_call_after_that(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "sources")
    made = Queue(journal, tmp_path / "queue.log", time.monotonic() + 60.0)
    slow = [Case("X", {"n": n}, lambda: time.sleep(0.2) or {}) for n in range(3)]  # type: ignore[func-returns-value]
    run_parts(made, [(Part("X", "none", 0.1, "?"), slow), (Part("Y", "none", 1.0, "?"), [Case("Y", {"n": 9}, dict)])])
    assert [n for n, _ in states(made)] == [0, 9, 1, 2]


def test_several_cases_at_a_time(tmp_path: Path) -> None:
    """Each waits for the other's file."""

    def meet(mine: str, other: str) -> Callable[[], dict[str, Any]]:
        def run() -> dict[str, Any]:
            (tmp_path / mine).touch()
            while not (tmp_path / other).exists():
                time.sleep(0.01)
            return {}

        return run

    both = [case(1, meet("a", "b"), 20), case(2, meet("b", "a"), 20)]
    ran = queue(tmp_path, both, part=Part("X", "none", ENOUGH_S, "?", 2))
    assert sorted(states(ran)) == [(1, "measured"), (2, "measured")]


# --- calls go on -----------------------------------------------------------------------------------------------------


def test_what_is_measured_is_not_measured_again_unless_it_is_something_else_now(tmp_path: Path) -> None:
    assert states(queue(tmp_path, [case(1, fingerprint="old")])) == [(1, "measured")]
    assert states(queue(tmp_path, [case(1, fingerprint="old")])) == []
    assert states(queue(tmp_path, [case(1, fingerprint="new")])) == [(1, "measured")]


def test_a_failure_is_tried_again_when_the_sources_have_changed(tmp_path: Path) -> None:
    queue(tmp_path, [case(1, fail)])
    assert states(queue(tmp_path, [case(1, fail)])) == []
    assert states(queue(tmp_path, [case(1)], sources="mended")) == [(1, "measured")]


def test_a_call_that_is_killed_is_continued_where_it_was(tmp_path: Path) -> None:
    """The case under way is known by its start, and comes last."""
    with subprocess.Popen([sys.executable, "-m", planted.__name__, str(tmp_path)]) as call:
        while not any('"n": 2' in line for line in lines_of(tmp_path)):
            time.sleep(0.01)
        call.kill()
    (tmp_path / "go").touch()
    assert states(planted.run(tmp_path)) == [(3, "measured"), (2, "measured")]
    assert [history.end["row"] for history in read(lines_of(tmp_path)).values()] == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_call_that_is_ended_while_it_opens_the_journal_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue(tmp_path, [case(1)])
    kept = lines_of(tmp_path)
    with open(tmp_path / FILE, "a") as file:
        file.write('{"event": "sta')  # the machine stopped in the middle of it

    def stopped(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", stopped)
        with pytest.raises(KeyboardInterrupt):
            Journal(tmp_path, "sources")
    assert lines_of(tmp_path) == kept
    assert Journal(tmp_path, "sources").standing(case(1)) == "done"
    assert lines_of(tmp_path) == kept


def test_a_case_ends_with_the_call_that_started_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-m", planted.__name__, str(tmp_path)]) as call:
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        call.kill()
    wait_for_end(int((tmp_path / "pid").read_text()))


def wait_for_end(pid: int) -> None:
    """Until the process is gone, or waits for the one that collects the dead."""
    stat = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(FileNotFoundError):
        while stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
            time.sleep(0.01)


def test_what_ended_two_calls_is_left_alone(tmp_path: Path) -> None:
    for _ in range(2):
        Journal(tmp_path, "sources").start(case(1))
    assert Journal(tmp_path, "sources").standing(case(1)) == "settled"


def test_a_journal_that_was_cut_off_in_a_line_goes_on(tmp_path: Path) -> None:
    queue(tmp_path, [case(1), case(2)])
    text = (tmp_path / "queue.jsonl").read_text()
    (tmp_path / "queue.jsonl").write_text(text[:-20])
    assert states(queue(tmp_path, [case(1), case(2)])) == [(2, "measured")]
    assert Journal(tmp_path, "sources").standing(case(2)) == "done"


def test_a_new_folder_goes_on_with_the_results_of_an_earlier_one(tmp_path: Path) -> None:
    queue(tmp_path / "a", [case(1)])
    before = lines_of(tmp_path / "a")
    journal = Journal(tmp_path / "b", "sources", tmp_path / "a")
    assert journal.standing(case(1)) == "done"
    assert lines_of(tmp_path / "b") == before
    again = Journal(tmp_path / "b", "sources", tmp_path / "a")
    assert len(again.histories) == 1
    assert lines_of(tmp_path / "b") == before


# --- the plan for the first call -------------------------------------------------------------------------------------


def test_the_first_parts_fit_one_call() -> None:
    """Ten minutes a call: right or wrong, our own figures, and what the card can do."""
    first = [part.name for part in PARTS[:9]]
    assert first == ["S0", "B1", "B3", "D1", "D2", "A1", "A2", "A3", "A4"]
    assert sum(part.budget_s for part in PARTS[:5]) <= 480


def test_parts_that_take_minutes_a_case_come_last() -> None:
    assert [part.name for part in PARTS[-2:]] == ["M3", "M4"]


def test_parts_need_neither_onnx_nor_a_compiler() -> None:
    """On the machine with the GPU there may be numpy, ml_dtypes and cuda-bindings only."""
    modules = sorted({f"benchmarks.device.{part.cases.partition(':')[0]}" for part in PARTS})
    script = "import sys; sys.modules.update(dict.fromkeys(('onnx', 'tvm', 'torch', 'jax', 'networkx')))\n"
    script += "".join(f"import {module}\n" for module in modules)
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_part_that_cannot_be_made_costs_no_other(tmp_path: Path) -> None:
    part = replace(PARTS[0], name="X1", cases="no_such_module:cases")
    other = replace(PARTS[0], name="X2")
    made, (said,) = run_queue.cases_of([part, other], Setup(tmp_path), "")
    assert made == [(other, [])]
    assert said.startswith("X1  cannot be made: ModuleNotFoundError: ") and "no_such_module" in said


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(SystemExit):
        run_queue.main(["--only", "A99"])
