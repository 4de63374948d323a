"""Random graphs: every planner's kernels compute what numpy computes, on the CPU and on the emulated GPU.

120 graphs and 30 by default; `make fuzz` draws 2000 and 500.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.codegen.cuda.cuda_harness import emulated
from tests.compiled import assert_close, compile_planned
from tests.mixed_graphs import mixed_graphs
from tests.strategies import feeds, graphs
from tests.tolerances import MODELS, RANDOM_MODELS
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.passes.contract import PassContext
from tilestitch.passes.fusion.planners import PLANNERS
from tilestitch.passes.pipeline import run_pipeline
from tilestitch.passes.plan import StitchPlan
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.planner import make_plan
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions
from tilestitch.runtime.emulator.options import ORDERS

SHARDS = 8
"""Parts of the fuzzing, for the processes that tests run in."""
GRAPHS = max(15, settings().max_examples // SHARDS)
"""Graphs of each part."""

fuzzing = settings(max_examples=GRAPHS, suppress_health_check=list(HealthCheck))


def check(graph: Graph, expected: Sequence[Any], results: Sequence[Any]) -> None:
    # All values of a graph that computes with float16 somewhere may be as far off as those.
    half = any(v.dtype == "float16" for node in graph.nodes for v in (*node.inputs, *node.outputs))
    for actual, wanted in zip(results, expected, strict=True):
        assert_close(actual, wanted, RANDOM_MODELS["float16"] if half else MODELS["float32"])


def reference(graph: Graph, inputs: Mapping[str, Any]) -> list[Any]:
    note(str(graph))
    with np.errstate(all="ignore"):
        return evaluate(graph, inputs)


def different_plans(graph: Graph) -> dict[str, tuple[str, Graph, StitchPlan]]:
    """The planners whose plans are not those of another, with the graph that each plans and its plan, by its groups."""
    found: dict[str, tuple[str, Graph, StitchPlan]] = {}
    for planner in PLANNERS:
        context = PassContext(TargetInfo("cpu", 2), options={"planner": planner})
        prepared = run_pipeline(graph, context)
        plan = make_plan(prepared, context)
        groups = str([(group.kind.value, group.nodes, group.stages) for group in plan.groups])
        found.setdefault(groups, (planner, prepared, plan))
    return found


@pytest.mark.parametrize("shard", range(SHARDS))
@given(graph=st.one_of(mixed_graphs(), mixed_graphs(), graphs()), special=st.booleans())
@fuzzing
def test_every_planner_agrees_with_numpy(shard: int, graph: Graph, special: bool) -> None:
    inputs = feeds(graph, special=special)
    expected = reference(graph, inputs)
    for groups, (planner, prepared, plan) in different_plans(graph).items():
        note(f"planner {planner}: {groups}")
        with load(compile_planned(prepared, plan), num_threads=2) as module:
            check(graph, expected, list(module.run(dict(inputs)).values()))


@pytest.mark.parametrize("shard", range(2))
@given(
    graph=mixed_graphs(), planner=st.sampled_from(list(PLANNERS)), order=st.sampled_from(ORDERS), special=st.booleans(),
    sync=st.sampled_from(("off", "tile", "row", "kernel")),
)  # fmt: skip
@fuzzing
def test_kernels_on_the_emulated_gpu_agree_with_numpy(
    shard: int, graph: Graph, planner: str, order: str, special: bool, sync: str
) -> None:
    inputs = feeds(graph, special=special)
    expected = reference(graph, inputs)
    with load(emulated(graph, planner, sync=sync), device=EmulatorOptions(block_order=order, seed=3)) as module:
        check(graph, expected, list(module.run(dict(inputs)).values()))
