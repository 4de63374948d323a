"""Which keys a query can see, where a mask compares positions and only a run knows by how much they differ: of open
sizes, and where the lengths of sequences are data.

A mask is -inf unless `low < high`, or `low <= high`. Where both operands are sums of positions and of what is the same
for all queries and keys of a head, and the key counts once, the comparison bounds the key: kernels compute the bound
from one element of each operand. What masks do besides can only hide more keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
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
    """A number that grows by `row` a query and by `key` a key; None where that is not known."""

    row: int | None = 0
    key: int | None = 0

    def __add__(self, other: Any) -> _Along:
        if not isinstance(other, _Along):
            return self
        return _Along(_sum(self.row, other.row), _sum(self.key, other.key))

    __radd__ = __add__

    def __mul__(self, factor: Any) -> _Along:
        return _Along(*(slope * factor if slope and isinstance(factor, int) else slope and None for slope in self.both))

    def __floordiv__(self, divisor: Any) -> _Along:
        return _Along(*(slope and None for slope in self.both))

    __mod__ = __floordiv__

    @property
    def both(self) -> tuple[int | None, int | None]:
        return self.row, self.key


_UNKNOWN = _Along(None, None)


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


_Index = Sequence[Any]


def bounds_of(roles: Roles, merged: int = 1) -> tuple[Bound, ...]:
    """Return the bounds of an attention group, all of which hold for the keys that a query sees; where as many heads
    are rows of a tile, for those of all of them.
    """
    softmax = roles.softmax
    assert softmax is not None
    value, shape = softmax.scores, softmax.scores.shape
    if shape[-2:] != (softmax.queries, softmax.keys) or (merged > 1 and softmax.queries != 1):
        return ()
    index = [_Along() if merged == 1 else _UNKNOWN for _ in shape]
    if shape[:-2] and divisor_of(prod(shape[1:-2])) % merged == 0:
        index[0] = _Along()  # the heads of a tile are neighbours, and no batch ends among them
    index[-2:] = _Along() if softmax.queries == 1 else _Along(row=1), _Along(key=1)
    found: dict[Bound, None] = {}
    path: Path = ()
    depend = {softmax.matmul.output}
    for member in roles.parts:  # in their order
        if any(operand in depend for operand in member.inputs):
            depend.update(member.outputs)
    masks = _Masks(roles.parts)
    while value is not softmax.matmul.output:
        node = value.producer
        on = [] if node is None else [i for i, operand in enumerate(node.inputs) if operand in depend]
        if node is None or len(on) != 1 or not _keeps_hidden(node, on[0]):
            break
        found.update(dict.fromkeys(masks.of_node(node, index, path, on[0])))
        value, index, path = node.inputs[on[0]], list(_at(node, on[0], index)), (*path, (node, on[0]))
    return tuple(found)


def _keeps_hidden(node: Node, dependent: int) -> bool:
    """Return whether a score that a mask before a node sets to -inf stays so."""
    if node.op == "select":
        return dependent > 0 and _is_hidden(node.inputs[3 - dependent])
    return node.op in ("add", "minimum", "cast", "reshape", "broadcast_to")


def _at(node: Node, number: int, index: _Index) -> tuple[Any, ...]:
    """Return the index of an operand for that of the result."""
    if kind_of(node.op) is not Kind.VIEW:
        return broadcast_index(index, node.inputs[number].shape)
    if node.op == "slice":
        return tuple(i * step for i, step in zip(index, node.attrs["steps"], strict=True))
    return pull_view(node, index)


@dataclass(frozen=True)
class _Masks:
    """Reader of masks among the nodes of a group."""

    members: Mapping[Node, object]

    def of_node(self, node: Node, index: _Index, path: Path, dependent: int | None = None) -> Iterator[Bound]:
        """Yield bounds that hold wherever a result is not -inf; `dependent`: an operand that is not looked at."""

        def inside(number: int) -> tuple[Value, _Index, Path]:
            return node.inputs[number], _at(node, number, index), (*path, (node, number))

        if node.op == "select":
            for number, other in ((1, 2), (2, 1)):
                if number == dependent or not _is_hidden(node.inputs[number]):
                    continue
                yield from self._where(*inside(0), holds=number == 2)
                if other != dependent:
                    yield from self._of(*inside(other))
            return
        numbers = range(len(node.inputs)) if node.op in ("add", "minimum", "cast") or _is_view(node) else ()
        for number in numbers:
            if number != dependent:
                yield from self._of(*inside(number))

    def _of(self, value: Value, index: _Index, path: Path) -> Iterator[Bound]:
        """Yield bounds that hold wherever a mask is not -inf."""
        node = value.producer
        if node is not None and node in self.members and is_float(value.dtype):
            if all(is_float(v.dtype) for v in node.inputs) or node.op == "select":
                yield from self.of_node(node, index, path)

    def _where(self, value: Value, index: _Index, path: Path, holds: bool) -> Iterator[Bound]:
        """Yield bounds that hold wherever a condition holds, or does not."""
        node = value.producer
        if node is None or node not in self.members:
            return

        def inside(number: int) -> tuple[Value, _Index, Path]:
            return node.inputs[number], _at(node, number, index), (*path, (node, number))

        if node.op == ("logical_and" if holds else "logical_or"):
            yield from self._where(*inside(0), holds=holds)
            yield from self._where(*inside(1), holds=holds)
        elif node.op == "logical_not":
            yield from self._where(*inside(0), holds=not holds)
        elif _is_view(node):
            yield from self._where(*inside(0), holds=holds)
        elif node.op in ("less", "less_equal"):
            low, high = (inside(number) for number in ((0, 1) if holds else (1, 0)))
            below, above = (self._slopes(read, at) for read, at, _ in (low, high))
            row, key = _sum(above.row, _negative(below.row)), _sum(above.key, _negative(below.key))
            if row is not None and key in (1, -1):
                yield Bound(low[2], high[2], (node.op == "less") is holds, key == -1, row >= 0)

    def _slopes(self, value: Value, index: _Index) -> _Along:
        """Return how an integer that the group computes grows."""
        if all(entry in (0, _Along()) for entry in index):
            return _Along()
        if value.data is not None:
            return _slopes_of(value.data, index)
        node = value.producer
        if node is None or node not in self.members or value.dtype not in _INTEGERS:
            return _UNKNOWN
        if node.op == "iota":
            return _Along() + index[node.attrs["axis"]]
        if any(v.dtype not in _INTEGERS or v.dtype > value.dtype for v in node.inputs):
            return _UNKNOWN
        if not (_is_view(node) or node.op in ("add", "sub", "cast")):
            return _UNKNOWN
        first, *rest = (self._slopes(v, _at(node, i, index)) for i, v in enumerate(node.inputs))
        return sum((other * -1 if node.op == "sub" else other for other in rest), first)


def _slopes_of(data: np.ndarray, index: _Index) -> _Along:
    found = _Along()
    for axis, entry in enumerate(index):
        if entry in (0, _Along()):
            continue
        if data.dtype.kind != "i":
            return _UNKNOWN
        steps = np.diff(data, axis=axis)
        if not steps.size or (steps != steps.flat[0]).any():
            return _UNKNOWN
        found += entry * int(steps.flat[0])
    return found


_INTEGERS = ("int32", "int64")


def _negative(slope: int | None) -> int | None:
    return None if slope is None else -slope


def _is_view(node: Node) -> bool:
    return kind_of(node.op) is Kind.VIEW


def _is_hidden(value: Value) -> bool:
    return value.data is not None and value.data.size == 1 and bool(np.isneginf(value.data.astype(np.float64)).all())
