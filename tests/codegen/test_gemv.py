"""GEMMs of one row or column whose large operand is known at run time, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.kernel_harness import check, cpu_group, run_graph, target
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.types import to_numpy_dtype
from tilestitch.passes.plan.cpu.gemv import GemvPlan, GemvShape
from tilestitch.passes.schedule.cpu.gemm import MOST_SUMS, choose_gemv

RNG = np.random.default_rng(7)
SHAPES = [(1, 1, 1), (1, 7, 3), (1, 130, 64), (1, 4200, 17), (1, 1000, 129), (5, 1, 9), (131, 1, 40), (64, 1, 256)]


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if "int" in dtype:
        return RNG.integers(0, 9, shape).astype(dtype)
    return RNG.uniform(-1, 1, shape).astype(to_numpy_dtype(dtype))


def gemm(
    left: tuple[int, ...], right: tuple[int, ...], dtype: str = "float32", trans: tuple[bool, bool] = (False, False)
) -> Graph:
    graph = Graph("gemm")
    a, b = (graph.add_input(n, TensorType(dtype, s)) for n, s in (("a", left), ("b", right)))
    more = {"out_dtype": "int32"} if dtype == "int8" else {}
    graph.outputs = [graph.emit("matmul", a, b, trans_a=trans[0], trans_b=trans[1], **more)]
    return graph


def kind(graph: Graph) -> str:
    (launch,) = lower_group(graph, cpu_group(graph))
    return launch.kind


@pytest.mark.parametrize("trans", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_and_columns(shape: tuple[int, int, int], trans: tuple[bool, bool]) -> None:
    m, n, k = shape
    left, right = (k, m) if trans[0] else (m, k), (n, k) if trans[1] else (k, n)
    graph = gemm(left, right, trans=trans)
    assert kind(graph) == "gemv"
    check(graph, {"a": numbers(left, "float32"), "b": numbers(right, "float32")}, factor=4)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "int64"])
@pytest.mark.parametrize("trans_b", [False, True])
def test_every_dtype(dtype: str, trans_b: bool) -> None:
    right = (45, 70) if trans_b else (70, 45)
    check(gemm((1, 70), right, dtype, (False, trans_b)), {"a": numbers((1, 70), dtype), "b": numbers(right, dtype)})


@pytest.mark.parametrize(
    ("left", "right"), [((2, 3, 1, 20), (2, 3, 20, 33)), ((3, 1, 20), (2, 3, 20, 33)), ((1, 1, 20), (20, 33))]
)
def test_batches(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    graph = gemm(left, right)
    assert kind(graph) == "gemv"
    check(graph, {"a": numbers(left, "float32"), "b": numbers(right, "float32")}, factor=4)


def test_what_is_around_the_gemm_belongs_to_the_kernel() -> None:
    graph = Graph("around")
    x, w = graph.add_input("x", TensorType("float32", (1, 50))), graph.add_input("w", TensorType("float32", (50, 40)))
    residual = graph.add_input("r", TensorType("float32", (1, 40)))
    y = graph.emit("tanh", graph.emit("add", graph.emit("matmul", graph.emit("exp", x), w), residual))
    graph.outputs = [y, graph.emit("reshape", y, shape=(40,))]
    assert kind(graph) == "gemv"
    check(graph, {v.name: numbers(v.shape, "float32") for v in graph.inputs}, factor=4)


@pytest.mark.parametrize("trans_a", [False, True])
def test_each_element_of_the_matrix_is_computed_once(trans_a: bool) -> None:
    """A decayed state, of which a part is new."""
    graph = Graph("computed")
    types = {"s": (3, 8, 20), "t": (3, 12, 20), "decay": (3, 1, 1), "x": (3, 20, 1)}
    s, t, decay, x = (graph.add_input(name, TensorType("float32", shape)) for name, shape in types.items())
    matrix = graph.emit("mul", graph.emit("concat", s, t, axis=1), graph.emit("exp", decay))
    graph.outputs = [graph.emit("matmul", matrix, x, trans_a=trans_a)]
    assert kind(graph) == "gemv"
    check(graph, {v.name: numbers(v.shape, "float32") for v in graph.inputs}, factor=4)


def test_a_gemm_over_nothing_is_zero() -> None:
    graph = gemm((1, 0), (0, 5))
    result = run_graph(graph, {"a": np.zeros((1, 0), np.float32), "b": np.zeros((0, 5), np.float32)})
    np.testing.assert_array_equal(result[graph.outputs[0].name], np.zeros((1, 5), np.float32))


def test_constant_weights_are_packed_instead() -> None:
    graph = Graph("weights")
    x = graph.add_input("x", TensorType("float32", (1, 50)))
    graph.outputs = [graph.emit("matmul", x, graph.constant(numbers((50, 40), "float32")))]
    assert kind(graph) == "matmul"


def planned(rows: int, *, along_k: bool, threads: int) -> GemvPlan:
    shape = GemvShape(rows, 64, 1, along_k)
    return GemvPlan(shape, choose_gemv(shape, target().isa, threads))


def test_threads_share_the_results() -> None:
    one = planned(1000, along_k=True, threads=1)
    assert (one.tasks, one.block) == (1, 1000)
    many = planned(40000, along_k=False, threads=4)
    assert many.block <= MOST_SUMS
    assert 8 <= many.tasks <= 16
    assert many.block * many.tasks >= 40000
    short = planned(256, along_k=True, threads=4)
    assert short.tasks == 1  # takes less time than it takes until another thread has begun
