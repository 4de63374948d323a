"""Register tiles: the innermost piece of every contraction.

A register tile holds ``rows x vectors`` accumulator vectors. One reduction step loads ``vectors`` vectors of the right
operand, broadcasts one scalar of the left operand per row, and issues ``rows * vectors`` fused multiply-adds. All loops
over rows and vectors are unrolled, so that LLVM keeps the accumulators in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.script.ir_builder import tirx as T

from tilestitch.compiler.ir.sizes import Size, is_open
from tilestitch.compiler.ir.types import compute_dtype
from tilestitch.passes.plan.cpu.tiling import OpenSplit, RegisterTile, Split

Expr = Any
"""A TIR expression or a Python number. TVM builds expressions by overloaded operators, which mypy cannot follow."""


def serial(first: Expr, last: Expr) -> Any:
    """A loop over [first, last), empty when last <= first.

    Loop variables are 64 bits wide: LLVM then sees that the addresses of a tile's rows lie a constant apart, without
    a proof that 32 bits do not overflow.
    """
    return T.serial(_index(first), _index(last))


def unroll(first: int, last: int) -> Any:
    """A loop that is written out."""
    return T.unroll(_index(first), _index(last))


def vectorized(first: int, last: int) -> Any:
    """A loop whose iterations are the lanes of vectors."""
    return T.vectorized(_index(first), _index(last))


def _index(value: Expr) -> Expr:
    return (
        T.int64(value) if isinstance(value, int) else value + T.int64(0) if is_open(value) else T.cast(value, "int64")
    )


@dataclass(frozen=True)
class Piece:
    """What is left of an open extent after its whole parts, or some of it: the part's number, and where it begins."""

    number: Expr
    start: Expr


def number_of(part: Expr) -> Expr:
    """A part's place among the others."""
    return part.number if isinstance(part, Piece) else part


def start_of(split: Split, part: Expr) -> Expr:
    """First element of a part; of the one after the last, the end of the extent."""
    if isinstance(part, Piece):
        return part.start
    if isinstance(split, OpenSplit):
        return T.min(part * split.limit, split.extent)
    if split.larger_parts == 0:
        return part * split.small
    return part * split.small + T.min(part, split.larger_parts)


