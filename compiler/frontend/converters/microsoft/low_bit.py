"""Blockwise-quantised weights of 2, 4 or 8 bits: matmuls with them, and gathers of their rows."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.types import dtype_kind, is_float, to_numpy_dtype
from tilestitch.runtime.host.blocks import CODES

from ...builder import Builder, dtype_of
from ...context import Context
from ..common import widened
from ..matmul import matmul_any_rank
from ..quantization import Blocks, dequantised, in_blocks, integers_in_blocks, unsigned_in_blocks
from .operator import Operator

BYTES = 4
"""The `accuracy_level` that permits rounding activations to 8 bits."""


def unpacked(b: Builder, x: Value, bits: int) -> Value:
    """Unpack uint8 [.., n] to uint8 [.., n * 8 / bits]: the codes in each byte, from its low bits on."""
    if bits == 8:
        return x
    count, shape = 8 // bits, b.shape(x)
    shifts = b.constant(np.arange(count) * bits, "uint8")
    parts = b.emit(
        "bitwise_and", b.emit("shift_right", b.expand_dims(x, (len(shape),)), shifts), b.like(2**bits - 1, x)
    )
    return b.reshape(parts, (*shape[:-1], shape[-1] * count))


def checked_bits(ctx: Context, attribute: str = "bits", default: int = 4) -> int:
    bits: int = ctx.attr(attribute, default)
    if bits not in (2, 4, 8):
        raise ctx.fail(f"{attribute} is {bits}; 2, 4 and 8 are supported; quantise the weights to one of these")
    return bits


def matmul_nbits(ctx: Context) -> Value:
    """Convert MatMulNBits: a @ weights[N, K]^T + bias. `accuracy_level` is the least precision of A. Where `g_idx`
    permutes the rows of blocks, as quantisers by importance do, A is permuted to the order of the blocks.
    """
    x, bias, depth, width = ctx.input(0), ctx.optional(5), ctx.attr("K"), ctx.attr("N")
    if 0 in ctx.shape(ctx.input(1)):  # no weights at all
        y = ctx.full((*ctx.shape(x)[:-1], width), 0.0, dtype_of(x))
    else:
        order = _order(ctx, depth)
        weights, ordered = _weights(ctx, depth, width, order)
        if ordered and order is not None and (order != np.arange(depth)).any():
            x = ctx.gather(x, ctx.constant(order, "int64"), -1 % ctx.rank(x))
        y = matmul_any_rank(ctx, x, ctx.swap_axes(weights, 0, 1))
    return y if bias is None else ctx.add(y, bias)


def _order(ctx: Context, depth: int) -> np.ndarray | None:
    """Return the order of the weights' rows by block for a constant `g_idx`; None if that does not yield blocks."""
    groups = ctx.optional(4)
    if groups is None:
        return np.arange(depth)
    if groups.data is None:
        return None
    of_rows = groups.data.reshape(-1)[:depth]
    order = np.argsort(of_rows, kind="stable")
    return order if np.array_equal(of_rows[order], np.arange(depth) // ctx.attr("block_size")) else None


def _weights(ctx: Context, depth: int, width: int, order: np.ndarray | None) -> tuple[Value, bool]:
    """Return weights [N, K] in the dtype of A, with arithmetic in float32; and whether K is in block order."""
    bits, block, packed, scales = checked_bits(ctx), ctx.attr("block_size"), ctx.input(1), ctx.input(2)
    blocks = -(-depth // block)
    kept = _kept(ctx, packed, scales, (width, blocks), order) if order is not None else None
    if kept is not None:
        return kept, True
    codes = unpacked(ctx, ctx.reshape(packed, (width, blocks * block * bits // 8)), bits)
    wide_scales = ctx.reshape(widened(ctx, scales), (width, blocks))
    zeros = _zero_points(ctx, bits, width, blocks)
    groups = ctx.optional(4)
    if groups is None:
        spread = (width, blocks, 1)
        centred = ctx.sub(
            ctx.cast(ctx.reshape(codes, (width, blocks, block)), "float32"), _reshaped(ctx, zeros, spread)
        )
        w = ctx.reshape(ctx.mul(centred, ctx.reshape(wide_scales, spread)), (width, blocks * block))
        return ctx.cast(ctx.slice_axis(w, 1, 0, depth), dtype_of(scales)), False
    codes = ctx.cast(ctx.slice_axis(codes, 1, 0, depth), "float32")
    by_row = zeros if not ctx.rank(zeros) else ctx.gather(zeros, ctx.slice_axis(groups, 0, 0, depth), 1)
    w = ctx.mul(ctx.sub(codes, by_row), ctx.gather(wide_scales, ctx.slice_axis(groups, 0, 0, depth), 1))
    return ctx.cast(w, dtype_of(scales)), False


def _kept(
    ctx: Context, packed: Value, scales: Value, sizes: tuple[int, int], order: np.ndarray
) -> Value | None:  # fmt: skip
    """Return constant weights kept as blocks, with rows in this order, unless their zero points are floats."""
    zeros = ctx.optional(3)
    whole = zeros is None or dtype_of(zeros) == "uint8"
    if not whole or packed.data is None or scales.data is None or (zeros is not None and zeros.data is None):
        return None
    bits, block = checked_bits(ctx), ctx.attr("block_size")
    data = (packed.data, scales.data, None if zeros is None else zeros.data)
    found = ctx.scope.module.once(
        ("MatMulNBits", bits, block, sizes, order.tobytes()), data,
        lambda: _encoded(*data, bits, block, sizes, order),
    )  # fmt: skip
    return dequantised(ctx, found, dtype_of(scales), ctx.attr("accuracy_level", 0) == BYTES)


def _encoded(
    packed: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, bits: int, block: int, sizes: tuple[int, int],
    order: np.ndarray,
) -> Blocks | None:  # fmt: skip
    width, blocks = sizes
    points = None
    if zeros is not None:
        points = parts_of(zeros.reshape(width, -(-blocks * bits // 8)), bits)[:, :blocks]
    packed = packed.reshape(width, blocks * block * bits // 8)
    return encoded(packed, scales.reshape(width, blocks), points, bits, block, order)


def encoded(
    packed: np.ndarray, scales: np.ndarray, points: np.ndarray | None, bits: int, block: int, order: np.ndarray
) -> Blocks | None:  # fmt: skip
    """Return weights as blocks with rows in this order; None if no format represents them.

    packed: whole blocks of codes, uint8 [columns, bytes]; scales and zero points: [columns, blocks].
    """
    width, blocks = scales.shape
    points = np.full(scales.shape, 1 << (bits - 1)) if points is None else points.astype(np.int64)
    if bits > 2 and (order == np.arange(len(order))).all():
        return unsigned_in_blocks(packed.reshape(width, blocks, -1), scales, points, len(order), block)
    codes = parts_of(packed, bits)[:, order].astype(to_numpy_dtype(f"uint{bits}"))
    return integers_in_blocks(codes, scales, points, block)


def parts_of(rows: np.ndarray, bits: int) -> np.ndarray:
    """Return a constant matrix unpacked as by `unpacked`."""
    shifts = np.arange(8 // bits, dtype=np.uint8) * np.uint8(bits)
    parts = (rows[..., None] >> shifts) & np.uint8(2**bits - 1)
    return np.asarray(parts.reshape(len(rows), -1))


def _reshaped(b: Builder, x: Value, shape: tuple[int, ...]) -> Value:
    return x if b.rank(x) == 0 else b.reshape(x, shape)


def _zero_points(ctx: Context, bits: int, width: int, blocks: int) -> Value:
    """Return zero points in float32, a scalar or [N, blocks], from packed ones or floats."""
    zeros = ctx.optional(3)
    if zeros is None:
        return ctx.constant(2.0 ** (bits - 1), "float32")
    if is_float(dtype_of(zeros)):
        return ctx.reshape(widened(ctx, zeros), (width, blocks))
    rows = ctx.reshape(zeros, (width, -(-blocks * bits // 8)))
    return ctx.cast(ctx.slice_axis(unpacked(ctx, rows, bits), 1, 0, blocks), "float32")


def gather_block_quantized(ctx: Context) -> Value:
    """Convert GatherBlockQuantized: codes, scales and zero points of the rows are gathered, then combined; the table
    stays quantised.
    """
    data, indices, scales, zeros = ctx.input(0), ctx.input(1), ctx.input(2), ctx.optional(3)
    packed = dtype_of(data) == "uint8"
    bits = checked_bits(ctx) if packed else 0
    axis, along = ctx.axis(data, ctx.attr("gather_axis", 0)), ctx.axis(data, ctx.attr("quantize_axis", 1))
    if packed and (axis != 0 or (bits < 8 and along != ctx.rank(data) - 1)):
        raise ctx.fail(
            f"of uint8 data, gather_axis {axis} must be 0 and quantize_axis {along} the last one; quantise it so"
        )
    if zeros is not None and dtype_kind(dtype_of(data)) not in ("int", "uint"):
        raise ctx.fail(f"zero points are given for {dtype_of(data)} data, which has none; correct the model")
    inside, rows = _rows_in_range(ctx, indices, ctx.dim(data, axis))
    table = _Table(ctx, rows, inside, axis, along, ctx.attr("block_size", 128) or ctx.dim(data, along))
    codes = unpacked(ctx, table.rows(data), bits) if packed else table.rows(data)
    wide = ctx.cast(codes, "float32")
    if zeros is not None:
        found = unpacked(ctx, table.blocks(zeros), bits) if packed else table.blocks(zeros)
        wide = ctx.sub(wide, ctx.cast(table.spread(found, codes), "float32"))
    elif packed:
        wide = ctx.sub(wide, 2.0 ** (bits - 1))
    y = ctx.mul(wide, widened(ctx, table.spread(table.blocks(scales), codes)))
    return table.zero_outside(ctx.cast(y, dtype_of(scales)))


def _rows_in_range(b: Builder, indices: Value, size: int) -> tuple[Value, Value]:
    """Return whether each index is in range, and the index of its row, or 0."""
    inside = b.emit("logical_and", b.less_equal(b.like(-size, indices), indices), b.less(indices, size))
    safe = b.select(inside, indices, 0)
    return inside, b.select(b.less(safe, 0), b.add(safe, size), safe)


@dataclass(frozen=True)
class _Table:
    """Gathers along one axis of a table, whose scales cover `block` elements along another axis or the same one."""

    b: Builder
    indices: Value
    """Indices counted from the front, 0 where out of range."""
    inside: Value
    """bool, of the shape of the indices."""
    axis: int
    along: int
    block: int

    @property
    def place(self) -> int:
        """The axis of blocks in the gathered result."""
        return self.along + self.b.rank(self.indices) - 1 if self.along > self.axis else self.along

    def rows(self, x: Value) -> Value:
        """Gather rows; an axis of size one is shared."""
        indices = self.b.mul(self.indices, 0) if self.b.dim(x, self.axis) == 1 else self.indices
        return self.b.gather(x, indices, self.axis)

    def blocks(self, x: Value) -> Value:
        """Gather rows of scales or zero points."""
        if self.axis != self.along:
            return self.rows(x)
        return self.b.gather(x, self.b.div(self.indices, self.block), self.axis)

    def spread(self, found: Value, codes: Value) -> Value:
        """Return the result of `blocks` expanded to one per code."""
        if self.axis == self.along:
            return found
        return spread(self.b, found, self.place, self.block, self.b.dim(codes, self.place))

    def zero_outside(self, y: Value) -> Value:
        """Return y with zeros where an index was out of range."""
        inside = self.b.expand_dims(self.inside, range(self.b.rank(self.inside), self.b.rank(y) - self.axis))
        return self.b.select(inside, y, 0.0)


def spread(b: Builder, x: Value, axis: int, block: int, size: int) -> Value:
    """Return each element along an axis repeated `block` times, `size` elements of that."""
    shape = b.shape(x)
    wide = b.broadcast_to(b.expand_dims(x, (axis + 1,)), (*shape[: axis + 1], block, *shape[axis + 1 :]))
    return b.slice_axis(b.reshape(wide, (*shape[:axis], shape[axis] * block, *shape[axis + 1 :])), axis, 0, size)


def matmul_bnb4(ctx: Context) -> Value:
    """Convert MatMulBnb4: a @ weights[N, K]^T, or A @ weights without `transB`; 4-bit codes into a table, in blocks of
    the flattened weights.
    """
    x, packed, scales = ctx.input(0), ctx.input(1), ctx.input(2)
    depth, width, block, kind = (ctx.attr(name) for name in ("K", "N", "block_size", "quant_type"))
    if kind not in (0, 1):
        raise ctx.fail(f"quant_type is {kind}, neither 0 (FP4) nor 1 (NF4); correct the model")
    name = "nf4" if kind else "fp4"
    # The high half of a byte comes first.
    rows = ctx.reshape(packed, (-1, 1))
    halves = [ctx.emit("shift_right", rows, ctx.like(4, rows)), ctx.emit("bitwise_and", rows, ctx.like(15, rows))]
    codes = ctx.reshape(ctx.concat(halves, 1), (-1,))
    if ctx.attr("transB", 1) and codes.data is not None and scales.data is not None and depth % block == 0:
        by_row, by_block = codes.data[: depth * width].reshape(width, depth), scales.data.reshape(width, -1)
        kept = dequantised(ctx, in_blocks(name, by_row, by_block, None, block), dtype_of(x))
        if kept is not None:
            return matmul_any_rank(ctx, x, ctx.swap_axes(kept, 0, 1))
    values = ctx.gather(ctx.constant(np.array(CODES[name]), "float32"), ctx.cast(codes, "int32"), 0)
    by_element = spread(ctx, widened(ctx, scales), 0, block, depth * width)
    weights = ctx.mul(ctx.slice_axis(values, 0, 0, depth * width), by_element)
    w = ctx.cast(ctx.reshape(weights, (width, depth)), dtype_of(x))
    return matmul_any_rank(ctx, x, ctx.swap_axes(w, 0, 1) if ctx.attr("transB", 1) else w)


OPERATORS: Mapping[str, Operator] = {
    "MatMulNBits": Operator(
        matmul_nbits, "A B scales zero_points? g_idx? bias?", "K N accuracy_level bits block_size",
        only={"weight_prepacked": 0},
    ),
    "GatherBlockQuantized": Operator(
        gather_block_quantized, "data indices scales zero_points?", "bits block_size gather_axis quantize_axis",
        "output",
    ),
    "MatMulBnb4": Operator(
        matmul_bnb4, "A B absmax", "K N block_size quant_type transB", only={"training_mode": 0}
    ),
}  # fmt: skip
