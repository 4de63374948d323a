"""Values that a kernel quantises and dequantises again: rounded and kept in their range, they stay floats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm.script.ir_builder import tirx as T

from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.compiler.ir.magnitudes import magnitude

from .dtypes import Bind, Expr, immediate, literal

MOST_INTEGER = 2.0**30
"""What int32 of it, and a zero point, fit into 32 bits."""


def kept_as_float(value: Value, computed: Callable[[Value], bool]) -> tuple[Value, int, int] | None:
    """(rounded, low, high) where `value`, float32, is what was rounded, between low and high, by way of integers that
    are `computed` in the kernel; None of others, and where it may be NaN or too large.

    These are, from `value` back: a cast, perhaps less a zero point, of an 8-bit integer, a cast of what was kept in its
    range, perhaps with the zero point, of int32, cast from a rounded float32.
    """
    cast = _made_by(value, "cast", computed)
    if cast is None or value.dtype != "float32":
        return None
    q, zero = _without(cast.inputs[0], "sub", computed)
    if q.dtype == "int32":
        widened = _made_by(q, "cast", computed)
        if widened is None:
            return None
        q = widened.inputs[0]
    stored = _made_by(q, "cast", computed) if q.dtype in ("int8", "uint8") else None
    if stored is None or stored.inputs[0].dtype != "int32":
        return None
    inner, high = _bounded(stored.inputs[0], "minimum", computed)
    inner, low = _bounded(inner, "maximum", computed)
    info = np.iinfo(q.dtype)
    if low is None or high is None or not info.min <= low <= high <= info.max:
        return None
    whole, added = _without(inner, "add", computed)
    counted = _made_by(whole, "cast", computed)
    rounded = None if counted is None else _made_by(counted.inputs[0], "round", computed)
    if rounded is None or rounded.output.dtype != "float32" or added != zero:
        return None
    x = rounded.inputs[0]
    if x.tensor_type.shape != value.tensor_type.shape or not magnitude(x) < MOST_INTEGER:
        return None
    return rounded.output, low - zero, high - zero


WHOLE = 1.5 * 2.0**23
"""Added to a float32 of less than 2^22 it leaves no bits for fractions: the sum is rounded to the nearest integer."""


def rounded_by_addition(x: Expr, low: int, high: int, bind: Bind) -> Expr:
    """A float32, rounded and kept from `low` to `high`, by a sum whose bits count its integers.

    What is too large for that stays beyond the range, as sums and bits of positive floats grow with the number, and
    those of negative floats are integers below 0. The result is never -0.
    """
    (first,) = np.array([WHOLE], np.float32).view(np.int32)
    bits = bind(T.reinterpret("int32", bind(x + literal(WHOLE, "float32"))))
    raised = bind(T.max(bits, immediate(int(first) + low, "int32")))
    kept = bind(T.min(raised, immediate(int(first) + high, "int32")))
    return T.reinterpret("float32", kept) - literal(WHOLE, "float32")


def _made_by(value: Value, op: str, computed: Callable[[Value], bool]) -> Node | None:
    node = value.producer
    return node if node is not None and node.op == op and computed(value) else None


def _without(value: Value, op: str, computed: Callable[[Value], bool]) -> tuple[Value, int]:
    """x and the constant of `op(x, constant)` of int32; `value` itself and 0 of others."""
    node = _made_by(value, op, computed)
    number = None if node is None or value.dtype != "int32" else _whole(node.inputs[1])
    return (value, 0) if node is None or number is None else (node.inputs[0], number)


def _bounded(value: Value, op: str, computed: Callable[[Value], bool]) -> tuple[Value, int | None]:
    node = _made_by(value, op, computed)
    return (value, None) if node is None else (node.inputs[0], _whole(node.inputs[1]))


def _whole(value: Value) -> int | None:
    """The number that a constant of integers is."""
    return None if value.data is None or value.data.size != 1 else int(value.data.reshape(()))
