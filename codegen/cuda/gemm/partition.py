"""Partitioning of a GEMM into blocks: tiles of the result, and split-K parts of the reduction where tiles are too few.

The blocks of a split reduction store partial sums in temporary memory. The last block of a tile adds them, in an order
independent of which one it is, and runs the epilogue. Results are therefore deterministic. With row-wise work after the
GEMM, the last block of a row of tiles computes the rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, storage_bits
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.codegen.cuda.abi import CountersArg, CudaLaunch, Parameter, TemporaryArg, Thread
from tilestitch.codegen.cuda.gemm.indexed import IndexedGemm
from tilestitch.codegen.cuda.pieces import move, named, registers, repeated, unrolled, when, zero
from tilestitch.codegen.cuda.positions import below, both
from tilestitch.codegen.cuda.rows.bands import BandWriter, last_of
from tilestitch.codegen.cuda.surroundings import Anchored, Surroundings
from tilestitch.compiler.ir.sizes import divisor_of, is_open, smallest, surely
from tilestitch.passes.plan.access.vectors import lanes_of, lie_together, rows_lie_together
from tilestitch.passes.plan.gemm.partition import Partition
from tilestitch.passes.plan.gemm.units import Units


@dataclass(frozen=True)
class Sink:
    """Consumer of sums: `emit(around, batch, m, n, *sums)` for neighbours from unit n on, one or `lanes` of them.

    It is called inside a branch or loop of its own. `sums`: of all columns of a unit, unit after unit; a column is a
    unit unless it is a gate. For several units, n is written as a multiple of their number. `along_rows`: the
    destination is contiguous along rows rather than columns, so that neighbouring threads should have neighbouring
    rows.
    """

    emit: Callable[..., None]
    units: Units
    lanes: int = 1
    along_rows: bool = False

    def __call__(self, around: Surroundings, batch: Expr, m: Expr, n: Expr, *sums: Expr) -> None:
        self.emit(around, batch, m, n, *sums)


def locate(partition: Partition, block: Expr) -> tuple[Expr, Expr, Expr, Expr]:
    """Return part, batch, tile row and tile column of a block."""
    tiles, group = partition.m_blocks * partition.n_blocks, partition.tile_rows
    several = not surely(lambda: partition.parts * partition.batch <= 1)
    part, batch = unravel(block // tiles if several else 0, (partition.parts, partition.batch))
    tile = named(block % tiles if several else block)
    if surely(lambda: partition.m_blocks <= group):
        return named(part), named(batch), named(tile % partition.m_blocks), named(tile // partition.m_blocks)
    first = named(tile // (group * partition.n_blocks) * group)
    within, left = named(tile % (group * partition.n_blocks)), partition.m_blocks % group
    row, column = named(within % group), named(within // group)
    if left:  # Two divisions by constants, which the compiler recomputes where needed, instead of one by a variable.
        last = first == partition.m_blocks - left
        row, column = _either(last, within % left, row), _either(last, within // left, column)
    return named(part), named(batch), named(first + row), column


def _either(condition: Expr | bool, yes: Expr, no: Expr) -> Expr:
    if isinstance(condition, bool):
        return yes if condition else no
    return named(T.Select(condition, yes, no))


# -- launches --------------------------------------------------------------------------------------------------------


def finish(group: Anchored, gemm: IndexedGemm) -> Sink:
    """Return the sink that runs the group's epilogue."""

    def emit(around: Surroundings, batch: Expr, m: Expr, n: Expr, *sums: Expr) -> None:
        count = len(sums) // gemm.units.gates
        if count == 1:
            around.finish(gemm.place(batch, m, n), *sums)
        else:
            around.finish_vector([gemm.place(batch, m, n + i) for i in range(count)], sums)

    along_rows = results_lie_along_rows(group, gemm)
    return Sink(emit, gemm.units, 1 if along_rows else _lanes(group, gemm), along_rows)


MOST_LANES = 4


