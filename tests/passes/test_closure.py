"""Reachability and depths that are kept while things are merged equal those found anew."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from tilestitch.passes.fusion.closure import Closure, Reach
from tilestitch.passes.fusion.search.packs import Depths

Edges = list[set[int]]


@st.composite
def dags(draw: st.DrawFn) -> Edges:
    """Of each node, the nodes before it that it reads."""
    count = draw(st.integers(2, 14))
    return [draw(st.sets(st.integers(0, n - 1), max_size=3)) if n else set() for n in range(count)]


def above(edges: Edges, home: dict[int, int]) -> dict[int, set[int]]:
    """By home: all nodes on which what lives there depends."""
    direct: dict[int, set[int]] = {home[n]: set() for n in range(len(edges))}
    for reader, read in enumerate(edges):
        direct[home[reader]] |= {home[r] for r in read} - {home[reader]}
    reached: dict[int, set[int]] = {}
    for start in direct:
        seen, stack = set[int](), list(direct[start])
        while stack:
            place = stack.pop()
            if place not in seen:
                seen.add(place)
                stack += direct[place]
        reached[start] = {n for n in range(len(edges)) if home[n] in seen}
    return reached


def numbers(mask: int) -> set[int]:
    return {i for i in range(mask.bit_length()) if mask >> i & 1}


@given(dags(), st.lists(st.lists(st.integers(0, 13), min_size=2, max_size=3, unique=True), max_size=12))
def test_a_closure_is_right_after_every_merge(edges: Edges, wanted: list[list[int]]) -> None:
    closure = Closure(edges)
    home = {n: n for n in range(len(edges))}
    for group in wanted:
        parts: list[Reach] = list(dict.fromkeys(closure.of[n] for n in group if n < len(edges)))
        if len(parts) < 2:
            continue
        members = set().union(*(numbers(p.mask) for p in parts))
        needs = above(edges, home)
        below = {n for n in range(len(edges)) if needs[home[n]] & members} - members
        between = below & set().union(*(needs[home[n]] for n in members))
        found = closure.between(parts)
        assert found in between if between else found is None
        if between:
            continue
        copy, old = closure.copy(), [(reach.mask, reach.above) for reach in closure.of]
        closure.merge(parts)
        assert [(reach.mask, reach.above) for reach in copy.of] == old
        home.update(dict.fromkeys(members, min(members)))
        needs = above(edges, home)
        for n, reach in enumerate(closure.of):
            assert numbers(reach.mask) == {m for m in home if home[m] == home[n]}
            assert numbers(reach.above) == needs[home[n]]


def depths(edges: Edges, home: dict[int, tuple[int, ...]]) -> dict[int, int] | None:
    """Found by repetition; None if something waits for itself."""
    found = dict.fromkeys(range(len(edges)), 0)
    for _ in range(len(edges) + 1):
        before = dict(found)
        for launch in set(home.values()):
            depth = max((found[r] + 1 for n in launch for r in edges[n]), default=0)
            found.update(dict.fromkeys(launch, depth))
        if found == before:
            return found
    return None


@given(dags(), st.lists(st.tuples(st.integers(0, 13), st.integers(0, 13)), max_size=12))
def test_depths_are_right_after_every_join_and_what_is_refused_is_undone(
    edges: Edges, wanted: list[tuple[int, int]]
) -> None:
    names = [str(n) for n in range(len(edges))]
    before = {str(n): [str(r) for r in read] for n, read in enumerate(edges)}
    after = {name: [reader for reader in names if name in before[reader]] for name in names}
    found = Depths(names, before, after)
    home = {n: (n,) for n in range(len(edges))}

    def launch_of(name: str) -> list[str]:
        return [str(n) for n in home[int(name)]]

    def join(launch: Iterable[int]) -> None:
        home.update(dict.fromkeys(launch, tuple(sorted(launch))))

    for a, b in wanted:
        if max(a, b) >= len(edges) or home[a] == home[b]:
            continue
        old = dict(home)
        join({*home[a], *home[b]})
        expected = depths(edges, home)
        assert found.settle([launch_of(str(a))], launch_of) == (expected is not None)
        if expected is None:
            found.undo()
            home.update(old)
            expected = depths(edges, home)
        found.keep()
        assert {int(name): depth for name, depth in found.of.items()} == expected
