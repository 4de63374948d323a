"""Register tiles: the innermost piece of every contraction.

A register tile holds ``rows x vectors`` accumulator vectors. One reduction step loads ``vectors`` vectors of the right
operand, broadcasts one scalar of the left operand per row, and issues ``rows * vectors`` fused multiply-adds. All loops
over rows and vectors are unrolled, so that LLVM keeps the accumulators in registers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.script.ir_builder import tirx as T

from tilestitch.compiler.ir.sizes import Size, is_open
from tilestitch.passes.plan.cpu.tiling import LOW, EvenSplit, OpenSplit, RegisterTile, Split

Expr = Any
"""A TIR expression or a Python number. TVM builds expressions by overloaded operators, which mypy cannot follow."""


def serial(first: Expr, last: Expr) -> Any:
    """Return a loop over [first, last), empty when last <= first.

    Loop variables are 64 bits wide, so that LLVM sees constant strides between a tile's rows without proving that 32
    bits do not overflow.
    """
    return T.serial(as_index(first), as_index(last))


def unroll(first: int, last: int) -> Any:
    """Return an unrolled loop."""
    return T.unroll(as_index(first), as_index(last))


def vectorized(first: int, last: int) -> Any:
    """Return a loop whose iterations are the lanes of vectors."""
    return T.vectorized(as_index(first), as_index(last))


def as_index(value: Expr) -> Expr:
    """Return a number, a size or an expression as one of 64 bits."""
    return (
        T.int64(value) if isinstance(value, int) else value + T.int64(0) if is_open(value) else T.cast(value, "int64")
    )


@dataclass(frozen=True)
class Piece:
    """A part of an open extent, or of the remainder after its whole parts: its number, and its start."""

    number: Expr
    start: Expr


def number_of(part: Expr) -> Expr:
    """Return the number of a part."""
    return part.number if isinstance(part, Piece) else part


def start_of(split: Split, part: Expr) -> Expr:
    """Return the first element of a part; for the end of the last one, the extent."""
    if isinstance(part, Piece):
        return part.start
    if isinstance(split, OpenSplit):
        return T.min(part * split.limit, split.extent)
    if isinstance(split, EvenSplit):
        return part if split.limit == 1 else part * split.small + T.min(part, split.larger_parts)
    if split.larger_parts == 0:
        return part * split.small
    return part * split.small + T.min(part, split.larger_parts)


def _for_each_open_part(split: OpenSplit, first: Expr, last: Expr, body: Callable[[Expr, int], None]) -> None:
    """Emit whole parts in a loop, and the remainder as pieces, with code for every possible size."""
    whole = T.bind(as_index(split.whole_parts))
    with serial(first, T.min(last, whole)) as part:
        body(part, split.limit)
    with T.If(last > whole), T.Then():
        end = T.bind(whole * split.limit)
        rest = T.bind(as_index(split.extent) - end)
        for size in split.large_pieces:
            with T.If(tirx.NE(rest // size % 2, T.int64(0))), T.Then():
                body(Piece(whole, T.bind(end + rest // (2 * size) * (2 * size))), size)
        if split.large_pieces:
            low = T.bind(rest % (2 * LOW))
            end, rest = T.bind(end + rest - low), low
        _for_each_low_piece(split, whole, end, rest, body)


def _for_each_low_piece(split: OpenSplit, number: Expr, start: Expr, rest: Expr, body: Callable[..., None]) -> None:
    """Emit one piece, or two, the larger one first."""
    pieces = T.bind((rest + (LOW - 1)) // LOW)
    small = T.bind(rest // T.max(pieces, T.int64(1)))
    larger = T.bind(rest - small * pieces)
    for size in split.low_pieces:
        is_small = tirx.EQ(small, T.int64(size))
        with T.If(T.Or(is_small, tirx.EQ(small, T.int64(size - 1)) & (larger > 0))), T.Then():
            before = T.bind(T.Select(is_small, larger, T.int64(0)))
            with serial(before, T.bind(T.Select(is_small, pieces, larger))) as piece:
                body(Piece(number, T.bind(start + piece * size + before)), size)


def _for_each_even_part(split: EvenSplit, first: Expr, last: Expr, body: Callable[[Expr, int], None]) -> None:
    """Emit code for every possible part size, of which at most two occur: the larger parts come first."""
    if split.limit == 1:
        with serial(first, last) as part:
            body(part, 1)
        return
    small, larger = T.bind(as_index(split.small)), T.bind(as_index(split.larger_parts))
    first, last = as_index(first), as_index(last)
    for size, _ in split.sizes():
        with T.If(T.Or(tirx.EQ(small, T.int64(size)), tirx.EQ(small, T.int64(size - 1)))), T.Then():
            rest = T.bind(tirx.EQ(small, T.int64(size)))
            begin, end = T.Select(rest, T.max(first, larger), first), T.Select(rest, last, T.min(last, larger))
            before = T.bind(T.Select(rest, larger, T.int64(0)))
            with serial(T.bind(begin), T.bind(end)) as part:
                body(Piece(part, T.bind(part * size + before)), size)


def allocate(tile: RegisterTile, dtype: str) -> Any:
    """Return the accumulators of a tile, uninitialised."""
    return T.alloc_buffer((tile.rows, tile.columns), dtype, scope="local")


def for_each_vector(tile: RegisterTile, emit: Callable[[Expr, Expr], None]) -> None:
    """Emit ``emit(row, column)`` for every accumulator; ``column`` runs over a vectorised loop."""
    with unroll(0, tile.rows) as row, unroll(0, tile.vectors) as vector, vectorized(0, tile.lanes) as lane:
        emit(row, vector * tile.lanes + lane)


def fill(acc: Any, tile: RegisterTile, value: Expr) -> None:
    """Set every accumulator to ``value``."""
    for_each_vector(tile, lambda row, column: T.buffer_store(acc, value, [row, column]))


BUSY = 8
"""Multiply-adds in flight that keep both units of a core busy: each takes four cycles."""


def chains(rows: Split, tile: RegisterTile) -> int:
    """Return how many accumulators per result take turns in a low tile, as occurs where the number of rows is open."""
    return max(1, BUSY // (tile.rows * tile.vectors)) if isinstance(rows, OpenSplit) else 1


def multiply_add(
    acc: Any,
    tile: RegisterTile,
    left: Callable[[Expr], Expr],
    right: Callable[[Expr], Expr],
    rows: Sequence[int] | None = None,
) -> None:
    """Emit one reduction step: ``acc[row, column] += left(row) * right(column)``, for all rows or the given ones."""

    def step(row: Expr, column: Expr) -> None:
        T.buffer_store(acc, acc[row, column] + left(row) * right(column), [row, column])

    if rows is None or len(rows) == tile.rows:
        for_each_vector(tile, step)
        return
    for row in rows:
        with unroll(0, tile.vectors) as vector, vectorized(0, tile.lanes) as lane:
            step(row, vector * tile.lanes + lane)


def chunks(width: int, lanes: int) -> list[tuple[int, int]]:
    """Return ``width`` cut into (start, size) runs: whole vectors first, then ever smaller powers of two."""
    pieces = []
    start, size = 0, lanes
    while start < width:
        while size > width - start:
            size //= 2
        pieces.append((start, size))
        start += size
    return pieces


def vector(size: int, emit: Callable[[Expr], None]) -> None:
    """Emit ``emit(lane)`` for ``size`` lanes at once; TVM knows no vectors of one lane."""
    if size == 1:
        emit(0)
        return
    with vectorized(0, size) as lane:
        emit(lane)


def run_of(first: Expr, size: int) -> Expr:
    """Return the positions of `size` neighbours; TVM knows no vectors of one lane."""
    return first if size == 1 else T.ramp(first, T.int64(1), size)


def is_number(value: Expr) -> bool:
    """Return whether it is known at code generation."""
    return isinstance(value, int)


def for_each_column(width: Expr, lanes: int, emit: Callable[[Expr], None]) -> None:
    """Emit ``emit(column)`` for ``column`` in ``[0, width)``, vectorised over as many lanes as fit.

    The remainder of a width known only at run time is processed one by one.
    """
    if not is_number(width):
        whole = T.bind(as_index(width) // lanes)
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


def for_each_run(width: Expr, lanes: int, emit: Callable[[Expr, int], None]) -> None:
    """Emit `emit(first, size)` for runs that cover `width`: whole vectors in a loop, then smaller ones."""
    if is_open(width):
        for_each_open_run(width, lanes, emit)
        return
    whole = width // lanes
    if whole:
        with serial(0, whole) as index:
            emit(T.bind(index * lanes), lanes)
    for start, size in chunks(width - whole * lanes, lanes):
        emit(whole * lanes + start, size)


def for_each_open_run(width: Expr, lanes: int, emit: Callable[[Expr, int], None]) -> None:
    """Emit ``emit(first, size)`` for runs that cover ``width``: whole vectors in a loop, then powers of two."""
    width = T.bind(T.max(as_index(width), T.int64(0)))
    whole = T.bind(width // lanes)
    rest = T.bind(width % lanes)
    with serial(0, whole) as number:
        emit(T.bind(number * lanes), lanes)
    size = lanes // 2
    while size:
        with T.If(tirx.NE(rest // size % 2, T.int64(0))), T.Then():
            emit(T.bind(whole * lanes + rest // (2 * size) * (2 * size)), size)
        size //= 2


def finish_row(acc: Any, row: Expr, width: int, lanes: int, emit: Callable[[Expr, Expr], None]) -> None:
    """Emit ``emit(column, value)`` for the first ``width`` accumulators of a row, straight from the registers."""
    for start, size in chunks(width, lanes):
        vector(size, lambda lane, first=start: emit(first + lane, acc[row, first + lane]))  # type: ignore[misc]


def finish(acc: Any, rows: int, width: int, lanes: int, emit: Callable[[Expr, Expr, Expr], None]) -> None:
    """Emit ``emit(row, column, value)`` for the valid accumulators straight from the registers, fully unrolled."""
    with unroll(0, rows) as row:
        finish_row(acc, row, width, lanes, lambda column, value: emit(row, column, value))


def scratch_buffer(scratch: Expr, byte_offset: Size, shape: tuple[Size, ...], dtype: str, name: str) -> Any:
    """Return a buffer that lies ``byte_offset`` bytes into the thread's workspace (a multiple of 64 bytes)."""
    pointer = tirx.Var(name, PointerType(PrimType(dtype)))
    T.bind(tirx.call_intrin(pointer.ty, "tirx.handle_add_byte_offset", scratch, byte_offset), var=pointer)
    return T.decl_buffer(shape, dtype, data=pointer)


