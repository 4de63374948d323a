"""AMX instructions, which multiply a tile of rows by a tile of columns, and GEMMs with them.

Eight registers of 16 rows by 64 bytes: four of sums, two vertically adjacent ones of the left operand, two horizontally
adjacent ones of the right. A tile of the right operand is 16 reduction steps of a packed panel, each with the
neighbours of 16 columns; one of the left operand is 64 bytes of 16 rows. See Intel's Software Developer's Manual,
volume 1, chapter 18.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.gemm import GemmEmitter
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.codegen.cpu.contraction.panels import PackedOperand, Panels
from tilestitch.compiler.ir.sizes import Size
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.cpu.gemm import SHAPES_BYTES
from tilestitch.passes.plan.cpu.isa import TILE_BYTES, TILE_ROWS, Dot

REGISTERS = 8
SUMS, LEFT, RIGHT = 0, 4, 6
"""The first register of each kind."""
PALETTE = 1
"""Palette of eight registers of 16 rows by 64 bytes."""
COLUMNS_AT, ROWS_AT = 16, 48
"""Byte offsets in the tile configuration of the row lengths, two bytes each, and of the numbers of rows."""


def _shapes() -> np.ndarray:
    """Return the operand of `ldtilecfg`: every register has its full size, so that LLVM may exchange them, as its
    models of some CPUs do; where there are fewer rows, the sums of the others are not read.
    """
    found = np.zeros(SHAPES_BYTES, np.uint8)
    found[0] = PALETTE
    found[COLUMNS_AT : COLUMNS_AT + 2 * REGISTERS].view(np.uint16)[...] = TILE_BYTES
    found[ROWS_AT : ROWS_AT + REGISTERS] = TILE_ROWS
    return found


SHAPES = _shapes()


class TileEmitter(GemmEmitter):
    """A GEMM in tile registers that are configured already."""

    def _tile(self, panel: Expr, width: Expr, index: Expr, rows: int) -> None:
        plan, dot = self.plan, self.plan.dot
        assert dot is not None
        row0 = T.bind(mk.start_of(plan.rows, index))
        below = range(1 if rows <= TILE_ROWS else 2)
        beside = range(-(-width // plan.tile.lanes) if mk.is_number(width) else plan.tile.vectors)
        products = Products(dot, below, beside)

        def multiply(operand: Expr, at: Expr) -> None:
            products.clear()
            if plan.shape.k:
                first, last = self.window.steps
                with mk.serial(first // TILE_ROWS, last // TILE_ROWS) as k:
                    products.add(
                        lambda i: self._left_tile(row0 + i * TILE_ROWS, k),
                        lambda j: right_tile(self.panels, operand, panel, k, j),
                    )
            products.store(self.sums, plan.tile.columns, at)

        if plan.shape.gates == 1:
            multiply(self.batch, 0)
        else:
            with mk.serial(0, plan.shape.gates) as gate:
                multiply(gate, gate * plan.tile_rows)
        self._store_tile(panel, width, row0, rows)

    def _left_tile(self, row: Expr, k: Expr) -> tuple[Expr, Expr]:
        """Return address and stride of 64 bytes of 16 rows."""
        plan = self.plan
        element = storage_bytes(plan.staged_dtype)
        column = k * (TILE_BYTES // element)
        if self.schedule.stage_left:
            first = self.staged[row - self.first_row, column]
            return T.address_of(first), T.int64(plan.staged_stride * element)
        stride = plan.shape.left_stride if plan.shape.left_stride != 0 else plan.shape.k
        return T.address_of(self.load_a(self.batch, row, column)), mk.as_index(stride * element)


class TileTaskEmitter(TileEmitter):
    """A task that is one such GEMM: it configures the registers, and releases them."""

    def __init__(self, plan: Any, load_a: Any, b: Any, epilogue: Any, scratch: Expr, window: Any) -> None:
        super().__init__(plan, load_a, b, epilogue, scratch, window)
        self.scratch = scratch

    def run(self, task: Expr) -> None:
        with configured(self.scratch, self.plan.scratch_bytes - self.plan.shapes_bytes):
            super().run(task)


@contextmanager
def configured(scratch: Expr, offset: Size) -> Iterator[None]:
    """Configure the registers within the context; the configuration lies `offset` bytes into the workspace."""
    shapes = mk.scratch_buffer(scratch, offset, (SHAPES_BYTES // 4,), "int32", "shapes")
    for place, word in enumerate(SHAPES.view(np.int32)):
        T.buffer_store(shapes, T.int32(int(word)), [place])
    _do("ldtilecfg", T.address_of(shapes[0]))
    yield
    _do("tilerelease")


@dataclass(frozen=True)
class Products:
    """Products of one or two row tiles, `below` each other, and one or two column tiles, `beside` each other."""

    dot: Dot
    below: range
    beside: range

    @property
    def _sums(self) -> list[tuple[int, int, int]]:
        """Register of each sum, with its vertical and horizontal position."""
        return [(SUMS + 2 * i + j, i, j) for i in self.below for j in self.beside]

    def clear(self) -> None:
        for number, _, _ in self._sums:
            _do("tilezero", T.int8(number))

    def add(self, left: Callable[[int], tuple[Expr, Expr]], right: Callable[[int], tuple[Expr, Expr]]) -> None:
        """Add 16 steps; `left` and `right` give address and stride of a tile by its position."""
        for j in self.beside:
            _do("tileloadd64", T.int8(RIGHT + j), *right(j))
        for i in self.below:
            _do("tileloadd64", T.int8(LEFT + i), *left(i))
        for number, i, j in self._sums:
            _do(self.dot.name, T.int8(number), T.int8(LEFT + i), T.int8(RIGHT + j))

    def store(self, sums: Any, columns: int, row: Expr = 0) -> None:
        """Store the sums into a buffer with rows of `columns` sums, from a row on."""
        stride = T.int64(columns * storage_bytes(self.dot.sums))
        for number, i, j in self._sums:
            _do("tilestored64", T.int8(number), T.address_of(sums[row + i * TILE_ROWS, j * TILE_ROWS]), stride)


def right_tile(panels: Panels, batch: Expr, panel: Expr, k: Expr, j: int) -> tuple[Expr, Expr]:
    """Return address and stride of the k-th 16 steps of 16 columns."""
    operand, tile = panels.operand, panels.tile
    step, column = k * TILE_ROWS, j * TILE_ROWS * panels.neighbours
    if panels.workspace is not None:
        first = panels.workspace[step, column]
    else:
        assert isinstance(operand, PackedOperand)
        first = operand.buffer[operand.group(batch), panel, step, column]
    return T.address_of(first), T.int64(tile.columns * panels.neighbours * storage_bytes(panels.dtype))


def _do(name: str, *operands: Expr) -> None:
    T.evaluate(T.call_llvm_intrin("void", f"llvm.x86.{name}", *operands))
