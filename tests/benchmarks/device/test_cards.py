"""One queue for several GPUs: what results of each are called, what fits the smallest, what is brought back."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

import pytest

from benchmarks.device import a1_ceilings, a5_concurrency, d1_sizes, gemm_bundle, output
from benchmarks.device.a8_tied import predicted_gains
from benchmarks.device.b3_gemm import WORK
from benchmarks.device.bundle_cases import TARGET
from benchmarks.device.bundle_sizes import onnx_of
from benchmarks.device.cards import CARDS, MEMORY_BYTES, card_of, told_for
from benchmarks.device.case import Case, Setup
from benchmarks.device.journal import Journal
from benchmarks.device.output import left_behind, shorten
from benchmarks.device.processes import Outcome
from benchmarks.device.queue_parts import PARTS
from benchmarks.device.run_queue import listed, strangers
from benchmarks.device.sizes import SIZES, Size
from tilestitch.codegen.cuda.target import parse_cuda_target
from tilestitch.compiler.frontend import import_model
from tilestitch.cost_model.devices import devices, find_device
from tilestitch.passes.plan.gemm.tiles import WgmmaTile

H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"


@pytest.mark.parametrize(("gpu", "card"), [
    (H100, "h100"), (H200, "h200"), ("NVIDIA H100 PCIe", "h100_pcie"), ("NVIDIA A100-SXM4-80GB", "a100-80"),
    ("NVIDIA H100 NVL", "h100_nvl"), ("NVIDIA H20", "nvidia_h20"),
    ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "nvidia_h100_80gb_hbm3_mig_1g.10gb"),
    ("../..", "unnamed"), ("", "unnamed"),
])  # fmt: skip
def test_results_are_called_after_the_card(gpu: str, card: str) -> None:
    assert card_of(gpu) == card


def test_no_two_devices_of_the_table_share_a_folder() -> None:
    folders = [card_of(device.name) for device in devices()]
    assert len(set(folders)) == len(folders)
    assert all(re.fullmatch(r"[a-z0-9._-]+", folder) for folder in folders)
    assert all(find_device(folder) is device for folder, device in zip(folders, devices(), strict=True))


def test_the_cards_run_what_the_bundle_is_compiled_for() -> None:
    """The same machine code; and no kernel waits for more blocks than the smallest of them holds."""
    assert gemm_bundle.TARGET == TARGET
    target = parse_cuda_target(TARGET)
    for card in map(find_device, CARDS):
        assert (card.architecture,) == target.architectures
        assert card.sm_count >= target.multiprocessors
        assert card.shared_bytes_per_block >= target.device.shared_bytes_per_block
        assert card.memory_bytes * 1.05 > MEMORY_BYTES


def test_predictions_are_for_the_card_that_is_there() -> None:
    times = {"h100": 3.0, "h200": 2.0}
    assert [told_for(gpu, times) for gpu in (H100, H200, "NVIDIA B200")] == [3.0, 2.0, None]
    forms = {"apart": {"predicted_us": times}, "tiles": {"predicted_us": {"h100": 1.5, "h200": 1.8}}}
    assert predicted_gains(H100, forms) == {"tiles_predicted_gain": 0.5}
    assert predicted_gains("NVIDIA B200", forms) == {}


def test_gemms_are_those_that_the_compiler_takes_for_each_card() -> None:
    shape = next(shape for shape in gemm_bundle.SHAPES if shape.name == "GPT-3 down, 1 of 8, 128 tokens")
    group = gemm_bundle.group_of(shape, parse_cuda_target(TARGET))
    plans = {card: gemm_bundle.planned_on(gemm_bundle.gemm_of(group), card) for card in CARDS}
    taken = {card: facts for facts, _ in gemm_bundle.candidates(group) for card in facts["planned"]}
    for card, plan in plans.items():
        assert isinstance(plan.tile, WgmmaTile)
        assert (taken[card]["bm"], taken[card]["bn"], taken[card]["parts"]) == (
            plan.tile.bm,
            plan.tile.bn,
            plan.split_k,
        )


# --- what fits -------------------------------------------------------------------------------------------------------


def reference_bytes(size: Size) -> int:
    """Of the values of the float64 reference, all of which it keeps, and as much again for what PyTorch needs."""
    graph = import_model(onnx_of(size)).graph
    values = (*graph.inputs, *(output for node in graph.nodes for output in node.outputs))
    return 2 * 8 * sum(prod(value.shape) for value in values)


def test_references_of_large_operators_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = {size.name: size for size in SIZES}
    entries = [{"name": name, "digest": ""} for name in by_name]
    monkeypatch.setattr(Setup, "listing", lambda setup, name: entries)
    judged = [case.run.args[1]["name"] for case in d1_sizes.right("D3", Setup(Path()))]  # type: ignore[attr-defined]
    assert judged
    assert max(reference_bytes(by_name[name]) for name in judged) <= MEMORY_BYTES


def test_what_is_measured_fits() -> None:
    """Two buffers of the largest copy; two reads side by side; a GEMM beside its operands in float32 and float64."""
    assert 2 * max(a1_ceilings.SIZES_MIB) << 20 <= MEMORY_BYTES
    assert 2 * a5_concurrency.READ_BYTES <= MEMORY_BYTES
    assert max(2 * size.moved_bytes for size in SIZES) <= MEMORY_BYTES
    for shape in gemm_bundle.SHAPES:
        work = WORK[type(shape).__name__.lower()](vars(shape))
        elements = prod(work.a) + prod(work.b) + 3 * prod(work.y)
        assert (2 + 4 + 8) * elements <= MEMORY_BYTES, shape.name


# --- whose results ---------------------------------------------------------------------------------------------------


def journal_of(folder: Path, gpu: str, *measured: int, executes: bool = True) -> Path:
    journal = Journal(folder, "sources")
    journal.call({"gpu": {"name": gpu}, "executes": executes})
    for n in measured:
        journal.end(Outcome(Case("X", {"n": n}, dict), "measured", 1.0, {}))
    return folder


def test_results_of_another_card_or_of_a_dry_run_are_strangers(tmp_path: Path) -> None:
    real, dry = journal_of(tmp_path / "a", H200), journal_of(tmp_path / "b", H200, executes=False)
    assert list(strangers(real, "h200", True)) == list(strangers(dry, "h200", False)) == []
    assert [text.partition(" has ")[2] for text in strangers(real, "h100", True)] == [
        "results of NVIDIA H200, which say nothing of h100; move them to a folder h200"
    ]
    assert ["of a dry run" in text for text in strangers(dry, "h200", True)] == [True]
    assert ["of real calls" in text for text in strangers(real, "h200", False)] == [True]
    assert list(strangers(tmp_path / "none", "h100", True)) == []


def test_a_call_without_a_gpu_is_no_stranger(tmp_path: Path) -> None:
    Journal(tmp_path, "sources").call({"gpu": {"problem": "there is no GPU"}})
    assert list(strangers(tmp_path, "h100", True)) == []


def test_what_is_open_is_listed_for_each_card_without_a_gpu(tmp_path: Path) -> None:
    part, cases = PARTS[0], [Case("X", {"n": n}, dict) for n in (1, 2)]
    journal_of(tmp_path / "old" / "h100", H100, 1)
    journal_of(tmp_path / "old" / "h200", H200, 1)
    journal_of(tmp_path / "new" / "h200", H200, 1, 2)
    lines = list(listed((tmp_path / "old", tmp_path / "new"), [(part, cases)], set()))
    assert [line.split()[0] for line in lines] == ["h100:", "S0", "h200:", "S0"]
    assert "1 done, 1 open" in lines[1] and "2 done" in lines[3]
    (empty, counts) = listed((None, tmp_path / "none"), [(part, cases)], set())
    assert empty == "no results yet:" and "2 open" in counts


# --- what comes back -------------------------------------------------------------------------------------------------


def test_a_log_that_grows_too_long_keeps_its_beginning_and_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "MOST_LOG_BYTES", 1000)
    log = tmp_path / "queue.log"
    shorten(log)
    assert not log.exists()
    log.write_bytes(b"begin" + b"." * 991 + b"last")
    shorten(log)
    assert log.stat().st_size == 1000
    log.write_bytes(b"begin" + b"." * 10_000 + b"last")
    with open(log, "ab") as other:
        shorten(log)
        other.write(b" more")
    kept = log.read_bytes()
    assert kept.startswith(b"begin") and kept.endswith(b"last more") and output.LEFT_OUT in kept
    assert len(kept) < 600


def test_what_would_stay_on_a_lent_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "out" / "h100"
    folder.mkdir(parents=True)
    for number in range(8):
        (folder / f"{number}.json").touch()
    assert list(left_behind(tmp_path / "out")) == []
    deep = folder / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "c d").write_text("four")
    monkeypatch.setattr(output, "MOST_BYTES", 3)
    reasons = list(left_behind(tmp_path / "out"))
    expected = ("has 9 files, of which 8 come back", "MiB come back", "more than 2 folders down", "a name of more than")
    assert [wanted in reason for wanted, reason in zip(expected, reasons, strict=True)] == [True] * 4