def prefetch(address: Expr) -> None:
    """Prefetch the cache line at ``address`` to the second-level cache. Any address is allowed."""
    read, into_l2, data = 0, 2, 1
    T.evaluate(T.call_llvm_intrin("void", "llvm.prefetch.p0", address, read, into_l2, data))


def columns_of(tile: RegisterTile, vector: int) -> Expr:
    """Return the columns of a vector of a tile."""
    return T.ramp(T.int64(vector * tile.lanes), T.int64(1), tile.lanes)


def constant(value: float, dtype: str) -> Expr:
    """Return a scalar constant."""
    return tirx.const(value, dtype)


def for_each_part(split: Split, first: Expr, last: Expr, body: Callable[[Expr, int], None]) -> None:
    """Emit ``body(part, size)`` for the parts in ``[first, last)``, once per size that occurs."""
    if isinstance(split, OpenSplit):
        _for_each_open_part(split, first, last, body)
        return
    if isinstance(split, EvenSplit):
        _for_each_even_part(split, first, last, body)
        return
    if split.larger_parts == 0:
        with serial(first, last) as part:
            body(part, split.small)
        return
    with serial(first, T.min(last, split.larger_parts)) as part:
        body(part, split.small + 1)
    with serial(T.max(first, split.larger_parts), last) as part:
        body(part, split.small)
