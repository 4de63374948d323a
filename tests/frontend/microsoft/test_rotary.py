"""Rotary position embeddings with position operands."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.checks import floats, ints
from tests.frontend.microsoft.checks import check_node, node_model, typed
from tilestitch.compiler.frontend import ConversionError, import_model

POSITIONS = {"first": ints(3), "each": ints([0, 4, 2], [1, 1, 5])}


def tables(pairs: int, dtype: str = "float32") -> list[np.ndarray]:
    angles = np.arange(16)[:, None] / 3.0 ** np.arange(pairs)
    return [np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rank", [3, 4])
def test_whole_heads(dtype: str, positions: str, interleaved: int, rank: int) -> None:
    x = floats(2, 3, 24, dtype=dtype) if rank == 3 else floats(2, 4, 3, 6, dtype=dtype)
    check_node("RotaryEmbedding", [x, POSITIONS[positions], *tables(3, dtype)], {"interleaved": interleaved})


@pytest.mark.parametrize("interleaved", [0, 1])
def test_a_part_of_each_head(interleaved: int) -> None:
    attrs = {"interleaved": interleaved, "rotary_embedding_dim": 4, "num_heads": 3}
    check_node("RotaryEmbedding", [floats(2, 3, 24), POSITIONS["each"], *tables(2)], attrs)


def test_heads_that_do_not_make_up_the_width() -> None:
    x = floats(2, 3, 25)
    model = typed(node_model("RotaryEmbedding", [x, POSITIONS["each"], *tables(2)], {"num_heads": 3}), [x])
    with pytest.raises(ConversionError, match="num_heads"):
        import_model(model)


def test_tables_of_another_width_than_stated() -> None:
    x = floats(2, 3, 24)
    attrs = {"num_heads": 3, "rotary_embedding_dim": 6}
    with pytest.raises(ConversionError, match="rotary_embedding_dim is 6"):
        import_model(typed(node_model("RotaryEmbedding", [x, POSITIONS["each"], *tables(2)], attrs), [x]))
