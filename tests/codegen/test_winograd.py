"""Convolutions of 3 x 3 taps by Winograd's algorithm, as scheduled, against convolutions in float64."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm.script.ir_builder import tirx as T

from tests.codegen.cpu_harness import Kernel, build, prim_func
from tests.codegen.kernel_harness import cpu_group, interpret, run_graph
from tests.codegen.test_cpu_contraction_conv import check, convolve, geometry, random
from tilestitch.codegen.cpu.contraction.panels import PackedOperand, pack
from tilestitch.codegen.cpu.convolution.conv import emit_conv
from tilestitch.codegen.cpu.convolution.winograd import WinogradEmitter, transformed_filters
from tilestitch.codegen.cpu.target import CpuTarget, host_target, parse_target
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.passes.plan.cpu.conv import ConvPlan
from tilestitch.passes.plan.cpu.images import ConvShape
from tilestitch.passes.plan.cpu.isa import AVX2, AVX512, HALF_DOTS, SSE, TILE_DOTS
from tilestitch.passes.plan.cpu.schedules import CpuConvSchedule, CpuWinogradSchedule
from tilestitch.passes.plan.cpu.winograd import WinogradPlan
from tilestitch.passes.schedule.cpu.conv import choose_conv, choose_direct, choose_winograd
from tilestitch.passes.schedule.cpu.cycles import conv_cycles

SCHEDULE = CpuWinogradSchedule(2, 2, 2, 8, 2, 1, stage=True, spill=True, tiles=3)


def run(plan: WinogradPlan, x: np.ndarray, w: np.ndarray, target: CpuTarget | None = None) -> np.ndarray:
    """Channels-last results of every task; x is channels last, w [out, in of a group, 3, 3]."""
    shape = plan.shape
    taps = w.reshape(shape.groups, shape.group_out, shape.group_in, 9).transpose(0, 3, 2, 1)
    weights = pack(transformed_filters(taps), plan.packing)
    source = x if shape.channels_last else np.ascontiguousarray(np.moveaxis(x, -1, 1))
    result = np.zeros((shape.batch, *shape.output, shape.out_channels), np.float32)

    def emit(buffers: list[Any], task: Any, scratch: Any) -> None:
        image, right, out = buffers
        emit_conv(
            plan,
            lambda n, at, c: image[(n, *at, c) if shape.channels_last else (n, c, *at)],
            PackedOperand(right, lambda group: group),
            lambda n, at, c, value: T.buffer_store(out, value, [n, *at, c]),
            task,
            scratch,
            WinogradEmitter,
        )

    arguments = [(array.shape, "float32") for array in (source, weights, result)]
    return Kernel(build(prim_func(arguments, emit), target), plan.tasks, plan.scratch_bytes).run(
        source, weights, result
    )[2]


def operands(shape: ConvShape) -> tuple[np.ndarray, np.ndarray]:
    x = random((shape.batch, *shape.spatial, shape.in_channels), "float32", 0)
    return x, random((shape.out_channels, shape.group_in, 3, 3), "float32", 1)


def plan_of(shape: ConvShape, **changes: Any) -> WinogradPlan:
    plan = WinogradPlan.of(shape, replace(SCHEDULE, **changes))
    assert list(plan.reasons()) == []
    return plan


@pytest.mark.parametrize(
    "shape",
    [
        geometry((8, 16), (8, 12), (3, 3), 1, 1),
        geometry((5, 13), (7, 9), (3, 3), 1, 1, batch=2),
        geometry((9, 20), (6, 3), (3, 3), 1, 0),
        geometry((8, 40), (3, 11), (3, 3), 1, ((0, 1), (2, 0))),
        geometry((16, 24), (5, 8), (3, 3), 1, 3, groups=2),
        geometry((1, 1), (1, 1), (3, 3), 1, 1),
        geometry((1024, 8), (6, 8), (3, 3), 1, 1),
    ],
    ids=["even", "odd", "no padding", "uneven padding", "groups", "one pixel", "pixels meet in a set of the cache"],
)
@pytest.mark.parametrize("channels_last", [True, False], ids=["nxc", "ncx"])
def test_images_of_any_shape(shape: ConvShape, channels_last: bool) -> None:
    """Workspaces are full of NaN before: tiles that reach over the image leave nothing of what they find there."""
    x, w = operands(shape)
    check(run(plan_of(replace(shape, channels_last=channels_last)), x, w), convolve(shape, x, w))


@pytest.mark.parametrize(
    ("changes", "tasks"),
    [
        ({}, 3 * 3),  # 10 rows: 5 of tiles by twos; 40 channels in 3 panels
        ({"block_tiles": 5, "block_panels": 3}, 1),
        ({"block_tiles": 9, "block_panels": 9, "tiles": 14}, 1),
        ({"block_tiles": 1, "tiles": 1, "vectors": 1, "block_panels": 5}, 5),
        ({"lanes": 4, "vectors": 3, "block_panels": 2}, 3 * 2),
        ({"prefetch_next": True}, 3 * 3),
    ],
)
def test_every_tile_and_task(changes: dict[str, Any], tasks: int) -> None:
    shape = geometry((8, 40), (10, 15), (3, 3), 1, 1)
    plan = plan_of(shape, **changes)
    assert plan.tasks == tasks
    x, w = operands(shape)
    check(run(plan, x, w), convolve(shape, x, w))


@pytest.mark.parametrize("cpu", ["x86-64", "haswell"])
def test_lesser_vector_units(cpu: str) -> None:
    target = CpuTarget(cpu, "x86_64-linux-gnu")
    shape = geometry((16, 24), (9, 10), (3, 3), 1, 1)
    schedule = choose_winograd(shape, target.isa, 1)
    assert schedule is not None and schedule.lanes == target.isa.lanes("float32")
    x, w = operands(shape)
    check(run(WinogradPlan.of(shape, schedule), x, w, target), convolve(shape, x, w))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [(0, 0), (3, 4), (4, 3), (6, 8)])
def test_what_is_not_finite_reaches_the_results_that_it_would_reach_otherwise(
    value: float, where: tuple[int, int]
) -> None:
    shape = geometry((8, 8), (7, 9), (3, 3), 1, 1)
    x, w = operands(shape)
    row, column = where
    x[0, row, column, 3] = value
    with np.errstate(invalid="ignore"):
        wanted = convolve(shape, x, w)
    np.testing.assert_array_equal(np.isfinite(run(plan_of(shape), x, w)), np.isfinite(wanted))


@pytest.mark.parametrize(
    ("shape", "changes", "reason"),
    [
        (geometry((8, 8), (9, 9), (3, 3), 2, 1), {}, "without strides"),
        (geometry((8, 8), (9, 9), (3, 3), 1, 1, dilation=2), {}, "without strides or dilations"),
        (geometry((8, 8), (9, 9), (3, 5), 1, 1), {}, "of 3 x 3 taps"),
        (geometry((8, 8), (9,), (3,), 1, 1), {}, "in two dimensions"),
        (replace(geometry((8, 8), (9, 9), (3, 3), 1, 1), packed=False), {}, "constants"),
        (geometry((8, 8), (9, 9), (3, 3), 1, 1, dtypes=("float16", "float16", "float32")), {}, "of float32"),
        (geometry((8, 8), (9, 9), (3, 3), 1, 1), {"rows": 4}, "2 x 2 pixels, not 4 x 2"),
        (geometry((8, 8), (9, 9), (3, 3), 1, 1), {"stage": False}, "copied before"),
        (geometry((8, 8), (9, 9), (3, 3), 1, 1), {"widen_right": True}, "nothing is widened"),
        (geometry((8, 8), (9, 9), (3, 3), 1, 1), {"tiles": 0}, "0 x 2 vectors"),
        (geometry((8, 8), (9, 9), (3, 3), 1, 1), {"block_tiles": 0}, "at least one"),
    ],
)
def test_what_no_kernel_computes_is_refused(shape: ConvShape, changes: dict[str, Any], reason: str) -> None:
    assert reason in next(WinogradPlan.of(shape, replace(SCHEDULE, **changes)).reasons())


@pytest.mark.parametrize("isa", [AVX512, AVX2, SSE], ids=lambda isa: isa.name)
@pytest.mark.parametrize("threads", [1, 2, 8])
def test_it_is_chosen_where_it_saves_more_than_its_transforms_cost(isa: Any, threads: int) -> None:
    chosen = functools.partial(choose_conv, isa=isa, threads=threads)
    for side, channels in ((56, 64), (28, 128), (14, 256), (57, 48)):
        shape = geometry((channels, channels), (side, side), (3, 3), 1, 1)
        schedule = chosen(shape)
        assert isinstance(schedule, CpuWinogradSchedule)
        plan = WinogradPlan.of(shape, schedule)
        assert list(plan.reasons()) == []
        assert conv_cycles(plan, isa) < conv_cycles(plan_direct(shape, isa, threads), isa)
    for other in (
        geometry((16, 16), (4, 65536), (3, 3), 1, 1),
        geometry((64, 64), (56, 56), (3, 3), 2, 1),
        geometry((64, 64), (56, 56), (3, 3), 1, 2, dilation=2),
        geometry((64, 64), (56, 56), (1, 1)),
        geometry((3, 64), (224, 224), (3, 3), 1, 1),
        geometry((64, 64), (56, 56), (3, 3), 1, 1, groups=64),
        geometry((64, 64), (1, 1), (3, 3), 1, 1),
        replace(geometry((64, 64), (56, 56), (3, 3), 1, 1), packed=False),
    ):
        assert not isinstance(chosen(other), CpuWinogradSchedule), other


def test_it_is_not_chosen_where_ports_that_multiply_also_transform_and_channels_are_few() -> None:
    few_channels = geometry((16, 16), (112, 112), (3, 3), 1, 1)
    assert isinstance(choose_conv(few_channels, AVX512, 1), CpuWinogradSchedule)
    assert not isinstance(choose_conv(few_channels, replace(AVX512, shares_ports=True), 1), CpuWinogradSchedule)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("side", (4, 7))
def test_filters_that_take_longer_to_read_than_to_multiply_are_not_made_larger(side: int, dtype: str) -> None:
    few_pixels = geometry((512, 512), (side, side), (3, 3), 1, 1, dtypes=(dtype, dtype, "float32"))
    winograd = choose_winograd(few_pixels, AVX512, 1)
    assert winograd is not None
    assert conv_cycles(WinogradPlan.of(few_pixels, winograd), AVX512) < conv_cycles(
        plan_direct(few_pixels, AVX512, 1), AVX512
    )
    assert not isinstance(choose_conv(few_pixels, AVX512, 1), CpuWinogradSchedule)


def plan_direct(shape: ConvShape, isa: Any, threads: int) -> Any:
    return ConvPlan.of(shape, choose_direct(shape, isa, threads))


def test_filters_that_no_cache_keeps_are_asked_for_ahead() -> None:
    for side, channels, ahead in ((56, 64, False), (14, 256, True), (7, 512, True)):
        schedule = choose_winograd(geometry((channels, channels), (side, side), (3, 3), 1, 1), AVX512, 1)
        assert schedule is not None and schedule.prefetch_next == ahead


def test_half_floats_are_multiplied_by_their_instruction() -> None:
    shape = geometry((64, 64), (56, 56), (3, 3), 1, 1, dtypes=("bfloat16", "bfloat16", "float32"))
    schedule = choose_conv(shape, replace(AVX512, half_dot=HALF_DOTS["vdpbf16ps"]), 1)
    assert isinstance(schedule, CpuConvSchedule) and schedule.template == "cpu_dot_conv"


@pytest.mark.parametrize(("side", "channels"), [(56, 64), (28, 128), (14, 256)])
def test_filters_of_bfloat16_are_made_larger_where_no_instruction_multiplies_them(side: int, channels: int) -> None:
    halves = ("bfloat16", "bfloat16", "float32")
    shape = geometry((channels, channels), (side, side), (3, 3), 1, 1, dtypes=halves)
    assert isinstance(choose_conv(shape, AVX512, 1), CpuWinogradSchedule)
    tiles = replace(AVX512, tile_dots=(TILE_DOTS["tdpbf16ps"],))
    assert not isinstance(choose_conv(shape, tiles, 1), CpuWinogradSchedule)


def test_filters_of_bfloat16_are_rounded_once_more() -> None:
    """Which makes an error as large as that of the filters themselves; all else is float32."""
    graph = Graph("g")
    x = graph.add_input("x", TensorType("bfloat16", (1, 24, 24, 32)))
    random_ = np.random.default_rng(3)
    w = graph.constant(random_.standard_normal((3, 3, 32, 48)).astype(np.float32), dtype="bfloat16")
    same = {"strides": (1, 1), "before": (1, 1), "after": (1, 1), "dilations": (1, 1)}
    graph.outputs = [graph.emit("conv", x, w, groups=1, layout="NXC", out_dtype="float32", **same)]
    target = parse_target("cpu:x86-64-v3")
    assert isinstance(cpu_group(graph, cpu=target).schedule, CpuWinogradSchedule)
    feeds = {"x": random_.standard_normal((1, 24, 24, 32)).astype(w.data.dtype)}
    (wanted,) = (interpret(graph, feeds)[value] for value in graph.outputs)
    (result,) = run_graph(graph, feeds, cpu=target).values()
    error = np.sqrt(np.mean(np.square(result - wanted))) / wanted.std()
    assert 0 < error < 2**-8


def test_the_workspace_of_a_task_stays_in_the_cache() -> None:
    """Unless one row of tiles alone is more."""
    isa = host_target().isa
    for shape in (geometry((64, 64), (400, 400), (3, 3), 1, 1), geometry((512, 64), (9, 9), (3, 3), 1, 1)):
        schedule = choose_winograd(shape, isa, 1)
        assert schedule is not None
        assert schedule.block_tiles == 1 or WinogradPlan.of(shape, schedule).offsets[1] <= isa.l2_bytes // 2


@pytest.mark.filterwarnings("error")
def test_filters_that_overflow_say_nothing_while_a_model_is_compiled() -> None:
    for value in (3e38, np.inf, np.nan):
        assert not np.isfinite(transformed_filters(np.full((1, 9, 1, 1), value, np.float32))).all()
