"""GEMMs with blockwise-quantised weights and a left operand rounded to 8 bits: the sums of a block are integers.

A task rounds its rows as it copies them, with a scale per block. Codes become bytes in registers, mostly unsigned ones,
offset by a midpoint; so the midpoint (or zero point) times the sum of the rounded row is subtracted from each sum of a
block.
"""

from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import widen
from tilestitch.codegen.compute.elementwise import product
from tilestitch.codegen.cpu.contraction import dots
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.blocks import BlockEmitter, BlockPanels, splat
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.compiler.ir.blocks import BlockFormat
from tilestitch.passes.plan.cpu.gemm import ROUNDED, ROUNDED_LARGEST
from tilestitch.passes.plan.cpu.isa import DOTS, Dot
from tilestitch.passes.plan.cpu.schedules import CpuBlockDotGemmSchedule
from tilestitch.passes.plan.cpu.tiling import RegisterTile, align

MAGNITUDE = 0x7FFFFFFF
"""Mask of a float32 without its sign; as integers, NaN is largest, followed by infinity."""
ROUNDING = 1.5 * 2.0**23
"""Added to a small float32, it leaves the nearest integer in the lowest bits."""
LOW_HALVES = 0x0F0F0F0F
SIGNS = -0x7F7F7F80
"""The sign bits of four bytes, as int32."""


