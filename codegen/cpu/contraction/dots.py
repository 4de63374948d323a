"""Register tiles of sums of 32 bits over groups of 8-bit integers, by instructions that multiply a group at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.passes.plan.cpu.isa import Dot
from tilestitch.passes.plan.cpu.tiling import RegisterTile

_INTRINSICS: Mapping[tuple[str, int], str] = {
    ("vpdpbusd", 16): "llvm.x86.avx512.vpdpbusd.512",
    ("vpdpbusd", 8): "llvm.x86.avx512.vpdpbusd.256",
    ("vpdpbusd", 4): "llvm.x86.avx512.vpdpbusd.128",
    ("vpmaddwd", 16): "llvm.x86.avx512.pmaddw.d.512",
    ("vpmaddwd", 8): "llvm.x86.avx2.pmadd.wd",
    ("vpmaddwd", 4): "llvm.x86.sse2.pmadd.wd",
}
"""LLVM's names by instruction and number of sums."""


def dot_add(
    acc: Any,
    tile: RegisterTile,
    dot: Dot,
    left: Callable[[Expr], Expr],
    right: Callable[[Expr], Expr],
    rows: Sequence[int] | None = None,
) -> None:
    """One step: ``acc[row, column] +=`` the sum over a group of ``left(row)`` times that of ``right(column)``.

    ``left`` gives the elements of a group, ``right`` those of all groups of a vector of columns. For all rows or the
    given ones.
    """

    def step(row: Expr, vector: Expr) -> None:
        first = vector * tile.lanes
        place = T.ramp(first, T.int64(1), tile.lanes)
        group = T.reinterpret("int32", left(row))
        everywhere = T.reinterpret(f"{dot.left}x{tile.lanes * dot.group}", tirx.Broadcast(group, tile.lanes))
        T.buffer_store(acc, _added(dot, tile.lanes, acc[row, place], everywhere, right(first)), [row, place])

    if rows is None or len(rows) == tile.rows:
        with mk.unroll(0, tile.rows) as row, mk.unroll(0, tile.vectors) as vector:
            step(row, vector)
        return
    for each in rows:
        with mk.unroll(0, tile.vectors) as vector:
            step(each, vector)


def _added(dot: Dot, lanes: int, sums: Expr, left: Expr, right: Expr) -> Expr:
    intrinsic, result = _INTRINSICS[dot.name, lanes], f"int32x{lanes}"
    if dot.name == "vpdpbusd":
        return T.call_llvm_pure_intrin(result, intrinsic, sums, left, right)
    widened = T.cast(right, f"{dot.right}x{lanes * dot.group}")
    return sums + T.call_llvm_pure_intrin(result, intrinsic, left, widened)
