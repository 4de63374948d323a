"""Planning takes a number of steps near linear in the number of nodes, for every kind of large graph.

Steps are calls of Python functions and methods, which are the same in every run, unlike seconds.
"""

from __future__ import annotations

import cProfile
import pstats

import pytest

from benchmarks.large_graphs import KINDS
from tilestitch.compiler.frontend import import_model
from tilestitch.passes.contract import PassContext
from tilestitch.passes.fusion.clusters import Cluster, Fusion
from tilestitch.passes.pipeline import run_pipeline
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.planner import make_plan

NODES = 200
MORE_NODES = {"constants": 800, "residual_mlp": 400}
"""Of kinds whose kernels are not yet as large as they may be."""
MOST_GROWTH = 2.5
"""Times the steps of twice the nodes: two for what is linear, four for what is quadratic."""


def steps(kind: str, nodes: int, target: str) -> int:
    graph = import_model(KINDS[kind](nodes)).graph
    context = PassContext(TargetInfo(target, 2))
    profile = cProfile.Profile()
    with profile:
        make_plan(run_pipeline(graph, context), context)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
def test_twice_the_nodes_take_about_twice_the_steps(kind: str) -> None:
    nodes = MORE_NODES.get(kind, NODES)
    assert steps(kind, 2 * nodes, "cpu") <= MOST_GROWTH * steps(kind, nodes, "cpu")


@pytest.mark.parametrize("kind", ["fan_out", "fan_out_reductions", "gemms"])
def test_the_readers_of_a_shared_value_are_not_listed_once_for_each(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few and long lists are quick to count as steps, and slow to make."""
    listed: list[int] = []
    readers = Fusion.readers

    def counted(state: Fusion, cluster: Cluster) -> list[Cluster]:
        found = readers(state, cluster)
        listed.append(len(found))
        return found

    def total(nodes: int) -> int:
        listed.clear()
        context = PassContext(TargetInfo("cpu", 2))
        make_plan(run_pipeline(import_model(KINDS[kind](nodes)).graph, context), context)
        return sum(listed)

    monkeypatch.setattr(Fusion, "readers", counted)
    assert total(400) <= MOST_GROWTH * total(200)
