"""Vectors of loads at arbitrary positions as LLVM gathers, in LLVM text: TVM loads elements one by one. LLVM uses
gather instructions where the processor's are fast, and otherwise loads one by one, too.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import StringImm
from tvm.ir.expr import TensorLoad
from tvm.script.ir_builder import tirx as T

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
