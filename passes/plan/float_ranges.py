"""Ranges of the elements of floating-point values, whatever the model's inputs are: those of positions that a model
clamps before it turns them into indices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilestitch.compiler.ir import Node, Value

DEEPEST = 16
"""Most operators followed backwards."""
MOST_READ = 1 << 20
"""Most elements of a constant that are examined."""
DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
"""Binary digits of a dtype's numbers: whole numbers of so many digits are exact in it."""


@dataclass(frozen=True)
class FloatRange:
    """Every element is between `low` and `high`, or not a number if `nan` is true. The ends are infinite or numbers
    that the dtype holds exactly, so that rounding, which is monotonic, leads to no number outside.
    """

    low: float = -math.inf
    high: float = math.inf
    nan: bool = True

    @property
    def whole(self) -> tuple[int, int] | None:
        """The range of the elements as integers, without their fractions; None if some are no finite numbers."""
        if self.nan or math.isinf(self.low) or math.isinf(self.high):
            return None
        return int(self.low), int(self.high)


Known = dict[Value, FloatRange]
Integers = Callable[[Value], "tuple[int, int] | None"]
"""Function that returns the range of an integer or boolean value."""


def float_range(value: Value, integers: Integers, known: Known, depth: int = DEEPEST) -> FloatRange:
    """Return the range of a value's elements; `known`: those found before."""
    if value.dtype not in DIGITS:
        return FloatRange()
    if value not in known:
        constant = _constant(value)
        known[value] = constant or _outwards(_computed(value, integers, known, depth), value.dtype)
    return known[value]


def _constant(value: Value) -> FloatRange | None:
    if value.data is None or not 0 < value.data.size <= MOST_READ:
        return None
    data = value.data.astype(np.float64)
    return FloatRange(float(data.min()), float(data.max()), nan=False) if np.isfinite(data).all() else FloatRange()


def _computed(value: Value, integers: Integers, known: Known, depth: int) -> FloatRange:
    node = value.producer
    if node is None or depth == 0:
        return FloatRange()
    if node.op == "cast" and node.inputs[0].dtype not in DIGITS:
        found = integers(node.inputs[0])
        return FloatRange() if found is None else FloatRange(float(found[0]), float(found[1]), nan=False)
    if node.op not in _RULES:
        return FloatRange()
    first, count, rule = _RULES[node.op]
    operands = [float_range(x, integers, known, depth - 1) for x in node.inputs[first:count]]
    return _guarded(node, operands) if node.op == "select" else rule(operands)


def _outwards(found: FloatRange, dtype: str) -> FloatRange:
    """Return the range with ends that are whole and exact in the dtype, or infinite."""
    most = 2.0 ** DIGITS[dtype]
    low = math.floor(found.low) if abs(found.low) <= most else -math.inf
    high = math.ceil(found.high) if abs(found.high) <= most else math.inf
    return FloatRange(low, high, found.nan)


def _any_of(operands: Sequence[FloatRange]) -> FloatRange:
    low, high = min(one.low for one in operands), max(one.high for one in operands)
    return FloatRange(low, high, any(one.nan for one in operands))


def _guarded(node: Node, operands: Sequence[FloatRange]) -> FloatRange:
    """Return the range of a select, which may replace what is not a number."""
    condition, _, otherwise = node.inputs
    guard = condition.producer
    if guard is not None and guard.op == "is_nan" and guard.inputs[0] is otherwise:
        taken, kept = operands
        return _any_of([taken, FloatRange(kept.low, kept.high, nan=False)])
    return _any_of(operands)


def _sum(operands: Sequence[FloatRange]) -> FloatRange:
    a, b = operands
    opposite = math.inf in (a.high, b.high) and -math.inf in (a.low, b.low)
    return FloatRange(a.low + b.low, a.high + b.high, a.nan or b.nan or opposite)


def _difference(operands: Sequence[FloatRange]) -> FloatRange:
    a, b = operands
    return _sum([a, FloatRange(-b.high, -b.low, b.nan)])


def _product(operands: Sequence[FloatRange]) -> FloatRange:
    a, b = operands
    if any(map(math.isinf, (a.low, a.high, b.low, b.high))):
        return FloatRange()
    ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return FloatRange(min(ends), max(ends), a.nan or b.nan)


def _larger(operands: Sequence[FloatRange]) -> FloatRange:
    a, b = operands
    return _or_one_alone(FloatRange(max(a.low, b.low), max(a.high, b.high), a.nan or b.nan), operands)


def _smaller(operands: Sequence[FloatRange]) -> FloatRange:
    a, b = operands
    return _or_one_alone(FloatRange(min(a.low, b.low), min(a.high, b.high), a.nan or b.nan), operands)


def _or_one_alone(found: FloatRange, operands: Sequence[FloatRange]) -> FloatRange:
    """Return the range of a larger or smaller number, which may be either operand where the other is not a number."""
    a, b = operands
    return _any_of([found, *([b] if a.nan else []), *([a] if b.nan else [])])


_RULES: dict[str, tuple[int, int | None, Callable[[Sequence[FloatRange]], FloatRange]]] = {
    **dict.fromkeys(("cast", "reshape", "transpose", "broadcast_to", "slice"), (0, 1, _any_of)),
    **dict.fromkeys(("floor", "ceil", "round"), (0, 1, _any_of)),
    "concat": (0, None, _any_of),
    "select": (1, None, _any_of),
    "add": (0, None, _sum),
    "sub": (0, None, _difference),
    "mul": (0, None, _product),
    "maximum": (0, None, _larger),
    "minimum": (0, None, _smaller),
}
"""Of an operator: its first and last relevant operands, and the range of its result from theirs."""
