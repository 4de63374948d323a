"""Sizes that only a run can tell: elements of small integer tensors that are computed from data.

Where an operator uses such an element as a size, `host.Extent` makes it one: its result has the elements as its
dimensions, and takes no memory. These dimensions are symbols, like those of any result with a data-dependent size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TypeAlias

import numpy as np

from tilestitch.compiler.ir import UNKNOWN, IRError, Node, TensorType, Value, reference
from tilestitch.compiler.ir.sizes import Size, as_size
from tilestitch.compiler.ir.types import is_integer, to_numpy_dtype

from .builder import Builder
from .errors import NotStatic
from .sizes import MOST_ELEMENTS, MOST_FOLLOWED, contents_of
from .symbols import symbols_in_force, taken_sizes


@dataclass(frozen=True)
class Element:
    """Element number `place` of a tensor, in row-major order."""

    value: Value
    place: int


Entry: TypeAlias = Size | Element
ANY = -1
"""A size without a requirement."""
_MOVES = frozenset({"reshape", "transpose", "slice", "concat"})
_ON_NUMBERS = frozenset({
    "add", "sub", "mul", "neg", "maximum", "minimum", "cast", "equal", "less", "less_equal",
    "logical_not", "logical_and", "logical_or",
})  # fmt: skip


def _is_number(entry: object) -> bool:
    return isinstance(entry, int) or (isinstance(entry, float) and isfinite(entry))


def entries_of(value: Value) -> list[Entry] | None:
    """Return the elements of a small integer tensor; unknown ones as `Element` references."""
    if not isinstance(value.type, TensorType) or not is_integer(value.type.dtype):
        return None
    found = _entries(value, MOST_FOLLOWED, {})
    return None if found is None else [e if isinstance(e, Element) else as_size(e) for e in found.reshape(-1)]


_Found: TypeAlias = "dict[tuple[Value, int], np.ndarray | None]"


def _entries(value: Value, depth: int, found: _Found) -> np.ndarray | None:
    """Return the elements of a tensor of any numbers, as an array of objects. `depth`: element-wise operators still to
    be traced.
    """
    if (value, depth) not in found:
        found[value, depth] = _followed(value, depth, found)
    return found[value, depth]


def _followed(value: Value, depth: int, found: _Found) -> np.ndarray | None:
    known = contents_of(value)
    if known is not None:
        return known
    type_, node = value.type, value.producer
    if not isinstance(type_, TensorType) or not type_.is_static or type_.num_elements > MOST_ELEMENTS:
        return None
    if value.data is not None:
        return np.array(value.data.tolist(), object).reshape(value.data.shape)
    elements = np.empty(type_.num_elements, object)
    elements[:] = [Element(value, place) for place in range(type_.num_elements)]
    own: np.ndarray = elements.reshape(type_.static_shape)
    moves = node is not None and node.op in _MOVES
    if node is None or not (moves or (depth and (node.op == "select" or node.op in _ON_NUMBERS))):
        return own
    operands: list[np.ndarray] = []
    for operand in node.inputs:
        entries = _entries(operand, depth if moves else depth - 1, found)
        if entries is None:
            return own
        operands.append(entries)
    if moves:
        return np.asarray(reference(node.op)(operands, node.attrs)[0], object)
    spread = [np.broadcast_to(operand, own.shape) for operand in operands]
    return _chosen(own, *spread) if node.op == "select" else _computed(own, node, spread)


def _chosen(own: np.ndarray, condition: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the elements of a `select`, taken from one operand where the condition is known. `own`: their values
    otherwise.
    """
    known = np.array([isinstance(c, bool) for c in condition.reshape(-1)], bool).reshape(own.shape)
    return np.where(known, np.where(known & (condition == np.True_), first, second), own)


def _computed(own: np.ndarray, node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    """Return the elements of an element-wise operator, computed where those of its operands are known. `own`: their
    values otherwise.
    """
    known = np.ones(own.shape, bool)
    for operand in operands:
        known &= np.array([_is_number(e) for e in operand.reshape(-1)], bool).reshape(own.shape)
    numbers = [
        np.where(known, operand, 1).astype(to_numpy_dtype(value.dtype))
        for operand, value in zip(operands, node.inputs, strict=True)
    ]
    results = np.array(reference(node.op)(numbers, node.attrs)[0].tolist(), object).reshape(own.shape)
    return np.where(known, results, own)


def sizes_of(b: Builder, entries: Sequence[Entry]) -> tuple[Size, ...]:
    """Return the entries as sizes, required to be at least 0 at run time. NotStatic where there are no symbols."""
    return tuple(_size(b, entry) if isinstance(entry, Element) else entry for entry in entries)


def _size(b: Builder, element: Element) -> Size:
    symbols = symbols_in_force()
    if symbols is None:
        raise NotStatic(f"an element of %{element.value.name} is a size that is known only at run time")
    extent = symbols.extents.get(element.value)
    if extent is None or not _is_there(b, extent):
        flat = b.cast(b.reshape(element.value, (-1,)), "int64")
        dims = (UNKNOWN,) * element.value.tensor_type.num_elements
        with taken_sizes() as taken:
            (extent,) = b.host("Extent", [flat], [TensorType("bool", dims)])
        if taken:
            required(b, flat, [dim if dim in taken else ANY for dim in extent.tensor_type.sizes])
        symbols.extents[element.value] = extent
    return extent.shape[element.place]


def required(b: Builder, counts: Value, sizes: Sequence[Size]) -> Value:
    """Return the counts, with a run-time check that the last ones equal these sizes unless they are `ANY`; the check is
    kept even if the counts are not used.
    """
    wanted = b.sizes(np.array([*sizes], object), TensorType("int64", (len(sizes),)))
    return b.host("Required", [counts, wanted], [counts.type])[0]


def _is_there(b: Builder, value: Value) -> bool:
    """Return whether a value is still in the graph: nodes emitted by a converter that gave up are removed."""
    try:
        return value.producer is not None and b.graph.node(value.producer.name) is value.producer
    except IRError:
        return False


def element(b: Builder, entry: Entry) -> Value:
    """Return an entry as an int64 scalar."""
    if not isinstance(entry, Element):
        return b.size(entry)
    flat = b.reshape(entry.value, (-1,))
    return b.cast(b.reshape(b.slice_axis(flat, 0, entry.place, entry.place + 1), ()), "int64")
