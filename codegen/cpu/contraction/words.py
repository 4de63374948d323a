"""A right operand known at run time, packed by each task for an instruction that multiplies groups of 32 bits.

A panel holds, for each step, a word of every column: two bfloat16 or four bytes, neighbours along the reduction.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import named, storage_dtype
from tilestitch.codegen.cpu.contraction import dots, panels
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.codegen.cpu.contraction.panels import LoadedOperand
from tilestitch.codegen.cpu.contraction.transpose import transposed
from tilestitch.compiler.ir.sizes import Size, ceil_div
from tilestitch.passes.plan.cpu.isa import WORD_BYTES, Dot
from tilestitch.passes.plan.cpu.tiling import RegisterTile

Put = Callable[[Expr, Expr, Expr], None]
"""``put(step, place, value)`` stores an element, or a vector of them, at a position of a step of a panel."""


def pack_words(
    operand: LoadedOperand, dot: Dot, k: Size, n: Size, tile: RegisterTile, some: tuple[Expr, Expr],
    steps: tuple[Expr, Expr], buffer: Any,
) -> None:  # fmt: skip
    """Pack some steps, which are groups along `k`, of some panels of batch element 0 into `buffer` [1, panels, groups
    of k, columns * group]. Elements beyond `k`, and missing columns, are zero.
    """
    first, room = steps
    words = ceil_div(k, dot.group)
    known = mk.is_number(room) and mk.is_number(words)
    last = min(room, words) if known else T.bind(T.min(mk.as_index(room), mk.as_index(words)))

    def copy(panel: Expr, width: Expr) -> None:
        pack_panel(
            operand, dot, (0, panel), k, width, tile, (first, last),
            lambda step, place, value: T.buffer_store(buffer, value, [0, panel, step, place]), room,
        )  # fmt: skip

    panels.for_each_panel(n, tile.columns, *some, copy)


def pack_panel(
    operand: LoadedOperand, dot: Dot, at: tuple[Expr, Expr], k: Size, width: Expr, tile: RegisterTile,
    steps: tuple[Expr, Expr], put: Put, room: Expr | None = None,
) -> None:  # fmt: skip
    """Pack some steps of a panel, of which `width` columns exist; `at`: its batch element, and its number. Steps from
    the end up to `room` become zero.
    """
    panel = _Panel(operand, dot, at, k, width, tile, put)
    panel.copy(*steps)
    known = mk.is_number(room) and mk.is_number(steps[1])
    if room is not None and not (known and room == steps[1]):
        panel.clear(steps[1], room)


class _Panel:
    """One panel, of which `width` columns exist."""

    def __init__(
        self, operand: LoadedOperand, dot: Dot, at: tuple[Expr, Expr], k: Size, width: Expr, tile: RegisterTile,
        put: Put,
    ) -> None:  # fmt: skip
        self.operand, self.k, self.tile, self.put = operand, k, tile, put
        self.dtype, self.group, self.stored = dot.right, dot.group, storage_dtype(dot.right)
        self.bits = 8 * WORD_BYTES // self.group
        (self.batch, self.panel), self.width, self.lanes = at, width, tile.lanes

    def copy(self, first: Expr, last: Expr) -> None:
        """Copy steps from a first one to an end."""
        if not mk.is_number(self.width) or self.width < self.tile.columns:
            self.clear(first, last)
        whole = T.bind(T.min(mk.as_index(last), mk.as_index(self.k // self.group)))
        if self.operand.contiguous == "n":
            self._side_by_side(first, whole)
        else:
            self._transposed(first, whole)
        with mk.serial(whole, last) as step, mk.serial(0, self.width) as column:  # the last one, if it is not whole
            self._store_some(step, column)

    def clear(self, first: Expr, last: Expr) -> None:
        """Zero the steps."""
        zero = tirx.Broadcast(tirx.const(0, self.stored), self.group * self.lanes)
        with mk.serial(first, last) as step, mk.serial(0, self.tile.vectors) as vector:
            self._store(step, vector * self.lanes, zero)

    def _load(self, k: Expr, column: Expr) -> Expr:
        """Return an element as it is stored: bfloat16 by its bits."""
        value = self.operand.load(self.batch, k, self.panel * self.tile.columns + column)
        return dots.staged(value, self.dtype, self.dtype)

    def _store(self, step: Expr, column: Expr, words: Expr) -> None:
        """Store a vector of the groups of adjacent columns."""
        self.put(step, T.ramp(mk.as_index(column * self.group), T.int64(1), self.group * self.lanes), words)

    def _store_one(self, step: Expr, column: Expr, place: int) -> None:
        """Store one element of a group."""
        self.put(step, column * self.group + place, self._load(self.group * step + place, column))

    def _store_some(self, step: Expr, column: Expr) -> None:
        """Store a group that the end of `k` cuts off, whose first element exists."""
        self._store_one(step, column, 0)
        for place in range(1, self.group):
            exists = self.group * step + place < mk.as_index(self.k)
            with T.If(exists):
                with T.Then():
                    self._store_one(step, column, place)
                with T.Else():
                    self.put(step, column * self.group + place, tirx.const(0, self.stored))

    def _side_by_side(self, first: Expr, last: Expr) -> None:
        """Pack a matrix with contiguous columns: the rows of a group are interleaved to words."""
        whole = self.width // self.lanes
        with mk.serial(first, last) as step:
            with mk.serial(0, whole) as number:
                column = T.bind(number * self.lanes)
                words = T.alloc_buffer((self.lanes,), "uint32", scope="local")

                def word(lane: Expr) -> None:
                    elements = [self._load(self.group * step + at, column + lane) for at in range(self.group)]
                    T.buffer_store(words, self._joined(elements), [lane])

                mk.vector(self.lanes, word)
                self._store(step, column, self._apart(words[T.ramp(T.int64(0), T.int64(1), self.lanes)]))
            self._one_by_one(step, whole * self.lanes)

    def _joined(self, elements: list[Expr]) -> Expr:
        """Return the word of a group; the first element has its lowest bits."""
        bits = [T.cast(T.reinterpret(f"uint{self.bits}", element), "uint32") for element in elements]
        shifted = [T.shift_left(each, T.uint32(at * self.bits)) if at else each for at, each in enumerate(bits)]
        return reduce(T.bitwise_or, shifted)

    def _apart(self, words: Expr) -> Expr:
        """Return the elements of a vector of words."""
        return T.reinterpret(f"{self.stored}x{self.group * self.lanes}", words)

    def _transposed(self, first: Expr, last: Expr) -> None:
        """Pack a matrix contiguous along the reduction: square tiles of words are transposed in registers."""
        lanes, inside = self.lanes, self.width // self.lanes * self.lanes
        first = T.bind(mk.as_index(first))
        tiles, run = T.bind(T.max(last - first, T.int64(0)) // lanes), self.group * lanes
        with mk.serial(0, tiles) as number, mk.serial(0, self.width // lanes) as block:
            step, column = T.bind(first + number * lanes), T.bind(block * lanes)
            rows = T.alloc_buffer((run * lanes,), self.stored, scope="local")
            vectors = []
            for row in range(lanes):

                def copy(lane: Expr, row: int = row) -> None:
                    T.buffer_store(rows, self._load(self.group * step + lane, column + row), [run * row + lane])

                mk.vector(run, copy)
                groups = rows[T.ramp(T.int64(run * row), T.int64(1), run)]
                vectors.append(named(T.reinterpret(f"uint32x{lanes}", groups)))
            for i, vector in enumerate(transposed(vectors)):
                self._store(step + i, column, self._apart(vector))
        after = T.bind(first + tiles * lanes)
        with mk.serial(first, after) as step:
            self._one_by_one(step, inside)
        with mk.serial(after, last) as step:
            self._one_by_one(step, 0)

    def _one_by_one(self, step: Expr, first: Expr) -> None:
        """Store a step of the columns from `first` on."""
        with mk.serial(first, self.width) as column:
            for place in range(self.group):
                self._store_one(step, column, place)
