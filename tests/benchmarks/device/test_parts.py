"""The parts of the queue on the strict stand-in for the driver: every call of theirs is one that a driver takes.

Kernels do not execute there; what is computed is tested elsewhere.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.device import bundle, gemm_bundle, open_cases, package, run_queue
from benchmarks.device.a4_order import early_blocks
from benchmarks.device.b2_sanitizer import FOUND, verdict
from benchmarks.device.bundle import Entry
from benchmarks.device.bundle_kernels import KERNELS, SOURCES, compile_cubin
from benchmarks.device.bundle_sizes import onnx_of
from benchmarks.device.cards import CARDS
from benchmarks.device.case import Case, Setup, WrongResult
from benchmarks.device.feeds import PERIOD, random_like, relative_error, sample
from benchmarks.device.gemm_bundle import Shape
from benchmarks.device.gpu import Gpu
from benchmarks.device.journal import Journal, calls, lines_of, read
from benchmarks.device.launch_orders import has_branches, without_priorities
from benchmarks.device.m5_orders import check_same
from benchmarks.device.output import left_behind
from benchmarks.device.queue_parts import PARTS
from benchmarks.device.run_queue import Queue, run_parts
from benchmarks.device.sizes import BY_NAME
from tests.runtime.cuda.standin.build import build, missing
from tests.runtime.cuda.standin.child import StandIn, run
from tilestitch.compiler import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.cuda.driver import CudaError
from tilestitch.runtime.program import DeviceLaunch, DeviceStep

CLUSTERED = Shape("clusters", 2048, 1024, 64)
OPERATOR = "attention_1x16x2048x128.float16"


def two_branches(size: int = 512) -> onnx.ModelProto:
    """A GEMM after a GEMM, and beside them a GEMM after a Softmax."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.standard_normal((size, size), np.float32), name) for name in "uvw"]
    nodes = [helper.make_node("MatMul", ["x", "u"], ["a"]), helper.make_node("MatMul", ["a", "v"], ["b"]),
             helper.make_node("Softmax", ["y"], ["s"]), helper.make_node("MatMul", ["s", "w"], ["c"])]  # fmt: skip
    x, y, b, c = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, size]) for name in "xybc")
    graph = helper.make_graph(nodes, "two_branches", [x, y], [b, c], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a little of everything."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("bundle")
    size = partial(bundle._stripped, OPERATOR, partial(onnx_of, BY_NAME[OPERATOR]), "fp32", {})
    chosen = [
        Entry("cases", "softmax_small.float32", partial(bundle.bundle_case, "softmax_small", "float32")),
        Entry("cases", "long_rows_small.float32", partial(bundle.bundle_case, "long_rows_small", "float32")),
        Entry("open", "open.rows", partial(bundle.bundle_open, "open.rows", open_cases.CASES["rows"])),
        Entry("gemm", CLUSTERED.name, partial(gemm_bundle.bundle, CLUSTERED)),
        Entry("sizes", OPERATOR, size),
        Entry("models", "m.fp32", lambda f: {**size(f), "model": "bert_base", "precision": "fp32"}),
        Entry(
            "models",
            "b.fp32",
            partial(bundle._stripped, "b.fp32", two_branches, "fp32", {"model": "two_towers", "precision": "fp32"}),
        ),
        Entry("shares", "share.two", partial(bundle.bundle_shares, "share.two", partial(two_branches, 64))),
    ]
    lists = bundle.Lists(folder, "this compiler")
    assert bundle.build(lists, chosen) == 0
    for suffix in (".tsm", ".graph"):
        (folder / f"m.fp32{suffix}").write_bytes((folder / f"{OPERATOR}{suffix}").read_bytes())
    package.pack(folder, lists.files(), folder.with_suffix(".tar.xz"))
    return folder.with_suffix(".tar.xz")


def call(archive: Path, out: Path, *options: str, gpus: str = "H200") -> subprocess.CompletedProcess[str]:
    """A call of the queue in a process of its own, on the stand-in for a machine with these GPUs."""
    command = [sys.executable, "-m", "tests.runtime.cuda.standin", "--gpus", gpus, "--", sys.executable, "-m"]
    command += ["benchmarks.device.run_queue", "--dry-run", "--bundle", str(archive), "--out", str(out), *options]
    return subprocess.run(command, cwd=package.ROOT, capture_output=True, text=True, check=False)


def dry_run(archive: Path, out: Path, *options: str, gpus: str = "H200") -> dict[str, Any]:
    """The last events of all cases by name, after a call."""
    done = call(archive, out, *options, gpus=gpus)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [folder.name for folder in out.iterdir()] == [gpus.lower()]
    assert list(left_behind(out)) == []
    return {name: history.end for name, history in read(lines_of(out / gpus.lower())).items()}


def test_our_kernels_are_launched_as_a_driver_wants_it(archive: Path, tmp_path: Path) -> None:
    """Clusters, cooperative launches, tensor maps and large shared memory among them; what was made for an H200 runs
    on an H100, and is compared with what was predicted for that.
    """
    ends = dry_run(archive, tmp_path, "--only", "S0,B1,B3,D1,S1,M1,M5", gpus="H100")
    assert [end["part"] for end in ends.values()] == ["S0", "S0", "B1", "B1", "B3", "D1", "S1", "M1", "M1", "M5"]
    assert {end["state"] for end in ends.values()} == {"measured"}
    assert ends['B1 {"name": "softmax_small.float32"}']["row"] == {"relative_error": None, "right": None}
    assert calls(lines_of(tmp_path / "h100"))[0]["gpu"]["multiprocessors"] == 132
    assert "NVIDIA H100 80GB HBM3" in (tmp_path / "h100" / "README.md").read_text()
    assert [end["row"]["planned"] for end in ends.values() if end["part"] == "B3"] == [True]
    (size,) = Setup(package.unpacked(archive)).listing("sizes")
    assert [end["row"]["predicted_us"] for end in ends.values() if end["part"] == "D1"] == [
        size["predicted_us"]["h100"]
    ]


def test_orders_of_launches_beside_the_planned_one(archive: Path) -> None:
    """Branches become a chain over the same kernels; a chain, as `m` is, has no other order."""
    folder = package.unpacked(archive)
    listed = {entry["name"]: entry for entry in Setup(folder).listing("models")}
    assert not listed["m.fp32"]["orders"]
    planned, chain = (read_artifact(folder / f"{name}.tsm") for name in ("b.fp32", "b.fp32.one_at_a_time"))
    (step,), (other,) = planned.programs[0].steps, chain.programs[0].steps
    assert isinstance(step, DeviceStep) and isinstance(other, DeviceStep)
    assert has_branches(step) and not has_branches(other)
    assert step.launches == other.launches
    alone_us, together_us = (listed["b.fp32"][name] for name in ("one_at_a_time_us", "predicted_us"))
    assert all(alone_us[card] > together_us[card] for card in CARDS)


def test_priorities_are_left_out_in_an_order_of_their_own() -> None:
    launches = tuple(DeviceLaunch("k", (1, 1, 1), (32, 1, 1), 0, (), priority=n) for n in (0, 2))
    assert [launch.priority for launch in without_priorities(DeviceStep(launches, ())).launches] == [0, 0]


@pytest.mark.parametrize("spoilt", [False, True])
def test_an_order_that_gives_other_bytes_is_found(spoilt: bool) -> None:
    content = compile_model(two_branches(8)).to_bytes()
    planned, other = load(content), load(content)
    run = other.run

    def spoil(feeds: Any) -> Any:
        found = run(feeds)
        found["c"].reshape(-1)[-1] += float(spoilt)
        return found

    other.run = spoil  # type: ignore[method-assign, assignment]
    with pytest.raises(WrongResult, match="'c' of order 'one_at_a_time'") if spoilt else contextlib.nullcontext():
        check_same({"planned": planned, "one_at_a_time": other})


@pytest.mark.parametrize(
    ("part", "some", "least"),
    [
        ("A1", "16", 3),
        ("A2", "132", 5),
        ("A3", "cluster", 3),
        ("A4", "1.", 12),
        ("A5", "1.0", 3),
        ("A5", "unlike", 2),
        ("A5", "partition", 4),
        ("A9", "", 3),
    ],
)
def test_measurements_of_the_card_run_through(part: str, some: str, least: int, archive: Path, tmp_path: Path) -> None:
    ends = dry_run(archive, tmp_path, "--only", part, "--match", some)
    assert len(ends) >= least
    assert {end["state"] for end in ends.values()} == {"measured"}


def test_a_kernel_that_faults_breaks_its_own_context_only(archive: Path, tmp_path: Path) -> None:
    setup = Setup(package.unpacked(archive), executes=False)

    def fault() -> dict[str, Any]:
        """A pointer to no memory; every later call of the process fails too."""
        gpu = Gpu(setup.kernels("launch"))
        gpu.launch(gpu.function("busy"), 1, 1, (0xDEAD0000,))
        with contextlib.suppress(CudaError):
            gpu.synchronize()
        gpu.buffer(16)
        return {"went": "on"}

    def work() -> dict[str, Any]:
        gpu = Gpu(setup.kernels("launch"))
        gpu.launch(gpu.function("empty"), 1, 1, (gpu.buffer(16),))
        gpu.synchronize()
        return {}

    def queue(standin: StandIn) -> None:
        made = Queue(Journal(tmp_path, "sources"), tmp_path / "queue.log", time.monotonic() + 120)
        run_parts(made, [(PARTS[0], [Case("S0", {"n": 1}, fault), Case("S0", {"n": 2}, work)])])
        states = [(outcome.case.key["n"], outcome.state) for outcome in made.outcomes]
        # The two run side by side and end in any order; what failed is tried once more, alone.
        assert sorted(states[:2]) == [(1, "failed"), (2, "measured")], states
        assert states[2:] == [(1, "failed")], states

    run(build(), queue)


def test_without_a_gpu_nothing_is_tried(archive: Path, tmp_path: Path) -> None:
    done = call(archive, tmp_path, "--only", "S0", gpus="")
    assert done.returncode == 4
    assert "there is no GPU to measure" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_second_call_has_nothing_to_do_unless_it_meets_another_card(archive: Path, tmp_path: Path) -> None:
    earlier = ("--only", "S0", "--earlier", str(tmp_path / "a"))
    dry_run(archive, tmp_path / "a", "--only", "S0")
    before = lines_of(tmp_path / "a" / "h200")
    ends = dry_run(archive, tmp_path / "b", *earlier)
    assert len(lines_of(tmp_path / "b" / "h200")) == len(before) + 1  # the call itself
    assert len(ends) == 2
    dry_run(archive, tmp_path / "c", *earlier, gpus="H100")
    assert len(lines_of(tmp_path / "c" / "h100")) == len(before)


def test_results_in_the_folder_of_another_card_are_refused(archive: Path, tmp_path: Path) -> None:
    Journal(tmp_path / "h100", "sources").call({"gpu": {"name": "NVIDIA H200"}, "executes": False})
    done = call(archive, tmp_path, "--only", "S0", gpus="H100")
    assert done.returncode == 2
    assert "has results of NVIDIA H200, which say nothing of h100" in done.stderr
    assert len(lines_of(tmp_path / "h100")) == 1


def test_a_dry_run_needs_a_folder_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_queue.main(["--dry-run"])
    assert "give --out" in capsys.readouterr().err


def test_a_bundle_of_another_version_is_refused_at_once(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = package.unpacked(archive)
    damaged = tmp_path / "bundle"
    damaged.mkdir()
    (damaged / "cases.json").write_text((there / "cases.json").read_text())
    (damaged / "softmax_small.float32.tsm").write_bytes(b"no artifact")
    package.pack(damaged, damaged.iterdir(), tmp_path / "b.tar.xz")
    assert run_queue.main(["--bundle", str(tmp_path / "b.tar.xz"), "--out", str(tmp_path / "out")]) == 2
    assert "make the bundle again" in capsys.readouterr().err


# --- kernels and what is made of their results ---------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES)
def test_kernels_compile_for_hopper(source: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    pytest.importorskip("nvidia", reason="NVRTC comes from its wheel")
    assert compile_cubin((KERNELS / f"{source}.cu").read_text())[:4] == b"\x7fELF"


def test_kernels_that_do_not_compile_say_why() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    pytest.importorskip("nvidia")
    with pytest.raises(RuntimeError, match="undefined"):
        compile_cubin("__global__ void k() { nothing(); }")


def test_what_the_sanitizer_says() -> None:
    clean = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors"
    assert verdict(0, clean) == {"clean": True, "summary": "ERROR SUMMARY: 0 errors", "first": ""}
    bad = "========= Invalid __global__ write of size 4 bytes\n========= ERROR SUMMARY: 1 error"
    assert verdict(FOUND, bad)["first"] == "Invalid __global__ write of size 4 bytes"
    with pytest.raises(RuntimeError, match="exit code 1: no module"):
        verdict(1, "no module")


def test_early_blocks_are_counted() -> None:
    assert early_blocks(np.array([1, 1, 2, 2])) == 0
    assert early_blocks(np.array([1, 2, 1, 2])) == 1


def test_the_relative_error_sees_nan_and_unwritten_outputs() -> None:
    reference = np.array([3.0, 4.0])
    assert relative_error([(reference, reference), (np.array([3.0, 4.5]), reference)]) == pytest.approx(0.1)
    assert not relative_error([(np.array([np.nan, 4.0]), reference), (reference, reference)]) <= 1.0
    assert relative_error([(np.array([np.nan, 4.0]), np.array([np.nan, 4.0]))]) == 0.0


def test_random_inputs_have_no_equal_rows_and_reach_all_of_a_type() -> None:
    made = random_like(np.random.default_rng(0), "float16", (2, PERIOD))
    assert made.shape == (2, PERIOD)
    rows = random_like(np.random.default_rng(0), "float32", (1024, 1024))
    assert len({row.tobytes() for row in rows}) == 1024
    small = random_like(np.random.default_rng(0), "int8", (5000,))
    assert (small.min(), small.max()) == (-128, 127)
    assert random_like(np.random.default_rng(0), "float32", (0, 3)).shape == (0, 3)


def test_samples_are_of_all_columns() -> None:
    large = np.arange(2048 * 1024).reshape(2048, 1024)
    columns = sample(large) % 1024
    assert len(set(columns)) == 1024
    assert sample(large[:1]).size == 1024
