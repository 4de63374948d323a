"""Quantised models on CPUs: integers are multiplied, and results are ONNX Runtime's up to a step of the output."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from onnx import TensorProto, parser
from onnx.helper import make_node as onnx_node

from tests.compiler.quantised_models import Sketch, unoptimised
from tests.frontend.checks import run_ort
from tilestitch.codegen.cpu.target import parse_target
from tilestitch.compiler import compile_model
from tilestitch.passes.plan import GroupKind
from tilestitch.passes.plan.cpu.schedules import DotSchedule
from tilestitch.runtime import load

TARGETS = ("cpu", "cpu:x86-64-v3", "cpu:x86-64-v4")
"""This machine's, and CPUs without an instruction for groups of four."""


def check(
    model: bytes, feeds: Mapping[str, np.ndarray], step: float, target: str = "cpu", kernels: int | None = None
) -> None:
    """Equal to ONNX Runtime up to a step of the output; all contractions, or `kernels` of them, in integers."""
    compiled = compile_model(model, target, num_threads=1)
    actual = next(iter(load(compiled.to_bytes()).run(feeds).values()))
    expected = unoptimised(model, feeds)
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    assert np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max(initial=0) <= step * 1.0001
    parts = [part for group in compiled.plan.groups for part in group.parts or (group,)]
    contractions = [part for part in parts if part.kind is GroupKind.CONTRACTION]
    dots = [group for group in contractions if isinstance(group.schedule, DotSchedule)]
    assert contractions and len(dots) == (len(contractions) if kernels is None else kernels)


def floats(*shape: int, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1.5, shape).astype(np.float32)


def layer(
    m: int, k: int, n: int, left: tuple[str, int], right: tuple[str, int], by_column: bool, out: tuple[str, int]
) -> bytes:
    """Quantised x times weights, a bias, quantised again."""
    s = Sketch(seed=m * 31 + n)
    x = s.there_and_back("x", 0.03, left[1], left[0])
    y = s.node("MatMul", x, s.weights((k, n), right[0], right[1], 1 if by_column else None))
    y = s.node("Add", y, s.constant(s.random.normal(size=n).astype(np.float32)))
    y = s.there_and_back(y, 0.05, out[1], out[0])
    return s.model({"x": ("float32", (m, k))}, y)


@pytest.mark.parametrize("left", [("uint8", 0), ("uint8", 255), ("uint8", 131), ("int8", -128), ("int8", 0)])
@pytest.mark.parametrize(
    ("right", "by_column"),
    [(("int8", 0), True), (("int8", -128), False), (("uint8", 128), True), (("uint8", 3), False), (("uint8", 0), True)],
)
def test_all_pairs_of_bytes_and_zero_points(left: tuple[str, int], right: tuple[str, int], by_column: bool) -> None:
    check(layer(9, 37, 21, left, right, by_column, ("uint8", 7)), {"x": floats(9, 37)}, 0.05)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(1, 64, 48), (3, 1, 5), (15, 66, 33), (2, 7, 130), (29, 260, 1)])
def test_odd_sizes_on_every_instruction(shape: tuple[int, int, int], target: str) -> None:
    m, k, n = shape
    model = layer(m, k, n, ("int8", 5), ("int8", 0), True, ("int8", -3))
    check(model, {"x": floats(m, k)}, 0.05, target, kernels=int(n > 1))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("value", [0, 255])
def test_extremes_do_not_saturate(value: int, target: str) -> None:
    """Neighbouring pairs of the largest products are more than 16 bits hold."""
    s = Sketch()
    weights = np.where(np.arange(64) % 2, -128, 127)[None].repeat(300, 0).astype(np.int8)
    y = s.node("MatMulInteger", "a", s.constant(weights), s.constant(np.uint8(3)))
    model = s.model({"a": ("uint8", (5, 300))}, y, "int32")
    check(model, {"a": np.full((5, 300), value, np.uint8)}, 0, target)


