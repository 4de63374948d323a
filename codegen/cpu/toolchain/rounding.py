"""Rounding to bfloat16 by one instruction, in kernels that use another bfloat16 instruction.

`dtypes.to_storage` emits eleven instructions, as it keeps denormals. `vcvtneps2bf16` flushes them to 0, as `vdpbf16ps`
and `tdpbf16ps` do with their operands and sums: kernels with these lose nothing more by it.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, StringImm
from tvm.ir.prim.expr import BitwiseOr, LShift, RShift
from tvm.script.ir_builder import tirx as T
from tvm.target import codegen as target_codegen

from tilestitch.codegen.cpu.contraction.dots import LANES, MULTIPLY, ROUND, rounds

QUIET = 0x40
"""The quiet bit of a bfloat16 NaN."""


def rounding(func: Any, beside_tiles: bool) -> Any:
    """Return `func` with whole vectors rounded by the instruction, if it multiplies pairs of bfloat16, or tiles of them
    on a CPU that has the instruction `beside_tiles`.
    """
    if _has(func, lambda call: _calls(call, MULTIPLY)):
        return func.with_body(_Rounding().of(func.body))
    if beside_tiles and _has(func, _multiplies_tiles):
        return func.with_body(rounds(_Rounding().of(func.body)))
    return func


def _has(func: Any, wanted: Callable[[Any], bool]) -> bool:
    """Return whether it contains such a call."""
    found = []

    def see(call: Any) -> Any:
        if wanted(call):
            found.append(call)
        return call

    tvm_ffi.structural_map(func.body, [(Call, see)])
    return bool(found)


def _multiplies_tiles(call: Any) -> bool:
    return getattr(call.op, "name", "") == "tirx.call_llvm_intrin" and _holds(call.args[0], _tiles_of_pairs())


@cache
def _tiles_of_pairs() -> int:
    """Return LLVM's number of the instruction."""
    return int(target_codegen.llvm_lookup_intrinsic_id("llvm.x86.tdpbf16ps"))


class _Rounding:
    """Rewriter of a body. `names`: the definitions of variables."""

    def __init__(self) -> None:
        self.names: dict[Any, Any] = {}

    def of(self, body: Any) -> Any:
        return tvm_ffi.structural_map(body, [(tirx.Bind, self._bound), (tirx.Cast, self._rounded)])

    def _bound(self, bind: Any) -> Any:
        self.names[bind.var] = bind.value
        return bind

    def _rounded(self, cast: Any) -> Any:
        """Return the call that replaces `cast`, if that is what `to_storage` emits; a value that was just rounded stays
        unchanged.
        """
        value = _stored(cast)
        if value is None:
            return cast
        half = _widened(self.names.get(value, value))
        return half if half is not None else T.call_pure_extern(f"uint16x{LANES}", ROUND, value)


def _stored(cast: Any) -> Any:
    """Return the vector that `cast` rounds: it selects between a NaN's upper half and rounded bits."""
    if str(cast.ty.dtype) != f"uint16x{LANES}" or not isinstance(cast.value, tirx.Select):
        return None
    quiet = cast.value.true_value
    if not isinstance(quiet, BitwiseOr) or not isinstance(quiet.a, RShift) or not _holds(quiet.b, QUIET):
        return None
    value = _reinterpreted(quiet.a.a)
    return value if value is not None and str(value.ty.dtype) == f"float32x{LANES}" else None


def _widened(value: Any) -> Any:
    """Return the bfloat16 from which a float32 was just widened, if a variable was rounded to it: memory may have
    changed since.
    """
    bits = _reinterpreted(value)
    if not isinstance(bits, LShift) or not isinstance(bits.a, tirx.Cast):
        return None
    half: Any = bits.a.value
    return half if _calls(half, ROUND) and isinstance(half.args[1], tirx.Var) else None


def _reinterpreted(node: Any) -> Any:
    return node.args[0] if getattr(getattr(node, "op", None), "name", "") == "tirx.reinterpret" else None


def _calls(node: Any, name: str) -> bool:
    first = node.args[0] if isinstance(node, Call) and len(node.args) > 0 else None
    return isinstance(first, StringImm) and first.value == name


def _holds(node: Any, number: int) -> bool:
    value = node.value if isinstance(node, tirx.Broadcast) else node
    return isinstance(value, tirx.IntImm) and value.value == number
