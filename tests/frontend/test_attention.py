"""Attention with masks, grouped heads and caches; rotary embeddings."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.frontend.checks import check_node, floats, host_steps, ints, node_model, run
from tilestitch.compiler import compile_model
from tilestitch.runtime import load

B, H, S, T, D = 2, 4, 3, 5, 8


def qkv(kv_heads: int = H) -> list[np.ndarray | None]:
    return [floats(B, H, S, D), floats(B, kv_heads, T, D, seed=1), floats(B, kv_heads, T, 6, seed=2)]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", ["none", "bool", "float"])
def test_masks_and_grouped_heads(kv_heads: int, causal: int, mask: str) -> None:
    given = qkv(kv_heads)
    if mask == "bool":
        given.append(floats(B, 1, S, T, seed=3) > -0.5)
    elif mask == "float":
        given.append(floats(S, T, seed=3))
    imported = check_node("Attention", given, {"is_causal": causal})
    assert not host_steps(imported)


def test_a_row_without_any_key_is_zero() -> None:
    mask = np.ones((S, T), bool)
    mask[1] = False
    check_node("Attention", [*qkv(), mask], outputs=["y", "", "", "qk"], attrs={"qk_matmul_output_mode": 3})


def test_short_masks_hide_the_remaining_keys() -> None:
    check_node("Attention", [*qkv(), np.ones((S, 3), bool)], opset=24)


@pytest.mark.parametrize("rows", [S, "rows"])
def test_masks_of_one_column_are_broadcast_before_opset_24(rows: int | str) -> None:
    """Each adds one number to all scores of a row. For known sizes, other keys than the first one were hidden."""
    q, k, v = qkv()
    mask = floats(1, 1, S, 1, seed=3)
    proto = node_model("Attention", [q, k, v, mask], {}, opset=23)
    if rows == "rows":
        proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = rows
    feeds = {f"x{i}": operand for i, operand in enumerate((q, k, v, mask))}
    (unmasked,) = run(node_model("Attention", [q, k, v], opset=23), {name: feeds[name] for name in ("x0", "x1", "x2")})
    with load(compile_model(proto).to_bytes()) as module:
        np.testing.assert_allclose(module.run(feeds)["y0"], unmasked, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_scores_output(mode: int) -> None:
    attrs = {"qk_matmul_output_mode": mode, "is_causal": 1, "scale": 0.7}
    check_node("Attention", qkv(), attrs, outputs=["y", "", "", "qk"])


def test_softcap() -> None:
    check_node("Attention", qkv(), {"softcap": 0.5})


def test_cache() -> None:
    past = [floats(B, H, 7, D, seed=5), floats(B, H, 7, 6, seed=6)]
    check_node("Attention", [*qkv(), None, *past], {"is_causal": 1}, outputs=3)


def test_padded_keys() -> None:
    check_node("Attention", [*qkv(), None, None, None, ints(3, 5)], {"is_causal": 1}, opset=24)


@pytest.mark.parametrize("window", [(1, -1), (2, 1), (-1, 0)])
def test_sliding_window(window: tuple[int, int]) -> None:
    check_node("Attention", qkv(), {"left_window_size": window[0], "right_window_size": window[1]})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats_with_float_softmax(dtype: str) -> None:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    check_node("Attention", [x.astype(kind) for x in qkv() if x is not None], {"softmax_precision": 1})


def test_operands_of_rank_three() -> None:
    given = [floats(B, S, H * D), floats(B, T, 2 * D, seed=1), floats(B, T, 2 * 6, seed=2)]
    check_node("Attention", given, {"q_num_heads": H, "kv_num_heads": 2}, outputs=3)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("positions", [False, True])
def test_rotary_embedding(interleaved: int, width: int, rank: int, positions: bool) -> None:
    half = (width or D) // 2
    x = floats(B, H, S, D) if rank == 4 else floats(B, S, H * D)
    table = (10, half) if positions else (B, S, half)
    given = [x, floats(*table, seed=1), floats(*table, seed=2)]
    if positions:
        given.append(ints([1, 5, 2], [0, 9, 3]))
    attrs = {"interleaved": interleaved, "rotary_embedding_dim": width} | ({"num_heads": H} if rank == 3 else {})
    check_node("RotaryEmbedding", given, attrs)
