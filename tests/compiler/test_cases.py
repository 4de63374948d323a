"""Kernels by region of sizes, from the model to the results: the right one is run, and its results are right."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser

from tests.compiled import assert_close
from tests.compiler.test_open_kernels import HEAD, inputs
from tests.tolerances import MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.compiler.cli.main import main
from tilestitch.compiler.driver import CompiledModel
from tilestitch.passes.open import cases as chooser
from tilestitch.passes.schedule.structure import Known
from tilestitch.runtime import load

pytest.importorskip("onnxruntime")

DIMS = {"b": (1, 8), "s": (1, 4096)}
STEPS = 40


def model(columns: int = 96) -> ModelProto:
    found: ModelProto = parser.parse_model(
        f"{HEAD}(float[b, s, {STEPS}] x) => (float[b, s, {columns}] y) {{ m = MatMul(x, w)  y = Relu(m) }}"
    )
    weights = np.random.default_rng(0).standard_normal((STEPS, columns)).astype(np.float32)
    found.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return found


def any_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have cases wherever there is a difference, so that small GEMMs have some; forget those that were found before."""
    monkeypatch.setattr(chooser, "LEAST_GAIN", 0.0)
    monkeypatch.setattr(chooser, "_KNOWN", Known())


def _any_regions(first: int, costs: Sequence[Sequence[float]], most: int) -> list[int]:
    """A candidate for one row, another for two, and another for all more."""
    count = len(costs[0])
    return [(min(point, 2) + first) % count for point in range(len(costs))]


def check(compiled: CompiledModel, proto: ModelProto, device: str, most: int = 4096) -> None:
    """Sizes around every border: results, and the kernel that is run, by its name in the profile."""
    (kernel,) = compiled.explain()["kernels"]
    cases = kernel["cases"]
    assert cases["size"] == "b * s"
    reference = rivals.onnxruntime(proto, 1)
    starts = [region["from"] for region in cases["regions"][1:]]
    rows = sorted({1, *(n for start in starts for n in (start - 1, start, start + 1) if n <= most)})
    with load(compiled.to_bytes(), device=device) as module:
        for n in (*rows, *rows[::-1]):
            b = next(b for b in (3, 2, 1, 5, 7, 8) if n % b == 0 and n // b <= 4096)
            feeds = inputs(proto, {"b": b, "s": n // b})
            for actual, wanted in zip(module.run(feeds).values(), reference(feeds), strict=True):
                assert_close(actual, wanted, MODELS["float32"])
            region = next(each for each in reversed(cases["regions"]) if each["from"] <= n)
            assert [one.symbol for one in module.profile(feeds)] == [one["symbol"] for one in region["launches"]]


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulated device needs g++")
def test_a_gemm_on_the_emulated_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    any_gain(monkeypatch)
    proto = model(640)
    compiled = compile_model(proto, "emulator", dims=DIMS)
    assert len(compiled.explain()["kernels"][0]["cases"]["regions"]) >= 2
    check(compiled, proto, "emulator", most=600)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulated device needs g++")
@pytest.mark.parametrize("columns", [5, 96])
def test_every_kernel_is_right_at_every_size(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a table has them: those for few rows, too, are right for many."""
    proto = model(columns)
    reference = rivals.onnxruntime(proto, 1)
    seen: set[str] = set()
    for first in range(3):
        monkeypatch.setattr(chooser, "regions", partial(_any_regions, first))
        monkeypatch.setattr(chooser, "_KNOWN", Known())
        compiled = compile_model(proto, "emulator", dims=DIMS)
        seen.update(str(each["schedule"]) for each in compiled.explain()["kernels"][0]["cases"]["regions"])
        with load(compiled.to_bytes(), device="emulator") as module:
            for b, s in [(1, 1), (1, 2), (1, 3), (2, 2), (3, 3), (1, 17), (5, 20)]:
                feeds = inputs(proto, {"b": b, "s": s})
                for actual, wanted in zip(module.run(feeds).values(), reference(feeds), strict=True):
                    assert_close(actual, wanted, MODELS["float32"])
    assert any("open_gemv" in each for each in seen)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_gemm_on_the_cpu(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are stored once."""
    any_gain(monkeypatch)
    proto = model(512)
    compiled = compile_model(proto, "cpu", dims=DIMS, num_threads=threads)
    assert sum(array.nbytes for array in compiled.contents.weights.values()) < 1.2 * 4 * STEPS * 512
    check(compiled, proto, "cpu")


def test_explain_shows_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    any_gain(monkeypatch)
    path = tmp_path / "m.tsm"
    compiled = compile_model(model(512), "cpu", dims=DIMS, num_threads=2)
    compiled.save(path)
    regions = compiled.explain()["kernels"][0]["cases"]["regions"]
    assert main(["explain", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "schedules by region of sizes:" in shown
    assert f"{regions[0]['from']} .. {regions[0]['below'] - 1}" in shown
    assert f"{regions[-1]['from']} .." in shown
    for rows in (1, regions[-1]["from"]):
        region = next(each for each in reversed(regions) if each["from"] <= rows)
        assert (
            main(
                [
                    "explain",
                    str(path),
                    "--launches",
                    "--dim",
                    f"b=1,s={rows}" if rows <= 4096 else f"b=8,s={rows // 8 + 1}",
                ]
            )
            == 0
        )
        assert region["launches"][0]["symbol"] in capsys.readouterr().out
    assert main(["explain", str(path), "--report", str(tmp_path / "r.html")]) == 0
    assert "Schedules by region of sizes" in (tmp_path / "r.html").read_text()


def test_a_convolution_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one image, a layer whose tasks are whole images is cut so that there is work for both threads."""
    any_gain(monkeypatch)
    proto: ModelProto = parser.parse_model(
        f"{HEAD}(float[b, 1024, 7, 7] x) => (float[b, 64, 7, 7] y) {{ c = Conv(x, w)  y = Relu(c) }}"
    )
    weights = np.random.default_rng(0).standard_normal((64, 1024, 1, 1)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    reference = rivals.onnxruntime(proto, 1)
    compiled = compile_model(proto, "cpu", dims={"b": (1, 64)}, num_threads=2)
    (cases,) = (kernel["cases"] for kernel in compiled.explain()["kernels"] if "cases" in kernel)
    assert cases["size"] == "b"
    first, *others = ([launch["symbol"] for launch in region["launches"]] for region in cases["regions"])
    assert others
    with load(compiled.to_bytes(), num_threads=2) as module:
        for b in (1, 2, 3, 4, 8, 1):
            feeds = inputs(proto, {"b": b})
            for actual, wanted in zip(module.run(feeds).values(), reference(feeds), strict=True):
                assert_close(actual, wanted, MODELS["float32"])
            names = {one.symbol for one in module.profile(feeds)}
            assert names.issuperset(first) == (b < cases["regions"][1]["from"])
