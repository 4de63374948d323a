"""Element-wise groups and data movement as CUDA: access widths, and numbers on the emulated device."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.codegen.cuda.cuda_harness import build, check, launches_of, text_of
from tilestitch.codegen.cuda.toolchain.resources import kernel_resources
from tilestitch.compiler.ir.graph import Graph
from tilestitch.compiler.ir.types import TensorType, to_numpy_dtype

RNG = np.random.default_rng(3)


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype == "bool":
        return RNG.integers(0, 2, shape).astype(bool)
    if "int" in dtype:
        return RNG.integers(-9 if dtype[0] == "i" else 0, 10, shape).astype(dtype)
    return RNG.normal(size=shape).astype(to_numpy_dtype(dtype))


def sum_of_two(shape: tuple[int, ...], other: tuple[int, ...], dtype: str) -> Graph:
    graph = Graph("sum")
    x, y = (graph.add_input(n, TensorType(dtype, s)) for n, s in (("x", shape), ("y", other)))
    graph.outputs = [graph.emit("add", x, y)]
    return graph


@pytest.mark.parametrize(
    ("dtype", "access"), [("float32", "float4"), ("float16", "uint4"), ("bfloat16", "uint4"), ("int64", "longlong2")]
)
def test_contiguous_operands_are_read_and_written_in_16_bytes(dtype: str, access: str) -> None:
    text = text_of(sum_of_two((64, 256), (64, 256), dtype))
    for parameter in ("p0", "p1", "p2"):
        assert len(re.findall(rf"\*\({access}\*\)\((\(\(uint\*\))?{parameter}\b", text)) == 1


def test_large_operands_have_several_loads_in_flight() -> None:
    text = text_of(sum_of_two((64, 1024, 1024), (64, 1024, 1024), "float32"))
    assert text.count("*(float4*)(p0") == 4
    assert text.index("*(float4*)(p2") > text.rindex("*(float4*)(p1")


def test_a_long_chain_of_shared_values_is_written_in_linear_time() -> None:
    graph = Graph("powers")
    value = graph.add_input("x", TensorType("int32", (3,)))
    for _ in range(60):
        value = graph.emit("mul", value, value)
    graph.outputs = [value]
    assert text_of(graph).count(" * ") == 60


def test_small_operands_are_indexed_with_32_bits() -> None:
    assert "int64_t" not in text_of(sum_of_two((64, 256), (256,), "float32"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int64", "int8", "uint8"])
@pytest.mark.parametrize("shapes", [((3, 40), (40,)), ((7, 13), (7, 1)), ((), ()), ((1025,), (1,)), ((2, 0), (2, 0))])
def test_broadcast_sum(dtype: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    graph = sum_of_two(*shapes, dtype)
    check(graph, {"x": numbers(shapes[0], dtype), "y": numbers(shapes[1], dtype)})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_constants_are_rounded_as_stored_values_are(dtype: str) -> None:
    graph = Graph("limit")
    x = graph.add_input("x", TensorType(dtype, (4,)))
    limit = to_numpy_dtype(dtype).type(0.1)  # between the neighbours that float32 could tell apart
    graph.outputs = [graph.emit("less", x, graph.constant(np.full((), limit)))]
    check(graph, {"x": np.array([limit, -limit, np.nextafter(limit, limit * 0), 1], limit.dtype)})


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_concat_reads_only_the_operand_that_is_shown(axis: int, dtype: str) -> None:
    graph = Graph("concat")
    shapes = [tuple(n if d == axis else s for d, s in enumerate((3, 4, 8))) for n in (2, 0, 5, 8)]
    values = [graph.add_input(f"x{i}", TensorType(dtype, s)) for i, s in enumerate(shapes)]
    graph.outputs = [graph.emit("concat", *values, axis=axis)]
    check(graph, {f"x{i}": numbers(s, dtype) for i, s in enumerate(shapes)})
    assert " ? " not in text_of(graph)


def many(count: int, shape: tuple[int, ...], axis: int, dtype: str, op: str | None = None) -> Graph:
    """Return the concat of `count` operands of this shape, but for a dimension of the first."""
    graph = Graph("concat")
    first = tuple(2 * n if d == axis else n for d, n in enumerate(shape))
    values = [graph.add_input(f"x{i}", TensorType(dtype, shape if i else first)) for i in range(count)]
    joined = graph.emit("concat", *values, axis=axis)
    graph.outputs = [joined if op is None else graph.emit(op, joined)]
    return graph


@pytest.mark.parametrize(
    ("count", "shape", "axis", "dtype", "op", "loads"),
    [
        (13, (3, 1, 64), 1, "float16", None, 1),
        (64, (3, 1, 32), 1, "float32", None, 1),
        (67, (3, 2, 40), 1, "float32", "exp", 3),
        (131, (2, 1, 32), 1, "float32", None, 2),
        (29, (5, 7), 1, "float16", None, 2),
        (33, (37, 1), 1, "float32", None, 8),
        (40, (2, 32), 1, "bfloat16", None, 2),
        (15, (1,), 0, "bool", None, 8),
    ],
)
def test_concats_of_many_read_one_operand_or_a_few_neighbours(
    count: int, shape: tuple[int, ...], axis: int, dtype: str, op: str | None, loads: int
) -> None:
    """Each thread loaded an element of all of more than twelve. Where a warp reads several operands, so does a
    thread.
    """
    graph = many(count, shape, axis, dtype, op)
    check(graph, {v.name: numbers(v.shape, dtype) for v in graph.inputs})
    pieces = re.split(r"\bif \(|\belse\b", text_of(graph))
    assert (
        max(len(set(re.findall(r"\bp\d+\b(?=\)* [+]|\[)", piece))) for piece in pieces) == loads + 1
    )  # and the result


def test_concats_of_many_need_few_registers() -> None:
    for cubin in (data for name, data in build(many(64, (8, 1, 512), 1, "float16")).members.items() if "cubin" in name):
        for kernel in kernel_resources(cubin).values():
            assert kernel.registers <= 32
            assert not kernel.local_bytes


@pytest.mark.parametrize("shape", [(33, 65), (2, 3, 40, 24), (128, 128)])
def test_transpose(shape: tuple[int, ...]) -> None:
    graph = Graph("transpose")
    x = graph.add_input("x", TensorType("float32", shape))
    turned = graph.emit("transpose", x, perm=(*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))
    graph.outputs = [graph.emit("exp", turned)]
    check(graph, {"x": numbers(shape, "float32")})


def test_gather_reports_indices_that_are_out_of_range() -> None:
    from tests.codegen.cuda.cuda_harness import emulated
    from tilestitch.runtime import load
    from tilestitch.runtime.errors import ExecutionError

    graph = Graph("gather")
    table = graph.add_input("table", TensorType("float32", (10, 32)))
    rows = graph.add_input("rows", TensorType("int64", (4,)))
    graph.outputs = [graph.emit("gather", table, rows, axis=0)]
    data = numbers((10, 32), "float32")
    check(graph, {"table": data, "rows": np.array([3, -1, 9, 0])})
    with load(emulated(graph), device="emulator") as module, pytest.raises(ExecutionError, match="out of range"):
        module.run({"table": data, "rows": np.array([3, 10, 0, 0])})


def has_transpose(graph: Graph) -> bool:
    return "transpose" in {launch.kind for launch in launches_of(graph)}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bool", "int64"])
@pytest.mark.parametrize(
    ("shape", "perm", "tiled"),
    [
        ((40, 70), (1, 0), True),
        ((3, 17, 33), (0, 2, 1), True),
        ((2, 20, 5, 7), (0, 2, 3, 1), True),
        ((2, 5, 7, 20), (0, 3, 1, 2), True),
        ((16, 3, 5, 18), (3, 1, 2, 0), True),
        ((4, 6, 30), (1, 0, 2), False),
        ((3, 2000), (1, 0), False),
    ],
)
def test_transposes_go_through_a_tile(shape: tuple[int, ...], perm: tuple[int, ...], tiled: bool, dtype: str) -> None:
    graph = Graph("transpose")
    x = graph.add_input("x", TensorType(dtype, shape))
    graph.outputs = [graph.emit("transpose", x, perm=perm)]
    assert has_transpose(graph) == tiled
    check(graph, {"x": numbers(shape, dtype)})


def test_a_tile_serves_all_operands_that_run_the_other_way() -> None:
    """x and y are turned, z and the bias are read as they lie; both outputs run along the last dimension."""
    graph = Graph("turned")
    x, y = (graph.add_input(n, TensorType("float32", (2, 40, 33))) for n in "xy")
    z, bias = (
        graph.add_input("z", TensorType("float32", (2, 33, 40))),
        graph.add_input("b", TensorType("float32", (40,))),
    )
    total = graph.emit("mul", *(graph.emit("transpose", v, perm=(0, 2, 1)) for v in (x, y)))
    total = graph.emit("add", graph.emit("add", total, z), bias)
    graph.outputs = [total, graph.emit("neg", total)]
    assert has_transpose(graph)
    assert text_of(graph).count("__shared__") == 2
    check(graph, {v.name: numbers(v.shape, "float32") for v in graph.inputs})


def test_a_slice_of_a_transpose_is_read_within_its_bounds() -> None:
    graph = Graph("slice")
    x = graph.add_input("x", TensorType("float32", (45, 50)))
    part = graph.emit("slice", x, starts=(5, 49), sizes=(40, 45), steps=(1, -1))
    graph.outputs = [graph.emit("transpose", part, perm=(1, 0))]
    check(graph, {"x": numbers((45, 50), "float32")})


def test_an_operand_that_is_read_in_two_ways_is_read_where_it_lies() -> None:
    graph = Graph("symmetric")
    x = graph.add_input("x", TensorType("float32", (40, 40)))
    graph.outputs = [graph.emit("add", x, graph.emit("transpose", x, perm=(1, 0)))]
    assert not has_transpose(graph)
    check(graph, {"x": numbers((40, 40), "float32")})


@pytest.mark.parametrize(
    ("dtype", "width", "access"), [("float32", 64, "float4"), ("float16", 48, "uint4"), ("float32", 6, "float2")]
)
def test_rows_of_a_table_are_gathered_in_vectors(dtype: str, width: int, access: str) -> None:
    """Whatever the indices are, every row begins at a multiple of the vector."""
    graph = Graph("embedding")
    table, at = graph.add_input("t", TensorType(dtype, (50, width))), graph.add_input("i", TensorType("int64", (6, 7)))
    graph.outputs = [graph.emit("gather", table, at, axis=0)]
    *_, launch = launches_of(graph)
    text = text_of(graph)
    loads = re.findall(rf"\*\({access}\*\)\((\(\(uint\*\))?p0\b", text)
    assert len(loads) == 1, launch.kind
    assert not re.findall(r"= (\(float\))?p0\[\(\(data", text)
    check(graph, {"t": numbers((50, width), dtype), "i": RNG.integers(-50, 50, (6, 7))})
