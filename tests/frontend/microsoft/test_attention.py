"""Attention as ONNX Runtime's optimiser writes it: every form of masks, caches and packing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import numpy_helper, parser

from tests.frontend.checks import assert_close, floats, ints
from tests.frontend.microsoft.checks import Arrays, check_node, node_model, run_ort, typed
from tests.frontend.microsoft.test_quantization import codes, scale, zero
from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend import ConversionError, import_model
from tilestitch.runtime import load

B, S, HEADS, D, WIDTH = 2, 5, 3, 4, 7
HIDDEN = HEADS * D
MASKS: dict[str, np.ndarray | None] = {
    "none": None,
    "lengths": ints(3, 5, dtype="int32"),
    "ends and starts": ints(4, 5, 1, 0, dtype="int32"),
    "by key": ints([1, 1, 0, 1, 0], [1, 1, 1, 1, 1], dtype="int32"),
    "by pair": np.random.default_rng(5).integers(0, 2, (B, S, S)).astype(np.int32),
}


def projection(*, past: int = 0, mask: np.ndarray | None = None, bias: np.ndarray | None = None) -> Arrays:
    cache = floats(2, B, HEADS, past, D, seed=7) if past else None
    return [floats(B, S, WIDTH), floats(WIDTH, 3 * HIDDEN, seed=1), floats(3 * HIDDEN, seed=2), mask, cache, bias]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_its_projection(mask: str, causal: int) -> None:
    check_node("Attention", projection(mask=MASKS[mask]), {"num_heads": HEADS, "unidirectional": causal})


def test_a_mask_as_strong_as_a_later_position() -> None:
    """Where all earlier keys are hidden, later ones are more so, or all weigh the same."""
    hidden = ints([0, 0, 0, 0, 1], [0, 0, 0, 0, 0], dtype="int32")
    for value in (-10000.0, float(np.finfo(np.float32).min)):
        attrs = {"num_heads": HEADS, "unidirectional": 1, "mask_filter_value": value}
        check_node("Attention", projection(mask=hidden), attrs)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [1, 3])
def test_a_cache(causal: int, past: int) -> None:
    mask = np.ones((B, past + S), np.int32)
    mask[0, :2] = 0
    attrs = {"num_heads": HEADS, "unidirectional": causal}
    check_node("Attention", projection(past=past, mask=mask), attrs, outputs=2)
    check_node("Attention", projection(past=past), attrs, outputs=2)


@pytest.mark.parametrize("shape", [(B, HEADS, S, S), (1, HEADS, S, S), (B, 1, S, S)])
def test_a_bias_of_scores(shape: tuple[int, ...]) -> None:
    given = projection(mask=MASKS["by key"], bias=floats(*shape, seed=9))
    check_node("Attention", given, {"num_heads": HEADS, "scale": 0.7})


def test_values_of_another_width() -> None:
    widths = [HIDDEN, HIDDEN, HEADS * 2]
    given = [floats(B, S, WIDTH), floats(WIDTH, sum(widths), seed=1), floats(sum(widths), seed=2)]
    check_node("Attention", given, {"num_heads": HEADS, "qkv_hidden_sizes": widths})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats(dtype: str) -> None:
    """ONNX Runtime's kernel has float32 only."""
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    attrs = {"num_heads": HEADS, "unidirectional": 1}
    given = [x.astype(kind) for x in projection() if x is not None]
    wide = [x.astype(np.float32) for x in given]
    (wanted,) = run_ort(node_model("Attention", wide, attrs), {f"x{i}": x for i, x in enumerate(wide)})
    check_node("Attention", given, attrs, reference=lambda *_: wanted.astype(kind))


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("form", ["b", "ends", "n,keys", "n,s,keys"])
def test_masks_of_open_sizes(form: str, causal: int, tmp_path: Path) -> None:
    """Lengths; ends and starts; by key and by pair, whose sizes are the others' under other names."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
        g (float[b, s, {WIDTH}] x, int32[{form if form != "ends" else "b"}] mask) => (float[b, s, {HIDDEN}] y) {{
            {"held = Concat<axis=0>(mask, mask)" if form == "ends" else "held = Identity(mask)"}
            y = com.microsoft.Attention<num_heads={HEADS}, unidirectional={causal}>(x, w, bias, held)
        }}""")
    weights = {"w": floats(WIDTH, 3 * HIDDEN, seed=1), "bias": floats(3 * HIDDEN, seed=2)}
    model.graph.initializer.extend(numpy_helper.from_array(x, name) for name, x in weights.items())
    compile_model(model, host_steps=False, cache=False).save(tmp_path / "m.tsm")
    ours = load(tmp_path / "m.tsm")
    for batch, rows in ((1, 1), (1, 7), (3, 1), (2, 5)):
        shape = {"b": (batch,), "ends": (batch,), "n,keys": (batch, rows), "n,s,keys": (batch, rows, rows)}[form]
        # Ends and starts are the same here: no key is visible, and all weigh the same.
        mask = np.random.default_rng(rows).integers(0, 2, shape) if len(shape) > 1 else np.arange(1, batch + 1)
        given = {"x": floats(batch, rows, WIDTH, seed=rows), "mask": mask.astype(np.int32)}
        (wanted,) = run_ort(model, given)
        assert_close(ours.run(given)["y"], wanted)


