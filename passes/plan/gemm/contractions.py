"""Contractions as GEMMs: matmuls, and convolutions by implicit matrix multiplication.

Convolutions, channels last: rows are output pixels, columns are output channels, and k runs over kernel positions, then
channels. Channels first: rows are output channels, columns are pixels, and k runs over channels, then kernel positions:
that is how weights lie in memory, and neighbouring threads store neighbouring pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilestitch.compiler.ir import Node, Value
from tilestitch.passes.plan.access.packed import codes_of, packed_layouts
from tilestitch.passes.plan.access.strided import Strided, strided
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.gemm import Gemm, OperandLayout, Pictures, Plane
from tilestitch.passes.plan.gemm.tma import matmul_plane, merged, padded
from tilestitch.passes.plan.gemm.units import units_of

NARROW = 8
"""Groups with at most this many output or input channels would leave most of a tile empty."""


def gemm_of(group: AnchoredGroup) -> Gemm | None:
    """Return the GEMM of a contraction; None for a convolution whose groups are too narrow for tiles."""
    packed = {value: layout.memory for value, layout in packed_layouts(group).items()}
    if group.is_matmul:
        return matmul_gemm(group, packed)
    shape = conv_shape(group.anchor)
    return None if shape.narrow else conv_gemm(group, shape, packed)


def memory_of(group: AnchoredGroup, packed: Mapping[Value, Strided], value: Value) -> Strided | None:
    """Return the layout of an anchor's operand within an input of the group; None if strides cannot express it."""
    return packed.get(value) or strided(group.nodes, group.inputs, value)


# -- matmuls ---------------------------------------------------------------------------------------------------------


def matmul_gemm(group: AnchoredGroup, packed: Mapping[Value, Strided]) -> Gemm:
    """Return the GEMM of a matmul, including one with blockwise-quantised weights."""
    left, right, *_ = group.anchor.inputs
    trans_a, trans_b = bool(group.anchor.attrs.get("trans_a")), bool(group.anchor.attrs.get("trans_b"))
    *batch, m, n = group.result.shape
    k = left.shape[-2] if trans_a else left.shape[-1]
    shared = shares_right(group.anchor)
    rows, units = prod(batch) * m if shared else m, units_of(group.roles)
    n = n if units is None else units.columns
    spread = () if shared else batch
    a = operand_layout(left, memory_of(group, packed, left), rows, "row" if trans_a else "k")
    codes = codes_of(group)
    if codes is None:
        b = operand_layout(right, memory_of(group, packed, right), n, "k" if trans_b else "row")
    else:
        b = OperandLayout(right, n, "k", 1, None, codes=codes)
    return Gemm(
        1 if shared else prod(batch), rows, n, k, _spaced(a, trans_a, spread), _spaced(b, not trans_b, spread),
        group.acc_dtype, group.tf32, units,
    )  # fmt: skip


def shares_right(node: Node) -> bool:
    """Return whether all batch elements of a matmul share one right operand: their rows then form one GEMM."""
    return len(node.inputs) == 2 and (node.op == "block_matmul" or prod(node.inputs[1].shape[:-2]) == 1)


def operand_layout(value: Value, memory: Strided | None, rows: int, last: str) -> OperandLayout:
    """Return the layout of an operand; `last` says which of its rows and k is the last axis."""
    contiguous, axis = last, -1
    if memory is not None and memory.runs_along(-2):
        contiguous, axis = "k" if last == "row" else "row", -2
    run = memory.run(axis, memory.shape[axis]) if memory is not None else 1
    return OperandLayout(value, rows, contiguous, run, memory)


def _spaced(operand: OperandLayout, k_first: bool, batch: Sequence[int]) -> OperandLayout:
    """Return the operand with its plane. k_first: whether k is the second-last axis; batch: what leading axes are
    broadcast to.
    """
    if operand.memory is None:
        return operand
    return replace(operand, plane=matmul_plane(operand.memory, operand.rows, "row" if k_first else "k", batch))


