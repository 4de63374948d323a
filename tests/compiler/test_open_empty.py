"""Open sizes at which something in a model has no elements: they do not keep all others from their kernels."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser

from tests.compiled import assert_close
from tests.tolerances import MODELS
from tilestitch.compiler import CompiledModel, compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.compiler.frontend import ImportedModel, checked_model, convert_checked
from tilestitch.compiler.specialise import Region, ShapeSet, variants
from tilestitch.runtime import load
from tilestitch.runtime.errors import ExecutionError, InputError

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
LARGEST = 2**31 - 1


def model(text: str, **constants: Any) -> ModelProto:
    made = parser.parse_model(HEAD + text)
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return made


def ranges(compiled: CompiledModel) -> list[tuple[int, int]]:
    """Of the first dimension of each specialisation."""
    symbols = (s.explanation["sizes"]["symbols"][0] for s in compiled.specialisations)
    return [(symbol["low"], symbol["high"]) for symbol in symbols]


def host_steps(compiled: CompiledModel) -> list[int]:
    return [s.explanation["host"]["steps"] for s in compiled.specialisations]


SOUND = """(float[b, t] x) => (float[b, l, 6] y) {
    a = Constant<value = int64[1] {1}>()
    c = Unsqueeze(x, a)
    d = Conv<strides=[160]>(c, k)
    e = Conv<strides=[2]>(d, m)
    g = Transpose<perm=[0, 2, 1]>(e)
    h = MatMul(g, w)
    y = Softmax(h)
}"""


def test_sound_that_is_too_short_for_a_frame_leaves_nothing_to_the_host() -> None:
    """The first layers of a speech encoder: 520 samples become one state, and fewer none."""
    random = np.random.default_rng(0)
    shapes = {"k": (8, 1, 200), "m": (8, 8, 3), "w": (8, 6)}
    constants = {name: random.standard_normal(shape).astype(np.float32) * 0.3 for name, shape in shapes.items()}
    speech = model(SOUND, **constants)
    compiled = compile_model(speech, num_threads=1)
    assert (host_steps(compiled)[0], compiled.explain()["sizes"]["symbols"][1]["low"]) == (0, 520)
    reference = rivals.CHECKERS["reference"](speech)
    with load(compiled.to_bytes(), num_threads=1) as module:
        for batch, samples in ((1, 520), (2, 521), (3, 4001)):
            x = random.standard_normal((batch, samples)).astype(np.float32)
            assert_close(module.run({"x": x})["y"], reference({"x": x})[0], MODELS["float32"])
        with pytest.raises(InputError, match="t, which must be from 520"):
            module.run({"x": np.zeros((1, 519), np.float32)})


def test_sizes_at_which_only_a_part_is_empty_are_served_besides() -> None:
    text = """(float[n, 8] x) => (float[m, 8] y) <int64[1] from = {16}, int64[1] to = {9223372036854775807}> {
        late = Slice(x, from, to)
        moved = MatMul(late, w)
        y = Concat<axis=0>(x, moved)
    }"""
    w = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    compiled = compile_model(model(text, w=w), num_threads=1)
    assert (ranges(compiled)[:2], host_steps(compiled)[:2]) == ([(17, LARGEST), (1, 16)], [0, 0])
    with load(compiled.to_bytes(), num_threads=1) as module:
        for n in (1, 15, 16, 17, 40):
            x = np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)
            assert_close(module.run({"x": x})["y"], np.concatenate([x, x[16:] @ w]), MODELS["float32"])


def test_a_concat_of_what_is_left_of_a_slice_may_be_empty() -> None:
    """`b` is a cache, `x` is none."""
    proto = parser.parse_model(
        HEAD
        + """(float[n, 5] x, float[m, 5] b) => (float[k, 5] y) <int64[1] from = {7}, int64[1] to = {-2}> {
        late = Slice(x, from, to)
        y = Concat<axis=0>(b, late) }"""
    )
    with load(compile_model(proto, num_threads=1).to_bytes(), num_threads=1) as module:
        for n, m in ((0, 0), (3, 0), (0, 3), (11, 0), (11, 1)):
            x, b = np.ones((n, 5), np.float32), np.zeros((m, 5), np.float32)
            np.testing.assert_array_equal(module.run({"x": x, "b": b})["y"], np.concatenate([b, x[7:-2]]))


@pytest.mark.parametrize("inputs", [2, 3, 5])
def test_no_size_is_left_out_by_all_variants(inputs: int) -> None:
    """With two inputs either one, or both, may have no late rows; with five these would be too many variants."""
    numbers = range(inputs)
    of = ", ".join(f"float[n{i}, 8] x{i}" for i in numbers)
    to = ", ".join(f"float[m{i}] y{i}" for i in numbers)
    work = "\n".join(f"late{i} = Slice(x{i}, from, to)\ny{i} = ReduceSum<keepdims=0>(late{i}, one)" for i in numbers)
    constants = "int64[1] from = {16}, int64[1] to = {99}, int64[1] one = {1}"
    checked = checked_model(model(f"({of}) => ({to}) <{constants}> {{ {work} }}"))

    def convert(shapes: ShapeSet, region: Region | None, whole: bool = False) -> ImportedModel:
        return convert_checked(checked, shapes, ranges=region, whole=whole)

    ranges = [
        {s["name"]: range(s["low"], s["high"] + 1) for s in variant.symbols()}
        for variant in variants(convert, [{}], [{}])
    ]
    assert (ranges[0]["n0"].start == 1) == (inputs == 5)
    for sizes in product((1, 16, 17), repeat=inputs):
        has = [all(n in each[f"n{i}"] for i, n in enumerate(sizes)) for each in ranges]
        assert sum(has) == 1, sizes


CACHE = """(float[b, past, 3] x, float[b, new, 3] y, float[b, total, 3] m) => (float[b, sum, 3] z) {
    k = Concat<axis=1>(x, y)
    z = Add(k, m)
}"""


def test_all_sizes_of_a_cache_with_a_mask_may_be_0() -> None:
    """A cache, what is new, and the images; the mask's length is their sum, or 1."""
    made = parser.parse_model(HEAD + CACHE)
    rng = np.random.default_rng(0)
    with load(compile_model(made, num_threads=1).to_bytes(), num_threads=1) as module:
        for b, past, new in product((0, 1, 2), (0, 3), (0, 5)):
            for total in {past + new, 1}:
                feeds = {
                    name: rng.normal(size=(b, n, 3)).astype(np.float32) for name, n in zip("xym", (past, new, total))
                }
                expected = np.concatenate([feeds["x"], feeds["y"]], 1) + feeds["m"]
                np.testing.assert_array_equal(module.run(feeds)["z"], expected, f"{(b, past, new, total)}")


