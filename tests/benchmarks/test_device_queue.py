"""The device queue without a device: what runs when, what is kept, how it is shown; and that scripts run through."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.device import gpu, record, render, run_queue
from benchmarks.device.queue_parts import PARTS, Part
from benchmarks.device.record import Recorder
from benchmarks.device.run_queue import GRACE_S, Outcome

FACTS = {
    "date": "2026-01-01T00:00:00+00:00",
    "command": [],
    "python": "3",
    "packages": {"torch": "2"},
    "gpu": {"name": "G"},
}


@pytest.fixture(autouse=True)
def _facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "provenance", lambda: FACTS)


def recorder(path: Path, budget_s: float = 60.0) -> Recorder:
    return Recorder(path, "A1", budget_s)


# --- recording ------------------------------------------------------------------------------------------------------


def test_rows_are_written_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    recorder(path).measure({"n": 1}, lambda: {"us": 2.5})
    data = json.loads(path.read_text())
    assert data["done"] is False
    assert data["provenance"] == FACTS
    assert data["rows"][0]["key"] == {"n": 1}
    assert data["rows"][0]["us"] == 2.5


def test_what_is_there_is_not_measured_again_but_errors_are(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    first = recorder(path)
    first.measure({"n": 1}, lambda: {"us": 1})
    first.measure({"n": 2}, lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    assert "ZeroDivisionError" in first.rows[1]["error"]
    second = recorder(path)
    second.measure({"n": 1}, lambda: pytest.fail("measured twice"))
    second.measure({"n": 2}, lambda: {"us": 4})
    assert [row["us"] for row in second.rows] == [1, 4]


def test_what_fails_is_tried_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for done in (False, True, True):
        again = recorder(path)
        again.measure({"n": 1}, lambda: 1 // 0)  # type: ignore[arg-type, return-value]
        again.save(done=True)
        assert json.loads(path.read_text())["done"] is done
    assert [row["tries"] for row in again.rows] == [2]


def test_out_of_time(tmp_path: Path) -> None:
    late = recorder(tmp_path / "a.json", budget_s=0.0)
    late.measure({"n": 1}, lambda: {"us": 1})
    late.save(done=True)
    data = json.loads((tmp_path / "a.json").read_text())
    assert (data["done"], data["skipped"], data["rows"]) == (False, 1, [])


def test_a_part_without_a_gpu_still_leaves_its_file(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    with pytest.raises(RuntimeError):
        record.run_part("A1", lambda r: (_ for _ in ()).throw(RuntimeError("no GPU")), ["--out", str(out)])
    assert json.loads(out.read_text())["done"] is False


# --- the queue ------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def queue(tmp_path: Path, budget_s: float, took_s: float, parts: tuple[Part, ...]) -> tuple[list[Outcome], list[float]]:
    clock, budgets = Clock(), []

    def run(part: Part, folder: Path, part_budget_s: float) -> Outcome:
        budgets.append(part_budget_s)
        clock.now += took_s
        return Outcome(part.name, "done", took_s)

    return run_queue.run_queue(parts, tmp_path, budget_s, run, clock), budgets


THREE = tuple(Part(name, "m", 100.0, "?") for name in ("X", "Y", "Z"))


def test_parts_get_their_budget_or_what_is_left(tmp_path: Path) -> None:
    outcomes, budgets = queue(tmp_path, 200.0 + GRACE_S, 90.0, THREE)
    assert budgets == [100.0, 100.0, 20.0]
    assert [outcome.state for outcome in outcomes] == ["done"] * 3


def test_no_part_is_started_with_too_little_time(tmp_path: Path) -> None:
    outcomes, budgets = queue(tmp_path, 120.0, 90.0, THREE)
    assert len(budgets) == 1
    assert [(outcome.state, outcome.note) for outcome in outcomes[1:]] == [("open", "no time left")] * 2


def test_done_parts_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "X.json").write_text('{"done": true}')
    (tmp_path / "Y.json").write_text("cut off")
    outcomes, budgets = queue(tmp_path, 1000.0, 1.0, THREE)
    assert [outcome.note for outcome in outcomes] == ["before", "", ""]
    assert len(budgets) == 2


def test_a_part_that_fails_or_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part("X", "m", 1.0, "?")
    monkeypatch.setattr(run_queue, "command", lambda *a: ["python3", "-c", "import sys; sys.exit('it broke')"])
    outcome = run_queue.run_part(part, tmp_path, 5.0)
    assert (outcome.state, outcome.note) == ("failed", "it broke")
    monkeypatch.setattr(run_queue, "GRACE_S", 0.0)
    monkeypatch.setattr(run_queue, "command", lambda *a: ["python3", "-c", "import time; time.sleep(30)"])
    assert run_queue.run_part(part, tmp_path, 0.3).state == "timed out"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="python -P")
def test_parts_run_without_an_installation(tmp_path: Path) -> None:
    """An interpreter without site-packages finds our packages."""
    code = "import tilestitch.runtime.errors, benchmarks.device.queue_parts"
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", code], env=run_queue.environment(), cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0, done.stderr


def test_the_list_says_what_is_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_queue.main(["--out", str(tmp_path), "--list", "--only", "A2,A1"]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["A2", "open"], ["A1", "open"]]
    with pytest.raises(SystemExit):
        run_queue.main(["--only", "A99"])


def test_the_first_parts_fit_one_call() -> None:
    """Ten minutes a call: the parts about the card itself and the patterns."""
    assert sum(part.budget_s for part in PARTS[:5]) + GRACE_S < 540
    assert all(part.budget_s + GRACE_S < 540 for part in PARTS)


# --- tables ---------------------------------------------------------------------------------------------------------


def test_tables(tmp_path: Path) -> None:
    results = recorder(tmp_path / "A1.json")
    results.measure({"what": "copy", "MiB": 4}, lambda: {"GB_per_s": 4123.4})
    results.measure({"what": "gemm | tf32", "shape": [2, 3]}, lambda: {"us": 12.3456, "right": True})
    results.save(done=True)
    text = render.text(tmp_path)
    assert "A1 (complete)" in text
    assert "4,123" in text
    markdown = render.markdown(tmp_path)
    assert "| what | MiB | GB_per_s | shape | us | right |" in markdown
    assert "| gemm / tf32 |  |  | 2x3 | 12.35 | yes |" in markdown
    assert "torch 2" in markdown
    assert render.text(tmp_path / "nowhere") == "nothing was measured yet"


# --- kernels and scripts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", gpu.SOURCES)
def test_kernels_compile_for_hopper(source: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    pytest.importorskip("nvidia", reason="NVRTC comes from its wheel")
    assert gpu.compile_cubin((gpu.KERNELS / f"{source}.cu").read_text(), "sm_90a")[:4] == b"\x7fELF"


def test_kernels_that_do_not_compile_say_why() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    pytest.importorskip("nvidia")
    with pytest.raises(RuntimeError, match="undefined"):
        gpu.compile_cubin("__global__ void k() { nothing(); }")


@pytest.fixture
def dry_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in for the driver, with kernels that do nothing: what is left are the scripts themselves."""
    pytest.importorskip("cuda.bindings.driver")
    from tests.runtime.cuda import fake_driver
    from tilestitch.runtime.cuda.driver import Driver

    symbols = {
        "copy": 3, "read": 3, "write": 3, "fma32": 3, "ex2": 3, "empty": 1, "empty_programmatic": 1, "busy": 1,
        "grid_barrier": 2, "ping_pong": 2, "cluster_barrier": 2, "block_barrier": 2, "mbarrier_ping_pong": 2, "draw": 3,
        "wait_for": 3, "post": 1, "kernel": 2,
    }  # fmt: skip

    def draw(pointers: Any, grid: Any, block: Any) -> None:
        """Blocks start in launch order."""
        taken = fake_driver.view(pointers[0], "uint32", 1)
        order = fake_driver.view(pointers[1] + 4 * int(taken[0]), "uint32", grid[0])
        order[...] = fake_driver.view(pointers[2], "uint32", 1)[0]
        taken[0] += grid[0]

    def copy_words(pointers: Any, grid: Any, block: Any) -> None:
        fake_driver.view(pointers[1], "uint32", 4)[...] = fake_driver.view(pointers[0], "uint32", 4)

    nothing: Callable[..., None] = lambda *a: None  # noqa: E731
    kernels = {**dict.fromkeys(symbols, nothing), "draw": draw, "kernel": copy_words}
    monkeypatch.setattr(fake_driver, "KERNELS", kernels)
    fake = fake_driver.FakeDriver([fake_driver.GPU(memory_bytes=8 << 30)], argument_counts=symbols)
    monkeypatch.setattr(gpu, "load_driver", lambda: Driver(fake))
    monkeypatch.setattr(gpu, "compile_cubin", lambda source, architecture: f"fake:{','.join(symbols)}".encode())
    return fake


