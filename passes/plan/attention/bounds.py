"""Which keys a query can see, where a mask compares positions and only a run knows by how much they differ: of open
sizes, and where the lengths of sequences are data.

A mask is -inf unless `low < high`, or `low <= high`. Where both operands are sums of positions and of what is the same
for all queries and keys of a head, and the key counts once, the comparison bounds the key: kernels compute the bound
from one element of each operand. What masks do besides can only hide more keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan, prod
from typing import Any

import numpy as np

from tilestitch.compiler.ir import Kind, Node, Value, kind_of
from tilestitch.compiler.ir.indexing import broadcast_index, pull_view
from tilestitch.compiler.ir.sizes import divisor_of
from tilestitch.compiler.ir.types import is_float
from tilestitch.passes.plan.parts import Roles

Path = tuple[tuple[Node, int], ...]
"""Nodes from the scores on, each with the number of the operand that comes next."""


@dataclass(frozen=True)
class Bound:
    """A query sees a key only if `low <= high`, or `low < high` if `strict`: operands at the ends of paths.

    is_last: whether this bounds keys from above; else from below. of_last: whether the last of several queries sees
    most; else the first.
    """

    low: Path
    high: Path
    strict: bool
    is_last: bool
    of_last: bool


@dataclass(frozen=True)
class _Along:
    """A number that grows by `row` a query and by `key` a key; NaN where that is not known."""

    row: float = 0
    key: float = 0

    def __add__(self, other: Any) -> _Along:
        return _Along(self.row + other.row, self.key + other.key) if isinstance(other, _Along) else self

    __radd__ = __add__

    def __mul__(self, factor: Any) -> _Along:
        factor = factor if isinstance(factor, int) else nan
        return _Along(self.row and self.row * factor, self.key and self.key * factor)

    def __floordiv__(self, divisor: Any) -> _Along:
        return self * nan

    __mod__ = __floordiv__


_UNKNOWN = _Along(nan, nan)


@dataclass(frozen=True)
class _Read:
    """An element of a value, for a score, at the end of a path."""

    value: Value
    index: tuple[Any, ...]
    path: Path = ()

    def operand(self, number: int) -> _Read:
        """Return the element that the value's node reads of an operand."""
        node = self.value.producer
        assert node is not None
        return _Read(node.inputs[number], _at(node, number, self.index), (*self.path, (node, number)))


def bounds_of(roles: Roles, merged: int = 1) -> tuple[Bound, ...]:
    """Return the bounds of an attention group, all of which hold for the keys that a query sees; where as many heads
    are rows of a tile, for those of all of them.
    """
    softmax = roles.softmax
    assert softmax is not None
    shape = softmax.scores.shape
    if shape[-2:] != (softmax.queries, softmax.keys) or (merged > 1 and softmax.queries != 1):
        return ()
    index = [_Along() if merged == 1 else _UNKNOWN for _ in shape]
    if shape[:-2] and divisor_of(prod(shape[1:-2])) % merged == 0:
        index[0] = _Along()  # the heads of a tile are neighbours, and no batch ends among them
    index[-2:] = _Along() if softmax.queries == 1 else _Along(row=1), _Along(key=1)
    found: list[Bound] = []
    depend = {softmax.matmul.output}
    for member in roles.parts:  # in their order
        if any(operand in depend for operand in member.inputs):
            depend.update(member.outputs)
    masks = _Masks(roles.parts)
    read = _Read(softmax.scores, tuple(index))
    while read.value is not softmax.matmul.output:
        node = read.value.producer
        on = [] if node is None else [i for i, operand in enumerate(node.inputs) if operand in depend]
        if node is None or len(on) != 1 or not _keeps_hidden(node, on[0]):
            break
        found.extend(masks.of_node(node, read, on[0]))
        read = read.operand(on[0])
    return tuple(found)


def _keeps_hidden(node: Node, dependent: int) -> bool:
    """Return whether a score that a mask before a node sets to -inf stays so."""
    if node.op == "select":
        return dependent > 0 and _is_hidden(node.inputs[3 - dependent])
    return node.op in ("add", "minimum", "cast", "reshape", "broadcast_to")


def _at(node: Node, number: int, index: Sequence[Any]) -> tuple[Any, ...]:
    """Return the index of an operand for that of the result."""
    if kind_of(node.op) is not Kind.VIEW:
        return broadcast_index(index, node.inputs[number].shape)
    if node.op == "slice":
        return tuple(i * step for i, step in zip(index, node.attrs["steps"], strict=True))
    return pull_view(node, index)