def test_gemm_with_a_transposed_matrix_and_a_bias_of_integers() -> None:
    s = Sketch()
    x = s.there_and_back("x", 0.03, 100, "uint8")
    whole = s.constant(s.random.integers(-900, 900, 24).astype(np.int32))
    bias = s.dequantise(whole, s.scales(24), np.zeros(24, np.int32), axis=0)
    y = s.node("Gemm", x, s.weights((24, 40), "int8", 0, 0), bias, transB=1)
    model = s.model({"x": ("float32", (6, 40))}, s.there_and_back(s.node("Relu", y), 0.04, 0, "uint8"))
    check(model, {"x": floats(6, 40)}, 0.04)


def test_views_between_dequantising_and_multiplying() -> None:
    s = Sketch()
    x = s.there_and_back("x", 0.03, 100, "uint8")
    x = s.node("Reshape", s.node("Transpose", x, perm=[0, 2, 1]), s.constant(np.array([6, 20])))
    w = s.node("Transpose", s.weights((16, 20), "int8", 2, 0), perm=[1, 0])
    model = s.model({"x": ("float32", (2, 20, 3))}, s.there_and_back(s.node("MatMul", x, w), 0.04, 128, "uint8"))
    check(model, {"x": floats(2, 20, 3)}, 0.04)


def test_batches_of_matrices() -> None:
    s = Sketch()
    x = s.there_and_back("x", 0.03, 100, "uint8")
    y = s.node("MatMul", x, s.weights((3, 20, 16), "int8", 0, None))
    model = s.model({"x": ("float32", (3, 5, 20))}, s.there_and_back(y, 0.04, 128, "uint8"))
    check(model, {"x": floats(3, 5, 20)}, 0.04)


@pytest.mark.parametrize("dtypes", [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")])
def test_operators_of_integers(dtypes: tuple[str, str]) -> None:
    left, right = dtypes
    s = Sketch()
    scale, zero = s.constant(np.float32(0.02)), s.constant({"uint8": np.uint8(9), "int8": np.int8(-4)}[left])
    weights = s.constant(s.bytes((30, 18), right))
    of_weights = s.constant(s.scales(None)), s.constant({"uint8": np.uint8(120), "int8": np.int8(0)}[right])
    result = s.constant(np.float32(0.5)), s.constant({"uint8": np.uint8(50), "int8": np.int8(20)}[left])
    y = s.node("QLinearMatMul", "a", scale, zero, weights, *of_weights, *result)
    model = s.model({"a": (left, (7, 30))}, y, left)
    check(model, {"a": s.bytes((7, 30), left)}, 1)


@pytest.mark.parametrize("m", [1, 3, 5])
@pytest.mark.parametrize("k", [15, 16, 17, 48])
def test_one_column_of_few_bytes(m: int, k: int) -> None:
    """LLVM makes `vpdpbusd` of a sum over 16 products of bytes, and took the first of its four sums for all of them."""
    s = Sketch(seed=k)
    x, w = s.bytes((m, k), "uint8"), s.bytes((k, 1), "int8")
    model = s.model({"x": ("uint8", (m, k))}, s.node("MatMulInteger", "x", s.constant(w)), "int32")
    (actual,) = load(compile_model(model, num_threads=1).to_bytes()).run({"x": x}).values()
    np.testing.assert_array_equal(actual, x.astype(np.int32) @ w.astype(np.int32))


def test_only_kernels_that_call_for_dots_are_compiled_with_them() -> None:
    name = "cpu:x86-64-v4,+avx512vnni"
    target = parse_target(name)
    assert target.has("avx512vnni") and not target.without_dots.has("avx512vnni")
    assert target.without_dots.has("avx512bw") and parse_target("cpu:x86-64-v3").without_dots.mattr == ()
    s = Sketch()
    y = s.node("Softmax", s.node("MatMul", s.there_and_back("x", 0.03, 3, "uint8"), s.weights((64, 48), "int8", 0, 1)))
    compiled = compile_model(s.model({"x": ("float32", (5, 64))}, y), name, num_threads=1, keep_source=True)
    texts = [data.decode() for member, data in compiled.contents.extra.items() if member.endswith(".ll")]
    dots = [text for text in texts if "@llvm.x86.avx512.vpdpbusd" in text]
    assert 0 < len(dots) < len(texts)
    assert all(("-avx512vnni" in text) == (text not in dots) for text in texts)


def test_dynamic_quantisation() -> None:
    s = Sketch()
    s.nodes.append(onnx_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]))
    total = s.node("MatMulInteger", "q", s.constant(s.bytes((50, 24), "int8")), "zero")
    factor = s.node("Mul", "scale", s.constant(s.scales(24)))
    y = s.node("Mul", s.node("Cast", total, to=1), factor)
    model = s.model({"x": ("float32", (4, 50))}, y)
    x = floats(4, 50)
    check(model, {"x": x}, 1e-5 * float(np.abs(unoptimised(model, {"x": x})).max()))