def test_a_view_of_what_may_be_empty_is_compiled() -> None:
    """The place of an element is found by quotients by sizes that may be 0, where there is no element."""
    text = """(float[b, n, 4, 6] x) => (float[p, 24] y) <int64[1] one = {1}, int64[1] end = {9223372036854775807},
        int64[1] two = {2}, int64[2] rows = {-1, 24}, int64[4] pads = {1, 0, 0, 0}> {
        odd = Slice(x, one, end, one, two)
        flat = Reshape(odd, rows)
        y = Pad(flat, pads)
    }"""
    compiled = compile_model(model(text), num_threads=1)
    assert host_steps(compiled)[0] == 0
    with load(compiled.to_bytes(), num_threads=1) as module:
        for n in (1, 2, 3, 9):
            x = np.random.default_rng(n).standard_normal((2, n, 4, 6)).astype(np.float32)
            rows = np.pad(x[:, 1::2].reshape(-1, 24), ((1, 0), (0, 0)))
            np.testing.assert_array_equal(module.run({"x": x})["y"], rows)


def test_an_output_that_may_be_empty_has_a_kernel() -> None:
    """All but the last of each row, of which a row of one has none."""
    text = """(float[n, k] x) => (float[n, m] y) <int64[1] from = {0}, int64[1] to = {-1}, int64[1] axis = {1}> {
        y = Slice(x, from, to, axis)
    }"""
    compiled = compile_model(model(text), num_threads=1)
    assert host_steps(compiled)[0] == 0
    with load(compiled.to_bytes(), num_threads=1) as module:
        for shape in ((1, 1), (3, 1), (1, 2), (5, 37), (3, 0)):
            x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            np.testing.assert_array_equal(module.run({"x": x})["y"], x[:, :-1])


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMean"])
def test_rows_of_no_elements_are_planned_beside_others(operator: str) -> None:
    compiled = compile_model(model(f"(float[b, n] x) => (y) {{ y = {operator}<axes=[1]>(x) }}"))
    nothing = -np.inf if operator == "ReduceMax" else np.nan
    with load(compiled.to_bytes()) as module:
        assert module.run({"x": np.array([[1, 3, 2]], np.float32)})["y"] == (3 if operator == "ReduceMax" else 2)
        np.testing.assert_array_equal(module.run({"x": np.zeros((2, 0), np.float32)})["y"], [[nothing]] * 2)
        assert module.run({"x": np.zeros((0, 3), np.float32)})["y"].shape == (0, 1)


