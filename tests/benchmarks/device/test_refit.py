"""From rows to constants of the cost model: what is read from where, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.device import refit
from benchmarks.device.case import Case
from benchmarks.device.journal import Journal
from benchmarks.device.processes import Outcome
from tilestitch.cost_model.devices import find_device

H200 = find_device("h200")


def results(
    folder: Path, rows: list[tuple[str, dict[str, Any], dict[str, Any]]], gpu: str | None = "NVIDIA H200"
) -> Path:
    """A folder of results with these rows: part, key, values."""
    journal = Journal(folder, "sources")
    journal.call({"gpu": {"name": gpu, "multiprocessors": 132, "l2_bytes": 60 << 20}})
    for part, key, row in rows:
        journal.end(Outcome(Case(part, key, dict), "measured", 1.0, row))
    return folder


def constants(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["constant"]: row for row in json.loads((folder / refit.FILE).read_text())}


def gemm(shape: str, us: float, planned: bool, **tile: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    facts = {"bm": 128, "bn": 256, "sharing": 2, "alternate": False, "cluster": 2, "stages": 4, "parts": 1} | tile
    row = {"device_us": us, "TFLOP_per_s": 2 * 4096**3 / us / 1e6}
    return "B3" if planned else "B5", {"shape": shape, "kernel": "gemm_wgmma", **facts, "planned": planned}, row


MEASURED = [
    ("A1", {"what": "copy", "MiB": 4096}, {"GB_per_s": 4320.0}),
    ("A1", {"what": "read", "MiB": 4096}, {"GB_per_s": 4000.0}),
    ("A1", {"what": "read", "MiB": 16}, {"GB_per_s": 10000.0}),
    ("A1", {"what": "gemm tf32", "n": 8192}, {"TFLOP_per_s": 0.5 * 494.7}),
    ("A1", {"what": "gemm float16", "n": 8192}, {"TFLOP_per_s": 0.8 * 989.4}),
    ("A1", {"what": "gemm bfloat16", "n": 8192}, {"TFLOP_per_s": 0.7 * 989.4}),
    ("A2", {"what": "graph of 100, full edges", "grid": 1}, {"us_per_node": 9.0}),
    ("A2", {"what": "graph of 100, full edges", "grid": 132}, {"us_per_node": 1.3}),
    ("A3", {"what": "grid barrier", "grid": 132, "block": 256}, {"ns_per_round": 1900.0}),
    ("A3", {"what": "semaphore between two blocks", "grid": 2, "block": 32}, {"ns_per_hand_over": 700.0}),
]


def test_constants_are_read_from_their_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refit.main([str(results(tmp_path, MEASURED))]) == 0
    found = {name: row["measured"] for name, row in constants(tmp_path).items()}
    assert found == pytest.approx({
        "GPU_LAUNCH_US": 1.3, "GPU_GRID_BARRIER_US": 1.9, "GPU_HAND_OVER_US": 0.7, "bandwidth_share": 0.9,
        "arithmetic_share": 0.7, "l2_bytes_per_cycle": 10e12 / 132 / 1.98e9, "l2_bytes": 60 << 20,
    })  # fmt: skip
    assert "GPU_LAUNCH_US" in capsys.readouterr().out


def test_every_constant_is_still_in_the_cost_model() -> None:
    """A constant that was moved or renamed there has to be found again here."""
    assert [constant.name for constant in refit.constants() if constant.now(H200) is None] == []


def test_what_was_not_measured_is_not_made_up(tmp_path: Path) -> None:
    refit.main([str(results(tmp_path, MEASURED[:1]))])
    known = constants(tmp_path)
    assert known["GPU_LAUNCH_US"]["measured"] is None
    assert known["bandwidth_share"]["factor"] == pytest.approx(0.9 / known["bandwidth_share"]["now"])


def test_a_tile_is_as_fast_as_on_the_gemm_that_suits_it(tmp_path: Path) -> None:
    us = 2 * 4096**3 / (0.9 * H200.peak_flops["float16"]) * 1e6
    rows = [gemm("square", us, True), gemm("tall", 2 * us, True), gemm("square", 3 * us, False, cluster=1)]
    refit.main([str(results(tmp_path, rows))])
    speeds = {name: row["measured"] for name, row in constants(tmp_path).items() if name.startswith("speed")}
    assert speeds == pytest.approx({"speed of 128 256 2 False 2 4": 0.9, "speed of 128 256 2 False 1 4": 0.3})
    assert constants(tmp_path)["speed of 128 256 2 False 2 4"]["now"] is not None


def test_the_plan_is_compared_with_the_best_kernel_and_the_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = ("B4", {"shape": "square", "by": "torch"}, {"device_us": 90.0})
    refit.main([str(results(tmp_path, [gemm("square", 120.0, True), gemm("square", 100.0, False, bm=64), library]))])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("square")]
    assert line.split()[:4] == ["square", "120", "100", "90"]


def test_predictions_are_compared_with_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = {"operator": "softmax", "shape": [4, 4], "dtype": "float32", "by": "tilestitch"}
    rows = [("D1", key, {"device_us": 10.0, "predicted_us": 20.0})]
    rows += [("D1", {**key, "dtype": "float16"}, {"device_us": 20.0, "predicted_us": 10.0})]
    refit.main([str(results(tmp_path, rows))])
    assert "off by a factor of 2.00" in capsys.readouterr().out


@pytest.mark.parametrize("options", [(), ("--device", "h100")])
def test_shares_are_of_the_card_that_the_results_name(options: tuple[str, ...], tmp_path: Path) -> None:
    rows = [("A1", {"what": "copy", "MiB": 4096}, {"GB_per_s": 0.9 * 3350})]
    gpu = None if options else "NVIDIA H100 80GB HBM3"
    assert refit.main([str(results(tmp_path, rows, gpu)), *options]) == 0
    assert constants(tmp_path)["bandwidth_share"]["measured"] == pytest.approx(0.9)


@pytest.mark.parametrize(("names", "reason"), [
    (("NVIDIA H100 80GB HBM3", "NVIDIA H200"), "name NVIDIA H100 80GB HBM3 and NVIDIA H200; say with --device"),
    ((None,), "no GPU; say with --device"), (("Another",), "no GPU called 'Another' is known"),
])  # fmt: skip
def test_results_of_no_one_card_are_refused(
    names: tuple[str | None, ...], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names:
        results(tmp_path, MEASURED[:1], name)
    assert refit.main([str(tmp_path)]) == 1
    assert reason in capsys.readouterr().err
    assert not (tmp_path / refit.FILE).exists()


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    assert refit.main([str(tmp_path)]) == 1