@dataclass(frozen=True)
class _Masks:
    """Reader of masks among the nodes of a group, which looks at each element once."""

    members: Mapping[Node, object]
    seen: set[tuple[object, ...]] = field(default_factory=set)
    slopes: dict[tuple[object, ...], _Along] = field(default_factory=dict)

    def of_node(self, node: Node, read: _Read, dependent: int | None = None) -> Iterator[Bound]:
        """Yield bounds that hold wherever a result is not -inf; `dependent`: an operand that is not looked at."""
        if node.op == "select":
            for number, other in ((1, 2), (2, 1)):
                if number == dependent or not _is_hidden(node.inputs[number]):
                    continue
                yield from self._where(read.operand(0), holds=number == 2)
                if other != dependent:
                    yield from self._of(read.operand(other))
            return
        numbers = range(len(node.inputs)) if node.op in ("add", "minimum", "cast") or _is_view(node) else ()
        for number in numbers:
            if number != dependent:
                yield from self._of(read.operand(number))

    def _new(self, read: _Read, holds: bool | None = None) -> Node | None:
        """Return the member that computes an element; None if there is none, or it was looked at before."""
        key, node = (read.value, read.index, holds), read.value.producer
        if node not in self.members or key in self.seen:
            return None
        self.seen.add(key)
        return node

    def _of(self, read: _Read) -> Iterator[Bound]:
        """Yield bounds that hold wherever a mask is not -inf."""
        node = self._new(read) if is_float(read.value.dtype) else None
        if node is not None and (all(is_float(v.dtype) for v in node.inputs) or node.op == "select"):
            yield from self.of_node(node, read)

    def _where(self, read: _Read, holds: bool) -> Iterator[Bound]:
        """Yield bounds that hold wherever a condition holds, or does not."""
        node = self._new(read, holds)
        if node is None:
            return
        if node.op == ("logical_and" if holds else "logical_or"):
            yield from self._where(read.operand(0), holds)
            yield from self._where(read.operand(1), holds)
        elif node.op == "logical_not":
            yield from self._where(read.operand(0), not holds)
        elif _is_view(node):
            yield from self._where(read.operand(0), holds)
        elif node.op in ("less", "less_equal"):
            low, high = (read.operand(number) for number in ((0, 1) if holds else (1, 0)))
            below, above = (self._slope(end, end.value.dtype) for end in (low, high))
            # With others, numbers might overflow although those of one query and key are small.
            if {below.row, below.key, above.row, above.key} <= {-1, 0, 1} and abs(below.key - above.key) == 1:
                is_last = below.key > above.key
                yield Bound(low.path, high.path, (node.op == "less") is holds, is_last, above.row >= below.row)

    def _slope(self, read: _Read, dtype: str) -> _Along:
        """Return how an integer of the group grows; sums of other dtypes may overflow where this one does not."""
        key = read.value, read.index, dtype
        if key not in self.slopes:
            self.slopes[key] = self._grows(read, dtype)
        return self.slopes[key]

    def _grows(self, read: _Read, dtype: str) -> _Along:
        value, node = read.value, read.value.producer
        if all(entry in (0, _Along()) for entry in read.index):
            return _Along()
        if value.dtype not in _INTEGERS:
            return _UNKNOWN
        if value.data is not None:
            return _slopes_of(value.data, read.index)
        if node is None or node not in self.members:
            return _UNKNOWN
        if node.op == "iota":
            return _Along() + read.index[node.attrs["axis"]]
        if any(v.dtype not in _INTEGERS or v.dtype > value.dtype for v in node.inputs):
            return _UNKNOWN
        if not (_is_view(node) or node.op == "cast" or (node.op in ("add", "sub") and value.dtype == dtype)):
            return _UNKNOWN
        first, *rest = (self._slope(read.operand(number), dtype) for number in range(len(node.inputs)))
        return sum((other * -1 if node.op == "sub" else other for other in rest), first)


def _slopes_of(data: np.ndarray, index: Sequence[Any]) -> _Along:
    found = _Along()
    for axis, entry in enumerate(index):
        if entry in (0, _Along()):
            continue
        steps = np.diff(data, axis=axis)
        if not steps.size or (steps != steps.flat[0]).any():
            return _UNKNOWN
        found += entry * int(steps.flat[0])
    return found


_INTEGERS = ("int32", "int64")


def _is_view(node: Node) -> bool:
    return kind_of(node.op) is Kind.VIEW


def _is_hidden(value: Value) -> bool:
    return value.data is not None and value.data.size == 1 and bool(np.isneginf(value.data.astype(np.float64)).all())
