"""Decoders' attention over caches of 8-bit and 4-bit codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.checks import floats
from tests.frontend.microsoft.checks import Arrays, computed, node_model
from tests.frontend.microsoft.test_rotary import tables
from tilestitch.compiler.frontend import ConversionError, import_model

HEADS, KV, D = 6, 2, 32


def attributes(granularity: str, bits: int, **more: Any) -> dict[str, Any]:
    stated = {"k_quant_type": granularity, "v_quant_type": granularity, "kv_cache_bit_width": bits}
    return {"num_heads": HEADS, "kv_num_heads": KV, **stated, **more}


def step(
    lengths: list[int], rows: int, total: int, room: int, granularity: str, bits: int, dtype: str = "float32"
) -> list[np.ndarray | None]:
    """Operands of a step of `rows` tokens, after which sequences have `lengths`, with a past cache of `room` tokens."""
    rng, batch = np.random.default_rng(3), len(lengths)
    qkv = np.concatenate([floats(batch, rows, n * D, seed=n, dtype=dtype) for n in (HEADS, KV, KV)], 2)
    if bits == 8:
        past = [rng.integers(-128, 128, (batch, KV, room, D)).astype(np.int8) for _ in range(2)]
    else:
        past = [rng.integers(0, 256, (batch, KV, room, D // 2)).astype(np.uint8) for _ in range(2)]
    count = 1 if granularity == "PER_TENSOR" else KV * D
    # The largest numbers of new tokens exceed what the codes reach: they saturate.
    scales = [(rng.uniform(0.5, 1.0, count) * 1.5 / 2 ** (bits - 1)).astype(np.float32) for _ in range(2)]
    positions: list[np.ndarray | None] = [None] * 3
    return [
        qkv, None, None, *past, np.array(lengths, np.int32) - 1, np.array(total, np.int32), *positions, None, None,
        *scales,
    ]  # fmt: skip


def check(given: Arrays, attrs: dict[str, Any], lengths: list[int], constants: tuple[int, ...] = (6, 12, 13)) -> None:
    """Codes equal, results close: what a cache holds after its tokens, ONNX Runtime does not say."""
    ours, theirs, graph = computed("GroupQueryAttention", given, attrs, outputs=3, constants=constants)
    tolerance = 5e-3 if ours[0].dtype == np.float16 else 1e-5
    for got, want in zip(ours, theirs, strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
    for b, length in enumerate(lengths):
        np.testing.assert_allclose(ours[0][b], theirs[0][b], rtol=tolerance, atol=tolerance)
        for got, want in zip(ours[1:], theirs[1:], strict=True):
            np.testing.assert_array_equal(got[b, :, :length], want[b, :, :length])
    assert not [n.op for n in graph.nodes if n.op.startswith("host.")]


@pytest.mark.parametrize("granularity", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    ("lengths", "rows", "room", "known"),
    [([5, 5], 5, 5, True), ([7], 3, 4, True), ([7], 3, 4, False), ([7, 4], 1, 9, False), ([1, 7], 1, 6, True)],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_codes_of_new_tokens_and_attention_over_them(
    granularity: str, bits: int, dtype: str, lengths: list[int], rows: int, room: int, known: bool
) -> None:
    given = step(lengths, rows, max(lengths), room, granularity, bits, dtype)
    check(given, attributes(granularity, bits), lengths, (5, 6, 12, 13) if known else (6, 12, 13))


@pytest.mark.parametrize("bits", [8, 4])
def test_scales_that_come_at_run_time(bits: int) -> None:
    check(step([7], 3, 7, 4, "PER_CHANNEL", bits), attributes("PER_CHANNEL", bits), [7], (6,))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    "more", [{"softcap": 0.7}, {"smooth_softmax": 1}, {"local_window_size": 3}, {"scale": 0.3}], ids=str
)
def test_with_other_attributes(bits: int, more: dict[str, Any]) -> None:
    check(step([7], 3, 7, 4, "PER_CHANNEL", bits), attributes("PER_CHANNEL", bits, **more), [7])


@pytest.mark.parametrize("bits", [8, 4])
def test_keys_are_rotated_before_they_are_quantised(bits: int) -> None:
    given = step([7], 3, 7, 4, "PER_TENSOR", bits)
    given[7:9] = tables(D // 2, "float32")
    check(given, attributes("PER_TENSOR", bits, do_rotary=1), [7])


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("length", "rows"), [(5, 1), (9, 1), (5, 3)])
def test_a_cache_of_the_last_tokens(bits: int, length: int, rows: int) -> None:
    room = 6
    given = step([length], rows, length, room, "PER_CHANNEL", bits)
    attrs = attributes("PER_CHANNEL", bits, local_window_size=4, sliding_window_cache=1)
    check(given, attrs, [min(length, 4)])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kv_cache_bit_width": 2}, "kv_cache_bit_width is 2; caches with k_quant_type PER_TENSOR have 4 or 8"),
        ({"k_quant_type": "NONE", "v_quant_type": "NONE"}, "kv_cache_bit_width is 8, but k_quant_type is NONE"),
        ({"v_quant_type": "PER_CHANNEL"}, "k_quant_type is PER_TENSOR and v_quant_type PER_CHANNEL, which must be"),
        ({"k_quant_type": "ROWS", "v_quant_type": "ROWS"}, "k_quant_type is 'ROWS', none of"),
        ({"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}, "does not have the 64 elements of PER_CHANN"),
        ({"kv_cache_bit_width": 4}, "does not fit new keys or values"),
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused(more: dict[str, Any], message: str) -> None:
    given, attrs = step([7], 3, 7, 4, "PER_TENSOR", 8), attributes("PER_TENSOR", 8) | more
    with pytest.raises(ConversionError, match=message):
        import_model(node_model("GroupQueryAttention", given, attrs, outputs=3, constants=(6,)))


def test_scales_that_are_missing() -> None:
    given = step([7], 3, 7, 4, "PER_TENSOR", 8)[:12]
    with pytest.raises(ConversionError, match="k_quant_type is PER_TENSOR, which needs k_scale"):
        import_model(node_model("GroupQueryAttention", given, attributes("PER_TENSOR", 8), outputs=3, constants=(6,)))
