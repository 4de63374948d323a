"""Decoders' attention: prompts, steps with a cache, and everything that may be asked for besides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, numpy_helper, parser

from tests.frontend.checks import floats, ints
from tests.frontend.microsoft.checks import Arrays, check_node, computed, node_model, run_ort, typed
from tests.frontend.microsoft.test_rotary import tables
from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend import FrontendError, import_model
from tilestitch.runtime import load

HEADS, KV, D = 4, 2, 16
WIDTH, KV_WIDTH = HEADS * D, KV * D
ATTRS = {"num_heads": HEADS, "kv_num_heads": KV}


def step(
    lengths: list[int],
    rows: int,
    total: int,
    *,
    room: int = 0,
    packed: bool = True,
    rotary: bool = False,
    dtype: str = "float32",
) -> list[np.ndarray | None]:
    """Operands of a step of `rows` tokens, after which sequences have `lengths`; `room` is that of the past cache."""
    batch = len(lengths)
    q, k, v = (floats(batch, rows, w, seed=i, dtype=dtype) for i, w in enumerate((WIDTH, KV_WIDTH, KV_WIDTH)))
    qkv: list[np.ndarray | None] = [np.concatenate([q, k, v], 2), None, None] if packed else [q, k, v]
    past: list[np.ndarray | None] = [None, None]
    if room:
        past = [floats(batch, KV, room, D, seed=3 + i, dtype=dtype) for i in range(2)]
    given = [*qkv, *past, np.array(lengths, np.int32) - 1, np.array(total, np.int32)]
    return [*given, *(tables(D // 2, dtype) if rotary else [])]


def check_step(given: Arrays, attrs: dict[str, Any], lengths: list[int], constants: tuple[int, ...] = (6,)) -> None:
    """The output, and the cache as far as it is in use: what lies after that, ONNX Runtime does not say."""
    padded = [*given, *[None] * (5 - len(given))]
    ours, theirs, graph = computed("GroupQueryAttention", padded, ATTRS | attrs, outputs=3, constants=constants)
    for i, (got, want) in enumerate(zip(ours, theirs, strict=True)):
        assert got.shape == want.shape and got.dtype == want.dtype
        tolerance = 5e-3 if got.dtype == np.float16 else 1e-5
        for b, length in enumerate(lengths):
            used = (b,) if i == 0 else (b, slice(None), slice(0, length))
            np.testing.assert_allclose(got[used], want[used], rtol=tolerance, atol=tolerance)
    assert not [n.op for n in graph.nodes if n.op.startswith("host.")]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("room", [0, 7, 5])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_prompt(packed: bool, rotary: bool, room: int, dtype: str) -> None:
    given = step([5, 5], 5, 5, room=room, packed=packed, rotary=rotary, dtype=dtype)
    check_step(given, {"do_rotary": int(rotary)}, [5, 5])


@pytest.mark.parametrize("lengths", [[7, 7], [7, 4], [1, 7]])
@pytest.mark.parametrize("room", [6, 7, 9])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("known", [False, True])
def test_one_token_of_each_sequence(lengths: list[int], room: int, interleaved: int, known: bool) -> None:
    given = step(lengths, 1, 7, room=room, rotary=True)
    attrs = {"do_rotary": 1, "rotary_interleaved": interleaved}
    check_step(given, attrs, lengths, constants=(5, 6) if known else (6,))


@pytest.mark.parametrize(("lengths", "rows"), [([4, 7], 1), ([5], 3)])
@pytest.mark.parametrize("known", [False, True])
def test_what_a_cache_holds_after_its_tokens_does_not_count(lengths: list[int], rows: int, known: bool) -> None:
    given = step(lengths, rows, 7, room=9)
    for cache in given[3:5]:
        assert cache is not None
        for b, length in enumerate(lengths):
            cache[b, :, length - rows :] = np.nan
    check_step(given, {}, lengths, constants=(5, 6) if known else (6,))


@pytest.mark.parametrize("room", [4, 9])
@pytest.mark.parametrize("known", [False, True])
def test_several_tokens_after_a_cache(room: int, known: bool) -> None:
    check_step(step([7], 3, 7, room=room, rotary=True), {"do_rotary": 1}, [7], constants=(5, 6) if known else (6,))


@pytest.mark.parametrize("window", [1, 2, 4, 20])
@pytest.mark.parametrize("rows", [1, 6])
def test_a_window(window: int, rows: int) -> None:
    attrs = {"local_window_size": window}
    check_step(step([6], rows, 6, room=0 if rows == 6 else 5), attrs, [6])


@pytest.mark.parametrize(
    "attrs", [{"softcap": 0.7}, {"scale": 0.3}, {"smooth_softmax": 1}, {"causal": 0}, {"smooth_softmax": 0}], ids=str
)
@pytest.mark.parametrize("rows", [1, 6])
def test_scores(attrs: dict[str, Any], rows: int) -> None:
    check_step(step([6], rows, 6, room=0 if rows == 6 else 5), attrs, [6])


@pytest.mark.parametrize("rows", [1, 6])
def test_biases_and_sinks(rows: int) -> None:
    given = step([6, 6], rows, 6, room=0 if rows == 6 else 5)
    bias, sink = floats(1, HEADS, rows, 6, seed=8), floats(HEADS, seed=9)
    check_step([*given, None, None, None, bias], {}, [6, 6])
    check_step([*given, None, None, None, None, sink], {}, [6, 6])
    check_step([*given, None, None, None, bias, sink], {"softcap": 1.5}, [6, 6])


@pytest.mark.parametrize("rows", [1, 3])
def test_positions_that_are_given(rows: int) -> None:
    given = step([6], rows, 6, room=5 if rows == 1 else 3, rotary=True)
    positions = ints([8, 1, 4][:rows]).reshape(1, rows)
    check_step([*given, positions], {"do_rotary": 1}, [6])


def test_chunks_that_are_padded() -> None:
    lengths, valid = [6, 4], [3, 1]
    given = step(lengths, 3, 6, room=9, rotary=True)
    nothing = [None] * 7
    full = [*given, *nothing, np.array(valid, np.int32)]
    ours, theirs, _ = computed("GroupQueryAttention", full, ATTRS | {"do_rotary": 1}, outputs=3, constants=(6,))
    for b, (length, rows) in enumerate(zip(lengths, valid, strict=True)):
        np.testing.assert_allclose(ours[0][b, :rows], theirs[0][b, :rows], rtol=1e-5, atol=1e-5)
        for got, want in zip(ours[1:], theirs[1:], strict=True):
            np.testing.assert_allclose(got[b, :, :length], want[b, :, :length], rtol=1e-5, atol=1e-5)


def test_normalised_heads() -> None:
    q_weight, k_weight = floats(D, seed=5), floats(D, seed=6)
    q, k, v = step([5], 5, 5, packed=False)[:3]
    assert q is not None and k is not None

    def normal(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
        heads = x.reshape(1, 5, -1, D)
        scaled = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + epsilon) * weight
        return scaled.reshape(x.shape).astype(np.float32)

    plain = [normal(q, q_weight, 1e-3), normal(k, k_weight, 1e-2), v, None, None, *step([5], 5, 5)[5:]]
    feeds = {f"x{i}": x for i, x in enumerate(plain) if x is not None}
    wanted = run_ort(node_model("GroupQueryAttention", plain, ATTRS, outputs=3), feeds)
    given = [q, k, v, *plain[3:], *[None] * 7, q_weight, k_weight]
    attrs = ATTRS | {"qk_norm_epsilon": 1e-3, "k_norm_epsilon": 1e-2}
    check_node("GroupQueryAttention", given, attrs, outputs=3, constants=(6,), reference=lambda *_: wanted)


@pytest.mark.parametrize("shown", [1, 2])
def test_scores_that_the_model_shows(shown: int) -> None:
    given = [*step([5], 5, 5), None, None, None, floats(1, 1, 5, 5, seed=4)]
    outputs = ("y", "k", "v", "qk")
    ours, theirs, _ = computed(
        "GroupQueryAttention", given, ATTRS | {"qk_output": shown}, outputs=outputs, constants=(6,)
    )
    seen = np.broadcast_to(np.tril(np.ones((5, 5), bool)), theirs[3].shape)
    np.testing.assert_allclose(ours[3][seen], theirs[3][seen], rtol=1e-5, atol=1e-5)


def test_a_total_length_that_only_run_time_knows() -> None:
    model = typed(node_model("GroupQueryAttention", step([5], 1, 5, room=5), ATTRS), [floats(1, 1, WIDTH)])
    with pytest.raises(FrontendError, match="x6"):
        import_model(model)


CACHE_TYPES = {0: ("float", np.float32, D), 4: ("uint8", np.uint8, D // 2), 8: ("int8", np.int8, D)}
"""ONNX type, numpy type and elements a head of a cache, by the bits of its codes; 0 for none."""


def builder_model(
    *, rotary: int = 0, bias: bool = False, sinks: bool = False, given_total: bool = False, bits: int = 0
) -> ModelProto:  # fmt: skip
    """A decoder's attention of open sizes, whose lengths come of a mask."""
    cache, _, depth = CACHE_TYPES[bits]
    codes = f', k_quant_type="PER_CHANNEL", v_quant_type="PER_CHANNEL", kv_cache_bit_width={bits}' if bits else ""
    cos, sin = tables(D // 2, "float32")[:2]
    further = ", ".join(["cos, sin" if rotary else ", ", "", "bias" if bias else "", "sinks" if sinks else ""])
    further += ", scale, scale" if bits else ""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
        g (float[b, s, {WIDTH + 2 * KV_WIDTH}] qkv, int64[b, total] mask,
           {"float[1, heads, s, total] bias, " if bias else ""}{"int32 whole, " if given_total else ""}
           {cache}[b, {KV}, past, d] past_key, {cache}[b, {KV}, past, d] past_value) => (
           float[b, s, {WIDTH}] y, {cache}[b, {KV}, present, {depth}] key, {cache}[b, {KV}, present, {depth}] value) {{
            one = Constant<value_ints=[1]>()
            last = Constant<value_int=1>()
            counted = ReduceSum<keepdims=0>(mask, one)
            before = Sub(counted, one)
            lengths = Cast<to=6>(before)
            shape = Shape(mask)
            longest = Gather<axis=0>(shape, last)
            {"" if given_total else "whole = Cast<to=6>(longest)"}
            y, key, value = com.microsoft.GroupQueryAttention
                <num_heads={HEADS}, kv_num_heads={KV}, do_rotary={rotary}{codes}>(
                qkv, , , past_key, past_value, lengths, whole, {further.rstrip(", ") or '""'})
        }}""")
    known = {"cos": cos, "sin": sin} if rotary else {}
    known |= {"sinks": floats(HEADS, seed=9)} if sinks else {}
    known |= {"scale": np.linspace(1, 3, KV * D, dtype=np.float32) / 2**bits} if bits else {}
    model.graph.initializer.extend(numpy_helper.from_array(x, n) for n, x in known.items())
    return model


@pytest.mark.parametrize(
    "written",
    [
        {"rotary": 0},
        {"rotary": 1},
        {"bias": True},
        {"sinks": True, "rotary": 1},
        {"given_total": True, "rotary": 1},
        {"bits": 8},
        {"bits": 4, "rotary": 1},
    ],
    ids=str,
)
def test_open_sizes_as_a_model_builder_writes_them(written: dict[str, Any], tmp_path: Path) -> None:
    """Caches grow from nothing, or have room for more than is in them: what lies there does not count."""
    model = builder_model(**written)
    compiled = compile_model(model, host_steps="given_total" in written, cache=False)
    assert compiled.explain()["host"]["steps"] == ("given_total" in written)  # that reads the total
    compiled.save(tmp_path / "m.tsm")
    ours, options = load(tmp_path / "m.tsm"), ort.SessionOptions()
    theirs = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for batch, room in ((1, 0), (2, 0), (1, 11), (3, 11)):
        _, dtype, depth = CACHE_TYPES[written.get("bits", 0)]
        stale = np.nan if np.dtype(dtype).kind == "f" else 0
        caches = [np.full((batch, KV, room, depth), stale, dtype)] * 2
        total = 0
        for rows in (5, 1, 1):
            total += rows
            mask = np.ones((batch, total), np.int64)
            given = dict(zip(("past_key", "past_value"), caches, strict=True))
            given |= {"qkv": floats(batch, rows, WIDTH + 2 * KV_WIDTH, seed=total), "mask": mask}
            given |= {"bias": floats(1, HEADS, rows, total, seed=total)} if written.get("bias") else {}
            given |= {"whole": np.array(total, np.int32)} if written.get("given_total") else {}
            found = list(ours.run(given).values())
            y, *caches = theirs.run(None, given)
            assert [x.shape for x in found] == [x.shape for x in (y, *caches)]
            np.testing.assert_allclose(found[0], y, rtol=1e-5, atol=1e-5)
            for one, other in zip(found[1:], caches, strict=True):
                np.testing.assert_allclose(one[:, :, :total], other[:, :, :total], rtol=1e-5, atol=1e-5)
