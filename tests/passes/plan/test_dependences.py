"""Which launches must wait for which."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilestitch.passes.plan.launches.dependences import Accesses, Region, dependences, unordered
from tilestitch.passes.plan.launches.launch import Edge


def launch(reads: str = "", writes: str = "") -> Accesses:
    """Regions as `memory start end` with commas between them."""

    def parse(text: str) -> tuple[tuple[str, Region], ...]:
        fields = [one.split() for one in text.split(",") if one]
        return tuple((memory, Region(memory, int(start), int(end))) for memory, start, end in fields)

    return Accesses(parse(reads), parse(writes))


def pairs_of(launches: list[Accesses]) -> list[tuple[int, int]]:
    return [(edge.before, edge.after) for edge in dependences(launches)]


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        (launch(writes="a 0 8"), launch(reads="a 0 8"), True),
        (launch(writes="a 0 8"), launch(reads="a 7 9"), True),
        (launch(writes="a 0 8"), launch(reads="a 8 9"), False),
        (launch(writes="a 0 8"), launch(reads="b 0 8"), False),
        (launch(reads="a 0 8"), launch(writes="a 4 5"), True),
        (launch(writes="a 0 8"), launch(writes="a 4 5"), True),
        (launch(reads="a 0 8"), launch(reads="a 0 8"), False),
        (launch(reads="a 0 8", writes="a 0 8"), launch(reads="a 0 8", writes="a 0 8"), True),
        (launch(writes="a 0 0"), launch(reads="a 0 8"), False),
    ],
)
def test_two_launches(first: Accesses, second: Accesses, waits: bool) -> None:
    assert pairs_of([first, second]) == ([(0, 1)] if waits else [])


def test_what_follows_from_others_is_left_out() -> None:
    chain = [launch(writes="x 0 4"), launch("x 0 4", "y 0 4"), launch("x 0 4,y 0 4", "z 0 4")]
    assert pairs_of(chain) == [(0, 1), (1, 2)]


def test_branches_are_not_tied_to_each_other() -> None:
    fork_and_join = [
        launch(writes="x 0 4"), launch("x 0 4", "a 0 4"), launch("x 0 4", "a 4 8"), launch("a 0 8", "y 0 4"),
    ]  # fmt: skip
    assert pairs_of(fork_and_join) == [(0, 1), (0, 2), (1, 3), (2, 3)]


REGIONS = st.builds(lambda memory, start, size: (memory, Region(memory, start, start + size)), st.sampled_from("ab"),
                    st.integers(0, 6), st.integers(0, 4))  # fmt: skip
LAUNCHES = st.builds(Accesses, st.lists(REGIONS, max_size=2).map(tuple), st.lists(REGIONS, max_size=2).map(tuple))


def conflict(a: Accesses, b: Accesses) -> bool:
    pairs = [(x, y) for _, x in (*a.reads, *a.writes) for _, y in b.writes]
    pairs += [(x, y) for _, x in a.writes for _, y in b.reads]
    return any(x.memory == y.memory and max(x.start, y.start) < min(x.end, y.end) for x, y in pairs)


def reached(pairs: Iterable[tuple[int, int]], count: int) -> np.ndarray:
    """Whether a chain of pairs leads from one number to another."""
    matrix = np.zeros((count, count), bool)
    for before, after in pairs:
        matrix[before, after] = True
    for middle in range(count):
        matrix |= matrix[:, [middle]] & matrix[[middle], :]
    return matrix


@given(st.lists(LAUNCHES, max_size=12))
def test_all_conflicts_are_ordered_and_no_pair_follows_from_others(launches: list[Accesses]) -> None:
    count = len(launches)
    pairs = pairs_of(launches)
    conflicts = [(i, j) for j in range(count) for i in range(j) if conflict(launches[i], launches[j])]
    np.testing.assert_array_equal(reached(pairs, count), reached(conflicts, count))
    for pair in pairs:
        assert not reached([other for other in pairs if other != pair], count)[pair]


def test_edges_say_for_whose_sake() -> None:
    launches = [launch(writes="x 0 4"), launch(reads="x 0 4"), launch(writes="x 2 6")]
    assert [edge.reason for edge in dependences(launches)] == ["%x", "memory of %x"]


@given(st.lists(LAUNCHES, max_size=12), st.data())
def test_edges_that_are_taken_away_are_missed(launches: list[Accesses], data: st.DataObject) -> None:
    edges = list(dependences(launches))
    assert unordered(launches, edges) is None
    if edges:
        gone = data.draw(st.sampled_from(edges))
        missed = unordered(launches, [edge for edge in edges if edge != gone])
        assert missed is not None and (missed.before, missed.after) == (gone.before, gone.after)


def test_a_detour_keeps_an_order() -> None:
    launches = [launch(writes="x 0 4"), launch(), launch(reads="x 0 4")]
    assert unordered(launches, [Edge(0, 1), Edge(1, 2)]) is None
