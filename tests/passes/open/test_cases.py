"""Decision tables: which schedules a group of open size has, where, and which tables are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from math import inf

import numpy as np
import pytest

from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.sizes import Symbol, at, is_open, size_of
from tilestitch.compiler.ir.substitute import graph_at, nodes_at
from tilestitch.compiler.ir.text import digest, parse_graph
from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.passes.contract import PassContext
from tilestitch.passes.errors import PlanError
from tilestitch.passes.open import cases as chooser
from tilestitch.passes.open.cases import LEAST_GAIN, MOST_LOSS, MOST_REGIONS, regions, sweep
from tilestitch.passes.open.typical import typical_sizes
from tilestitch.passes.plan import Group, StitchPlan
from tilestitch.passes.plan.cases import Case, Cases
from tilestitch.passes.plan.cpu.schedules import CpuGemmSchedule
from tilestitch.passes.plan.gemm.tiles import SimtTile
from tilestitch.passes.plan.launches.cpu import cpu_launches
from tilestitch.passes.plan.schedules import GemmSchedule
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.plan_check import check_plan
from tilestitch.passes.planner import make_plan
from tilestitch.passes.schedule.structure import Known

GPU = TargetInfo("cuda:h100", architectures=("sm_90",), multiprocessors=132)
CPU = TargetInfo("cpu", 8, isa="avx512")
ROWS = size_of(Symbol("b", 1, 64)) * size_of(Symbol("s", 1, 4096))


def matmul(dims: str = "b=1..64, s=1..4096") -> Graph:
    """Of known weights, by an open number of rows."""
    rows, weights = "b,s" if "b=" in dims else "s", np.zeros((512, 1024), np.float32)
    key = digest(weights)
    return parse_graph(
        f"graph @main[{dims}](%x: float32[{rows},512]) -> (%y) {{\n  %w = constant #sha256:{key} : float32[512,1024]\n"
        f"  %m = matmul(%x, %w) : float32[{rows},1024]\n  %y = maximum(%m, %m) : float32[{rows},1024]\n}}",
        {key: weights},
    )


def planned(graph: Graph, target: TargetInfo = GPU) -> StitchPlan:
    return make_plan(graph, PassContext(target))


def test_a_gemm_has_other_tiles_for_few_rows_than_for_many() -> None:
    graph = matmul()
    plan = planned(graph)
    check_plan(plan, graph)
    (group,) = plan.groups
    cases = group.cases
    assert cases is not None and cases.size == ROWS
    tiles = [case.schedule.tile for case in cases.cases if isinstance(case.schedule, GemmSchedule)]
    assert 2 <= len(tiles) <= MOST_REGIONS
    assert all(isinstance(tile, SimtTile) for tile in tiles)
    assert tiles[0].bm < tiles[-1].bm
    parts = [case.schedule.split_k for case in cases.cases if isinstance(case.schedule, GemmSchedule)]
    assert parts[0] > parts[-1] == 1
    first = cases.cases[0].predicted[0]
    assert (first.value, dict(first.sizes)) == (1, {"b": 1, "s": 1})
    assert first.us < first.alone_us / 1.05


def test_every_size_has_one_case_and_the_typical_ones_that_of_the_group() -> None:
    graph = matmul()
    (group,) = planned(graph).groups
    assert group.cases is not None
    for rows in (0, 1, *(n for start in group.cases.starts for n in (start - 1, start, start + 1)), 64 * 4096, 1 << 40):
        fitting = [case for case in group.cases.cases if case.low <= rows < (case.high or inf)]
        assert fitting == [group.cases.at(rows)]
    typical = at(group.cases.size, typical_sizes(graph))
    assert not is_open(typical)
    assert group.cases.at(typical).schedule == group.schedule


def test_borders_are_where_the_prediction_changes() -> None:
    """Not at powers of two only."""
    (group,) = planned(matmul()).groups
    assert group.cases is not None
    assert any(start & (start - 1) for start in group.cases.starts), group.cases.starts


def test_short_ranges_have_no_cases() -> None:
    for dims in ("s=4090..4096", "s=1..2"):
        assert planned(matmul(dims)).groups[0].cases is None, dims


def test_plans_for_known_sizes_have_no_cases() -> None:
    graph = graph_at(matmul(), {"b": 2, "s": 40})
    (group,) = planned(graph).groups
    assert group.cases is None
    assert "cases" not in group.to_json()


def test_layouts_of_constants_are_the_same_in_all_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, panels of packed weights are as wide as tiles are: fewer rows would have wider ones."""
    monkeypatch.setattr(chooser, "LEAST_GAIN", 0.0)
    monkeypatch.setattr(chooser, "_KNOWN", Known())
    graph = matmul()
    plan = planned(graph, CPU)
    check_plan(plan, graph)
    (group,) = plan.groups
    assert group.cases is not None
    schedules = [case.schedule for case in group.cases.cases]
    assert {each.vectors for each in schedules if isinstance(each, CpuGemmSchedule)} == {schedules[0].vectors}
    first, *others = group.cases.cases
    assert isinstance(first.schedule, CpuGemmSchedule)
    wider = replace(first, schedule=replace(first.schedule, vectors=1))
    forged = replace(group, cases=replace(group.cases, cases=(wider, *others)), schedule=others[-1].schedule)
    with pytest.raises(PlanError, match="read constants in different layouts"):
        check_plan(replace(plan, groups=(forged,), launches=None), graph)


