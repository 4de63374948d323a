"""GEMMs of one float row with blockwise-quantised weights, in integers: the row becomes four rows of bytes, its planes.

These are the digits to base 256, from -128 to 127, of its elements as 31-bit integers (`docs/quantised.md`). The sums
of a block are exact for each plane, also as float32. A row is odd, and is multiplied as floats, where few elements are
so large that most others of their block would be inexact, since zero weights may hide these few.
"""

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.block_dots import MAGNITUDE, BlockDotEmitter, reduced
from tilestitch.codegen.cpu.contraction.blocks import EXPONENT_BIAS, MANTISSA_BITS, BlockPanels, splat
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.passes.plan.cpu.gemm import ROUNDED
from tilestitch.passes.plan.cpu.tiling import RegisterTile, align

DIGIT_BITS = 8
LARGEST_BITS = 30
"""Magnitudes of the integers are below two to this power."""
LEAST_EXPONENT = 64
"""Least exponent, as float32 stores it, of the largest element of a block: from there on, both powers of two are normal
numbers, and so are their products with scales of weights.
"""
BESIDE = 128.0
"""Largest ratio of a block's largest element to the sum of the others if some are inexact, or to that of the inexact
ones if these are many.
"""
MANY = 4
"""Inexact elements are many if at most this many times as many are nonzero: then the large ones are few, and zero
weights may hide them.
"""


