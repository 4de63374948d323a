"""Functions of float32 that are shorter than what CUDA's compiler makes of operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests.codegen.cuda.cuda_harness import check, emulated, text_of
from tilestitch.codegen.cuda.target import parse_cuda_target
from tilestitch.codegen.cuda.toolchain import nvrtc
from tilestitch.codegen.cuda.toolchain.text import PRELUDE, device_functions
from tilestitch.compiler import compile_model
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.magnitudes import divides_by_softmax_sum
from tilestitch.compiler.ir.types import to_numpy_dtype
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions, Kernels

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 3e38, -3e38, 1e-40], np.float32)


def parsed(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    model: onnx.ModelProto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def run(
    model: onnx.ModelProto, inputs: dict[str, np.ndarray], order: str = "in_order", planner: str = "stitch"
) -> np.ndarray:
    compiled = compile_model(model, "emulator:sm_90a", planner=planner)
    with load(compiled.to_bytes(), EmulatorOptions(block_order=order, seed=1)) as module:
        (result,) = module.run(inputs).values()
    return result


def called(function: str, arguments: Sequence[np.ndarray]) -> np.ndarray:
    """Return what a function gives, in a kernel of its own."""
    names = [f"p{number}" for number in range(len(arguments))]
    parameters = ", ".join(f"const float* {name}" for name in names)
    at = "blockIdx.x * 256 + threadIdx.x"
    values = ", ".join(f"{name}[{at}]" for name in names)
    text = f'extern "C" __global__ void k(float* y, {parameters}) {{ y[{at}] = {function}({values}); }}'
    count = len(arguments[0])
    padded = [np.resize(array, -(-count // 256) * 256).astype(np.float32) for array in arguments]
    result = np.zeros_like(padded[0])
    kernels = Kernels({"k": PRELUDE + device_functions("floats.cuh") + text})
    kernels.launch("k", (len(result) // 256, 1, 1), (256, 1, 1), [result, *padded])
    return result[:count]


@pytest.mark.parametrize(("name", "expected"), [("Max", np.maximum), ("Min", np.minimum)])
def test_the_larger_and_the_smaller_of_two_is_nan_if_one_is(name: str, expected: np.ufunc) -> None:
    a, b = (array.ravel() for array in np.meshgrid(SPECIAL, SPECIAL))
    model = parsed(f"g (float[{a.size}] a, float[{a.size}] b) => (float[{a.size}] y) {{ y = {name}(a, b) }}")
    np.testing.assert_array_equal(run(model, {"a": a, "b": b}), expected(a, b))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(7, 13), (3, 1), (1, 531)])
@pytest.mark.parametrize("order", ["reversed", "adversarial"])
def test_extremes_of_rows_windows_and_constants_are_nan_where_an_element_is(
    dtype: str, shape: tuple[int, int], order: str
) -> None:
    onnx_dtype = "float" if dtype == "float32" else dtype
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    x[-1, shape[1] // 2] = np.nan
    model = parsed(
        f"""g ({onnx_dtype}[{shape[0]},{shape[1]}] x) => ({onnx_dtype}[{shape[0]},{shape[1]}] y) {{
            r = Relu(x)  m = ReduceMax<keepdims=1>(x, axis)  n = ReduceMin<keepdims=1>(x, axis)
            image = Unsqueeze(x, front)  pooled = MaxPool<kernel_shape=[3],pads=[1,1]>(image)
            p = Squeeze(pooled, front)  u = Add(r, m)  v = Add(u, n)  y = Add(v, p)
        }}""", axis=np.array([1]), front=np.array([0]),
    )  # fmt: skip
    edge = np.pad(x, ((0, 0), (1, 1)), constant_values=-np.inf)
    pooled = np.maximum(np.maximum(edge[:, :-2], edge[:, 1:-1]), edge[:, 2:])
    wide = [array.astype(np.float32) for array in (x, pooled)]
    want = np.maximum(wide[0], 0) + wide[0].max(1, keepdims=True) + wide[0].min(1, keepdims=True) + wide[1]
    np.testing.assert_allclose(run(model, {"x": x}, order).astype(np.float32), want, rtol=0, atol=4e-3)


def test_sigmoids_are_accurate_and_end_at_their_limits() -> None:
    x = np.concatenate([np.linspace(-87, 87, 9001), [-np.inf, np.inf, np.nan, -3e38, 3e38, -89, -100]]).astype(
        "float32"
    )
    model = parsed(f"g (float[{x.size}] x) => (float[{x.size}] y) {{ y = Sigmoid(x) }}")
    found = run(model, {"x": x})
    with np.errstate(over="ignore"):
        want = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(found[:9001], want[:9001], rtol=4e-7)
    np.testing.assert_allclose(found[9001:], want[9001:], atol=1.2e-38)
    silu = parsed(f"g (float[{x.size}] x) => (float[{x.size}] y) {{ s = Sigmoid(x)  y = Mul(x, s) }}")
    found = run(silu, {"x": x})
    np.testing.assert_allclose(found[:9001], x[:9001] * want[:9001], rtol=4e-7)
    assert np.isnan(found[9001]) and found[9002] == np.inf and found[9004] == 0 and found[9005] == x[9005]


@pytest.mark.parametrize("width", [1, 13, 531])
def test_softmaxes_divide_by_sums_that_are_at_least_one(width: int) -> None:
    x = (np.random.default_rng(0).standard_normal((5, width)) * 30).astype(np.float32)
    x[1, width // 2], x[2] = np.nan, -np.inf
    model = parsed(f"g (float[5,{width}] x) => (float[5,{width}] y) {{ y = Softmax(x) }}")
    with np.errstate(invalid="ignore"):
        e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(run(model, {"x": x}), e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-37)


def test_quotients_by_constants_are_those_of_ieee_754() -> None:
    random = np.random.default_rng(0)
    for by in (0.1, 3.0, 7.0, 0.0123, 1.0000001, 1.9999999, 3e-30, 1e30, 0.00784313725490196):
        divisor = np.float32(by)
        bits = random.integers(0, 1 << 32, 1 << 16, dtype=np.uint64).astype(np.uint32)
        halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
        ties = ((random.integers(-1000, 1000, 1 << 12) + 0.5) * np.float64(divisor)).astype(np.float32)
        x = np.concatenate([bits.view(np.float32), halves, ties, SPECIAL])
        with np.errstate(all="ignore"):
            want, inverse = x / divisor, np.float32(1) / divisor
        found = called("ts_float_quotient", [x, np.full_like(x, divisor), np.full_like(x, inverse)])
        usual = ~((np.abs(want) < 2.0**-100) | (np.abs(x) < 2.0**-100)) | (x == 0)
        np.testing.assert_array_equal(found[usual], want[usual])
        np.testing.assert_array_equal(np.signbit(found[x == 0]), np.signbit(x[x == 0]))
        np.testing.assert_allclose(found[~usual], want[~usual], rtol=2e-7, atol=3e-45)


@pytest.mark.parametrize("by", [0.3, -0.3])
def test_quotients_of_zeros_keep_their_sign(by: float) -> None:
    x = np.array([0.0, -0.0, np.inf, -1.5, 3e38, 1e-40, np.nan], np.float32)
    graph = Graph("g")
    value = graph.add_input("x", TensorType("float32", (7,)))
    graph.outputs = [graph.emit("div", value, graph.constant(np.array(by, np.float32)))]
    with load(emulated(graph, pipeline=""), device="emulator") as module:
        (found,) = module.run({"x": x}).values()
    with np.errstate(over="ignore"):
        want = x / np.float32(by)
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(np.signbit(found[:-1]), np.signbit(want[:-1]))


@pytest.mark.parametrize("rows", [2, 7])
def test_maxima_of_other_rows_do_not_bound_sums(rows: int) -> None:
    """Without kept axes, maxima of rows are subtracted from columns: sums may be 0."""
    x = np.full((rows, rows), -1000, np.float32)
    x[np.arange(rows), (np.arange(rows) + 1) % rows] = 200 * np.arange(rows)
    model = parsed(
        f"""g (float[{rows},{rows}] x, float[{rows}] a) => (float[{rows}] y) {{
            m = ReduceMax<keepdims=0>(x, axis)  d = Sub(x, m)  e = Exp(d)  s = ReduceSum<keepdims=0>(e, axis)
            y = Div(a, s)
        }}""", axis=np.array([1]),
    )  # fmt: skip
    a = np.arange(1, rows + 1).astype(np.float32)
    with np.errstate(over="ignore", divide="ignore"):
        want = a / np.exp(x - x.max(1)).sum(1)
    np.testing.assert_allclose(run(model, {"x": x, "a": a}), want, rtol=1e-6)


@pytest.mark.parametrize(("terms", "known"), [(0, False), (1, True), (5, True)])
def test_sums_of_nothing_are_not_at_least_one(terms: int, known: bool) -> None:
    graph = Graph("g")
    x, a = (graph.add_input(name, TensorType("float32", (3, n))) for name, n in (("x", terms), ("a", 1)))
    kept = {"axes": (1,), "keepdims": True}
    weight = graph.emit("exp", graph.emit("sub", x, graph.emit("reduce_max", x, **kept)))
    total = graph.emit("reduce_sum", weight, **kept)
    for numerator, is_known in ((a, known), (weight, True)):
        node = graph.emit("div", numerator, total).producer
        assert node is not None and divides_by_softmax_sum(node) == is_known


def test_large_numbers_are_divided_by_large_powers() -> None:
    x = np.concatenate([np.linspace(80, 88.7, 246), [88.73, 88.8, 89, 1e9, np.inf]]).astype(np.float32)
    model = parsed(
        "g (float[251] x, float[251] a) => (float[251] y) { e = Exp(x)  s = Add(e, one)  y = Div(a, s) }",
        one=np.array(1, np.float32),
    )
    a = np.where(np.arange(251) % 2, -3e38, 1e38).astype(np.float32)
    a[5], a[-1] = np.inf, np.nan
    with np.errstate(over="ignore"):
        want = a / (np.exp(x.astype(np.float64)) + 1)
    found = run(model, {"x": x, "a": a})
    np.testing.assert_allclose(found[:246], want[:246], rtol=1e-6)
    np.testing.assert_array_equal(found[246:], [0, 0, 0, 0, np.nan])


def test_kernels_that_divide_by_what_is_at_least_one_serve_no_others() -> None:
    """Two quotients are alike but for where their divisors come from."""
    model = parsed(
        """g (float[9] x, float[9] a, float[9] t) => (float[9] y) {
            e = Exp(x)  s = Add(e, one)  u = Div(a, s)  v = Div(a, t)  y = Add(u, v)
        }""", one=np.array(1, np.float32),
    )  # fmt: skip
    x, a = np.linspace(-3, 3, 9).astype(np.float32), np.linspace(1, 2, 9).astype(np.float32)
    t = np.array([0, -0.0, 3e38, 1e-38, -5, 0.5, np.inf, -np.inf, 7], np.float32)
    with np.errstate(all="ignore"):
        want = a / (1 + np.exp(x)) + a / t
    np.testing.assert_allclose(run(model, {"x": x, "a": a, "t": t}, planner="none"), want, rtol=1e-6)


@pytest.mark.parametrize(("divisor", "used"), [(0.3, True), (1e-31, False), (1e31, False), (0.0, False)])
def test_the_inverses_of_constants_of_usual_size_are_known(divisor: float, used: bool) -> None:
    graph = Graph("g")
    x = graph.add_input("x", TensorType("float32", (64,)))
    graph.outputs = [graph.emit("div", x, graph.constant(np.array(divisor, np.float32)))]
    assert ("ts_float_quotient" in text_of(graph)) == used


def test_what_may_be_below_one_is_divided_by_as_ever() -> None:
    graph = Graph("g")
    x, y = (graph.add_input(name, TensorType("float32", (64,))) for name in "xy")
    two = graph.constant(np.array(-0.5, np.float32))
    graph.outputs = [graph.emit("div", x, graph.emit("add", graph.emit("exp", y), two))]
    assert "ts_float_over" not in text_of(graph)


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90a"])
def test_gpus_before_ampere_have_these_functions_too(architecture: str) -> None:
    text = 'extern "C" __global__ void k(float* y) { y[0] = ts_float_over(ts_float_max(y[1], y[2]), y[3]); }'
    source = (PRELUDE + device_functions("floats.cuh") + text).encode()
    library = nvrtc._bindings()
    _, program = library.nvrtcCreateProgram(source, b"k.cu", 0, [], [])
    flags = [f"--gpu-architecture={architecture}".encode(), *(option.encode() for option in nvrtc.OPTIONS)]
    (status,) = library.nvrtcCompileProgram(program, len(flags), flags)
    assert status == library.nvrtcResult.NVRTC_SUCCESS
    assert parse_cuda_target(f"cuda:{architecture}").newest >= 75


@pytest.mark.parametrize(("dtype", "rounding"), [("float16", "(half)"), ("bfloat16", "32767")])
def test_half_floats_that_were_read_are_not_rounded_again(dtype: str, rounding: str) -> None:
    """A product of them is, where what follows tells the difference."""
    graph = Graph("g")
    x = graph.add_input("x", TensorType(dtype, (531,)))
    for operand, rounds in ((x, 0), (graph.emit("mul", x, x), 1)):
        graph.outputs = [graph.emit("cast", operand, to="float32")]
        assert text_of(graph).count(rounding) == rounds * text_of(graph).count("p1[")
    values = np.random.default_rng(0).standard_normal(531).astype(to_numpy_dtype(dtype))
    values[:3] = [np.nan, np.inf, -0.0]
    check(graph, {"x": values})
    with load(emulated(graph, pipeline=""), device="emulator") as module:
        (found,) = module.run({"x": values}).values()
    np.testing.assert_array_equal(found, (values * values).astype(np.float32))
