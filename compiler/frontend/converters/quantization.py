"""Quantisation: QuantizeLinear and its inverse, the integer matmuls and convolutions, and constant blockwise-quantised
weights, which passes keep or dequantise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilestitch.compiler.ir import TensorType, Value
from tilestitch.compiler.ir.blocks import SCALES, BlockFormat
from tilestitch.compiler.ir.types import (
    SMALL_FLOATS,
    dtype_kind,
    from_numpy_dtype,
    is_float,
    is_integer,
    to_numpy_dtype,
)

from ..builder import Builder, dtype_of
from ..context import Context, Converted, Versioned
from ..onnx_types import dtype_of as elem_dtype
from .convolution import Window, conv_window
from .matmul import matmul_any_rank

_RANGES = {"int2": (-2, 1), "uint2": (0, 3), "int4": (-8, 7), "uint4": (0, 15)}
DEQUANTISE = "host.dequantise_blocks"
Blocks = tuple[BlockFormat, np.ndarray]
"""Weights as `block_matmul` reads them."""


def integer_range(dtype: str) -> tuple[int, int]:
    """Return the least and the greatest value of an integer dtype."""
    if dtype in _RANGES:
        return _RANGES[dtype]
    info = np.iinfo(to_numpy_dtype(dtype))
    return int(info.min), int(info.max)


def saturating_cast(ctx: Builder, scaled: Value, zero_point: Value | None, dtype: str) -> Value:
    """Return round(scaled) + zero_point, saturated to the integer `dtype`. All arithmetic in float32 or wider."""
    wide = scaled if dtype_of(scaled) == "float64" else ctx.cast(scaled, "float32")
    rounded = ctx.emit("round", wide)
    if zero_point is not None:
        rounded = ctx.add(rounded, ctx.cast(zero_point, dtype_of(wide)))
    low, high = integer_range(dtype)
    return ctx.cast(ctx.clamp(rounded, float(low), float(high)), dtype)


def _without_nan(ctx: Context, x: Value) -> Value:
    """Return x with minus infinity for NaN, which thus becomes the least integer, as in ONNX Runtime."""
    return ctx.select(ctx.emit("is_nan", x), float("-inf"), x)


def is_zero(value: Value | None) -> bool:
    return value is None or (value.data is not None and not np.any(value.data))


def along(ctx: Context, x: Value, parameter: Value, axis: int, block_size: int) -> Value:
    """Return a scale or zero point shaped to broadcast against x: per tensor, per axis, or repeated over blocks."""
    rank = ctx.rank(parameter)
    if rank == 0:
        return parameter
    shape = ctx.shape(parameter)
    if rank == 1 and not (block_size and ctx.rank(x) == 1):
        if shape[0] == 1:
            return ctx.reshape(parameter, ())
        axis = ctx.axis(x, axis)
        return ctx.reshape(parameter, tuple(shape[0] if i == axis else 1 for i in range(ctx.rank(x))))
    axis = ctx.axis(x, axis)
    size = ctx.dim(x, axis)
    block = block_size or -(-size // max(shape[axis], 1))
    widened = ctx.broadcast_to(ctx.expand_dims(parameter, (axis + 1,)), (*shape[: axis + 1], block, *shape[axis + 1 :]))
    repeated = ctx.reshape(widened, (*shape[:axis], shape[axis] * block, *shape[axis + 1 :]))
    return ctx.slice_axis(repeated, axis, 0, size)


def _default_axis(ctx: Context) -> int:
    return int(ctx.attr("axis", 1))


def convert_quantize(ctx: Context) -> Value:
    x, scale, zero_point = ctx.input(0), ctx.input(1), ctx.optional(2)
    if zero_point is not None:
        dtype = dtype_of(zero_point)
    else:
        dtype = elem_dtype(ctx.attr("output_dtype", 0) or 2)
    axis, block_size = _default_axis(ctx), ctx.attr("block_size", 0)
    precision = ctx.attr("precision", 0)
    compute = elem_dtype(precision) if precision else dtype_of(scale)
    if compute == "float8_e8m0fnu" or not is_float(compute):
        compute = "float32"
    divisor = along(ctx, x, ctx.cast(scale, compute), axis, block_size)
    scaled = ctx.div(ctx.cast(x, compute), divisor)
    offset = None if is_zero(zero_point) or zero_point is None else along(ctx, x, zero_point, axis, block_size)
    if is_integer(dtype):
        return saturating_cast(ctx, _without_nan(ctx, scaled), offset, dtype)
    if offset is not None:
        scaled = ctx.add(scaled, ctx.cast(offset, dtype_of(scaled)))
    if dtype.startswith("float8"):
        return ctx.emit("cast", scaled, to=dtype, saturate=bool(ctx.attr("saturate", 1)))
    return ctx.cast(scaled, dtype)


def convert_dequantize(ctx: Context) -> Value:
    x, scale, zero_point = ctx.input(0), ctx.input(1), ctx.optional(2)
    axis, block_size = _default_axis(ctx), ctx.attr("block_size", 0)
    output = ctx.attr("output_dtype", 0)
    dtype = elem_dtype(output) if output else dtype_of(scale)
    if dtype == "float8_e8m0fnu":
        dtype = "float32"
    kept = _in_blocks(ctx, x, scale, zero_point, dtype)
    if kept is not None:
        return kept
    compute = "float64" if dtype == "float64" else "float32"
    if is_zero(zero_point) or zero_point is None:
        value = _widened(ctx, x, compute)
    elif dtype_kind(dtype_of(x)) in ("int", "uint"):
        offset = along(ctx, x, ctx.cast(zero_point, "int32"), axis, block_size)
        value = ctx.cast(ctx.sub(_widened(ctx, x, "int32"), offset), compute)
    else:
        value = ctx.sub(ctx.cast(x, compute), along(ctx, x, ctx.cast(zero_point, compute), axis, block_size))
    return ctx.cast(ctx.mul(value, along(ctx, x, ctx.cast(scale, compute), axis, block_size)), dtype)


def _in_blocks(ctx: Context, x: Value, scale: Value, zero_point: Value | None, dtype: str) -> Value | None:
    """Return constant matrices of small integers with blockwise scales along rows or columns, and those of 4 bits with
    scales per column, as kept blocks; None for others.
    """
    zeros = None if zero_point is None else zero_point.data
    if x.data is None or scale.data is None or (zero_point is not None and zeros is None):
        return None
    axis, block = _default_axis(ctx), ctx.attr("block_size", 0)
    if dtype not in SCALES or dtype_of(x) not in _BLOCKED or x.data.ndim != 2 or (not block and dtype_of(x) in _BYTES):
        return None
    points = np.zeros(scale.data.shape, np.int64) if zeros is None else zeros.astype(np.int64)
    codes, scales = x.data, scale.data
    if not block:
        if scales.ndim == 1 and scales.size > 1 and ctx.axis(x, axis) != 1:
            return None
        scales, points = (np.broadcast_to(v.reshape(1, -1), (1, codes.shape[1])) for v in (scales, points))
        axis, block = 0, -(-codes.shape[0] // 8) * 8
    turned = ctx.axis(x, axis) == 0
    if turned:
        codes, scales, points = codes.T, scales.T, points.T
    if scales.ndim != 2:
        return None
    operands = (x.data, scale.data, *(() if zeros is None else (zeros,)))
    encoded = ctx.scope.module.once(
        ("DequantizeLinear", turned, block), operands,
        lambda: integers_in_blocks(codes, np.ascontiguousarray(scales), points, block),
    )  # fmt: skip
    kept = dequantised(ctx, encoded, dtype)
    return kept if kept is None or not turned else ctx.swap_axes(kept, 0, 1)


_BYTES = ("int8", "uint8")
_BLOCKED = ("int2", "uint2", "int4", "uint4", *_BYTES)


def _widened(ctx: Context, x: Value, dtype: str) -> Value:
    """Return x as `dtype`. 8-bit weights stay, for passes to multiply as they are, or to fold."""
    if x.is_constant and dtype_of(x) in ("int8", "uint8", *SMALL_FLOATS) and ctx.rank(x) > 1:
        return ctx.graph.emit("cast", x, origins=ctx.origins, to=dtype)
    return ctx.cast(x, dtype)


def convert_dynamic_quantize(ctx: Context) -> Converted:
    return list(dynamic_quantize(ctx, ctx.input(0)))


def dynamic_quantize(ctx: Builder, x: Value) -> tuple[Value, Value, Value]:
    """Return x as uint8, its scale and its zero point, which cover the operand's own range and zero."""
    axes = range(ctx.rank(x))
    high = ctx.maximum(ctx.reduce("max", x, axes, keepdims=False), 0.0)
    low = ctx.minimum(ctx.reduce("min", x, axes, keepdims=False), 0.0)
    span = ctx.sub(high, low)
    scale = ctx.select(ctx.equal(span, 0.0), 1.0, ctx.div(span, 255.0))
    zero_point = ctx.cast(ctx.emit("round", ctx.clamp(ctx.div(ctx.sub(0.0, low), scale), 0.0, 255.0)), "uint8")
    return saturating_cast(ctx, ctx.div(x, scale), zero_point, "uint8"), scale, zero_point