def _lanes(group: Anchored, gemm: IndexedGemm) -> int:
    """Return the number of neighbouring units whose results a thread can store in one access."""
    units = gemm.units
    if storage_bits(gemm.acc_dtype) != 32 or not units.dense:
        return 1
    lanes = min(MOST_LANES // units.gates, lanes_of([*group.read_after(), *group.outputs]))
    while lanes > 1 and not (divisor_of(units.width) % lanes == 0 and _lie_together(group, gemm, lanes)):
        lanes //= 2
    return max(1, lanes)


def results_lie_along_rows(group: Anchored, gemm: IndexedGemm) -> bool:
    """Return whether the largest output is contiguous along rows rather than columns; never with gates, or rows after
    the GEMM.
    """
    extents = (gemm.batch, gemm.m, gemm.n)
    plain = gemm.gated is None and group.after is None
    return plain and rows_lie_together(group.roles, group.outputs, gemm.place, extents)


def _lie_together(group: Anchored, gemm: IndexedGemm, lanes: int) -> bool:
    extents = (gemm.batch, gemm.m, gemm.units.width)
    return lie_together(group.roles, group.outputs, gemm.place, extents, lanes)


COUNTER_BYTES = 4

Kernel = Callable[[Surroundings, Thread, Sink, Expr], None]
"""`kernel(around, thread, sink, part)` emits one block's work."""


def launch(
    group: Anchored, gemm: IndexedGemm, kind: str, partition: Partition, tile: tuple[int, int], threads: int,
    kernel: Kernel, shared_bytes: int = 0,
) -> tuple[CudaLaunch, ...]:  # fmt: skip
    """Return the launch of a kernel that gets its block number; `tile`: extents of a tile."""
    parts = partition.parts
    counted = partition.counters or sum(_counters(group, partition, smallest(tile[0], gemm.m), threads))
    tiles = partition.blocks // parts
    size = partition.kept_elements or parts * gemm.elements
    sums = Parameter(TemporaryArg("sums", size * storage_bits(gemm.acc_dtype) // 8), gemm.acc_dtype, size)
    along_rows = parts > 1 and results_lie_along_rows(group, gemm)

    def whole(around: Surroundings, thread: Thread) -> None:
        block = around.wide(thread.block[0])
        kernel(around, thread, finish(group, gemm), block)
        _after(around, gemm, partition, tile, threads, thread.thread[0], block)

    def one_part(around: Surroundings, thread: Thread) -> None:
        block = around.wide(thread.block[0])
        part, number = named(block // tiles), named(block % tiles)

        def keep(around: Surroundings, batch: Expr, m: Expr, n: Expr, *totals: Expr) -> None:
            place = part * gemm.elements + kept_at(gemm, batch, m, n, along_rows)
            own = registers(len(totals), gemm.acc_dtype)
            for lane, total in enumerate(totals):
                T.buffer_store(own, total, [lane])
            move(own, 0, around.extra, place, len(totals))

        lanes = 1 if along_rows else _lanes_of_sums(gemm)
        kernel(around, thread, Sink(keep, Units.plain(gemm.n), lanes, along_rows), block)
        with when(last_of(around.counters[number], parts)):
            _join(around, gemm, partition, tile, threads, thread.thread[0], block)
            _after(around, gemm, partition, tile, threads, thread.thread[0], block)

    emit, extra = whole if parts == 1 else one_part, sums if parts > 1 or partition.kept_elements else None
    counters = Parameter(CountersArg(COUNTER_BYTES * counted), "uint32", counted) if counted else None
    whole_launch = group.launch(
        kind, partition.blocks, threads, emit, extra=extra, counters=counters, shared_bytes=shared_bytes
    )
    assert whole_launch.emission is not None
    return (replace(whole_launch, emission=replace(whole_launch.emission, begins=True)),)


def _counters(group: Anchored, partition: Partition, rows: int, threads: int) -> tuple[int, int]:
    """Return the numbers of counter words: for tiles in parts, and for bands of rows."""
    tiles = partition.blocks // partition.parts if partition.parts > 1 else 0
    if group.after is None:
        return tiles, 0
    return tiles, partition.batch * partition.m_blocks * group.after.band(rows, partition.n_blocks, threads).words


def _after(
    around: Surroundings, gemm: IndexedGemm, partition: Partition, tile: tuple[int, int], threads: int, thread: Expr,
    block: Expr,
) -> None:  # fmt: skip
    """Emit the row-wise work after the GEMM for a block's rows, if this block is the last one, or one of the last, to
    store some of them.
    """
    after = around.group.after
    if after is None:
        return
    _, batch, m_block, n_block = locate(partition, block)
    rows = min(tile[0], gemm.m)
    band = after.band(rows, partition.n_blocks, threads)
    first = named(batch * gemm.m + m_block * rows)
    exact = gemm.m % rows == 0
    tiles, _ = _counters(around.group, partition, rows, threads)
    word = named(tiles + (batch * partition.m_blocks + m_block) * band.words)
    together, most = after.schedule.resident_blocks, after.schedule.polls
    # Blocks whose place others may still need do not wait.
    waits = both(
        below(n_block, band.shares, partition.n_blocks),
        None if partition.blocks <= together else block >= partition.blocks - together,
    )
    polls = most if waits is None else T.Select(waits, most, 0)
    end = named((batch + 1) * gemm.m)
    writer = BandWriter(lambda row: first + row, end, n_block, polls, thread, around.counters, word, exact)
    after.finish(around.after, band, writer)


def _join(
    around: Surroundings, gemm: IndexedGemm, partition: Partition, tile: tuple[int, int], threads: int, thread: Expr,
    block: Expr,
) -> None:  # fmt: skip
    """Add all parts of a block's tile, neighbouring units by neighbouring threads, and run the epilogue."""
    units, sink = gemm.units, finish(around.group, gemm)
    rows = tile[0] if is_open(gemm.m) else min(tile[0], gemm.m)
    wide, lanes = units.within(tile[1]), sink.lanes
    while lanes > 1 and rows * wide < lanes * threads:
        lanes //= 2
    columns = wide // lanes
    _, batch, m_block, n_block = locate(partition, block)
    first = (named(m_block * tile[0]), named(n_block * columns))
    rounds = -(-rows * columns // threads)
    with repeated(rounds) as round_:
        at = named(round_ * threads + thread)
        row, column = (at % rows, at // rows) if sink.along_rows else (at // columns, at % columns)
        m, vector = named(first[0] + row), named(first[1] + column)
        n = vector * lanes
        exists = both(
            below(at, rows * columns, rounds * threads),
            below(m, gemm.m, partition.m_blocks * tile[0]),
            below(n, units.width, partition.n_blocks * wide),
        )
        with when(exists):
            for index, extent in ((m, gemm.m), (vector, units.width // lanes)):
                if isinstance(index, tirx.Var):
                    around.evaluator.assume(index, 0, extent)
            place = named(kept_at(gemm, batch, m, units.column(n), sink.along_rows))
            totals = _added(around, gemm, place, lanes * units.gates, partition.parts)
            sink(around, batch, m, n, *totals)


def kept_at(gemm: IndexedGemm, batch: Expr, m: Expr, n: Expr, along_rows: bool) -> Expr:
    """Return the position of a result's partial sum within a part."""
    return (batch * gemm.n + n) * gemm.m + m if along_rows else (batch * gemm.m + m) * gemm.n + n


def _added(around: Surroundings, gemm: IndexedGemm, place: Expr, count: int, parts: int) -> list[Expr]:
    """Return neighbouring sums over all parts."""
    totals, own = registers(count, gemm.acc_dtype), registers(count, gemm.acc_dtype)
    for i in range(count):
        T.buffer_store(totals, zero(gemm.acc_dtype), [i])
    together = count if gemm.units.dense and _lanes_of_sums(gemm) % count == 0 else 1
    with unrolled(parts) as part:
        for first in range(0, count, together):
            move(around.extra, part * gemm.elements + place + first, own, first, together)
        for i in range(count):
            T.buffer_store(totals, totals[i] + own[i], [i])
    return [totals[i] for i in range(count)]


def _lanes_of_sums(gemm: IndexedGemm) -> int:
    """Return the number of neighbouring sums that a thread moves to and from temporary memory in one access."""
    lanes = MOST_LANES if storage_bits(gemm.acc_dtype) == 32 else 1
    while divisor_of(gemm.n) % lanes:
        lanes //= 2
    return lanes
