"""Row-wise groups as CUDA: how threads share rows, and numbers on the emulated device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.cuda import contraction_harness
from tests.codegen.cuda.cuda_harness import check, launches_of, scheduled, target, text_of
from tests.codegen.kernel_harness import one_group
from tests.cost_models import DearBarriers
from tilestitch.codegen.cuda.group import lower_group
from tilestitch.compiler.ir.graph import Graph
from tilestitch.compiler.ir.types import TensorType, to_numpy_dtype
from tilestitch.cost_model.models import RandomModel
from tilestitch.passes.plan.schedules import RowSchedule
from tilestitch.passes.schedule.cuda.rows import row_team

RNG = np.random.default_rng(4)


def softmax(shape: tuple[int, ...], axis: int, dtype: str = "float32") -> Graph:
    graph = Graph("softmax")
    x = graph.add_input("x", TensorType(dtype, shape))
    largest = graph.emit("reduce_max", x, axes=(axis,), keepdims=True)
    weights = graph.emit("exp", graph.emit("sub", x, largest))
    graph.outputs = [graph.emit("div", weights, graph.emit("reduce_sum", weights, axes=(axis,), keepdims=True))]
    return graph


def layer_norm(rows: int, width: int, dtype: str = "float32") -> Graph:
    graph = Graph("layer_norm")
    x, scale = graph.add_input("x", TensorType(dtype, (rows, width))), graph.add_input("s", TensorType(dtype, (width,)))
    count = graph.constant(width, dtype)
    epsilon = graph.constant(1e-3, dtype)
    mean = graph.emit("div", graph.emit("reduce_sum", x, axes=(1,), keepdims=True), count)
    centred = graph.emit("sub", x, mean)
    squares = graph.emit("reduce_sum", graph.emit("mul", centred, centred), axes=(1,), keepdims=True)
    deviation = graph.emit("sqrt", graph.emit("add", graph.emit("div", squares, count), epsilon))
    graph.outputs = [graph.emit("mul", graph.emit("div", centred, deviation), scale)]
    return graph


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return RNG.normal(size=shape).astype(to_numpy_dtype(dtype))


def test_a_row_is_read_from_memory_once() -> None:
    assert text_of(softmax((512, 128), 1)).count("*(float4*)(p0") == 1
    assert text_of(layer_norm(512, 768)).count("*(float4*)(p0") == 1


def test_short_rows_need_no_barrier() -> None:
    assert "__syncthreads" not in text_of(softmax((4096, 128), 1))
    assert "__syncthreads" in text_of(softmax((16, 4096), 1))


@pytest.mark.parametrize("shape", [(4, 128), (7, 197), (3, 1), (5, 13), (2, 1500), (2, 3, 4096), (1, 9000)])
def test_softmax_along_rows(shape: tuple[int, ...]) -> None:
    check(softmax(shape, len(shape) - 1), {"x": numbers(shape, "float32")})


def test_a_row_of_several_warps_has_a_block_of_its_own() -> None:
    """For its warps meet in the shared memory of the block, where another row's would write at the same time."""
    shape = (1800, 1000)
    graph = softmax(shape, 1, "float16")
    schedule = scheduled(graph, one_group(graph)).schedule
    assert isinstance(schedule, RowSchedule)
    assert (schedule.team, schedule.rows) == (64, 1)
    check(graph, {"x": numbers(shape, "float16")})


@pytest.mark.parametrize(
    ("rows", "vectors", "lanes", "team"),
    [
        (1 << 17, 12, 8, 4),  # 96 half floats: three vectors a lane, and no lane is left over
        (1 << 17, 24, 4, 4),
        (1 << 16, 24, 8, 8),
        (1 << 15, 48, 8, 16),
        (1 << 15, 64, 8, 16),  # more would not stay in registers
        (1 << 14, 96, 8, 32),
        (3000, 96, 8, 64),  # there would be too few threads
        (1 << 17, 49, 1, 16),  # fewer would not read whole sectors
        (3000, 12, 8, 16),  # there would be too few threads
    ],
)
def test_many_short_rows_have_few_lanes_each(rows: int, vectors: int, lanes: int, team: int) -> None:
    assert row_team(rows, vectors, lanes, multiprocessors=132) == team


