"""What becomes of a warpgroup's sums: a few rows at a time through shared memory, to the epilogue or to partial sums.

A warp has 16 rows of every 64. It writes 8 rows x 64 columns to shared memory of its own and reads them back as vectors
along the columns: residuals are read and results are written in whole lines of memory, up to 16 bytes a thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.compiler.ir.graph import Value

from .abi import CudaLaunch, Parameter, TemporaryArg
from .partition import Partition, add_parts, named, registers, repeated, unrolled, when
from .product import Product, below, both
from .surroundings import Anchored, Surroundings
from .vectors import lanes_of

WARP = 32
ROWS = 8
COLUMNS = 64
STRIDE = COLUMNS + 8
"""Sums from one row to the next: so neither writing nor reading meets bank conflicts."""
CHUNK_BYTES = 4 * ROWS * STRIDE
WARP_ROWS = 16
BLOCK_ROWS = 64
"""From one of a warp's 16 rows to the same of the next wgmma."""
QUAD = 4


@dataclass(frozen=True)
class Results:
    """Where a product's sums go."""

    group: Anchored
    product: Product
    partition: Partition

    @property
    def inputs(self) -> tuple[Value, ...]:
        """What the launch that multiplies reads beside the operands."""
        return () if self.sums else self.group.read_behind()

    @property
    def outputs(self) -> tuple[Value, ...]:
        return () if self.sums else self.group.outputs

    @cached_property
    def sums(self) -> Parameter | None:
        """Partial sums, if the reduction is in parts."""
        if self.partition.parts == 1:
            return None
        size = self.partition.parts * self.product.elements
        return Parameter(TemporaryArg("sums", 4 * size), "float32", size)

    def second_launch(self) -> tuple[CudaLaunch, ...]:
        """The launch that adds partial sums."""
        return () if self.sums is None else (add_parts(self.group, self.product, self.sums, self.partition.parts),)

    @cached_property
    def lanes(self) -> int:
        """Neighbouring results that a thread stores at a time."""
        lanes = QUAD if self.sums else lanes_of([*self.inputs, *self.outputs])
        while self.product.n % lanes:
            lanes //= 2
        return lanes

    def store(
        self, around: Surroundings, memory: Any, start: Expr, lane: Expr, acc: Any,
        place: tuple[Expr, Expr, Expr, Expr], tile: tuple[int, int, int],
    ) -> None:  # fmt: skip
        """Give a warp's sums away.

        start: the float32 in `memory` where the warp may leave 8 x 64 of them. acc: registers as `wgmma.multiply`
        describes them, block after block. place: part, batch, and the row and column of the warp's first result. tile:
        how many times 64 rows, and the extents of the whole tile.
        """
        part, batch, first_m, first_n = place
        blocks, bm, bn = tile
        shared = T.decl_buffer((memory.shape[0] // 4,), "float32", data=memory.data, scope="shared.dyn")
        with unrolled(blocks) as block, unrolled(bn // COLUMNS) as chunk, unrolled(WARP_ROWS // ROWS) as half:
            _sync()
            self._write(shared, start, lane, acc, block * (bn // 2) + chunk * (COLUMNS // 2) + half * 2)
            _sync()
            m, n = named(first_m + block * BLOCK_ROWS + half * ROWS), named(first_n + chunk * COLUMNS)
            self._read(around, shared, start, lane, (part, batch, m, n), (bm, bn))

    def _write(self, shared: Any, start: Expr, lane: Expr, acc: Any, first: Expr) -> None:
        at = named(start + lane // 4 * STRIDE + lane % 4 * 2)
        with unrolled(COLUMNS // 8) as j, unrolled(2) as e:
            T.buffer_store(shared, acc[first + j * 4 + e], [at + j * 8 + e])

    def _read(
        self, around: Surroundings, shared: Any, start: Expr, lane: Expr, place: tuple[Expr, Expr, Expr, Expr],
        tile: tuple[int, int],
    ) -> None:  # fmt: skip
        product, lanes = self.product, self.lanes
        part, batch, first_m, first_n = place
        across = COLUMNS // lanes
        with repeated(ROWS * across // WARP) as round_:
            row = named(round_ * (WARP // across) + lane // across if across < WARP else round_ * WARP // across)
            vector = named(lane % across if across < WARP else round_ * WARP % across + lane)
            m = named(around.wide(first_m + row))
            column = named(around.wide(first_n // lanes + vector))
            n = column * lanes
            exists = both(
                below(m, product.m, -(-product.m // tile[0]) * tile[0]),
                below(n, product.n, -(-product.n // tile[1]) * tile[1]),
            )
            with when(exists):
                around.evaluator.assume(m, 0, product.m)
                around.evaluator.assume(column, 0, product.n // lanes)
                at = named(start + row * STRIDE + vector * lanes)
                totals = self._load(shared, at)
                if self.sums is not None:
                    self._keep(around, part, batch, m, n, totals)
                    return
                places = [product.place(batch, m, n + i) for i in range(lanes)]
                around.finish_vector(places, [totals[i] for i in range(lanes)])

    def _load(self, shared: Any, at: Expr) -> Any:
        lanes = self.lanes
        totals = registers(lanes, "float32")
        if lanes % QUAD:
            with unrolled(lanes) as i:
                T.buffer_store(totals, shared[at + i], [i])
            return totals
        for quad in range(0, lanes, QUAD):
            # As a multiple of four: so TVM sees that the address is aligned, and emits one access.
            from_ = named(at // QUAD + quad // QUAD) * QUAD
            T.buffer_store(totals, shared[T.ramp(from_, 1, QUAD)], [T.ramp(quad, 1, QUAD)])
        return totals

    def _keep(self, around: Surroundings, part: Expr, batch: Expr, m: Expr, n: Expr, totals: Any) -> None:
        product = self.product
        at = ((part * product.batch + batch) * product.m + m) * product.n + n
        if self.lanes % QUAD:
            with unrolled(self.lanes) as i:
                T.buffer_store(around.extra, totals[i], [at + i])
            return
        T.buffer_store(around.extra, totals[T.ramp(0, 1, QUAD)], [T.ramp(named(at // QUAD) * QUAD, 1, QUAD)])


def _sync() -> None:
    T.evaluate(T.call_extern("void", "ts_sm90_sync_warp"))
