"""Waves of dependent GEMMs as cuSync's paper counts them (Table IV: GPT-3's MLP, 80 SMs that hold two blocks each)."""

from __future__ import annotations

from math import ceil

import pytest

from tilestitch.cost_model.laws.compute import waves_apart, waves_together

SLOTS = 2 * 80
HIDDEN, WIDTH = 4 * 12288 // 8, 12288


def tiles(tokens: int, columns: int, tile: tuple[int, int], split_k: int) -> int:
    return ceil(tokens / tile[0]) * ceil(columns / tile[1]) * split_k


@pytest.mark.parametrize(
    ("tokens", "tile", "split_k", "apart", "together"),
    [
        (64, (64, 256), (6, 3), 2, 1.8),
        (128, (128, 128), (2, 1), 2, 1.3),
        (256, (256, 128), (4, 2), 4, 2.4),
        (512, (256, 128), (4, 2), 6, 4.8),
        (1024, (256, 256), (2, 2), 5, 3.6),
        (2048, (256, 256), (2, 2), 8, 7.2),
    ],
)
def test_waves_of_two_dependent_gemms(
    tokens: int, tile: tuple[int, int], split_k: tuple[int, int], apart: int, together: float
) -> None:
    counts = [tiles(tokens, HIDDEN, tile, split_k[0]), tiles(tokens, WIDTH, tile, split_k[1])]
    assert waves_apart(counts, [SLOTS] * 2) == apart
    assert waves_together(counts, SLOTS) == pytest.approx(together, rel=0.1)
