"""Convolutions: windows and paddings as ONNX states them, as primitives of layout NCX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.claims import may_be_equal
from tilestitch.compiler.ir.sizes import Size, ceil_div, is_open, largest
from tilestitch.compiler.ir.types import to_numpy_dtype

from ..builder import Builder, dtype_of
from ..context import Context, Versioned


@dataclass(frozen=True)
class Window:
    """A sliding window over the spatial axes, one entry an axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1

    def attrs(self) -> dict[str, Any]:
        """Return the attributes that conv, conv_transpose and window_reduce have in common."""
        return {
            "strides": self.strides,
            "before": self.before,
            "after": self.after,
            "dilations": self.dilations,
            "layout": "NCX",
        }

    def extent(self, axis: int) -> int:
        """Return the elements from the first to the last tap."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def conv(self, b: Builder, x: Value, w: Value, out_dtype: str | None = None) -> Value:
        attrs = self.attrs() | {"groups": self.groups}
        if out_dtype is not None and out_dtype != dtype_of(x):
            attrs["out_dtype"] = out_dtype
        per_group = w.tensor_type.shape[1]
        channels = per_group if isinstance(per_group, str) else per_group * self.groups
        return b.emit("conv", b.cut(x, 1, channels), w, **attrs)


def window_of(ctx: Context, x: Value, kernel: Sequence[int]) -> Window:
    """Return strides, dilations and pads of a node; `auto_pad` is resolved against the spatial sizes of x."""
    spatial = len(kernel)
    strides = tuple(ctx.attr("strides", (1,) * spatial))
    dilations = tuple(ctx.attr("dilations", (1,) * spatial))
    pads = tuple(ctx.attr("pads", (0,) * (2 * spatial)))
    if len(strides) != spatial or len(dilations) != spatial or len(pads) != 2 * spatial or ctx.rank(x) != spatial + 2:
        raise ctx.fail(
            f"strides {strides}, dilations {dilations}, pads {pads}, kernel {tuple(kernel)} "
            f"do not fit an operand of type {x.type}"
        )
    auto_pad = ctx.attr("auto_pad", "NOTSET")
    if auto_pad in ("NOTSET", ""):
        return Window(tuple(kernel), strides, pads[:spatial], pads[spatial:], dilations)
    if auto_pad == "VALID":
        return Window(tuple(kernel), strides, (0,) * spatial, (0,) * spatial, dilations)
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise ctx.fail(f"auto_pad is {auto_pad!r}, none of NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    before, after = [], []
    for i in range(spatial):
        total = same_padding(ctx.dim(x, 2 + i), strides[i], (kernel[i] - 1) * dilations[i] + 1)
        small, large = total // 2, total - total // 2
        before.append(small if auto_pad == "SAME_UPPER" else large)
        after.append(large if auto_pad == "SAME_UPPER" else small)
    return Window(tuple(kernel), strides, tuple(before), tuple(after), dilations)


def same_padding(size: Size, stride: int, extent: int) -> Size:
    """Return the padding for windows of `extent` to start at every multiple of the stride. Never negative where
    neighbouring windows overlap or touch, so no comparison of open sizes is needed then.
    """
    missing = (ceil_div(size, stride) - 1) * stride + extent - size
    if is_open(missing) and extent >= stride:
        return missing
    return 0 if extent == 1 else largest(missing, 0)


def conv_window(ctx: Context, x: Value, w: Value) -> Window:
    kernel = ctx.shape(w)[2:]
    stated, groups = tuple(ctx.attr("kernel_shape", kernel)), ctx.attr("group", 1)
    if len(stated) != len(kernel) or not all(map(may_be_equal, stated, kernel)):
        raise ctx.fail(f"kernel_shape {stated} differs from the weight's {tuple(kernel)}")
    if groups > 0 and not may_be_equal(ctx.dim(w, 0) % groups, 0):
        raise ctx.fail(f"the {ctx.dim(w, 0)} filters are no multiple of {groups} groups; correct the model")
    window = window_of(ctx, x, kernel)
    return Window(window.kernel, window.strides, window.before, window.after, window.dilations, groups)


def with_bias(ctx: Context, y: Value, bias: Value | None) -> Value:
    if bias is None:
        return y
    return ctx.add(y, ctx.reshape(bias, (*ctx.shape(bias), *(1,) * (ctx.rank(y) - 2))))


def convert_conv(ctx: Context) -> Value:
    x, w = ctx.input(0), ctx.input(1)
    return with_bias(ctx, conv_window(ctx, x, w).conv(ctx, x, w), ctx.optional(2))


def convert_conv_transpose(ctx: Context) -> Value:
    x, w = ctx.input(0), ctx.input(1)
    kernel = ctx.shape(w)[2:]
    spatial = len(kernel)
    strides = tuple(ctx.attr("strides", (1,) * spatial))
    dilations = tuple(ctx.attr("dilations", (1,) * spatial))
    extra = list(ctx.attr("output_padding", (0,) * spatial))
    before, after = _transpose_pads(ctx, kernel, strides, dilations, extra)
    y = conv_transpose(ctx, x, w, Window(kernel, strides, before, after, dilations, ctx.attr("group", 1)), extra)
    return with_bias(ctx, y, ctx.optional(2))


def conv_transpose(b: Builder, x: Value, w: Value, window: Window, output_padding: Sequence[int]) -> Value:
    x = b.cut(x, 1, w.tensor_type.shape[0])
    return b.emit("conv_transpose", x, w, **window.attrs(), groups=window.groups, output_padding=tuple(output_padding))


def _transpose_pads(
    ctx: Context, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], extra: list[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the pads as stated, or as `output_shape` or `auto_pad` imply; negative padding is added to `extra`."""
    spatial = len(kernel)
    auto_pad = ctx.attr("auto_pad", "NOTSET")
    wanted = ctx.attr("output_shape", None)
    if wanted is None and auto_pad in ("NOTSET", ""):
        pads = ctx.attr("pads", (0,) * (2 * spatial))
        return tuple(pads[:spatial]), tuple(pads[spatial:])
    if wanted is None and auto_pad == "VALID":
        return (0,) * spatial, (0,) * spatial
    x = ctx.input(0)
    sizes = wanted[-spatial:] if wanted is not None else [ctx.dim(x, 2 + i) * strides[i] for i in range(spatial)]
    before, after = [], []
    for i in range(spatial):
        full = strides[i] * (ctx.dim(x, 2 + i) - 1) + extra[i] + (kernel[i] - 1) * dilations[i] + 1
        total = full - sizes[i]
        if total < 0:
            extra[i] -= total
            total = 0
        small, large = total // 2, total - total // 2
        before.append(small if auto_pad == "SAME_UPPER" else large)
        after.append(large if auto_pad == "SAME_UPPER" else small)
    return tuple(before), tuple(after)


