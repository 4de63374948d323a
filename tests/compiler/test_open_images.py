"""Convolutions and pooling of open height and width: right at every size, with nothing left to the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser

from tests.compiled import assert_close
from tests.tolerances import MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.compiler.ir.sizes import Symbol, at, parse_size, size_of
from tilestitch.passes.plan import PlanError
from tilestitch.passes.plan.cpu.schedules import CpuConvSchedule, CpuWinogradSchedule
from tilestitch.runtime import load
from tilestitch.runtime.errors import InputError

pytest.importorskip("onnxruntime")

HEAD = '<ir_version: 9, opset_import: ["" : 19]> g '
RANGE = (1, 4096)
SIZES = [(1, 1, 1), (1, 7, 7), (2, 5, 9), (1, 16, 31), (3, 2, 3), (1, 33, 64), (1, 1, 40), (1, 40, 1)]
"""Of batch, height and width: smaller than windows, a multiple of vectors and tiles, one more or less, lines."""

IMAGES = {
    "3x3": ("(float[b,16,h,w] x) => (float[b,32,h,w] y) { y = Conv<pads=[1,1,1,1]>(x, k, o) }", (32, 16, 3, 3)),
    "1x1": ("(float[b,16,h,w] x) => (float[b,40,h,w] y) { y = Conv(x, k, o) }", (40, 16, 1, 1)),
    "1x1_of_every_second": (
        "(float[b,16,h,w] x) => (float[b,40,p,q] y) { y = Conv<strides=[2,2]>(x, k) }",
        (40, 16, 1, 1),
    ),
    "3x3_of_every_second": (
        "(float[b,16,h,w] x) => (float[b,32,p,q] y) { y = Conv<pads=[1,1,1,1], strides=[2,2]>(x, k, o) }",
        (32, 16, 3, 3),
    ),
    "3x3_of_pixels_that_meet_in_a_set_of_the_cache": (
        "(float[b,512,h,w] x) => (float[b,8,p,q] y) { y = Conv<pads=[1,1,1,1], strides=[2,2]>(x, k, o) }",
        (8, 512, 3, 3),
    ),
    "7x7_of_colours": (
        "(float[b,3,h,w] x) => (float[b,32,p,q] y) { a = Conv<pads=[3,3,3,3], strides=[2,2]>(x, k, o)  y = Relu(a) }",
        (32, 3, 7, 7),
    ),
    "dilated": (
        "(float[b,16,h,w] x) => (float[b,40,h,w] y) { y = Conv<pads=[2,2,2,2], dilations=[2,2]>(x, k) }",
        (40, 16, 3, 3),
    ),
    "groups": ("(float[b,16,h,w] x) => (float[b,40,h,w] y) { y = Conv<pads=[1,1,1,1], group=4>(x, k) }", (40, 4, 3, 3)),
    "depthwise": (
        "(float[b,40,h,w] x) => (float[b,40,h,w] y) { y = Conv<pads=[1,1,1,1], group=40>(x, k, o) }",
        (40, 1, 3, 3),
    ),
    "depthwise_odd": (
        "(float[b,6,h,w] x) => (float[b,12,p,q] y)\n"
        "{ y = Conv<pads=[2,1,0,3], strides=[1,2], dilations=[1,2], group=6>(x, k) }",
        (12, 1, 3, 3),
    ),
    "residual": (
        "(float[b,16,h,w] x) => (float[b,16,h,w] y) { a = Conv<pads=[1,1,1,1]>(x, k, o)  r = Relu(a)  y = Add(r, x) }",
        (16, 16, 3, 3),
    ),
    "transposed": (
        "(float[b,16,h,w] x) => (float[b,40,p,q] y) { y = ConvTranspose<strides=[2,2]>(x, k) }",
        (16, 40, 2, 2),
    ),
    "transposed_groups": (
        "(float[b,16,h,w] x) => (float[b,20,p,q] y)\n"
        "{ y = ConvTranspose<strides=[2,2], pads=[1,1,1,1], output_padding=[1,1], group=2>(x, k) }",
        (16, 10, 3, 3),
    ),
    "volumes": (
        "(float[b,4,3,h,w] x) => (float[b,20,3,h,w] y) { y = Conv<pads=[1,1,1,1,1,1]>(x, k) }",
        (20, 4, 3, 3, 3),
    ),
    "volumes_of_known_width": (
        "(float[b,4,h,w,6] x) => (float[b,20,h,w,6] y) { y = Conv<pads=[1,1,1,1,1,1]>(x, k) }",
        (20, 4, 3, 3, 3),
    ),
    "lines": ("(float[b,16,w] x) => (float[b,32,q] y) { y = Conv<pads=[2,2], strides=[2]>(x, k) }", (32, 16, 5)),
    "lines_of_near_borders": (
        "(float[b,16,w] x) => (float[b,32,q] y) { y = Conv<pads=[1,1], strides=[2]>(x, k) }",
        (32, 16, 3),
    ),
    "known_width": ("(float[b,16,h,8] x) => (float[b,32,h,8] y) { y = Conv<pads=[1,1,1,1]>(x, k) }", (32, 16, 3, 3)),
    "narrow": ("(float[b,8,h,2] x) => (float[b,32,h,2] y) { y = Conv<pads=[1,1,1,1]>(x, k) }", (32, 8, 3, 3)),
    "known_height": ("(float[b,16,8,w] x) => (float[b,32,8,w] y) { y = Conv<pads=[1,1,1,1]>(x, k) }", (32, 16, 3, 3)),
    "same": ('(float[b,16,h,w] x) => (float[b,32,h,w] y) { y = Conv<auto_pad="SAME_UPPER">(x, k) }', (32, 16, 3, 3)),
    "max": (
        "(float[b,5,h,w] x) => (float[b,5,p,q] y)\n"
        "{ y = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]>(x) }",
        None,
    ),
    "max_of_wide_windows": (
        "(float[b,5,h,w] x) => (float[b,5,p,q] y) { y = MaxPool<kernel_shape=[3,20], pads=[1,10,1,10]>(x) }",
        None,
    ),
    "max_channels_last": (
        "(float[b,16,h,w] x) => (float[b,32,p,q] y) { a = Conv<pads=[1,1,1,1]>(x, k)\n"
        "y = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]>(a) }",
        (32, 16, 3, 3),
    ),
    "whole_images": (
        "(float[b,16,h,w] x) => (float[b,32,1,1] y, float[b,32,1,1] z) { a = Conv<pads=[1,1,1,1]>(x, k)\n"
        "y = GlobalAveragePool(a)  z = GlobalMaxPool(a) }",
        (32, 16, 3, 3),
    ),
    "lp": (
        "(float[b,5,h,w] x) => (float[b,5,p,q] y)\n"
        "{ y = LpPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x) }",
        None,
    ),
    "averages": (
        "(float[b,5,h,w] x) => (float[b,5,p,q] inside, float[b,5,p,q] all, float[b,5,r,s] ceil, float[b,5,t,u] same)\n"
        "{ inside = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]>(x)\n"
        "all = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2], count_include_pad=1>(x)\n"
        "ceil = AveragePool<kernel_shape=[2,3], pads=[1,1,0,1], strides=[2,2], ceil_mode=1>(x)\n"
        'same = AveragePool<kernel_shape=[3,3], strides=[2,2], auto_pad="SAME_UPPER">(x) }',
        None,
    ),
    "dilated_averages": (
        "(float[b,5,h,w] x) => (float[b,5,p,q] y)\n"
        "{ y = AveragePool<kernel_shape=[3,3], pads=[2,2,2,2], dilations=[2,1], strides=[2,1]>(x) }",
        None,
    ),
    "max_of_a_last_part": (
        "(float[b,5,h,w] x) => (float[b,5,p,q] y)\n"
        "{ y = MaxPool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1, pads=[1,1,1,1]>(x) }",
        None,
    ),
    "same_with_strides": (
        '(float[b,16,h,w] x) => (float[b,16,p,q] y) { y = Conv<auto_pad="SAME_LOWER", strides=[3,2]>(x, k) }',
        (16, 16, 4, 5),
    ),
    "same_depthwise": (
        '(float[b,16,h,w] x) => (float[b,16,p,q] y) { y = Conv<auto_pad="SAME_UPPER", strides=[2,2], group=16>(x, k) }',
        (16, 1, 3, 3),
    ),
    "same_1x1": (
        '(float[b,16,h,w] x) => (float[b,16,p,q] y) { y = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, k) }',
        (16, 16, 1, 1),
    ),
    "places_of_the_largest": (
        "(float[b,5,h,w] x) => (float[b,5,p,q] y, int64[b,5,p,q] z, float[b,5,r,s] v, int64[b,5,r,s] u)\n"
        "{ y, z = MaxPool<kernel_shape=[2,2], strides=[2,2], pads=[1,1,1,1]>(x)\n"
        "v, u = MaxPool<kernel_shape=[3,3], strides=[2,1], pads=[2,2,2,2], dilations=[2,2], storage_order=1>(x) }",
        None,
    ),
    "enlarged": (
        "(float[b,5,h,w] x) => (float[b,5,p,q] y, float[b,5,r,s] z, float[b,5,t,u] c)\n"
        "<float[4] two={1,1,2,2}>\n"
        '{ y = Resize<mode="linear">(x, , two)\n'
        'z = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(x, , two)\n'
        'c = Resize<mode="cubic", exclude_outside=1>(x, , two) }',
        None,
    ),
    "brought_to_the_size_of_another": (
        "(float[b,5,h,w] x) => (float[b,5,h,w] y, float[b,5,7,9] z)\n"
        "<int64[1] none={0}, int64[1] two={2}, int64[1] four={4}, int64[2] sides={7,9}>\n"
        "{ small = MaxPool<kernel_shape=[2,2], strides=[2,2], pads=[0,0,1,1]>(x)\n"
        "shape = Shape(x)  lead = Slice(shape, none, two)  whole = Slice(shape, two, four)\n"
        "like = Concat<axis=0>(lead, whole)  known = Concat<axis=0>(lead, sides)\n"
        'y = Resize<mode="linear", coordinate_transformation_mode="pytorch_half_pixel">(small, , , like)\n'
        'z = Resize<mode="linear", coordinate_transformation_mode="align_corners">(small, , , known) }',
        None,
    ),
    "padded": (
        "(float[b,5,h,w] x) => (float[b,5,p,q] y) <int64[8] pads={0,0,1,2,0,0,3,4}> { y = Pad(x, pads) }",
        None,
    ),
}
"""By what is special about them: the model, in which k are the weights and o the bias, and the shape of the weights."""


def model_of(text: str, weights: tuple[int, ...] | None) -> ModelProto:
    model = parser.parse_model(HEAD + text)
    rng = np.random.default_rng(0)
    if weights is not None:
        data = {"k": rng.standard_normal(weights), "o": rng.standard_normal(weights[0])}
        used = {name for node in model.graph.node for name in node.input}
        model.graph.initializer.extend(
            numpy_helper.from_array(values.astype(np.float32), name) for name, values in data.items() if name in used
        )
    return model


def inputs(model: ModelProto, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        info.name: rng.standard_normal(
            [sizes[d.dim_param] if d.dim_param else d.dim_value for d in info.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for info in model.graph.input
    }


def dims_of(model: ModelProto) -> dict[str, tuple[int, int]]:
    shapes = (info.type.tensor_type.shape for info in model.graph.input)
    return {d.dim_param: RANGE for shape in shapes for d in shape.dim if d.dim_param}


@pytest.mark.parametrize("name", IMAGES)
def test_images_of_any_size_are_right_at_every_size(name: str) -> None:
    model = model_of(*IMAGES[name])
    compiled = compile_model(model, dims=dims_of(model))
    assert compiled.explain()["host"]["steps"] == 0
    reference = rivals.onnxruntime(model, 1)
    with load(compiled.to_bytes(), num_threads=2) as module:
        for b, h, w in SIZES:
            feeds = inputs(model, {"b": b, "h": h, "w": w})
            for actual, wanted in zip(module.run(feeds).values(), reference(feeds), strict=True):
                assert actual.shape == wanted.shape
                assert_close(actual, wanted, MODELS["float32"])


def test_blocks_of_an_image_become_channels_where_they_fill_it() -> None:
    model = model_of("(float[b,3,h,w] x) => (float[b,12,p,q] y) { y = SpaceToDepth<blocksize=2>(x) }", None)
    compiled = compile_model(model)
    assert compiled.explain()["host"]["steps"] == 0
    with load(compiled.to_bytes(), num_threads=2) as module:
        for b, h, w in ((1, 2, 2), (2, 4, 6), (1, 34, 2)):
            feeds = inputs(model, {"b": b, "h": h, "w": w})
            assert_close(module.run(feeds)["y"], rivals.onnxruntime(model, 1)(feeds)[0], MODELS["float32"])
        with pytest.raises(InputError, match="h // 2"):
            module.run(inputs(model, {"b": 1, "h": 3, "w": 2}))


WITHOUT_PADDING = {
    "a_window": "(float[b,4,h,w] x) => (float[b,4,p,q] y) { y = Conv(x, k) }",
    "two_windows": "(float[b,4,h,w] x) => (float[b,4,p,q] y) { a = Conv(x, k)  r = Relu(a)  y = Conv(r, k) }",
    "of_what_is_pooled": "(float[b,4,h,w] x) => (float[b,q] y)\n"
    "{ a = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)  c = Conv(a, k)  y = Flatten(c) }",
    "largest": "(float[b,4,h,w] x) => (float[b,4,p,q] y) { a = Conv(x, k)  y = MaxPool<kernel_shape=[2,2]>(a) }",
}


@pytest.mark.parametrize("name", WITHOUT_PADDING)
def test_images_that_windows_fit_into_are_compiled_without_padding(name: str) -> None:
    model = model_of(WITHOUT_PADDING[name], (4, 4, 3, 3))
    compiled = compile_model(model)
    assert compiled.explain()["host"]["steps"] == 0
    reference = rivals.onnxruntime(model, 1)
    with load(compiled.to_bytes(), num_threads=2) as module:
        for b, h, w in ((1, 6, 6), (2, 7, 6), (1, 8, 41)):
            feeds = inputs(model, {"b": b, "h": h, "w": w})
            (actual,), (wanted,) = module.run(feeds).values(), reference(feeds)
            assert_close(actual, wanted, MODELS["float32"])


@pytest.mark.parametrize("axis", [2, 3])
def test_padding_is_left_out(axis: int) -> None:
    """Not even multiplied by weights that are not finite: they meet nothing else in a row or column of the result."""
    model = model_of(*IMAGES["3x3"])
    (weights,) = (tensor for tensor in model.graph.initializer if tensor.name == "k")
    changed = numpy_helper.to_array(weights).copy()
    np.moveaxis(changed, axis, 0)[0] = np.inf
    weights.CopyFrom(numpy_helper.from_array(changed, "k"))
    with load(compile_model(model, dims=dims_of(model), winograd=False).to_bytes()) as module:
        y = module.run(inputs(model, {"b": 2, "h": 30, "w": 30}))["y"]
    first, rest = np.split(np.moveaxis(y, axis, 0), [1])
    assert np.isfinite(first[..., 1:-1]).all() and not np.isfinite(rest).any()


@pytest.mark.parametrize(("name", "copied"), [("lines_of_near_borders", False), ("lines", True)])
def test_images_are_read_where_they_lie_if_their_borders_are_near(name: str, copied: bool) -> None:
    model = model_of(*IMAGES[name])
    groups = compile_model(model, dims=dims_of(model)).plan.groups
    (schedule,) = (group.schedule for group in groups if isinstance(group.schedule, CpuConvSchedule))
    assert schedule.stage == copied


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("winograd", [False, True])
def test_an_image_is_shared_by_threads_as_far_as_it_has_rows(threads: int, winograd: bool) -> None:
    """By Winograd's algorithm, rows go in pairs."""
    model = model_of(*IMAGES["3x3"])
    compiled = compile_model(model, dims=dims_of(model), num_threads=threads, winograd=winograd)
    (convolution,) = (k for k in compiled.explain()["kernels"] if k["kind"] == "contraction")
    (launch,) = convolution["launches"]
    symbols = {name: size_of(Symbol(name, *RANGE)) for name in "bhw"}
    tasks = parse_size(launch["tasks"], symbols)
    assert at(tasks, {"b": 1, "h": 64, "w": 8}) == (1 if threads == 1 else 16)
    assert at(tasks, {"b": 1, "h": 3, "w": 8}) == (1 if threads == 1 else 2 if winograd else 3)


