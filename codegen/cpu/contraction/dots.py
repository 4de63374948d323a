"""Register tiles of 32-bit sums over groups of 8-bit integers, or of half floats, by instructions that multiply a group
at once.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from tvm import tirx
from tvm.ir import StringImm
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import storage_dtype, widen
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.compiler.ir.types import HALVES
from tilestitch.passes.plan.cpu.isa import DOTS, Dot
from tilestitch.passes.plan.cpu.tiling import RegisterTile

_INTRINSICS: Mapping[tuple[str, int], str] = {
    ("vpdpbusd", 16): "llvm.x86.avx512.vpdpbusd.512",
    ("vpdpbusd", 8): "llvm.x86.avx512.vpdpbusd.256",
    ("vpdpbusd", 4): "llvm.x86.avx512.vpdpbusd.128",
    ("vpmaddwd", 16): "llvm.x86.avx512.pmaddw.d.512",
    ("vpmaddwd", 8): "llvm.x86.avx2.pmadd.wd",
    ("vpmaddwd", 4): "llvm.x86.sse2.pmadd.wd",
    ("vpmaddubsw", 16): "llvm.x86.avx512.pmaddubs.w.512",
    ("vpmaddubsw", 8): "llvm.x86.avx2.pmadd.ub.sw",
    ("vpmaddubsw", 4): "llvm.x86.ssse3.pmadd.ub.sw.128",
    ("usdot", 4): "llvm.aarch64.neon.usdot.v4i32.v16i8",
    ("sdot", 4): "llvm.aarch64.neon.sdot.v4i32.v16i8",
}
"""LLVM's names by instruction and number of sums."""

LANES = 16
MULTIPLY, ROUND = "tilestitch_vdpbf16ps", "tilestitch_vcvtneps2bf16"
"""Functions that bfloat16 kernels may call: on sums and two vectors of pairs; on a vector of float32."""

_ROUNDS = """
declare <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float>)
define linkonce_odr hidden <16 x i16> @tilestitch_vcvtneps2bf16(<16 x float> %x) alwaysinline {
  %y = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %x)
  %r = bitcast <16 x bfloat> %y to <16 x i16>
  ret <16 x i16> %r
}
"""
_WRAPPED: Mapping[str, str] = {
    "vdpbf16ps": """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define linkonce_odr hidden <16 x float> @tilestitch_vdpbf16ps(<16 x float> %s, <32 x i16> %a, <32 x i16> %b)
    alwaysinline {
  %x = bitcast <32 x i16> %a to <32 x bfloat>
  %y = bitcast <32 x i16> %b to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %s, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %r
}
"""
    + _ROUNDS,
    "bfdot": """
declare <4 x float> @llvm.aarch64.neon.bfdot.v4f32.v8bf16(<4 x float>, <8 x bfloat>, <8 x bfloat>)
define linkonce_odr hidden <4 x float> @tilestitch_bfdot(<4 x float> %s, <8 x i16> %a, <8 x i16> %b) alwaysinline {
  %x = bitcast <8 x i16> %a to <8 x bfloat>
  %y = bitcast <8 x i16> %b to <8 x bfloat>
  %r = call <4 x float> @llvm.aarch64.neon.bfdot.v4f32.v8bf16(<4 x float> %s, <8 x bfloat> %x, <8 x bfloat> %y)
  ret <4 x float> %r
}
""",
}
"""LLVM text of functions for bfloat16 instructions, which TVM cannot express: it holds bfloat16 as integers."""


def imported(dot: Dot | None) -> Any:
    """Return a context for code that uses the instruction, which adds the called functions to the kernel's module."""
    if dot is None or dot.name not in _WRAPPED:
        return nullcontext()
    return T.attr(T.int32(0), "pragma_import_llvm", _WRAPPED[dot.name])


def rounds(body: Any) -> Any:
    """Return `body` with `ROUND` as part of the module."""
    return tirx.AttrStmt(T.int32(0), "pragma_import_llvm", StringImm(_ROUNDS), body)


def staged(value: Expr, dtype: str, kept: str) -> Expr:
    """Return an element of `dtype` in its compute dtype as a copy of the left operand holds it: bfloat16 by its
    bits.
    """
    if kept not in HALVES:
        return widen(value, dtype, kept)
    return T.cast(T.shift_right(T.reinterpret("uint32", value), T.uint32(16)), "uint16")


def group_of(dot: Dot, places: Expr, load: Callable[[Expr], Expr]) -> Expr:
    """Return 32 bits: a group of neighbours, where `places` is a ramp over them; two bfloat16 are combined."""
    if dot.left not in HALVES:
        return load(places)
    first, second = (T.reinterpret("uint32", load(places.base + place)) for place in range(dot.group))
    return T.bitwise_or(T.shift_right(first, T.uint32(16)), T.bitwise_and(second, T.uint32(0xFFFF0000)))


def dot_add(
    acc: Any,
    tile: RegisterTile,
    dot: Dot,
    left: Callable[[Expr], Expr],
    right: Callable[[Expr], Expr],
    rows: Sequence[int] | None = None,
) -> None:
    """Emit one step: ``acc[row, column] +=`` the sum over a group of ``left(row)`` times that of ``right(column)``.

    ``left`` gives the elements of a group, ``right`` those of all groups of a vector of columns. For all rows or the
    given ones.
    """

    def step(row: Expr, vector: Expr) -> None:
        first = vector * tile.lanes
        place = T.ramp(first, T.int64(1), tile.lanes)
        group = T.reinterpret("int32", left(row))
        stored = storage_dtype(dot.left)
        everywhere = T.reinterpret(f"{stored}x{tile.lanes * dot.group}", tirx.Broadcast(group, tile.lanes))
        T.buffer_store(acc, added(dot, tile.lanes, acc[row, place], everywhere, right(first)), [row, place])

    if rows is None or len(rows) == tile.rows:
        with mk.unroll(0, tile.rows) as row, mk.unroll(0, tile.vectors) as vector:
            step(row, vector)
        return
    for each in rows:
        with mk.unroll(0, tile.vectors) as vector:
            step(each, vector)


def added(dot: Dot, lanes: int, sums: Expr, left: Expr, right: Expr) -> Expr:
    """Return `lanes` 32-bit sums plus the products of the groups of two vectors."""
    if dot.name in _WRAPPED:
        return T.call_pure_extern(f"{dot.sums}x{lanes}", f"tilestitch_{dot.name}", sums, left, right)
    if dot.pairs:
        left = T.call_llvm_pure_intrin(f"int16x{2 * lanes}", _INTRINSICS[dot.name, lanes], left, right)
        dot, right = DOTS["vpmaddwd"], tirx.Broadcast(T.int16(1), 2 * lanes)
    intrinsic, result = _INTRINSICS[dot.name, lanes], f"int32x{lanes}"
    if dot.name != "vpmaddwd":
        return T.call_llvm_pure_intrin(result, intrinsic, sums, left, right)
    widened = T.cast(right, f"{dot.right}x{lanes * dot.group}")
    return sums + T.call_llvm_pure_intrin(result, intrinsic, left, widened)
