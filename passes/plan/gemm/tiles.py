"""Tiles of the GEMM kernels on GPUs: the part of the result that a thread block computes at a time, and its threads."""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

LINE_BYTES = 128
"""Bytes of a swizzled line of shared memory."""
ROW_BOX = 64
"""Rows of a box loaded by the copy engine, where rows are contiguous in memory: a line of half floats."""
WARP = 32
WARPGROUP = 128
QUAD = 4
"""Rows and columns of a thread of `SimtTile` come in groups of this many."""
WGMMA_ROWS = 64
"""Rows of one wgmma."""
WGMMA_COLUMNS = 256
"""Most columns of one wgmma."""
MOST_WARPGROUPS = 2
"""Most warpgroups that take over registers released by the copying one: with more, they would wait for registers
forever.
"""
MOST_REGISTERS = 255
"""Most registers per thread."""
HOPPER_SHARED_BYTES = 227 * 1024
"""Most shared memory per block on Hopper."""
BARRIER_BYTES = 8
RESULT_BYTES = 4 * 8 * (64 + 8)
"""Shared memory through which a warp stores results: 8 rows of 64, padded against bank conflicts."""
FRAGMENT_ROWS, FRAGMENT_COLUMNS = 16, 8
"""Rows and columns of one mma.sync."""


@dataclass(frozen=True)
class GemvTile:
    """All rows (at most eight) by `bn` columns, `bk` steps of the reduction at a time in shared memory.

    along_k: the large operand is contiguous along k, so that a warp, or some lanes of it where k is short, takes some
    of its rows and shares their k; else eight lanes read neighbouring columns, and the lanes of a block share k.
    """

    template: ClassVar[str] = "gemv"
    bm: int
    bn: int
    bk: int
    along_k: bool
    threads: int = 256


@dataclass(frozen=True)
class OpenGemvTile(GemvTile):
    """A GEMV tile for an open number of rows, `bm` at a time: rows beyond the last are computed, but not stored. The
    large operand is the right one.
    """

    template: ClassVar[str] = "open_gemv"


