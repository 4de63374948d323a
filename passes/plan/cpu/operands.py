"""Groups around an anchor as CPU kernels see them: shapes of GEMMs, convolutions and windows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.blocks import BlockFormat
from tilestitch.passes.plan.cpu.dots import small_pairs
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import shares_right
from tilestitch.passes.plan.parts import Part

from .conv import ConvTransposeShape
from .gemm import GemmShape
from .gemv import GemvShape
from .images import ConvShape

_LONG = frozenset(
    ["exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"]
    + ["erf", "pow", "mod", "fmod"]
)
"""Operators whose code is too long to be repeated for every register of a tile."""


def has_long_epilogue(group: AnchoredGroup) -> bool:
    return any(n.op in _LONG for n, part in group.roles.parts.items() if part is Part.EPILOGUE)


def is_plain(group: AnchoredGroup, value: Value) -> bool:
    """Return whether an operand is read from memory as it is, without a prologue."""
    return value in group.inputs


# -- GEMMs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Matmul:
    """A matmul node as GEMMs [rows, k] by [k, n]: a right operand shared by all batch elements makes it a single
    GEMM.
    """

    group: AnchoredGroup

    @property
    def operands(self) -> tuple[Value, Value]:
        left, right, *_ = self.group.anchor.inputs
        return left, right

    @property
    def chosen(self) -> Value | None:
        """The index of each batch element's matrix; None if they are not chosen at run time."""
        return next(iter(self.group.anchor.inputs[2:]), None)

    @property
    def transposed(self) -> tuple[bool, bool]:
        attrs = self.group.anchor.attrs
        return bool(attrs.get("trans_a")), bool(attrs.get("trans_b"))

    @property
    def blocks(self) -> BlockFormat | None:
        """The storage format of a blockwise-quantised right operand; None of others."""
        anchor = self.group.anchor
        return BlockFormat.of(anchor.attrs) if anchor.op == "block_matmul" else None

    @cached_property
    def extents(self) -> tuple[tuple[int, ...], int, int, int]:
        """Batch dimensions, m, n and k of the node."""
        *batch, m, n = self.group.result.shape
        left = self.operands[0].shape
        return tuple(batch), m, n, left[-2] if self.transposed[0] else left[-1]

    @cached_property
    def shared(self) -> bool:
        return shares_right(self.group.anchor)

    @property
    def batch(self) -> int:
        return 1 if self.shared else math.prod(self.extents[0])

    @property
    def rows(self) -> int:
        batch, m, *_ = self.extents
        return math.prod(batch) * m if self.shared else m

    @property
    def by_row(self) -> bool:
        """For a GEMM that is streamed once in place: whether it has one row (else it has one column)."""
        return self.rows == 1

    @property
    def streams(self) -> bool:
        """Whether the larger operand of a single row or column is a run-time value that can be read in place."""
        n, group = self.extents[2], self.group
        matrix = self.operands[1] if self.by_row else self.operands[0]
        plain = matrix.data is None and self.blocks is None
        return plain and 1 in (self.rows, n) and group.roles.gate_width is None

    @property
    def gemm(self) -> GemmShape:
        (left, right), (batch, _, n, k), group = self.operands, self.extents, self.group
        width = group.roles.gate_width
        gates = 1 if width is None or n == 0 else n // width
        blocks = self.blocks
        return GemmShape(
            self.rows, n // gates, k, self.batch, left.dtype, right.dtype if blocks is None else "float32",
            group.acc_dtype, gates,
            packed=right.data is not None and (blocks is not None or self.shared or right.shape[:-2] == batch),
            plain=is_plain(group, left), left_runs="m" if self.transposed[0] else "k",
            long_epilogue=has_long_epilogue(group), blocks=blocks,
            rounds=bool(group.anchor.attrs.get("rounds")), small_pairs=small_pairs(group.anchor),
        )  # fmt: skip

    @property
    def gemv(self) -> GemvShape:
        (left, right), (_, _, n, k) = self.operands, self.extents
        matrix, vector, length = (right, left, n) if self.by_row else (left, right, self.rows)
        along_k = self.transposed[1] if self.by_row else not self.transposed[0]
        return GemvShape(length, k, self.batch, along_k, matrix.dtype, vector.dtype, self.group.acc_dtype)


