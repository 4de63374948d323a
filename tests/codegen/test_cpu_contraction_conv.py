"""Convolution, transposed convolution and window templates against direct numpy definitions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm.script.ir_builder import tirx as T

from tests.codegen.cpu_harness import Kernel, build, prim_func
from tilestitch.codegen.compute.dtypes import from_storage, storage_dtype
from tilestitch.codegen.cpu.contraction.panels import LoadedOperand, PackedOperand, pack
from tilestitch.codegen.cpu.convolution.conv import emit_conv
from tilestitch.codegen.cpu.convolution.conv_transpose import emit_conv_transpose
from tilestitch.codegen.cpu.convolution.geometry import tap_range
from tilestitch.codegen.cpu.convolution.window import emit_window
from tilestitch.codegen.cpu.target import CpuTarget, host_target
from tilestitch.compiler.ir.types import to_numpy_dtype
from tilestitch.passes.plan.cpu.conv import ConvPlan, ConvTransposePlan, ConvTransposeShape, staged_step
from tilestitch.passes.plan.cpu.images import ConvShape
from tilestitch.passes.plan.cpu.isa import AVX512, Isa
from tilestitch.passes.plan.cpu.tiling import SAME_SET_BYTES
from tilestitch.passes.plan.cpu.window import WindowPlan
from tilestitch.passes.schedule.cpu.conv import choose_conv_transpose, choose_direct
from tilestitch.passes.schedule.cpu.window import choose_window


def plan_conv(shape: ConvShape, isa: Isa, threads: int = 4) -> ConvPlan:
    """A convolution with the schedule that is chosen for it."""
    return ConvPlan.of(shape, choose_direct(shape, isa, threads))


def edited(plan: ConvPlan, **changes: Any) -> ConvPlan:
    """With another schedule, which is still one that a kernel computes."""
    other = replace(plan, schedule=replace(plan.schedule, **changes))
    assert list(other.reasons()) == []
    return other


def plan_window(shape: ConvShape) -> WindowPlan:
    return WindowPlan.of(shape, choose_window(shape, host_target().isa, 4))


def geometry(
    channels: tuple[int, int],
    spatial: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: int = 1,
    pads: Any = 0,
    dilation: int = 1,
    groups: int = 1,
    batch: int = 1,
    dtypes: tuple[str, str, str] = ("float32", "float32", "float32"),
) -> ConvShape:
    rank = len(spatial)
    both = ((pads, pads),) * rank if isinstance(pads, int) else pads
    return ConvShape(
        batch, channels[0], channels[1], spatial, kernel, (stride,) * rank, (dilation,) * rank, both, groups, *dtypes
    )


def random(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if "int" in dtype:
        return rng.integers(0 if dtype.startswith("u") else -20, 20, shape).astype(dtype)
    return rng.standard_normal(shape).astype(to_numpy_dtype(dtype))


def weight_matrix(weights: np.ndarray, groups: int) -> np.ndarray:
    """ONNX weights [out, in / groups, *kernel] as [groups, prod(kernel) * in / groups, out / groups] for ``pack``."""
    out, group_in, *kernel = weights.shape
    grouped = weights.reshape(groups, out // groups, group_in, math.prod(kernel))
    return np.ascontiguousarray(grouped.transpose(0, 3, 2, 1)).reshape(groups, -1, out // groups)


def transposed_weight_matrix(weights: np.ndarray, groups: int) -> np.ndarray:
    """ONNX weights [in, out / groups, *kernel] as [groups, prod(kernel) * in / groups, out / groups] for ``pack``."""
    channels, group_out, *kernel = weights.shape
    grouped = weights.reshape(groups, channels // groups, group_out, math.prod(kernel))
    return np.ascontiguousarray(grouped.transpose(0, 3, 1, 2)).reshape(groups, -1, group_out)


def depthwise_matrix(weights: np.ndarray) -> np.ndarray:
    """ONNX depthwise weights [channels, 1, *kernel] as [prod(kernel), channels], channels contiguous."""
    return np.ascontiguousarray(weights.reshape(weights.shape[0], -1).T)


def window_count(shape: ConvShape, position: Sequence[Any]) -> Any:
    """The number of window elements inside the input at an output position: an average's divisor without padding."""
    count: Any = 1
    for dim, at in enumerate(position):
        first, last = tap_range(shape, dim, at)
        count = count * T.max(last - first, 0)
    return count


