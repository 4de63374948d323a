"""What falls to the block that comes last is proven as edges are: sums of parts, and bands of rows after a GEMM."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.passes.sync.graphs import operand
from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.passes import PassContext, TargetInfo, check_plan, make_plan
from tilestitch.passes.explain import explain_plan
from tilestitch.passes.fusion.rules.combining import Bands
from tilestitch.passes.plan import Group, StitchPlan
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.gemm.rows_after import RowsAfter
from tilestitch.passes.plan.gemm.tiles import Tile
from tilestitch.passes.plan.schedules import GemmSchedule
from tilestitch.passes.plan.view import look_up
from tilestitch.passes.schedule.cuda.band_facts import writer_threads
from tilestitch.passes.schedule.cuda.gemm import band_schedule
from tilestitch.passes.schedule.cuda.gemm_tiles import MMA_TILES, SIMT_TILES, WGMMA_TILES
from tilestitch.passes.schedule.cuda.gpu import Gpu
from tilestitch.passes.sync.joins import Joined, joined_of, why_not_joined

AMPERE = TargetInfo("cuda", device="A100", architectures=("sm_80",))
HOPPER = TargetInfo("cuda", device="H100", architectures=("sm_90a",))
WIDE = max(WGMMA_TILES, key=lambda tile: (tile.rows, tile.bm))
CASES: dict[str, tuple[TargetInfo, str, Tile, tuple[int, ...], int]] = {
    "simt": (AMPERE, "float32", SIMT_TILES[0], (67, 24, 131), 1),
    "simt in parts": (AMPERE, "float32", SIMT_TILES[0], (67, 300, 131), 3),
    "matrices": (AMPERE, "float32", SIMT_TILES[0], (3, 37, 24, 300), 1),
    "mma": (AMPERE, "float16", MMA_TILES[0], (133, 64, 264), 1),
    "mma in parts": (AMPERE, "float16", MMA_TILES[0], (133, 512, 264), 2),
    "wgmma": (HOPPER, "float16", WGMMA_TILES[0], (200, 64, 520), 1),
    "wgmma of many rows in parts": (HOPPER, "float16", WIDE, (333, 512, 520), 2),
}
"""The GPU, dtype, tile, extents of the GEMM, and parts of its reduction."""


def norm(m: tuple[int, ...], k: int, n: int, dtype: str) -> Graph:
    graph = Graph("norm")
    *lead, rows = m
    x, w = operand(graph, "x", *lead, rows, k, dtype=dtype), operand(graph, "w", *lead, k, n, dtype=dtype)
    inner = graph.emit("matmul", x, w)
    total = graph.emit("reduce_sum", graph.emit("abs", inner), axes=(len(m),), keepdims=True)
    graph.outputs = [graph.emit("div", inner, total)]
    return graph


def banded(case: str) -> tuple[Graph, StitchPlan, Group]:
    """A plan with one kernel, of the tile that we choose."""
    target, dtype, tile, (*m, k, n), parts = CASES[case]
    graph = norm(tuple(m), k, n, dtype)
    context = PassContext(target, {}, rules=(Bands(forced=True),), cost_model=AnalyticalModel())
    plan = make_plan(graph, context)
    (group,) = plan.groups
    nodes = {node.name: node for node in graph.nodes}
    first, second = (look_up(nodes, part) for part in group.parts)
    gemm = gemm_of(AnchoredGroup.of(first))
    assert gemm is not None and group.tie == "band"
    after, schedule = RowsAfter.of(second, n), GemmSchedule(tile, parts)
    own = band_schedule(gemm, schedule, after, Gpu.of(target).device)
    schedules = schedule, after.work(writer_threads(tile)).schedule
    stages = tuple((replace(part, schedule=s),) for part, s in zip(group.parts, schedules, strict=True))
    group = replace(group, stages=stages, schedule=own)
    return graph, replace(plan, groups=(group,), launches=None, edges=None), group


def joined(case: str) -> Joined:
    return joined_in(*banded(case)[::2])


def joined_in(graph: Graph, group: Group) -> Joined:
    found = joined_of({node.name: node for node in graph.nodes}, group)
    assert found is not None
    return found


@pytest.mark.parametrize("case", CASES)
def test_bands_and_sums_of_parts_are_edges_that_are_proven(case: str) -> None:
    found = joined(case)
    parts = CASES[case][-1]
    assert [edge.policy for edge in found.edges] == ["join", "band"][parts == 1 :]
    assert why_not_joined(found) is None


@pytest.mark.parametrize("case", CASES)
def test_shares_are_all_rows_and_none_twice(case: str) -> None:
    graph, _, group = banded(case)
    shares, (value,) = joined_in(graph, group).relations[-1], graph.outputs
    times = np.zeros(value.shape, np.int64)
    for place in shares.grid.places():
        for box in shares.written_by(place, value):
            times[np.ix_(*(np.flatnonzero(np.frombuffer(axis, np.uint8)) for axis in box))] += 1
    assert (times == 1).all(), group.schedule


@pytest.mark.parametrize("case", CASES)
def test_a_block_that_begins_before_all_have_come_is_refused(case: str) -> None:
    found = joined(case)
    for number, edge in enumerate(found.edges):
        axis = next(axis for axis, grouping in enumerate(edge.semaphores) if grouping.group > 1)
        fewer = replace(edge.semaphores[axis], group=edge.semaphores[axis].group - 1)
        semaphores = (*edge.semaphores[:axis], fewer, *edge.semaphores[axis + 1 :])
        edges = (*found.edges[:number], replace(edge, semaphores=semaphores), *found.edges[number + 1 :])
        problem = why_not_joined(replace(found, edges=edges))
        assert problem is not None and "does not wait for it" in problem


@pytest.mark.parametrize("case", ["matrices", "mma", "wgmma"])
def test_a_block_that_begins_by_the_counter_of_others_is_refused(case: str) -> None:
    found = joined(case)
    *rest, edge = found.edges
    last = tuple(replace(bound, scales=(0,) * len(bound.scales)) for bound in edge.first)
    problem = why_not_joined(replace(found, edges=(*rest, replace(edge, first=last, last=last))))
    assert problem is not None and "does not wait for it" in problem


def test_every_check_of_a_plan_proves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilestitch.passes import plan_check
    from tilestitch.passes.schedule.launches import completed

    graph, plan, _ = banded("simt in parts")
    plan = completed(plan, graph)
    check_plan(plan, graph)
    monkeypatch.setattr(plan_check, "why_not_joined", lambda joined: f"{len(joined.edges)} edges race")
    with pytest.raises(Exception, match="2 edges race"):
        check_plan(plan, graph)


def test_explain_shows_them_as_edges() -> None:
    graph = norm((67,), 300, 131, "float32")
    plan = make_plan(graph, PassContext(AMPERE, {}, rules=(Bands(forced=True),), cost_model=AnalyticalModel()))
    (kernel,) = explain_plan(graph, plan)["kernels"]
    *_, band = kernel["tiles"]
    assert band["policy"] == "band" and band["values"] and "apart" not in kernel


def test_kernels_whose_blocks_do_nothing_for_being_the_last_have_no_such_edges() -> None:
    graph = norm((67,), 24, 131, "float32")
    plan = make_plan(graph, PassContext(AMPERE, {"planner": "none"}, cost_model=AnalyticalModel()))
    nodes = {node.name: node for node in graph.nodes}
    assert all(joined_of(nodes, group) is None for group in plan.groups)
