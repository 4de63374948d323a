"""Every element-wise primitive in every native dtype: the kernel gives what numpy gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.codegen.kernel_harness import check, run_graph
from tilestitch.codegen.compute.dtypes import native_dtypes
from tilestitch.codegen.compute.elementwise import RULES
from tilestitch.compiler.ir.graph import Graph
from tilestitch.compiler.ir.ops import OPS, Kind
from tilestitch.compiler.ir.types import TensorType, dtype_kind, is_float, to_numpy_dtype

FLOATS = [d for d in sorted(native_dtypes) if is_float(d)]
INTEGERS = [d for d in sorted(native_dtypes) if dtype_kind(d) in ("int", "uint")]


def numbers(dtype: str, count: int, seed: int = 0) -> np.ndarray:
    """Ordinary and extreme numbers of a dtype."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if is_float(dtype):
        x = rng.normal(0, 3, count)
        x[: min(count, 6)] = [0.0, -0.0, np.inf, -np.inf, np.nan, 2.5][: min(count, 6)]
        return rng.permutation(x).astype(to_numpy_dtype(dtype))
    limits = np.iinfo(dtype)
    x = rng.integers(-12 if limits.min else 0, 13, count).astype(dtype)
    x[: min(count, 4)] = [limits.min, limits.max, 0, 1][: min(count, 4)]
    return rng.permutation(x)


def graph_of(
    op: str, operands: list[np.ndarray], dtypes: list[str], **attrs: object
) -> tuple[Graph, dict[str, np.ndarray]]:
    graph = Graph(op)
    inputs = [
        graph.add_input(f"x{i}", TensorType(d, a.shape)) for i, (a, d) in enumerate(zip(operands, dtypes, strict=True))
    ]
    graph.outputs = [graph.emit(op, *inputs, **attrs)]
    return graph, {f"x{i}": a for i, a in enumerate(operands)}


def test_every_injective_primitive_has_a_rule() -> None:
    from tilestitch.codegen.compute.movement import RULES as MOVES

    wanted = {name for name, spec in OPS.items() if spec.kind is Kind.INJECTIVE}
    assert wanted == set(RULES) | set(MOVES)


@pytest.mark.parametrize("op", ["neg", "abs", "sign"])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_unary_arithmetic(op: str, dtype: str) -> None:
    check(*graph_of(op, [numbers(dtype, 37)], [dtype]))


