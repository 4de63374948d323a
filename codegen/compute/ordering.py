"""Lexicographic order of rows."""

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.compiler.ir.types import is_float

from .dtypes import Expr, from_storage, is_nan, named


def comes_first(rows: Any, dtype: str, starts: tuple[Expr, Expr], length: Expr) -> tuple[Expr, Expr]:
    """Return whether the row at the first of two positions precedes the other one, and whether they are equal. NaN is
    above all numbers, and equal to NaN.
    """
    differs = T.alloc_buffer((1,), "int32", scope="local")
    place = T.alloc_buffer((1,), str(length.ty.dtype), scope="local")
    T.buffer_store(differs, T.int32(0), [0])
    T.buffer_store(place, tirx.const(0, str(length.ty.dtype)), [0])
    with T.While(tirx.And(place[0] < length, tirx.EQ(differs[0], 0))):
        a, b = (named(from_storage(rows[start + place[0]], dtype)) for start in starts)
        below, above = (_below(a, b, dtype), _below(b, a, dtype))
        T.buffer_store(differs, T.cast(above, "int32") - T.cast(below, "int32"), [0])
        T.buffer_store(place, place[0] + 1, [0])
    found = T.bind(differs[0])
    return found < 0, tirx.EQ(found, 0)


def _below(a: Expr, b: Expr, dtype: str) -> Expr:
    if dtype == "bool":
        a, b = T.cast(a, "int32"), T.cast(b, "int32")
    if not is_float(dtype):
        return a < b
    return tirx.Or(a < b, tirx.And(is_nan(b), tirx.Not(is_nan(a))))
