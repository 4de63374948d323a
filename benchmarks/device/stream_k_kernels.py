"""The kernels of `stream_k.py`, in Triton: with TRITON_INTERPRET=1 they run on a CPU."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _sum(x, w, width, columns, row, column, begin, end, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
         tokens):  # fmt: skip
    """The steps [begin, end) of a tile, in float32."""
    r = row * ROWS + tl.arange(0, ROWS)
    c = column * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, DEPTH)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(begin, end):
        at = step * DEPTH + k
        left = tl.load(x + r[:, None] * width + at[None, :], (r[:, None] < tokens) & (at[None, :] < width), 0.0)
        right = tl.load(w + at[:, None] * columns + c[None, :], (at[:, None] < width) & (c[None, :] < columns), 0.0)
        total = tl.dot(left, right, total)
    return total


@triton.jit
def _store(y, total, tokens, columns, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GELU: tl.constexpr):
    r = row * ROWS + tl.arange(0, ROWS)
    c = column * COLUMNS + tl.arange(0, COLUMNS)
    if GELU:
        bent = 1.5957691216057308 * (total + 0.044715 * total * total * total)  # 2 sqrt(2 / pi)
        total = total * tl.sigmoid(bent)
    kept = (r[:, None] < tokens) & (c[None, :] < columns)
    tl.store(y + r[:, None] * columns + c[None, :], total.to(y.dtype.element_ty), kept)


@triton.jit
def _place(tile, row_tiles, column_tiles, TOGETHER: tl.constexpr):
    """Row and column of a tile: a few rows together, column after column, so that operands stay in the L2 cache."""
    in_group = TOGETHER * column_tiles
    first = tile // in_group * TOGETHER
    rows = min(row_tiles - first, TOGETHER)
    return first + tile % in_group % rows, tile % in_group // rows


@triton.jit
def gemm(x, w, y, partial, flags, tokens, width, columns, streamed, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
          DEPTH: tl.constexpr, GELU: tl.constexpr, TOGETHER: tl.constexpr):  # fmt: skip
    """A program's share of the steps from its end to its beginning: first the tile that a later program ends, of which
    it leaves what it has; last the tile that an earlier one began, to which that one's sums are added. So what is
    waited for was computed first, and by a program before this one.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    row_tiles, column_tiles = tl.cdiv(tokens, ROWS), tl.cdiv(columns, COLUMNS)
    steps = tl.cdiv(width, DEPTH)
    inside = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    work = streamed.to(tl.int64) * steps
    sharing = min(work, programs)  # a program without a step would leave nothing for those that wait for it
    first = (min(program, sharing) * work // max(sharing, 1)).to(tl.int32)
    last = (min(program + 1, sharing) * work // max(sharing, 1)).to(tl.int32)
    while last > first:
        tile = (last - 1) // steps
        begin, end = max(first - tile * steps, 0), last - tile * steps
        row, column = _place(tile, row_tiles, column_tiles, TOGETHER)
        total = _sum(x, w, width, columns, row, column, begin, end, ROWS, COLUMNS, DEPTH, tokens)
        if end < steps:
            tl.store(partial + program * ROWS * COLUMNS + inside, total)
            tl.debug_barrier()
            tl.atomic_xchg(flags + program, 1, sem="release")
        else:
            other, reached = program - 1, tile * steps + begin
            while reached > tile * steps:
                while tl.atomic_cas(flags + other, 1, 0, sem="acquire") != 1:
                    pass
                total += tl.load(partial + other * ROWS * COLUMNS + inside, cache_modifier=".cg")
                reached = (other * work // sharing).to(tl.int32)
                other -= 1
            _store(y, total, tokens, columns, row, column, ROWS, COLUMNS, GELU)
        last = tile * steps + begin
    for tile in range(streamed + program, row_tiles * column_tiles, programs):
        row, column = _place(tile, row_tiles, column_tiles, TOGETHER)
        total = _sum(x, w, width, columns, row, column, 0, steps, ROWS, COLUMNS, DEPTH, tokens)
        _store(y, total, tokens, columns, row, column, ROWS, COLUMNS, GELU)


@triton.jit
def gate(both, y, hidden, count, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    row, column = at // hidden, at % hidden
    gate = tl.load(both + row * 2 * hidden + column, at < count, 0.0).to(tl.float32)
    up = tl.load(both + row * 2 * hidden + hidden + column, at < count, 0.0).to(tl.float32)
    tl.store(y + at, (gate * tl.sigmoid(gate) * up).to(y.dtype.element_ty), at < count)