def test_filters_that_are_larger_than_a_cache_are_read_for_images_of_any_height() -> None:
    """Nothing asks for them ahead, which pieces of fixed size would do, also not where an edited plan says so."""
    model = model_of(
        "(float[1,128,h,16] x) => (float[1,128,h,16] y) { y = Conv<pads=[1,1,1,1]>(x, k) }", (128, 128, 3, 3)
    )
    compiled = compile_model(model, "cpu:x86-64-v3", dims={"h": (1, 600)}, num_threads=2)
    (group,) = (group for group in compiled.plan.groups if isinstance(group.schedule, CpuWinogradSchedule))
    assert not group.schedule.prefetch_next
    feeds = inputs(model, {"h": 7})
    with load(compiled.to_bytes(), num_threads=2) as module:
        assert_close(module.run(feeds)["y"], rivals.onnxruntime(model, 1)(feeds)[0], MODELS["float32"])
    edited = replace(group, schedule=replace(group.schedule, prefetch_next=True))
    groups = tuple(edited if one is group else one for one in compiled.plan.groups)
    with pytest.raises(PlanError, match="of images of fixed size"):
        compile_model(model, "cpu:x86-64-v3", plan=replace(compiled.plan, groups=groups))


def test_a_window_that_fits_no_image_of_this_size_is_refused_by_name() -> None:
    model = model_of("(float[b,4,h,w] x) => (float[b,8,p,q] y) { y = Conv(x, k) }", (8, 4, 5, 5))
    with load(compile_model(model, dims=dims_of(model)).to_bytes()) as module:
        assert module.run(inputs(model, {"b": 1, "h": 5, "w": 6}))["y"].shape == (1, 8, 1, 2)
        with pytest.raises(InputError, match="h"):
            module.run(inputs(model, {"b": 1, "h": 4, "w": 6}))


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("(float[1,3,n] x) => (float[1,8,m] y) { y = Conv<pads=[1,1], strides=[2]>(x, k) }", (3,)),
        ("(float[1,3,n,7] x) => (float[1,8,m,7] y) { y = Conv<pads=[1,1,1,1], strides=[2,1]>(x, k) }", (3, 3)),
    ],
)
def test_results_of_a_known_size_of_images_of_an_open_one(text: str, shape: tuple[int, ...]) -> None:
    """Rounding leaves one size: windows reach over borders whose place is not known."""
    model = parser.parse_model(HEAD + text)
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal((8, 3, *shape)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(kernel, "k"))
    module = load(compile_model(model, dims={"n": (1, 2)}).to_bytes(), num_threads=1)
    for n in (1, 2):
        x = rng.standard_normal((1, 3, n, 7)[: len(shape) + 2]).astype(np.float32)
        (wanted,) = rivals.onnxruntime(model, 1)({"x": x})
        assert_close(module.run({"x": x})["y"], wanted, MODELS["float32"])


