"""GEMMs with blockwise-quantised weights: 4- or 8-bit codes become floats in registers, or panels in a task's
workspace.

A 32-bit word has adjacent codes of one column, and a vector of words those of as many columns.

Integers become floats in place: with an exponent for which their lowest bit counts 1, the bits of a code end the
mantissa of 2^n + code, from which 2^n and the zero point are subtracted at once. Or 4-bit codes are shifted to the
lowest bits and index a table of 16 floats, where there is an instruction for that. Integers that need no shift are
converted, and the others looked up: both together keep all units busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import storage_dtype
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.gemm import GemmEmitter
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.codegen.cpu.contraction.panels import Operand, PackedOperand, Panels
from tilestitch.compiler.ir.blocks import BlockFormat
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.cpu.gemm import FEW_ROWS
from tilestitch.passes.plan.cpu.limits import LONGEST_SUM
from tilestitch.passes.plan.cpu.packing import BlockPacking
from tilestitch.passes.plan.cpu.schedules import CpuBlockGemmSchedule
from tilestitch.passes.plan.cpu.tiling import LINE_BYTES, RegisterTile, split_at_most
from tilestitch.runtime.host.blocks import CODES

MANTISSA_BITS, EXPONENT_BIAS = 23, 127
WORD_BYTES = 4
MOST_LINES = 64
"""Most cache lines of a block to prefetch at once, in unrolled code: a block may be as long as the reduction."""
LOOK_UP = {16: "llvm.x86.avx512.permvar.sf.512"}
"""By lanes, LLVM's name of the instruction that looks up floats by the lowest bits of integers; the table is a
vector.
"""


@dataclass(frozen=True)
class BlockPanels(Panels):
    """Panels of codes, scales and zero points; the workspace holds whole blocks of floats."""

    packing: BlockPacking | None = None
    table: Any = None
    """A buffer of the float values of codes, where they are looked up."""
    chosen: Expr = 0
    """The group of the task's matrix."""

    def prepare(self, batch: Expr, panel: Expr, width: Expr, steps: tuple[Expr, Expr] | None = None) -> None:
        """Dequantise all steps of one panel."""
        if self.workspace is None:
            return
        form, lanes = self._form, self.tile.lanes
        with mk.serial(0, form.blocks) as block:
            for vector in range(self.tile.vectors):
                place = T.ramp(T.int64(vector * lanes), T.int64(1), lanes)
                scale, taken = self.scale(panel, block, vector), self.taken(panel, block, vector)
                with mk.serial(0, form.words) as word:
                    words = self.words(panel, block * form.words + word, vector)
                    for number in range(self.per_word):
                        k = block * form.block + word * self.per_word + number
                        T.buffer_store(self.workspace, self.value(words, number, taken) * scale, [k, place])

    @property
    def per_word(self) -> int:
        return 32 // self._form.bits

    @property
    def _form(self) -> Any:
        assert self.packing is not None
        return self.packing.form

    @property
    def _places(self) -> int:
        """Number of codes in a mantissa."""
        return MANTISSA_BITS // self._form.bits

    def words(self, panel: Expr, step: Expr, vector: int) -> list[Expr]:
        """Return int32 words of each column of a vector; and, for conversion, the same with later codes at their
        end.
        """
        lanes, bits = self.tile.lanes, self._form.bits
        first = self.word(panel, step, vector)
        shifts = () if self.table is not None else range(self._places, self.per_word, self._places)
        return [first, *(T.bind(T.shift_right(first, splat(T.int32(each * bits), lanes))) for each in shifts)]

    def word(self, panel: Expr, step: Expr, vector: int) -> Expr:
        """Return an int32 word of each column of a vector."""
        return T.bind(self._read(panel, (step * self.tile.columns + vector * self.tile.lanes) * 4, "int32", 4))

    def scale(self, panel: Expr, block: Expr, vector: int) -> Expr:
        """Return the float32 scales of a block."""
        assert self.packing is not None
        form, lanes = self._form, self.tile.lanes
        at = (block * self.tile.columns + vector * lanes) * form.scale_bytes + self.packing.scales_at
        raw = self._read(panel, at, storage_dtype(form.scales), form.scale_bytes)
        if form.scales == "bfloat16":
            wide = T.cast(raw, f"uint32x{lanes}")
            return T.bind(T.reinterpret(f"float32x{lanes}", T.shift_left(wide, splat(T.uint32(16), lanes))))
        return T.bind(raw if form.scales == "float32" else T.cast(raw, f"float32x{lanes}"))

    def taken(self, panel: Expr, block: Expr, vector: int) -> list[Expr | None]:
        """Return float32 offsets that are subtracted from converted codes of a block, one per position in a mantissa,
        and last the one for looked-up codes, if any.
        """
        form, lanes = self._form, self.tile.lanes
        zero = self.zero(panel, block, vector) if form.zeros else None
        if not form.integers:
            return [zero]
        powers = [float(1 << (MANTISSA_BITS - place * form.bits)) for place in range(self._places)]
        if zero is None:
            middle = 1 << (form.bits - 1)
            return [*(splat(mk.constant(power + middle, "float32"), lanes) for power in powers), None]
        return [*(T.bind(zero + splat(mk.constant(power, "float32"), lanes)) for power in powers), zero]

    def zero(self, panel: Expr, block: Expr, vector: int) -> Expr:
        """Return the float32 zero points of a block."""
        assert self.packing is not None
        form, lanes = self._form, self.tile.lanes
        place = vector if form.bits == 8 else vector // 2
        raw = self._read(panel, block * self.packing.zeros_bytes + place * lanes + self.packing.zeros_at, "uint8", 1)
        wide = T.cast(raw, f"int32x{lanes}")
        if form.bits == 4:
            wide = T.bitwise_and(T.shift_right(wide, splat(T.int32(vector % 2 * 4), lanes)), splat(T.int32(15), lanes))
        return T.bind(T.cast(wide, f"float32x{lanes}"))

    def value(self, words: Sequence[Expr], number: int, taken: Sequence[Expr | None]) -> Expr:
        """Return float32: one code of each word, less its zero point."""
        converts = self.table is None or (self._form.integers and 0 < number < self._places)
        return self._converted(words, number, taken) if converts else self._looked_up(words[0], number, taken[-1])

    def _looked_up(self, word: Expr, number: int, zero: Expr | None) -> Expr:
        lanes = self.tile.lanes
        index = T.shift_right(word, splat(T.int32(number * self._form.bits), lanes)) if number else word
        table = self.table[T.ramp(T.int64(0), T.int64(1), lanes)]
        found = T.call_llvm_pure_intrin(f"float32x{lanes}", LOOK_UP[lanes], table, index)
        return found if zero is None else found - zero

    def _converted(self, words: Sequence[Expr], number: int, taken: Sequence[Expr | None]) -> Expr:
        form, lanes, place = self._form, self.tile.lanes, number % self._places
        word, shift = words[number // self._places], place * form.bits
        mask, exponent = ((1 << form.bits) - 1) << shift, (EXPONENT_BIAS + MANTISSA_BITS - shift) << MANTISSA_BITS
        bits = T.bitwise_or(T.bitwise_and(word, splat(T.int32(mask), lanes)), splat(T.int32(exponent), lanes))
        return T.reinterpret(f"float32x{lanes}", bits) - taken[place]

    def ask(self, panel: Expr, block: Expr, ahead_bytes: int) -> None:
        """Prefetch the codes that lie `ahead_bytes` after those of a block, all at once; long blocks prefetch per
        word.
        """
        if self._lines <= MOST_LINES:
            self._ask(panel, block, self._form.code_bytes, ahead_bytes)

    def ask_within(self, panel: Expr, step: Expr, ahead_bytes: int) -> None:
        """Prefetch what lies `ahead_bytes` after a word of all columns, in a long block."""
        if self._lines > MOST_LINES:
            self._ask(panel, step, WORD_BYTES, ahead_bytes)

    @property
    def _lines(self) -> int:
        """Cache lines of the codes of a block."""
        return self._form.code_bytes * self.tile.columns // LINE_BYTES

    def _ask(self, panel: Expr, part: Expr, part_bytes: int, ahead_bytes: int) -> None:
        size = part_bytes * self.tile.columns
        for line in range(0, size, LINE_BYTES):
            self.prefetch(panel, part * size + (line + ahead_bytes))

    def prefetch(self, panel: Expr, at: Expr) -> None:
        assert isinstance(self.operand, PackedOperand)
        mk.prefetch(T.address_of(self.operand.buffer[self.chosen, panel, 0, at]))

    def _read(self, panel: Expr, at: Expr, dtype: str, size: int) -> Expr:
        """Return a vector of `dtype` at a byte offset of a panel."""
        assert isinstance(self.operand, PackedOperand)
        lanes = self.tile.lanes
        raw = self.operand.buffer[self.chosen, panel, 0, T.ramp(mk.as_index(at), T.int64(1), lanes * size)]
        return raw if dtype == "uint8" else T.reinterpret(f"{dtype}x{lanes}", raw)


def splat(value: Expr, lanes: int) -> Expr:
    return tirx.Broadcast(value, lanes)


class BlockEmitter(GemmEmitter):
    """A GEMM with blockwise-quantised weights."""

    def _panels(self, b: Operand, panel: Any) -> Panels:
        plan, shape, packing = self.plan, self.plan.shape, self.plan.packing()
        assert isinstance(packing, BlockPacking)
        if panel is not None:
            shape_of_panel = (packing.panel_bytes // (packing.columns * storage_bytes("float32")), packing.columns)
            panel = T.decl_buffer(shape_of_panel, "float32", data=panel.data)
        table = None
        if isinstance(plan.schedule, CpuBlockGemmSchedule) and plan.schedule.look_up:
            table = T.alloc_buffer((plan.schedule.lanes,), "float32", scope="local")
            for place, value in enumerate(_looked_up(packing.form)):
                T.buffer_store(table, mk.constant(float(value), "float32"), [place])
        return BlockPanels(
            b, plan.steps, plan.tile, shape.b_dtype, shape.acc_dtype, panel, packing=packing, table=table
        )

    def _walk(self, first_panel: Expr, last_panel: Expr) -> None:
        read = self.panels
        assert isinstance(read, BlockPanels) and isinstance(read.operand, PackedOperand)
        self.panels = replace(read, chosen=T.bind(mk.as_index(read.operand.group(self.batch))))
        super()._walk(first_panel, last_panel)

    in_registers = False
    """Whether the code being emitted dequantises in registers, though panels are widened for more rows."""

    def _panel(self, panel: Expr, width: Expr) -> None:
        """Process a panel; a task of few rows reads the packed panel once for each few of them."""
        if not self.plan.few:
            super()._panel(panel, width)
            return
        rows = T.bind(mk.as_index(mk.start_of(self.plan.rows, self.last_tile) - self.first_row))
        with T.If(rows <= self.plan.few):
            with T.Then():
                self.in_registers = True
                self._few_rows(panel, width, rows)
                self.in_registers = False
            with T.Else():
                super()._panel(panel, width)

    def _few_rows(self, panel: Expr, width: Expr, rows: Expr) -> None:
        """Process tiles of `FEW_ROWS` rows, then of half as many, down to one."""
        size = FEW_ROWS
        while size > self.plan.rows.largest:
            size //= 2
        whole = T.bind(rows // size)
        with mk.serial(0, whole) as tile:
            start = T.bind(self.first_row + tile * size)
            self._tile(panel, width, mk.Piece(self.first_tile, start), size)
        done = T.bind(self.first_row + whole * size)
        while size > 1:
            size //= 2
            more = T.bind(rows // size % 2)
            with T.If(tirx.NE(more, T.int64(0))), T.Then():
                self._tile(panel, width, mk.Piece(self.first_tile, done), size)
            done = T.bind(done + more * size)

    def _multiply(
        self, panel: Expr, width: Expr, index: Expr, rows: int, first_k: Expr, last_k: Expr, gate: Expr | None = None
    ) -> tuple[Any, RegisterTile, Expr]:
        """Multiply in registers: sums of a block are kept until they are scaled."""
        if self.schedule.widen_right and not self.in_registers:
            return super()._multiply(panel, width, index, rows, first_k, last_k, gate)
        plan, panels = self.plan, self.panels
        assert isinstance(panels, BlockPanels) and plan.shape.blocks is not None
        row0 = T.bind(mk.start_of(plan.rows, index))
        vectors = -(-width // plan.tile.lanes) if mk.is_number(width) else plan.tile.vectors
        tile = RegisterTile(rows, vectors, plan.tile.lanes)
        total, sums = (mk.allocate(tile, plan.shape.acc_dtype) for _ in range(2))
        zero = mk.constant(0, plan.shape.acc_dtype)
        mk.fill(total, tile, zero)
        parts = split_at_most(plan.shape.blocks.words, LONGEST_SUM // panels.per_word)

        def add(block: Expr, begin: Expr, end: Expr) -> None:
            """Add the contribution of some words of a block."""
            mk.fill(sums, tile, zero)
            self._add_words(sums, tile, panels, panel, block, (begin, end), row0)
            for vector in range(tile.vectors):
                scale, place = panels.scale(panel, block, vector), mk.columns_of(tile, vector)
                for row in range(rows):
                    T.buffer_store(total, total[row, place] + sums[row, place] * scale, [row, place])

        with mk.serial(0, plan.shape.blocks.blocks) as block:
            if self._asks:
                panels.ask(panel, block, plan.ahead_bytes)
            if parts.parts == 1:
                add(block, 0, parts.extent)
            else:
                with mk.serial(0, parts.parts) as part:
                    begin = T.bind(part * parts.largest)
                    add(block, begin, T.min(begin + parts.largest, mk.as_index(parts.extent)))
        return total, tile, row0

    @property
    def _asks(self) -> bool:
        """Whether weights are prefetched."""
        return bool(self.schedule.prefetch_ahead) or self.in_registers

    def _add_words(
        self,
        sums: Any,
        tile: RegisterTile,
        panels: BlockPanels,
        panel: Expr,
        block: Expr,
        of: tuple[Expr, Expr],
        row0: Expr,
    ) -> None:
        """Add the products of these words of a block."""
        left, form = self._left(row0), self.plan.shape.blocks
        assert form is not None
        taken = [panels.taken(panel, block, vector) for vector in range(tile.vectors)]
        with mk.serial(*of) as word:
            if self._asks:
                panels.ask_within(panel, block * form.words + word, self.plan.ahead_bytes)
            words = [panels.words(panel, block * form.words + word, vector) for vector in range(tile.vectors)]
            for number in range(panels.per_word):
                k = block * form.block + word * panels.per_word + number
                factors = [T.bind(left(row, k)) for row in range(tile.rows)]
                for vector in range(tile.vectors):
                    value = T.bind(panels.value(words[vector], number, taken[vector]))
                    place = mk.columns_of(tile, vector)
                    for row, factor in enumerate(factors):
                        added = splat(factor, tile.lanes) * value
                        T.buffer_store(sums, sums[row, place] + added, [row, place])


def _looked_up(form: BlockFormat) -> Sequence[float]:
    """Return the values of codes as they are packed, before zero points are subtracted."""
    if not form.integers:
        return CODES[form.codes]
    return range(16) if form.zeros else range(-8, 8)