# -- integer matmuls -----------------------------------------------------------------------------------------------


def integer_matmul(ctx: Builder, a: Value, b: Value, a_zero: Value | None, b_zero: Value | None) -> Value:
    """Return (a - a_zero) @ (b - b_zero) in int32.

    Zero points are factored out of the matmul, so that the contraction stays one of 8-bit operands:
    a@b - a_zero*colsum(b) - rowsum(a)*b_zero + K*a_zero*b_zero. Constant weights b - b_zero that are int8 have none.
    """
    if b_zero is not None:
        b, b_zero = _without_zero_point(ctx, b, b_zero, b_zero)
    y = matmul_any_rank(ctx, a, b, out_dtype="int32")
    if is_zero(a_zero) and is_zero(b_zero):
        return y
    if ctx.rank(a) == 1 or ctx.rank(b) == 1:
        a32, b32 = (ctx.cast(v, "int32") for v in (a, b))
        a32 = a32 if a_zero is None else ctx.sub(a32, ctx.cast(a_zero, "int32"))
        b32 = b32 if b_zero is None else ctx.sub(b32, ctx.cast(b_zero, "int32"))
        return matmul_any_rank(ctx, a32, b32)
    depth = ctx.size(ctx.dim(a, -1), "int32")
    rows = None if a_zero is None or is_zero(a_zero) else _row_vector(ctx, a_zero)
    columns = None if b_zero is None or is_zero(b_zero) else ctx.cast(b_zero, "int32")
    if rows is not None:
        y = ctx.sub(y, ctx.mul(rows, ctx.reduce("sum", ctx.cast(b, "int32"), (ctx.rank(b) - 2,))))
    if columns is not None:
        y = ctx.sub(y, ctx.mul(ctx.reduce("sum", ctx.cast(a, "int32"), (ctx.rank(a) - 1,)), columns))
    if rows is not None and columns is not None:
        y = ctx.add(y, ctx.mul(ctx.mul(rows, columns), depth))
    return y


