"""Random shapes, attributes and operands, against ONNX Runtime's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.frontend.checks import floats
from tests.frontend.microsoft.checks import Arrays, check_node, check_steps, computed
from tests.frontend.microsoft.test_quantization import codes, scale, zero
from tests.frontend.microsoft.test_rotary import tables

SIZES = st.integers(1, 5)


@st.composite
def attentions(draw: st.DrawFn) -> tuple[Arrays, dict[str, Any]]:
    """Operands and attributes of MultiHeadAttention."""
    batch, heads, rows, depth, past = (
        draw(SIZES),
        draw(SIZES),
        draw(SIZES),
        draw(SIZES),
        draw(st.sampled_from([0, 0, 1, 4])),
    )
    columns = rows if past else draw(SIZES)
    total = past + columns
    q, k, v = (floats(batch, n, heads * depth, seed=i) for i, n in enumerate((rows, columns, columns)))
    bias = floats(3 * heads * depth, seed=3) if draw(st.booleans()) else None
    mask = None
    if draw(st.booleans()):
        mask = np.random.default_rng(4).integers(0, 2, draw(st.sampled_from([(batch, total), (batch, rows, total)])))
        mask[..., 0] = 1
    added = None
    if draw(st.booleans()):
        added = floats(draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, heads])), rows, total, seed=5)
    cache = [floats(batch, heads, past, depth, seed=s) if past else None for s in (6, 7)]
    attrs: dict[str, Any] = {"num_heads": heads, "unidirectional": int(rows == columns and draw(st.booleans()))}
    if draw(st.booleans()):
        attrs["scale"] = draw(st.floats(0.1, 2))
    return [q, k, v, bias, None if mask is None else mask.astype(np.int32), added, *cache], attrs


@given(attentions())
def test_multi_head_attention(case: tuple[Arrays, dict[str, Any]]) -> None:
    check_node("MultiHeadAttention", *case, outputs=3 if case[0][6] is not None else 1)


@st.composite
def steps(draw: st.DrawFn) -> tuple[Arrays, dict[str, Any], list[int]]:
    """Operands and attributes of GroupQueryAttention, and the length of each sequence after the step."""
    batch, kv_heads, group, depth = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3)), 16
    prompt = draw(st.booleans())
    rows = draw(SIZES) if prompt or batch == 1 else 1
    total = rows if prompt else rows + draw(SIZES)
    lengths = (
        [total] * batch if prompt or rows > 1 else [draw(st.integers(1, total)) for _ in range(batch - 1)] + [total]
    )
    room = (
        draw(st.sampled_from([0, total, total + 3]))
        if prompt
        else draw(st.sampled_from([total - rows, total, total + 3]))
    )
    heads = kv_heads * group
    widths = [heads * depth, kv_heads * depth, kv_heads * depth]
    parts = [floats(batch, rows, width, seed=i) for i, width in enumerate(widths)]
    new: Arrays = [np.concatenate(parts, 2), None, None] if draw(st.booleans()) else parts
    cache = [floats(batch, kv_heads, room, depth, seed=s) if room else None for s in (3, 4)]
    rotary, bias = draw(st.booleans()), draw(st.booleans())
    operands = [*new, *cache, np.array(lengths, np.int32) - 1, np.array(total, np.int32)]
    operands += [t[:, : depth // 2] for t in tables(depth // 2)] if rotary else [None, None]
    operands += [None, floats(1, heads, rows, total, seed=5) if bias else None]
    operands += [floats(heads, seed=6) if draw(st.booleans()) else None]
    attrs = {
        "num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": int(rotary),
        "rotary_interleaved": draw(st.integers(0, 1)), "softcap": draw(st.sampled_from([0.0, 0.0, 2.0])),
        "local_window_size": draw(st.sampled_from([-1, -1, 1, 2, 7])),
    }  # fmt: skip
    return operands, attrs, lengths


@given(steps())
def test_group_query_attention(case: tuple[Arrays, dict[str, Any], list[int]]) -> None:
    operands, attrs, lengths = case
    ours, theirs, _ = computed("GroupQueryAttention", operands, attrs, outputs=3, constants=(6,))
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-4, atol=1e-4)
    for got, wanted in zip(ours[1:], theirs[1:], strict=True):
        assert got.shape == wanted.shape
        for b, length in enumerate(lengths):
            np.testing.assert_allclose(got[b, :, :length], wanted[b, :, :length], rtol=1e-5, atol=1e-5)


@st.composite
def packed_weights(draw: st.DrawFn) -> tuple[Arrays, dict[str, Any]]:
    """Operands and attributes of MatMulNBits."""
    bits, block = draw(st.sampled_from([2, 4, 8])), draw(st.sampled_from([16, 32]))
    depth, width, rows = draw(st.integers(1, 70)), draw(st.integers(1, 9)), draw(st.integers(0, 4))
    blocks = -(-depth // block)
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    packed = rng.integers(0, 256, (width, blocks, block * bits // 8)).astype(np.uint8)
    zeros = rng.integers(0, 256, (width, -(-blocks * bits // 8))).astype(np.uint8) if draw(st.booleans()) else None
    scales = rng.uniform(0.01, 0.1, (width, blocks)).astype(np.float32)
    bias = floats(width, seed=2) if draw(st.booleans()) else None
    return [floats(rows, depth), packed, scales, zeros, None, bias], {
        "K": depth, "N": width, "bits": bits, "block_size": block, "accuracy_level": 1,
    }  # fmt: skip


@given(packed_weights())
def test_matmul_of_few_bits(case: tuple[Arrays, dict[str, Any]]) -> None:
    check_node("MatMulNBits", *case, constants=(1, 2, 3, 5))


@given(
    st.sampled_from(["QLinearAdd", "QLinearMul"]), st.sampled_from(["uint8", "int8"]), st.lists(SIZES, max_size=3),
    st.lists(st.booleans(), min_size=6, max_size=6), st.lists(st.floats(0.001, 0.5), min_size=3, max_size=3),
    st.lists(st.integers(0, 127), min_size=3, max_size=3),
)  # fmt: skip
def test_sums_and_multiples_of_integers(
    op: str, dtype: str, shape: list[int], ones: list[bool], scales: list[float], zeros: list[int]
) -> None:
    shapes = [[1 if one else size for one, size in zip(part, shape, strict=False)] for part in (ones[:3], ones[3:])]
    a, b = (codes(*sizes, dtype=dtype, seed=i) for i, sizes in enumerate(shapes))
    (s, t, u), (x, y, z) = [scale(v) for v in scales], [zero(v, dtype) for v in zeros]
    check_steps(op, [a, s, x, b, t, y, u, z])
