"""Instructions that TVM does not ask LLVM for.

Vectors of loads at arbitrary positions are LLVM gathers, in LLVM text: TVM loads elements one by one. LLVM uses gather
instructions where the processor's are fast, and otherwise loads one by one, too. Rounding and conversion of float32 to
integers are one instruction that does both.
"""

from functools import cache
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, StringImm
from tvm.ir.expr import TensorLoad
from tvm.script.ir_builder import tirx as T
from tvm.target import codegen as target_codegen

LEAST_LANES = 4
_TYPES = {"float32": "float", "int32": "i32", "uint32": "i32", "float64": "double", "int64": "i64", "uint64": "i64"}
"""Types that processors gather, with LLVM's names."""


def gathers(func: Any) -> Any:
    """Return `func` with function calls in place of vectors of loads from memory, and these functions' text."""
    texts: dict[str, str] = {}

    def gathered(load: Any) -> Any:
        if not _lies_anywhere(load):
            return load
        (index,) = load.indices
        (kind, lanes), (index_kind, _) = _vector(load), _vector(index)
        name = f"tilestitch_gather_{kind}_{index_kind}_{lanes}"
        texts[name] = _text(name, kind, index_kind, lanes)
        return T.call_pure_extern(str(load.ty.dtype), name, T.address_of(load.source[0]), index)

    body = tvm_ffi.structural_map(func.body, [(TensorLoad, gathered)])
    for name in sorted(texts):
        body = tirx.AttrStmt(T.int32(0), "pragma_import_llvm", StringImm(texts[name]), body)
    return func.with_body(body) if texts else func


def _vector(expr: Any) -> tuple[str, int]:
    """Return LLVM's name of an expression's element type, "" if it cannot be gathered, and the number of lanes."""
    dtype, _, lanes = str(expr.ty.dtype).partition("x")
    return _TYPES.get(dtype, ""), int(lanes or 1)


def _lies_anywhere(load: Any) -> bool:
    if len(load.indices) != 1 or load.source.scope() != "global" or isinstance(load.indices[0], tirx.Ramp):
        return False
    (kind, lanes), (index, places) = _vector(load), _vector(load.indices[0])
    return bool(kind and index) and lanes == places >= LEAST_LANES


def _text(name: str, kind: str, index: str, lanes: int) -> str:
    """Return the LLVM text of a function of an address and positions relative to it."""
    result, pointers, mask = f"<{lanes} x {kind}>", f"<{lanes} x ptr>", f"<{lanes} x i1>"
    suffix = {"float": "f32", "double": "f64"}.get(kind, kind)
    gather = f"@llvm.masked.gather.v{lanes}{suffix}.v{lanes}p0"
    every = f"<{', '.join(['i1 true'] * lanes)}>"
    size = 8 if suffix.endswith("64") else 4
    return "\n".join([
        f"declare {result} {gather}({pointers}, i32, {mask}, {result})",
        f"define linkonce_odr hidden {result} @{name}(ptr %x, <{lanes} x {index}> %i) alwaysinline {{",
        f"  %p = getelementptr inbounds {kind}, ptr %x, <{lanes} x {index}> %i",
        f"  %r = call {result} {gather}({pointers} %p, i32 {size}, {mask} {every}, {result} poison)",
        f"  ret {result} %r",
        "}", "",
    ])  # fmt: skip


def nearest(func: Any, fenced: bool) -> Any:
    """Return `func` where int32 of `roundeven` of a float32 is LLVM's `lrint`.

    `fenced`: keep LLVM (22) from folding a load into the conversion, where it ignores the alignment.
    """
    return _Nearest(fenced).of(func)


class _Nearest:
    """Rewriter of a function. `rounded`: the operand that each variable rounds."""

    def __init__(self, fenced: bool) -> None:
        self.fenced = fenced
        self.rounded: dict[Any, Any] = {}

    def of(self, func: Any) -> Any:
        return tvm_ffi.structural_map(func, [(tirx.Bind, self._bound), (tirx.Cast, self._converted)])

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