def test_filters_of_no_elements_make_zeros() -> None:
    """A side of `b` is 0 in a specialisation that nothing asks for."""
    proto = model("(float[4, 3, 5, 5] x, float[16, 3, b, b] w) => (float[4, 16, h, v] y) { y = Conv(x, w) }")
    x = np.ones((4, 3, 5, 5), np.float32)
    with load(compile_model(proto, num_threads=1).to_bytes(), num_threads=1) as module:
        for b in (0, 1, 3, 5):
            result = module.run({"x": x, "w": np.ones((16, 3, b, b), np.float32)})["y"]
            np.testing.assert_array_equal(result, np.full((4, 16, 6 - b, 6 - b), 3 * b * b, np.float32))


DETECTOR = """(float[b, t] x, int64 rate) => (float[b, 8] y) <int64 high = {16000}> {
    is_high = Equal(rate, high)
    a = Constant<value = int64[1] {1}>()
    y = If(is_high) <
        then_branch = then () => (float[b, 8] long) {
            c = Unsqueeze(x, a)
            d = Conv<strides=[16]>(c, k)
            long = ReduceMax<axes=[2], keepdims=0>(d)
        }, else_branch = other () => (float[b, 8] short) {
            e = Unsqueeze(x, a)
            f = Conv<strides=[8]>(e, m)
            short = ReduceMax<axes=[2], keepdims=0>(f)
        }>
}"""


def test_branches_for_frames_of_two_lengths_have_kernels_and_the_shorter_one_takes_its_sizes() -> None:
    """A voice detector for two sampling rates: 20 samples are no frame at the higher one."""
    random = np.random.default_rng(0)
    constants = {n: random.standard_normal((8, 1, size)).astype(np.float32) for n, size in (("k", 37), ("m", 19))}
    detector = model(DETECTOR, **constants)
    compiled = compile_model(detector, num_threads=1)
    lows = [
        symbols[1]["low"] for s in compiled.specialisations if len(symbols := s.explanation["sizes"]["symbols"]) > 1
    ]
    assert (lows[:2], host_steps(compiled)[0]) == ([37, 1], 1)  # the If itself
    reference = rivals.CHECKERS["onnxruntime"](detector)
    with load(compiled.to_bytes(), num_threads=1) as module:
        for batch, samples, rate in product((1, 3), (19, 23, 36, 37, 38, 101), (8000, 16000)):
            if rate == 16000 and samples < 37:
                continue
            feeds = {"x": random.standard_normal((batch, samples)).astype(np.float32), "rate": np.array(rate)}
            assert_close(module.run(feeds)["y"], reference(feeds)[0], MODELS["float32"])
        with pytest.raises(ExecutionError, match="0 must be at most t - 37"):
            module.run({"x": np.zeros((1, 36), np.float32), "rate": np.array(16000)})


HEADS = """(float[h, w] x) => (float[h, w] y, float[h, w] z)
<int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] last = {-8}, int64[1] at = {1}, float two = {2}> {
    rows = Shape<end = 1>(x)
    columns = Shape<start = 1>(x)
    number = Squeeze(rows)
    all = Range(zero, number, one)
    head = Slice(all, first, last)
    length = Shape(head)
    size = Concat<axis = 0>(length, columns)
    values = Expand(two, size)
    places = Unsqueeze(head, at)
    y = ScatterND(x, places, values)
    z = Neg(x)
}"""


@pytest.mark.parametrize("rows", [1, 8, 9, 20])
def test_parts_that_small_images_lack_are_kernels_like_what_is_beside_them(rows: int) -> None:
    compiled = compile_model(model(HEADS), num_threads=1)
    assert not any(host_steps(compiled))
    x = np.random.default_rng(0).random((rows, 3), dtype=np.float32)
    wanted = x.copy()
    wanted[:-8] = 2
    actual = load(compiled.to_bytes(), num_threads=1).run({"x": x})
    np.testing.assert_array_equal(actual["y"], wanted)
    np.testing.assert_array_equal(actual["z"], -x)