def convert_col2im(ctx: Context) -> Value:
    """Convert Col2Im, overlapping blocks summed into an image, to a transposed convolution with one-hot filters."""
    x = ctx.input(0)
    image, kernel = ctx.ints_of(1), ctx.ints_of(2)
    window = window_of_attributes(ctx, kernel)
    steps = tuple(
        (image[i] + window.before[i] + window.after[i] - window.extent(i)) // window.strides[i] + 1
        for i in range(len(image))
    )
    batch, rows, columns = ctx.shape(x)
    taps = prod(kernel)
    if rows % taps or columns != prod(steps):
        raise ctx.fail(f"an operand of type {x.type} does not hold blocks {kernel} at {steps} positions")
    channels = rows // taps
    one_hot = np.eye(taps, dtype=to_numpy_dtype(dtype_of(x))).reshape(taps, 1, *kernel)
    w = ctx.constant(np.tile(one_hot, (channels, *(1,) * (len(kernel) + 1))))
    covered = [
        (steps[i] - 1) * window.strides[i] + window.extent(i) - window.before[i] - window.after[i]
        for i in range(len(image))
    ]
    missing = [image[i] - covered[i] for i in range(len(image))]
    grouped = Window(window.kernel, window.strides, window.before, window.after, window.dilations, channels)
    return conv_transpose(ctx, ctx.reshape(x, (batch, rows, *steps)), w, grouped, missing)


def window_of_attributes(ctx: Context, kernel: Sequence[int]) -> Window:
    """Return the window of a node without automatic padding."""
    spatial = len(kernel)
    pads = tuple(ctx.attr("pads", (0,) * (2 * spatial)))
    strides, dilations = (tuple(ctx.attr(name, (1,) * spatial)) for name in ("strides", "dilations"))
    return Window(tuple(kernel), strides, pads[:spatial], pads[spatial:], dilations)


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "Conv": [(1, convert_conv)],
    "ConvTranspose": [(1, convert_conv_transpose)],
    "Col2Im": [(18, convert_col2im)],
}