def _row_vector(ctx: Builder, zero_point: Value) -> Value:
    """Return a zero point per row ([M]) as a column; scalars and [.., M, 1] as they are."""
    wide = ctx.cast(zero_point, "int32")
    return ctx.reshape(wide, (*ctx.shape(wide), 1)) if ctx.rank(wide) == 1 and ctx.shape(wide) != (1,) else wide


def convert_matmul_integer(ctx: Context) -> Value:
    return integer_matmul(ctx, ctx.input(0), ctx.input(1), ctx.optional(2), ctx.optional(3))


def convert_qlinear_matmul(ctx: Context) -> Value:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (ctx.input(i) for i in range(8))
    a_scale, b_scale, y_scale = (ctx.cast(s, "float32") for s in (a_scale, b_scale, y_scale))
    if ctx.rank(a_scale) == 1 and ctx.shape(a_scale) != (1,):
        a_scale = ctx.reshape(a_scale, (*ctx.shape(a_scale), 1))
    factor = ctx.div(ctx.mul(a_scale, b_scale), y_scale)
    if is_integer(dtype_of(a)):
        total = ctx.cast(integer_matmul(ctx, a, b, a_zero, b_zero), "float32")
        return saturating_cast(ctx, ctx.mul(total, factor), y_zero, dtype_of(y_zero))
    wide_a, wide_b = (ctx.sub(ctx.cast(v, "float32"), ctx.cast(z, "float32")) for v, z in ((a, a_zero), (b, b_zero)))
    scaled = ctx.add(ctx.mul(matmul_any_rank(ctx, wide_a, wide_b), factor), ctx.cast(y_zero, "float32"))
    return ctx.cast(scaled, dtype_of(y_zero))


