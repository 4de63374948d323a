"""The packed layout of blockwise-quantised weights on GPUs: codes, scales, zero points, tables.

Sixteen bytes are a *lump*: neighbouring codes of one column along the reduction, 32 of 4 bits or 16 of 8. Lumps of
neighbouring columns lie next to each other, [lumps, columns, 16], so that a warp reading one lump of 32 columns, and a
tile reading a step of the reduction, read contiguous memory. Scales [blocks, columns] follow, and zero points in bytes,
also [blocks, columns], and, for codes that index a table, that table: 16 float32.

Integer codes are stored unsigned: 8 or 128 is added to them, and to their zero points. In a word of eight codes of 4
bits, those with even numbers come first: `word >> 4 j & 0x000f000f` is codes 2 j and 2 j + 1. Of several matrices, of
which indices choose, each lies so, one after the other.
"""

from dataclasses import dataclass
from functools import cached_property
from math import gcd

import numpy as np

from tilestitch.compiler.ir.blocks import WORD_BITS, BlockFormat
from tilestitch.compiler.ir.types import HALVES
from tilestitch.runtime.host.blocks import CODES

LUMP_BYTES = 16
ALIGNMENT_BYTES = 16
UNIT = 8
"""Most neighbouring codes that tensor-core kernels read at a time; they share a scale."""
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Order of the codes in a word of 4-bit codes, from its low bits on."""


def why_not_codes(form: BlockFormat, dtype: str) -> str | None:
    """Return why GPU kernels cannot multiply floats of a dtype by blockwise-quantised weights; None if they can."""
    if dtype not in ("float32", *HALVES):
        return f"weights in blocks are multiplied by float32 and half floats, not {dtype}"
    if form.blocks > 1 and form.block % UNIT:
        return f"blocks of {form.block} codes are no multiple of {UNIT}"
    return None


@dataclass(frozen=True)
class Codes:
    """Weights [matrices, columns, depth]. to: the dtype in which they are multiplied."""

    form: BlockFormat
    columns: int
    to: str
    matrices: int = 1

    @property
    def lump(self) -> int:
        """Codes per lump."""
        return LUMP_BYTES * 8 // self.form.bits

    @property
    def word(self) -> int:
        """Codes per 32 bits."""
        return WORD_BITS // self.form.bits

    @property
    def lumps(self) -> int:
        """Lumps per column."""
        return -(-self.form.depth // self.lump)

    @property
    def group(self) -> int:
        """Neighbouring codes of a lump that are certain to share a scale."""
        return self.lump if self.form.blocks == 1 else gcd(self.form.block, self.lump)

    @property
    def blocks(self) -> int:
        """Blocks per column, up to the end of its last lump."""
        return 1 if self.form.blocks == 1 else -(-self.lumps * self.lump // self.form.block)

    @property
    def middle(self) -> int:
        """The zero point where none is given, and the bias of signed codes; 0 for codes that index a table."""
        return 1 << (self.form.bits - 1) if self.form.integers else 0

    @property
    def scales_at(self) -> int:
        """Byte offset of the scales, as are the following."""
        return self.lumps * self.columns * LUMP_BYTES

    @property
    def zeros_at(self) -> int:
        return _aligned(self.scales_at + self.blocks * self.columns * self.form.scale_bytes)

    @property
    def table_at(self) -> int:
        return _aligned(self.zeros_at + self.blocks * self.columns * self.form.zeros)

    @property
    def matrix_bytes(self) -> int:
        """Bytes of a matrix: whole lumps."""
        return self.table_at + (0 if self.form.integers else 4 * len(CODES[self.form.codes]))

    @cached_property
    def nbytes(self) -> int:
        return self.matrices * self.matrix_bytes

    def arrange(self, encoded: np.ndarray) -> np.ndarray:
        """Return uint8 [nbytes] of weights that are encoded as by `BlockFormat`."""
        result = np.zeros((self.matrices, self.matrix_bytes), np.uint8)
        for matrix, own in zip(encoded.reshape(self.matrices, -1, *encoded.shape[-2:]), result, strict=True):
            self._arrange(matrix, own)
        return result.reshape(-1)

    def _arrange(self, encoded: np.ndarray, result: np.ndarray) -> None:
        form = self.form
        raw = encoded[..., : form.code_bytes].reshape(self.columns, -1)
        codes = raw if form.bits == 8 else np.stack([raw & 15, raw >> 4], -1).reshape(self.columns, -1)
        padded = np.zeros((self.columns, self.lumps * self.lump), np.uint8)
        padded[:, : form.depth] = codes[:, : form.depth] ^ np.uint8(self.middle)
        result[: self.scales_at] = self._lumps(padded).reshape(-1)
        after = form.code_bytes + form.scale_bytes
        self._put(result, self.scales_at, encoded[..., form.code_bytes : after])
        if form.zeros:
            zeros = encoded[..., after : after + 1] ^ np.uint8(self.middle)
            self._put(result, self.zeros_at, zeros & np.uint8((1 << form.bits) - 1))
        if not form.integers:
            result[self.table_at :] = np.array(CODES[form.codes], np.float32).view(np.uint8)

    def _lumps(self, codes: np.ndarray) -> np.ndarray:
        """Return codes as uint8 [lumps, columns, 16]."""
        if self.form.bits == 4:
            words = codes.reshape(-1, self.word)[:, _ORDER]
            codes = (words[:, 0::2] | words[:, 1::2] << np.uint8(4)).reshape(self.columns, -1)
        return codes.reshape(self.columns, self.lumps, LUMP_BYTES).swapaxes(0, 1)

    def _put(self, result: np.ndarray, at: int, data: np.ndarray) -> None:
        """Store block parameters [columns, blocks, bytes] as [blocks, columns, bytes] from a byte on."""
        turned = np.ascontiguousarray(data.swapaxes(0, 1)).reshape(-1)
        result[at : at + turned.size] = turned


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
