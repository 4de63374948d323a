"""Policies: what they wait for holds what is needed, one of a user's own, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from examples.sync_policy import HalfRows
from tests.passes.sync.graphs import mlp
from tests.passes.sync.pairs import random_pair
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.passes import PassContext, StitchPlan, TargetInfo, make_plan
from tilestitch.passes.errors import SyncPolicyError
from tilestitch.passes.plan.sync.edges import Bound, Grouping, TileEdge
from tilestitch.passes.plan.sync.grid import Grid
from tilestitch.passes.sync.dependence import Needs, needs_of
from tilestitch.passes.sync.policies import POLICIES, Pair, Policy, RowSync, edge_of, wanted_sync

GPU = TargetInfo("cuda", device="H200", architectures=("sm_80",))


def dependent(seed: int) -> Pair:
    pair = random_pair(seed)
    first, second = pair.producer.relation, pair.consumer.relation
    needs = needs_of(first, second, [pair.between])
    return Pair((0, 1), ("first", "second"), first.grid, second.grid, needs)


def tied(plan: StitchPlan) -> list[TileEdge]:
    return [edge for group in plan.groups if group.tie == "tickets" for edge in getattr(group.schedule, "edges", ())]


@pytest.mark.parametrize("policy", [*POLICIES, RowSync(rows=2)], ids=str)
def test_what_is_waited_for_holds_what_is_needed(policy: Policy) -> None:
    for seed in range(120):
        pair = dependent(seed)
        edge = edge_of(pair, policy)
        if edge is None:
            continue
        posted = [edge.post(place) for place in pair.producer.places()]
        for block, place in enumerate(pair.consumer.places()):
            waited = {edge.number(at) for at in edge.waits(place)}
            assert waited >= {posted[tile] for tile in pair.needs.of(block)}, (seed, place)
        counts = np.bincount(posted, minlength=edge.count)
        assert [edge.posts(at) for at in np.ndindex(edge.counts)] == counts.tolist()


@pytest.mark.parametrize(("rows", "columns", "tile_rows"), [(1, 1, 1), (7, 5, 3), (8, 3, 8), (9, 4, 8), (3, 2, 3)])
def test_every_tile_has_one_block(rows: int, columns: int, tile_rows: int) -> None:
    grid = Grid((2, 3, rows, columns), tile_rows)
    assert sorted(grid.places()) == list(np.ndindex(2, 3, rows, columns))


def test_a_gemm_of_aligned_tiles_waits_for_its_rows_only() -> None:
    """Tiles of 32 rows after tiles of 32: line by line, nothing beyond what is needed."""
    plan = make_plan(mlp(96, 40, 130), PassContext(GPU, {"sync": "row"}))
    (edge,) = tied(plan)
    _, _, rows, _ = edge.semaphores
    assert [list(edge.waits((0, 0, row, 0))) for row in range(rows.count)] == [
        [(0, 0, row, 0)] for row in range(rows.count)
    ]


# -- policies of a user's own ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hasty(HalfRows):
    """Waits for the first half of its row only."""

    name: ClassVar[str] = "hasty"

    def bounds(self, producer: Grid, consumer: Grid) -> tuple[tuple[Bound, ...], tuple[Bound, ...]]:
        first, row = Bound((0, 0, 0, 0), 0, 0, 1), Bound((0, 0, 1, 0), 0, 0, 1)
        return (first, first, row, first), (first, first, row, first)


@dataclass(frozen=True)
class Lopsided(HalfRows):
    """Semaphores for a grid of another size."""

    name: ClassVar[str] = "lopsided"

    def semaphores(self, producer: Grid, needs: Needs) -> tuple[Grouping, ...]:
        return (Grouping(producer.blocks),)


def planned(policy: object) -> StitchPlan:
    return make_plan(mlp(70, 40, 130), PassContext(GPU, {"sync": policy}, cost_model=AnalyticalModel()))


def test_a_policy_of_ones_own_is_taken() -> None:
    (edge,) = tied(planned(HalfRows()))
    assert edge.policy == "half_rows" and edge.semaphores[-1].count == 2


def test_one_that_waits_for_too_little_is_refused_with_the_tile_that_would_race() -> None:
    said = r"policy hasty: tile \(0, 0, 0, 0\) of matmul reads what tile \(0, 0, 0, \d\) of matmul_tanh stores"
    with pytest.raises(SyncPolicyError, match=said):
        planned(Hasty())


def test_semaphores_that_do_not_fit_the_grid_are_refused() -> None:
    with pytest.raises(
        SyncPolicyError, match=r"policy lopsided, semaphores of matmul_tanh: they are for \(15,\) tiles"
    ):
        planned(Lopsided())


@dataclass(frozen=True)
class Given:
    """Says what it is given."""

    name: ClassVar[str] = "given"
    said: Any = None
    waited: Any = None

    def semaphores(self, producer: Grid, needs: Needs) -> Any:
        return self.said or tuple(map(Grouping, producer.dims))

    def bounds(self, producer: Grid, consumer: Grid) -> Any:
        return self.waited


BOUNDS = (Bound((0,) * 4, 0, 0, 1),) * 4


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Given((1, 1, 3, 5)), "`semaphores` gives .* give a tuple of `Grouping`"),
        (Given((Grouping(1), Grouping(1), Grouping(3), Grouping(5, 1, -5))), "lie -5 apart"),
        (Given((Grouping(1), Grouping(1), Grouping(3), Grouping(5, 1.5))), "no whole numbers"),  # type: ignore[arg-type]
        (Given(), "`bounds` gives None; give two tuples"),
        (Given(waited=((0, 1), (2, 3))), "`bounds` gives .*; give two tuples"),
        (Given(waited=(BOUNDS,)), "`bounds` gives .*; give two tuples"),
        (Given(waited=(BOUNDS[:1], BOUNDS[:1])), "bounds for 1 and 1 dimensions, not 4"),
        (Given(waited=(BOUNDS, (*BOUNDS, *BOUNDS))), "bounds for 4 and 8 dimensions, not 4"),
        (Given(waited=((Bound((0,), 0, 0, 1),) * 4, BOUNDS)), "1 scales for 4 coordinates"),
        (Given(waited=((Bound((0,) * 4, 0, 0, 0),) * 4, BOUNDS)), "divides by 0"),
        (Given(waited=(BOUNDS, (Bound((0,) * 4, 1 << 40, 0, 1),) * 4)), "beyond 32 bits"),
    ],
)
def test_bounds_and_semaphores_that_are_none_are_refused_by_the_name_of_the_policy(policy: Given, said: str) -> None:
    with pytest.raises(SyncPolicyError, match=f"policy given.*{said}"):
        planned(policy)


@pytest.mark.parametrize("odd", ["tiles", 3, object(), None.__class__])
def test_what_is_no_policy_is_refused(odd: Any) -> None:
    with pytest.raises(SyncPolicyError, match="give"):
        wanted_sync(odd)
