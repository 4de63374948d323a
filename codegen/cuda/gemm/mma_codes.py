"""Blockwise-quantised weights as an operand of the tensor cores: a thread reads eight codes and stores eight half
floats, or four and four TF32.

A piece stays packed while it waits in registers; it becomes floats on its way to shared memory, where it has the layout
of any other operand.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.cuda.gemm.codes import Waiting, Weights
from tilestitch.codegen.cuda.gemm.fragments import Piece
from tilestitch.codegen.cuda.pieces import named, registers, run, unrolled
from tilestitch.codegen.cuda.surroundings import Surroundings

PACKING = {"float16": "ts_pack_f16", "bfloat16": "ts_pack_bf16"}
"""Device functions that round two float32 and pack them in a register."""
WORDS = 4
"""Number of 32-bit words stored in one access."""


class CodesPiece:
    """The right operand's piece of a stage. `words`: shared memory as uint32."""

    def __init__(self, around: Surroundings, piece: Piece, words: Any, batch: Expr) -> None:
        codes = piece.operand.codes
        assert codes is not None
        self.piece, self.to, self.words = piece, codes.to, words
        self.waiting = Waiting(Weights(around, piece.operand.value, codes, batch), piece.rounds, piece.width)

    def keep(self, round_: Expr, stage: Expr, row: Expr, k: Expr) -> None:
        """Store the floats of a round, a chunk of 16 bytes, to the stage that begins at an element."""
        values, chunk, stored = self.waiting.values(round_), self.piece.chunk, registers(WORDS, "uint32")
        with unrolled(WORDS) as i:
            T.buffer_store(stored, self._word(values, i * (chunk // WORDS)), [i])
        at = named((stage + self.piece.at(row, k)) // chunk) * WORDS
        T.buffer_store(self.words, stored[run(0, WORDS)], [run(at, WORDS)])

    def _word(self, values: Any, at: Expr) -> Expr:
        """Return a float32, or two half floats, from a value on."""
        packing = PACKING.get(self.to)
        if packing is None:
            return T.reinterpret("uint32", values[at])
        return tirx.call_extern("uint32", packing, values[at], values[at + 1])
