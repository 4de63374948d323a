"""Combines rounding and conversion of float32 to integers, two instructions, into one that does both."""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.script.ir_builder import tirx as T
from tvm.target import codegen as target_codegen


def nearest(func: Any, fenced: bool) -> Any:
    """Return `func` where int32 of `roundeven` of a float32 is LLVM's `lrint`.

    `fenced`: keep LLVM (22) from folding a load into the conversion, where it ignores the alignment.
    """
    return func.with_body(_Nearest(fenced).of(func.body))


class _Nearest:
    """Rewriter of a body. `rounded`: the operand that each variable rounds."""

    def __init__(self, fenced: bool) -> None:
        self.fenced = fenced
        self.rounded: dict[Any, Any] = {}

    def of(self, body: Any) -> Any:
        return tvm_ffi.structural_map(body, [(tirx.Bind, self._bound), (tirx.Cast, self._converted)])

    def _bound(self, bind: Any) -> Any:
        value = _rounds(bind.value)
        if value is not None:
            self.rounded[bind.var] = value
        return bind

    def _converted(self, cast: Any) -> Any:
        dtype = str(cast.ty.dtype)
        if not dtype.startswith("int32") or not str(cast.value.ty.dtype).startswith("float32"):
            return cast
        value = self.rounded.get(cast.value) if isinstance(cast.value, tirx.Var) else _rounds(cast.value)
        if value is None:
            return cast
        if self.fenced:
            value = T.call_llvm_pure_intrin(str(value.ty.dtype), "llvm.arithmetic.fence", value)
        return T.call_llvm_pure_intrin(dtype, "llvm.lrint", value)


def _rounds(node: Any) -> Any:
    """Return x of roundeven(x), if that is a variable or a constant."""
    if not isinstance(node, Call) or getattr(node.op, "name", "") != "tirx.call_llvm_pure_intrin":
        return None
    number, *operands = node.args
    if int(getattr(number, "value", -1)) != _number() or not isinstance(operands[-1], tirx.Var):
        return None
    return operands[-1]


@cache
def _number() -> int:
    """Return LLVM's number of the intrinsic."""
    return int(target_codegen.llvm_lookup_intrinsic_id("llvm.roundeven"))
