"""Fourier transforms, window functions and the mel matrix, with run-time lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .common import Attrs, HostError, HostFn, narrow, normalized_axis, numpy_dtype, optional_operand, scalar_int, widen


def _as_complex(x: np.ndarray) -> np.ndarray:
    """Return a signal [.., 1] (real) or [.., 2] (real, imaginary) as complex128 [..]."""
    if x.ndim < 1 or x.shape[-1] not in (1, 2):
        raise HostError(f"the last dimension of a signal is 1 or 2, not as in {x.shape}")
    wide = widen(x).astype(np.float64)
    return wide[..., 0] + (1j * wide[..., 1] if x.shape[-1] == 2 else 0)


def _as_pairs(z: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return narrow(np.stack([z.real, z.imag], -1), dtype)


def _dft(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Compute DFT. Operands: signal [.., 1 or 2], length (absent: that of the axis), axis (absent: -2)."""
    x, length, axis_operand = inputs[0], optional_operand(inputs, 1), optional_operand(inputs, 2)
    axis = normalized_axis(-2 if axis_operand is None else scalar_int(axis_operand), x.ndim)
    if axis == x.ndim - 1:
        raise HostError("a DFT does not run along the last axis, which holds real and imaginary parts")
    inverse, onesided = bool(attrs.get("inverse", 0)), bool(attrs.get("onesided", 0))
    default = 2 * (x.shape[axis] - 1) if inverse and onesided else x.shape[axis]
    count = default if length is None else scalar_int(length)
    if count < 1:
        raise HostError(f"a DFT of length {count}")
    signal = _as_complex(x)
    if inverse and onesided:
        return [narrow(np.fft.irfft(signal, count, axis)[..., None], x.dtype)]
    if inverse:
        return [_as_pairs(np.fft.ifft(signal, count, axis), x.dtype)]
    result = np.fft.fft(signal, count, axis)
    return [_as_pairs(np.take(result, np.arange(count // 2 + 1), axis) if onesided else result, x.dtype)]


def _stft(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Compute STFT. Operands: signal [N, samples, 1 or 2], frame step, window, frame length. Output [N, frames, bins,
    2].
    """
    x, step = inputs[0], scalar_int(inputs[1])
    window, length = optional_operand(inputs, 2), optional_operand(inputs, 3)
    if length is not None:
        size = scalar_int(length)
    else:
        size = x.shape[1] if window is None else len(window)
    if step < 1 or size < 1 or (window is not None and len(window) != size):
        raise HostError(
            f"an STFT with step {step}, frames of {size} and a window of {size if window is None else len(window)}"
        )
    signal = _as_complex(x)
    frames = max(0, (x.shape[1] - size) // step + 1)
    positions = np.arange(frames)[:, None] * step + np.arange(size)
    weighted = signal[:, positions] * (1.0 if window is None else widen(window).astype(np.float64))
    result = np.fft.fft(weighted, axis=-1)
    return [_as_pairs(result[..., : size // 2 + 1] if attrs.get("onesided", 1) else result, x.dtype)]


def _window(function: Callable[[np.ndarray], np.ndarray]) -> HostFn:
    """Return an operator that computes a window of the size in its operand; `function` takes the phase, 0 to 2 pi over
    the period.
    """

    def run(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
        size = scalar_int(inputs[0])
        period = size if attrs.get("periodic", 1) else size - 1
        phase = 2 * np.pi * np.arange(size) / max(period, 1)
        return [function(phase).astype(numpy_dtype(attrs.get("dtype", "float32")))]

    return run


def _mel_weight_matrix(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    """Compute MelWeightMatrix. Operands: mel bins, DFT length, sample rate, lower and upper edge in hertz. Output
    [length / 2 + 1, mel bins].
    """
    bins, length, rate = (scalar_int(v) for v in inputs[:3])
    low, high = (2595 * np.log10(1 + float(np.asarray(v).reshape(())) / 700) for v in inputs[3:5])
    mels = low + np.arange(bins + 2) * (high - low) / (bins + 2)
    points = ((length + 1) * 700 * (10 ** (mels / 2595) - 1) // rate).astype(np.int64)
    result = np.zeros((length // 2 + 1, bins))
    for i in range(bins):
        first, centre, last = points[i : i + 3]
        if centre == first:
            result[centre, i] = 1
        else:
            result[first : centre + 1, i] = np.arange(centre - first + 1) / (centre - first)
        if last > centre:
            result[centre:last, i] = np.arange(last - centre, 0, -1) / (last - centre)
    return [result.astype(numpy_dtype(attrs.get("dtype", "float32")))]


TABLE: Mapping[str, HostFn] = {
    "DFT": _dft, "STFT": _stft, "MelWeightMatrix": _mel_weight_matrix,
    "HannWindow": _window(lambda phase: 0.5 - 0.5 * np.cos(phase)),
    "HammingWindow": _window(lambda phase: 25 / 46 - 21 / 46 * np.cos(phase)),
    "BlackmanWindow": _window(lambda phase: 0.42 - 0.5 * np.cos(phase) + 0.08 * np.cos(2 * phase)),
}  # fmt: skip