@pytest.mark.parametrize("taps", [2, 33])
def test_open_rows_that_are_typically_shorter_than_a_vector_are_pooled(taps: int) -> None:
    """Lines, and rows of so many taps that no line has them."""
    text = f"(uint8[b,17,h,w] x) => (uint8[b,17,h,q] y) {{ y = MaxPool<kernel_shape=[1,{taps}]>(x) }}"
    model = model_of(text, None)
    compiled = compile_model(model, dims={"w": (33, 40)}, num_threads=1)
    reference = rivals.onnxruntime(model, 1)
    for width in (33, 40):
        feeds = {"x": np.random.default_rng(1).integers(0, 256, (2, 17, 3, width)).astype(np.uint8)}
        for actual, wanted in zip(load(compiled.to_bytes()).run(feeds).values(), reference(feeds), strict=True):
            assert np.array_equal(actual, wanted)


def test_images_of_any_shape_that_have_as_many_patches_as_there_are_positions() -> None:
    """As exporters declare a vision transformer: both sizes open, though only their patches' number is."""
    rng = np.random.default_rng(0)
    model = parser.parse_model(
        HEAD
        + """(float[b, colours, h, w] x) => (float[b, 36, 24] y) {
        patches = Conv<strides=[4,4]>(x, k)
        shape = Shape<start=0, end=2>(patches)
        rest = Constant<value_ints=[-1]>()
        flat = Concat<axis=0>(shape, rest)
        rows = Reshape(patches, flat)
        tokens = Transpose<perm=[0,2,1]>(rows)
        placed = Add(tokens, positions)
        y = Tanh(placed)
    }"""
    )
    for name, shape in (("k", (24, 3, 4, 4)), ("positions", (1, 36, 24))):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape, np.float32) / 4, name))
    compiled = load(compile_model(model, cache=False, host_steps=False).to_bytes())
    reference = rivals.onnxruntime(model, 1)
    for batch, height, width in ((1, 24, 24), (2, 8, 72), (1, 39, 19)):
        x = rng.standard_normal((batch, 3, height, width), np.float32)
        assert_close(compiled.run({"x": x})["y"], reference({"x": x})[0], MODELS["float32"])
    with pytest.raises(InputError, match="must be 0"):
        compiled.run({"x": np.zeros((1, 3, 24, 28), np.float32)})