def few_tasks_group(threads: int) -> tuple[Graph, Group]:
    graph = matmul()
    (group,) = planned(graph, TargetInfo("cpu", threads, isa="avx512")).groups
    return graph, group


def test_few_rows_are_cut_into_more_tasks_on_cpus() -> None:
    """Rows that are few leave most threads idle, where columns are not cut for their sake."""
    graph, group = few_tasks_group(2)
    assert group.cases is not None
    nodes = {node.name: node for node in graph_at(graph, {"b": 1, "s": 1}).nodes}
    few, many = (replace(group, schedule=case.schedule) for case in (group.cases.cases[0], group.cases.cases[-1]))
    (ours,), (theirs,) = (cpu_launches(nodes, each) for each in (few, many))
    assert ours.blocks > theirs.blocks
    assert few_tasks_group(1)[1].cases is None


def test_one_schedule_that_is_better_at_all_sizes_takes_the_place_of_the_typical_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chooser, "_KNOWN", Known())
    _, usual = few_tasks_group(1)
    first = np.zeros(0)

    def best(costs: list[list[float]], most: int) -> list[int]:
        nonlocal first
        first = np.array(costs)
        return [1] * len(costs)

    monkeypatch.setattr(chooser, "regions", best)
    for gain, is_other in ((-1.0, True), (1.0, False)):
        monkeypatch.setattr(chooser, "_KNOWN", Known())
        monkeypatch.setattr(chooser, "LEAST_GAIN", gain * 1e6)
        _, group = few_tasks_group(1)
        assert group.cases is None and first.shape[1] > 1
        assert (group.schedule != usual.schedule) == is_other


def _forged(cases: Cases, *changed: tuple[int, dict[str, object]]) -> Cases:
    found = list(cases.cases)
    for number, changes in changed:
        found[number] = replace(found[number], **changes)  # type: ignore[arg-type]
    return replace(cases, cases=tuple(found))


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (lambda c: _forged(c, (0, {"high": c.starts[0] - 1})), "leave a gap, or overlap"),
        (lambda c: _forged(c, (0, {"high": c.starts[0] + 1})), "leave a gap, or overlap"),
        (lambda c: _forged(c, (0, {"low": 1})), "do not begin at 0"),
        (lambda c: _forged(c, (-1, {"high": 1 << 30})), "the last one has an end"),
        (lambda c: _forged(c, (0, {"high": 1}), (1, {"low": 1})), "no size tells the cases from 1 on apart"),
        (lambda c: _forged(c, (-2, {"high": 1 << 30}), (-1, {"low": 1 << 30})), "no size tells the cases"),
        (lambda c: replace(c, cases=c.cases[:1]), "1 cases; there may be 2 to"),
        (lambda c: _forged(c, (1, {"schedule": c.cases[0].schedule})), "have one schedule"),
        (lambda c: replace(c, size=7), "which is no open size"),
        (lambda c: replace(c, size=size_of(Symbol("other", 1, 1 << 20))), "its values do not"),
        (
            lambda c: _forged(c, (0, {"schedule": GemmSchedule(SimtTile(30, 32, 64, 4, 8))})),
            "do not fill a tile of 30 x 32",
        ),
        (lambda c: _forged(c, (0, {"schedule": GemmSchedule(c.cases[0].schedule.tile, split_k=2)})), "split_k is 2"),
    ],
)  # fmt: skip
def test_tables_that_are_none_are_refused(forge: Callable[[Cases], Cases], message: str) -> None:
    graph = matmul()
    plan = planned(graph)
    (group,) = plan.groups
    assert group.cases is not None
    forged = replace(plan, groups=(replace(group, cases=forge(group.cases)),), launches=None, edges=None)
    with pytest.raises(PlanError, match=message):
        check_plan(forged, graph)