def windows(shape: ConvShape, x: np.ndarray, padding: Any) -> np.ndarray:
    """Channels-last x as [batch, *output, taps, channels]."""
    padded = np.pad(x, ((0, 0), *shape.pads, (0, 0)), constant_values=padding)
    taps = []
    for tap in itertools.product(*map(range, shape.kernel)):
        index: list[Any] = [slice(None)]
        for dim, at in enumerate(tap):
            first = at * shape.dilations[dim]
            index.append(slice(first, first + (shape.output[dim] - 1) * shape.strides[dim] + 1, shape.strides[dim]))
        taps.append(padded[tuple(index)])
    return np.stack(taps, axis=-2)


def convolve(shape: ConvShape, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Channels-last reference result in the accumulation dtype's wide form."""
    wide = np.int64 if shape.acc_dtype.startswith("int") else np.float64
    patches = windows(shape, x.astype(wide), 0)
    matrix = weight_matrix(w.astype(wide), shape.groups)
    parts = []
    for group in range(shape.groups):
        own = patches[..., group * shape.group_in : (group + 1) * shape.group_in]
        parts.append(own.reshape(*own.shape[:-2], -1) @ matrix[group])
    return np.concatenate(parts, axis=-1)


def run_conv(
    plan: ConvPlan, shape: ConvShape, x: np.ndarray, w: np.ndarray, target: CpuTarget | None = None
) -> np.ndarray:
    matrix = weight_matrix(w, shape.groups)
    weights = pack(matrix, plan.packing) if plan.shape.packed else matrix
    source = x if plan.shape.channels_last else np.ascontiguousarray(np.moveaxis(x, -1, 1))
    result = np.zeros((shape.batch, *shape.output, shape.out_channels), shape.acc_dtype)
    if shape.y_channels_first:
        result = np.ascontiguousarray(np.moveaxis(result, -1, 1))

    def emit(buffers: list[Any], task: Any, scratch: Any) -> None:
        image, right, out = buffers

        def store(n: Any, at: tuple[Any, ...], c: Any, value: Any) -> None:
            T.buffer_store(out, value, [n, c, *at] if shape.y_channels_first else [n, *at, c])

        def load(n: Any, at: tuple[Any, ...], c: Any) -> Any:
            assert len(at) == shape.rank
            return from_storage(image[(n, *at, c) if plan.shape.channels_last else (n, c, *at)], shape.x_dtype)

        operand = (
            LoadedOperand(lambda group, k, n: from_storage(right[group, k, n], shape.w_dtype))
            if not plan.shape.packed
            else PackedOperand(right, lambda group: group)
        )
        emit_conv(plan, load, operand, store, task, scratch)

    arguments = [(source.shape, storage_dtype(shape.x_dtype)), (weights.shape, storage_dtype(shape.w_dtype))]
    function = prim_func([*arguments, (result.shape, shape.acc_dtype)], emit)
    got = Kernel(build(function, target), plan.tasks, plan.scratch_bytes).run(source, weights, result)[2]
    return np.moveaxis(got, 1, -1) if shape.y_channels_first else got


def check(got: np.ndarray, want: np.ndarray) -> None:
    if got.dtype.kind in "iu":
        np.testing.assert_array_equal(got, want)
        return
    assert np.abs(got - want).max() <= 1e-5 * max(1e-30, float(np.abs(want).max()))


CONVOLUTIONS = {
    "3x3": geometry((8, 40), (9, 30), (3, 3), 1, 1),
    "3x3 taps left out": geometry((16, 40), (9, 50), (3, 3), 1, 1),
    "3x3 taps left out, short rows": geometry((16, 32), (7, 7), (3, 3), 1, 1),
    "taps left out, strided": geometry((32, 24), (15, 33), (3, 3), 2, 1, batch=2),
    "taps left out, uneven": geometry((32, 48), (12, 11), (2, 4), 1, ((0, 1), (2, 1)), 2, 2),
    "taps left out, 3-D": geometry((16, 7), (4, 5, 9), (3, 3, 3), 1, 1),
    "strided": geometry((3, 16), (15, 17), (3, 3), 2, 1, batch=2),
    "first layer": geometry((3, 16), (30, 32), (7, 7), 2, 3),
    "patches": geometry((3, 20), (16, 16), (4, 4), 4),
    "uneven padding and dilation": geometry((8, 24), (9, 9), (3, 3), 1, ((0, 1), (2, 1)), 2),
    "padding wider than the kernel": geometry((4, 16), (3, 2), (2, 2), 1, 3),
    "stride wider than the padding": geometry((4, 16), (11, 11), (3, 3), 4, 1),
    "groups": geometry((16, 24), (9, 9), (3, 3), 1, 1, 1, 4),
    "1-D": geometry((5, 7), (30,), (4,), 3, 2),
    "3-D": geometry((5, 7), (6, 7, 8), (2, 3, 2), 1, 1),
    "3-D without padding": geometry((5, 7), (6, 7, 8), (2, 3, 2)),
    "1x1": geometry((24, 40), (6, 6), (1, 1), batch=2),
    "1x1 strided": geometry((24, 40), (14, 14), (1, 1), 2),
    "1x1 strided and padded": geometry((24, 40), (14, 14), (1, 1), 2, 1),
    "1x1, pixels meet in a set of the cache": geometry((1024, 20), (2, 13), (1, 1)),
    "3x3, pixels meet in a set of the cache": geometry((512, 8), (9, 25), (3, 3), 2, 1),
    "one pixel": geometry((1, 1), (1, 1), (1, 1)),
}


@pytest.mark.parametrize("channels_last", [True, False], ids=["nxc", "ncx"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str, channels_last: bool) -> None:
    shape = CONVOLUTIONS[name]
    x = random((shape.batch, *shape.spatial, shape.in_channels), "float32", 0)
    w = random((shape.out_channels, shape.group_in, *shape.kernel), "float32", 1)
    plan = plan_conv(replace(shape, channels_last=channels_last), host_target().isa)
    check(run_conv(plan, shape, x, w), convolve(shape, x, w))


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_results_with_channels_first(name: str) -> None:
    shape = replace(CONVOLUTIONS[name], y_channels_first=True)
    x = random((shape.batch, *shape.spatial, shape.in_channels), "float32", 0)
    w = random((shape.out_channels, shape.group_in, *shape.kernel), "float32", 1)
    plan = plan_conv(shape, host_target().isa)
    assert plan.transposes_sums
    for each in (plan, edited(plan, spill=False)) if name == "groups" else (plan,):
        check(run_conv(each, shape, x, w), convolve(shape, x, w))


@pytest.mark.parametrize("cpu", ["x86-64", "haswell"])
def test_results_with_channels_first_of_lesser_vector_units(cpu: str) -> None:
    shape, target = replace(CONVOLUTIONS["3x3"], y_channels_first=True), CpuTarget(cpu, "x86_64-linux-gnu")
    x, w = random((1, 9, 30, 8), "float32", 0), random((40, 8, 3, 3), "float32", 1)
    check(run_conv(plan_conv(shape, target.isa), shape, x, w, target), convolve(shape, x, w))


@pytest.mark.parametrize(
    ("shape", "copied"),
    [
        (geometry((1024, 256), (14, 14), (1, 1)), True),
        (geometry((1008, 256), (14, 14), (1, 1)), False),
        (geometry((512, 256), (28, 28), (1, 1), 2), True),
        (geometry((512, 256), (28, 28), (1, 1)), False),
        (geometry((1024, 256), (2, 3), (1, 1)), False),
        (geometry((1024, 128), (14, 14), (3, 3), 1, 1), True),
        (geometry((1024, 128), (7, 7), (3, 3), 1, 1), False),
    ],
)
def test_pixels_that_meet_in_a_set_of_the_cache_are_copied_to_others(shape: ConvShape, copied: bool) -> None:
    """But a few of them fit, and taps that padding leaves out may be worth more."""
    plan = plan_conv(shape, AVX512)
    assert plan.schedule.stage == copied
    assert not copied or plan.room * staged_step(shape, -1) * 4 % SAME_SET_BYTES


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("channels, width", [(2, 16), (3, 47), (4, 9)])
def test_few_channels_that_come_first_are_copied_beside_each_other(channels: int, width: int, dtype: str) -> None:
    dtypes = (dtype, "float32", "float32")
    shape = replace(geometry((channels, 16), (6, width), (3, 3), 2, 1, dtypes=dtypes), channels_last=False)
    x, w = random((1, 6, width, channels), dtype, 0), random((16, channels, 3, 3), "float32", 1)
    plan = plan_conv(shape, host_target().isa)
    assert plan.schedule.stage
    check(run_conv(plan, shape, x, w), convolve(shape, x, w))


@pytest.mark.parametrize("name", ["3x3", "groups", "3-D"])
def test_weights_known_at_run_time(name: str) -> None:
    shape = CONVOLUTIONS[name]
    x = random((shape.batch, *shape.spatial, shape.in_channels), "float32", 0)
    w = random((shape.out_channels, shape.group_in, *shape.kernel), "float32", 1)
    plan = plan_conv(replace(shape, packed=False), host_target().isa)
    check(run_conv(plan, shape, x, w), convolve(shape, x, w))


@pytest.mark.parametrize("changes", [{"spill": True}, {"rows_outer": True}, {"rows_outer": False}])
@pytest.mark.parametrize("blocks", [(1, 1), (2, 3), (100, 100)])
def test_every_order_and_block_size(changes: dict[str, Any], blocks: tuple[int, int]) -> None:
    shape = geometry((8, 150), (12, 12), (3, 3), 1, 1)
    x = random((1, 12, 12, 8), "float32", 0)
    w = random((150, 8, 3, 3), "float32", 1)
    plan = plan_conv(shape, host_target().isa)
    tiles, panels = min(blocks[0], plan.y.parts), min(blocks[1], plan.panels)
    check(run_conv(edited(plan, block_tiles=tiles, block_panels=panels, **changes), shape, x, w), convolve(shape, x, w))


@pytest.mark.parametrize(
    "dtypes", [("float64",) * 3, ("float16", "float16", "float32"), ("uint8", "int8", "int32")], ids=lambda d: d[0]
)
def test_dtypes(dtypes: tuple[str, str, str]) -> None:
    shape = geometry((8, 24), (9, 9), (3, 3), 1, 1, dtypes=dtypes)
    x = random((1, 9, 9, 8), dtypes[0], 0)
    w = random((24, 8, 3, 3), dtypes[1], 1)
    check(run_conv(plan_conv(shape, host_target().isa), shape, x, w), convolve(shape, x, w))


@pytest.mark.parametrize("dtypes", [("float16", "float16", "float32"), ("uint8", "int8", "int32")], ids=lambda d: d[0])
def test_inputs_that_are_not_copied_are_converted_as_they_are_read(dtypes: tuple[str, str, str]) -> None:
    shape = geometry((8, 24), (9, 9), (3, 3), 1, 1, dtypes=dtypes)
    x, w = random((1, 9, 9, 8), dtypes[0], 0), random((24, 8, 3, 3), dtypes[1], 1)
    plan = edited(plan_conv(shape, host_target().isa), stage=False)
    check(run_conv(plan, shape, x, w), convolve(shape, x, w))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats_are_converted_once_for_several_tiles(dtype: str) -> None:
    shape = geometry((8, 150), (12, 12), (3, 3), 1, 1, dtypes=(dtype, dtype, "float32"))
    x, w = random((1, 12, 12, 8), dtype, 0), random((150, 8, 3, 3), dtype, 1)
    plan = plan_conv(shape, host_target().isa, threads=1)
    assert plan.schedule.widen_right and not plan.schedule.rows_outer
    check(run_conv(plan, shape, x, w), convolve(shape, x, w))


def test_lesser_vector_unit() -> None:
    target = CpuTarget("x86-64", "x86_64-linux-gnu")
    shape = CONVOLUTIONS["3x3"]
    x = random((1, 9, 30, 8), "float32", 0)
    w = random((40, 8, 3, 3), "float32", 1)
    check(run_conv(plan_conv(shape, target.isa), shape, x, w, target), convolve(shape, x, w))


def test_nonsense_geometry_is_refused() -> None:
    with pytest.raises(ValueError, match="groups"):
        geometry((8, 9), (4, 4), (3, 3), groups=4)
    with pytest.raises(ValueError, match="skip the launch"):
        plan_conv(geometry((8, 8), (2, 2), (3, 3)), host_target().isa)
    with pytest.raises(ValueError, match="it is a convolution"):
        plan_window(geometry((8, 8), (4, 4), (3, 3)))


def run_window(plan: WindowPlan, shape: ConvShape, x: np.ndarray, w: np.ndarray | None, last: bool) -> np.ndarray:
    """Depthwise convolution where there are weights, else the average without padding."""
    source = x if last else np.ascontiguousarray(np.moveaxis(x, -1, 1))
    weights = np.zeros((1, 1), np.float32) if w is None else depthwise_matrix(w)
    result = np.zeros((shape.batch, *shape.output, shape.out_channels), np.float32)

    def emit(buffers: list[Any], task: Any, scratch: Any) -> None:
        image, right, out = buffers

        def combine(value: Any, element: Any, tap: Any, channel: Any) -> Any:
            return value + (element if w is None else element * right[tap, channel])

        def store(n: Any, at: tuple[Any, ...], c: Any, value: Any) -> None:
            if w is None:
                value = value / T.cast(window_count(shape, at), "float32")
            T.buffer_store(out, value, [n, *at, c])

        emit_window(
            plan, lambda n, at, c: image[(n, *at, c) if last else (n, c, *at)], T.float32(0), combine, store, task,
            scratch,
        )  # fmt: skip

    function = prim_func([(a.shape, "float32") for a in (source, weights, result)], emit)
    return Kernel(build(function), plan.tasks, plan.scratch_bytes).run(source, weights, result)[2]


WINDOWS = {
    "3x3": geometry((16, 16), (9, 9), (3, 3), 1, 1, groups=16),
    "strided": geometry((24, 24), (33, 20), (5, 5), 2, 2, groups=24),
    "many vectors": geometry((100, 100), (14, 14), (3, 3), 2, 1, groups=100),
    "wide kernel": geometry((32, 32), (20, 20), (13, 13), 1, 6, groups=32),
    "whole image": geometry((40, 40), (7, 7), (7, 7), groups=40),
    "dilated": geometry((8, 8), (12, 12), (3, 3), 1, ((0, 1), (2, 1)), 2, groups=8),
    "1-D": geometry((5, 5), (30,), (4,), 3, 2, groups=5),
    "3-D": geometry((3, 3), (6, 7, 8), (2, 3, 2), 1, 1, groups=3, batch=2),
    "wide rows": geometry((6, 6), (5, 53), (3, 3), 1, 1, groups=6, batch=2),
    "wide rows, strided": geometry((4, 8), (9, 70), (3, 4), 2, ((1, 0), (2, 1)), groups=4),
    "wide rows, by three": geometry((3, 3), (30, 101), (2, 4), 3, ((1, 0), (3, 2)), groups=3),
    "wide rows, by four, dilated": geometry((2, 2), (19, 150), (3, 3), 4, ((2, 2), (1, 5)), 3, groups=2),
    "wide rows, wide kernel": geometry((2, 2), (3, 60), (1, 15), 1, ((0, 0), (7, 9)), groups=2),
    "causal": geometry((20, 20), (27,), (27,), 1, ((26, 0),), groups=20),
    "more taps than pixels": geometry((40, 40), (5,), (23,), 1, ((22, 22),), groups=40),
    "many taps apart": geometry((16, 16), (4, 61), (2, 9), 2, ((1, 1), (13, 9)), 3, groups=16),
    "many taps, steps beyond them": geometry((18, 18), (95,), (9,), 13, ((8, 3),), groups=18),
}


@pytest.mark.parametrize("channels_last", [True, False], ids=["nxc", "ncx"])
@pytest.mark.parametrize("name", WINDOWS)
def test_depthwise_convolution(name: str, channels_last: bool) -> None:
    shape = WINDOWS[name]
    x = random((shape.batch, *shape.spatial, shape.in_channels), "float32", 0)
    w = random((shape.out_channels, 1, *shape.kernel), "float32", 1)
    plan = plan_window(replace(shape, channels_last=channels_last))
    check(run_window(plan, shape, x, w, channels_last), convolve(shape, x, w))


def test_channel_multiplier() -> None:
    shape = geometry((10, 30), (8, 8), (3, 3), 1, 1, groups=10)
    x = random((1, 8, 8, 10), "float32", 0)
    w = random((30, 1, 3, 3), "float32", 1)
    check(run_window(plan_window(shape), shape, x, w, True), convolve(shape, x, w))


@pytest.mark.parametrize("channels_last", [True, False], ids=["nxc", "ncx"])
@pytest.mark.parametrize("name", [name for name, shape in WINDOWS.items() if shape.out_channels == shape.in_channels])
def test_average_pooling_excludes_padding(name: str, channels_last: bool) -> None:
    shape = WINDOWS[name]
    x = random((shape.batch, *shape.spatial, shape.in_channels), "float32", 0)
    want = np.nanmean(windows(shape, x.astype(np.float64), np.nan), axis=-2)
    plan = plan_window(replace(shape, channels_last=channels_last, pools=True))
    assert plan.line is None if channels_last else plan.line is not None or "wide rows" not in name
    check(run_window(plan, shape, x, None, channels_last), want)


def scatter(shape: ConvTransposeShape, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Transposed convolution by its definition: every input element adds its weights to the output."""
    result = np.zeros((shape.batch, *shape.output, shape.out_channels))
    for at in np.ndindex(*shape.spatial):
        for tap in np.ndindex(*shape.kernel):
            to = [
                i * s - p + k * d
                for i, s, p, k, d in zip(at, shape.strides, shape.pads, tap, shape.dilations, strict=True)
            ]
            if not all(0 <= o < extent for o, extent in zip(to, shape.output, strict=True)):
                continue
            for group in range(shape.groups):
                own = slice(group * shape.group_in, (group + 1) * shape.group_in)
                out = slice(group * shape.group_out, (group + 1) * shape.group_out)
                result[(slice(None), *to, out)] += x[(slice(None), *at, own)] @ w[(own, slice(None), *tap)]
    return result


def plan_conv_transpose(shape: ConvTransposeShape) -> ConvTransposePlan:
    return ConvTransposePlan(shape, choose_conv_transpose(shape, host_target().isa, 4))


@pytest.mark.parametrize("channels_last", [True, False], ids=["nxc", "ncx"])
@pytest.mark.parametrize("packed", [True, False], ids=["constant", "run time"])
@pytest.mark.parametrize(
    "shape",
    [
        ConvTransposeShape(1, 8, 24, (5, 5), (9, 9), (3, 3), (2, 2), (1, 1), (1, 1)),
        ConvTransposeShape(2, 8, 24, (5, 4), (11, 9), (4, 4), (2, 2), (1, 1), (1, 1), groups=2),
        ConvTransposeShape(1, 3, 5, (20,), (64,), (5,), (3,), (2,), (1,)),
        ConvTransposeShape(1, 4, 6, (3, 4, 5), (4, 8, 13), (2, 3, 3), (1, 2, 3), (1, 1, 1), (0, 1, 1), groups=2),
        ConvTransposeShape(1, 8, 24, (3, 3), (9, 9), (2, 2), (4, 4), (1, 1), (0, 0)),
        ConvTransposeShape(1, 8, 24, (6, 6), (12, 12), (3, 3), (1, 1), (3, 3), (0, 0)),
        ConvTransposeShape(1, 8, 24, (5, 5), (3, 3), (3, 3), (1, 1), (1, 1), (2, 2)),
    ],
    ids=["3x3", "groups", "1-D", "3-D", "gaps", "dilated", "cut"],
)
def test_transposed_convolution(shape: ConvTransposeShape, packed: bool, channels_last: bool) -> None:
    x = random((shape.batch, *shape.spatial, shape.in_channels), "float32", 0)
    w = random((shape.in_channels, shape.group_out, *shape.kernel), "float32", 1)
    plan = plan_conv_transpose(replace(shape, packed=packed, channels_last=channels_last))
    matrix = transposed_weight_matrix(w, shape.groups)
    weights = pack(matrix, plan.packing) if packed else matrix
    source = x if channels_last else np.ascontiguousarray(np.moveaxis(x, -1, 1))
    result = np.zeros((shape.batch, *shape.output, shape.out_channels), np.float32)

    def emit(buffers: list[Any], task: Any, scratch: Any) -> None:
        image, right, out = buffers
        operand = (
            PackedOperand(right, lambda group: group)
            if packed
            else LoadedOperand(lambda group, k, n: right[group, k, n])
        )
        emit_conv_transpose(
            plan,
            lambda n, at, c: image[(n, *at, c) if channels_last else (n, c, *at)],
            operand,
            lambda n, at, c, value: T.buffer_store(out, value, [n, *at, c]),
            task,
            scratch,
        )

    function = prim_func([(a.shape, "float32") for a in (source, weights, result)], emit)
    got = Kernel(build(function), plan.tasks, plan.scratch_bytes).run(source, weights, result)[2]
    check(got, scatter(shape, x.astype(np.float64), w.astype(np.float64)))
