"""Values that are quantised and dequantised in one kernel: rounded and clamped, they may stay floats, which saves
instructions. Values stored in between are integers nevertheless.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.magnitudes import magnitude

from .group import Group
from .refusal import WhyNot

MOST_INTEGER = 2.0**30
"""Largest magnitude for which the int32 of it plus a zero point fits 32 bits."""


@dataclass(frozen=True)
class KeptFloat:
    """The float32 `rounded`, clamped to [low - zero, high - zero]: int32 constants of one element each.

    less: what is subtracted from the integer; `zero` if the float is correct. between: the intermediate values, all but
    the first of them integers.
    """

    rounded: Value
    low: Value
    high: Value
    zero: Value | None
    less: Value | None
    between: tuple[Value, ...]


def kept_float(value: Value) -> KeptFloat | None:
    """Return what must hold of `value` for it to stay a float; None if it is computed in another way.

    The pattern, from `value` backwards: a cast, perhaps minus a zero point, of an 8-bit integer, which is the cast of a
    clamped int32, perhaps plus the zero point, cast from a rounded float32.
    """
    way = _Way(value)
    if value.dtype != "float32" or not way.back("cast"):
        return None
    less = way.back_from_constant("sub")
    if way.here.dtype == "int32" and not way.back("cast"):
        return None
    if way.here.dtype not in ("int8", "uint8") or not way.back("cast") or way.here.dtype != "int32":
        return None
    high, low = way.back_from_constant("minimum"), way.back_from_constant("maximum")
    zero = way.back_from_constant("add")
    if high is None or low is None or not way.back("cast"):
        return None
    rounded = way.here
    if rounded.dtype != "float32" or rounded.producer is None or rounded.producer.op != "round":
        return None
    return KeptFloat(rounded, low, high, zero, less, tuple(way.passed))


class _Way:
    """Walks from a value back through its producers."""

    def __init__(self, value: Value) -> None:
        self.here = value
        self.passed: list[Value] = []

    def back(self, op: str) -> bool:
        node = self.here.producer
        if node is None or node.op != op:
            return False
        self.passed.append(self.here)
        self.here = node.inputs[0]
        return True

    def back_from_constant(self, op: str) -> Value | None:
        """Return the other operand, one int32 element, if `op` computes this value; None otherwise."""
        node = self.here.producer
        other = None if node is None or node.op != op else node.inputs[1]
        if other is None or other.dtype != "int32" or other.tensor_type.num_elements != 1:
            return None
        return other if self.back(op) else None


def with_floats(nodes: Mapping[str, Node], group: Group) -> Group:
    """Return the group, with all values kept as floats that may be."""
    floats = [
        value.name for name in group.nodes for value in nodes[name].outputs if why_not_kept(value, group.nodes) is None
    ]
    return replace(group, floats=tuple(floats))


def why_not_kept(value: Value, members: Collection[str]) -> str | None:
    """Return why a kernel of these nodes cannot keep `value` as a float; None if it can."""
    kept = kept_float(value)
    if kept is None:
        return "it is not what was rounded to 8-bit integers and dequantised again"
    makers = [v.producer for v in (*kept.between, kept.rounded)]
    if any(node is None or node.name not in members for node in makers):
        return "the kernel does not round it"
    numbers = [_number(v) for v in (kept.low, kept.high, kept.zero, kept.less)]
    low, high, zero, less = numbers
    quantised = next(v for v in kept.between if v.dtype in ("int8", "uint8"))
    info = np.iinfo(quantised.dtype)
    if low is None or high is None or not info.min <= low <= high <= info.max:
        return f"it is not known to be kept in the range of {quantised.dtype}"
    if zero is None or zero != less:
        return "another zero point is taken from it than was added"
    assert kept.rounded.producer is not None
    x = kept.rounded.producer.inputs[0]
    if x.tensor_type.shape != value.tensor_type.shape or not magnitude(x) < MOST_INTEGER:
        return f"what is rounded may be NaN, or beyond {MOST_INTEGER:.0f}"
    return None


def why_not_floats(nodes: Mapping[str, Node], group: Group) -> WhyNot | None:
    """Return why a group cannot keep the floats that it names; None if it can."""
    made = {value.name: value for value in _made(nodes, group)}
    for name in group.floats:
        problem = "none of its nodes makes it" if name not in made else why_not_kept(made[name], group.nodes)
        if problem is not None:
            reason = f"it cannot keep %{name} as a float: {problem}; take that out of `floats`"
            return WhyNot(group.name, "floats", reason)
    return None


def _made(nodes: Mapping[str, Node], group: Group) -> Iterable[Value]:
    return (value for name in group.nodes for value in nodes[name].outputs)


def _number(value: Value | None) -> int | None:
    """Return the integer value of a constant, 0 for none; None if it is known only at run time."""
    if value is None:
        return 0
    return None if value.data is None else int(value.data.reshape(()))
