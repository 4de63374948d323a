"""Caches of GroupQueryAttention that keep the last tokens only (`sliding_window_cache`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser
from onnxruntime import InferenceSession

from tests.frontend.checks import floats
from tests.frontend.microsoft.checks import Arrays, computed, node_model
from tests.frontend.microsoft.test_group_query import ATTRS, HEADS, KV, D, step
from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend import ConversionError
from tilestitch.runtime import load


def kept(tokens: int, room: int, window: int) -> int:
    """How many of the last tokens are in the cache."""
    together = room - window + 1
    return tokens - together * max(0, -(-(tokens - room) // together))


def windowed(
    lengths: list[int], rows: int, room: int, window: int, valid: list[int] | None = None, **made: Any
) -> list[np.ndarray | None]:
    """Operands of a step; what the cache holds is a number only where there is a token."""
    given = step(lengths, rows, max(lengths), room=room, rotary=True, **made)
    for cache in given[3:5]:
        assert cache is not None
        for b, length in enumerate(lengths):
            before = max(0, length - (rows if valid is None else valid[b]))
            cache[b, :, kept(before, room, window) :] = np.nan
    return given


def check_windowed(
    given: Arrays, lengths: list[int], window: int, constants: tuple[int, ...] = (6,), valid: Any = None, **attrs: Any
) -> None:
    """The output, and the rows of the caches in which there are tokens."""
    wanted = ATTRS | {"do_rotary": 1, "local_window_size": window, "sliding_window_cache": 1} | attrs
    ours, theirs, graph = computed("GroupQueryAttention", given, wanted, outputs=3, constants=constants)
    assert not [n.op for n in graph.nodes if n.op.startswith("host.")]
    rows, room = theirs[0].shape[1], theirs[1].shape[2]
    for i, (got, want) in enumerate(zip(ours, theirs, strict=True)):
        assert got.shape == want.shape and got.dtype == want.dtype
        tolerance = 5e-3 if got.dtype == np.float16 else 1e-5
        for b, length in enumerate(lengths):
            new = min(rows, length) if valid is None else valid[b]
            used = (b, slice(0, new)) if i == 0 else (b, slice(None), slice(0, kept(length, room, window)))
            np.testing.assert_allclose(got[used], want[used], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("window", "room"), [(1, 1), (1, 5), (3, 3), (3, 4), (5, 7), (4, 13)])
@pytest.mark.parametrize("lengths", [[1, 2], [7, 4], [8, 11], [16, 13]])
@pytest.mark.parametrize("known", [False, True])
def test_one_token_of_each_sequence(window: int, room: int, lengths: list[int], known: bool) -> None:
    given = windowed(lengths, 1, room, window)
    check_windowed(given, lengths, window, constants=(5, 6) if known else (6,))


@pytest.mark.parametrize(("window", "room"), [(1, 1), (3, 4), (5, 11)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_prompt(window: int, room: int, dtype: str) -> None:
    check_windowed(windowed([7, 7], 7, room, window, dtype=dtype), [7, 7], window)


@pytest.mark.parametrize(("window", "room"), [(1, 1), (3, 4), (5, 11), (2, 3)])
@pytest.mark.parametrize("length", [5, 6, 13])
def test_several_tokens_after_a_cache(window: int, room: int, length: int) -> None:
    check_windowed(windowed([length], 5, room, window), [length], window)


@pytest.mark.parametrize(("window", "room"), [(3, 3), (3, 7)])
def test_chunks_that_are_padded(window: int, room: int) -> None:
    lengths, valid = [9, 4], [3, 1]
    given = [*windowed(lengths, 3, room, window, valid), *[None] * 7, np.array(valid, np.int32)]
    check_windowed(given, lengths, window, valid=valid)


@pytest.mark.parametrize("rows", [1, 4])
def test_biases_of_all_positions(rows: int) -> None:
    given = windowed([9], rows, 5, 3)
    check_windowed([*given, None, floats(1, HEADS, rows, 9, seed=8)], [9], 3, softcap=1.5)
    check_windowed([*given, None, None, floats(HEADS, seed=9)], [9], 3)


def test_sizes_that_are_open() -> None:
    """One artifact for prompts, tokens after them and caches with any room; the window is 3."""
    width = (HEADS + 2 * KV) * D
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
        g (float[b, s, {width}] qkv, int32[b] last, float[1, {HEADS}, s, total] bias,
           float[b, {KV}, room, {D}] past_key, float[b, {KV}, room, {D}] past_value) => (
           float[b, s, {HEADS * D}] y, float[b, {KV}, room, {D}] key, float[b, {KV}, room, {D}] value) {{
            shape = Shape<start=3>(bias)
            whole = Cast<to=6>(shape)
            y, key, value = com.microsoft.GroupQueryAttention<
                num_heads={HEADS}, kv_num_heads={KV}, local_window_size=3, sliding_window_cache=1
            >(qkv, , , past_key, past_value, last, whole, , , , bias)
        }}""")
    theirs = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with load(compile_model(model).to_bytes()) as ours:
        for room in (3, 4, 11):
            caches = [np.full((1, KV, room, D), np.nan, np.float32)] * 2
            total = 0
            for rows in (5, 1, 1, 3, 1, 7, 1):
                total += rows
                given = dict(zip(("past_key", "past_value"), caches, strict=True))
                given |= {"qkv": floats(1, rows, width, seed=total), "last": np.array([total - 1], np.int32)}
                given |= {"bias": floats(1, HEADS, rows, total, seed=total)}
                found, (y, *caches) = list(ours.run(given).values()), theirs.run(None, given)
                np.testing.assert_allclose(found[0], y, rtol=1e-5, atol=1e-5)
                for one, other in zip(found[1:], caches, strict=True):
                    used = (slice(None), slice(None), slice(0, kept(total, room, 3)))
                    np.testing.assert_allclose(one[used], other[used], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("attrs", "room", "reason"),
    [
        ({"local_window_size": -1}, 5, "local_window_size"), ({"causal": 0}, 5, "causal"),
        ({"local_window_size": 6}, 5, "room for 5"), ({"qk_output": 1}, 5, "qk_output"),
        ({}, 0, "past_key"),
    ],
)  # fmt: skip
def test_refusals(attrs: dict[str, Any], room: int, reason: str) -> None:
    given = step([5], 1, 5, room=room)
    attrs = ATTRS | {"sliding_window_cache": 1, "local_window_size": 3} | attrs
    with pytest.raises(ConversionError, match=reason):
        compile_model(node_model("GroupQueryAttention", given, attrs, outputs=1, constants=(6,)))
