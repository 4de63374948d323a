"""`examples/fusion_rules` as an outside package: it proposes, forbids and brings kernels, and explain says so."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilestitch.compiler import compile_model
from tilestitch.passes import explain_node
from tilestitch.passes.api import assert_same_values
from tilestitch.runtime import load

EXAMPLE = Path(__file__).parents[3] / "examples" / "fusion_rules"
PACKAGE = "tilestitch_example_fusion"
SIBLINGS = f"{PACKAGE}.siblings:SiblingReductions"
APART = f"{PACKAGE}.apart:KeepApart"
SUMS = f"{PACKAGE}.row_sums:OwnRowSums"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    importlib.invalidate_caches()
    yield
    for name in [n for n in sys.modules if n.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def statistics() -> onnx.ModelProto:
    """The sum and the largest of each row, and the sum's sigmoid."""
    nodes = [
        helper.make_node("ReduceSum", ["x", "axes"], ["total"], name="sum", keepdims=1),
        helper.make_node("ReduceMax", ["x", "axes"], ["largest"], name="max", keepdims=1),
        helper.make_node("Sigmoid", ["total"], ["squashed"], name="squash"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [37, 130])
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [37, 1]) for n in ("largest", "squashed")]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "statistics", [x], outputs, [axes])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def explained(*passes: str, target: str = "cpu") -> dict[str, Any]:
    return dict(compile_model(statistics(), target=target, passes=passes).explain())


def test_a_rule_proposes_siblings_so_that_their_operand_is_read_once(example: None) -> None:
    (before,) = explained()["kernels"]
    assert before["kind"] == "stitched", "side by side at best, each reading its operand"
    (kernel,) = explained(SIBLINGS)["kernels"]
    assert kernel["kind"] == "rowwise" and {"sum", "max", "squash"} <= set(kernel["onnx_nodes"])


def test_a_rule_forbids_and_explain_names_it_for_the_node(example: None) -> None:
    explanation = explained(f"{APART}{{node=squash}}")
    told = explain_node(explanation, "squash")
    assert [k["onnx_nodes"] for k in told["kernels"]] == [["squash"]]
    (refusal, *_) = [r for r in told["refusals"] if r["rule"] == "keep_apart"]
    assert "squash is to be a kernel of its own" in refusal["reason"]


def test_explain_names_the_rule_that_made_an_edge(example: None) -> None:
    told = explain_node(explained(), "squash")
    rules = {s["rule"] for k in told["kernels"] for s in k["stitches"]}
    assert "rows" in rules


def test_a_plugin_brings_its_own_kernel(example: None) -> None:
    passes = (f"{APART}{{node=sum}}", SUMS)
    compiled = compile_model(statistics(), target="emulator", passes=passes, keep_source=True)
    launches = [x for k in compiled.explain()["kernels"] if k["onnx_nodes"] == ["sum"] for x in k["launches"]]
    assert [x["symbol"].startswith("own_row_sums_") for x in launches] == [True]
    x = np.random.default_rng(0).normal(size=(37, 130)).astype(np.float32)
    with load(compiled.to_bytes(), device="emulator") as module:
        result = module.run({"x": x})
    total = x.sum(1, keepdims=True, dtype=np.float64)
    np.testing.assert_allclose(result["squashed"], 1 / (1 + np.exp(-total)), rtol=1e-4)
    np.testing.assert_array_equal(result["largest"], x.max(1, keepdims=True))


def test_on_a_cpu_its_kernel_is_c(example: None) -> None:
    passes = (f"{APART}{{node=sum}}", f"{SUMS}{{cpu=true}}")
    compiled = compile_model(statistics(), passes=passes)
    launches = [x for k in compiled.explain()["kernels"] if k["onnx_nodes"] == ["sum"] for x in k["launches"]]
    assert [x["symbol"].startswith("own_row_sums_") for x in launches] == [True]
    assert_same_values(compiled, statistics())


def test_a_schedule_leaves_other_groups_to_the_templates(example: None) -> None:
    passes = (f"{APART}{{node=sum}}", f"{SUMS}{{least=131}}")
    names = [x["symbol"] for k in explained(*passes, target="emulator")["kernels"] for x in k["launches"]]
    assert not any(name.startswith("own_row_sums") for name in names)


def test_installed_all_three_are_found(tmp_path: Path) -> None:
    """As `pip install` would put it into site-packages; no network is used."""
    source = shutil.copytree(EXAMPLE, tmp_path / "source", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    command += ["--no-deps", "--no-build-isolation", "--target", str(tmp_path / "site"), str(source)]
    subprocess.run(command, check=True, timeout=120)
    script = "import sys; sys.path.insert(0, sys.argv[1])\nfrom tilestitch.passes import *\nprint(load_plugins())"
    command = [sys.executable, "-c", script, str(tmp_path / "site")]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, cwd="/").stdout
    for name in ("SiblingReductions", "KeepApart", "OwnRowSums", "tilestitch-example-fusion 0.1.0"):
        assert name in found