def test_taps_are_displaced_in_images_of_any_size() -> None:
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 19]>
        g (float[b, 4, h, w] x, float[b, 18, p, q] d, float[b, 9, p, q] m) => (float[b, 6, p, q] y) {
          y = DeformConv<pads=[1, 1, 1, 1], strides=[2, 1]>(x, k, d, "", m)
        }"""
    )
    random = np.random.default_rng(0)
    model.graph.initializer.append(numpy_helper.from_array(random.standard_normal((6, 4, 3, 3), np.float32), "k"))
    compiled, reference = compile_model(model), rivals.CHECKERS["reference"](model)
    assert compiled.explain()["host"]["steps"] == 0
    with load(compiled.to_bytes()) as module:
        for b, h, w in ((1, 4, 5), (2, 9, 3)):
            p = (h + 1) // 2
            shapes = {"x": (b, 4, h, w), "d": (b, 18, p, w), "m": (b, 9, p, w)}
            feeds = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
            assert_close(module.run(feeds)["y"], reference(feeds)[0], MODELS["float32"])


def test_filters_of_open_sizes_are_as_stated_and_divide_into_groups() -> None:
    """A stated kernel was refused beside open sizes, and numbers of filters that no group divides were tried."""
    model = parser.parse_model(
        HEAD
        + "(float[b,6,h,w] x, float[o,2,p,q] k) => (float[b,o,r,s] y) { y = Conv<kernel_shape=[3,2], group=3>(x, k) }"
    )
    random, reference = np.random.default_rng(0), rivals.onnxruntime(model, 1)
    with load(compile_model(model).to_bytes()) as module:
        for filters, height in ((9, 7), (3, 3)):
            shapes = {"x": (2, 6, height, 5), "k": (filters, 2, 3, 2)}
            feeds = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
            assert_close(module.run(feeds)["y"], reference(feeds)[0], MODELS["float32"])
        with pytest.raises(InputError):
            module.run({"x": feeds["x"], "k": np.ones((4, 2, 3, 2), np.float32)})
