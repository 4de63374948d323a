"""Convolutions, depthwise and transposed ones, and pooling: joins their templates with a group's epilogue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import reducers
from tilestitch.codegen.compute.dtypes import Expr, compute_dtype, from_storage, immediate
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.passes.plan.roles import Roles

from .abi import KernelLaunch
from .conv import emit_conv, plan_conv
from .conv_transpose import ConvTransposeShape, emit_conv_transpose, plan_conv_transpose
from .gemm import Load
from .geometry import ConvShape
from .isa import Isa
from .panels import LoadedOperand, Operand, PackedOperand, Packing
from .surroundings import Operands, Surroundings
from .window import emit_window, plan_window


@dataclass(frozen=True)
class _Layout:
    """Where batch, spatial and channel axes stand: NXC (channels last) or NCX."""

    channels_last: bool

    def index(self, image: Expr, position: Sequence[Expr], channel: Expr) -> tuple[Expr, ...]:
        return (image, *position, channel) if self.channels_last else (image, channel, *position)

    def split(self, shape: Sequence[int]) -> tuple[int, tuple[int, ...], int]:
        """Batch, spatial extents, channels."""
        batch, *rest = shape
        return (batch, tuple(rest[:-1]), rest[-1]) if self.channels_last else (batch, tuple(rest[1:]), rest[0])

    def kernel(self, weights: Sequence[int]) -> tuple[int, ...]:
        return tuple(weights[:-2] if self.channels_last else weights[2:])

    def weight_index(self, taps: Sequence[Expr], group_in: Expr, out: Expr) -> tuple[Expr, ...]:
        """Where conv's weights have the element of a kernel position, input channel of the group, output channel."""
        return (*taps, group_in, out) if self.channels_last else (out, group_in, *taps)


@dataclass(frozen=True)
class _Images:
    """Input and results of a group by image, position and channel, whatever the layout."""

    around: Surroundings
    layout: _Layout
    source: Value

    def load(self, image: Expr, position: Sequence[Expr], channel: Expr) -> Expr:
        return self.around.load(self.source, self.layout.index(image, position, channel))

    def finish(self, image: Expr, position: Sequence[Expr], channel: Expr, value: Expr) -> None:
        self.around.finish(self.layout.index(image, position, channel), value)

    def weights(self, load: Load) -> Operand:
        """The packed weights, or those that `load(group, k, column)` gives."""
        if self.around.packed is not None:
            return PackedOperand(self.around.packed, lambda number: number)
        return LoadedOperand(load, "n" if self.layout.channels_last else "k")


def _layout(node: Node) -> _Layout:
    return _Layout(node.attrs["layout"] == "NXC")


def _conv_shape(group: Operands, layout: _Layout) -> ConvShape:
    x, w = group.anchor.inputs
    attrs = group.anchor.attrs
    batch, spatial, channels = layout.split(x.shape)
    out = layout.split(group.result.shape)[2]
    pads = tuple(zip(attrs["before"], attrs["after"], strict=True))
    return ConvShape(
        batch, channels, out, spatial, layout.kernel(w.shape), tuple(attrs["strides"]), tuple(attrs["dilations"]), pads,
        attrs["groups"], x.dtype, w.dtype, group.acc_dtype,
    )  # fmt: skip


def _is_turned(x: Value) -> bool:
    """Whether a channels-last image is the transpose of one with channels first."""
    node = x.producer
    if node is None or node.op != "transpose":
        return False
    return tuple(node.attrs["perm"]) == (0, *range(2, len(x.shape)), 1)


