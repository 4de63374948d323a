"""Compile an IR graph, or an ONNX model, and run it: what end-to-end tests share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilestitch.codegen.assemble import Planned, assemble
from tilestitch.codegen.cpu.backend import CpuBackend
from tilestitch.codegen.cpu.target import host_target
from tilestitch.compiler.ir import Graph
from tilestitch.passes.contract import PassContext
from tilestitch.passes.pipeline import run_pipeline
from tilestitch.passes.plan import StitchPlan
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.planner import make_plan
from tilestitch.runtime import load
from tilestitch.runtime.artifact_writer import artifact_bytes


def compile_graph(
    graph: Graph, planner: str = "stitch", pipeline: str | None = None, threads: int = 2, rules: Sequence[Any] = ()
) -> bytes:
    """The artifact of a graph, after the default pipeline or the given one (`""`: none); `rules` come first."""
    context = PassContext(TargetInfo("cpu", threads), options={"planner": planner}, rules=rules)
    prepared = run_pipeline(graph, context, pipeline)
    return compile_planned(prepared, make_plan(prepared, context), threads)


def compile_planned(prepared: Graph, plan: StitchPlan, threads: int = 2) -> bytes:
    """The artifact of a graph that passes have prepared, by its plan."""
    planned = [Planned(prepared, plan, tuple(f"y{i}" for i in range(len(prepared.outputs))))]
    contents = assemble(
        planned, CpuBackend(host_target(), threads), keep_source=False, progress=lambda *_: None
    ).contents
    return artifact_bytes(replace(contents, compiler_version="test"))


def run_graph(
    graph: Graph,
    feeds: Mapping[str, Any],
    planner: str = "stitch",
    pipeline: str | None = None,
    rules: Sequence[Any] = (),
) -> list[Any]:
    """The outputs of a compiled graph, in order."""
    with load(compile_graph(graph, planner, pipeline, rules=rules), num_threads=2) as module:
        return list(module.run(dict(feeds)).values())


def assert_close(actual: Any, expected: Any, tolerance: float) -> None:
    """Same dtype and shape, and no element further off than `tolerance` times the largest magnitude (at least 1)."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype, f"{actual.dtype} instead of {expected.dtype}"
    assert actual.shape == expected.shape, f"{actual.shape} instead of {expected.shape}"
    if expected.dtype.kind == "V":  # bfloat16 and the like
        actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    if expected.dtype.kind not in "fc":
        np.testing.assert_array_equal(actual, expected)
        return
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.where(finite, 0, actual), np.where(finite, 0, expected))
    scale = max(1.0, float(np.abs(expected[finite]).max(initial=0)))
    worst = float(np.abs(actual[finite].astype(np.float64) - expected[finite]).max(initial=0))
    assert worst <= tolerance * scale, f"off by {worst}, allowed is {tolerance * scale}"
