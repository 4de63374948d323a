"""Sizes that only a run can tell: elements of small integer tensors that are computed from data.

Where an operator takes such an element for a size, `host.Extent` makes it one: its result has the elements as its
dimensions, and takes no memory. These are symbols, as the dimensions of any result are whose size the data decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tilestitch.compiler.ir import UNKNOWN, IRError, TensorType, Value, reference
from tilestitch.compiler.ir.sizes import Size, as_size
from tilestitch.compiler.ir.types import is_integer

from .builder import Builder
from .errors import NotStatic
from .sizes import MOST_ELEMENTS, contents_of
from .symbols import symbols_in_force, taken_sizes


@dataclass(frozen=True)
class Element:
    """Element number `place` of a tensor, in row-major order."""

    value: Value
    place: int


Entry: TypeAlias = Size | Element
ANY = -1
"""A size that is not required to be another one."""
_MOVES = frozenset({"reshape", "transpose", "slice", "concat"})


def entries_of(value: Value) -> list[Entry] | None:
    """The elements of a small tensor of integers, those that are not known as what they are elements of."""
    found = _entries(value)
    return None if found is None else [e if isinstance(e, Element) else as_size(e) for e in found.reshape(-1)]


def _entries(value: Value) -> np.ndarray | None:
    known = contents_of(value)
    if known is not None:
        return known
    type_, node = value.type, value.producer
    if not isinstance(type_, TensorType) or not type_.is_static or not is_integer(type_.dtype):
        return None
    if type_.num_elements > MOST_ELEMENTS:
        return None
    if node is not None and node.op in _MOVES:
        operands = [_entries(operand) for operand in node.inputs]
        if all(operand is not None for operand in operands):
            return np.asarray(reference(node.op)(operands, node.attrs)[0], object)
    result = np.empty(type_.num_elements, object)
    result[:] = [Element(value, place) for place in range(type_.num_elements)]
    return result.reshape(type_.static_shape)


def sizes_of(b: Builder, entries: Sequence[Entry]) -> tuple[Size, ...]:
    """The entries as sizes, which they must be at run time: at least 0. NotStatic where there are no symbols."""
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
    """Counts whose last ones are these sizes, if they are not `ANY`: a run ends there if they are not, whether anything
    else is done with them or not.
    """
    wanted = b.sizes(np.array([*sizes], object), TensorType("int64", (len(sizes),)))
    return b.host("Required", [counts, wanted], [counts.type])[0]


def _is_there(b: Builder, value: Value) -> bool:
    """Whether a value is still in the graph: what a converter emitted that gave up is taken out again."""
    try:
        return value.producer is not None and b.graph.node(value.producer.name) is value.producer
    except IRError:
        return False


def element(b: Builder, entry: Entry) -> Value:
    """An entry as an int64 scalar."""
    if not isinstance(entry, Element):
        return b.size(entry)
    flat = b.reshape(entry.value, (-1,))
    return b.cast(b.reshape(b.slice_axis(flat, 0, entry.place, entry.place + 1), ()), "int64")
