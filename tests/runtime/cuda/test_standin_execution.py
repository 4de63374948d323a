"""From a model to the driver's calls to results: the stand-in's launches are executed on the emulated device."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.runtime.cuda.standin.child import StandIn
from tests.runtime.cuda.standin.execution import emulated, executor
from tests.runtime.cuda.test_compiled import model, wide_layers
from tilestitch.compiler import compile_model
from tilestitch.passes.open import cases
from tilestitch.passes.schedule.structure import Known
from tilestitch.runtime import load
from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.cuda.graph import LaunchGraph
from tilestitch.runtime.errors import ExecutionError

if shutil.which("g++") is None:
    pytest.skip("the emulated device needs g++", allow_module_level=True)

OnStandIn = Callable[[Callable[[StandIn], Any]], None]
SEEDS = (1, 2, 3)
"""Of the order of what streams and edges leave open."""


def branches() -> onnx.ModelProto:
    """Two branches of a GEMM and a softmax each, which meet; what one of them makes is a result, too."""
    rng = np.random.default_rng(1)
    w = [rng.standard_normal((48, 48)).astype(np.float32) for _ in range(2)]
    nodes = [
        *(helper.make_node("MatMul", ["x", f"w{i}"], [f"m{i}"], name=f"matmul_{i}") for i in range(2)),
        *(helper.make_node("Softmax", [f"m{i}"], [f"s{i}"], axis=-1, name=f"softmax_{i}") for i in range(2)),
        helper.make_node("Transpose", ["s1"], ["t"], perm=[1, 0], name="turn"),
        helper.make_node("MatMul", ["s0", "t"], ["y"], name="meet"),
    ]
    graph = helper.make_graph(
        nodes, "branches",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (40, 48))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (40, 40)),
         helper.make_tensor_value_info("s0", TensorProto.FLOAT, (40, 48))],
        [numpy_helper.from_array(array, f"w{i}") for i, array in enumerate(w)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def executed(
    proto: onnx.ModelProto, folder: Path, work: Callable[[Any], None], sync: str = "off"
) -> Callable[[StandIn], None]:
    """Call `work` with the model on the GPU, once for each order."""
    path = compile_model(proto, target="cuda:sm_90a", keep_source=True, sync=sync).save(folder / "m.tsm")
    kernels = emulated(read_artifact(path))

    def run(stand_in: StandIn) -> None:
        stand_in.execute(executor(kernels))
        for seed in SEEDS:
            stand_in.seed(seed)
            with load(path, device="cuda:0") as loaded:
                work(loaded)

    return run


def close(results: Any, expected: list[np.ndarray], tolerance: float) -> None:
    for result, wanted in zip(results, expected, strict=True):
        scale = float(np.abs(wanted).max())
        np.testing.assert_allclose(np.asarray(result, np.float64), wanted.astype(np.float64), 0, tolerance * scale)


@pytest.mark.parametrize(("proto", "shape", "dtype", "tolerance"), [
    (branches(), (40, 48), np.float32, 1e-5),
    (wide_layers(), (40, 64), np.float16, 4e-3),
], ids=["branches", "tensor maps"])  # fmt: skip
def test_results(
    on_standin: OnStandIn, tmp_path: Path, proto: onnx.ModelProto, shape: Any, dtype: Any, tolerance: float
) -> None:
    """Of arrays on the host and on the GPU, in a graph and one by one."""
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    expected = ReferenceEvaluator(proto).run(None, {"x": x})
    again = ReferenceEvaluator(proto).run(None, {"x": (2 * x).astype(dtype)})

    def work(loaded: Any) -> None:
        there = loaded.run({"x": x}, on_device=True)
        close([array.numpy() for array in there.values()], expected, tolerance)
        close(loaded.run({"x": (2 * x).astype(dtype)}).values(), again, tolerance)
        loaded.profile({"x": x})
        close(loaded.run({"x": x}).values(), expected, tolerance)
        loaded.run({"x": (2 * x).astype(dtype)}, there)
        close([array.numpy() for array in there.values()], again, tolerance)
        there.clear()

    on_standin(executed(proto, tmp_path, work))


def test_launches_that_overlap(on_standin: OnStandIn, tmp_path: Path) -> None:
    """In a graph with programmatic edges, in runs one after the other, and one launch at a time."""
    rng = np.random.default_rng(0)
    up, down = (rng.standard_normal(shape).astype(np.float32) for shape in ((40, 70), (70, 40)))
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["u"]),
        helper.make_node("Relu", ["u"], ["h"]),
        helper.make_node("MatMul", ["h", "down"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (70, 40)) for name in "xy"]
    weights = [numpy_helper.from_array(up, "up"), numpy_helper.from_array(down, "down")]
    graph = helper.make_graph(nodes, "mlp", ends[:1], ends[1:], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    x = rng.standard_normal((70, 40)).astype(np.float32)

    def work(loaded: Any) -> None:
        for scale in (1, 2, 3):
            expected = ReferenceEvaluator(proto).run(None, {"x": scale * x})
            close(loaded.run({"x": scale * x}).values(), expected, 1e-5)
            assert len(loaded.profile({"x": x})) == 2

    on_standin(executed(proto, tmp_path, work, "tile/launches"))


def test_faults_of_the_data(on_standin: OnStandIn, tmp_path: Path) -> None:
    """An index that is out of range is reported by the kernel; the next run is as if it had not been."""

    def work(loaded: Any) -> None:
        with pytest.raises(ExecutionError, match=r"rows: .*index"):
            loaded.run({"i": np.array([6, 0, 7])})
        good = {"i": np.array([6, 0, -1])}
        close(loaded.run(good).values(), ReferenceEvaluator(model()).run(None, good), 1e-5)

    on_standin(executed(model(), tmp_path, work))


def test_a_graph_without_its_edges_gives_other_results(
    on_standin: OnStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So an edge that is missing would be seen."""
    monkeypatch.setattr(LaunchGraph, "_add_edges", lambda graph, edges: None)
    x = np.random.default_rng(0).standard_normal((40, 48)).astype(np.float32)
    expected = ReferenceEvaluator(branches()).run(None, {"x": x})
    wrong = []

    def work(loaded: Any) -> None:
        wrong.append(not np.allclose(loaded.run({"x": x})["y"], expected[0], atol=1e-3))

    def run(stand_in: StandIn) -> None:
        executed(branches(), tmp_path, work)(stand_in)
        assert any(wrong)

    on_standin(run)


