"""Convolutions, depthwise and transposed ones, and pooling: combines their templates with a group's epilogue."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import reducers
from tilestitch.codegen.compute.dtypes import Expr, from_storage, immediate
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.codegen.cpu.abi import KernelLaunch
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.gemm import Load
from tilestitch.codegen.cpu.contraction.matrix_tiles import Products, configured, right_tile
from tilestitch.codegen.cpu.contraction.panels import LoadedOperand, Operand, PackedOperand
from tilestitch.codegen.cpu.convolution.conv import ConvEmitter, emit_conv
from tilestitch.codegen.cpu.convolution.conv_transpose import emit_conv_transpose
from tilestitch.codegen.cpu.convolution.geometry import Site
from tilestitch.codegen.cpu.convolution.interleaved import InterleavedConvEmitter
from tilestitch.codegen.cpu.convolution.window import emit_window
from tilestitch.codegen.cpu.convolution.winograd import WinogradEmitter, transformed_filters
from tilestitch.codegen.cpu.surroundings import Operands, Surroundings
from tilestitch.compiler.ir.graph import Value
from tilestitch.compiler.ir.sizes import ceil_div
from tilestitch.compiler.ir.types import compute_dtype, storage_bytes
from tilestitch.passes.plan.cpu.conv import ConvPlan, ConvTransposePlan, staged_step
from tilestitch.passes.plan.cpu.isa import TILE_BYTES, TILE_ROWS
from tilestitch.passes.plan.cpu.operands import ImageLayout, layout_of
from tilestitch.passes.plan.cpu.packing import Packing
from tilestitch.passes.plan.cpu.window import WindowPlan
from tilestitch.passes.plan.cpu.winograd import WinogradPlan


class TileConvEmitter(ConvEmitter):
    """A convolution with AMX: a tile of the left operand is 64 bytes of neighbouring channels of 16 pixels.

    The task copies its rows with room for whole tiles of channels, so that the pixels of a row have a constant stride,
    and missing pixels of a tile are read from the data after them. Their sums are not stored.
    """

    def run(self, task: Expr) -> None:
        with configured(self.scratch, self.plan.scratch_bytes - self.plan.shapes_bytes):
            super().run(task)

    def _tile(self, panel: Expr, width: int, site: Site) -> None:
        plan, element = self.plan, storage_bytes(self.plan.staged_dtype)
        assert plan.dot is not None
        each = ceil_div(site.columns, TILE_ROWS)
        stride = staged_step(plan.shape, -1) * plan.room
        products = Products(plan.dot, range(site.rows * each), range(ceil_div(width, TILE_ROWS)))
        products.clear()

        def step(taps: list[Expr], k: Expr, channel: Expr, pixels: list[int] | None) -> None:
            at = self._staged_run(site, taps, channel * (TILE_BYTES // element))

            def rows(i: int) -> tuple[Expr, Expr]:
                return T.address_of(at(i // each, i % each * TILE_ROWS)), T.int64(stride * element)

            products.add(rows, lambda j: right_tile(self.panels, self.group, panel, k, j))

        self._reduce(site, step)
        products.store(self.sums, plan.tile.columns)
        store = self._stored(panel, site)
        for row in range(site.rows):
            with mk.serial(0, site.columns) as column:
                at, pixel = column + row * each * TILE_ROWS, column + row * site.columns
                mk.for_each_column(
                    width, plan.tile.lanes,
                    lambda n, at=at, pixel=pixel: store(pixel, n, self.sums[at, n]),  # type: ignore[misc]
                )  # fmt: skip


@dataclass(frozen=True)
class _Images:
    """Input and results of a group by image, position and channel, whatever the layout."""

    around: Surroundings
    layout: ImageLayout
    source: Value

    def load(self, image: Expr, position: Sequence[Expr], channel: Expr) -> Expr:
        return self.around.load(self.source, self.layout.index(image, position, channel))

    def finish(self, image: Expr, position: Sequence[Expr], channel: Expr, value: Expr) -> None:
        self.around.finish(self.layout.index(image, position, channel), value)

    def begin(self) -> Callable[[Expr], Expr] | None:
        """Return the initial sums of an output channel, if they are the same for all positions."""
        spatial = [0] * (len(self.source.shape) - 2)
        begin = self.around.begin(self.layout.index(False, [False] * len(spatial), True))
        return None if begin is None else lambda channel: begin(self.layout.index(0, spatial, channel))

    def weights(self, load: Load) -> Operand:
        """Return the packed weights, or those from `load(group, k, column)`."""
        if self.around.packed is not None:
            return PackedOperand(self.around.packed, lambda number: number)
        return LoadedOperand(load, "n" if self.layout.channels_last else "k")


def lower_conv(group: Operands, plan: ConvPlan) -> KernelLaunch:
    """Return the launch of a conv group as an implicit GEMM."""
    shape, layout = plan.shape, layout_of(group.anchor)
    x, w = group.anchor.inputs
    packing = plan.packing if shape.packed else None
    kernel, groups, taps = layout.kernel(w.shape), shape.groups, math.prod(shape.kernel)
    winograd, emitter = isinstance(plan, WinogradPlan), _emitter(plan)

    def matrix(data: np.ndarray) -> np.ndarray:
        if layout.channels_last:
            grouped = data.reshape(taps, shape.group_in, groups, shape.group_out).transpose(2, 0, 1, 3)
        else:
            grouped = data.reshape(groups, shape.group_out, shape.group_in, taps).transpose(0, 3, 2, 1)
        if winograd:
            return transformed_filters(grouped)
        if plan.joins_taps:
            grouped = grouped.reshape(groups, -1, kernel[-1] * shape.group_in, shape.group_out)
        missing = plan.row_steps * plan.neighbours // (1 if plan.joins_taps else kernel[-1]) - grouped.shape[2]
        whole = np.pad(grouped, ((0, 0), (0, 0), (0, missing), (0, 0))) if missing else np.ascontiguousarray(grouped)
        return whole.reshape(groups, -1, shape.group_out)

    def emit(around: Surroundings, task: Expr, scratch: Expr) -> None:
        def load_w(number: Expr, k: Expr, column: Expr) -> Expr:
            tap = unravel(k // shape.group_in, kernel)
            out = number * shape.group_out + column
            return around.load(w, layout.weight_index(tap, k % shape.group_in, out))

        images = _Images(around, layout, x)
        emit_conv(
            plan, images.load, images.weights(load_w), images.finish, task, scratch, emitter,
            None if winograd or plan.multiplies_tiles else images.begin(),
        )  # fmt: skip

    return group.launch("conv", plan.tasks, plan.scratch_bytes, packing, matrix, emit)


def _emitter(plan: ConvPlan) -> type[ConvEmitter]:
    if isinstance(plan, WinogradPlan):
        return WinogradEmitter
    if plan.multiplies_tiles:
        return TileConvEmitter
    return InterleavedConvEmitter if plan.interleaves else ConvEmitter


def lower_depthwise(group: Operands, plan: WindowPlan) -> KernelLaunch:
    """Return the launch of a depthwise conv group."""
    shape, layout = plan.shape, layout_of(group.anchor)
    x, w = group.anchor.inputs
    kernel, taps = layout.kernel(w.shape), math.prod(shape.kernel)
    packing = Packing(1, taps, shape.out_channels, shape.out_channels, w.dtype) if shape.packed else None

    def matrix(data: np.ndarray) -> np.ndarray:
        flat = data.reshape(taps, -1) if layout.channels_last else data.reshape(shape.out_channels, taps).T
        return flat.reshape(1, taps, shape.out_channels)

    def emit(around: Surroundings, task: Expr, scratch: Expr) -> None:
        images, acc = _Images(around, layout, x), shape.acc_dtype

        def widen(value: Expr, dtype: str) -> Expr:
            return value if compute_dtype(dtype) == acc else T.cast(value, acc)

        def weight(tap: Expr, channel: Expr) -> Expr:
            if packing is not None:
                return widen(from_storage(around.packed[0, 0, tap, channel], w.dtype), w.dtype)
            return widen(around.load(w, layout.weight_index(unravel(tap, kernel), 0, channel)), w.dtype)

        emit_window(
            plan,
            lambda image, position, channel: widen(images.load(image, position, channel), x.dtype),
            immediate(0, acc),
            lambda total, element, tap, channel: total + element * weight(tap, channel),
            images.finish,
            task,
        )

    return group.launch("depthwise", plan.tasks, plan.scratch_bytes, packing, matrix, emit)


def lower_window(group: Operands, plan: WindowPlan) -> KernelLaunch:
    """Return the launch of a window_reduce group: pooling with its epilogue."""
    shape, layout, attrs = plan.shape, layout_of(group.anchor), group.anchor.attrs
    x = group.anchor.inputs[0]
    reducer = attrs["reducer"]

    def emit(around: Surroundings, task: Expr, scratch: Expr) -> None:
        images = _Images(around, layout, x)
        emit_window(
            plan,
            images.load,
            reducers.identity(reducer, shape.acc_dtype),
            lambda total, element, tap, channel: reducers.combine(reducer, shape.acc_dtype, total, element),
            images.finish,
            task,
            scratch,
        )

    return group.launch("window", plan.tasks, plan.scratch_bytes, None, lambda data: data, emit)


def lower_conv_transpose(group: Operands, plan: ConvTransposePlan) -> KernelLaunch:
    """Return the launch of a conv_transpose group."""
    shape, layout = plan.shape, layout_of(group.anchor)
    x, w = group.anchor.inputs
    packing = plan.packing if shape.packed else None
    groups, taps = shape.groups, math.prod(shape.kernel)

    def matrix(data: np.ndarray) -> np.ndarray:
        if layout.channels_last:
            grouped = data.reshape(taps, groups, shape.group_in, shape.group_out).transpose(1, 0, 2, 3)
        else:
            grouped = data.reshape(groups, shape.group_in, shape.group_out, taps).transpose(0, 3, 1, 2)
        return np.ascontiguousarray(grouped).reshape(groups, taps * shape.group_in, shape.group_out)

    def emit(around: Surroundings, task: Expr, scratch: Expr) -> None:
        def load_w(number: Expr, k: Expr, column: Expr) -> Expr:
            tap, channel = unravel(k // shape.group_in, shape.kernel), number * shape.group_in + k % shape.group_in
            index = (*tap, channel, column) if layout.channels_last else (channel, column, *tap)
            return around.load(w, index)

        images = _Images(around, layout, x)
        emit_conv_transpose(plan, images.load, images.weights(load_w), images.finish, task, scratch)

    return group.launch("conv_transpose", plan.tasks, plan.scratch_bytes, packing, matrix, emit)
