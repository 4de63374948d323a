"""Elementary functions: error in units in the last place over the whole range, and the special values."""

from __future__ import annotations

import math
import platform

import numpy as np
import pytest
from tvm.script.ir_builder import tirx as T

from tests.codegen.cpu_harness import Kernel, build, prim_func
from tests.codegen.kernel_harness import check, run_graph
from tilestitch.codegen.compute import vecmath
from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.target import CpuTarget, parse_target
from tilestitch.compiler.ir.graph import Graph
from tilestitch.compiler.ir.types import TensorType

SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-45,
    -1e-45,
    1e-40,
    3e38,
    -3e38,
    1e-8,
    0.5,
    2.0,
    88.7,
    -103.9,
    709.7,
]


def samples(dtype: str) -> np.ndarray:
    rng = np.random.default_rng(7)
    spread = np.exp(rng.uniform(-60, 60, 4000)) * rng.choice([-1, 1], 4000)
    near = np.concatenate([rng.uniform(-5, 5, 6000), rng.uniform(-120, 120, 3000), rng.uniform(0.5, 2, 3000)])
    return np.concatenate([SPECIAL, spread, near]).astype(dtype)


def compute(op: str, *operands: np.ndarray, cpu: CpuTarget | None = None) -> np.ndarray:
    graph = Graph(op)
    dtype = operands[0].dtype.name
    inputs = [graph.add_input(f"x{i}", TensorType(dtype, a.shape)) for i, a in enumerate(operands)]
    graph.outputs = [graph.emit(op, *inputs)]
    return next(iter(run_graph(graph, {f"x{i}": a for i, a in enumerate(operands)}, cpu=cpu).values()))


def ulps(actual: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Error in units in the last place of the exact (wider) result; NaN must meet NaN, infinity infinity."""
    with np.errstate(over="ignore"):
        narrow = exact.astype(actual.dtype)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(narrow))
    finite = np.isfinite(narrow) & np.isfinite(actual)
    # Where only one is infinite, the other must be the largest number.
    mixed = (np.isinf(narrow) != np.isinf(actual)) & ~np.isnan(narrow)
    assert (np.abs(np.where(np.isinf(narrow), actual, narrow)[mixed]) >= np.finfo(actual.dtype).max * 0.9999).all()
    unit = np.spacing(np.abs(narrow[finite])).astype(exact.dtype)
    return np.abs(actual[finite].astype(exact.dtype) - exact[finite]) / unit


LIMITS = {
    "exp": 2,
    "log": 2,
    "tanh": 2,
    "sin": 1,
    "cos": 1,
    "tan": 1,
    "sqrt": 1,
    "asinh": 1,
    "acosh": 1,
    "atanh": 1,
    "asin": 1,
    "acos": 1,
    "atan": 1,
    "sinh": 1,
    "cosh": 1,
    "erf": 3,
}


@pytest.mark.parametrize("op", sorted(LIMITS))
def test_float32_functions_are_accurate(op: str) -> None:
    x = samples("float32")
    if op in ("sin", "cos", "tan"):
        x = x[~(np.abs(x) > 2.0**24)]
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        name = op.replace("a", "arc", 1) if op[0] == "a" else op
        exact = np.array([math.erf(v) for v in wide]) if op == "erf" else getattr(np, name)(wide)
    assert ulps(compute(op, x), exact).max() <= LIMITS[op]


ANGLES = np.concatenate([
    np.exp2(np.random.default_rng(0).uniform(23, 128, 4000)) * np.random.default_rng(1).choice([-1, 1], 4000),
    [np.finfo(np.float32).max, 2.0**24, -(2.0**24), 1e20, 0.5, np.inf, -np.inf, np.nan],
    [7.729179e28],  # 2**-29 away from a multiple of pi/2
]).astype(np.float32)  # fmt: skip


def errors_of_angles(op: str, x: np.ndarray, cpu: CpuTarget | None = None) -> np.ndarray:
    """Against numpy's functions of float64, which take off whole turns exactly."""
    with np.errstate(all="ignore"):
        return ulps(compute(op, x, cpu=cpu), getattr(np, op)(x.astype(np.float64)))


@pytest.mark.parametrize("op", ["sin", "cos", "tan"])
def test_angles_may_be_as_large_as_a_float32(op: str) -> None:
    assert errors_of_angles(op, ANGLES).max() <= 3
    for one in ANGLES[-9:]:  # without vectors
        assert errors_of_angles(op, np.array([one])).max(initial=0) <= 3


@pytest.mark.parametrize("name", ["cpu:x86-64", "cpu:x86-64-v3"])
@pytest.mark.parametrize("op", ["sin", "tan"])
def test_angles_of_any_size_need_no_fused_multiply_adds(op: str, name: str) -> None:
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("an x86-64 machine is needed to run its code")
    spread = samples("float32")
    for x in (ANGLES, spread[np.abs(spread) < 2.0**24]):
        assert errors_of_angles(op, x, parse_target(name)).max() <= 3


@pytest.mark.parametrize("op", ["exp", "log"])
def test_float64_functions_are_accurate(op: str) -> None:
    x = samples("float64")
    with np.errstate(all="ignore"):
        exact = getattr(np, op)(x.astype(np.longdouble))
    assert ulps(compute(op, x), exact).max() <= 3


@pytest.mark.parametrize(
    "op", ["tanh", "erf", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "sin"]
)
def test_float64_functions_follow_libm(op: str) -> None:
    x = np.concatenate([np.linspace(-3, 3, 601), [np.nan, np.inf, -np.inf, 0.0, 1e-300, 1e200]])
    name = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}.get(
        op, op.replace("a", "arc", 1) if op[0] == "a" else op
    )
    with np.errstate(all="ignore"):
        exact = np.array([math.erf(v) for v in x]) if op == "erf" else getattr(np, name)(x)
    np.testing.assert_allclose(compute(op, x), exact, rtol=1e-13, atol=0)