def _for_each_open_part(split: OpenSplit, first: Expr, last: Expr, body: Callable[[Expr, int], None]) -> None:
    """Whole parts in a loop; what is left as pieces, of which there are as many as it has bits."""
    whole = T.bind(_index(split.whole_parts))
    with serial(first, T.min(last, whole)) as part:
        body(part, split.limit)
    with T.If(last > whole), T.Then():
        end = T.bind(whole * split.limit)
        rest = T.bind(_index(split.extent) - end)
        for size in split.pieces:
            with T.If(tirx.NE(rest // size % 2, T.int64(0))), T.Then():
                body(Piece(whole, T.bind(end + rest // (2 * size) * (2 * size))), size)


def allocate(tile: RegisterTile, dtype: str) -> Any:
    """Accumulators of a tile, uninitialised."""
    return T.alloc_buffer((tile.rows, tile.columns), dtype, scope="local")


def for_each_vector(tile: RegisterTile, emit: Callable[[Expr, Expr], None]) -> None:
    """Emits ``emit(row, column)`` for every accumulator; ``column`` runs over a vectorised loop."""
    with unroll(0, tile.rows) as row, unroll(0, tile.vectors) as vector, vectorized(0, tile.lanes) as lane:
        emit(row, vector * tile.lanes + lane)


def fill(acc: Any, tile: RegisterTile, value: Expr) -> None:
    """Sets every accumulator to ``value``."""
    for_each_vector(tile, lambda row, column: T.buffer_store(acc, value, [row, column]))


def multiply_add(
    acc: Any,
    tile: RegisterTile,
    left: Callable[[Expr], Expr],
    right: Callable[[Expr], Expr],
    rows: Sequence[int] | None = None,
) -> None:
    """One reduction step: ``acc[row, column] += left(row) * right(column)``, for all rows or the given ones."""

    def step(row: Expr, column: Expr) -> None:
        T.buffer_store(acc, acc[row, column] + left(row) * right(column), [row, column])

    if rows is None or len(rows) == tile.rows:
        for_each_vector(tile, step)
        return
    for row in rows:
        with unroll(0, tile.vectors) as vector, vectorized(0, tile.lanes) as lane:
            step(row, vector * tile.lanes + lane)


def chunks(width: int, lanes: int) -> list[tuple[int, int]]:
    """``width`` cut into (start, size) runs: whole vectors first, then ever smaller powers of two."""
    pieces = []
    start, size = 0, lanes
    while start < width:
        while size > width - start:
            size //= 2
        pieces.append((start, size))
        start += size
    return pieces


def vector(size: int, emit: Callable[[Expr], None]) -> None:
    """Emits ``emit(lane)`` for ``size`` lanes at once; TVM knows no vectors of one lane."""
    if size == 1:
        emit(0)
        return
    with vectorized(0, size) as lane:
        emit(lane)


def is_number(value: Expr) -> bool:
    """Whether it is known while code is generated."""
    return isinstance(value, int)


def for_each_column(width: Expr, lanes: int, emit: Callable[[Expr], None]) -> None:
    """Emits ``emit(column)`` for ``column`` in ``[0, width)``, vectorised over as many lanes as fit.

    What is left of a width that is known at run time only goes one by one.
    """
    if not is_number(width):
        whole = T.bind(_index(width) // lanes)
        with serial(0, whole) as index:
            vector(lanes, lambda lane: emit(index * lanes + lane))
        with serial(whole * lanes, width) as column:
            emit(column)
        return
    whole = width // lanes
    if whole == 1:
        vector(lanes, emit)
    elif whole > 1:
        with serial(0, whole) as index:
            vector(lanes, lambda lane: emit(index * lanes + lane))
    for start, size in chunks(width - whole * lanes, lanes):
        vector(size, lambda lane, first=whole * lanes + start: emit(first + lane))  # type: ignore[misc]


def finish_row(acc: Any, row: Expr, width: int, lanes: int, emit: Callable[[Expr, Expr], None]) -> None:
    """Emits ``emit(column, value)`` for the first ``width`` accumulators of a row, straight from the registers."""
    for start, size in chunks(width, lanes):
        vector(size, lambda lane, first=start: emit(first + lane, acc[row, first + lane]))  # type: ignore[misc]


def finish(acc: Any, rows: int, width: int, lanes: int, emit: Callable[[Expr, Expr, Expr], None]) -> None:
    """Emits ``emit(row, column, value)`` for the valid accumulators straight from the registers, fully unrolled."""
    with unroll(0, rows) as row:
        finish_row(acc, row, width, lanes, lambda column, value: emit(row, column, value))


def scratch_buffer(scratch: Expr, byte_offset: Size, shape: tuple[Size, ...], dtype: str, name: str) -> Any:
    """A buffer that lies ``byte_offset`` bytes into the thread's workspace (a multiple of 64 bytes)."""
    pointer = tirx.Var(name, PointerType(PrimType(dtype)))
    T.bind(tirx.call_intrin(pointer.ty, "tirx.handle_add_byte_offset", scratch, byte_offset), var=pointer)
    return T.decl_buffer(shape, dtype, data=pointer)


def prefetch(address: Expr) -> None:
    """Asks for the cache line at ``address`` to be brought into the second-level cache. Any address is allowed."""
    read, into_l2, data = 0, 2, 1
    T.evaluate(T.call_llvm_intrin("void", "llvm.prefetch.p0", address, read, into_l2, data))


def widen(value: Expr, dtype: str, acc_dtype: str) -> Expr:
    """``value``, an element of ``dtype`` in its compute dtype, in the dtype of the sum."""
    return value if compute_dtype(dtype) == acc_dtype else T.cast(value, acc_dtype)


def constant(value: float, dtype: str) -> Expr:
    """A scalar constant."""
    return tirx.const(value, dtype)


def for_each_part(split: Split, first: Expr, last: Expr, body: Callable[[Expr, int], None]) -> None:
    """Emits ``body(part, size)`` for the parts in ``[first, last)``, once per size that occurs."""
    if isinstance(split, OpenSplit):
        _for_each_open_part(split, first, last, body)
        return
    if split.larger_parts == 0:
        with serial(first, last) as part:
            body(part, split.small)
        return
    with serial(first, T.min(last, split.larger_parts)) as part:
        body(part, split.small + 1)
    with serial(T.max(first, split.larger_parts), last) as part:
        body(part, split.small)