def integer_conv(ctx: Context, x: Value, w: Value, x_zero: Value | None, w_zero: Value | None, window: Window) -> Value:
    """Return the convolution of x - x_zero with w - w_zero in int32; padding is zero after the subtraction.

    Where the weights have no zero point, that of x is factored out, so that the contraction stays one of 8-bit
    operands: over x padded with x_zero, every filter's sums are too large by x_zero * sum(filter).
    """
    if w_zero is not None:
        w, w_zero = _without_zero_point(ctx, w, w_zero, _per_filter(ctx, w_zero, w))
    if is_zero(w_zero):
        if x_zero is None or is_zero(x_zero):
            return window.conv(ctx, x, w, out_dtype="int32")
        zero, spatial = ctx.reshape(x_zero, ()), len(window.kernel)
        padded = ctx.pad(x, (0, 0, *window.before), (0, 0, *window.after), value=zero)
        y = replace(window, before=(0,) * spatial, after=(0,) * spatial).conv(ctx, padded, w, out_dtype="int32")
        sums = ctx.reduce("sum", ctx.cast(w, "int32"), range(1, ctx.rank(w)), keepdims=False)
        sums = ctx.reshape(sums, (*ctx.shape(sums), *(1,) * spatial))
        return ctx.sub(y, ctx.mul(sums, ctx.cast(zero, "int32")))
    x32, w32 = ctx.cast(x, "int32"), ctx.cast(w, "int32")
    if x_zero is not None and not is_zero(x_zero):
        x32 = ctx.sub(x32, ctx.reshape(ctx.cast(x_zero, "int32"), ()))
    if w_zero is not None and not is_zero(w_zero):
        w32 = ctx.sub(w32, _per_filter(ctx, ctx.cast(w_zero, "int32"), w))
    return window.conv(ctx, x32, w32)


def _without_zero_point(ctx: Builder, w: Value, zero: Value, spread: Value) -> tuple[Value, Value | None]:
    """Return constant weights w - zero as int8, and no zero point, if they are in range; else both as they are.

    spread: the zero point shaped to broadcast against w.
    """
    if w.data is None or spread.data is None or is_zero(zero):
        return w, zero
    shifted = w.data.astype(np.int32) - spread.data.astype(np.int32)
    low, high = integer_range("int8")
    if shifted.size and (shifted.min() < low or shifted.max() > high):
        return w, zero
    return ctx.constant(shifted, "int8", w.name), None


def _per_filter(ctx: Context, parameter: Value, w: Value) -> Value:
    """Return a scalar, or one entry a filter, shaped to broadcast against w[O, C, k...]."""
    shape = ctx.shape(parameter)
    if shape in ((), (1,)):
        return ctx.reshape(parameter, ())
    return ctx.reshape(parameter, (shape[0], *(1,) * (ctx.rank(w) - 1)))


def convert_conv_integer(ctx: Context) -> Value:
    x, w = ctx.input(0), ctx.input(1)
    return integer_conv(ctx, x, w, ctx.optional(2), ctx.optional(3), conv_window(ctx, x, w))


def convert_qlinear_conv(ctx: Context) -> Value:
    return qlinear_conv(ctx, ctx.input(0))


def qlinear_conv(ctx: Context, x: Value) -> Value:
    """Return the node's convolution of x[N, C, spatial..], which is its first operand, perhaps with other axes."""
    x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (ctx.input(i) for i in range(1, 8))
    bias = ctx.optional(8)
    acc = integer_conv(ctx, x, w, x_zero, w_zero, conv_window(ctx, x, w))
    spatial = (1,) * (ctx.rank(x) - 2)
    if bias is not None:
        acc = ctx.add(acc, ctx.reshape(bias, (*ctx.shape(bias), *spatial)))
    factor = ctx.div(ctx.mul(ctx.reshape(x_scale, ()), w_scale), ctx.reshape(y_scale, ()))
    if ctx.shape(factor) not in ((), (1,)):
        factor = ctx.reshape(factor, (*ctx.shape(factor), *spatial))
    else:
        factor = ctx.reshape(factor, ())
    scaled = ctx.mul(ctx.cast(acc, "float32"), factor)
    return saturating_cast(ctx, scaled, ctx.reshape(y_zero, ()), dtype_of(y_zero))


