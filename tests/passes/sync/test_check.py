"""Plans whose tiles would race or wait for ever are refused, and say which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.passes.sync.graphs import mlp
from tilestitch.compiler.ir import Graph
from tilestitch.passes import PassContext, StitchPlan, TargetInfo, check_plan, make_plan
from tilestitch.passes.errors import PlanError
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.gemm.tiles import SimtTile
from tilestitch.passes.plan.schedules import GemmSchedule, TicketSchedule
from tilestitch.passes.plan.sync.edges import Bound, Grouping, TileEdge

GPU = TargetInfo("cuda", device="A100", architectures=("sm_80",))
ROW = Bound((0, 0, 1, 0), 0, 0, 1)
ZERO = Bound((0, 0, 0, 0), 0, 0, 1)
Fault = Callable[[TicketSchedule], TicketSchedule]


def planned() -> tuple[Graph, StitchPlan]:
    """Two GEMMs of 3 x 3 and 3 x 2 tiles."""
    graph = mlp(70, 40, 70)
    return graph, make_plan(graph, PassContext(GPU, {"sync": "tile"}))


def spoilt(plan: StitchPlan, fault: Fault) -> StitchPlan:
    (group,) = plan.groups
    assert isinstance(group.schedule, TicketSchedule)
    return replace(plan, groups=(replace(group, schedule=fault(group.schedule)),), launches=None, edges=None)


def edge(**changes: object) -> Fault:
    """The one edge with something else."""

    def changed(schedule: TicketSchedule) -> TicketSchedule:
        (found,) = schedule.edges
        return replace(schedule, edges=(replace(found, **changes),))  # type: ignore[arg-type]

    return changed


def at(place: int, name: str, what: Bound | Grouping) -> Fault:
    """The one edge with something else along one dimension."""

    def changed(schedule: TicketSchedule) -> TicketSchedule:
        (found,) = schedule.edges
        old = getattr(found, name)
        return edge(**{name: (*old[:place], what, *old[place + 1 :])})(schedule)

    return changed


def more(schedule: TicketSchedule) -> TicketSchedule:
    """Besides, what comes first waits for what comes after it."""
    (found,) = schedule.edges
    grid = tuple(Grouping(size) for size in (1, 1, 3, 2))
    back = TileEdge(1, 0, "back", grid, (ZERO, ZERO, ROW, ZERO), (ZERO, ZERO, ROW, ZERO))
    return replace(schedule, edges=(found, back))


def nothing(schedule: TicketSchedule) -> TicketSchedule:
    """Besides, an edge whose last semaphore comes before its first."""
    (found,) = schedule.edges
    grid = tuple(Grouping(size.size) for size in found.semaphores)
    empty = replace(found, semaphores=grid, first=(*found.first[:3], Bound((0,) * 4, 1, 0, 1)), last=(ZERO,) * 4)
    return replace(schedule, edges=(found, empty))


FAULTS: dict[str, tuple[Fault, str]] = {
    "no edge": (lambda schedule: replace(schedule, edges=()), r"tile \(0, 0, 0, 0\) of matmul reads what tile"),
    "begins too late": (at(3, "first", Bound((0, 0, 0, 0), 1, 0, 1)), r"reads what tile \(0, 0, 0, 0\) of matmul_tanh"),
    "ends too early": (at(3, "last", Bound((0, 0, 0, 0), 1, 0, 1)), r"reads what tile \(0, 0, 0, 2\) of matmul_tanh"),
    "another row": (edge(first=(ZERO,) * 4, last=(ZERO, ZERO, ZERO, Bound((0,) * 4, 2, 0, 1))), r"tile \(0, 0, 1, 0\)"),
    "by columns": (at(2, "last", Bound((0, 0, 0, 1), 0, 0, 1)), "does not wait for it"),
    "another grid": (
        at(2, "semaphores", Grouping(4)),
        r"they are for \(1, 1, 4, 3\) tiles, and there are \(1, 1, 3, 3\)",
    ),
    "uneven strides": (at(3, "semaphores", Grouping(3, 1, 2)), "they do not divide each other"),
    "groups of none": (at(2, "semaphores", Grouping(3, 0)), "3 tiles in groups of 0"),
    "too few dimensions": (edge(semaphores=(Grouping(9),)), r"they are for \(9,\) tiles"),
    "for itself": (edge(consumer=0), r"waits for 1 posts of semaphore \d, and only 0 surely come"),
    "in a circle": (more, r"waits for 1 posts of semaphore \d+, and only 0 surely come"),
    "of no part": (edge(producer=2), "an edge leads from part 2 to 1, and there are 2"),
    "divides by nothing": (at(2, "first", Bound((0, 0, 1, 0), 0, 0, 0)), "divides by 0"),
    "other coordinates": (at(2, "last", Bound((1,), 0, 0, 1)), "1 scales for 4 coordinates"),
    "beyond 32 bits": (at(2, "last", Bound((0, 0, 1 << 31, 0), 0, 0, 1 << 31)), "beyond 32 bits"),
    "far below 0": (at(2, "first", Bound((0, 0, -(1 << 31), 0), 0, 0, 1)), "beyond 32 bits"),
    "begins far below 0": (at(2, "first", Bound((0, 0, 1, 0), -(1 << 31), 0, 1)), "beyond 32 bits"),
    "for nothing": (nothing, "no tile waits for anything along dimension 3"),
    "bounds that lack": (edge(last=(ZERO,)), "bounds for 4 and 1 dimensions"),
    "no blocks": (lambda schedule: replace(schedule, blocks=0), "its launch has no blocks"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_refused(fault: str) -> None:
    graph, plan = planned()
    planted, said = FAULTS[fault]
    check_plan(plan, graph)
    with pytest.raises(PlanError, match=said):
        check_plan(spoilt(plan, planted), graph)


def test_stages_in_the_wrong_order_are_refused() -> None:
    graph, plan = planned()
    (group,) = plan.groups
    turned = replace(group, stages=group.stages[::-1])
    with pytest.raises(PlanError, match="reads tanh before"):
        check_plan(replace(plan, groups=(turned,)), graph)


def test_other_tiles_than_the_semaphores_are_for_are_refused() -> None:
    """A schedule edited by hand, whose edges are left as they were."""
    graph, plan = planned()
    (group,) = plan.groups
    first, second = group.parts
    assert isinstance(first.schedule, GemmSchedule)
    wider = replace(first.schedule, tile=SimtTile(64, 64, 8, 4, 4), tile_rows=2)
    parts: tuple[tuple[Group, ...], ...] = ((replace(first, schedule=wider),), (second,))
    with pytest.raises(PlanError, match=r"they are for \(1, 1, 3, 3\) tiles, and there are \(1, 1, 2, 2\)"):
        check_plan(replace(plan, groups=(replace(group, stages=parts),), launches=None, edges=None), graph)


def test_a_schedule_that_is_none_of_tickets_is_refused() -> None:
    graph, plan = planned()
    (group,) = plan.groups
    with pytest.raises(PlanError, match="it has no schedule of its tickets"):
        check_plan(replace(plan, groups=(replace(group, schedule=None),), launches=None, edges=None), graph)