def test_signed_zeros_and_infinities() -> None:
    zeros = np.array([0.0, -0.0, np.inf, -np.inf], np.float32)
    assert np.signbit(compute("tanh", zeros)).tolist() == [False, True, False, True]
    assert np.signbit(compute("erf", zeros)).tolist() == [False, True, False, True]
    for op in ("sin", "asin", "atan", "sinh"):
        assert np.signbit(compute(op, zeros[:2])).tolist() == [False, True]
    assert compute("atan", zeros[2:]).tolist() == [np.float32(np.pi / 2), -np.float32(np.pi / 2)]
    assert compute("sinh", zeros[2:]).tolist() == [np.inf, -np.inf] and compute("cosh", zeros[2:]).min() == np.inf
    assert compute("exp", zeros).tolist() == [1.0, 1.0, np.inf, 0.0]
    assert compute("log", zeros[:3]).tolist() == [-np.inf, -np.inf, np.inf]


def test_exp_goes_to_zero_through_the_denormals() -> None:
    x = np.concatenate([np.linspace(-110, -86, 5000), [-1e4, -3e38]]).astype(np.float32)
    exact = np.exp(x.astype(np.float64)).astype(np.float32)
    least = np.float32(1.4e-45)
    assert (np.abs(compute("exp", x) - exact) <= np.maximum(least, np.spacing(exact) * 2)).all()
    assert (compute("exp", x)[x < -104] == 0).all()


@pytest.mark.parametrize(("dtype", "least"), [("float32", -87.3), ("float64", -708.3)])
def test_exponentials_of_a_softmax_are_accurate_or_zero(dtype: str, least: float) -> None:
    x = np.concatenate([np.linspace(least + 0.01, 0, 5000), np.linspace(-1e-4, -0.0, 96)]).astype(dtype)
    wide = np.longdouble if dtype == "float64" else np.float64
    assert ulps(exponentials(x), np.exp(x.astype(wide))).max() <= 2
    gone = np.array([least - 0.1, 1.5 * least, -1e4, -3e38, -np.inf, np.nan] * 8, dtype)
    np.testing.assert_array_equal(exponentials(gone), np.where(np.isnan(gone), gone, 0))


def less_maximum(x: np.ndarray, of: np.ndarray, axis: int = 1) -> np.ndarray:
    """e**(x - max(of)), the maximum over an axis."""
    graph = Graph("softmax")
    given, other = (graph.add_input(n, TensorType(x.dtype.name, x.shape)) for n in ("x", "of"))
    maximum = graph.emit("reduce_max", given if of is x else other, axes=(axis,), keepdims=True)
    graph.outputs = [graph.emit("exp", graph.emit("sub", given, maximum))]
    return next(iter(run_graph(graph, {"x": x, "of": of}).values()))


@pytest.mark.parametrize("axis", [0, 1])
def test_exponentials_less_their_maximum_vanish_below_the_normal_numbers(axis: int) -> None:
    x = np.linspace(-300, 300, 37 * 37).reshape(37, 37).astype(np.float32)
    x[3, 5] = np.nan
    x[7], x[:, 9] = -np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        exact = np.exp((x - x.max(axis, keepdims=True)).astype(np.float64))
    found = less_maximum(x, x, axis)
    least = np.finfo(np.float32).tiny
    assert ulps(found[exact > 1.01 * least], exact[exact > 1.01 * least]).max() <= 2
    np.testing.assert_array_equal(found[exact < 0.99 * least], 0)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))