def lower_conv(group: Operands) -> KernelLaunch:
    """The launch of a group around a conv node: implicit matrix product, or depthwise."""
    layout = _layout(group.anchor)
    shape = _conv_shape(group, layout)
    if shape.groups == shape.in_channels and shape.groups > 1:
        return _depthwise(group, layout, shape)
    x, w = group.anchor.inputs
    plan = plan_conv(
        shape,
        group.isa,
        threads=group.threads,
        w_packed=group.packs_right,
        x_plain=group.is_plain(x),
        channels_last=layout.channels_last != (not group.is_plain(x) and _is_turned(x)),
        long_epilogue=group.has_long_epilogue,
    )
    packing = plan.packing if group.packs_right else None
    groups, taps = shape.groups, math.prod(shape.kernel)

    def matrix(data: np.ndarray) -> np.ndarray:
        if layout.channels_last:
            grouped = data.reshape(taps, shape.group_in, groups, shape.group_out).transpose(2, 0, 1, 3)
        else:
            grouped = data.reshape(groups, shape.group_out, shape.group_in, taps).transpose(0, 3, 2, 1)
        return np.ascontiguousarray(grouped).reshape(groups, taps * shape.group_in, shape.group_out)

    def emit(around: Surroundings, task: Expr, scratch: Expr) -> None:
        def load_w(number: Expr, k: Expr, column: Expr) -> Expr:
            tap = unravel(k // shape.group_in, shape.kernel)
            out = number * shape.group_out + column
            return around.load(w, layout.weight_index(tap, k % shape.group_in, out))

        images = _Images(around, layout, x)
        emit_conv(plan, images.load, images.weights(load_w), images.finish, task, scratch)

    return group.launch("conv", plan.tasks, plan.scratch_bytes, packing, matrix, emit)


def _depthwise(group: Operands, layout: _Layout, shape: ConvShape) -> KernelLaunch:
    x, w = group.anchor.inputs
    plan = plan_window(shape, group.isa, threads=group.threads, channels_last=layout.channels_last)
    taps = math.prod(shape.kernel)
    packing = Packing(1, taps, shape.out_channels, shape.out_channels, w.dtype) if group.packs_right else None

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
            return widen(around.load(w, layout.weight_index(unravel(tap, shape.kernel), 0, channel)), w.dtype)

        emit_window(
            plan,
            lambda image, position, channel: widen(images.load(image, position, channel), x.dtype),
            immediate(0, acc),
            lambda total, element, tap, channel: total + element * weight(tap, channel),
            images.finish,
            task,
        )

    return group.launch("depthwise", plan.tasks, plan.scratch_bytes, packing, matrix, emit)


def lower_window(
    nodes: Sequence[Node], roles: Roles, inputs: Sequence[Value], outputs: Sequence[Value], isa: Isa, threads: int
) -> KernelLaunch:
    """The launch of a window_reduce group: pooling with its epilogue."""
    group = Operands(tuple(nodes), roles, tuple(inputs), tuple(outputs), isa, threads)
    x, attrs, layout = group.anchor.inputs[0], group.anchor.attrs, _layout(group.anchor)
    batch, spatial, channels = layout.split(x.shape)
    pads = tuple(zip(attrs["before"], attrs["after"], strict=True))
    shape = ConvShape(
        batch, channels, channels, spatial, tuple(attrs["kernel"]), tuple(attrs["strides"]), tuple(attrs["dilations"]),
        pads, channels, x.dtype, x.dtype, group.acc_dtype,
    )  # fmt: skip
    plan = plan_window(shape, group.isa, threads=threads, channels_last=layout.channels_last, pools=True)
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


def lower_conv_transpose(group: Operands) -> KernelLaunch:
    """The launch of a group around a conv_transpose node."""
    x, w = group.anchor.inputs
    attrs, layout = group.anchor.attrs, _layout(group.anchor)
    batch, spatial, channels = layout.split(x.shape)
    _, output, out = layout.split(group.result.shape)
    shape = ConvTransposeShape(
        batch, channels, out, spatial, output, layout.kernel(w.shape), tuple(attrs["strides"]),
        tuple(attrs["dilations"]), tuple(attrs["before"]), attrs["groups"], x.dtype, w.dtype, group.acc_dtype,
    )  # fmt: skip
    plan = plan_conv_transpose(
        shape, group.isa, threads=group.threads, w_packed=group.packs_right, channels_last=layout.channels_last
    )
    packing = plan.packing if group.packs_right else None
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
