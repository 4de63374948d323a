"""Transposition of matrix tiles in registers, and of operands that lie in another direction than loops run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, from_storage, named
from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.compiler.ir.accesses import Access
from tilestitch.compiler.ir.graph import Value
from tilestitch.compiler.ir.types import TensorType, storage_bytes


def transpose_tile(
    lanes: int, dtype: str, read: Callable[[int, Expr], Expr], write: Callable[[int, Expr], None]
) -> None:
    """Call `write(i, vector)` for the transposed tile: element j of vector i is `read(j, i)`, where i is contiguous in
    memory.

    `lanes` is a power of two.
    """
    for i, vector in enumerate(transposed(_vectors(lanes, lanes, dtype, read))):
        write(i, vector)


def _vectors(rows: int, lanes: int, dtype: str, read: Callable[[int, Expr], Expr]) -> list[Expr]:
    """Return vectors of the elements `read(row, lane)`."""
    tile = T.alloc_buffer((rows * lanes,), dtype, scope="local")
    for row in range(rows):
        mk.vector(lanes, lambda lane, row=row: T.buffer_store(tile, read(row, lane), [row * lanes + lane]))  # type: ignore[misc]
    return [named(tile[T.ramp(row * lanes, 1, lanes)]) for row in range(rows)]


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


def interleave(
    rows: int, lanes: int, dtype: str, read: Callable[[int, Expr], Expr], write: Callable[[int, Expr], None]
) -> None:
    """Call `write(at, vector)` for the `rows` x `lanes` elements `read(row, lane)`, interleaved, as vectors of `lanes`
    elements from number `at` on.
    """
    if lanes == 1:
        for row in range(rows):
            write(row, read(row, 0))
        return
    for number, vector in enumerate(interleaved(_vectors(rows, lanes, dtype, read), lanes)):
        write(number * lanes, vector)


def interleaved(rows: Sequence[Expr], lanes: int) -> list[Expr]:
    """Return vectors of as many `lanes` as the `rows` have: their elements interleaved, so that those of one lane are
    adjacent. An even number of rows is interleaved in two halves, so that 4 rows take 8 shuffles and 6 take 18.
    """
    count = len(rows)
    if count == 1:
        return [*rows]
    if count % 2 == 0:
        pairs = zip(interleaved(rows[0::2], lanes), interleaved(rows[1::2], lanes))
        ends = range(lanes // 2), range(lanes // 2, lanes)
        return [_shuffled(pair, [i + side for i in end for side in (0, lanes)]) for pair in pairs for end in ends]
    places = [i % count * lanes + i // count for i in range(count * lanes)]
    return [_shuffled(rows, places[start : start + lanes]) for start in range(0, count * lanes, lanes)]


def separated(vectors: Sequence[Expr], lanes: int) -> list[Expr]:
    """Return the rows of which `interleaved` makes these vectors."""
    count = len(vectors)
    if count == 1:
        return [*vectors]
    if count % 2:
        return [_shuffled(vectors, [row + count * i for i in range(lanes)]) for row in range(count)]
    pairs = [*zip(vectors[0::2], vectors[1::2])]
    halves = ([_shuffled(pair, range(side, 2 * lanes, 2)) for pair in pairs] for side in (0, 1))
    return [row for both in zip(*(separated(half, lanes) for half in halves)) for row in both]


def _shuffled(vectors: Sequence[Expr], places: Sequence[int]) -> Expr:
    return named(tirx.Shuffle([*vectors], [*places]))


@dataclass(frozen=True)
class TurnedOperands:
    """Operands of which vectors are read as they lie, and their elements exchanged in registers. `operands`: the
    accesses, and the types and buffers of their values.
    """

    evaluator: Evaluator
    operands: Sequence[tuple[Access, TensorType, Any]]
    index_dtype: str

    def separated(self, index: Sequence[Expr], rows: int, lanes: int) -> Mapping[Value, Any]:
        """Return buffers with a vector of each of some rows, from this index of the loops on, which lie in turn."""
        found = {}
        for access, _, buffer in self.operands:
            start, _ = self._address(access, index)
            vectors = [named(buffer[T.ramp(start + part * lanes, 1, lanes)]) for part in range(rows)]
            found[access.value] = _stored(separated(vectors, lanes), lanes, buffer.dtype)
        return found

    def transposed(self, index: Sequence[Expr], size: int) -> Mapping[Value, Any]:
        """Return buffers with square blocks from this index of the loops on, whose columns are contiguous."""
        found = {}
        for access, _, buffer in self.operands:
            start, step = self._address(access, index)
            columns = [named(buffer[T.ramp(start + column * step, 1, size)]) for column in range(size)]
            # x86 interleaves bytes by single instructions.
            rows = interleaved(columns, size) if storage_bytes(buffer.dtype) == 1 else transposed(columns)
            found[access.value] = _stored(rows, size, buffer.dtype)
        return found

    def _address(self, access: Access, index: Sequence[Expr]) -> tuple[Expr, Expr]:
        """Return where the element at this index of the loops lies, and the distance to the next one in a row."""
        assert access.strides is not None
        strides = [integer(stride, self.index_dtype) for stride in access.strides]
        start = integer(access.offset, self.index_dtype)
        return start + sum(stride * i for stride, i in zip(strides, index, strict=True)), strides[-1]

    @contextmanager
    def read_from(self, tiles: Mapping[Value, Any], place: Expr) -> Iterator[None]:
        """Let the operands be read at a place of these buffers, whatever the index."""
        sources = self.evaluator.sources
        kept = {value: sources[value] for value in tiles}
        for access, type_, _ in self.operands:
            element = from_storage(tiles[access.value][place], type_.dtype)
            sources[access.value] = partial(_whatever_index, element)
        yield
        sources.update(kept)


def _stored(rows: Sequence[Expr], lanes: int, dtype: str) -> Any:
    """Return a buffer of vectors."""
    tile = T.alloc_buffer((len(rows) * lanes,), dtype, scope="local")
    for row, vector in enumerate(rows):
        T.buffer_store(tile, vector, [T.ramp(row * lanes, 1, lanes)])
    return tile


def _whatever_index(element: Expr, index: Sequence[Expr]) -> Expr:
    return element
