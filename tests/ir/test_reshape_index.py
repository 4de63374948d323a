"""Indices of views over open sizes."""

from __future__ import annotations

import numpy as np
import pytest

from tilestitch.compiler.ir.indexing import reshape_index
from tilestitch.compiler.ir.sizes import Size, Symbol, at, size_of, symbols_of

N, M, ROW, PLACE = (size_of(Symbol(name)) for name in ("n", "m", "row", "place"))
SHAPES = [
    ((12, N), (4, 3 * N)),
    ((4, 3 * N), (12, N)),
    ((6, N, M), (2, 3 * N * M)),
    ((2, 3 * N * M), (6, N, M)),
    ((4, 3, N * M), (2, 6 * N, M)),
    ((2, 3, 2 * N), (2 * 3 * N, 2)),
    ((2, 2 * N + 2), (4, N + 1)),
]


@pytest.mark.parametrize(("source", "target"), SHAPES)
@pytest.mark.parametrize("sizes", [{"n": 1, "m": 1}, {"n": 3, "m": 2}, {"n": 4, "m": 5}])
def test_elements_keep_their_positions(
    source: tuple[Size, ...], target: tuple[Size, ...], sizes: dict[str, int]
) -> None:
    ours, theirs = (tuple(at(size, sizes) for size in shape) for shape in (source, target))
    for place in range(int(np.prod(ours))):
        index = tuple(map(int, np.unravel_index(place, ours)))
        found = tuple(at(entry, sizes) for entry in reshape_index(index, source, target))
        assert found == tuple(map(int, np.unravel_index(place, theirs)))


def test_rows_that_are_counted_otherwise_are_not_divided_by_their_length() -> None:
    """Division of every lane by an open number cost seven times the samples of a deformable convolution."""
    outer, inner = reshape_index((ROW, PLACE), (784, N), (16, 49 * N))
    assert symbols_of([outer]) == symbols_of([ROW])
    assert at(inner, {"row": 100, "n": 7, "place": 5}) == 2 * 7 + 5
    assert "// n" not in f"{outer} {inner}" and "// (" not in f"{outer} {inner}"