@pytest.mark.parametrize("name", ["a2_launch", "a3_sync", "a4_order"])
def test_scripts_run_through(name: str, dry_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    script = importlib.import_module(f"benchmarks.device.{name}")
    results = recorder(tmp_path / "a.json")
    script.measure(results)
    assert [row for row in results.rows if "error" in row] == []
    assert len(results.rows) > 10


@pytest.mark.parametrize(
    ("result", "found"),
    [(7, {"bytes_different": 0, "first": None}), (6, {"bytes_different": 1, "first": "byte 4 of argument 1"})],
)
def test_what_the_emulated_device_did_is_compared(result: int, found: dict[str, Any], dry_gpu: Any) -> None:
    from benchmarks.device import c1_emulator

    x, y = np.array([5, 7, 0, 0], np.uint32), np.array([5, result, 0, 0], np.uint32)
    tensor_map = {"dtype": "uint32", "dims": [4], "strides_bytes": [], "box": [4], "element_strides": [1]}
    tensor_map |= {"swizzle": "none", "oob_fill": "zero", "l2_promotion": "128B"}
    case = {"test": "t", "text": "", "arguments": [0, 1], "maps": [tensor_map, None], "grid": 1, "block": 32}
    case |= {"shared_bytes": 0, "cluster": [1, 1, 1]}
    before = {0: x.view(np.uint8), 1: np.zeros(16, np.uint8)}
    assert c1_emulator.compare(case, before, {0: x.view(np.uint8), 1: y.view(np.uint8)}) == found


def test_bandwidths_and_pairs_run_through(dry_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.device import a1_ceilings, a5_concurrency

    device = gpu.Gpu("ceilings")
    assert a1_ceilings.bandwidth(device, "copy", 1)["GB_per_s"] == pytest.approx(2 * 2**20 / 2.0 / 1e3)
    assert a1_ceilings.driver_copy(device, 1)["us"] == pytest.approx(2.0)
    assert a1_ceilings.rate(device, "ex2", 8)["us"] == pytest.approx(2.0)
    monkeypatch.setattr(a5_concurrency, "READ_BYTES", 1 << 16)
    assert a5_concurrency.pair(device, "bandwidth", "compute", 1.0)["both_over_sum"] == pytest.approx(0.5)


def test_what_the_sanitizer_says() -> None:
    from benchmarks.device.b2_sanitizer import FOUND, verdict

    clean = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors"
    assert verdict(0, clean) == {"clean": True, "summary": "ERROR SUMMARY: 0 errors", "first": ""}
    bad = "========= Invalid __global__ write of size 4 bytes\n========= ERROR SUMMARY: 1 error"
    assert verdict(FOUND, bad)["first"] == "Invalid __global__ write of size 4 bytes"
    with pytest.raises(RuntimeError, match="exit code 1: no module"):
        verdict(1, "no module")


def test_early_blocks_are_counted() -> None:
    from benchmarks.device.a4_order import early_blocks

    assert early_blocks(np.array([1, 1, 2, 2]), 2) == 0
    assert early_blocks(np.array([1, 2, 1, 2]), 2) == 1


def test_the_relative_error_sees_nan_and_unwritten_outputs() -> None:
    from benchmarks.device.b1_ours import error

    reference = np.array([3.0, 4.0])
    assert error(np.array([3.0, 4.5]), reference) == pytest.approx(0.1)
    assert not error(np.array([np.nan, 4.0]), reference) <= 1.0
