"""Values that a kernel quantises and dequantises again but keeps as rounded, clamped floats, by its plan."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from tvm.script.ir_builder import tirx as T

from tilestitch.compiler.ir.graph import Value

from .dtypes import Bind, Expr, immediate, literal

_FLOATS: ContextVar[frozenset[str]] = ContextVar("_FLOATS", default=frozenset())


@contextmanager
def keeping(floats: frozenset[str]) -> Iterator[None]:
    """Keep the values of these names as floats in kernels emitted within the context."""
    token = _FLOATS.set(floats)
    try:
        yield
    finally:
        _FLOATS.reset(token)


def is_kept(value: Value) -> bool:
    """Return whether the kernel that is emitted keeps `value` as a float."""
    return value.name in _FLOATS.get()


WHOLE = 1.5 * 2.0**23
"""Added to a float32 below 2^22 it leaves no fraction bits: the sum is rounded to the nearest integer."""


def rounded_by_addition(x: Expr, low: int | Expr, high: int | Expr, bind: Bind) -> Expr:
    """Return a float32 rounded and clamped to int32 `low` to `high`, by a sum whose bits count its integers.

    Larger numbers stay out of range, as the bits of positive floats grow with the number, and those of negative floats
    are negative integers. The result is never -0.
    """
    (bits_of_whole,) = np.array([WHOLE], np.float32).view(np.int32)
    first = int(bits_of_whole)

    def place(limit: int | Expr) -> Expr:
        return immediate(first + limit, "int32") if isinstance(limit, int) else bind(limit + immediate(first, "int32"))

    bits = bind(T.reinterpret("int32", bind(x + literal(WHOLE, "float32"))))
    raised = bind(T.max(bits, place(low)))
    kept = bind(T.min(raised, place(high)))
    return T.reinterpret("float32", kept) - literal(WHOLE, "float32")
