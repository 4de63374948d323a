"""Convolutions as products (implicit matrix multiplication), and direct ones where groups are narrow.

Channels last: rows are output pixels, columns are output channels, and k runs over kernel positions, then channels.
Channels first: rows are output channels, columns are pixels, and k runs over channels, then kernel positions: that is
how weights lie in memory, and neighbouring threads store neighbouring pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.compiler.ir.graph import Node, Value

from .abi import CudaLaunch
from .direct import emit_direct
from .planes import merged, padded
from .product import At, Operand, Pictures, Plane, Product, both
from .schemes import lower_product
from .strides import Strided, strided
from .surroundings import Anchored

NARROW = 8
"""Groups of at most so many output channels, or input channels, would leave most of a tile empty."""


@dataclass(frozen=True)
class Geometry:
    """A convolution, transposed or not, over images of any rank >= 1.

    meets(dimension, output, tap) gives the input coordinate that an output coordinate and a kernel position meet, and
    the condition that there is one (None: always).
    """

    channels_last: bool
    images: int
    spatial: tuple[int, ...]
    output: tuple[int, ...]
    kernel: tuple[int, ...]
    groups: int
    group_in: int
    group_out: int
    meets: Callable[[int, Expr, Expr], tuple[Expr, Expr | None]]

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    @property
    def pixels(self) -> int:
        return self.images * math.prod(self.output)

    def index(self, image: Expr, position: Sequence[Expr], channel: Expr) -> tuple[Expr, ...]:
        return (image, *position, channel) if self.channels_last else (image, channel, *position)

    def split_k(self, k: Expr) -> tuple[tuple[Expr, ...], Expr]:
        """Kernel position and channel within the group."""
        if self.channels_last:
            *taps, channel = unravel(k, (*self.kernel, self.group_in))
        else:
            channel, *taps = unravel(k, (self.group_in, *self.kernel))
        return tuple(taps), channel

    def source(self, position: Sequence[Expr], taps: Sequence[Expr]) -> tuple[tuple[Expr, ...], Expr | None]:
        """Input position that an output position and a kernel position meet, and the condition that there is one."""
        met = [self.meets(d, o, t) for d, (o, t) in enumerate(zip(position, taps, strict=True))]
        return tuple(at for at, _ in met), both(*(condition for _, condition in met))


def lower_conv(group: Anchored) -> tuple[CudaLaunch, ...]:
    """The launches of a group around a conv node."""
    return _lower(group, conv_geometry(group.anchor), False)


def lower_conv_transpose(group: Anchored) -> tuple[CudaLaunch, ...]:
    """The launches of a group around a conv_transpose node, in gather form."""
    return _lower(group, conv_transpose_geometry(group.anchor), True)


def _lower(group: Anchored, geometry: Geometry, transposed: bool) -> tuple[CudaLaunch, ...]:
    if geometry.groups > 1 and min(geometry.group_in, geometry.group_out) <= NARROW:
        return (_direct(group, geometry, transposed),)
    return lower_product(group, conv_product(group, geometry, transposed))


def conv_geometry(node: Node) -> Geometry:
    """The geometry of a conv node."""
    attrs = node.attrs

    def meets(dimension: int, output: Expr, tap: Expr) -> tuple[Expr, Expr | None]:
        before, after = attrs["before"][dimension], attrs["after"][dimension]
        extent = node.inputs[0].shape[dimension + (1 if attrs["layout"] == "NXC" else 2)]
        at = output * attrs["strides"][dimension] + tap * attrs["dilations"][dimension] - before
        return at, _within(at, extent) if before or after else None

    return _geometry(node, meets)


def conv_transpose_geometry(node: Node) -> Geometry:
    """The geometry of a conv_transpose node: output o meets input (o + before - tap * dilation) / stride."""
    attrs = node.attrs

    def meets(dimension: int, output: Expr, tap: Expr) -> tuple[Expr, Expr | None]:
        stride = attrs["strides"][dimension]
        extent = node.inputs[0].shape[dimension + (1 if attrs["layout"] == "NXC" else 2)]
        distance = output + attrs["before"][dimension] - tap * attrs["dilations"][dimension]
        if stride == 1:
            return distance, _within(distance, extent)
        # Shifted by a multiple of the stride, so that it is never negative and divides exactly as it should.
        reach = (node_kernel(node)[dimension] - 1) * attrs["dilations"][dimension]
        shift = -(-reach // stride)
        distance = T.bind(distance + shift * stride)
        at = distance // stride - shift
        return at, both(distance % stride == 0, _within(at, extent))

    return _geometry(node, meets)


def _within(at: Expr, extent: int) -> Expr:
    return T.And(at >= 0, at < extent)


def node_kernel(node: Node) -> tuple[int, ...]:
    """Spatial extents of the weights."""
    shape = node.inputs[1].shape
    return tuple(shape[:-2] if node.attrs["layout"] == "NXC" else shape[2:])


def _geometry(node: Node, meets: Callable[[int, Expr, Expr], tuple[Expr, Expr | None]]) -> Geometry:
    last, groups = node.attrs["layout"] == "NXC", node.attrs["groups"]
    source, result = node.inputs[0].shape, node.outputs[0].shape
    channel, spatial = (-1, slice(1, -1)) if last else (1, slice(2, None))
    return Geometry(
        last, source[0], tuple(source[spatial]), tuple(result[spatial]), node_kernel(node), groups,
        source[channel] // groups, result[channel] // groups, meets,
    )  # fmt: skip


def _weight_index(
    geometry: Geometry, transposed: bool, number: Expr, taps: Sequence[Expr], channel: Expr, out: Expr
) -> tuple[Expr, ...]:
    """Where weights have the element of group `number`, kernel position, and channels within the group."""
    if transposed:
        pair = (number * geometry.group_in + channel, out)
        return (*taps, *pair) if geometry.channels_last else (*pair, *taps)
    column = number * geometry.group_out + out
    return (*taps, channel, column) if geometry.channels_last else (column, channel, *taps)


def conv_product(group: Anchored, geometry: Geometry, transposed: bool) -> Product:
    """A convolution as `groups` products."""
    x, w = group.anchor.inputs

    def pixel(row: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        image, *position = unravel(row, (geometry.images, *geometry.output))
        return image, tuple(position)

    def index_x(number: Expr, row: Expr, k: Expr) -> tuple[Expr, ...]:
        image, position = pixel(row)
        taps, channel = geometry.split_k(k)
        at, _ = geometry.source(position, taps)
        return geometry.index(image, at, number * geometry.group_in + channel)

    def inside_x(number: Expr, row: Expr, k: Expr) -> Expr | None:
        return geometry.source(pixel(row)[1], geometry.split_k(k)[0])[1]

    def index_w(number: Expr, out: Expr, k: Expr) -> tuple[Expr, ...]:
        taps, channel = geometry.split_k(k)
        return _weight_index(geometry, transposed, number, taps, channel, out)

    def place(number: Expr, row: Expr, out: Expr) -> tuple[Expr, ...]:
        image, position = pixel(row)
        return geometry.index(image, position, number * geometry.group_out + out)

    k = geometry.group_in * geometry.taps
    channels_last = geometry.channels_last
    pixels, filters = strided(group, x), strided(group, w)
    if channels_last:
        weights = _filters(w, geometry, index_w, filters)
        run = pixels.run(-1, geometry.group_in) if pixels else 1
        images = Operand(x, geometry.pixels, index_x, "k", run, pixels, inside_x)
        if not transposed:
            weights = replace(weights, plane=_filter_plane(weights, geometry))
            images = replace(images, pictures=_pictures(group.anchor, geometry))
    else:
        whole = not transposed and filters is not None and filters.is_whole
        weights = Operand(w, geometry.group_out, index_w, "row" if transposed else "k", k if whole else 1, filters)
        images = Operand(x, geometry.pixels, index_x, "row", 1, pixels, inside_x)
    product = Product(
        geometry.groups, geometry.pixels, geometry.group_out, k, images, weights, place, group.acc_dtype,
        group.tf32,
    )  # fmt: skip
    return product if channels_last else product.swapped()


def _filter_plane(weights: Operand, geometry: Geometry) -> Plane | None:
    """Weights [k.., C/g, O] as matrices of rows O/g and of k.., C/g, one a group."""
    if weights.memory is None:
        return None
    *taps, (channels, channel_stride), (_, stride) = zip(weights.memory.shape, weights.memory.strides, strict=True)
    groups = ((geometry.groups, geometry.group_out * stride),) if geometry.groups > 1 else ()
    matrix = Plane(weights.memory.offset, geometry.group_out, stride, channels, channel_stride, groups)
    if padded(channels, weights.dtype) != channels:
        along_taps = merged(taps)
        return replace(matrix, taps=(along_taps or [(1, 0)])[0]) if len(along_taps) <= 1 else None
    steps = merged([*taps, (channels, channel_stride)])
    if len(steps) > 1:
        return None
    k, k_stride = steps[0] if steps else (1, 1)
    return replace(matrix, k=k, k_stride=k_stride)


def _pictures(node: Node, geometry: Geometry) -> Pictures:
    attrs = node.attrs
    return Pictures(
        geometry.images, geometry.output, geometry.kernel, geometry.group_in, geometry.groups, tuple(attrs["strides"]),
        tuple(attrs["dilations"]), tuple(attrs["before"]),
    )  # fmt: skip


def _filters(w: Value, geometry: Geometry, index: At, memory: Strided | None) -> Operand:
    """Weights [k.., C/g, O], which run along output channels, or along input channels if they are packed so."""
    if memory is not None and memory.runs_along(-2):
        return Operand(w, geometry.group_out, index, "k", memory.run(-2, geometry.group_in), memory)
    run = memory.run(-1, geometry.group_out) if memory is not None else 1
    return Operand(w, geometry.group_out, index, "row", run, memory)


def _direct(group: Anchored, geometry: Geometry, transposed: bool) -> CudaLaunch:
    x, w = group.anchor.inputs
    spatial = slice(1, -1) if geometry.channels_last else slice(2, None)

    def terms(index: Sequence[Expr], k: Expr) -> tuple[tuple[Expr, ...], tuple[Expr, ...], Expr | None]:
        channel = index[-1] if geometry.channels_last else index[1]
        number, out = channel // geometry.group_out, channel % geometry.group_out
        taps, own = geometry.split_k(k)
        at, exists = geometry.source(tuple(index)[spatial], taps)
        left = geometry.index(index[0], at, number * geometry.group_in + own)
        return left, _weight_index(geometry, transposed, number, taps, own, out), exists

    return emit_direct(group, "conv_direct", (x, w), geometry.group_in * geometry.taps, terms)