class BlockDotEmitter(BlockEmitter):
    """A GEMM with blockwise weights and rounded rows."""

    def __init__(self, plan: Any, load_a: Any, b: Any, epilogue: Any, scratch: Expr, window: Any) -> None:
        super().__init__(plan, load_a, b, epilogue, scratch, window)
        form, at = self._form, plan.scratch_bytes - plan.rounding_bytes
        rows, blocks = plan.block_rows, form.blocks
        self.factors = mk.scratch_buffer(scratch, at, (rows, blocks), "float32", "factors")
        at += align(rows * blocks * 4)
        self.taken = mk.scratch_buffer(scratch, at, (rows * plan.planes, blocks), "int32", "taken")
        at += align(rows * plan.planes * blocks * 4)
        self.floats = mk.scratch_buffer(scratch, at, (blocks * form.block,), "float32", "floats")

    @property
    def _form(self) -> BlockFormat:
        form = self.plan.shape.blocks
        assert form is not None
        return form

    @property
    def _dot(self) -> Dot:
        schedule = self.plan.schedule
        assert isinstance(schedule, CpuBlockDotGemmSchedule)
        return DOTS[schedule.dot]

    def _stage_rows(self) -> None:
        plan, shape, form = self.plan, self.plan.shape, self._form
        count = mk.start_of(plan.rows, self.last_tile) - self.first_row
        with mk.serial(shape.k, form.blocks * form.block) as k:
            T.buffer_store(self.floats, mk.constant(0, "float32"), [k])
        with mk.serial(0, count) as row:

            def copy(k: Expr) -> None:
                value = self.load_a(self.batch, self.first_row + row, k)
                T.buffer_store(self.floats, widen(value, shape.a_dtype, "float32"), [k])

            mk.for_each_column(shape.k, plan.tile.lanes, copy)
            with mk.serial(0, form.blocks) as block:
                self._round(row, block)

    def _round(self, row: Expr, block: Expr) -> None:
        """Round one block of a row: its bytes, scale, and what is subtracted from its sums."""
        form = self._form
        lanes = next(n for n in (self.plan.tile.lanes, 8, 4) if form.block % n == 0)
        most, total = (T.alloc_buffer((lanes,), "int32", scope="local") for _ in range(2))
        vector = T.ramp(T.int64(0), T.int64(1), lanes)
        for each in (most, total):
            T.buffer_store(each, splat(T.int32(0), lanes), [vector])

        def part(number: Expr) -> Any:
            return T.ramp(block * form.block + number * lanes, T.int64(1), lanes)

        with mk.serial(0, form.block // lanes) as number:
            bits = T.reinterpret(f"int32x{lanes}", self.floats[part(number)])
            magnitude = T.bitwise_and(bits, splat(T.int32(MAGNITUDE), lanes))
            T.buffer_store(most, T.max(most[vector], magnitude), [vector])
        largest = T.bind(T.reinterpret("float32", reduced(most, lanes, T.max)))
        whole, least = (mk.constant(x, "float32") for x in (ROUNDED_LARGEST, float(np.finfo(np.float32).tiny)))
        scale = T.bind(largest / whole)
        # Many elements lie halfway between two bytes where they come from a few codes: rounded as by ONNX Runtime.
        inverse = T.bind(T.Select(scale >= least, whole / largest, mk.constant(0, "float32")))
        with mk.serial(0, form.block // lanes) as number:
            scaled = product(self.floats[part(number)], splat(inverse, lanes))
            moved = scaled + splat(mk.constant(ROUNDING, "float32"), lanes)
            zero = int(np.float32(ROUNDING).view(np.int32))
            rounded = T.bind(T.reinterpret(f"int32x{lanes}", moved) - splat(T.int32(zero), lanes))
            T.buffer_store(total, total[vector] + rounded, [vector])
            T.buffer_store(self.staged, T.cast(rounded, f"{ROUNDED}x{lanes}"), [row, part(number)])
        T.buffer_store(self.factors, scale, [row, block])
        T.buffer_store(self.taken, self._taken(reduced(total, lanes, lambda a, b: a + b)), [row, block])

    @property
    def _shift(self) -> int:
        """Offset of bytes from codes: for 8-bit codes where signed bytes are multiplied."""
        return 128 if self._form.bits == 8 and self._dot.left == "int8" else 0

    def _taken(self, total: Expr) -> Expr:
        """Return what is derived from the sum of a block: itself, for zero points, or times the offset of codes without
        them.
        """
        return total if self._form.zeros else total * T.int32(self._shift - (1 << (self._form.bits - 1)))

    def _multiply(
        self, panel: Expr, width: Expr, index: Expr, rows: int, first_k: Expr, last_k: Expr, gate: Expr | None = None
    ) -> tuple[Any, RegisterTile, Expr]:
        plan, panels = self.plan, self.panels
        assert isinstance(panels, BlockPanels)
        row0 = T.bind(mk.start_of(plan.rows, index))
        local = T.bind(row0 - self.first_row)
        vectors = -(-width // plan.tile.lanes) if mk.is_number(width) else plan.tile.vectors
        tile = RegisterTile(rows, vectors, plan.tile.lanes)
        summed = RegisterTile(rows * plan.planes, vectors, plan.tile.lanes)
        total, sums = mk.allocate(tile, "float32"), mk.allocate(summed, "int32")
        mk.fill(total, tile, mk.constant(0, "float32"))
        with mk.serial(0, self._form.blocks) as block:
            if self.schedule.prefetch_ahead:
                panels.ask(panel, block, plan.ahead_bytes)
            self._start_block(sums, summed, local, block)
            with mk.serial(0, self._form.words) as word:
                if self.schedule.prefetch_ahead:
                    panels.ask_within(panel, block * self._form.words + word, plan.ahead_bytes)
                self._add_word(sums, summed, panel, block, word, local)
            self._scale_block(total, sums, tile, panel, block, local)
        return total, tile, row0

    def _start_block(self, sums: Any, tile: RegisterTile, local: Expr, block: Expr) -> None:
        """Start the sums of a block: for codes without zero points, with the common offset subtracted in advance."""
        for row in range(tile.rows):
            first = T.int32(0) if self._form.zeros else T.bind(self.taken[local + row, block])
            for vector in range(tile.vectors):
                T.buffer_store(sums, splat(first, tile.lanes), [row, mk.columns_of(tile, vector)])

    def _add_word(self, sums: Any, tile: RegisterTile, panel: Expr, block: Expr, word: Expr, local: Expr) -> None:
        dot, form, panels = self._dot, self._form, self.panels
        assert isinstance(panels, BlockPanels)
        first = block * form.block + word * panels.per_word
        for vector in range(tile.vectors):
            codes = panels.word(panel, block * form.words + word, vector)
            if self._shift:
                codes = T.bind(T.bitwise_xor(codes, splat(T.int32(SIGNS), tile.lanes)))
            for number, part in enumerate(_bytes(codes, form.bits, tile.lanes)):
                left = T.reinterpret(f"{dot.left}x{tile.lanes * dot.group}", part)
                place, group = mk.columns_of(tile, vector), T.ramp(first + number * dot.group, T.int64(1), dot.group)
                for row in range(tile.rows):
                    rounded = T.reinterpret("int32", self.staged[local + row, group])
                    right = T.reinterpret(f"{dot.right}x{tile.lanes * dot.group}", splat(rounded, tile.lanes))
                    T.buffer_store(sums, dots.added(dot, tile.lanes, sums[row, place], left, right), [row, place])

    def _scale_block(self, total: Any, sums: Any, tile: RegisterTile, panel: Expr, block: Expr, local: Expr) -> None:
        panels, form, lanes = self.panels, self._form, tile.lanes
        assert isinstance(panels, BlockPanels)
        for vector in range(tile.vectors):
            scale, place = panels.scale(panel, block, vector), mk.columns_of(tile, vector)
            zero = panels.zero(panel, block, vector) if form.zeros else None
            if zero is not None and self._shift:
                zero = zero - splat(T.float32(self._shift), lanes)
            for row in range(tile.rows):
                value = T.cast(sums[row, place], f"float32x{lanes}")
                if zero is not None:
                    value = value - zero * splat(T.cast(self.taken[local + row, block], "float32"), lanes)
                factor = scale * splat(self.factors[local + row, block], lanes)
                T.buffer_store(total, total[row, place] + value * factor, [row, place])


def _bytes(codes: Expr, bits: int, lanes: int) -> list[Expr]:
    """Return the vectors of four bytes each from a vector of words, in the order of the reduction."""
    if bits == 8:
        return [codes]
    low = splat(T.int32(LOW_HALVES), lanes)
    return [
        T.bind(T.bitwise_and(codes, low)),
        T.bind(T.bitwise_and(T.shift_right(codes, splat(T.int32(4), lanes)), low)),
    ]


def reduced(buffer: Any, lanes: int, combine: Any) -> Expr:
    """Reduce all elements, in halves."""
    parts = [buffer[T.int64(lane)] for lane in range(lanes)]
    while len(parts) > 1:
        parts = [T.bind(combine(a, b)) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
