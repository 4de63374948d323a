"""Branches of a graph of launches."""

from __future__ import annotations

import random

from tilestitch.passes.schedule.launches import branches


def test_a_chain_is_one_branch() -> None:
    assert branches(4, [(i, i + 1) for i in range(3)]) == (0, 0, 0, 0)


def test_launches_that_nothing_orders_are_branches_of_their_own() -> None:
    assert branches(3, ()) == (0, 1, 2)


def test_a_fork_and_its_join() -> None:
    """0 → (1 → 3, 2 → 4) → 5: the second branch ends where the first goes on."""
    edges = [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 5)]
    assert branches(6, edges) == (0, 0, 1, 0, 1, 0)


def test_a_branch_that_has_ended_is_used_again() -> None:
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5)]
    assert branches(6, edges) == (0, 0, 1, 0, 0, 1)


def test_no_launches() -> None:
    assert branches(0, ()) == ()


def test_a_launch_continues_the_first_of_the_branches_whose_last_launch_it_waits_for() -> None:
    rng = random.Random(0)
    for _ in range(50):
        count = rng.randrange(1, 20)
        edges = [(a, b) for b in range(count) for a in range(b) if rng.random() < 0.2]
        found = branches(count, edges)
        reached = [{before for before, after in edges if after == number} for number in range(count)]
        for number in range(count):
            for other in list(reached[number]):
                reached[number] |= reached[other]
        ends: dict[int, int] = {}
        for number, branch in enumerate(found):
            free = [other for other, end in ends.items() if end in reached[number]]
            assert branch == min(free, default=len(ends))
            ends[branch] = number
