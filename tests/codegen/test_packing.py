"""Packed groups on a CPU: one list of tasks, whatever kernels they are of."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiled import assert_close
from tests.strategies import feeds
from tilestitch.codegen.assemble import Planned, assemble
from tilestitch.codegen.cpu.backend import CpuBackend
from tilestitch.codegen.cpu.target import host_target
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.passes import PassContext, TargetInfo, make_plan
from tilestitch.passes.fusion.rules.combining import Packing
from tilestitch.runtime import load
from tilestitch.runtime.artifact_writer import artifact_bytes
from tilestitch.runtime.program import NativeStep


def branches() -> Graph:
    """A GEMM, a softmax, a convolution, a sum of one long row (with threads for its parts, several launches), a gather
    with checks, and an exp.
    """
    rng = np.random.default_rng(0)
    graph = Graph("branches")
    x = graph.add_input("x", TensorType("float32", (13, 24)))
    image = graph.add_input("image", TensorType("float32", (1, 9, 11, 3)))
    line = graph.add_input("line", TensorType("float32", (1 << 21,)))
    index = graph.add_input("index", TensorType("int64", (5,)))
    gemm = graph.emit("matmul", x, graph.constant(rng.normal(size=(24, 17)).astype(np.float32)))
    largest = graph.emit("reduce_max", x, axes=(1,), keepdims=True)
    weights = graph.emit("exp", graph.emit("sub", x, largest))
    softmax = graph.emit("div", weights, graph.emit("reduce_sum", weights, axes=(1,), keepdims=True))
    kernel = graph.constant(rng.normal(size=(3, 3, 3, 8)).astype(np.float32))
    attrs = {"strides": (1, 1), "before": (1, 1), "after": (1, 1), "dilations": (1, 1), "groups": 1, "layout": "NXC"}
    convolved = graph.emit("conv", image, kernel, **attrs)
    total = graph.emit("reduce_sum", line, axes=(0,), keepdims=False)
    picked = graph.emit("gather", x, index, axis=0)
    graph.outputs = [gemm, softmax, convolved, total, picked, graph.emit("abs", image)]
    return graph


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_branches_of_every_kind_run_together(threads: int) -> None:
    graph = branches()
    context = PassContext(TargetInfo("cpu", threads), {"planner": "stitch"}, rules=(Packing(forced=True),))
    plan = make_plan(graph, context)
    (group,) = plan.groups
    assert len(group.parts) == 6
    names = tuple(f"y{i}" for i in range(len(graph.outputs)))
    backend = CpuBackend(host_target(), threads)
    assembled = assemble([Planned(graph, plan, names)], backend, keep_source=False, progress=lambda *_: None)
    (step,) = assembled.contents.programs[0].steps
    assert isinstance(step, NativeStep)
    rounds = [6, 2, 1] if threads > 1 else [6, 1]
    assert [len(together) for together in _rounds(step)] == rounds, "first launches together, then second ones, ..."
    given = {**feeds(graph, 3), "index": np.array([0, 12, -13, 5, 5])}
    expected = evaluate(graph, given)
    with load(artifact_bytes(assembled.contents), num_threads=threads) as module:
        for _ in range(3):
            for want, got in zip(expected, module.run(given).values(), strict=True):
                assert_close(got, want, 1e-5)


def _rounds(step: NativeStep) -> list[list[str]]:
    rounds: list[list[str]] = []
    for launch in step.launches:
        if not launch.packed:
            rounds.append([])
        rounds[-1].append(launch.symbol)
    return rounds
