"""Weights quantised in blocks along the reduction axis, each with a scale and perhaps a zero point: [columns, blocks,
bytes].

The bytes of a block are its codes, the low half of a byte first where they have 4 bits, then the scale, then the zero
point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .common import Attrs, HostFn, computing, narrow, numpy_dtype, widen

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""The NF4 codes: quantiles of the normal distribution (Dettmers et al., QLoRA, 2023)."""

FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
"""Magnitudes of bitsandbytes' 4-bit floats; the fourth bit is the sign."""

CODES: Mapping[str, tuple[float, ...]] = {
    "int4": (*range(8), *range(-8, 0)), "nf4": NF4, "fp4": (*FP4, *(-value for value in FP4))
}  # fmt: skip
"""Values of 4-bit codes by kind; codes of kind int8 are their own values."""

SCALES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of a scale by data type."""


def code_values(codes: np.ndarray, kind: str) -> np.ndarray:
    """Return the float32 values of codes, one a byte."""
    if kind == "int8":
        return codes.view(np.int8).astype(np.float32)
    return np.array(CODES[kind], np.float32)[codes & 15]


def scale_values(raw: np.ndarray, dtype: str) -> np.ndarray:
    """Return float32 [..] scales from their bytes [.., size]."""
    flat = np.ascontiguousarray(raw)
    if dtype == "bfloat16":
        return (flat.view(np.uint16)[..., 0].astype(np.uint32) << np.uint32(16)).view(np.float32)
    return flat.view(dtype)[..., 0].astype(np.float32)


def dequantised(w: np.ndarray, attrs: Attrs) -> np.ndarray:
    """Return the weights as float32 [columns, depth]."""
    kind, block, depth = attrs["codes"], attrs["block"], attrs["depth"]
    size = block if kind == "int8" else block // 2
    codes = w[..., :size]
    if kind != "int8":
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(*w.shape[:2], block)
    values = code_values(np.ascontiguousarray(codes), kind)
    after = size + SCALES[attrs["scales"]]
    if attrs["zeros"]:
        values = values - code_values(np.ascontiguousarray(w[..., after : after + 1]), kind)
    values = values * scale_values(w[..., size:after], attrs["scales"])[..., None]
    return values.reshape(len(w), w.shape[1] * block)[:, :depth]


def _dequantise_blocks(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    with computing():
        return [narrow(dequantised(inputs[0], attrs), numpy_dtype(attrs["to"]))]


def _block_matmul(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x, w, *chosen = inputs
    with computing():
        left = widen(x)
        if attrs.get("rounds"):
            left = rounded(left, attrs["block"])
        wanted = numpy_dtype(attrs["out_dtype"]) if attrs.get("out_dtype") else x.dtype
        if not chosen:
            return [narrow(np.matmul(left, dequantised(w, attrs).T), wanted)]
        made = [np.matmul(rows, dequantised(w[index], attrs).T) for rows, index in zip(left, chosen[0], strict=True)]
        return [narrow(np.stack(made), wanted) if made else np.zeros((0, x.shape[1], w.shape[1]), wanted)]


def rounded(x: np.ndarray, block: int) -> np.ndarray:
    """Return float32 [.., depth] rounded to 8 bits: each block of a row has a scale, its largest magnitude over 127."""
    depth = x.shape[-1]
    padded = np.zeros((*x.shape[:-1], -(-depth // block) * block), np.float32)
    padded[..., :depth] = x
    blocks = padded.reshape(*x.shape[:-1], -1, block)
    scales = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    inverse = np.where(scales >= np.finfo(np.float32).tiny, 1 / scales, np.float32(0))
    return (np.rint(blocks * inverse) * scales).reshape(padded.shape)[..., :depth]


TABLE: Mapping[str, HostFn] = {"block_matmul": _block_matmul, "dequantise_blocks": _dequantise_blocks}
