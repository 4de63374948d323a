"""How the operands of attention are laid out in shared memory for tensor cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.attention.tiles import STAGES, AttentionMmaTile
from tilestitch.passes.plan.gemm.gemm import OperandLayout

AnyOperand = TypeVar("AnyOperand", bound=OperandLayout)
Pieces: TypeAlias = "tuple[Piece[AnyOperand], Piece[AnyOperand], Piece[AnyOperand]]"


@dataclass(frozen=True)
class Piece(Generic[AnyOperand]):
    """A tile [rows, depth] of an operand in shared memory: lines along k or along rows, as in the operand.

    Each line is padded by 16 bytes, which avoids bank conflicts of `ldmatrix`.
    """

    operand: AnyOperand
    rows: int
    depth: int

    @property
    def chunk(self) -> int:
        """Elements in 16 bytes."""
        return 16 // storage_bytes(self.operand.dtype)

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
        """Whether it is loaded by asynchronous copies."""
        return self.operand.vector() == self.chunk

    def at(self, row: Any, k: Any) -> Any:
        across, along = (row, k) if self.along_k else (k, row)
        return across * (self.line + self.chunk) + along


def pieces_of(query: AnyOperand, key: AnyOperand, value: AnyOperand, tile: AttentionMmaTile) -> Pieces[AnyOperand]:
    """Return the pieces of a tile: queries, keys and values; the rows of values are the columns of the result."""
    return (
        Piece(query, tile.bm, tile.width),
        Piece(key, tile.bn, tile.width),
        Piece(value, tile.columns, tile.bn),
    )


def stage_bytes(tile: AttentionMmaTile, pieces: Pieces[AnyOperand]) -> int:
    """Return the shared memory needed: queries and the stages of keys and values, or results on their way out."""
    query, key, value = (16 * piece.elements // piece.chunk for piece in pieces)
    return max(query + STAGES * (key + value), 4 * tile.bm * tile.result_stride)
