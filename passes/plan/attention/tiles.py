"""Tiles of attention on GPUs: numbers of rows and keys."""

from dataclasses import dataclass
from typing import ClassVar

WARP = 32
STEP = 16
"""Rows of one instruction, and a multiple of its reduction depth."""

COLUMNS = 8
"""Columns of one instruction."""

STAGES = 2
ACROSS = 16
"""Threads that share rows on the ordinary units."""
QUAD = 4


def padded(extent: int) -> int:
    return -(-extent // STEP) * STEP


@dataclass(frozen=True)
class AttentionMmaTile:
    """Query rows by `bn` keys, for operands of the given widths (multiples of 16).

    Each of the `warps` has `fragments` fragments of sixteen rows: with two, keys and values are loaded from shared
    memory half as often.
    """

    template: ClassVar[str] = "attention_mma"
    warps: int
    bn: int
    width: int
    columns: int
    fragments: int = 1

    @property
    def bm(self) -> int:
        return STEP * self.warps * self.fragments

    @property
    def warp_rows(self) -> int:
        return STEP * self.fragments

    @property
    def threads(self) -> int:
        return WARP * self.warps

    @property
    def result_stride(self) -> int:
        return self.columns + COLUMNS


@dataclass(frozen=True)
class AttentionSimtTile:
    """`bm` query rows by `bn` keys (a multiple of 16), for operands of the given widths; `itemsize`: bytes of a sum.

    rows: per thread. More rows mean more multiply-adds per key and value loaded from shared memory, and fewer threads.
    """

    template: ClassVar[str] = "attention_simt"
    bm: int
    bn: int
    width: int
    columns: int
    itemsize: int
    rows: int = 4

    @property
    def threads(self) -> int:
        return self.bm // self.rows * ACROSS

    @property
    def line(self) -> int:
        """Elements from one query or key to the next: an odd number of 16-byte chunks, against bank conflicts."""
        return -(-self.width // 8) * 8 + QUAD

    @property
    def value_line(self) -> int:
        return -(-self.columns // ACROSS) * ACROSS

    @property
    def vector(self) -> int:
        """Neighbouring columns that a thread computes."""
        return next(v for v in (4, 2, 1) if self.value_line % (v * ACROSS) == 0) if self.itemsize == 4 else 1

    @property
    def weight_line(self) -> int:
        return self.bn + QUAD

    @property
    def offsets(self) -> tuple[int, int, int, int, int]:
        """Offsets of queries, keys, values and weights in shared memory, and its end, in elements."""
        sizes = (self.bm * self.line, self.bn * self.line, self.bn * self.value_line, self.bm * self.weight_line)
        ends = [0]
        for size in sizes:
            ends.append(ends[-1] + size)
        return ends[0], ends[1], ends[2], ends[3], max(ends[4], self.bm * self.value_line)

    @property
    def shared_bytes(self) -> int:
        return self.itemsize * self.offsets[-1]
