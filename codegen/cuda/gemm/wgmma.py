"""GEMMs of half floats and bytes on Hopper's tensor cores (sm_90a): copies by TMA, multiply-adds by warpgroups (wgmma).

A block's last warps bring pieces of both operands to a ring of stages in shared memory: one thread asks the copy engine
(TMA), which counts the bytes that came on a barrier of the stage. One or two warpgroups multiply them right from there,
64 x n results each time, and free the stage by another barrier. Two warpgroups share the rows of a tile, or alternate:
one multiplies while the other runs the epilogue of its tile. Blocks are persistent: each walks over tiles, and copies
for the next one are in flight during the epilogue. Neighbouring blocks share operands in the L2 cache; the blocks of a
cluster, whose tiles are vertically adjacent, each multicast a share of their columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.cuda.abi import CudaLaunch, Parameter, TensorMapArg, Thread, barrier
from tilestitch.codegen.cuda.before import show, walk
from tilestitch.codegen.cuda.gemm.indexed import IndexedGemm, Operand
from tilestitch.codegen.cuda.gemm.partition import locate
from tilestitch.codegen.cuda.gemm.sm90 import STEP_BYTES, copy, multiply
from tilestitch.codegen.cuda.gemm.tma import Copies, PatchCopies, copies, patch_copies
from tilestitch.codegen.cuda.gemm.wgmma_results import CHUNK_BYTES, Results
from tilestitch.codegen.cuda.pieces import named, registers, repeated, unrolled, when, zero
from tilestitch.codegen.cuda.positions import below, both
from tilestitch.codegen.cuda.surroundings import Anchored, Surroundings
from tilestitch.passes.plan.gemm.kernels import sums_twice
from tilestitch.passes.plan.gemm.partition import Partition
from tilestitch.passes.plan.gemm.tiles import BARRIER_BYTES, LINE_BYTES, WARP, WARPGROUP, WGMMA_ROWS, WgmmaTile

WARPS = WARPGROUP // WARP
ALIGNMENT_BYTES = 1024
"""Alignment of swizzled pieces."""


def emit_wgmma(
    group: Anchored, gemm: IndexedGemm, tile: WgmmaTile, partition: Partition, blocks: int
) -> tuple[CudaLaunch, ...]:
    """Return the launches for a given tile and partition, in `blocks` blocks: whole clusters, which walk over tiles.

    `gemm`: as cut by `cut_to_patches` for the tile.
    """
    a = copies(gemm.a, tile.bm) if gemm.a.pictures is None else patch_copies(gemm.a)
    b = copies(gemm.b, tile.bn // tile.cluster)
    maps = [_map(group, gemm.a, a), _map(group, gemm.b, b)]
    clusters = replace(partition, m_blocks=-(-partition.m_blocks // tile.cluster))
    results = Results(group, gemm, partition, (tile.bm * tile.cluster, tile.bn), tile.rows)

    def kernel(around: Surroundings, thread: Thread) -> None:
        _Block(around, gemm, tile, clusters, (a, b), results, thread, blocks, partition.m_blocks).run()

    launch = group.launch(
        "gemm_wgmma", blocks, tile.threads, kernel, inputs=results.inputs, outputs=results.outputs, extra=results.sums,
        counters=results.counters, maps=maps, shared_bytes=tile.shared_bytes,
        blocks_per_sm=1 if tile.moves_registers else None, portable=False, cluster=(tile.cluster, 1, 1),
    )  # fmt: skip
    return (launch,)


def _map(group: Anchored, operand: Operand, side: Copies | PatchCopies) -> Parameter:
    assert operand.memory is not None
    over = group.argument(operand.memory.root)
    return Parameter(TensorMapArg(over, side.tensor_map, side.offset_bytes), operand.dtype, 0)


class _Block:
    """Emitter of one block's code. `partition`: of clusters of tiles, one tile per block of a cluster. `there`: number
    of existing rows of tiles.
    """

    def __init__(
        self, around: Surroundings, gemm: IndexedGemm, tile: WgmmaTile, partition: Partition,
        sides: tuple[Copies | PatchCopies, Copies], results: Results, thread: Thread, grid: int, there: int,
    ) -> None:  # fmt: skip
        self.around, self.gemm, self.tile, self.partition = around, gemm, tile, partition
        self.sides, self.results, self.thread = sides, results, thread.thread[0]
        block, size = thread.block[0], tile.cluster
        self.cluster, self.clusters = (block, grid) if size == 1 else (named(block // size), grid // size)
        self.rank = 0 if size == 1 else named(block % size)
        self.memory = T.alloc_buffer((tile.shared_bytes,), "uint8", scope="shared.dyn", align=ALIGNMENT_BYTES)
        self.lane = named(self.thread % WARP)
        self.there, self.walk = there, walk()
        self.early = [side for side, operand in enumerate((gemm.a, gemm.b)) if self.walk.is_early(operand)]

    def run(self) -> None:
        tile = self.tile
        with when(self.thread == 0):
            for map_ in self.around.maps:
                _call("prefetch_map", map_)
            with repeated(tile.stages) as stage:
                _call("barrier_init", self._full(stage), 1)
                _call("barrier_init", self._free(stage), tile.cluster * tile.sharing * WARPS)
            if tile.alternate:
                with repeated(tile.warpgroups) as warpgroup:
                    _call("barrier_init", self._turn(warpgroup), WARPS)
            _call("barriers_ready")
        if tile.cluster > 1:
            _call("enter_cluster")
        else:
            barrier()
        # Registers are reallocated only where each role is one branch of one if.
        with T.If(self.thread < tile.consumers):
            with T.Then():
                if tile.moves_registers:
                    _call("many_registers")
                self._multiply_all()
            with T.Else():
                if tile.moves_registers:
                    _call("few_registers")
                # The whole warp checks what there is to wait for.
                waits = self.walk.wait is not None
                copying = (
                    tirx.EQ(self.thread // WARP, tile.consumers // WARP) if waits else self.thread == tile.consumers
                )
                with when(copying):
                    self._copy_all()
        if tile.cluster > 1:
            # A block must not end while another one may write to its memory.
            _call("leave_cluster")

    # -- the ring ----------------------------------------------------------------------------------------------------

    def _shared(self, offset: Expr) -> Expr:
        return T.address_of(self.memory[offset])

    def _full(self, stage: Expr) -> Expr:
        """Return the barrier that completes when a stage's pieces have arrived."""
        return self._shared(self.tile.barriers_at + stage * BARRIER_BYTES)

    def _free(self, stage: Expr) -> Expr:
        """Return the barrier that completes when a stage may be overwritten."""
        return self._shared(self.tile.barriers_at + (self.tile.stages + stage) * BARRIER_BYTES)

    def _turn(self, warpgroup: Expr) -> Expr:
        """Return the barrier that completes when it is a warpgroup's turn to consume from the ring."""
        return self._shared(self.tile.barriers_at + (2 * self.tile.stages + warpgroup) * BARRIER_BYTES)

    def _place(self, position: Expr) -> tuple[Expr, Expr]:
        """Return the stage of a position in the ring, and the number of earlier passes through the ring."""
        return named(position % self.tile.stages), named(position // self.tile.stages)

    @contextmanager
    def _tiles(
        self, first: Expr, every: int
    ) -> Iterator[tuple[tuple[Expr, Expr], Expr, tuple[Expr, Expr, Expr, Expr]]]:
        """Iterate over every `every`-th tile of this block: the numbers of earlier and later ones, the ring's position,
        the tile's position.
        """
        all_, every_block = self.partition.blocks, self.clusters
        count = (
            all_ // every_block
            if all_ % every_block == 0
            else named((all_ - self.cluster + every_block - 1) // every_block)
        )
        turns = count if every == 1 else named((count - first + every - 1) // every)
        with repeated(turns) as turn:
            number = named(first + turn * every)
            start = named(number * self.partition.steps)
            part, batch, m_block, n_block = locate(self.partition, named(self.cluster + number * self.clusters))
            yield (
                (turn, turns - turn - 1),
                start,
                (part, batch, named(m_block * self.tile.cluster + self.rank), n_block),
            )

    # -- copies ------------------------------------------------------------------------------------------------------

    def _copy_all(self) -> None:
        """Emit the copying thread: every piece that this block needs, as soon as there is room. If tiles wait for
        others, all threads of the warp come here.
        """
        tile, partition, wait = self.tile, self.partition, self.walk.wait
        with self._tiles(0, 1) as ((turn, _), start, place):
            part, batch, m_block, n_block = place
            rows = (named(m_block * tile.bm), named(n_block * tile.bn + self.rank * (tile.bn // tile.cluster)))
            first_k = named(part * (partition.steps * tile.bk))
            if wait is not None:
                if self.early:
                    with when(both(tirx.EQ(turn, 0), tirx.EQ(self.lane, 0))):
                        self._copy_early(batch, rows, first_k)
                wait(place, self.lane, WARP)
                _call("sync_warp")
            with when(None if wait is None else tirx.EQ(self.lane, 0)):
                if wait is not None:
                    show()
                with repeated(partition.steps) as step:
                    self._copy_step(start + step, batch, rows, first_k + step * tile.bk)

    def _copy_step(self, position: Expr, batch: Expr, rows: tuple[Expr, Expr], k: Expr) -> None:
        stage, turns = self._place(position)
        _call("wait", self._free(stage), T.bitwise_xor(turns, 1) % 2)
        late = position >= self._ahead if self.early else None
        expected = self.tile.stage_bytes
        if late is not None:
            expected = T.Select(late, expected, expected - self._early_bytes)
        _call("arrive_expecting", self._full(stage), expected)
        for side in (0, 1):
            with when(late if side in self.early else None):
                self._copy(side, stage, batch, rows[side], named(k))

    @property
    def _ahead(self) -> int:
        """Number of stages with pieces in flight before the block waits for its first tile."""
        return min(self.tile.stages, self.partition.steps)

    @property
    def _early_bytes(self) -> int:
        return sum(self.tile.piece_bytes[side] for side in self.early)

    def _copy_early(self, batch: Expr, rows: tuple[Expr, Expr], first_k: Expr) -> None:
        """Copy pieces that are not stored meanwhile, for the first tile: all stages are free. The thread arrives later,
        so that consumers come after what it waits for.
        """
        with repeated(self._ahead) as stage:
            _call("expect", self._full(stage), self._early_bytes)
            for side in self.early:
                self._copy(side, stage, batch, rows[side], named(first_k + stage * self.tile.bk))

    def _copy(self, side: int, stage: Expr, batch: Expr, row: Expr, k: Expr) -> None:
        how = self.sides[side]
        target = stage * self.tile.stage_bytes
        shared_by: tuple[int, ...] = ()
        if side:
            target = target + (self.tile.piece_bytes[0] + self.rank * (self.tile.piece_bytes[1] // self.tile.cluster))
            shared_by = (self.tile.cluster,) if self.tile.cluster > 1 else ()
        for number in range(how.boxes):
            place = how.box(number, batch, row, k)
            function, to = copy(len(place), bool(shared_by)), self._shared(target + number * how.box_bytes)
            arguments = (to, self.around.maps[side], self._full(stage), *shared_by, *place)
            T.evaluate(T.call_extern("void", function, *arguments))

    # -- GEMMs ----------------------------------------------------------------------------------------------------

    def _multiply_all(self) -> None:
        """Emit a warpgroup: its rows of every tile, or every other tile."""
        tile, steps = self.tile, self.partition.steps
        warp = named(self.thread // WARP)
        warpgroup = named(self.thread // WARPGROUP)
        sums = tile.rows * tile.bn // 2
        dtype = self.gemm.acc_dtype
        acc = registers(sums, dtype)
        twice = sums_twice(self.gemm)
        totals = registers(sums, dtype) if twice else acc
        share = 0 if tile.alternate or tile.sharing == 1 else warpgroup
        own_row = named(share * (tile.rows * WGMMA_ROWS))
        with self._tiles(warpgroup if tile.alternate else 0, 2 if tile.alternate else 1) as (left, start, place):
            turn, later = left
            with unrolled(sums) as i:
                T.buffer_store(totals, zero(dtype), [i])
                if not twice:
                    _call("settle", T.address_of(acc[i]))
            if tile.alternate:
                # The first warpgroup begins; its first wait is for the phase before the first.
                _call("wait", self._turn(warpgroup), (turn + 1 + warpgroup) % 2)
            with repeated(steps) as step:
                stage, turns = self._place(start + step)
                _call("wait", self._full(stage), turns % 2)
                if twice:
                    self._multiply_apart(stage, start + step, own_row, acc, totals)
                else:
                    self._multiply(stage, own_row, acc)
                if steps > 1 and not twice:
                    # The previous step is done, this one is in flight.
                    _call("wgmma_wait_1")
                    with when(step > 0):
                        self._give_back(start + step - 1)
            if tile.alternate:
                # Also with a single step, after which no thread has waited for the others of its warp.
                _call("sync_warp")
                with when(self.lane == 0):
                    _call("arrive", self._turn(1 - warpgroup))
            if not twice:
                self._finish(acc)
                self._give_back(start + steps - 1)
            part, batch, m_block, n_block = place
            row = named(m_block * tile.bm + own_row + warp % WARPS * (WGMMA_ROWS // WARPS))
            self.results.store(
                self.around, self.memory, named(tile.results_at // 4 + warp * (CHUNK_BYTES // 4)), self.lane, totals,
                (part, batch, row, named(n_block * tile.bn)), tirx.EQ(later, 0),
            )  # fmt: skip
            if self.walk.post is not None:
                self._post(place, warpgroup)

    def _post(self, place: tuple[Expr, Expr, Expr, Expr], warpgroup: Expr) -> None:
        """Synchronise the threads that have stored a tile, and post it from one of them. A cluster may include tiles
        that do not exist.
        """
        tile = self.tile
        if self.walk.shows:
            show()
        _call("sync_warp")
        first, threads = (named(warpgroup * WARPGROUP), WARPGROUP) if tile.alternate else (0, tile.consumers)
        _call("meet", 1 + warpgroup if tile.alternate else 1, threads)
        with when(
            both(tirx.EQ(self.thread, first), below(place[2], self.there, self.partition.m_blocks * tile.cluster))
        ):
            assert self.walk.post is not None
            self.walk.post(place)

    def _give_back(self, position: Expr) -> None:
        """Release a stage of a warp: notify every block that copies to it."""
        free = self._free(named(position % self.tile.stages))
        with when(self.lane < self.tile.cluster):
            if self.tile.cluster == 1:
                _call("arrive", free)
            else:
                _call("arrive_at", free, self.lane)

    def _finish(self, acc: Any) -> None:
        """Wait for all wgmma."""
        _call("wgmma_wait_0")
        with unrolled(acc.shape[0]) as i:
            _call("settle", T.address_of(acc[i]))

    def _multiply_apart(self, stage: Expr, position: Expr, own_row: Expr, acc: Any, totals: Any) -> None:
        """Compute the sums of a stage separately, and add them to earlier ones by ordinary arithmetic. The other
        warpgroup, and other blocks, multiply meanwhile.
        """
        with unrolled(acc.shape[0]) as i:
            T.buffer_store(acc, zero(acc.dtype), [i])
            _call("settle", T.address_of(acc[i]))
        self._multiply(stage, own_row, acc)
        self._finish(acc)
        self._give_back(position)
        with unrolled(acc.shape[0]) as i:
            T.buffer_store(totals, totals[i] + acc[i], [i])

    def _multiply(self, stage: Expr, own_row: Expr, acc: Any) -> None:
        """Issue the multiply-adds of a stage, as one group of wgmma that is still in flight on return."""
        tile = self.tile
        start = named(stage * tile.stage_bytes)
        a = [self._matrix(0, start + (own_row + i * WGMMA_ROWS) * LINE_BYTES) for i in range(tile.rows)]
        b = self._matrix(1, start + tile.piece_bytes[0])
        dtypes = (self.gemm.a.dtype, self.gemm.b.dtype)
        function = multiply(tile.bn, dtypes, (self.sides[0].contiguous, self.sides[1].contiguous))
        _call("wgmma_fence")
        for k in range(LINE_BYTES // STEP_BYTES):
            left, right = (_step(side.contiguous, k) for side in self.sides)
            for i in range(tile.rows):
                target = T.address_of(acc[i * tile.bn // 2])
                T.evaluate(T.call_extern("void", function, target, a[i] + left, b + right))
        _call("wgmma_commit")

    def _matrix(self, side: int, offset: Expr) -> Expr:
        """Return the wgmma descriptor of a piece."""
        leading = WGMMA_ROWS * LINE_BYTES if self.sides[side].contiguous == "row" else 16
        return T.bind(T.call_extern("uint64", "ts_sm90_matrix", self._shared(offset), leading, 8 * LINE_BYTES))


def _step(contiguous: str, k: int) -> Expr:
    """Return the increment of a matrix descriptor's address for wgmma number `k` of a stage, in units of 16 bytes."""
    # Pieces contiguous along rows have half floats only, 16 lines of them.
    nbytes = k * (STEP_BYTES if contiguous == "k" else 16 * LINE_BYTES)
    return tirx.const(nbytes // 16, "uint64")


def _call(function: str, *arguments: Any) -> None:
    T.evaluate(T.call_extern("void", f"ts_sm90_{function}", *arguments))