def test_the_typical_schedule_is_that_of_a_case() -> None:
    graph = matmul()
    plan = planned(graph)
    (group,) = plan.groups
    odd = GemmSchedule(SimtTile(64, 16, 64, 4, 4, slices=4))
    forged = replace(plan, groups=(replace(group, schedule=odd),), launches=None, edges=None)
    with pytest.raises(PlanError, match="is that of none of its cases"):
        check_plan(forged, graph)


def test_cases_are_in_the_plans_data() -> None:
    (group,) = planned(matmul()).groups
    assert group.cases is not None
    data = group.cases.to_json()
    assert data["size"] == ROWS
    assert [case["low"] for case in data["cases"]] == [0, *group.cases.starts]
    texts = json.loads(json.dumps(data["cases"]))
    assert tuple(Case.from_json(case, "case") for case in texts) == group.cases.cases
    assert Group.from_json({**replace(group, cases=None).to_json()}) == replace(group, cases=None)


def test_regions_are_few_and_pay() -> None:
    high, low = 2 * LEAST_GAIN, 0.0
    assert regions([[low, high]] * 3 + [[high, low]] * 3) == [0, 0, 0, 1, 1, 1]
    assert regions([[low, high]] * 3 + [[LEAST_GAIN / 2, low]]) == [0, 0, 0, 0]
    assert regions([[low, low], [low, low]]) == [0, 0]
    assert regions([[high, low]] * 4 + [[low, 2 * MOST_LOSS]]) == [1, 1, 1, 1, 0]
    steps = [[9.0, *(0.0 if number == candidate else 9.0 for candidate in range(8))] for number in range(8)]
    found = regions(steps)
    assert sum(one != other for one, other in pairwise(found)) < MOST_REGIONS


def test_sizes_are_looked_at_from_end_to_end() -> None:
    def swept(dims: str) -> list[Mapping[str, int]]:
        graph = matmul(dims)
        b, s, _ = graph.inputs[0].shape
        return list(sweep(graph, b * s))

    found = [tuple(each.values()) for each in swept("b=1..3, s=2..9")]
    assert found == [(1, 2), (1, 4), (1, 8), (1, 9), (1, 9), (2, 9), (3, 9)]
    values = [each["b"] * each["s"] for each in swept("b=1.., s=1..")]
    assert values[:-1] == [*(1 << place for place in range(11)), 1 << 12, 1 << 14]


def test_no_graph_is_copied_to_look_at_its_groups_at_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[Graph] = []
    clone = Graph.clone

    def counted(graph: Graph) -> Graph:
        copied.append(graph)
        return clone(graph)

    graph = matmul()
    plan = planned(graph)
    schedules = [group.schedule for group in plan.groups if isinstance(group.schedule, GemmSchedule)]
    usual = [
        replace(group, cases=None, schedule=GemmSchedule(schedule.tile))
        for group, schedule in zip(plan.groups, schedules, strict=True)
    ]
    monkeypatch.setattr(chooser, "_KNOWN", Known())
    monkeypatch.setattr(Graph, "clone", counted)
    found = chooser.with_cases(usual, graph, typical_sizes(graph), GPU, ANALYTICAL)
    assert found == plan.groups
    assert not copied


def test_nodes_at_sizes_are_those_of_the_graph_at_sizes() -> None:
    graph = matmul()
    sizes = {"b": 1, "s": 67}
    whole = {node.name: node for node in graph_at(graph, sizes).nodes}
    for some in (list(graph.nodes), list(graph.nodes)[-1:]):
        alone = nodes_at(some, sizes)
        assert list(alone) == [node.name for node in some]
        for name, node in alone.items():
            assert [v.type for v in (*node.inputs, *node.outputs)] == [
                v.type for v in (*whole[name].inputs, *whole[name].outputs)
            ]
            assert node.attrs == whole[name].attrs
