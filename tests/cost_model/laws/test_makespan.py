"""How long a launch graph takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilestitch.cost_model.laws.makespan import makespan_us

DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3)]


@pytest.mark.parametrize(
    ("durations", "shares", "edges", "expected"),
    [
        ([], [], [], 0.0),
        ([5.0], [0.1], [], 5.0),
        ([1.0, 2.0, 3.0], [1.0] * 3, [(0, 1), (1, 2)], 6.0),
        ([1.0, 2.0, 3.0, 1.0], [0.5] * 4, DIAMOND, 5.0),  # the branches fit side by side
        ([1.0, 2.0, 2.0, 1.0], [1.0] * 4, DIAMOND, 6.0),  # each branch needs all of the device
        ([4.0, 4.0], [0.75, 0.75], [], 6.0),
        ([0.0, 3.0], [1.0, 1.0], [(0, 1)], 3.0),
    ],
)
def test_kernels_run_side_by_side_where_there_is_room(
    durations: list[float], shares: list[float], edges: list[tuple[int, int]], expected: float
) -> None:
    assert makespan_us(durations, shares, edges) == pytest.approx(expected)


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.01, 1.0)), max_size=10), st.data())
def test_it_lies_between_the_longest_path_or_the_work_and_the_sum(
    kernels: list[tuple[float, float]], data: st.DataObject
) -> None:
    pairs = [(i, j) for j in range(len(kernels)) for i in range(j)]
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    durations, shares = [d for d, _ in kernels], [s for _, s in kernels]
    found = makespan_us(durations, shares, edges)
    ends: list[float] = []
    for number, duration in enumerate(durations):
        ends.append(duration + max((ends[before] for before, after in edges if after == number), default=0.0))
    least = max([sum(d * s for d, s in kernels), *ends], default=0.0)
    assert least <= found * (1 + 1e-9) + 1e-9
    assert found <= sum(durations) * (1 + 1e-9) + 1e-9