SIZED = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[b, s, 24] x, float[b, p, 24] past) => (float[b, t, t] y, float[b, t, 24] present) {
  present = Concat<axis=1>(past, x)
  turned = Transpose<perm=[0, 2, 1]>(present)
  scores = MatMul(present, turned)
  y = Softmax<axis=-1>(scores)
}"""


def test_open_sizes_alternate_and_memory_does_not_grow(on_standin: OnStandIn, tmp_path: Path) -> None:
    """A cache that grows, two shapes in turns, then more shapes than graphs are kept for; nothing is compiled, and what
    is loaded twice is given back once.
    """
    proto = onnx.parser.parse_model(SIZED)
    compiled = compile_model(
        proto, "cuda:sm_90a", keep_source=True, dims={"b": (1, 4), "s": (1, 40), "p": (1, 40)}
    ).save(tmp_path / "m.tsm")
    kernels = emulated(read_artifact(compiled))
    reference = ReferenceEvaluator(proto)

    def fed(b: int, s: int, p: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(s)
        return {n: rng.standard_normal((b, d, 24)).astype(np.float32) for n, d in (("x", s), ("past", p))}

    def run(stand_in: StandIn) -> None:
        stand_in.execute(executor(kernels))
        with load(compiled, device="cuda:0") as loaded:
            for sizes in [
                (2, 3, 5),
                (4, 17, 31),
                (2, 3, 5),
                (4, 17, 31),
                *((1, 1, p) for p in range(1, 14)),
                (2, 3, 5),
            ]:
                given = fed(*sizes)
                close(loaded.run(given).values(), reference.run(None, given), 1e-5)

    on_standin(run)


REGIONS = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[s, 40] x, float[40, 640] w) => (float[s, 640] y) { m = MatMul(x, w)  y = Relu(m) }"""


