"""Ranges of the elements of integer values, whatever the model's inputs are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilestitch.compiler.ir import Node, TensorType, Value
from tilestitch.compiler.ir.types import is_integer, to_numpy_dtype

from .float_ranges import float_range

DEEPEST = 64
"""Most operators followed backwards."""
MOST_READ = 1 << 20
"""Most elements of a constant that are examined."""
Range = tuple[int, int]
"""The least and the largest number."""


def range_of(value: Value) -> Range | None:
    """Return the range of the elements of integers or bools; None for other dtypes."""
    return _range(value, DEEPEST, {})


def _range(value: Value, depth: int, known: dict[Value, Range | None]) -> Range | None:
    if value not in known:
        known[value] = _found(value, depth, known)
    return known[value]


def _found(value: Value, depth: int, known: dict[Value, Range | None]) -> Range | None:
    if not isinstance(value.type, TensorType) or not (is_integer(value.dtype) or value.dtype == "bool"):
        return None
    if value.data is not None and 0 < value.data.size <= MOST_READ:
        return int(value.data.min()), int(value.data.max())
    widest = _of_dtype(value.dtype)
    if value.producer is None or depth == 0:
        return widest
    found = _computed(value.producer, lambda x: _range(x, depth - 1, known))
    if found is None and value.producer.op == "cast":
        found = float_range(value.producer.inputs[0], lambda x: _range(x, depth - 1, known), {}).whole
    # Values outside the dtype's range wrap around to anything.
    return found if found is not None and widest[0] <= found[0] and found[1] <= widest[1] else widest


def _of_dtype(dtype: str) -> Range:
    if dtype == "bool":
        return 0, 1
    limits = np.iinfo(to_numpy_dtype(dtype))
    return int(limits.min), int(limits.max)


def _computed(node: Node, of: Callable[[Value], Range | None]) -> Range | None:
    """Return the range of an operator's result; None for unsupported operators and non-integer operands."""
    if node.op in ("arg_max", "arg_min"):
        return _places(node.inputs[0].tensor_type.shape[node.attrs["axis"]])
    if node.op == "iota":
        return _places(node.attrs["shape"][node.attrs["axis"]])
    if node.op not in _RULES:
        return None
    first, rule = _RULES[node.op]
    operands = [of(x) for x in (node.inputs[first:] if node.op in _OF_ALL else node.inputs[:1])]
    return None if None in operands else rule([operand for operand in operands if operand is not None])


def _places(size: object) -> Range | None:
    return (0, max(size - 1, 0)) if isinstance(size, int) else None


def _any_of(operands: Sequence[Range]) -> Range:
    return min(low for low, _ in operands), max(high for _, high in operands)


def _product(operands: Sequence[Range]) -> Range:
    ends = [a * b for a in operands[0] for b in operands[1]]
    return min(ends), max(ends)


def _common_bits(operands: Sequence[Range]) -> Range | None:
    """Return the range of a bitwise and of non-negative operands: no bit is set that one of them lacks."""
    most = [high for low, high in operands if low >= 0]
    return (0, min(most)) if most else None


def _shifted_right(operands: Sequence[Range]) -> Range | None:
    """Return the range of a right shift by a constant number of bits."""
    (low, high), (least, most) = operands
    return (low >> least, high >> least) if 0 <= least == most < 64 else None


_OF_ALL = frozenset({"select", "concat", "add", "sub", "mul", "maximum", "minimum", "bitwise_and", "shift_right"})
"""Operators whose results stem from all operands from the first relevant one on, which is given below."""
_RULES: dict[str, tuple[int, Callable[[Sequence[Range]], Range | None]]] = {
    **dict.fromkeys(("cast", "reshape", "transpose", "broadcast_to", "slice"), (0, _any_of)),
    **dict.fromkeys(("gather", "gather_elements", "gather_nd", "concat"), (0, _any_of)),
    "select": (1, _any_of),
    "add": (0, lambda r: (r[0][0] + r[1][0], r[0][1] + r[1][1])),
    "sub": (0, lambda r: (r[0][0] - r[1][1], r[0][1] - r[1][0])),
    "mul": (0, _product),
    "bitwise_and": (0, _common_bits),
    "shift_right": (0, _shifted_right),
    "maximum": (0, lambda r: (max(r[0][0], r[1][0]), max(r[0][1], r[1][1]))),
    "minimum": (0, lambda r: (min(r[0][0], r[1][0]), min(r[0][1], r[1][1]))),
}
