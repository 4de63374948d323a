"""Small integers of a loop's body as linear functions of the iteration's number: offsets of rows, and what is computed
from them.
"""

from __future__ import annotations

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.sizes import Size, at, bounds_of, symbols_of

from .batch_values import BatchValues
from .driver import is_tensor
from .runs import Run, combined, run_of


def sequence_of(values: BatchValues, node: Node) -> Run | None:
    """Return the result of a node of the body as a sequence over the iterations; None if it is not known to be one."""
    if not is_integer(node.outputs[0]):
        return None
    if node.op in ("cast", "reshape") and node.inputs[0] in values.sequences:
        return values.sequences[node.inputs[0]]
    if node.op == "gather":
        first, count = values.ranges.get(node.inputs[1], (values.sequences.get(node.inputs[1]), 1))
        return _element(values, node.inputs[0], first) if count == 1 else None
    if node.op == "sizes" and len(node.attrs["values"]) == 1:
        size = at(node.attrs["values"][0], values.sizes)
        return None if symbols_of([size]) & set(values.loop.attrs["body"].symbols) else Run(size)
    if not _is_single(node.outputs[0]) or not any(v in values.sequences for v in node.inputs):
        return None
    if node.op in ("minimum", "maximum"):
        return _extreme(values, node)
    if node.op == "select":
        return _selected(values, node)
    return combined(node.op, [_operand(values, v) for v in node.inputs])


def are_equal(values: BatchValues, node: Node | None) -> bool | None:
    """Return whether two integers are equal, if that is the same in all iterations; None if it is not, or for other
    nodes.
    """
    if node is None or node.op != "equal" or not all(is_integer(v) for v in node.inputs):
        return None
    one, other = (_operand(values, v) for v in node.inputs)
    if one is None or other is None or one.slope != other.slope:
        return None
    apart = other.first - one.first
    return apart == 0 if isinstance(apart, int) else None


def range_of(values: BatchValues, node: Node) -> tuple[Run, int] | None:
    """Return the first of the consecutive integers that an addition gives, and how many they are; None for others."""
    if node.op != "add" or len(node.output.shape) != 1:
        return None
    for numbers, first in (node.inputs, reversed(node.inputs)):
        made, start = numbers.producer, values.sequences.get(first)
        if made is not None and made.op == "iota" and numbers in values.shared and start is not None:
            (count,) = values.shared[numbers].shape
            return (start, count) if isinstance(count, int) else None
    return None


def is_integer(value: Value) -> bool:
    return is_tensor(value) and value.dtype in ("int32", "int64")


def is_natural(size: Size) -> bool:
    """Return whether a size is certainly not negative."""
    return bounds_of(size)[0] >= 0


def _extreme(values: BatchValues, node: Node) -> Run | None:
    """Return the operand that a minimum or a maximum takes in all iterations."""
    one, other = (_operand(values, v) for v in node.inputs)
    if one is None or other is None:
        return None
    first = _is_at_least(values, one, other)
    if not first and not _is_at_least(values, other, one):
        return None
    return one if first == (node.op == "maximum") else other


def _selected(values: BatchValues, node: Node) -> Run | None:
    """Return the operand that a selection by order takes in all iterations."""
    one, other = (_operand(values, v) for v in node.inputs[1:])
    order = node.inputs[0].producer
    if one is None or other is None or order is None or order.op != "less":
        return None
    low, high = (_operand(values, v) for v in order.inputs)
    if low is None or high is None:
        return None
    if _is_at_least(values, low, high):
        return other
    return one if _is_at_least(values, high, low.sum(Run(1))) else None


def _is_at_least(values: BatchValues, one: Run, other: Run) -> bool:
    """Return whether one sequence is certainly not below another in any iteration."""
    apart = one.sum(other, -1)
    return is_natural(apart.first) and is_natural(apart.first + apart.slope * (values.count - 1))


def _element(values: BatchValues, integers: Value, index: Run | None) -> Run | None:
    """Return an element of a vector of integers at a position that advances by one per iteration."""
    vector = values.shared_of(integers)
    elements = run_of(vector) if vector is not None and len(vector.shape) == 1 else None
    if vector is None or elements is None or index is None or index.slope != values.number.slope:
        return None
    first = index.first
    inside = isinstance(first, int) and first >= 0 and is_natural(vector.shape[0] - values.count - first)
    return elements.at(index) if inside else None


def _operand(values: BatchValues, value: Value) -> Run | None:
    if value in values.sequences:
        return values.sequences[value]
    shared = values.shared_of(value)
    return run_of(shared) if shared is not None and _is_single(shared) else None


def _is_single(value: Value) -> bool:
    return all(size == 1 for size in value.shape)
