"""Few rows times blockwise-quantised weights, bound by reading the packed weights once at memory bandwidth.

A lane has a column, a warp 32 neighbouring ones, and the warps of a block share the reduction, lump by lump. Each
thread prefetches a lump of the next chunk, with scales and zero points, as soon as it has multiplied one of this chunk.
The rows are in shared memory, a chunk at a time, where all lanes of a warp read the same address. Sums of a block are
scaled once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.cuda.before import begin
from tilestitch.codegen.cuda.gemm.codes import Weights
from tilestitch.codegen.cuda.gemm.gemv import Block, add_warps, launch_gemv
from tilestitch.codegen.cuda.gemm.indexed import IndexedGemm
from tilestitch.codegen.cuda.pieces import move, named, registers, repeated, unrolled, when, zero
from tilestitch.codegen.cuda.positions import below, both
from tilestitch.codegen.cuda.surroundings import Anchored
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.passes.plan.gemm.codes import Codes
from tilestitch.passes.plan.gemm.gemv import WARP, WARPS
from tilestitch.passes.plan.gemm.partition import Partition
from tilestitch.passes.plan.gemm.tiles import GemvTile

WORDS = 4
"""Words of a lump."""
QUAD = 4
"""Elements of a row that are read from shared memory at a time."""


def emit_gemv_of_codes(
    group: Anchored, gemm: IndexedGemm, tile: GemvTile, partition: Partition
) -> tuple[CudaLaunch, ...]:  # fmt: skip
    """Return the launches for a given tile and partition; the weights are the right operand."""
    return launch_gemv(group, gemm, tile, partition, _along_columns)


@dataclass(frozen=True)
class _Lumps:
    """A thread's prefetched data: several lumps, and a scale and a zero point per group of codes."""

    words: Any
    scales: Any
    zeros: Any

    @staticmethod
    def of(codes: Codes, count: int) -> _Lumps:
        groups = count * codes.lump // codes.group
        zeros = registers(groups, "float32") if codes.form.zeros else None
        return _Lumps(registers(count * WORDS, "uint32"), registers(groups, "float32"), zeros)


class _Reader:
    """A thread's traversal of the weights of its column."""

    def __init__(self, block: Block, codes: Codes) -> None:
        self.block, self.codes = block, codes
        self.weights = Weights(block.around, block.gemm.b.value, codes, block.batch)
        self.column = named(block.first_column + block.lane)
        self.count = block.chunk // (WARPS * codes.lump)
        self.groups = codes.lump // codes.group
        self.first_lump = named(block.first_k // codes.lump)
        self.lumps = _Lumps.of(codes, self.count)

    def lump(self, number: Expr) -> Expr:
        """Return the number, within a chunk, of a thread's lump."""
        return number * WARPS + self.block.warp

    def ask(self, number: Expr, step: Expr) -> None:
        """Load a lump of a chunk; zeros where there is none."""
        block, codes, of_chunk = self.block, self.codes, self.block.chunk // self.codes.lump
        reached = block.partition.parts * block.partition.steps * of_chunk
        lump = named(self.first_lump + step * of_chunk + self.lump(number))
        there = both(block.column_exists(self.column), below(lump, codes.lumps, reached))
        if there is not None:
            with unrolled(WORDS) as i:
                T.buffer_store(self.lumps.words, zero("uint32"), [number * WORDS + i])
            with unrolled(self.groups) as i:
                self._store(number * self.groups + i, zero("float32"), zero("float32"))
        with when(there):
            self.weights.load_lump(self.lumps.words, number * WORDS, self.column, lump)
            with unrolled(self.groups) as i:
                of = named(self.weights.block(lump * codes.lump + i * codes.group))
                scale, point = self.weights.scale(self.column, of), self.weights.zero(self.column, of)
                self._store(number * self.groups + i, scale, point)

    def _store(self, at: Expr, scale: Expr, point: Expr | None) -> None:
        T.buffer_store(self.lumps.scales, scale, [at])
        if self.lumps.zeros is not None:
            T.buffer_store(self.lumps.zeros, point, [at])

    def multiply(self, number: Expr, acc: Any) -> None:
        """Add the products of a lump to the sums of all rows."""
        with unrolled(self.groups) as group:
            self._multiply_group(acc, number, group)

    def _multiply_group(self, acc: Any, number: Expr, group: Expr) -> None:
        block, codes, rows = self.block, self.codes, self.block.rows
        at, found = number * self.groups + group, self.lumps
        point = found.zeros[at] if found.zeros is not None else self.weights.zero(0, 0)
        sums = registers(rows, "float32")
        with unrolled(rows) as m:
            T.buffer_store(sums, zero("float32"), [m])
        values, x = registers(codes.word, "float32"), registers(QUAD, "float32")
        with unrolled(codes.group // codes.word) as word:
            bits = found.words[number * WORDS + group * (codes.group // codes.word) + word]
            with unrolled(codes.word) as i:
                T.buffer_store(values, self.weights.value(bits, i, point), [i])
            start = named(self.lump(number) * codes.lump + group * codes.group + word * codes.word)
            with unrolled(rows) as m, unrolled(codes.word // QUAD) as quad:
                move(block.small, block.small_rows.at(m, start) + quad * QUAD, x, 0, QUAD)
                with unrolled(QUAD) as i:
                    T.buffer_store(sums, sums[m] + x[i] * values[quad * QUAD + i], [m])
        with unrolled(rows) as m:
            T.buffer_store(acc, acc[m] + sums[m] * found.scales[at], [m])


def _along_columns(block: Block) -> None:
    codes, steps = block.gemm.b.codes, block.partition.steps
    assert codes is not None
    acc = registers(block.rows, block.dtype)
    with unrolled(block.rows) as m:
        T.buffer_store(acc, zero(block.dtype), [m])
    waits = codes.matrices > 1
    if waits:  # for the index of the matrix; weights are constants
        begin()
    reader = _Reader(block, codes)
    with unrolled(reader.count) as number:
        reader.ask(number, 0)
    if not waits:
        begin()
    with repeated(steps) as step:
        block.bring_rows(named(block.first_k + step * block.chunk))
        with unrolled(reader.count) as number:
            reader.multiply(number, acc)
            if is_open(steps) or steps > 1:
                with when(step + 1 < steps):
                    reader.ask(number, step + 1)
    add_warps(block, acc, WARP, 1)
