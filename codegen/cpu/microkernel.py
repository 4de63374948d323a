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

from tilestitch.codegen.compute.dtypes import compute_dtype
from tilestitch.codegen.cpu.isa import Isa

Expr = Any
"""A TIR expression or a Python number. TVM builds expressions by overloaded operators, which mypy cannot follow."""

MAX_VECTORS = 8
MAX_ROWS = 14
"""More rows than this are more memory streams than the first-level cache follows well (measured)."""


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
    return T.int64(value) if isinstance(value, int) else T.cast(value, "int64")


@dataclass(frozen=True)
class RegisterTile:
    """``rows`` x (``vectors`` * ``lanes``) accumulators."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


@dataclass(frozen=True)
class Split:
    """``extent`` cut into ``parts`` runs whose sizes differ by at most one; the larger ones come first."""

    extent: int
    parts: int

    @property
    def small(self) -> int:
        return self.extent // self.parts

    @property
    def larger_parts(self) -> int:
        return self.extent % self.parts

    @property
    def largest(self) -> int:
        return self.small + (self.larger_parts > 0)

    def sizes(self) -> list[tuple[int, int]]:
        """(size, how many parts have it), for the sizes that occur."""
        both = [(self.small + 1, self.larger_parts), (self.small, self.parts - self.larger_parts)]
        return [(size, count) for size, count in both if count]

    def all_sizes(self) -> list[int]:
        """Sizes of the parts in order."""
        return [self.small + (part < self.larger_parts) for part in range(self.parts)]

    def start(self, part: Expr) -> Expr:
        """First element of a part."""
        if self.larger_parts == 0:
            return part * self.small
        return part * self.small + T.min(part, self.larger_parts)


def split_at_most(extent: int, limit: int) -> Split:
    """Cuts ``extent`` into as few nearly equal parts as possible, none above ``limit``."""
    return Split(extent, max(1, -(-extent // limit)))


def step_cycles(rows: int, vectors: int, isa: Isa) -> float:
    """Cycles of one reduction step of a register tile.

    The right operand streams from the second-level cache at about 48 bytes a cycle, partly hidden; the factor is
    measured on AVX-512.
    """
    multiply = rows * vectors / isa.fma_ports
    load = (rows + vectors) / isa.load_ports
    return max(multiply, load, float(isa.fma_latency)) + 0.25 + 0.45 * vectors * isa.vector_bytes / 64


def tile_limits(n: int, lanes: int, isa: Isa) -> list[tuple[int, int]]:
    """Candidate tiles for ``n`` columns: (vectors, most rows that fit into the registers).

    One register is kept for the broadcast scalar and ``vectors`` for the right operand.
    """
    most = max(1, min(MAX_VECTORS, -(-n // lanes)))
    limits = [(vectors, (isa.vector_registers - 1) // vectors - 1) for vectors in range(1, most + 1)]
    return [(vectors, min(MAX_ROWS, rows)) for vectors, rows in limits if rows >= 1]


def panel_cycles(rows: int, n: int, vectors: int, lanes: int, isa: Isa) -> float:
    """Cycles of one reduction step of ``rows`` rows by all panels of ``n`` columns; the last may be partial."""
    full, tail = divmod(n, vectors * lanes)
    narrow = step_cycles(rows, -(-tail // lanes), isa) if tail else 0.0
    return full * step_cycles(rows, vectors, isa) + narrow


def choose_tile(m: int, n: int, lanes: int, isa: Isa) -> tuple[RegisterTile, Split]:
    """The register tile with the fewest estimated cycles for an ``m`` x ``n`` result, and the split of the rows.

    Padding of the last panel and the uneven last rows are part of the estimate.
    """
    best: tuple[float, int, int] | None = None
    for vectors, limit in tile_limits(n, lanes, isa):
        for most in range(1, limit + 1):
            sizes = split_at_most(m, most).sizes()
            cycles = sum(count * panel_cycles(rows, n, vectors, lanes, isa) for rows, count in sizes)
            candidate = (cycles, vectors, most)
            if best is None or candidate < best:
                best = candidate
    assert best is not None
    rows = split_at_most(m, best[2])
    return RegisterTile(rows.largest, best[1], lanes), rows


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


def for_each_column(width: int, lanes: int, emit: Callable[[Expr], None]) -> None:
    """Emits ``emit(column)`` for ``column`` in ``[0, width)``, vectorised over as many lanes as fit."""
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


def scratch_buffer(scratch: Expr, byte_offset: int, shape: tuple[int, ...], dtype: str, name: str) -> Any:
    """A buffer that lies ``byte_offset`` bytes into the thread's workspace (a multiple of 64 bytes)."""
    pointer = tirx.Var(name, PointerType(PrimType(dtype)))
    T.bind(tirx.call_intrin(pointer.ty, "tirx.handle_add_byte_offset", scratch, byte_offset), var=pointer)
    return T.decl_buffer(shape, dtype, data=pointer)


def align(size_bytes: int) -> int:
    """Rounds up to a multiple of the 64 bytes of a cache line."""
    return -(-size_bytes // 64) * 64


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
    if split.larger_parts == 0:
        with serial(first, last) as part:
            body(part, split.small)
        return
    with serial(first, T.min(last, split.larger_parts)) as part:
        body(part, split.small + 1)
    with serial(T.max(first, split.larger_parts), last) as part:
        body(part, split.small)
