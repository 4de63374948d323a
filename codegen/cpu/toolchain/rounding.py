"""Rounds to bfloat16 by one instruction, in kernels that multiply by another of the same set.

What `dtypes.to_storage` writes takes eleven instructions, as it keeps denormals. `vcvtneps2bf16` makes them 0, as
`vdpbf16ps` does with its operands and sums: kernels that have these lose nothing more by it.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, StringImm
from tvm.ir.prim.expr import BitwiseOr, LShift, RShift
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.cpu.contraction.dots import LANES, MULTIPLY, ROUND

QUIET = 0x40
"""The bit of a NaN of bfloat16 that says that it is no signal."""


def rounding(func: Any) -> Any:
    """`func` where whole vectors are rounded so, if it multiplies pairs of bfloat16."""
    if not _multiplies(func):
        return func
    return func.with_body(_Rounding().of(func.body))


def _multiplies(func: Any) -> bool:
    found = []

    def see(call: Any) -> Any:
        if _calls(call, MULTIPLY):
            found.append(call)
        return call

    tvm_ffi.structural_map(func.body, [(Call, see)])
    return bool(found)


class _Rounding:
    """Rewrites a body. `names`: what variables stand for."""

    def __init__(self) -> None:
        self.names: dict[Any, Any] = {}

    def of(self, body: Any) -> Any:
        return tvm_ffi.structural_map(body, [(tirx.Bind, self._bound), (tirx.Cast, self._rounded)])

    def _bound(self, bind: Any) -> Any:
        self.names[bind.var] = bind.value
        return bind

    def _rounded(self, cast: Any) -> Any:
        """The call for `cast`, if that is what `to_storage` writes; what was rounded so before is as it is."""
        value = _stored(cast)
        if value is None:
            return cast
        half = _widened(self.names.get(value, value))
        return half if half is not None else T.call_pure_extern(f"uint16x{LANES}", ROUND, value)


def _stored(cast: Any) -> Any:
    """The vector whose halves `cast` is: a choice between a NaN's upper half and rounded bits."""
    if str(cast.ty.dtype) != f"uint16x{LANES}" or not isinstance(cast.value, tirx.Select):
        return None
    quiet = cast.value.true_value
    if not isinstance(quiet, BitwiseOr) or not isinstance(quiet.a, RShift) or not _holds(quiet.b, QUIET):
        return None
    value = _reinterpreted(quiet.a.a)
    return value if value is not None and str(value.ty.dtype) == f"float32x{LANES}" else None


def _widened(value: Any) -> Any:
    """The bfloat16 that a float32 was a moment ago, if a variable was rounded to it: memory may have changed since."""
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
