"""Convolutions as GEMMs (implicit matrix multiplication; `passes.plan.gemm.contractions` says what are rows, columns
and k), and direct ones where groups are narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.cuda.gemm.direct import emit_direct, emit_direct_vectors
from tilestitch.codegen.cuda.gemm.indexed import IndexedGemm, Operand
from tilestitch.codegen.cuda.gemm.lower import lower_gemm
from tilestitch.codegen.cuda.positions import both
from tilestitch.codegen.cuda.surroundings import Anchored
from tilestitch.compiler.ir.graph import Node
from tilestitch.passes.plan.gemm.contractions import ConvShape, conv_gemm, conv_shape
from tilestitch.passes.plan.schedules import DirectSchedule, GemmSchedule

Meets = Callable[[int, Expr, Expr], "tuple[Expr, Expr | None]"]


@dataclass(frozen=True)
class Geometry:
    """The index arithmetic of a convolution, transposed or not.

    `meets(dimension, output, tap)` gives the input coordinate for an output coordinate and a kernel position, and the
    condition that it exists (None: always).
    """

    shape: ConvShape
    meets: Meets

    def index(self, image: Expr, position: Sequence[Expr], channel: Expr) -> tuple[Expr, ...]:
        return (image, *position, channel) if self.shape.channels_last else (image, channel, *position)

    def split_k(self, k: Expr) -> tuple[tuple[Expr, ...], Expr]:
        """Return kernel position and channel within the group."""
        if self.shape.channels_last:
            *taps, channel = unravel(k, (*self.shape.kernel, self.shape.group_in))
        else:
            channel, *taps = unravel(k, (self.shape.group_in, *self.shape.kernel))
        return tuple(taps), channel

    def source(self, position: Sequence[Expr], taps: Sequence[Expr]) -> tuple[tuple[Expr, ...], Expr | None]:
        """Return the input position for an output position and a kernel position, and the condition that it exists."""
        met = [self.meets(d, o, t) for d, (o, t) in enumerate(zip(position, taps, strict=True))]
        return tuple(at for at, _ in met), both(*(condition for _, condition in met))


def lower_conv(group: Anchored, schedule: GemmSchedule | DirectSchedule) -> tuple[CudaLaunch, ...]:
    """Return the launches of a group around a conv node, or around a conv_transpose node in gather form."""
    geometry = conv_geometry(group.anchor)
    if isinstance(schedule, DirectSchedule):
        if schedule.lanes * schedule.pixels > 1:
            return (emit_direct_vectors(group, geometry.shape, schedule),)
        return (_direct(group, geometry, schedule.threads),)
    return lower_gemm(group, indexed_conv(group, geometry), schedule)


def conv_geometry(node: Node) -> Geometry:
    """Return the geometry of a conv or conv_transpose node."""
    return Geometry(conv_shape(node), _meets_transposed(node) if node.op == "conv_transpose" else _meets(node))


def _meets(node: Node) -> Meets:
    """Return the map of a convolution: output o reads input o * stride + tap * dilation - before."""
    attrs = node.attrs

    def meets(dimension: int, output: Expr, tap: Expr) -> tuple[Expr, Expr | None]:
        before, after = attrs["before"][dimension], attrs["after"][dimension]
        extent = node.inputs[0].shape[dimension + (1 if attrs["layout"] == "NXC" else 2)]
        at = output * attrs["strides"][dimension] + tap * attrs["dilations"][dimension] - before
        return at, _within(at, extent) if before or after else None

    return meets


def _meets_transposed(node: Node) -> Meets:
    """Return the map of a transposed convolution: output o reads input (o + before - tap * dilation) / stride."""
    attrs, kernel = node.attrs, conv_shape(node).kernel

    def meets(dimension: int, output: Expr, tap: Expr) -> tuple[Expr, Expr | None]:
        stride = attrs["strides"][dimension]
        extent = node.inputs[0].shape[dimension + (1 if attrs["layout"] == "NXC" else 2)]
        distance = output + attrs["before"][dimension] - tap * attrs["dilations"][dimension]
        if stride == 1:
            return distance, _within(distance, extent)
        # Shifted by a multiple of the stride, so that it is never negative and divides correctly.
        reach = (kernel[dimension] - 1) * attrs["dilations"][dimension]
        shift = -(-reach // stride)
        distance = T.bind(distance + shift * stride)
        at = distance // stride - shift
        return at, both(distance % stride == 0, _within(at, extent))

    return meets


def _within(at: Expr, extent: int) -> Expr:
    return T.And(at >= 0, at < extent)


def _weight_index(shape: ConvShape, number: Expr, taps: Sequence[Expr], channel: Expr, out: Expr) -> tuple[Expr, ...]:
    """Return the index in the weights for group `number`, kernel position, and channels within the group."""
    if shape.transposed:
        pair = (number * shape.group_in + channel, out)
        return (*taps, *pair) if shape.channels_last else (*pair, *taps)
    column = number * shape.group_out + out
    return (*taps, channel, column) if shape.channels_last else (column, channel, *taps)


def indexed_conv(group: Anchored, geometry: Geometry) -> IndexedGemm:
    """Return a convolution as `groups` GEMMs."""
    shape = geometry.shape

    def pixel(row: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        image, *position = unravel(row, (shape.images, *shape.output))
        return image, tuple(position)

    def index_x(number: Expr, row: Expr, k: Expr) -> tuple[Expr, ...]:
        image, position = pixel(row)
        taps, channel = geometry.split_k(k)
        at, _ = geometry.source(position, taps)
        return geometry.index(image, at, number * shape.group_in + channel)

    def inside_x(number: Expr, row: Expr, k: Expr) -> Expr | None:
        return geometry.source(pixel(row)[1], geometry.split_k(k)[0])[1]

    def index_w(number: Expr, out: Expr, k: Expr) -> tuple[Expr, ...]:
        taps, channel = geometry.split_k(k)
        return _weight_index(shape, number, taps, channel, out)

    def place(number: Expr, row: Expr, out: Expr) -> tuple[Expr, ...]:
        image, position = pixel(row)
        return geometry.index(image, position, number * shape.group_out + out)

    gemm = conv_gemm(group, shape, group.layouts)
    images, weights = (gemm.a, gemm.b) if shape.channels_last else (gemm.b, gemm.a)
    pixels, filters = Operand.of(images, index_x, inside_x), Operand.of(weights, index_w)
    if shape.channels_last:
        return IndexedGemm.of(gemm, pixels, filters, place)
    return IndexedGemm.of(gemm, filters, pixels, lambda number, out, row: place(number, row, out))


def _direct(group: Anchored, geometry: Geometry, threads: int) -> CudaLaunch:
    shape = geometry.shape
    x, w = group.anchor.inputs
    spatial = slice(1, -1) if shape.channels_last else slice(2, None)

    def terms(index: Sequence[Expr], k: Expr) -> tuple[tuple[Expr, ...], tuple[Expr, ...], Expr | None]:
        channel = index[-1] if shape.channels_last else index[1]
        number, out = channel // shape.group_out, channel % shape.group_out
        taps, own = geometry.split_k(k)
        at, exists = geometry.source(tuple(index)[spatial], taps)
        left = geometry.index(index[0], at, number * shape.group_in + own)
        return left, _weight_index(shape, number, taps, own, out), exists

    return emit_direct(group, "conv_direct", (x, w), shape.k, terms, threads)
