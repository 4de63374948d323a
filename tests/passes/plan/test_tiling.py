"""Open extents are cut as known ones are, at every size."""

from __future__ import annotations

import pytest

from tilestitch.compiler.ir.sizes import Symbol, at, size_of
from tilestitch.passes.plan.cpu.tiling import EvenSplit, OverlappingSplit, split_at_most, split_evenly


@pytest.mark.parametrize("low", [1, 6, 20])
@pytest.mark.parametrize("limit", [1, 6, 14])
def test_an_open_extent_is_cut_as_evenly_as_a_known_one(low: int, limit: int) -> None:
    split = split_evenly(size_of(Symbol("n", low, 500)), limit)
    assert isinstance(split, EvenSplit)
    sizes = {size for size, _ in split.sizes()}
    for n in range(low, 90):
        known = split_at_most(n, limit)
        values = {"n": n}
        assert at(split.parts, values) == known.parts
        assert (at(split.small, values), at(split.larger_parts, values)) == (known.small, known.larger_parts)
        assert {size for size, _ in known.sizes()} <= sizes
    assert max(sizes) == limit


def test_sizes_that_no_extent_in_range_has_get_no_code() -> None:
    assert [size for size, _ in split_evenly(size_of(Symbol("n", 100, 500)), 10).sizes()] == [9, 10]


def test_known_extents_are_cut_as_ever() -> None:
    assert split_evenly(17, 6) == split_at_most(17, 6)


@pytest.mark.parametrize(("limit", "sizes"), [(1, [1]), (3, [3, 1]), (4, [4, 1]), (5, [5, 4, 1]), (30, [30, 4, 1])])
def test_parts_that_may_overlap_have_three_sizes(limit: int, sizes: list[int]) -> None:
    split = OverlappingSplit(size_of(Symbol("n", 1, 500)), 1, limit)
    assert [size for size, _ in split.sizes()] == sizes
