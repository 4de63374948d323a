"""Blockwise-quantised weights as `block_matmul` reads them: uint8 [columns, blocks, bytes of a block]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .types import storage_bytes

CODE_BITS: Mapping[str, int] = {"int4": 4, "int8": 8, "nf4": 4, "fp4": 4}
SCALES = ("float32", "float16", "bfloat16")
WORD_BITS = 32
"""Word size; the codes of a block must fill whole words."""


@dataclass(frozen=True)
class BlockFormat:
    """Blocks of `block` codes along a reduction of `depth`; w = (code - zero) * scale.

    codes: int4, int8, nf4 or fp4; scales: the dtype of a block's scale; zeros: whether a block has a zero point, which
    is a code too (of 4 bits in a byte of its own).
    """

    codes: str
    block: int
    scales: str
    zeros: bool
    depth: int

    @staticmethod
    def of(attrs: Mapping[str, Any]) -> BlockFormat:
        """Return the format in the attributes of a node."""
        return BlockFormat(attrs["codes"], attrs["block"], attrs["scales"], bool(attrs["zeros"]), attrs["depth"])

    @property
    def attrs(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def bits(self) -> int:
        return CODE_BITS[self.codes]

    @property
    def integers(self) -> bool:
        """Whether codes are integers, in two's complement."""
        return self.codes.startswith("int")

    @property
    def blocks(self) -> int:
        return -(-self.depth // self.block)

    @property
    def words(self) -> int:
        """Number of 32-bit words of codes in a block."""
        return self.block * self.bits // WORD_BITS

    @property
    def code_bytes(self) -> int:
        return self.block * self.bits // 8

    @property
    def scale_bytes(self) -> int:
        return storage_bytes(self.scales)

    @property
    def block_bytes(self) -> int:
        return self.code_bytes + self.scale_bytes + self.zeros

    @property
    def problem(self) -> str | None:
        """Why the format is invalid; None if it is valid."""
        if self.codes not in CODE_BITS or self.scales not in SCALES:
            return f"codes {self.codes} with scales {self.scales} are none of {', '.join(CODE_BITS)} with a float"
        if self.block < 1 or self.depth < 1 or self.block * self.bits % WORD_BITS:
            return f"blocks of {self.block} codes of {self.bits} bits are no whole words of {WORD_BITS} bits"
        return None

    def encode(self, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None = None) -> np.ndarray:
        """Return uint8 [columns, blocks, bytes] from codes uint8 [columns, depth], one a byte, and from scales and zero
        points [columns, blocks]. The last block is padded with zeros beyond the depth.
        """
        columns = len(codes)
        padded = np.zeros((columns, self.blocks * self.block), np.uint8)
        padded[:, : self.depth] = codes
        blocks = padded.reshape(columns, self.blocks, self.block)
        if self.bits == 4:
            blocks = (blocks[..., 0::2] & 15) | (blocks[..., 1::2] << np.uint8(4))
        return self.joined(blocks, scales, zeros)

    def joined(self, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None = None) -> np.ndarray:
        """Return uint8 [columns, blocks, bytes] from the bytes of codes [columns, blocks, code_bytes], and from scales
        and zero points [columns, blocks].
        """
        made = np.empty((len(codes), self.blocks, self.block_bytes), np.uint8)
        ends = self.code_bytes, self.code_bytes + self.scale_bytes
        made[..., : ends[0]] = codes
        made[..., ends[0] : ends[1]] = np.ascontiguousarray(scales)[..., None].view(np.uint8)
        if zeros is not None:
            made[..., -1] = zeros.astype(np.uint8)
        return made