def integers_in_blocks(codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, block: int) -> Blocks | None:
    """Return (codes - zeros) * scales as blocks; None if no format represents it.

    codes: integers of some small dtype [columns, depth]; scales, zeros: [columns, blocks], zeros of a wider dtype.
    """
    kind = from_numpy_dtype(codes.dtype)
    bits = 8 if kind.endswith("int8") else 4
    shift = 1 << (int(kind.removeprefix("uint")) - 1) if kind.startswith("uint") else 0
    wide, points = codes.astype(np.int16) - shift, zeros.astype(np.int64) - shift
    if points.size and (points.min() < -(1 << (bits - 1)) or points.max() >= 1 << (bits - 1)):
        return None
    stored = None if not points.any() else points.astype(np.uint8)
    return in_blocks(f"int{bits}", wide.astype(np.uint8), scales, stored, block)


def in_blocks(
    kind: str, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, block: int
) -> Blocks | None:  # fmt: skip
    """Return blocks from codes of a format, uint8, one a byte; None if no format represents them."""
    form = _format(kind, scales, zeros, block, codes.shape[1])
    return None if form is None else (form, _kept(form.encode(codes, scales, zeros)))


def unsigned_in_blocks(
    packed: np.ndarray, scales: np.ndarray, zeros: np.ndarray, depth: int, block: int
) -> Blocks | None:  # fmt: skip
    """Return (codes - zeros) * scales as blocks; None if no format represents it.

    packed: uint4 or uint8 codes as the bytes of whole blocks, uint8 [columns, blocks, bytes], the low half of a byte
    first; what exceeds the depth is ignored. scales, zeros: [columns, blocks], zeros of a wider dtype.
    """
    bits = packed.shape[-1] * 8 // block
    sign = 1 << (bits - 1)
    stored = zeros - sign if (zeros != sign).any() else None
    form = _format(f"int{bits}", scales, stored, block, depth)
    if form is None:
        return None
    weights = form.joined(packed ^ np.uint8(0x88 if bits == 4 else sign), scales, stored)  # to two's complement
    if rest := depth % block:
        last = weights[:, -1, : form.code_bytes]
        last[:, -(-rest * bits // 8) :] = 0
        if rest * bits % 8:
            last[:, rest * bits // 8] &= 15
    return form, _kept(weights)


def _format(kind: str, scales: np.ndarray, zeros: np.ndarray | None, block: int, depth: int) -> BlockFormat | None:
    dtype = from_numpy_dtype(scales.dtype)
    form = BlockFormat(kind, block, dtype, zeros is not None, depth)
    return None if dtype not in SCALES or form.problem is not None or not scales.size else form


def _kept(weights: np.ndarray) -> np.ndarray:
    weights.flags.writeable = False
    return weights


def dequantised(
    b: Builder, blocks: Blocks | None, to: str, rounds: bool = False, name: str = "c"
) -> Value | None:  # fmt: skip
    """Return the weights as `to` [columns, depth], or None without blocks. `rounds`: the other operand may be rounded
    to 8 bits.
    """
    if blocks is None:
        return None
    form, weights = blocks
    attrs = {**form.attrs, "to": to, **({"rounds": True} if rounds else {})}
    type_ = TensorType(to, (len(weights), form.depth))
    return b.emit_many(DEQUANTISE, (b.constant(weights, "uint8", name),), attrs, [type_])[0]


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "QuantizeLinear": [(10, convert_quantize)],
    "DequantizeLinear": [(10, convert_dequantize)],
    "DynamicQuantizeLinear": [(11, convert_dynamic_quantize)],
    "MatMulInteger": [(10, convert_matmul_integer)],
    "ConvInteger": [(10, convert_conv_integer)],
    "QLinearMatMul": [(10, convert_qlinear_matmul)],
    "QLinearConv": [(10, convert_qlinear_conv)],
}
