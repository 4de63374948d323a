"""Large graphs are searched in sections: each cluster in one, kernels of the rules whole, none out of order."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.large_graphs import KINDS
from tests.passes.helpers import assert_close
from tests.passes.simulate import simulate
from tests.strategies import feeds, graphs
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.passes import PassContext, TargetInfo, check_plan, explain_plan, make_plan, run_pipeline
from tilestitch.passes.fusion.clusters import Fusion
from tilestitch.passes.fusion.planners import SEARCHES
from tilestitch.passes.fusion.rules import explore
from tilestitch.passes.fusion.rules.explore import Explore
from tilestitch.passes.fusion.search import sections as cutting
from tilestitch.passes.fusion.search.cover import Cover
from tilestitch.passes.fusion.search.space import Space
from tilestitch.passes.fusion.stitcher import fuse

TARGET = TargetInfo(threads=2)


def fused(graph: Graph, rules: tuple[object, ...]) -> Fusion:
    return fuse(graph, rules, TARGET).state  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(graph=graphs(max_nodes=14), most=st.integers(1, 7))
def test_sections_are_whole_kernels_in_an_order_that_dependences_allow(graph: Graph, most: int) -> None:
    state, kernels = fused(graph, ()), fused(graph, explore.SEEDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "MOST_CLUSTERS", most)
        found = list(cutting.sections(state, cutting.from_outputs(kernels)))
    names = [[node.name for node in section.state.nodes] for section in found]
    assert sorted(n for each in names for n in each) == sorted(node.name for node in graph.nodes)
    home = {name: number for number, each in enumerate(names) for name in each}
    largest = 0
    for kernel in kernels.clusters():
        assert len({home[n.name] for n in kernel.owned}) == 1
        largest = max(largest, len(kernel.owned))
    assert all(len(each) <= max(most, largest) for each in names)
    for node in graph.nodes:
        assert all(home[v.producer.name] <= home[node.name] for v in node.inputs if v.producer is not None)
    for section in found:
        kept = {frozenset(node.name for node in kernel) for kernel in section.kernels}
        assert kept <= {frozenset(node.name for node in kernel.owned) for kernel in kernels.clusters()}
        stored = {v.name for v in section.state.graph.outputs}
        for node in section.state.nodes:
            twin = graph.node(node.name)
            assert [v.type for v in node.outputs] == [v.type for v in twin.outputs]
            for value in twin.outputs:
                needed = graph.is_output(value) or any(home[user.name] != home[node.name] for user in value.users)
                assert (value.name in stored) == needed


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(graph=graphs(max_nodes=14), most=st.integers(1, 7))
def test_plans_found_in_sections_are_right_and_no_slower_than_the_rules(graph: Graph, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "MOST_CLUSTERS", most)
        rules, plan = (make_plan(graph, PassContext(TARGET, {"search": search})) for search in (False, True))
    check_plan(plan, graph)
    rules_us, plan_us = (explain_plan(graph, one)["prediction"]["total_us"] for one in (rules, plan))
    assert plan_us <= rules_us
    inputs = feeds(graph)
    assert_close(evaluate(graph, inputs), simulate(plan, graph, inputs))


@pytest.mark.parametrize("kind", ["attention", "split", "dense"])
def test_sections_find_what_a_search_of_the_whole_graph_finds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    context = PassContext(TARGET, {"search": True})
    graph = run_pipeline(import_model(KINDS[kind](150)).graph, context)
    widths: list[int] = []
    search = Explore.search

    def noted(rule: Explore, space: Space, *budget: object) -> object:
        widths.append(len(space.atoms))
        return search(rule, space, *budget)  # type: ignore[arg-type]

    monkeypatch.setattr(Explore, "search", noted)
    whole = make_plan(graph, context)
    assert len(widths) == 1
    monkeypatch.setattr(cutting, "MOST_CLUSTERS", 61)
    plan = make_plan(graph, context)
    assert len(widths) > 3 and max(widths[1:]) <= 61
    assert len(plan.groups) == len(whole.groups)


def test_clusters_with_copies_are_searched_in_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules before the search may have let clusters compute values again; the section of each has them, too."""
    graph = run_pipeline(import_model(KINDS["attention"](40)).graph, PassContext(TARGET))
    state = fused(graph, (*SEARCHES["stitch"][:1], *explore.SEEDS, *SEARCHES["stitch"][2:5]))
    users = [n for n in graph.nodes if n.inputs and n.inputs[0].producer is not None]
    copied = next(
        (state.cluster_of(n), p) for n in users if (p := n.inputs[0].producer) and p not in state.cluster_of(n).members
    )
    state.join([copied[0]], [copied[1]], "test")
    monkeypatch.setattr(cutting, "MOST_CLUSTERS", 3)
    found = list(cutting.sections(state, cutting.from_outputs(state.fork())))
    owned = [node.name for section in found for c in section.state.clusters() for node in c.owned]
    alive = {node.name for cluster in state.clusters() for node in cluster.owned}
    assert set(owned) >= alive
    assert any(copied[1].name in {n.name for n in c.copies} for section in found for c in section.state.clusters())


def test_an_interrupt_ends_the_search_of_all_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = run_pipeline(import_model(KINDS["chain"](40)).graph, PassContext(TARGET))
    monkeypatch.setattr(cutting, "MOST_CLUSTERS", 7)
    changes = 0

    def interrupted(cover: Cover, *_: object, **__: object) -> bool:
        nonlocal changes
        changes += 1
        raise KeyboardInterrupt

    monkeypatch.setattr(Cover, "change", interrupted)
    for seconds in (1e9, float("inf")):
        changes = 0
        state = Fusion(graph, TARGET)
        assert list(Explore(budget_s=seconds).propose(state))
        assert changes == 1
        assert [remark.rule for remark in state.remarks] == ["explore"]