@pytest.mark.parametrize(("width", "team"), [(88, 4), (96, 4), (120, 4), (8, 2), (232, 8)])
@pytest.mark.parametrize("rows", [1, 37])
def test_lanes_of_a_row_have_several_vectors(width: int, team: int, rows: int) -> None:
    graph = layer_norm(rows, width, "float16")
    group = replace(one_group(graph), schedule=RowSchedule(8, team, 128 // team))
    contraction_harness.check(graph, lambda _: lower_group(graph, group, target()))


@pytest.mark.parametrize("shape", [(20, 40), (5, 3), (40, 7), (2, 17, 33)])
def test_softmax_along_columns(shape: tuple[int, ...]) -> None:
    check(softmax(shape, len(shape) - 2), {"x": numbers(shape, "float32")})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_softmax_of_other_floats(dtype: str) -> None:
    check(softmax((6, 72), 1, dtype), {"x": numbers((6, 72), dtype)})


@pytest.mark.parametrize(("rows", "width"), [(6, 768), (3, 77)])
def test_layer_norm(rows: int, width: int) -> None:
    check(layer_norm(rows, width), {"x": numbers((rows, width), "float32"), "s": numbers((width,), "float32")}, 4)


def long_sum(size: int) -> Graph:
    graph = Graph("sum")
    x = graph.add_input("x", TensorType("float32", (size,)))
    graph.outputs = [graph.emit("reduce_sum", x, axes=(0,), keepdims=False)]
    return graph


def test_one_long_row_is_spread_over_blocks() -> None:
    graph = long_sum(1 << 17)
    (launch,) = launches_of(graph)
    assert launch.cooperative and launch.grid[0] > 1
    check(graph, {"x": numbers((1 << 17,), "float32")}, 50)


def test_one_long_row_is_cut_into_launches_where_blocks_should_not_wait() -> None:
    graph = long_sum(1 << 17)
    assert len(launches_of(graph, model=DearBarriers())) > 1
    check(graph, {"x": numbers((1 << 17,), "float32")}, 50, DearBarriers())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("shape", "axis"), [((3, 1500), 1), ((300, 70), 0), ((1, 1 << 16), 1), ((2, 4096, 40), 1)])
def test_every_schedule_that_a_model_may_choose_gives_the_same(shape: tuple[int, ...], axis: int, seed: int) -> None:
    check(softmax(shape, axis), {"x": numbers(shape, "float32")}, 4, RandomModel(seed))


@pytest.mark.parametrize(
    ("op", "dtype"),
    [("reduce_sum", "int32"), ("reduce_prod", "int64"), ("reduce_max", "uint8"), ("reduce_min", "int8")],
)
def test_integers_are_reduced_exactly(op: str, dtype: str) -> None:
    graph = Graph("reduce")
    x = graph.add_input("x", TensorType(dtype, (5, 37)))
    graph.outputs = [graph.emit(op, x, axes=(1,), keepdims=False), graph.emit(op, x, axes=(1,), keepdims=True)]
    check(graph, {"x": RNG.integers(0, 5, (5, 37)).astype(dtype)})


@pytest.mark.parametrize("op", ["arg_max", "arg_min"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_ties_of_arg_max_go_to_the_place_that_is_asked_for(op: str, last: bool, axis: int) -> None:
    graph = Graph("arg")
    x = graph.add_input("x", TensorType("float32", (30, 40)))
    graph.outputs = [graph.emit(op, x, axis=axis, keepdims=False, select_last=last)]
    data = RNG.integers(0, 4, (30, 40)).astype(np.float32)
    data[3, 5] = data[20, 30] = np.nan
    check(graph, {"x": data})


def test_reductions_over_nothing_give_the_identity() -> None:
    graph = Graph("empty")
    x = graph.add_input("x", TensorType("float32", (3, 0)))
    graph.outputs = [graph.emit("reduce_sum", x, axes=(1,), keepdims=False)]
    check(graph, {"x": np.zeros((3, 0), np.float32)})
