"""BERT's embeddings."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.checks import floats, ints
from tests.frontend.microsoft.checks import check_node

IDS = ints([1, 4, 2], [0, 3, 3], dtype="int32")
SEGMENTS = ints([0, 1, 1], [1, 0, 0], dtype="int32")
MASK = ints([1, 1, 0], [1, 1, 1], dtype="int32")
TABLES = [floats(5, 8), floats(4, 8, seed=1), floats(2, 8, seed=2)]
SCALES = [floats(8, seed=3), floats(8, seed=4)]


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("positions", [None, ints([2, 0, 1], dtype="int32"), IDS % 4])
def test_words_positions_and_segments(segments: bool, mask: bool, positions: np.ndarray | None) -> None:
    operands = [
        IDS, SEGMENTS if segments else None, *TABLES[:2], TABLES[2] if segments else None, *SCALES,
        MASK if mask else None, positions,
    ]  # fmt: skip
    check_node("EmbedLayerNormalization", operands, {"epsilon": 1e-6}, outputs=("y", "lengths", "sum"))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_tables_of_integers(dtype: str) -> None:
    rng = np.random.default_rng(0)

    def table(*shape: int) -> np.ndarray:
        low, high = (0, 255) if dtype == "uint8" else (-128, 127)
        return rng.integers(low, high, shape).astype(dtype)

    scales = [np.array(s, np.float32) for s in (0.01, 0.02, 0.03, 0.005, 0.004)]
    zeros = [np.array(z, dtype) for z in (100, 3, 7, 50, 9)]
    operands = [IDS, SEGMENTS, table(5, 8), table(4, 8), table(2, 8), table(8), table(8), MASK, *scales, *zeros]
    check_node("QEmbedLayerNormalization", operands, {"epsilon": 1e-6}, outputs=2)
