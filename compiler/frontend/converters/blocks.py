"""Constant blockwise-quantised weights, which passes keep or dequantise."""

import numpy as np

from tilestitch.compiler.ir import TensorType, Value
from tilestitch.compiler.ir.blocks import SCALES, BlockFormat
from tilestitch.compiler.ir.types import from_numpy_dtype

from ..builder import Builder

DEQUANTISE = "host.dequantise_blocks"
Blocks = tuple[BlockFormat, np.ndarray]
"""Weights as `block_matmul` reads them."""


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
