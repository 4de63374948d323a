"""Fragments of the tensor cores' 16 x 8 multiply-adds, and the operands' layout in shared memory for them.

Sixteen bytes are one chunk, whatever the element: an instruction takes two chunks of every row along k, eight half
floats, four TF32 or sixteen 8-bit integers each. `ldmatrix` moves chunks regardless of their contents, so pieces
contiguous along k are loaded alike for all dtypes. Pieces contiguous along their rows are transposed as they are
loaded: by `ldmatrix.trans` for half floats, word by word for TF32. 8-bit integers are always contiguous along k.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, storage_bits
from tilestitch.codegen.cuda.gemm.indexed import Operand
from tilestitch.codegen.cuda.pieces import unrolled
from tilestitch.passes.plan.gemm.gemm import Gemm

CHUNK_BYTES = 16
LINES = 8
"""Lines of a matrix that `ldmatrix` loads."""


@dataclass(frozen=True)
class Instruction:
    """A matrix instruction: the device function that issues it, the dtype of its sums, bytes of an element.

    `rounding`: the device function that rounds a register of an operand beforehand; none if empty.
    """

    function: str
    sums: str
    itemsize: int
    rounding: str = ""

    @property
    def chunk(self) -> int:
        """Elements of 16 bytes."""
        return CHUNK_BYTES // self.itemsize

    @property
    def step(self) -> int:
        """Steps of the reduction of one instruction."""
        return 2 * self.chunk


INSTRUCTIONS = {
    ("float16", "float16"): Instruction("ts_mma_m16n8k16_f16", "float32", 2),
    ("bfloat16", "bfloat16"): Instruction("ts_mma_m16n8k16_bf16", "float32", 2),
    ("float32", "float32"): Instruction("ts_mma_m16n8k8_tf32", "float32", 4, "ts_round_tf32"),
    ("int8", "int8"): Instruction("ts_mma_m16n8k32_s8_s8", "int32", 1),
    ("int8", "uint8"): Instruction("ts_mma_m16n8k32_s8_u8", "int32", 1),
    ("uint8", "int8"): Instruction("ts_mma_m16n8k32_u8_s8", "int32", 1),
    ("uint8", "uint8"): Instruction("ts_mma_m16n8k32_u8_u8", "int32", 1),
    ("float8_e4m3fn", "float8_e4m3fn"): Instruction("ts_mma_m16n8k32_e4m3_e4m3", "float32", 1),
    ("float8_e4m3fn", "float8_e5m2"): Instruction("ts_mma_m16n8k32_e4m3_e5m2", "float32", 1),
    ("float8_e5m2", "float8_e4m3fn"): Instruction("ts_mma_m16n8k32_e5m2_e4m3", "float32", 1),
    ("float8_e5m2", "float8_e5m2"): Instruction("ts_mma_m16n8k32_e5m2_e5m2", "float32", 1),
}
"""The mma.sync instructions, by the dtypes of the operands."""


def find_instruction(gemm: Gemm) -> Instruction | None:
    """Return the instruction for a GEMM; None if there is none, or it would round more than permitted."""
    found = INSTRUCTIONS.get((gemm.a.dtype, gemm.b.dtype))
    if found is None or found.sums != gemm.acc_dtype or (found.rounding and not gemm.tf32):
        return None
    return found


@dataclass(frozen=True)
class Piece:
    """One operand's piece [rows, bk] of a stage: its layout in shared memory, and how threads bring it there.

    It consists of lines of chunks, swizzled so that neither `ldmatrix` nor loads of words cause bank conflicts.
    `offset`: its start, in elements.
    """

    operand: Operand
    rows: int
    bk: int
    threads: int
    offset: int
    most_waiting: int

    @cached_property
    def chunk(self) -> int:
        return 8 * CHUNK_BYTES // storage_bits(self.operand.dtype)

    @property
    def along_k(self) -> bool:
        """Whether it is contiguous along k in shared memory, rather than along rows."""
        return self.operand.contiguous == "k" or self.chunk == CHUNK_BYTES

    @cached_property
    def copied(self) -> bool:
        """Whether it is brought by asynchronous copies."""
        return self.operand.vector() == self.chunk and self.along_k == (self.operand.contiguous == "k")

    @property
    def width(self) -> int:
        """Number of elements that a thread brings per round."""
        return self.chunk if self.copied or self.operand.codes is not None else 1

    @property
    def prefetched(self) -> bool:
        """Whether it waits in registers while the previous piece is multiplied: if it is small, and easily
        addressed.
        """
        if self.operand.codes is not None:
            return True
        return not self.copied and self.operand.memory is not None and self.rounds <= self.most_waiting

    @property
    def rounds(self) -> int:
        each = self.threads * self.width
        assert self.rows * self.bk % each == 0, (self.rows, self.bk, self.threads)
        return self.rows * self.bk // each

    def place(self, thread: Expr, round_: Expr) -> tuple[Expr, Expr]:
        """Return row and k, within the piece, of a thread's elements of a round: neighbours in memory by neighbouring
        threads.
        """
        number = thread + round_ * self.threads
        width = self.width
        by_k = self.operand.contiguous == "k"
        units = (self.bk if by_k else self.rows) // width
        along, across = number % units * width, number // units
        return (across, along) if by_k else (along, across)

    def at(self, row: Expr, k: Expr) -> Expr:
        """Return the position of an element within a stage."""
        across, along = (row, k) if self.along_k else (k, row)
        line = self.bk if self.along_k else self.rows
        inner = along % self.chunk if not isinstance(along, int) or along % self.chunk else 0
        swizzled = T.bitwise_xor(along // self.chunk, self._swizzle(across, line // self.chunk))
        return self.offset + across * line + swizzled * self.chunk + inner

    def _swizzle(self, across: Expr, chunks: int) -> Expr:
        """Return what the chunk numbers of a line are permuted by, against bank conflicts."""
        if not self.along_k and self.chunk == 4:
            # Words of four lines and eight rows, thus two chunks, are loaded together.
            return across % 4 * 2
        return across % 8 if chunks >= 8 else across // 2 % 4


def load_fragments(
    instruction: Instruction, piece: Piece, shared: Any, start: Expr, lane: Expr, row: Expr, k: Expr, target: Any,
    number: Expr, left: bool,
) -> None:  # fmt: skip
    """Load four registers of a thread, from `number * 4` on: one fragment of the left operand, or two of the right one.

    `shared`: the stages, as elements. `start`: of the stage. `row`, `k`: of the fragment's first element.
    """
    half = instruction.chunk
    # Matrices 0 to 3, as (rows, k) beyond the first: left (0, 0), (8, 0), (0, half), (8, half); right (0, 0), (0,
    # half), (8, 0), (8, half). Lanes 8 i to 8 i + 7 address the lines of matrix i.
    if piece.along_k or instruction.itemsize == 2:
        low, high, within = lane // LINES % 2, lane // (2 * LINES), lane % LINES
        down, on = (low, high) if left else (high, low)
        first = (row + down * LINES + within, k + on * half) if piece.along_k else (row + down * 8, k + on * 8 + within)
        load = "ts_ldmatrix_x4" if piece.along_k else "ts_ldmatrix_x4_trans"
        source = T.address_of(shared[start + piece.at(*first)])
        T.evaluate(T.call_extern("void", load, T.address_of(target[number * 4]), source))
    else:
        with unrolled(4) as i:
            down, on = (i % 2, i // 2) if left else (i // 2, i % 2)
            at = piece.at(row + down * LINES + lane // 4, k + on * half + lane % 4)
            T.buffer_store(target, T.reinterpret("uint32", shared[start + at]), [number * 4 + i])
    if instruction.rounding:
        T.evaluate(T.call_extern("void", instruction.rounding, T.address_of(target[number * 4])))