def test_a_graph_takes_the_kernel_of_the_region(
    on_standin: OnStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In graphs made for a shape, and, after more shapes than graphs are kept for, in those of other shapes."""
    monkeypatch.setattr(cases, "LEAST_GAIN", 0.0)
    monkeypatch.setattr(cases, "_KNOWN", Known())
    proto = onnx.parser.parse_model(REGIONS)
    made = compile_model(proto, "cuda:sm_90a", keep_source=True, dims={"s": (1, 4096)})
    regions = made.explain()["kernels"][0]["cases"]["regions"]
    starts = [region["from"] for region in regions[1:] if region["from"] < 200]
    assert starts
    compiled = made.save(tmp_path / "m.tsm")
    kernels = emulated(read_artifact(compiled))
    reference = ReferenceEvaluator(proto)

    def run(stand_in: StandIn) -> None:
        stand_in.execute(executor(kernels))
        rng = np.random.default_rng(0)
        with load(compiled, device="cuda:0") as loaded:
            for s in [n for start in starts for n in (start - 1, start, start + 1)] + [1, *range(30, 40), 1, *starts]:
                given = {n: rng.standard_normal(d).astype(np.float32) for n, d in (("x", (s, 40)), ("w", (40, 640)))}
                close(loaded.run(given).values(), reference.run(None, given), 1e-5)
                region = next(each for each in reversed(regions) if each["from"] <= s)
                assert [one.symbol for one in loaded.profile(given)] == [one["symbol"] for one in region["launches"]]

    on_standin(run)


CHOSEN = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[b, 24] x, bool[b] chosen, float[24, 40] w) => (float[n, 40] y, float[40] total, float[c, 24] both)
<int64[1] zero = {0}> {
  kept = Compress<axis=0>(x, chosen)
  m = MatMul(kept, w)
  y = Relu(m)
  total = ReduceSum<keepdims=0>(y, zero)
  both = Concat<axis=0>(kept, x)
}"""


def test_as_many_rows_as_the_data_says_none_among_them(on_standin: OnStandIn, tmp_path: Path) -> None:
    """A sum of no rows is launched, a GEMM of none is not; some, none and some again."""
    proto = onnx.parser.parse_model(CHOSEN)
    compiled = compile_model(proto, "cuda:sm_90a", keep_source=True)
    assert {each["rule"] for each in compiled.explain()["host"]["reasons"]} == {"host.data_dependent"}
    path = compiled.save(tmp_path / "m.tsm")
    kernels = emulated(read_artifact(path))
    reference = ReferenceEvaluator(proto)

    def run(stand_in: StandIn) -> None:
        stand_in.execute(executor(kernels))
        with load(path, device="cuda:0") as loaded:
            for rows, kept in [(1, 0), (7, 3), (7, 0), (97, 50), (1, 1), (13, 0), *((11, n) for n in range(11))]:
                rng = np.random.default_rng(rows)
                x, w = (rng.standard_normal((d, e)).astype(np.float32) for d, e in ((rows, 24), (24, 40)))
                given = {"x": x, "chosen": rng.permutation(rows) < kept, "w": w}
                for result, wanted in zip(loaded.run(given).values(), reference.run(None, given), strict=True):
                    np.testing.assert_allclose(result, wanted, 1e-4, 1e-4)

    on_standin(run)