# -- convolutions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConvShape:
    """A convolution, transposed or not, over images of any rank >= 1; channels per group are `group_in` and
    `group_out`.
    """

    transposed: bool
    channels_last: bool
    images: int
    spatial: tuple[int, ...]
    output: tuple[int, ...]
    kernel: tuple[int, ...]
    groups: int
    group_in: int
    group_out: int

    @property
    def taps(self) -> int:
        return prod(self.kernel)

    @property
    def pixels(self) -> int:
        return self.images * prod(self.output)

    @property
    def k(self) -> int:
        return self.group_in * self.taps

    @property
    def narrow(self) -> bool:
        """Whether one thread per result is better than tiles."""
        return self.groups > 1 and min(self.group_in, self.group_out) <= NARROW


def conv_shape(node: Node) -> ConvShape:
    """Return the shape of a conv or conv_transpose node."""
    last, groups = node.attrs["layout"] == "NXC", node.attrs["groups"]
    source, weights, result = node.inputs[0].shape, node.inputs[1].shape, node.outputs[0].shape
    channel, spatial = (-1, slice(1, -1)) if last else (1, slice(2, None))
    kernel = weights[:-2] if last else weights[2:]
    return ConvShape(
        node.op == "conv_transpose", last, source[0], tuple(source[spatial]), tuple(result[spatial]), tuple(kernel),
        groups, source[channel] // groups, result[channel] // groups,
    )  # fmt: skip


def conv_gemm(group: AnchoredGroup, shape: ConvShape, packed: Mapping[Value, Strided]) -> Gemm:
    """Return the GEMM of a convolution, batched over groups of channels."""
    x, w = group.anchor.inputs
    pixels, filters = memory_of(group, packed, x), memory_of(group, packed, w)
    if shape.channels_last:
        run = pixels.run(-1, shape.group_in) if pixels else 1
        # Channels-first images: neighbouring threads read neighbouring pixels.
        turned = pixels is not None and pixels.runs_along(-2)
        images = OperandLayout(x, shape.pixels, "row" if turned else "k", run, pixels)
        weights = _filters(w, shape, filters)
        if not shape.transposed:
            weights = replace(weights, plane=_filter_plane(weights, shape))
            images = replace(images, pictures=_pictures(group.anchor, shape))
    else:
        whole = not shape.transposed and filters is not None and filters.is_whole
        along = "row" if shape.transposed else "k"
        weights = OperandLayout(w, shape.group_out, along, shape.k if whole else 1, filters)
        images = OperandLayout(x, shape.pixels, "row", 1, pixels)
    gemm = Gemm(shape.groups, shape.pixels, shape.group_out, shape.k, images, weights, group.acc_dtype, group.tf32)
    return gemm if shape.channels_last else gemm.swapped()


def _filters(w: Value, shape: ConvShape, memory: Strided | None) -> OperandLayout:
    """Return the layout of weights [k.., C/g, O], contiguous along output channels, or along input channels if packed
    so.
    """
    if memory is not None and memory.runs_along(-2):
        return OperandLayout(w, shape.group_out, "k", memory.run(-2, shape.group_in), memory)
    run = memory.run(-1, shape.group_out) if memory is not None else 1
    return OperandLayout(w, shape.group_out, "row", run, memory)


def _filter_plane(weights: OperandLayout, shape: ConvShape) -> Plane | None:
    """Return weights [k.., C/g, O] as matrices of rows O/g by k.., C/g, one per group."""
    if weights.memory is None:
        return None
    *taps, (channels, channel_stride), (_, stride) = zip(weights.memory.shape, weights.memory.strides, strict=True)
    groups = ((shape.groups, shape.group_out * stride),) if shape.groups > 1 else ()
    matrix = Plane(weights.memory.offset, shape.group_out, stride, channels, channel_stride, groups)
    if padded(channels, weights.dtype) != channels:
        along_taps = merged(taps)
        return replace(matrix, taps=(along_taps or [(1, 0)])[0]) if len(along_taps) <= 1 else None
    steps = merged([*taps, (channels, channel_stride)])
    if len(steps) > 1:
        return None
    k, k_stride = steps[0] if steps else (1, 1)
    return replace(matrix, k=k, k_stride=k_stride)


def _pictures(node: Node, shape: ConvShape) -> Pictures:
    attrs = node.attrs
    return Pictures(
        shape.images, shape.output, shape.kernel, shape.group_in, shape.groups, tuple(attrs["strides"]),
        tuple(attrs["dilations"]), tuple(attrs["before"]),
    )  # fmt: skip
