"""Sizes that a model computes: of resized and padded images, of parts, and how many of the best are asked for."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper, parser

from tests.compiled import assert_close
from tests.tolerances import MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.runtime import load
from tilestitch.runtime.errors import ExecutionError

pytest.importorskip("onnxruntime")

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
SIDES = ((1, 1), (2, 3), (7, 5), (17, 31), (64, 40))
OPEN = {"h": (1, 99), "w": (1, 99)}


def operators_on_host(
    text: str, dims: dict[str, tuple[int, int]], given: list[dict[str, Any]], opset: int = 17
) -> set[str]:
    """Of the compiled model, which is compared with ONNX Runtime."""
    model = parser.parse_model(HEAD.replace("17", str(opset)) + text)
    compiled = compile_model(model, dims=dims)
    reference = rivals.onnxruntime(model, 1)
    with load(compiled.to_bytes(), num_threads=2) as module:
        for feeds in given:
            for actual, wanted in zip(module.run(feeds).values(), reference(feeds), strict=True):
                assert_close(actual, wanted, MODELS["float32"])
    return {operator for reason in compiled.explain()["host"]["reasons"] for operator in reason["operators"]}


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def images(*channels: int) -> list[np.ndarray]:
    return [floats(*channels, *side) for side in SIDES]


@pytest.mark.parametrize(
    ("mode", "coordinates", "nearest"),
    [
        ("linear", "half_pixel", "floor"),
        ("linear", "asymmetric", "floor"),
        ("linear", "pytorch_half_pixel", "floor"),
        ("linear", "align_corners", "floor"),
        ("nearest", "asymmetric", "floor"),
        ("nearest", "half_pixel", "round_prefer_floor"),
        ("nearest", "half_pixel", "round_prefer_ceil"),
        ("nearest", "asymmetric", "ceil"),
        ("cubic", "half_pixel", "floor"),
    ],
)
def test_images_are_resized_to_sizes_that_are_computed(mode: str, coordinates: str, nearest: str) -> None:
    text = (
        "(float[1, 2, h, w] x, int64[2] s) => (float[1, 2, p, q] y) <int64[2] n = {1, 2}>\n"
        f'{{ z = Concat<axis=0>(n, s)  y = Resize<mode="{mode}", coordinate_transformation_mode="{coordinates}",\n'
        f'nearest_mode="{nearest}">(x, , , z) }}'
    )
    wanted = ((1, 1), (3, 2), (13, 29), (64, 65))
    given = [{"x": x, "s": np.array(sides, np.int64)} for x in images(1, 2) for sides in wanted]
    assert operators_on_host(text, OPEN, given) == {"Extent"}


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("scales", [(2, 2), (3, 0.7), (0.5, 0.5)])
def test_images_of_any_size_are_resized_by_scales(mode: str, scales: tuple[float, float]) -> None:
    text = (
        f"(float[1, 2, h, w] x) => (float[1, 2, p, q] y) <float[4] n = {{1, 1, {scales[0]}, {scales[1]}}}>\n"
        f'{{ y = Resize<mode="{mode}", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(x, , n) }}'
    )
    given = [{"x": x} for x in images(1, 2) if x.shape[-1] > 1]
    assert not operators_on_host(text, {"h": (2, 99), "w": (2, 99)}, given)


def test_images_of_any_size_are_brought_to_known_sides_by_scales() -> None:
    """As converters of TensorFlow write it. In float32, 3 times 40 / 3 is 40, and 1.3 of 10 is 13."""
    text = (
        "(float[1, 2, h, w] x, float[1, 2, a, b] u) => (float[1, 2, 24, 40] y, float[1, 2, p, q] z)\n"
        "<float[2] one = {1, 1}, float[2] wanted = {24, 40}, int64[2] sides = {2, 3}, float[4] n = {1, 1, 1.3, 2.6}>\n"
        "{ shape = Shape(x)  hw = Gather(shape, sides)  floats = Cast<to=1>(hw)  s = Div(wanted, floats)\n"
        'scales = Concat<axis=0>(one, s)  y = Upsample<mode="linear">(x, scales)  z = Upsample(u, n) }'
    )
    given = [{"x": x, "u": floats(1, 2, 10, 20)} for x in images(1, 2) if x.shape[2] <= 24]
    assert operators_on_host(text, {}, given, 9) == {"Extent"}


def test_a_way_to_resize_that_needs_known_sizes_is_left_to_the_host() -> None:
    text = (
        "(float[1, 2, h, w] x, int64[2] s) => (float[1, 2, p, q] y) <int64[2] n = {1, 2}>\n"
        '{ z = Concat<axis=0>(n, s)  y = Resize<mode="linear", antialias=1>(x, , , z) }'
    )
    given = [{"x": x, "s": np.array((13, 29), np.int64)} for x in images(1, 2)]
    assert "Resize" in operators_on_host(text, OPEN, given, 18)


@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_images_are_padded_and_cropped_by_amounts_that_are_computed(mode: str) -> None:
    text = (
        "(float[2, h, w] x, int64[3] s) => (float[2, p, q] y)\n"
        "<int64[1] z = {0}, int64[2] n = {0, 1}, float v = {2.5}>\n"
        f'{{ pads = Concat<axis=0>(n, s, z)  y = Pad<mode="{mode}">(x, pads, v) }}'
    )
    amounts = [(0, 0, 0), (3, 2, 1), (0, 5, 9)] + ([(-1, 2, 3)] if mode == "constant" else [])
    given = [{"x": x, "s": np.array(three, np.int64)} for x in images(2) for three in amounts]
    assert operators_on_host(text, OPEN, given) == {"Extent"}


def test_what_was_found_is_padded_by_computed_amounts_where_it_is_nothing() -> None:
    text = """(float[n, 2] x, bool[n] p, int64[4] pads) => (float[m, k] y) <float v = {2.5}> {
        found = Compress<axis = 0>(x, p)  y = Pad(found, pads, v) }"""
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    given = [
        {"x": x, "p": np.arange(4) < found, "pads": np.array([before, 0, 1, after])}
        for found, before, after in product((0, 1, 4), (0, 2), (-1, 0, 3))
    ]
    assert operators_on_host(text, {}, given) == {"Extent"}


def test_images_are_mirrored_to_whole_windows() -> None:
    text = (
        "(float[2, h, w] x) => (float[2, p, q] y) <int64[1] four = {4}, int64[1] z = {0}, int64[2] sides = {1, 2}>\n"
        "{ shape = Shape(x)  hw = Gather(shape, sides)  over = Mod(hw, four)  short = Sub(four, over)\n"
        'more = Mod(short, four)  pads = Concat<axis=0>(z, z, z, z, more)  y = Pad<mode="reflect">(x, pads) }'
    )
    assert not operators_on_host(text, {}, [{"x": x} for x in images(2) if min(x.shape[1:]) >= 5])


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_padding_that_crops_at_some_sizes(mode: str) -> None:
    """As VITS pads its table of relative positions to the length of a text."""
    text = (
        "(float[w, 3] x, float[9, 4] table) => (float[p, 4] y) <int64[1] five = {5}, int64[1] z = {0}>\n"
        "{ all = Shape(x)  w = Gather(all, z)  more = Sub(w, five)  pads = Concat<axis=0>(more, z, more, z)\n"
        f'y = Pad<mode="{mode}">(table, pads) }}'
    )
    given = [{"x": floats(rows, 3), "table": floats(9, 4)} for rows in (1, 4, 5, 6, 13)]
    assert not operators_on_host(text, {}, given)


def test_as_many_of_the_best_as_are_computed() -> None:
    text = (
        "(float[n] x, int64[2] k) => (float[q] y, int64[q] i, float[r] z)\n"
        "<int64[1] one = {1}, int64[1] zero = {0}, int64[1] two = {2}>\n"
        "{ k1 = Slice(k, one, two, zero)  y, i = TopK(x, k1)\n"
        "k0 = Slice(k, zero, one, zero)  c = ConstantOfShape(k0)  d = Exp(c)  z = Concat<axis=0>(d, x) }"
    )
    random = np.random.default_rng(0)
    given = [
        {"x": random.standard_normal(n).astype(np.float32), "k": np.array([k + 2, k])}
        for n in (5, 17, 97, 1000)
        for k in (0, 1, 5)
    ]
    assert operators_on_host(text, {"n": (1, 1000)}, given) == {"Extent"}


COUNTED = """(float[12, 5] x, int64[12] expert) => (float[12, 7] y)
    <int64[3] none = {0, 0, 0}, int64[12] ones = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}> {
    k = ScatterElements<reduction="add">(none, expert, ones)
    a, b, c = Split<axis=0>(x, k)
    p = MatMul(a, u)  q = MatMul(b, v)  r = MatMul(c, w)
    y = Concat<axis=0>(p, q, r)
}"""


def test_parts_of_counted_lengths_are_kernels() -> None:
    """Rows of tokens per expert: some have none, one has all."""
    model = parser.parse_model(HEAD.replace("17", "18") + COUNTED)
    for name in "uvw":
        model.graph.initializer.append(numpy_helper.from_array(floats(5, 7) + len(name), name))
    of_experts = [[0, 1, 2] * 4, [2] * 12, [1] * 12, [0] * 11 + [2], [1, 2] * 6, [0] + [1] * 4 + [2] * 7]
    reference = rivals.onnxruntime(model, 1)
    compiled = compile_model(model, num_threads=1)
    with load(compiled.to_bytes(), num_threads=1) as module:
        for experts in of_experts:
            feeds = {"x": floats(12, 5), "expert": np.array(experts)}
            assert_close(module.run(feeds)["y"], reference(feeds)[0], MODELS["float32"])
    assert {step["op"] for step in compiled.explain()["host_steps"]} == {"host.Extent"}


def test_parts_of_computed_lengths_of_an_open_dimension() -> None:
    """Their sum is a dimension of the input, but does not say how long they are."""
    text = """(float[n, m] x, int64[3] k) => (float[n, t] y) <int64[3] one = {1, 1, 1}> {
        l = Mul(k, one)  a, b, c = Split<axis=1>(x, l)  p = Tanh(a)  y = Concat<axis=1>(b, p, c)
    }"""
    model = parser.parse_model(HEAD + text)
    lengths = [(4, 4, 5), (0, 5, 7), (0, 0, 1), (0, 0, 0), (13, 0, 0)]
    reference = rivals.onnxruntime(model, 1)
    with load(compile_model(model, num_threads=1).to_bytes(), num_threads=1) as module:
        for n, parts in product((1, 3, 0), lengths):
            feeds = {"x": floats(n, sum(parts)), "k": np.array(parts)}
            assert_close(module.run(feeds)["y"], reference(feeds)[0], MODELS["float32"])
        with pytest.raises(ExecutionError, match=r"Split.* must be 0"):
            module.run({"x": floats(2, 5), "k": np.array([1, 2, 3])})


def test_a_size_below_0_is_a_fault() -> None:
    model = parser.parse_model(HEAD + "(float[n] x, int64[1] k) => (float[q] y, int64[q] i) { y, i = TopK(x, k) }")
    feeds, message = {"x": np.ones(3, np.float32), "k": np.array([-1])}, "a size that the model computes is -1"
    with (
        load(compile_model(model, dims={"n": (1, 9)}).to_bytes()) as module,
        pytest.raises(ExecutionError, match=message),
    ):
        module.run(feeds)


@pytest.mark.parametrize("length", ["n", "6"])
def test_a_size_that_meets_another_is_as_large(length: str) -> None:
    text = f"(float[{length}] x, int64[1] k) => (float[q] y) {{ c = ConstantOfShape(k)  y = Add(x, c) }}"
    x = np.arange(6, dtype=np.float32)
    with load(compile_model(parser.parse_model(HEAD + text)).to_bytes()) as module:
        np.testing.assert_array_equal(module.run({"x": x, "k": np.array([6])})["y"], x)
        for k in (0, 3, 9):
            with pytest.raises(ExecutionError, match=f"a size of {k}, .*one of 6 "):
                module.run({"x": x, "k": np.array([k])})


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_frames_that_are_counted_in_floats_are_known(mode: str) -> None:
    """Sound is padded to whole frames: ceil((n - 7 + 6) / 3 + 1)."""
    text = (
        f"(float[b, 1, n] x) => (float[b, 1, p] y) <int64 two = {{2}}, int64[1] zero = {{0}}, int64 one = {{1}},\n"
        "int64 three = {3}, float stride = {3}, float first = {1}, int64[5] before = {0, 0, 4, 0, 0}> {\n"
        "s = Shape(x)  n = Gather(s, two)  m = Sub(n, one)  f = Cast<to=1>(m)  q = Div(f, stride)  c = Add(q, first)\n"
        "r = Ceil(c)  i = Cast<to=7>(r)  j = Sub(i, one)  k = Mul(j, three)  l = Add(k, one)  t = Sub(l, n)\n"
        f'u = Unsqueeze(t, zero)  pads = Concat<axis=0>(before, u)  y = Pad<mode="{mode}">(x, pads) }}'
    )
    given = [{"x": np.arange(2.0 * n, dtype=np.float32).reshape(2, 1, n)} for n in (5, 6, 7, 97, 98, 99, 1000)]
    assert not operators_on_host(text, {"b": (1, 2), "n": (5, 1000)}, given)


@pytest.mark.parametrize(("mode", "align", "padding"), [("bilinear", 0, "zeros"), ("nearest", 1, "reflection")])
def test_images_of_any_size_are_read_at_places_of_a_grid(mode: str, align: int, padding: str) -> None:
    text = (
        "(float[b, 2, h, w] x, float[b, p, q, 2] g) => (float[b, 2, p, q] y)\n"
        f'{{ y = GridSample<mode="{mode}", padding_mode="{padding}", align_corners={align}>(x, g) }}'
    )
    random, given = np.random.default_rng(0), []
    for b, h, w, p, q in ((1, 1, 1, 3, 2), (2, 7, 5, 4, 9), (1, 16, 33, 1, 1)):
        grid = random.uniform(-1.4, 1.4, (b, p, q, 2)).astype(np.float32)
        given.append({"x": random.standard_normal((b, 2, h, w)).astype(np.float32), "g": grid})
    assert not operators_on_host(text, {}, given)


def test_a_grid_that_leaves_all_sizes_open_has_a_place_for_each_axis() -> None:
    """No sizes were found at which it has, as each axis of the image and of the result occurs in the claim, too."""
    text = "(float[b, c, h, w] x, float[n, p, q, two] g) => (float[b, c, p, q] y) { y = GridSample(x, g) }"
    x, grid = np.arange(30, dtype=np.float32).reshape(1, 2, 3, 5), np.zeros((1, 7, 2, 2), np.float32)
    assert not operators_on_host(text, {}, [{"x": x, "g": grid}])


BLOCKS = """(float[1, 4, h, w] x) => (float[1, 4, h, w] y)
<int64[1] any = {-1}, int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4}> {
    of = Shape<start = 1>(x)
    first = Concat<axis = 0>(any, of)
    same = Reshape(x, first)
    channels = Shape<start = 1, end = 2>(same)
    rows = Shape<start = 2, end = 3>(same)
    columns = Shape<start = 3>(same)
    half_rows = Div(rows, two)
    half_columns = Div(columns, two)
    in_blocks = Concat<axis = 0>(any, channels, half_rows, two, half_columns, two)
    blocks = Reshape(same, in_blocks)
    turned = Transpose<perm = [0, 1, 3, 5, 2, 4]>(blocks)
    more = Mul(channels, four)
    joint = Concat<axis = 0>(any, more, half_rows, half_columns)
    deep = Reshape(turned, joint)
    rest = Shape<start = 1>(deep)
    single = Concat<axis = 0>(one, rest)
    image = Reshape(deep, single)
    mixed = Conv(image, weights)
    large = DepthToSpace<blocksize = 2, mode = "CRD">(mixed)
    y = Add(large, x)
}"""


def test_a_side_that_is_a_found_size_times_another_tells_neither() -> None:
    """Heads that groups are made of: the artifact could not be loaded, as nothing determined their number."""
    text = "(float[a, b, 8, 2] q, float[1, d, 3, 2] k, float[n, n, 3, 5] v) => (float[a, b, 8, 5] y)"
    feeds = {"q": floats(1, 1, 8, 2), "k": floats(1, 1, 3, 2), "v": floats(1, 1, 3, 5)}
    operators_on_host(text + " { y = Attention(q, k, v) }", {}, [feeds], 23)


def test_sides_of_inputs_may_be_multiples_of_sizes_that_are_found() -> None:
    """PyTorch's exporter writes pixel_unshuffle with a Reshape whose sizes are known once those of the input are."""
    made = parser.parse_model('<ir_version: 8, opset_import: ["" : 18]> g ' + BLOCKS)
    weights = np.eye(16, dtype=np.float32).reshape(16, 16, 1, 1)
    made.graph.initializer.append(numpy_helper.from_array(weights, "weights"))
    compiled = compile_model(made, num_threads=1)
    assert not compiled.explain()["host_steps"]
    module = load(compiled.to_bytes(), num_threads=1)
    for rows, columns in ((2, 2), (6, 4), (14, 30)):
        x = np.random.default_rng(0).random((1, 4, rows, columns), dtype=np.float32)
        np.testing.assert_allclose(module.run({"x": x})["y"], 2 * x, rtol=1e-6)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_channels_of_any_number_become_blocks(mode: str) -> None:
    body = f'(float[b, c, h, w] x) => (float[b, d, k, l] y) {{ y = DepthToSpace<blocksize = 2, mode = "{mode}">(x) }}'
    made = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g ' + body)
    compiled = compile_model(made, num_threads=1)
    assert not compiled.explain()["host_steps"]
    module = load(compiled.to_bytes(), num_threads=1)
    for batch, channels, rows, columns in ((1, 4, 1, 1), (3, 12, 5, 2)):
        x = np.random.default_rng(0).random((batch, channels, rows, columns), dtype=np.float32)
        depth = channels // 4
        split, order = {
            "DCR": ((batch, 2, 2, depth, rows, columns), (0, 3, 4, 1, 5, 2)),
            "CRD": ((batch, depth, 2, 2, rows, columns), (0, 1, 4, 2, 5, 3)),
        }[mode]
        wanted = x.reshape(split).transpose(order).reshape(batch, depth, 2 * rows, 2 * columns)
        np.testing.assert_array_equal(module.run({"x": x})["y"], wanted)