@dataclass(frozen=True)
class SimtTile:
    """A tile bm x bn on the ordinary arithmetic units, `bk` steps of the reduction at a time.

    A thread of each slice computes tm x tn results over the slice's share of the bk steps.
    """

    template: ClassVar[str] = "simt"
    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    slices: int = 1
    ahead: ClassVar[int] = 1

    @property
    def slice_threads(self) -> int:
        return (self.bm // self.tm) * (self.bn // self.tn)

    @property
    def threads(self) -> int:
        return self.slices * self.slice_threads

    @property
    def gap(self) -> int:
        """Padding elements after every four k of an operand in shared memory. It minimises bank conflicts of a warp
        that writes quads along k, of 32 * 4 / bk rows: it takes every fourth k of a row at a time.
        """
        return max(QUAD, WARP * QUAD // self.bk)

    def place(self, extent: int, k: Any) -> Any:
        """Return the offset in shared memory of step k of an operand's tile with `extent` rows or columns."""
        return k * extent + k // QUAD * self.gap

    def piece(self, extent: int) -> int:
        """Return the elements of an operand's tile."""
        return int(self.place(extent, -(-self.bk // QUAD) * QUAD))

    @property
    def stage(self) -> int:
        """Elements of one stage of both operands."""
        return self.piece(self.bm) + self.piece(self.bn)

    @property
    def column_stride(self) -> int:
        """Elements from one column of results to the next, where they are stored column by column. A quarter-warp
        writes quads of as many columns as there are threads along them.
        """
        return self.bm + max(QUAD, WARP * self.tn // self.bn)

    @property
    def column_round(self) -> int:
        """Elements of one round of a slice's results, where they are stored column by column."""
        return self.bn // self.tn * self.column_stride

    @property
    def shared_elements(self) -> int:
        """Elements of shared memory: two stages, or the rows of one round of every slice's results."""
        return max(2 * self.stage, self.slices * self.round)

    @property
    def result_stride(self) -> int:
        """Elements from one row of results to the next: padded so that a quarter-warp, which writes quads of several
        rows if a row has few threads, has no bank conflict.
        """
        across = QUAD * self.bn // self.tn
        return self.bn + (across if across < WARP else 0)

    @property
    def round(self) -> int:
        """Elements of one round of a slice's results."""
        return self.bm // self.tm * self.result_stride

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory, with the usual sums of four bytes."""
        return 4 * self.shared_elements


@dataclass(frozen=True)
class MmaTile:
    """A tile bm x bn by mma.sync, `bk` steps of the reduction a stage; wm x wn warps share it.

    itemsize: bytes of an element.
    """

    template: ClassVar[str] = "mma"
    bm: int
    bn: int
    bk: int
    wm: int
    wn: int
    stages: int = 4
    itemsize: int = 2

    @property
    def threads(self) -> int:
        return WARP * self.wm * self.wn

    @property
    def ahead(self) -> int:
        """Steps that are loaded in advance."""
        return self.stages - 1

    @property
    def rows(self) -> int:
        """Fragments of 16 rows per warp."""
        return self.bm // self.wm // FRAGMENT_ROWS

    @property
    def columns(self) -> int:
        """Fragments of 8 columns per warp; an even number."""
        return self.bn // self.wn // FRAGMENT_COLUMNS

    @property
    def stage(self) -> int:
        """Elements of one stage of both operands."""
        return (self.bm + self.bn) * self.bk

    @property
    def result_stride(self) -> int:
        """Sums from one row to the next in results staged for the epilogue."""
        return self.bn + 8

    @property
    def turned_stride(self) -> int:
        """The same where results are stored column by column, within the same memory: neighbouring rows avoid bank
        conflicts.
        """
        return self.bn + 6

    @property
    def shared_bytes(self) -> int:
        return max(self.itemsize * self.stages * self.stage, 4 * FRAGMENT_ROWS * self.wm * self.result_stride)


@dataclass(frozen=True)
class WgmmaTile:
    """A tile bm x bn by wgmma, `bk` steps of the reduction a stage: 128 bytes. `sharing` warpgroups compute its rows.

    alternate: two such warpgroups, each with a tile of its own, alternate on the ring. cluster: blocks that share the
    tiles of b.
    """

    template: ClassVar[str] = "wgmma"
    bm: int
    bn: int
    sharing: int
    alternate: bool
    stages: int
    cluster: int = 1
    bk: int = 64

    @property
    def warpgroups(self) -> int:
        """Warpgroups that multiply."""
        return 2 if self.alternate else self.sharing

    @property
    def consumers(self) -> int:
        """Threads that multiply."""
        return WARPGROUP * self.warpgroups

    @property
    def moves_registers(self) -> bool:
        """Whether multiplying warpgroups take over registers from the copying ones."""
        return self.warpgroups > 1

    @property
    def threads(self) -> int:
        """Threads of a block: one warp copies, or a warpgroup where registers are moved between warpgroups."""
        return self.consumers + (WARPGROUP if self.moves_registers else WARP)

    @property
    def rows(self) -> int:
        """Rows of a warpgroup, in units of 64."""
        return self.bm // self.sharing // WGMMA_ROWS

    @property
    def piece_bytes(self) -> tuple[int, int]:
        """Bytes of a stage of each operand."""
        return self.bm * LINE_BYTES, self.bn * LINE_BYTES

    @property
    def stage_bytes(self) -> int:
        return sum(self.piece_bytes)

    @property
    def results_at(self) -> int:
        """Offset of the results staged for the epilogue, after the ring."""
        return self.stages * self.stage_bytes

    @property
    def barriers_at(self) -> int:
        return self.results_at + self.consumers // WARP * RESULT_BYTES

    @property
    def shared_bytes(self) -> int:
        return self.barriers_at + (2 * self.stages + (self.warpgroups if self.alternate else 0)) * BARRIER_BYTES

    @property
    def resident(self) -> int:
        """Blocks resident on an SM."""
        return min(HOPPER_SHARED_BYTES // (self.shared_bytes + 1024), 4 if self.warpgroups == 1 else 1) or 1

    @property
    def ahead(self) -> int:
        """Steps in flight."""
        return self.stages - 1

    def why_not(self) -> str | None:
        """Return why no kernel has this tile; None if one has."""
        if self.sharing > (1 if self.alternate else MOST_WARPGROUPS):
            return f"{self.sharing} warpgroups share a tile; at most {MOST_WARPGROUPS} multiply, of one tile or of two"
        if not self.sharing or not self.bm or self.bm % (WGMMA_ROWS * self.sharing):
            return f"{self.bm} rows are not shared by {self.sharing} warpgroups in multiples of {WGMMA_ROWS}"
        if not self.cluster or not self.bn or self.bn % (ROW_BOX * self.cluster):
            return f"{self.bn} columns are not shared by {self.cluster} blocks in multiples of {ROW_BOX}"
        if self.bn > WGMMA_COLUMNS or self.rows * self.bn // 2 > MOST_REGISTERS:
            held = f"{self.rows * self.bn // 2} sums of {self.bn} columns"
            return (
                f"a thread would hold {held}; there are {MOST_REGISTERS} registers and {WGMMA_COLUMNS} columns at most"
            )
        if self.stages < 2 or self.shared_bytes > HOPPER_SHARED_BYTES:
            return f"{self.stages} stages take {self.shared_bytes} bytes of shared memory, of {HOPPER_SHARED_BYTES}"
        return None


Tile: TypeAlias = GemvTile | OpenGemvTile | SimtTile | MmaTile | WgmmaTile