# -- images ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageLayout:
    """Order of the batch, spatial and channel axes: NXC (channels last) or NCX."""

    channels_last: bool

    def index(self, image: Any, position: Sequence[Any], channel: Any) -> tuple[Any, ...]:
        return (image, *position, channel) if self.channels_last else (image, channel, *position)

    def split(self, shape: Sequence[int]) -> tuple[int, tuple[int, ...], int]:
        """Return batch, spatial extents and channels of a shape."""
        batch, *rest = shape
        return (batch, tuple(rest[:-1]), rest[-1]) if self.channels_last else (batch, tuple(rest[1:]), rest[0])

    def kernel(self, weights: Sequence[int]) -> tuple[int, ...]:
        return tuple(weights[:-2] if self.channels_last else weights[2:])

    def weight_index(self, taps: Sequence[Any], group_in: Any, out: Any) -> tuple[Any, ...]:
        """Return the index into conv's weights of a kernel position, input channel of the group and output channel."""
        return (*taps, group_in, out) if self.channels_last else (out, group_in, *taps)


def layout_of(node: Node) -> ImageLayout:
    return ImageLayout(node.attrs["layout"] == "NXC")


def conv_of(group: AnchoredGroup) -> ConvShape:
    """Return the shape of a group around a conv node."""
    x, w = group.anchor.inputs
    attrs, layout = group.anchor.attrs, layout_of(group.anchor)
    batch, spatial, channels = layout.split(x.shape)
    out, plain = layout.split(group.result.shape)[2], is_plain(group, x)
    pads = tuple(zip(attrs["before"], attrs["after"], strict=True))
    return ConvShape(
        batch, channels, out, spatial, layout.kernel(w.shape), tuple(attrs["strides"]), tuple(attrs["dilations"]), pads,
        attrs["groups"], x.dtype, w.dtype, group.acc_dtype, w.data is not None, plain,
        layout.channels_last != (not plain and _is_made_channels_last(x)), has_long_epilogue(group),
        y_channels_first=_stores_channels_first(group, layout), small_pairs=small_pairs(group.anchor),
    )  # fmt: skip


def pool_of(group: AnchoredGroup) -> ConvShape:
    """Return the shape of a group around a window_reduce node."""
    x, attrs, layout = group.anchor.inputs[0], group.anchor.attrs, layout_of(group.anchor)
    batch, spatial, channels = layout.split(x.shape)
    pads = tuple(zip(attrs["before"], attrs["after"], strict=True))
    return ConvShape(
        batch, channels, channels, spatial, tuple(attrs["kernel"]), tuple(attrs["strides"]), tuple(attrs["dilations"]),
        pads, channels, x.dtype, x.dtype, group.acc_dtype, channels_last=layout.channels_last, pools=True,
    )  # fmt: skip


def conv_transpose_of(group: AnchoredGroup) -> ConvTransposeShape:
    """Return the shape of a group around a conv_transpose node."""
    x, w = group.anchor.inputs
    attrs, layout = group.anchor.attrs, layout_of(group.anchor)
    batch, spatial, channels = layout.split(x.shape)
    _, output, out = layout.split(group.result.shape)
    return ConvTransposeShape(
        batch, channels, out, spatial, output, layout.kernel(w.shape), tuple(attrs["strides"]),
        tuple(attrs["dilations"]), tuple(attrs["before"]), attrs["groups"], x.dtype, w.dtype, group.acc_dtype,
        w.data is not None, layout.channels_last,
    )  # fmt: skip


def _stores_channels_first(group: AnchoredGroup, layout: ImageLayout) -> bool:
    if layout.channels_last:
        return all(map(_is_made_channels_first, group.outputs))
    return not any(map(_is_made_channels_last, group.outputs))


def _is_made_channels_first(result: Value) -> bool:
    """Return whether a result is a channels-last image transposed to channels first, possibly reshaped."""
    node = result.producer
    while node is not None and node.op == "reshape":
        node = node.inputs[0].producer
    if node is None or node.op != "transpose":
        return False
    rank = len(node.output.shape)
    return tuple(node.attrs["perm"]) == (0, rank - 1, *range(1, rank - 1))


def _is_made_channels_last(x: Value) -> bool:
    """Return whether a channels-last image is the transpose of a channels-first one."""
    node = x.producer
    if node is None or node.op != "transpose":
        return False
    return tuple(node.attrs["perm"]) == (0, *range(2, len(x.shape)), 1)
