"""A right operand known at run time, packed by each task for an instruction that multiplies pairs of bfloat16.

A panel holds, for each step, the pair of every column: neighbours along the reduction, which are one word of 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import named
from tilestitch.codegen.cpu.contraction import dots, panels
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.codegen.cpu.contraction.panels import LoadedOperand
from tilestitch.codegen.cpu.contraction.transpose import transposed
from tilestitch.compiler.ir.sizes import Size, ceil_div
from tilestitch.passes.plan.cpu.tiling import RegisterTile

PAIR = 2
STORED = "uint16"
"""Of one bfloat16."""
HALF = "bfloat16"

Put = Callable[[Expr, Expr, Expr], None]
"""``put(step, place, value)`` stores an element, or a vector of them, at a place of a step of a panel."""


def pack_pairs(
    operand: LoadedOperand, k: Size, n: Size, tile: RegisterTile, some: tuple[Expr, Expr], steps: tuple[Expr, Expr],
    buffer: Any,
) -> None:  # fmt: skip
    """Packs some steps, which are pairs along `k`, of some panels of batch element 0 into `buffer`
    [1, panels, pairs of k, columns * 2]. What lies after the last of `k`, and columns that do not exist, are zero.
    """
    first, room = steps
    pairs = ceil_div(k, PAIR)
    known = mk.is_number(room) and mk.is_number(pairs)
    last = min(room, pairs) if known else T.bind(T.min(mk.as_index(room), mk.as_index(pairs)))

    def copy(panel: Expr, width: Expr) -> None:
        pack_panel(
            operand, (0, panel), k, width, tile, (first, last),
            lambda step, place, value: T.buffer_store(buffer, value, [0, panel, step, place]), room,
        )  # fmt: skip

    panels.for_each_panel(n, tile.columns, *some, copy)


def pack_panel(
    operand: LoadedOperand, at: tuple[Expr, Expr], k: Size, width: Expr, tile: RegisterTile, steps: tuple[Expr, Expr],
    put: Put, room: Expr | None = None,
) -> None:  # fmt: skip
    """Packs some steps of a panel, of which `width` columns exist; `at`: its batch element, and its number. Steps from
    the last one to `room` become zero.
    """
    panel = _Panel(operand, at, k, width, tile, put)
    panel.copy(*steps)
    known = mk.is_number(room) and mk.is_number(steps[1])
    if room is not None and not (known and room == steps[1]):
        panel.clear(steps[1], room)


class _Panel:
    """One panel, of which `width` columns exist."""

    def __init__(
        self, operand: LoadedOperand, at: tuple[Expr, Expr], k: Size, width: Expr, tile: RegisterTile, put: Put
    ) -> None:
        self.operand, self.k, self.tile, self.put = operand, k, tile, put
        (self.batch, self.panel), self.width, self.lanes = at, width, tile.lanes

    def copy(self, first: Expr, last: Expr) -> None:
        """Steps from a first one to after the last."""
        if not mk.is_number(self.width) or self.width < self.tile.columns:
            self.clear(first, last)
        whole = T.bind(T.min(mk.as_index(last), mk.as_index(self.k // PAIR)))
        if self.operand.contiguous == "n":
            self._side_by_side(first, whole)
        else:
            self._transposed(first, whole)
        with mk.serial(whole, last) as step, mk.serial(0, self.width) as column:  # the last one, if it is half a pair
            self._store_one(step, column, 0)
            self.put(step, column * PAIR + 1, T.uint16(0))

    def clear(self, first: Expr, last: Expr) -> None:
        """Steps become zero."""
        with mk.serial(first, last) as step, mk.serial(0, self.tile.vectors) as vector:
            self._store(step, vector * self.lanes, tirx.Broadcast(T.uint16(0), PAIR * self.lanes))

    def _load(self, k: Expr, column: Expr) -> Expr:
        """The bits of an element."""
        value = self.operand.load(self.batch, k, self.panel * self.tile.columns + column)
        return dots.staged(value, HALF, HALF)

    def _store(self, step: Expr, column: Expr, pairs: Expr) -> None:
        """A vector of pairs of neighbouring columns."""
        self.put(step, T.ramp(mk.as_index(column * PAIR), T.int64(1), PAIR * self.lanes), pairs)

    def _store_one(self, step: Expr, column: Expr, place: int) -> None:
        """One element of a pair."""
        self.put(step, column * PAIR + place, self._load(PAIR * step + place, column))

    def _side_by_side(self, first: Expr, last: Expr) -> None:
        """Neighbouring columns lie together: two rows of them are dealt out to pairs."""
        whole = self.width // self.lanes
        with mk.serial(first, last) as step:
            with mk.serial(0, whole) as number:
                column = T.bind(number * self.lanes)
                words = T.alloc_buffer((self.lanes,), "uint32", scope="local")

                def word(lane: Expr) -> None:
                    low, high = (T.cast(self._load(PAIR * step + at, column + lane), "uint32") for at in range(PAIR))
                    T.buffer_store(words, T.bitwise_or(low, T.shift_left(high, T.uint32(16))), [lane])

                mk.vector(self.lanes, word)
                both = words[T.ramp(T.int64(0), T.int64(1), self.lanes)]
                self._store(step, column, T.reinterpret(f"{STORED}x{PAIR * self.lanes}", both))
            self._one_by_one(step, whole * self.lanes)

    def _transposed(self, first: Expr, last: Expr) -> None:
        """Neighbours along the reduction lie together, as words: square tiles of them are transposed in registers."""
        lanes, inside = self.lanes, self.width // self.lanes * self.lanes
        first = T.bind(mk.as_index(first))
        tiles = T.bind(T.max(last - first, T.int64(0)) // lanes)
        with mk.serial(0, tiles) as number, mk.serial(0, self.width // lanes) as group:
            step, column = T.bind(first + number * lanes), T.bind(group * lanes)
            rows = T.alloc_buffer((PAIR * lanes * lanes,), STORED, scope="local")
            vectors = []
            for row in range(lanes):
                begin = PAIR * lanes * row

                def copy(lane: Expr, row: int = row, begin: int = begin) -> None:
                    T.buffer_store(rows, self._load(PAIR * step + lane, column + row), [begin + lane])

                mk.vector(PAIR * lanes, copy)
                halves = rows[T.ramp(T.int64(begin), T.int64(1), PAIR * lanes)]
                vectors.append(named(T.reinterpret(f"uint32x{lanes}", halves)))
            for i, vector in enumerate(transposed(vectors)):
                self._store(step + i, column, T.reinterpret(f"{STORED}x{PAIR * lanes}", vector))
        after = T.bind(first + tiles * lanes)
        with mk.serial(first, after) as step:
            self._one_by_one(step, inside)
        with mk.serial(after, last) as step:
            self._one_by_one(step, 0)

    def _one_by_one(self, step: Expr, first: Expr) -> None:
        """A step of the columns from `first` on."""
        with mk.serial(first, self.width) as column:
            for place in range(PAIR):
                self._store_one(step, column, place)