class BlockPlaneEmitter(BlockDotEmitter):
    """A GEMM of one row with blockwise weights, in integers without rounding the row to 8 bits."""

    as_floats = False
    """Whether the code being emitted multiplies floats, for an odd row."""

    def __init__(self, plan: Any, load_a: Any, b: Any, epilogue: Any, scratch: Expr, window: Any) -> None:
        super().__init__(plan, load_a, b, epilogue, scratch, window)
        self.odd = mk.scratch_buffer(scratch, plan.scratch_bytes - align(4), (1,), "int32", "odd")

    def _stage_rows(self) -> None:
        T.buffer_store(self.odd, T.int32(0), [0])
        super()._stage_rows()

    def _round(self, row: Expr, block: Expr) -> None:
        """Convert one block of the row: its digits, its power of two, and what is subtracted from its sums."""
        form, planes = self._form, self.plan.planes
        lanes = next(n for n in (self.plan.tile.lanes, 8, 4) if form.block % n == 0)
        vector = T.ramp(T.int64(0), T.int64(1), lanes)
        most = T.alloc_buffer((lanes,), "int32", scope="local")
        total, lossy = (T.alloc_buffer((lanes,), "float32", scope="local") for _ in range(2))
        some, missed = (T.alloc_buffer((lanes,), "int32", scope="local") for _ in range(2))
        totals = [T.alloc_buffer((lanes,), "int32", scope="local") for _ in range(planes)]
        none, nothing = splat(T.int32(0), lanes), splat(mk.constant(0, "float32"), lanes)
        for each in (most, some, missed, *totals):
            T.buffer_store(each, none, [vector])
        for each in (total, lossy):
            T.buffer_store(each, nothing, [vector])

        def part(number: Expr) -> Any:
            return T.ramp(block * form.block + number * lanes, T.int64(1), lanes)

        with mk.serial(0, form.block // lanes) as number:
            bits = T.reinterpret(f"int32x{lanes}", self.floats[part(number)])
            magnitude = T.bind(T.bitwise_and(bits, splat(T.int32(MAGNITUDE), lanes)))
            T.buffer_store(most, T.max(most[vector], magnitude), [vector])
            T.buffer_store(total, total[vector] + T.reinterpret(f"float32x{lanes}", magnitude), [vector])
            T.buffer_store(some, some[vector] + T.min(magnitude, splat(T.int32(1), lanes)), [vector])
        largest = T.bind(reduced(most, lanes, T.max))
        exponent = T.bind(T.max(T.shift_right(largest, T.int32(MANTISSA_BITS)), T.int32(LEAST_EXPONENT)))
        whole = LARGEST_BITS - 1 + EXPONENT_BIAS
        inverse = _power(T.int32(whole + EXPONENT_BIAS) - exponent)
        T.buffer_store(self.factors, _power(exponent - T.int32(whole - EXPONENT_BIAS)), [row, block])
        with mk.serial(0, form.block // lanes) as number:
            element = T.bind(self.floats[part(number)])
            moved = T.bind(element * splat(inverse, lanes))
            nearest = T.bind(T.nearbyint(moved))
            exact = tirx.EQ(moved, nearest)
            T.buffer_store(lossy, lossy[vector] + T.Select(exact, nothing, T.abs(element)), [vector])
            T.buffer_store(missed, missed[vector] + T.Select(exact, none, splat(T.int32(1), lanes)), [vector])
            rest: Expr = T.bind(T.cast(nearest, f"int32x{lanes}"))
            for plane in range(planes):
                byte = T.bind(T.cast(rest, f"{ROUNDED}x{lanes}"))
                digit = T.bind(T.cast(byte, f"int32x{lanes}"))
                T.buffer_store(self.staged, byte, [plane, part(number)])
                T.buffer_store(totals[plane], totals[plane][vector] + digit, [vector])
                rest = T.bind(T.shift_right(rest - digit, splat(T.int32(DIGIT_BITS), lanes)))
        for plane in range(planes):
            sum_ = reduced(totals[plane], lanes, lambda a, b: a + b)
            T.buffer_store(self.taken, self._taken(sum_), [plane, block])
        self._mark_odd(largest, *(reduced(each, lanes, lambda a, b: a + b) for each in (total, lossy, some, missed)))

    def _mark_odd(self, largest: Expr, total: Expr, lossy: Expr, some: Expr, missed: Expr) -> None:
        """Mark the row as odd if need be. `largest`: bits of a magnitude. `total`: the sum of magnitudes; `lossy`: of
        the rounded ones. `some`: the number of nonzero ones; `missed`: of rounded ones.
        """
        most, beside = T.reinterpret("float32", largest), mk.constant(BESIDE, "float32")
        alone = tirx.And(missed > T.int32(0), (total - most) * beside < most)
        few = tirx.And(missed * T.int32(MANY) >= some, tirx.And(missed > T.int32(0), lossy * beside < most))
        alone = tirx.Or(alone, few)
        exponent = T.shift_right(largest, T.int32(MANTISSA_BITS))
        small = tirx.And(exponent < T.int32(LEAST_EXPONENT), largest > T.int32(0))
        with T.If(tirx.Or(tirx.Or(alone, small), exponent >= T.int32(2 * EXPONENT_BIAS + 1))), T.Then():
            T.buffer_store(self.odd, T.int32(1), [0])

    def _tile(self, panel: Expr, width: Expr, index: Expr, rows: int) -> None:
        with T.If(tirx.EQ(self.odd[0], T.int32(0))):
            with T.Then():
                super()._tile(panel, width, index, rows)
            with T.Else():
                self.as_floats = True
                super()._tile(panel, width, index, rows)
                self.as_floats = False

    def _multiply(
        self, panel: Expr, width: Expr, index: Expr, rows: int, first_k: Expr, last_k: Expr, gate: Expr | None = None
    ) -> tuple[Any, RegisterTile, Expr]:
        if not self.as_floats:
            return super()._multiply(panel, width, index, rows, first_k, last_k, gate)
        panels, form, lanes = self.panels, self._form, self.plan.tile.lanes
        assert isinstance(panels, BlockPanels)
        vectors = -(-width // lanes) if mk.is_number(width) else self.plan.tile.vectors
        tile = RegisterTile(rows, vectors, lanes)
        total, sums = mk.allocate(tile, "float32"), mk.allocate(tile, "float32")
        zero = mk.constant(0, "float32")
        mk.fill(total, tile, zero)
        with mk.serial(0, form.blocks) as block:
            mk.fill(sums, tile, zero)
            middle = splat(mk.constant(1 << (form.bits - 1), "float32"), lanes)
            taken = [panels.zero(panel, block, v) if form.zeros else middle for v in range(vectors)]
            with mk.serial(0, form.words) as word:
                for vector in range(vectors):
                    self._add_floats(sums, vector, taken[vector], panel, block, word)
            for vector in range(vectors):
                scale, place = panels.scale(panel, block, vector), mk.columns_of(tile, vector)
                T.buffer_store(total, total[0, place] + sums[0, place] * scale, [0, place])
        return total, tile, T.bind(mk.start_of(self.plan.rows, index))

    def _add_floats(self, sums: Any, vector: int, taken: Expr, panel: Expr, block: Expr, word: Expr) -> None:
        """Add one word of each column, in the code layout for byte multiplication."""
        panels, form, lanes = self.panels, self._form, self.plan.tile.lanes
        assert isinstance(panels, BlockPanels)
        words, place = panels.word(panel, block * form.words + word, vector), mk.columns_of(self.plan.tile, vector)
        mask = splat(T.int32((1 << form.bits) - 1), lanes)
        for number in range(panels.per_word):
            shift = splat(T.int32(_place_of_code(number, form.bits) * form.bits), lanes)
            code = T.cast(T.bitwise_and(T.shift_right(words, shift), mask), f"float32x{lanes}")
            factor = splat(self.floats[block * form.block + word * panels.per_word + number], lanes)
            T.buffer_store(sums, sums[0, place] + factor * (code - taken), [0, place])

    def _scale_block(self, total: Any, sums: Any, tile: RegisterTile, panel: Expr, block: Expr, local: Expr) -> None:
        """Combine the sums of digits, the highest first, each weighted 256 times the next."""
        panels, form, lanes, planes = self.panels, self._form, tile.lanes, self.plan.planes
        assert isinstance(panels, BlockPanels)
        base = splat(mk.constant(1 << DIGIT_BITS, "float32"), lanes)
        for vector in range(tile.vectors):
            scale, place = panels.scale(panel, block, vector), mk.columns_of(tile, vector)
            zero = panels.zero(panel, block, vector) if form.zeros else None
            value = None
            for plane in reversed(range(planes)):
                digits = T.cast(sums[plane, place], f"float32x{lanes}")
                if zero is not None:
                    digits = digits - zero * splat(T.cast(self.taken[plane, block], "float32"), lanes)
                value = digits if value is None else digits + value * base
            factor = scale * splat(self.factors[local, block], lanes)
            T.buffer_store(total, total[0, place] + value * factor, [0, place])


def _place_of_code(number: int, bits: int) -> int:
    """Return the position of a code in a word: 4-bit codes are first the low halves of its bytes, then the high
    ones.
    """
    return number if bits == 8 else number % 4 * 2 + number // 4


def _power(exponent: Expr) -> Expr:
    """Return two to a power, as float32, from its exponent as that is stored."""
    return T.bind(T.reinterpret("float32", T.shift_left(exponent, T.int32(MANTISSA_BITS))))