def test_exponentials_less_another_maximum_keep_their_range() -> None:
    x = np.linspace(-150, 150, 37 * 37).reshape(37, 37).T.astype(np.float32)
    exact = np.exp((x - (x / 2).max(1, keepdims=True)).astype(np.float64))
    assert (exact > 1).any() and (exact < 1e-40).any()
    found = less_maximum(x, x / 2)
    np.testing.assert_allclose(found, exact.astype(np.float32), rtol=1e-6, atol=1e-44)


def exponentials(x: np.ndarray) -> np.ndarray:
    """`exp_of_negative` of every element, by a kernel of vectors."""
    lanes = 8

    def emit(buffers: list, task: object, scratch: object) -> None:
        given, result = buffers
        evaluator = Evaluator({}, "int64")
        with mk.serial(0, x.size // lanes) as number, evaluator.scope():

            def one(lane: object) -> None:
                at = number * lanes + lane
                T.buffer_store(result, vecmath.exp_of_negative(evaluator.bind(given[at]), evaluator.bind), [at])

            mk.vector(lanes, one)

    function = prim_func([((x.size,), x.dtype.name)] * 2, emit)
    return Kernel(build(function), 1, 64).run(x, np.zeros_like(x))[1]


def pairs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    special = np.array([0.0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, np.inf, -np.inf, np.nan, 1e-40, 3e38], np.float32)
    x, y = (a.ravel() for a in np.meshgrid(special, special))
    base = np.exp(rng.uniform(-20, 20, 3000)).astype(np.float32)
    return np.concatenate([x, base, -base]), np.concatenate(
        [y, rng.uniform(-4, 4, 3000), rng.integers(-5, 6, 3000)]
    ).astype(np.float32)


def test_pow_is_accurate_and_right_in_special_cases() -> None:
    x, y = pairs()
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    assert ulps(compute("pow", x, y), exact).max() <= 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["fmod", "mod"])
def test_remainders_are_exact(op: str, dtype: str) -> None:
    x, y = (a.astype(dtype) for a in pairs())
    if dtype == "float64":
        x, y = np.concatenate([x, [1.7e308, 1e300, 5e-324, 3.3]]), np.concatenate([y, [5e-324, 1e-300, 4e-324, 1e-310]])
    with np.errstate(all="ignore"):
        exact = getattr(np, op)(x, y)
    if op == "mod":
        # numpy gives NaN for mod(x, inf) of the opposite sign in some versions; the definition gives the divisor.
        keep = np.isfinite(y)
        x, y, exact = x[keep], y[keep], exact[keep]
    np.testing.assert_array_equal(compute(op, x, y), exact)


@pytest.mark.parametrize("op", ["erf", "fmod", "exp", "tanh", "asinh", "sin", "round"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_work_in_the_epilogue_of_a_gemm(op: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    graph = Graph("epilogue")
    a, b = graph.add_input("a", TensorType(dtype, (9, 20))), graph.add_input("b", TensorType(dtype, (20, 33)))
    gemm = graph.emit("matmul", a, b)
    graph.outputs = [graph.emit(op, gemm, gemm) if op == "fmod" else graph.emit(op, gemm)]
    check(
        graph, {"a": rng.integers(-2, 3, (9, 20)).astype(dtype), "b": rng.integers(-2, 3, (20, 33)).astype(dtype) / 8}
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("chosen", [False, True])
def test_large_products_are_rounded_before_their_maximum_is_subtracted(dtype: str, axis: int, chosen: bool) -> None:
    graph = Graph("scores")
    a, b = (graph.add_input(name, TensorType(dtype, (33, 64))) for name in "ab")
    product = graph.emit("mul", a, b)
    peak = graph.emit("reduce_max", product, axes=(axis,), keepdims=True)
    if chosen:  # as in ReduceLogSumExp
        zero = graph.constant(np.zeros((), dtype))
        peak = graph.emit("select", graph.emit("is_inf", peak, positive=True, negative=True), zero, peak)
    difference = graph.emit("sub", product, peak)
    graph.outputs = [difference, graph.emit("exp", difference)]
    rng = np.random.default_rng(4)
    check(graph, {name: (rng.standard_normal((33, 64)) * 1e15).astype(dtype) for name in "ab"})