def test_weights_stay_bytes_in_the_artifact() -> None:
    model = layer(4, 512, 512, ("uint8", 128), ("int8", 0), True, ("uint8", 128))
    assert len(compile_model(model, num_threads=1).to_bytes()) < 1.3 * 512 * 512


def test_on_a_cpu_without_such_instructions_floats_are_multiplied() -> None:
    model = layer(4, 32, 24, ("uint8", 128), ("int8", 0), True, ("uint8", 128))
    compiled = compile_model(model, "cpu:x86-64", num_threads=1)
    assert not any(isinstance(group.schedule, DotSchedule) for group in compiled.plan.groups)
    x = floats(4, 32)
    actual = next(iter(load(compiled.to_bytes()).run({"x": x}).values()))
    assert np.abs(actual - unoptimised(model, {"x": x})).max() <= 0.05 * 1.0001


def convolution(
    x: tuple[int, ...], w: tuple[int, ...], left: tuple[str, int], by_channel: bool, seed: int = 0, **attrs: object
) -> bytes:
    """A quantised image through a convolution, a bias and a ReLU, quantised again."""
    s = Sketch(seed)
    image = s.there_and_back("x", 0.03, left[1], left[0])
    bias = s.constant(s.random.normal(size=w[0]).astype(np.float32))
    y = s.node("Conv", image, s.weights(w, "int8", 0, 0 if by_channel else None), bias, **attrs)
    return s.model({"x": ("float32", x)}, s.there_and_back(s.node("Relu", y), 0.05, 0, "uint8"))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("left", [("uint8", 0), ("uint8", 114), ("int8", 0), ("int8", -128)])
@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((1, 16, 9, 11), (24, 16, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((2, 3, 13, 12), (17, 3, 5, 5), {"pads": [2, 2, 2, 2], "strides": [2, 2]}),
        ((1, 32, 6, 5), (40, 32, 1, 1), {}),
        ((1, 20, 7), (18, 20, 3), {"pads": [1, 0], "dilations": [2]}),
    ],
    ids=["3x3", "stem", "1x1", "line"],
)
def test_convolutions(
    x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, object], left: tuple[str, int], target: str
) -> None:
    check(convolution(x, w, left, True, **attrs), {"x": floats(*x)}, 0.05, target)


