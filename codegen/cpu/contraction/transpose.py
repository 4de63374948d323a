"""Transposition of matrix tiles in registers."""

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, named
from tilestitch.codegen.cpu.contraction import microkernel as mk


def transpose_tile(
    lanes: int, dtype: str, read: Callable[[int, Expr], Expr], write: Callable[[int, Expr], None]
) -> None:
    """Call `write(i, vector)` for the transposed tile: element j of vector i is `read(j, i)`, where i is contiguous in
    memory.

    `lanes` is a power of two.
    """
    rows = T.alloc_buffer((lanes * lanes,), dtype, scope="local")
    for row in range(lanes):
        mk.vector(lanes, lambda lane, row=row: T.buffer_store(rows, read(row, lane), [row * lanes + lane]))  # type: ignore[misc]
    for i, vector in enumerate(transposed([named(rows[T.ramp(row * lanes, 1, lanes)]) for row in range(lanes)])):
        write(i, vector)


def transposed(rows: Sequence[Expr]) -> list[Expr]:
    """Return the transposed vectors, bound: element j of vector i is element i of vector j of `rows`.

    log2(lanes) steps swap ever smaller blocks off the diagonal, each by two shuffles of two vectors: 64 shuffles for 16
    x 16 elements, where scattering them takes five times as long.
    """
    vectors, lanes = list(rows), len(rows)
    block = lanes // 2
    while block:
        low = [j + lanes - block if j & block else j for j in range(lanes)]
        high = [j + lanes if j & block else j + block for j in range(lanes)]
        for i in (i for i in range(lanes) if not i & block):
            pair = [vectors[i], vectors[i + block]]
            vectors[i], vectors[i + block] = (named(tirx.Shuffle(pair, places)) for places in (low, high))
        block //= 2
    return vectors


def interleaved(
    rows: int, lanes: int, dtype: str, read: Callable[[int, Expr], Expr], write: Callable[[int, Expr], None]
) -> None:
    """Call `write(at, vector)` for the `rows` x `lanes` elements `read(row, lane)`, interleaved so that those of one
    lane are adjacent, as vectors of `lanes` elements from number `at` on.

    Each vector takes one two-vector shuffle fewer than there are rows.
    """
    if lanes == 1:
        for row in range(rows):
            write(row, read(row, 0))
        return
    tile = T.alloc_buffer((rows * lanes,), dtype, scope="local")
    for row in range(rows):
        mk.vector(lanes, lambda lane, row=row: T.buffer_store(tile, read(row, lane), [row * lanes + lane]))  # type: ignore[misc]
    vectors = [named(tile[T.ramp(row * lanes, 1, lanes)]) for row in range(rows)]
    for number in range(rows):
        places = [divmod(number * lanes + i, rows) for i in range(lanes)]
        vector = vectors[0]
        for row in range(1, rows):
            kept = [place if row == 1 else i for i, (place, _) in enumerate(places)]
            chosen = [lanes + places[i][0] if places[i][1] == row else kept[i] for i in range(lanes)]
            vector = named(tirx.Shuffle([vector, vectors[row]], chosen))
        write(number * lanes, vector)
