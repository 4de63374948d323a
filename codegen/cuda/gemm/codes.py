"""Blockwise-quantised weights where a kernel reads them: codes, scales and zero points, and their float values.

An integer becomes a float without a conversion: as the lowest bits of 2 ** 23, from which the zero point is subtracted
that was encoded in the same way. That is exact.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, from_storage, storage_dtype
from tilestitch.codegen.compute.movement import clamp
from tilestitch.codegen.compute.opaque import wrapped
from tilestitch.codegen.cuda.pieces import named, registers, unrolled, when, zero
from tilestitch.codegen.cuda.surroundings import Surroundings
from tilestitch.compiler.ir.graph import Value
from tilestitch.passes.plan.gemm.codes import LUMP_BYTES, Codes

WIDE_FROM = 1 << 31
"""Size in bytes from which indices take 64 bits."""
MANTISSA = 0x4B000000
"""The bits of the float32 2 ** 23."""


class Weights:
    """Packed weights of a batch element in a kernel's memory; columns, codes (k), lumps and blocks are numbered as in
    `Codes`.
    """

    def __init__(self, around: Surroundings, value: Value, codes: Codes, batch: Expr) -> None:
        self.buffer, self.codes, self.form = around.flat[value], codes, codes.form
        self._first = self._matrix(around, batch)

    def _matrix(self, around: Surroundings, batch: Expr) -> Expr:
        """Return the lump with which the matrix of a batch element begins. Indices out of range, which another kernel
        reports, choose the first or the last one.
        """
        size = self.codes.matrices
        if size == 1:
            return 0
        index = clamp(wrapped(around.load(around.group.anchor.inputs[2], (batch,)), size), size)
        first = index * (self.codes.matrix_bytes // LUMP_BYTES)
        return named(first if self.codes.nbytes >= WIDE_FROM else T.cast(first, "int32"))

    @cached_property
    def scales(self) -> Any:
        return self._view(storage_dtype(self.form.scales), self.form.scale_bytes)

    @cached_property
    def table(self) -> Any:
        """The memory as float32, at the end of which is the table of non-integer codes."""
        return self._view("float32", 4)

    def _view(self, dtype: str, itemsize: int) -> Any:
        return T.decl_buffer((self.codes.nbytes // itemsize,), dtype, data=self.buffer.data)

    def _of(self, line: Expr, column: Expr) -> Expr:
        """Return the number of an element of [lines, columns]."""
        wide = self.codes.nbytes >= WIDE_FROM and not isinstance(line, int)
        return (T.cast(line, "int64") if wide else line) * self.codes.columns + column

    # -- reading -----------------------------------------------------------------------------------------------------

    def load_lump(self, target: Any, at: Expr, column: Expr, lump: Expr) -> None:
        """Load the four words of a lump to registers from `at` on."""
        source = T.address_of(self.buffer[(self._first + self._of(lump, column)) * LUMP_BYTES])
        T.evaluate(T.call_extern("void", "ts_load_16", T.address_of(target[at]), source))

    def word(self, column: Expr, k: Expr) -> Expr:
        """Return the word that begins with code k."""
        codes = self.codes
        line = self._first + self._of(k // codes.lump, column)
        return self._words[line * (LUMP_BYTES // 4) + k % codes.lump // codes.word]

    @cached_property
    def _words(self) -> Any:
        return self._view("uint32", 4)

    def block(self, k: Expr) -> Expr:
        """Return the block that a code belongs to."""
        return 0 if self.codes.blocks == 1 else k // self.form.block

    def scale(self, column: Expr, block: Expr) -> Expr:
        """Return the scale as float32."""
        each = self.form.scale_bytes
        first = self._first * (LUMP_BYTES // each) + self.codes.scales_at // each
        return from_storage(self.scales[first + self._of(block, column)], self.form.scales)

    def zero(self, column: Expr, block: Expr) -> Expr:
        """Return the zero point in the form for `value`; None for table codes without one."""
        if not self.form.zeros:
            return tirx.const(float((1 << 23) + self.codes.middle), "float32") if self.form.integers else None
        code = T.cast(self.buffer[self._first * LUMP_BYTES + self.codes.zeros_at + self._of(block, column)], "uint32")
        return self._float(code)

    # -- arithmetic --------------------------------------------------------------------------------------------------

    def value(self, word: Expr, number: Expr, zero: Expr | None) -> Expr:
        """Code `number` of a word, less its zero point, as float32."""
        mask = T.uint32((1 << self.form.bits) - 1)
        found = self._float(T.bitwise_and(self.shifted(word, number), mask))
        return found if zero is None else found - zero

    def shifted(self, word: Expr, number: Expr) -> Expr:
        """Return a word whose lowest bits are those of code `number`. Codes after an even one have the same positions
        as after the first one.
        """
        by = number * 8 if self.form.bits == 8 else number // 2 * 4 + number % 2 * 16
        return T.shift_right(word, T.cast(by, "uint32"))

    def _float(self, code: Expr) -> Expr:
        """Return an integer added to 2 ** 23, or an entry of a table."""
        if self.form.integers:
            return T.reinterpret("float32", T.bitwise_or(code, T.uint32(MANTISSA)))
        return self.table[self.codes.table_at // 4 + T.cast(code, "int32")]

    def element(self, column: Expr, k: Expr) -> Expr:
        """Return one weight as float32."""
        block = named(self.block(k))
        word = named(self.word(column, k))
        return self.value(word, named(k % self.codes.word), self.zero(column, block)) * self.scale(column, block)


class Waiting:
    """Codes in a thread's registers, `width` neighbours of one column per round, on their way to shared memory.

    They stay packed. A round is a whole number of words, or a power-of-two part of one; its codes share a scale.
    """

    def __init__(self, weights: Weights, rounds: int, width: int) -> None:
        self.weights, self.width = weights, width
        self.words = max(1, width // weights.codes.word)
        self.packed = registers(rounds * self.words, "uint32")
        self.scales = registers(rounds, "float32")
        self.zeros = registers(rounds, "float32") if weights.form.zeros else None

    def fetch(self, round_: Expr, column: Expr, k: Expr, there: Expr | None) -> None:
        """Fetch a thread's codes of a round, zeros where `there` is false. `k`: of the first code."""
        weights, first = self.weights, round_ * self.words
        if there is not None:
            with unrolled(self.words) as i:
                T.buffer_store(self.packed, zero("uint32"), [first + i])
            self._store(round_, zero("float32"), zero("float32"))
        with when(there):
            with unrolled(self.words) as i:
                word = weights.word(column, k + i * weights.codes.word)
                if self.width < weights.codes.word:
                    word = weights.shifted(word, named(k % weights.codes.word))
                T.buffer_store(self.packed, word, [first + i])
            block = named(weights.block(k))
            self._store(round_, weights.scale(column, block), weights.zero(column, block))

    def _store(self, round_: Expr, scale: Expr, point: Expr | None) -> None:
        T.buffer_store(self.scales, scale, [round_])
        if self.zeros is not None:
            T.buffer_store(self.zeros, point, [round_])

    def values(self, round_: Expr) -> Any:
        """Return the float32 values of a round, in registers."""
        weights, values = self.weights, registers(self.width, "float32")
        point = self.zeros[round_] if self.zeros is not None else weights.zero(0, 0)
        each = min(self.width, weights.codes.word)
        with unrolled(self.width) as i:
            word = self.packed[round_ * self.words + i // each]
            T.buffer_store(values, weights.value(word, i % each, point) * self.scales[round_], [i])
        return values
