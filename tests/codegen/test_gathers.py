"""Vectors of elements that lie anywhere are loaded by LLVM's gathers, and places that are known are not asked for."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.kernel_harness import cpu_group, run_graph, target
from tilestitch.codegen.compute.sizes import kernels_over
from tilestitch.codegen.cpu.abi import KernelLaunch
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.codegen.cpu.opaque.checks import lower_index_checks
from tilestitch.codegen.cpu.target import parse_target
from tilestitch.codegen.cpu.toolchain.build import _codegen, compile_kernels, lower
from tilestitch.compiler.ir.graph import Graph
from tilestitch.compiler.ir.sizes import Size, Symbol, size_of
from tilestitch.compiler.ir.types import TensorType

RNG = np.random.default_rng(3)
ROWS, WIDTH = 5, 40


def picked(dtype: str, places: str = "int64", at: np.ndarray | None = None) -> Graph:
    """Of each row the elements at places of its own; of all rows those at constants."""
    graph = Graph("picked")
    x = graph.add_input("x", TensorType(dtype, (ROWS, WIDTH)))
    if at is not None:
        graph.outputs = [graph.emit("gather", x, graph.constant(at), axis=1)]
    else:
        i = graph.add_input("i", TensorType(places, (ROWS, WIDTH)))
        graph.outputs = [graph.emit("gather_elements", x, i, axis=1)]
    return graph


def kernel(graph: Graph) -> KernelLaunch:
    """The one after that which checks indices, if there is such."""
    return lower_group(graph, cpu_group(graph))[-1]


@pytest.mark.parametrize(
    "dtype", ["float32", "int32", "uint32", "float64", "int64", "uint64", "float16", "int8", "bool"]
)
@pytest.mark.parametrize("places", ["int32", "int64"])
def test_every_dtype_is_gathered_from_its_places(dtype: str, places: str) -> None:
    x = RNG.integers(0, 100, (ROWS, WIDTH)).astype(dtype)
    i = RNG.integers(-WIDTH, WIDTH, (ROWS, WIDTH)).astype(places)
    (result,) = run_graph(picked(dtype, places), {"x": x, "i": i}).values()
    np.testing.assert_array_equal(result, np.take_along_axis(x, i.astype(np.int64) % WIDTH, 1))


@pytest.mark.parametrize("dtype, gathers", [("float32", True), ("int64", True), ("int8", False)])
def test_words_are_gathered_and_bytes_loaded_one_by_one(dtype: str, gathers: bool) -> None:
    (source,) = compile_kernels([kernel(picked(dtype))], target(), keep_source=True).sources
    assert ("llvm.masked.gather" in source.texts["ll"]) == gathers


def test_indices_that_are_known_to_be_places_are_neither_counted_from_the_end_nor_clamped() -> None:
    at = RNG.permutation(WIDTH)
    inside, outside = picked("float32", at=at), picked("float32", at=at - 1)
    assert [kernel(graph).func.script().count("Select") for graph in (inside, outside)] == [0, 1]
    x = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
    for graph, places in ((inside, at), (outside, at - 1)):
        (result,) = run_graph(graph, {"x": x}).values()
        np.testing.assert_array_equal(result, x[:, places])


def test_rows_that_are_repeated_are_loaded_as_vectors() -> None:
    graph = Graph("repeated")
    x = graph.add_input("x", TensorType("float32", (6, 64)))
    apart = graph.emit("broadcast_to", graph.emit("reshape", x, shape=(6, 1, 64)), shape=(6, 3, 64))
    graph.outputs = [graph.emit("neg", graph.emit("reshape", apart, shape=(6, 192)))]
    (source,) = compile_kernels([kernel(graph)], target(), keep_source=True).sources
    assert "llvm.masked.gather" not in source.texts["ll"]
    given = RNG.standard_normal((6, 64)).astype(np.float32)
    np.testing.assert_array_equal(next(iter(run_graph(graph, {"x": given}).values())), -np.tile(given, 3))


N = Symbol("n", 1)


@pytest.mark.parametrize("rows", [ROWS, size_of(N)])
def test_places_are_checked_as_vectors(rows: Size) -> None:
    graph = Graph("checked")
    x = graph.add_input("x", TensorType("float32", (rows, WIDTH)))
    i = graph.add_input("i", TensorType("int64", (rows, WIDTH)))
    graph.outputs = [graph.emit("gather_elements", x, i, axis=0)]
    with kernels_over([N]):
        (check,) = lower_index_checks(graph.nodes, graph.inputs)
    cpu = parse_target("cpu:x86-64-v4")
    assert "vpcmp" in str(_codegen(lower(check.func, "kernel", cpu), cpu).inspect_source("asm"))
