"""Fourier transforms as matmuls by constant cosine and sine matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.claims import may_be_natural
from tilestitch.compiler.ir.types import to_numpy_dtype

from ..builder import dtype_of
from ..context import Context, Versioned
from ..errors import NotStatic

MAX_LENGTH = 4096
"""Longest transform as a matmul: longer ones would need matrices of hundreds of megabytes, and run on the host as an
FFT.
"""


@dataclass(frozen=True)
class Transform:
    """Matrices [rows, bins] that map real and imaginary parts of a signal to those of its spectrum."""

    cosine: Value
    sine: Value

    def apply(self, ctx: Context, real: Value, imaginary: Value | None) -> tuple[Value, Value]:
        """Transform the last axis of operands [..., rows]."""
        re, im = ctx.matmul(real, self.cosine), ctx.matmul(real, self.sine)
        if imaginary is None:
            return re, im
        return ctx.sub(re, ctx.matmul(imaginary, self.sine)), ctx.add(im, ctx.matmul(imaginary, self.cosine))


def transform(ctx: Context, rows: int, length: int, bins: int, dtype: str, *, inverse: bool = False) -> Transform:
    if length > MAX_LENGTH:
        raise NotStatic(f"a transform of length {length} is not done as a matmul (limit {MAX_LENGTH})")
    # The phase is reduced modulo the length before it is scaled: exact for long signals.
    phase = (np.arange(rows)[:, None] * np.arange(bins)[None]) % max(length, 1) * (2 * np.pi / max(length, 1))
    scale = 1.0 / length if inverse else 1.0
    sign = 1.0 if inverse else -1.0
    kind = to_numpy_dtype(dtype)
    return Transform(
        ctx.constant((np.cos(phase) * scale).astype(kind)), ctx.constant((np.sin(phase) * (sign * scale)).astype(kind))
    )


def _parts(ctx: Context, x: Value) -> tuple[Value, Value | None]:
    """Return real and imaginary part of [..., 1] or [..., 2]."""
    last = ctx.rank(x) - 1
    count = ctx.dim(x, last)
    if count not in (1, 2):
        raise ctx.fail(f"the last dimension of {x.type} must be 1 (real) or 2 (complex)")
    parts = [ctx.squeeze(ctx.slice_axis(x, last, i, i + 1), (last,)) for i in range(count)]
    return parts[0], parts[1] if count == 2 else None


def _join(ctx: Context, real: Value, imaginary: Value) -> Value:
    rank = ctx.rank(real)
    return ctx.concat([ctx.expand_dims(v, (rank,)) for v in (real, imaginary)], rank)


def convert_dft(ctx: Context) -> Value:
    x = ctx.input(0)
    rank = ctx.rank(x)
    if ctx.opset >= 20:
        axis = int(ctx.constant_of(2).reshape(())) if ctx.optional(2) is not None else -2
    else:
        axis = ctx.attr("axis", 1)
    axis = ctx.axis(x, axis)
    if axis == rank - 1:
        raise ctx.fail("the last dimension holds real and imaginary parts and cannot be transformed")
    inverse, onesided = bool(ctx.attr("inverse", 0)), bool(ctx.attr("onesided", 0))
    real_result = inverse and onesided
    size = ctx.dim(x, axis)
    length = (
        int(ctx.constant_of(1).reshape(())) if ctx.optional(1) is not None else 2 * (size - 1) if real_result else size
    )
    real, imaginary = (None if p is None else ctx.swap_axes(p, axis, rank - 2) for p in _parts(ctx, x))
    assert real is not None
    if real_result:
        y = _inverse_real(ctx, real, imaginary, length)
        return ctx.expand_dims(ctx.swap_axes(y, axis, rank - 2), (rank - 1,))
    rows = min(size, length)
    real = ctx.slice_axis(real, rank - 2, 0, rows)
    imaginary = None if imaginary is None else ctx.slice_axis(imaginary, rank - 2, 0, rows)
    bins = length // 2 + 1 if onesided else length
    matrices = transform(ctx, rows, length, bins, dtype_of(x), inverse=inverse)
    parts = _apply_any_rank(ctx, matrices, real, imaginary)
    return _join(ctx, *(ctx.swap_axes(p, axis, rank - 2) for p in parts))


def _apply_any_rank(ctx: Context, matrices: Transform, real: Value, imaginary: Value | None) -> tuple[Value, Value]:
    """Transform vectors ([rows]), too."""
    if ctx.rank(real) > 1:
        return matrices.apply(ctx, real, imaginary)
    row = ctx.expand_dims(real, (0,))
    parts = matrices.apply(ctx, row, None if imaginary is None else ctx.expand_dims(imaginary, (0,)))
    return ctx.squeeze(parts[0], (0,)), ctx.squeeze(parts[1], (0,))


def _inverse_real(ctx: Context, real: Value, imaginary: Value | None, length: int) -> Value:
    """Return a real signal from one half of its spectrum: the other half is the conjugate, so inner bins count
    twice.
    """
    last = ctx.rank(real) - 1
    bins = min(ctx.dim(real, last), length // 2 + 1)
    twice = np.full(bins, 2.0)
    twice[0] = 1.0
    if length % 2 == 0 and bins == length // 2 + 1:
        twice[-1] = 1.0
    weights = ctx.constant(twice, dtype_of(real))
    matrices = transform(ctx, bins, length, length, dtype_of(real), inverse=True)
    real = ctx.mul(ctx.slice_axis(real, last, 0, bins), weights)
    imaginary = None if imaginary is None else ctx.mul(ctx.slice_axis(imaginary, last, 0, bins), weights)
    return _apply_any_rank(ctx, matrices, real, imaginary)[0]


def convert_stft(ctx: Context) -> Value:
    """Convert STFT: windowed frames of the signal, each transformed; a constant window is folded into the matrices."""
    signal, window = ctx.input(0), ctx.optional(2)
    step = int(ctx.constant_of(1).reshape(()))
    if ctx.optional(3) is not None:
        length = int(ctx.constant_of(3).reshape(()))
    elif window is not None:
        length = ctx.dim(window, 0)
    else:
        raise ctx.fail("neither window nor frame_length is given")
    size = ctx.dim(signal, 1)
    if step <= 0 or not may_be_natural(size - length):
        raise ctx.fail(f"a signal of {size} samples holds no frame of {length} with step {step}")
    frames = (size - length) // step + 1
    bins = length // 2 + 1 if ctx.attr("onesided", 1) else length
    matrices = transform(ctx, length, length, bins, dtype_of(signal))
    if window is not None:
        column = ctx.reshape(window, (length, 1))
        matrices = Transform(ctx.mul(matrices.cosine, column), ctx.mul(matrices.sine, column))
    starts = ctx.expand_dims(ctx.mul(ctx.iota(frames), step), (1,))
    places = ctx.add(starts, ctx.expand_dims(ctx.iota(length), (0,)))
    x = signal if ctx.rank(signal) == 3 else ctx.expand_dims(signal, (2,))
    real, imaginary = (None if p is None else ctx.gather(p, places, 1) for p in _parts(ctx, x))
    assert real is not None
    return _join(ctx, *matrices.apply(ctx, real, imaginary))


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "DFT": [(17, convert_dft)],
    "STFT": [(17, convert_stft)],
}
