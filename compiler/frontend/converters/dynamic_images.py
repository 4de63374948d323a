"""Run-time forms of operators on images and signals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilestitch.compiler.frontend.builder import dtype_of
from tilestitch.compiler.frontend.context import Context, Versioned
from tilestitch.compiler.ir import UNKNOWN, TensorType, Type, Value

from .host_types import Dim, constant_ints, length_of, present, resized, tensor_step, unknown_tensor, with_unknown
from .open_resize import BEFORE_11
from .sampling import roi_align_on_host

_RESIZE_ATTRIBUTES = (
    "antialias", "axes", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "extrapolation_value",
    "keep_aspect_ratio_policy", "mode", "nearest_mode",
)  # fmt: skip


def resize(ctx: Context) -> Sequence[Value]:
    x = ctx.input(0)
    values = (x, ctx.optional(1), ctx.optional(2), ctx.optional(3))
    attrs = present(ctx, *_RESIZE_ATTRIBUTES)
    axes = ctx.attr("axes", None)
    type_ = with_unknown(x, axes)
    scales = values[2]
    if scales is not None and scales.data is not None and scales.data.size:
        places = range(scales.data.size) if axes is None else axes
        type_ = resized(
            x,
            dict(zip(places, scales.data.tolist(), strict=True)),
            lambda n, scale: int(np.float32(n) * np.float32(scale)),
        )
    return tensor_step(ctx, "Resize", values, [type_], **attrs)


def resize_10(ctx: Context) -> Sequence[Value]:
    """Convert Resize of opset 10, and Upsample: only scales; positions are divided by them; nearest rounds as before
    opset 11.
    """
    x = ctx.input(0)
    scales = ctx.constant(ctx.attr("scales"), "float32") if ctx.has_attr("scales") else ctx.input(1)
    mode = ctx.attr("mode", "nearest")
    attrs = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": BEFORE_11}
    return tensor_step(ctx, "Resize", (x, None, scales), [with_unknown(x, None)], **attrs)


def affine_grid(ctx: Context) -> Sequence[Value]:
    theta, size = ctx.input(0), ctx.input(1)
    spatial = _spatial(length_of(size), constant_ints(size))
    type_: Type = unknown_tensor(dtype_of(theta), None)
    if spatial is not None and isinstance(theta.type, TensorType):
        type_ = theta.type.with_shape((theta.type.shape[0], *spatial, len(spatial)))
    return tensor_step(ctx, "AffineGrid", (theta, size), [type_], **present(ctx, "align_corners"))


def _spatial(count: int | None, sizes: tuple[int, ...] | None) -> tuple[Dim, ...] | None:
    """Return the spatial ones of the sizes (N, C, spatial..)."""
    if sizes is not None:
        return sizes[2:]
    return None if count is None else (UNKNOWN,) * (count - 2)


def col2im(ctx: Context) -> Sequence[Value]:
    x, image, block = ctx.input(0), ctx.input(1), ctx.input(2)
    count, sizes = length_of(image), constant_ints(image)
    type_: Type = unknown_tensor(dtype_of(x), None if count is None else 2 + count)
    if isinstance(type_, TensorType) and isinstance(x.type, TensorType):
        spatial = (UNKNOWN,) * (type_.rank - 2) if sizes is None else sizes
        type_ = type_.with_shape((x.type.shape[0], UNKNOWN, *spatial))
    return tensor_step(ctx, "Col2Im", (x, image, block), [type_], **present(ctx, "dilations", "pads", "strides"))


def max_unpool(ctx: Context) -> Sequence[Value]:
    x, indices, wanted = ctx.input(0), ctx.input(1), ctx.optional(2)
    attrs = present(ctx, "kernel_shape", "strides", "pads")
    return tensor_step(ctx, "MaxUnpool", (x, indices, wanted), [with_unknown(x, None)], **attrs)


# -- signals -------------------------------------------------------------------------------------------------------


def dft(ctx: Context) -> Sequence[Value]:
    return _dft(ctx, ctx.optional(2))


def dft_17(ctx: Context) -> Sequence[Value]:
    """Convert DFT before opset 20: the axis is an attribute, by default the first one after the batch."""
    return _dft(ctx, ctx.constant(ctx.attr("axis", 1), "int64"))


def _dft(ctx: Context, axis: Value | None) -> Sequence[Value]:
    x, length = ctx.input(0), ctx.optional(1)
    real = bool(ctx.attr("inverse", 0)) and bool(ctx.attr("onesided", 0))
    axes = (-2,) if axis is None else constant_ints(axis)
    type_ = with_unknown(x, axes)
    if isinstance(type_, TensorType):
        type_ = type_.with_shape((*type_.shape[:-1], 1 if real else 2))
    return tensor_step(ctx, "DFT", (x, length, axis), [type_], **present(ctx, "inverse", "onesided"))


def stft(ctx: Context) -> Sequence[Value]:
    x = ctx.input(0)
    batch: Dim = x.type.shape[0] if isinstance(x.type, TensorType) else UNKNOWN
    values = (x, ctx.input(1), ctx.optional(2), ctx.optional(3))
    type_ = TensorType(dtype_of(x), (batch, UNKNOWN, UNKNOWN, 2))
    return tensor_step(ctx, "STFT", values, [type_], **present(ctx, "onesided"))


def _window(name: str) -> Callable[[Context], Sequence[Value]]:
    def convert(ctx: Context) -> Sequence[Value]:
        dtype = ctx.dtype_attr("output_datatype", "float32")
        attrs = present(ctx, "periodic")
        return tensor_step(ctx, name, (ctx.input(0),), [TensorType(dtype, (UNKNOWN,))], dtype=dtype, **attrs)

    return convert


def mel_weight_matrix(ctx: Context) -> Sequence[Value]:
    dtype = ctx.dtype_attr("output_datatype", "float32")
    values = [ctx.input(i) for i in range(5)]
    return tensor_step(ctx, "MelWeightMatrix", values, [TensorType(dtype, (UNKNOWN, UNKNOWN))], dtype=dtype)


def roi_align(ctx: Context) -> Sequence[Value]:
    return [roi_align_on_host(ctx)]


DYNAMIC: Mapping[str, Sequence[Versioned]] = {
    "Resize": [(10, resize_10), (11, resize)],
    "Upsample": [(7, resize_10)],
    "RoiAlign": [(10, roi_align)],
    "AffineGrid": [(20, affine_grid)],
    "Col2Im": [(18, col2im)],
    "MaxUnpool": [(9, max_unpool)],
    "DFT": [(17, dft_17), (20, dft)],
    "STFT": [(17, stft)],
    "HannWindow": [(17, _window("HannWindow"))],
    "HammingWindow": [(17, _window("HammingWindow"))],
    "BlackmanWindow": [(17, _window("BlackmanWindow"))],
    "MelWeightMatrix": [(17, mel_weight_matrix)],
}
