"""Kernels of memory-bound operators issue few instructions for each byte that they move: counted in machine code."""

import pytest

from benchmarks.issue_slots import CASES, rows_of


@pytest.mark.parametrize(
    ("name", "most"),
    [("relu", 0.7), ("silu", 4.5), ("quantise", 5), ("softmax_1024", 5.5), ("max_pool", 2.3), ("max_pool_5", 8.5)],
)
def test_instructions_of_a_byte(name: str, most: float) -> None:
    (row,) = rows_of(name, CASES[name])
    assert not row.loop and row.per_byte < most