@pytest.mark.parametrize("groups", [2, 5])
def test_convolutions_in_groups(groups: int) -> None:
    """Of 10 and 4 channels: not, and just, whole groups of the instruction."""
    model = convolution((1, 20, 8, 9), (30, 20 // groups, 3, 3), ("uint8", 7), False, group=groups, pads=[1, 0, 0, 1])
    check(model, {"x": floats(1, 20, 8, 9)}, 0.05)


@pytest.mark.parametrize("left", [("uint8", 7), ("int8", -128)])
@pytest.mark.parametrize("each", [1, 2])
def test_depthwise_convolutions_multiply_integers_that_are_floats(each: int, left: tuple[str, int]) -> None:
    model = convolution((1, 20, 8, 9), (20 * each, 1, 3, 3), left, True, group=20, pads=[1, 1, 1, 1])
    check(model, {"x": floats(1, 20, 8, 9)}, 0.05, kernels=0)
    compiled = compile_model(model, num_threads=1)
    assert "1 depthwise convolutions multiply integers as float32" in notes(model)
    (conv,) = (node for node in compiled.specialisations[0].graph.nodes if node.op == "conv")
    weights = conv.inputs[1].data
    assert weights.dtype == np.float32
    assert (weights == np.rint(weights)).all() and np.abs(weights).max() > 100


def test_depthwise_windows_whose_sums_float32_does_not_hold_are_dequantised() -> None:
    model = convolution((1, 4, 20, 20), (4, 1, 17, 17), ("uint8", 0), True, group=4)
    check(model, {"x": floats(1, 4, 20, 20)}, 0.05, kernels=0)
    assert "windows over each channel by itself are no GEMM" in notes(model)


@pytest.mark.parametrize("dtypes", [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")])
def test_convolutions_of_integers(dtypes: tuple[str, str]) -> None:
    left, right = dtypes
    s = Sketch()
    scale, zero = s.constant(np.float32(0.02)), s.constant({"uint8": np.uint8(9), "int8": np.int8(-4)}[left])
    weights = s.constant(np.clip(s.bytes((18, 8, 3, 3), right), 8, 247 if right == "uint8" else 127))
    of_weights = s.constant(s.scales(None)), s.constant({"uint8": np.uint8(128), "int8": np.int8(0)}[right])
    result = s.constant(np.float32(0.5)), s.constant({"uint8": np.uint8(50), "int8": np.int8(20)}[left])
    y = s.node("QLinearConv", "a", scale, zero, weights, *of_weights, *result, pads=[1, 1, 1, 1])
    check(s.model({"a": (left, (1, 8, 6, 7))}, y, left), {"a": s.bytes((1, 8, 6, 7), left)}, 1)


@pytest.mark.parametrize(("dtype", "zeros"), [("uint8", (100, 3, 120, 90)), ("int8", (-28, -125, 0, -38))])
def test_a_residual_is_read_as_bytes(dtype: str, zeros: tuple[int, ...]) -> None:
    """What the next convolution reads as bytes, and the sum after it as floats, is stored once, as bytes of the sign
    that convolutions want.
    """
    s, (of_x, of_first, of_second, of_sum) = Sketch(), zeros
    x = s.there_and_back("x", 0.03, of_x, dtype)
    first = s.node("Relu", s.node("Conv", x, s.weights((16, 8, 1, 1), "int8", 0, 0)))
    first = s.there_and_back(first, 0.02, of_first, dtype)
    second = s.node("Conv", first, s.weights((16, 16, 1, 1), "int8", 0, 0))
    second = s.there_and_back(second, 0.03, of_second, dtype)
    y = s.there_and_back(s.node("Add", second, first), 0.05, of_sum, dtype)
    model = s.model({"x": ("float32", (1, 8, 7, 7))}, y)
    check(model, {"x": floats(1, 8, 7, 7)}, 0.05)
    compiled = compile_model(model, num_threads=1)
    dtypes = {value.name: value.dtype for node in compiled.specialisations[0].graph.nodes for value in node.outputs}
    first_group = next(group for group in compiled.plan.groups if group.kind is GroupKind.CONTRACTION)
    assert [dtypes[name] for name in first_group.outputs] == [compiled.plan.target.left_bytes[0]]


def test_both_branches_of_a_sum_are_stored_as_bytes() -> None:
    s = Sketch()
    x = s.there_and_back("x", 0.03, 100, "uint8")
    one, two = (s.node("Conv", x, s.weights((16, 8, 1, 1), "int8", 0, 0)) for _ in range(2))
    total = s.node("Add", s.there_and_back(one, 0.02, 3, "uint8"), s.there_and_back(two, 0.03, 120, "uint8"))
    model = s.model({"x": ("float32", (1, 8, 7, 7))}, s.node("Relu", total))
    check(model, {"x": floats(1, 8, 7, 7)}, 0.05)
    compiled = compile_model(model, num_threads=1)
    dtypes = {value.name: value.dtype for node in compiled.specialisations[0].graph.nodes for value in node.outputs}
    assert [dtypes[name] for group in compiled.plan.groups for name in group.outputs][-2:] == ["uint8", "float32"]


def test_open_batches_and_image_sizes() -> None:
    s = Sketch()
    image = s.there_and_back("x", 0.03, 114, "uint8")
    y = s.node("Conv", image, s.weights((24, 16, 3, 3), "int8", 0, 0), pads=[1, 1, 1, 1])
    model = s.model({"x": ("float32", ("n", 16, "h", 11))}, s.there_and_back(y, 0.05, 100, "uint8"))
    compiled = compile_model(model, dims={"n": (1, 4), "h": (3, 40)}, num_threads=1)
    assert compiled.plan.target.dot and not compiled.plan.host_groups
    loaded = load(compiled.to_bytes())
    for shape in [(1, 16, 3, 11), (4, 16, 23, 11)]:
        x = floats(*shape)
        (actual,) = loaded.run({"x": x}).values()
        assert np.abs(actual - unoptimised(model, {"x": x})).max() <= 0.05 * 1.0001


def notes(model: bytes) -> str:
    explained = compile_model(model, num_threads=1).explain()
    return " | ".join(note["note"] for note in explained["notes"] if note["pass"] == "integers")


def test_it_is_said_what_stays_float_and_why() -> None:
    s = Sketch()
    x = s.there_and_back("x", 0.03, 114, "uint8")
    integers = s.node("MatMul", x, s.weights((16, 24), "int8", 0, 1))
    by_rows = s.node("MatMul", x, s.weights((16, 24), "int8", 0, 0))
    plain = s.node("MatMul", "x", s.weights((16, 24), "int8", 0, 1))
    y = s.node("Add", s.node("Add", integers, by_rows), plain)
    told = notes(s.model({"x": ("float32", (5, 16))}, y))
    assert "1 contractions multiply 8-bit integers" in told
    assert f"MatMul_{by_rows[1:]} multiplies float32: the scales or zero points of its weights" in told
    assert f"MatMul_{plain[1:]} multiplies float32: its left operand is not quantised" in told


def test_sums_that_32_bits_may_not_hold_stay_float() -> None:
    s = Sketch()
    x = s.there_and_back("x", 0.03, 0, "uint8")
    w = s.dequantise(s.constant(np.full((70_000, 2), 127, np.int8)), np.float32(0.01), np.int8(-128))
    model = s.model({"x": ("float32", (1, 70_000))}, s.node("MatMul", x, w))
    assert "sums of 70000 products of bytes may be more than 32 bits hold" in notes(model)
    x_ = np.full((1, 70_000), 9, np.float32)
    (actual,) = load(compile_model(model, num_threads=1).to_bytes()).run({"x": x_}).values()
    exact = 70_000 * (255 * 0.03) * (255 * 0.01)  # 2.1 times as much as int32 holds, in steps of both scales
    np.testing.assert_allclose(actual, exact, rtol=70_000 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("odd", [np.inf, np.nan, 3e38])
def test_scales_that_make_infinities_of_bytes_keep_what_0_makes_of_them(odd: float) -> None:
    """0 * infinity is NaN in one product of a sum, however large the sum is."""
    s = Sketch()
    x = s.there_and_back("x", 1.0, 0, "uint8")
    w = s.dequantise(
        s.constant(np.array([[1, 100], [1, 100]], np.int8)), np.array([0.5, odd], np.float32), np.zeros(2, np.int8)
    )
    model = s.model({"x": ("float32", (2, 2))}, s.node("MatMul", x, w))
    assert "some of its scales are NaN, infinite, or make infinities of bytes" in notes(model)
    feeds = {"x": np.array([[1, 0], [1, 2]], np.float32)}
    (actual,) = load(compile_model(model, num_threads=1).to_bytes()).run(feeds).values()
    np.testing.assert_array_equal(actual, unoptimised(model, feeds))
    assert np.isnan(actual[0, 1]) and actual[0, 0] == 0.5


@pytest.mark.parametrize("zero", [np.float32(np.inf), np.float32(3e9), np.float32(-70_000), np.int32(2**24 + 1)])
def test_what_is_taken_from_bytes_may_be_no_zero_point(zero: np.generic) -> None:
    """Differences that 32 bits do not hold, or sums of them."""
    s = Sketch()
    kind = TensorProto.FLOAT if zero.dtype == np.float32 else TensorProto.INT32
    less = s.node("Sub", s.node("Cast", "x", to=kind), s.constant(zero))
    wide = less if zero.dtype == np.float32 else s.node("Cast", less, to=TensorProto.FLOAT)
    scaled = s.node("Mul", wide, s.constant(np.float32(0.5)))
    w = s.dequantise(s.constant(np.full((200, 3), 127, np.int8)), np.float32(0.25), np.int8(0))
    model = s.model({"x": ("uint8", (4, 200))}, s.node("MatMul", scaled, w))
    feeds = {"x": s.bytes((4, 200), "uint8")}
    (actual,) = load(compile_model(model, num_threads=1).to_bytes()).run(feeds).values()
    np.testing.assert_allclose(actual, unoptimised(model, feeds), rtol=1e-4)


def residual(out_zero: int, joined_zero: int, relu: bool) -> bytes:
    """A convolution, quantised, and an input that is added to it, quantised again."""
    s = Sketch(3)
    x = s.there_and_back("x", 0.03, 7, "uint8")
    y = s.node("Conv", x, s.weights((24, 6, 1, 1), "int8", 0, 0))
    y = s.there_and_back(y, 0.04, out_zero, "uint8")
    r = s.there_and_back("r", 0.02, 119, "uint8")
    y = s.node("Add", y, r)
    y = s.node("Relu", y) if relu else y
    y = s.quantise(y, 0.05, joined_zero, "uint8")
    y = s.dequantise(y, np.float32(0.05), np.uint8(joined_zero))
    return s.model({"x": ("float32", (1, 6, 9, 7)), "r": ("float32", (1, 24, 9, 7))}, y)


@pytest.mark.parametrize(("out_zero", "joined_zero", "relu"), [(0, 0, False), (130, 0, True), (255, 128, False)])
def test_residuals_between_quantised_values(out_zero: int, joined_zero: int, relu: bool) -> None:
    feeds = {"x": floats(1, 6, 9, 7), "r": floats(1, 24, 9, 7, seed=6)}
    check(residual(out_zero, joined_zero, relu), feeds, 0.05)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_taps_of_few_channels(channels: int, target: str) -> None:
    s = Sketch(channels)
    x = s.there_and_back("x", 0.03, 131, "uint8")
    y = s.node("Conv", x, s.weights((20, channels, 5, 3), "int8", 0, 0), strides=[2, 2], pads=[2, 1, 2, 1])
    y = s.there_and_back(y, 0.05, 3, "int8")
    check(s.model({"x": ("float32", (2, channels, 13, 17))}, y), {"x": floats(2, channels, 13, 17)}, 0.05, target)


def test_pools_between_quantised_values() -> None:
    s = Sketch()
    x = s.there_and_back("x", 0.03, 3, "uint8")
    y = s.node("Conv", x, s.weights((16, 4, 1, 1), "int8", 0, 0))
    y = s.there_and_back(y, 0.04, 9, "uint8")
    y = s.there_and_back(s.node("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 0.04, 9, "uint8")
    y = s.node("Conv", y, s.weights((8, 16, 1, 1), "int8", 0, 0))
    check(s.model({"x": ("float32", (1, 4, 11, 11))}, y), {"x": floats(1, 4, 11, 11)}, 0.04)


def test_what_is_quantised_between_has_no_zero_below_zero() -> None:
    """-0.02 in steps of 0.05 is 0: its reciprocal is above all numbers."""
    s = Sketch(seed=1)
    y = s.there_and_back(s.there_and_back("x", 0.02, 0, "int8"), 0.05, 7, "uint8")
    model = s.model({"x": ("float32", (5,))}, s.node("Reciprocal", y))
    feeds = {"x": np.array([-0.02, 0.0, 0.02, -1.0, 1.0], np.float32)}
    (actual,) = load(compile_model(model, num_threads=1).to_bytes()).run(feeds).values()
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(np.signbit(actual), np.signbit(unoptimised(model, feeds)))
    assert np.isposinf(actual[:3]).all()


def test_scales_of_a_run_are_those_of_onnx_runtime() -> None:
    """A quotient that is off by one bit makes another zero point of ranges around zero."""
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (uint8[n] q, float scale, uint8 zero) {
          q, scale, zero = DynamicQuantizeLinear(x) }"""
    )
    with load(compile_model(proto).to_bytes()) as module:
        for most in (1, 3, 100, 200, 0.3):
            x = np.array([-most, 0.1, most], np.float32)
            for actual, wanted in zip(module.run({"x": x}).values(), run_ort(proto, {"x": x}), strict=True):
                np.testing.assert_array_equal(actual, wanted)