def test_a_cache_of_open_size(tmp_path: Path) -> None:
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
        g (float[b, s, {WIDTH}] x, int32[b, total] mask, float[2, b, {HEADS}, past, {D}] cache)
            => (float[b, s, {HIDDEN}] y, float[2, b, {HEADS}, present, {D}] kept) {{
            y, kept = com.microsoft.Attention<num_heads={HEADS}, unidirectional=1>(x, w, bias, mask, cache)
        }}""")
    weights = {"w": floats(WIDTH, 3 * HIDDEN, seed=1), "bias": floats(3 * HIDDEN, seed=2)}
    model.graph.initializer.extend(numpy_helper.from_array(x, name) for name, x in weights.items())
    compile_model(model, host_steps=False, cache=False).save(tmp_path / "m.tsm")
    ours = load(tmp_path / "m.tsm")
    for batch, rows, past in ((1, 1, 1), (2, 3, 0), (3, 1, 11), (1, 5, 7)):
        given = {"x": floats(batch, rows, WIDTH, seed=rows), "mask": np.ones((batch, past + rows), np.int32)}
        given["mask"][0, : past // 2] = 0
        given["cache"] = floats(2, batch, HEADS, past, D, seed=past)
        for got, wanted in zip(ours.run(given).values(), run_ort(model, given), strict=True):
            assert_close(got, wanted)


def test_without_a_bias() -> None:
    check_node("Attention", [floats(1, 1, WIDTH), floats(WIDTH, 3 * HIDDEN, seed=1)], {"num_heads": HEADS}, outputs=2)


def test_a_mask_of_the_longest_sequence() -> None:
    longest = np.tril(np.ones((9, 9), np.int32))[None, None].repeat(B, 0)
    plain = projection(past=2, mask=longest[:, 0, 2 : 2 + S, : 2 + S])
    attrs = {"num_heads": HEADS}

    def reference(*_: Any) -> list[np.ndarray]:
        return run_ort(
            node_model("Attention", plain, attrs, outputs=2), {f"x{i}": x for i, x in enumerate(plain) if x is not None}
        )

    check_node("Attention", projection(past=2, mask=longest), attrs, outputs=2, reference=reference)


@pytest.mark.parametrize(
    ("attrs", "name"),
    [({"do_rotary": 1}, "do_rotary"), ({"past_present_share_buffer": 1}, "share_buffer"), ({"novel": 1}, "'novel'")],
)
def test_attributes_that_are_not_honoured_are_refused_by_name(attrs: dict[str, Any], name: str) -> None:
    model = typed(node_model("Attention", projection(), {"num_heads": HEADS, **attrs}), [floats(B, S, HIDDEN)])
    with pytest.raises(ConversionError, match=name):
        import_model(model)


def test_operands_that_are_not_honoured_are_refused_by_name() -> None:
    given = [*projection(past=1), ints(1, dtype="int32")]
    model = typed(node_model("Attention", given, {"num_heads": HEADS}), [floats(B, S, HIDDEN)])
    with pytest.raises(ConversionError, match="operand 'past_sequence_length' is not supported"):
        import_model(model)


# -- integers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("past", [0, 2])
def test_a_projection_of_integers(dtype: str, columns: bool, past: int) -> None:
    w_scale = np.linspace(0.001, 0.003, 3 * HIDDEN, dtype=np.float32) if columns else scale(0.002)
    w_zero = np.arange(3 * HIDDEN).astype(dtype) if columns else zero(3, dtype)
    given = [
        codes(B, S, WIDTH, dtype="uint8"), codes(WIDTH, 3 * HIDDEN, dtype=dtype, seed=1), floats(3 * HIDDEN, seed=2),
        scale(0.01), w_scale, None if past else MASKS["lengths"], zero(120, "uint8"), w_zero,
        floats(2, B, HEADS, past, D, seed=7) if past else None,
    ]  # fmt: skip
    attrs = {"num_heads": HEADS, "unidirectional": int(past > 0)}
    check_node("QAttention", given, attrs, outputs=2 if past else 1, constants=[1, 3, 4, 6, 7])


# -- after the projection ------------------------------------------------------------------------------------------


def apart(rows: int = S, columns: int = S, value_depth: int = D) -> list[np.ndarray]:
    return [
        floats(B, rows, HIDDEN),
        floats(B, columns, HIDDEN, seed=1),
        floats(B, columns, HEADS * value_depth, seed=2),
    ]


@pytest.mark.parametrize("mask", [name for name in MASKS if name != "ends and starts"])
@pytest.mark.parametrize("causal", [0, 1])
def test_queries_keys_and_values(mask: str, causal: int) -> None:
    bias = floats(3 * HIDDEN, seed=4)
    check_node("MultiHeadAttention", [*apart(), bias, MASKS[mask]], {"num_heads": HEADS, "unidirectional": causal})


@pytest.mark.parametrize("value_depth", [D, 6])
def test_another_number_of_keys(value_depth: int) -> None:
    given: Arrays = [*apart(3, 7, value_depth), floats(2 * HIDDEN + HEADS * value_depth, seed=4)]
    check_node("MultiHeadAttention", given, {"num_heads": HEADS, "scale": 0.6})
    bias = floats(1, 1, 3, 7, seed=5)
    check_node("MultiHeadAttention", [*given, None, bias], {"num_heads": HEADS})


@pytest.mark.parametrize("bias", [False, True])
def test_keys_that_are_cached(bias: bool) -> None:
    cached = [floats(B, HEADS, 7, D, seed=1), floats(B, HEADS, 7, D, seed=2)]
    given = [floats(B, 3, HIDDEN), *cached, floats(3 * HIDDEN, seed=4) if bias else None]
    check_node("MultiHeadAttention", given, {"num_heads": HEADS})


def test_keys_after_those_of_the_past() -> None:
    past = [floats(B, HEADS, 4, D, seed=5), floats(B, HEADS, 4, D, seed=6)]
    mask = np.ones((B, 4 + S), np.int32)
    mask[1, :3] = 0
    given = [*apart(), floats(3 * HIDDEN, seed=4), mask, None, *past]
    check_node("MultiHeadAttention", given, {"num_heads": HEADS, "unidirectional": 1}, outputs=3)


def test_scores_that_the_model_shows() -> None:
    given, outputs = [*apart(), None, None, floats(1, 1, S, S, seed=4)], ("y", "", "", "qk")
    model = node_model("MultiHeadAttention", given, {"num_heads": HEADS}, outputs=outputs)
    model = typed(model, [floats(B, S, HIDDEN), floats(B, HEADS, S, S)])  # ONNX Runtime does not infer the last one
    wanted = run_ort(model, {f"x{i}": x for i, x in enumerate(given) if x is not None})
    check_node("MultiHeadAttention", given, {"num_heads": HEADS}, outputs=outputs, reference=lambda *_: wanted)


@pytest.mark.parametrize("packed", ["qkv", "kv"])
def test_packed_by_heads(packed: str) -> None:
    q, k, v = apart()
    attrs = {"num_heads": HEADS}
    feeds = {"x0": q, "x1": k, "x2": v}
    wanted = run_ort(node_model("MultiHeadAttention", [q, k, v], attrs), feeds)
    by_head = [x.reshape(B, S, HEADS, 1, D) for x in (q, k, v)]
    if packed == "qkv":
        given: Arrays = [np.concatenate(by_head, 3)]
    else:
        given = [q, np.concatenate(by_head[1:], 3)]
    check_node("MultiHeadAttention", given, attrs, reference=lambda *_: wanted)


def test_one_query_a_sequence() -> None:
    q, k, v = apart(1, 1)
    past = [floats(B, HEADS, 4, D, seed=5), floats(B, HEADS, 4, D, seed=6)]
    mask, bias = ints([1, 0, 1, 1, 1], [1, 1, 1, 1, 1], dtype="int32"), floats(3 * HIDDEN, seed=4)
    attrs = {"num_heads": HEADS}
    same = [q, k, v, bias, mask, None, *past]
    feeds = {f"x{i}": x for i, x in enumerate(same) if x is not None}
    wanted = run_ort(node_model("MultiHeadAttention", same, attrs, outputs=3), feeds)
    given = [q, k, v, mask, None, *past, None, None, None, bias]
    check_node("DecoderMaskedMultiHeadAttention", given, attrs, outputs=3, reference=lambda *_: wanted)
    packed = [np.concatenate([q, k, v], 2), None, None, *given[3:]]
    check_node("DecoderMaskedMultiHeadAttention", packed, attrs, outputs=3, reference=lambda *_: wanted)


# -- sequences without padding -------------------------------------------------------------------------------------


def by_sequence(lengths: list[int], parts: list[np.ndarray]) -> np.ndarray:
    """Each sequence's attention on its own, by ONNX Runtime."""
    results, start = [], 0
    for length in lengths:
        feeds = {f"x{i}": part[None, start : start + length] for i, part in enumerate(parts)}
        results.append(
            run_ort(node_model("MultiHeadAttention", list(feeds.values()), {"num_heads": HEADS}), feeds)[0][0]
        )
        start += length
    return np.concatenate(results)


@pytest.mark.parametrize("form", ["projected", "apart", "by heads"])
def test_sequences_one_after_another(form: str) -> None:
    lengths = [3, 1, 4]
    offsets, ends = np.zeros((3, 4), np.int32), np.cumsum([0, *lengths]).astype(np.int32)
    x, w, bias = floats(8, WIDTH), floats(WIDTH, 3 * HIDDEN, seed=1), floats(3 * HIDDEN, seed=2)
    parts = np.split(x @ w + bias, 3, -1)
    wanted = by_sequence(lengths, parts)
    attrs = {"num_heads": HEADS}
    if form == "projected":
        check_node("PackedAttention", [x, w, bias, offsets, ends], attrs, reference=lambda *_: wanted)
        return
    plain = [part - b for part, b in zip(parts, np.split(bias, 3), strict=True)]
    if form == "by heads":
        given: Arrays = [np.stack([p.reshape(8, HEADS, D) for p in plain], 2), None, None]
    else:
        given = plain
    check_node("PackedMultiHeadAttention", [*given, bias, offsets, ends], attrs, reference=lambda *_: wanted)
