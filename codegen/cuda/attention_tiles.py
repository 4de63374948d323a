"""Tiles of attention on the tensor cores: how many rows and keys, and how the operands lie in shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilestitch.codegen.compute.dtypes import Expr, storage_bits
from tilestitch.compiler.ir.types import HALVES

from .attention_operands import Attended
from .product import Operand

WARP = 32
STEP = 16
"""Rows of one instruction, and a multiple of its steps of the reduction."""

COLUMNS = 8
"""Columns of one instruction."""

STAGES = 2
MOST_DOUBLED, DOUBLED_KEYS = 64, 32
"""Width of operands for which the registers of a thread hold two fragments of rows, and keys of such a tile."""


def _padded(extent: int) -> int:
    return -(-extent // STEP) * STEP


@dataclass(frozen=True)
class MmaTile:
    """Query rows by `bn` keys, for operands of the given widths (multiples of 16).

    Each of the `warps` has so many `fragments` of sixteen rows: with two, keys and values are fetched from shared
    memory half as often.
    """

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

    def stage_bytes(self, pieces: tuple[Piece, Piece, Piece]) -> int:
        """Shared memory: queries, the stages of keys and values; or results on their way out."""
        query, key, value = (16 * piece.elements // piece.chunk for piece in pieces)
        return max(query + STAGES * (key + value), 4 * self.bm * self.result_stride)


@dataclass(frozen=True)
class Piece:
    """A piece [rows, depth] of an operand in shared memory: lines along k or along rows, as the operand lies.

    Elements of 16 bytes behind each line move neighbouring lines apart: `ldmatrix` meets no bank conflict.
    """

    operand: Operand
    rows: int
    depth: int

    @property
    def chunk(self) -> int:
        """Elements of 16 bytes."""
        return 128 // storage_bits(self.operand.dtype)

    @property
    def along_k(self) -> bool:
        return self.operand.contiguous == "k"

    @property
    def line(self) -> int:
        return self.depth if self.along_k else self.rows

    @property
    def lines(self) -> int:
        return self.rows if self.along_k else self.depth

    @property
    def elements(self) -> int:
        return self.lines * (self.line + self.chunk)

    @property
    def copied(self) -> bool:
        """Whether asynchronous copies bring it."""
        return self.operand.vector() == self.chunk

    def at(self, row: Expr, k: Expr) -> Expr:
        across, along = (row, k) if self.along_k else (k, row)
        return across * (self.line + self.chunk) + along


def pieces_of(what: Attended, tile: MmaTile) -> tuple[Piece, Piece, Piece]:
    """Queries, keys and values of a tile; rows of values are the columns of the result."""
    return (
        Piece(what.query, tile.bm, tile.width),
        Piece(what.key, tile.bn, tile.width),
        Piece(what.value, tile.columns, tile.bn),
    )


def tile_of(what: Attended) -> MmaTile | None:
    """The best tile that fits the target's shared memory; None if none does."""
    limit = what.group.target.device.shared_bytes_per_block
    return next((t for t in _tiles(what) if t.stage_bytes(pieces_of(what, t)) <= limit), None)


def _tiles(what: Attended) -> Iterator[MmaTile]:
    """Tiles to try, the best first.

    Each warp has a tensor core of its own: fewer warps in more blocks would only read keys and values more often.
    """
    width, columns = _padded(what.width), _padded(what.columns)
    line_bytes = max(width, columns) * storage_bits(what.query.dtype) // 8
    bn = min(64 if line_bytes <= 256 else 32 if line_bytes <= 512 else 16, _padded(what.keys))
    double = MmaTile(4, min(bn, DOUBLED_KEYS), width, columns, 2)
    narrow = what.query.dtype in HALVES and max(width, columns) <= MOST_DOUBLED
    if narrow and what.batch * (what.rows // double.bm) >= what.group.target.device.sm_count:
        yield double
    for warps in (1, 2, 4) if what.rows <= STEP else (2, 4, 1) if what.rows <= 2 * STEP else (4, 2, 1):
        yield MmaTile(warps, bn, width, columns)