@pytest.mark.parametrize("op", ["floor", "ceil", "round", "trunc", "sqrt", "exp", "tanh", "erf", "is_nan"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_functions(op: str, dtype: str) -> None:
    check(*graph_of(op, [numbers(dtype, 37)], [dtype]))


@pytest.mark.parametrize("positive, negative", [(True, True), (True, False), (False, True), (False, False)])
def test_is_inf(positive: bool, negative: bool) -> None:
    check(*graph_of("is_inf", [numbers("float32", 20)], ["float32"], positive=positive, negative=negative))


@pytest.mark.parametrize(
    "op", ["add", "sub", "mul", "div", "mod", "fmod", "maximum", "minimum", "equal", "less", "less_equal"]
)
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_binary_arithmetic(op: str, dtype: str) -> None:
    a, b = numbers(dtype, 200, 1), numbers(dtype, 200, 2)
    if op in ("mod", "fmod") and is_float(dtype):
        b = np.where(np.isfinite(b.astype(np.float64)), b, 1).astype(b.dtype)
    check(*graph_of(op, [a, b], [dtype, dtype]))


@pytest.mark.parametrize("op", ["bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_bits(op: str, dtype: str) -> None:
    shifts = np.array([0, 1, 7, 8, 31, 63, 64, 100] * 5).astype(dtype)
    check(*graph_of(op, [numbers(dtype, 40), shifts], [dtype, dtype]))


@pytest.mark.parametrize("op", ["logical_and", "logical_or", "logical_xor", "equal"])
def test_logic(op: str) -> None:
    check(*graph_of(op, [numbers("bool", 40), numbers("bool", 40, 1)], ["bool", "bool"]))


@pytest.mark.parametrize("source", sorted(native_dtypes))
def test_cast_to_every_dtype(source: str) -> None:
    x = numbers(source, 40)
    if is_float(source):
        # Out-of-range numbers may give any integer: keep those that fit everywhere.
        x = np.abs(np.nan_to_num(x.astype(np.float64), posinf=3, neginf=4)).astype(x.dtype)
    for target in sorted(native_dtypes):
        check(*graph_of("cast", [x], [source], to=target))


@pytest.mark.parametrize("target", INTEGERS)
def test_cast_out_of_range_does_not_trap(target: str) -> None:
    graph, inputs = graph_of(
        "cast", [np.array([np.nan, np.inf, -np.inf, 1e30, -1e30] * 4, np.float32)], ["float32"], to=target
    )
    assert next(iter(run_graph(graph, inputs).values())).shape == (20,)


@pytest.mark.parametrize(
    "source, target",
    [("float32", "int32"), ("float16", "uint16"), ("bfloat16", "int16"), ("int64", "float64"), ("uint8", "int8")],
)
def test_bit_cast(source: str, target: str) -> None:
    x = numbers(source, 33)
    if is_float(source):
        x = np.nan_to_num(x.astype(np.float64), posinf=1, neginf=-1).astype(x.dtype)  # NaN payloads are free
    check(*graph_of("bit_cast", [x], [source], to=target))


@pytest.mark.parametrize(
    "base, exponent",
    [
        ("float32", "float32"),
        ("float64", "float64"),
        ("float16", "float16"),
        ("float32", "int64"),
        ("int32", "int32"),
        ("int64", "int64"),
        ("uint8", "uint8"),
        ("int32", "float32"),
    ],
)
def test_pow(base: str, exponent: str) -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(1, 5, 60).astype(to_numpy_dtype(base))
    y = rng.integers(0, 6, 60).astype(to_numpy_dtype(exponent))
    check(*graph_of("pow", [x, y], [base, exponent]))


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, 4.0, 0.5, -1.0, 2.5])
def test_pow_by_a_constant(exponent: float) -> None:
    graph = Graph("pow")
    x = graph.add_input("x", TensorType("float32", (50,)))
    graph.outputs = [graph.emit("pow", x, graph.constant(np.float32(exponent)))]
    check(graph, {"x": np.random.default_rng(0).uniform(0.1, 3, 50).astype(np.float32)})


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "maximum", "bitwise_xor", "pow"])
def test_negative_constants(op: str, dtype: str) -> None:
    graph = Graph("constant")
    x = graph.add_input("x", TensorType(dtype, (6,)))
    constant = graph.constant(np.full((), -3, dtype))
    graph.outputs = [graph.emit(op, *((constant, x) if op == "pow" else (x, constant)))]
    check(graph, {"x": np.arange(6, dtype=dtype)})


def test_negative_powers_of_integers() -> None:
    x = np.array([1, -1, -1, 2, 0, 5], np.int32)
    y = np.array([-1, -1, -2, -1, 3, -4], np.int32)
    check(*graph_of("pow", [x, y], ["int32", "int32"]))


@pytest.mark.parametrize("dtype", ["float32", "bool", "int64", "bfloat16"])
def test_select(dtype: str) -> None:
    check(*graph_of("select", [numbers("bool", 40), numbers(dtype, 40), numbers(dtype, 40, 1)], ["bool", dtype, dtype]))


SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 5, 16, 17, 33]), max_size=4).map(tuple)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(shape=SHAPES, data=st.data())
def test_broadcasting(shape: tuple[int, ...], data: st.DataObject) -> None:
    """Operands of lower rank or with dimensions of one, in any combination."""
    operands = []
    for i in range(3):
        start = data.draw(st.integers(0, len(shape)))
        part = tuple(1 if data.draw(st.booleans()) else d for d in shape[start:])
        operands.append(np.random.default_rng(i).normal(size=part).astype(np.float32))
    graph = Graph("broadcast")
    a, b, c = (graph.add_input(f"x{i}", TensorType("float32", o.shape)) for i, o in enumerate(operands))
    graph.outputs = [graph.emit("maximum", graph.emit("mul", graph.emit("add", a, b), c), a)]
    check(graph, {f"x{i}": o for i, o in enumerate(operands)})


def test_a_long_chain_of_shared_subexpressions_compiles() -> None:
    graph = Graph("chain")
    x = v = graph.add_input("x", TensorType("float32", (19,)))
    for _ in range(400):
        v = graph.emit("mul", graph.emit("add", v, v), graph.constant(np.float32(0.5)))
    graph.outputs = [graph.emit("sub", v, x)]
    check(graph, {"x": np.linspace(-1, 1, 19, dtype=np.float32)})


def test_deep_nesting_of_views_and_arithmetic_compiles() -> None:
    graph = Graph("deep")
    v = graph.add_input("x", TensorType("float32", (20, 30)))
    for _ in range(300):
        v = graph.emit("transpose", graph.emit("neg", v), perm=(1, 0))
    graph.outputs = [v]
    check(graph, {"x": np.linspace(-1, 1, 600, dtype=np.float32).reshape(20, 30)})
