"""Which keys a query can see, as far as masks by position prove it: causal attention and sliding windows.

A score that is -inf whatever the dot product of query and key is has no weight, and neither has one to which something
like -3e38 is added, if another score of its row is not treated so. Masks are not matched by pattern: what depends on
constants only is evaluated by numpy, and the rest of the chain to the softmax is analysed by abstract interpretation.
So nothing depends on how an exporter spells a causal mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from tilestitch.compiler.ir import Kind, Node, Value, kind_of, reference
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.compiler.ir.symbol_uses import symbols_of_node
from tilestitch.compiler.ir.types import is_float
from tilestitch.passes.plan.parts import Softmax
from tilestitch.runtime.errors import TilestitchRuntimeError

MOST_ELEMENTS = 1 << 25
"""Masks with more elements are not analysed."""
MOST_NODES = 64
FAR = 1e30
"""A score that lies this far below another has no weight. Dot products of queries and keys are assumed to be
smaller.
"""


@dataclass(frozen=True)
class Band:
    """Query m sees at most the keys from m + first to m + last; None: from the first, or to the last."""

    first: int | None
    last: int | None


@dataclass(frozen=True)
class _Known:
    """What is known of a value, as arrays that broadcast to it.

    exact: the value itself. masked (of floats): where it is certainly -inf. offset (of floats): the value minus the
    contribution of the dot product. may, may_not (of bools): where it may be true, and where false.
    """

    exact: np.ndarray | None = None
    masked: np.ndarray | None = None
    offset: np.ndarray | None = None
    may: np.ndarray | None = None
    may_not: np.ndarray | None = None

    @staticmethod
    def of(array: np.ndarray) -> _Known:
        if array.dtype == bool:
            return _Known(array, may=array, may_not=~array)
        if array.dtype.kind in "iu":
            return _Known(array)
        wide = array if array.dtype == np.float64 else array.astype(np.float32)
        return _Known(array, np.isneginf(wide), wide)

    @property
    def hidden(self) -> np.ndarray | None:
        """Where scores certainly have no weight."""
        if self.offset is None or self.offset.ndim == 0:
            return self.masked
        far = self.offset < self.offset.max(axis=-1, keepdims=True) - FAR
        return far if self.masked is None else far | self.masked


_WIDE = ("float32", "float64", "bfloat16")
_UNKNOWN = _Known()
_DOT_PRODUCTS = _Known(offset=np.zeros((), np.float32))
_NOWHERE = np.zeros((), bool)


def band_of(softmax: Softmax) -> Band | None:
    """Return the band of keys that queries see; None if nothing restricts it or nothing is known."""
    if is_open(softmax.queries) or is_open(softmax.keys) or softmax.queries < 2 or softmax.keys < 2:
        return None
    hidden = _Walk(softmax).look(softmax.scores).hidden
    shape = softmax.scores.shape
    if hidden is None or not hidden.any() or shape[-2:] != (softmax.queries, softmax.keys):
        return None
    visible: np.ndarray = np.logical_not(hidden)
    if visible.ndim > 2:
        visible = np.logical_or.reduce(visible, axis=tuple(range(visible.ndim - 2)))
    visible = np.broadcast_to(visible, (softmax.queries, softmax.keys))
    rows = np.flatnonzero(visible.any(axis=1))
    if not rows.size:
        return None
    first = int((visible[rows].argmax(axis=1) - rows).min())
    last = int((softmax.keys - 1 - visible[rows, ::-1].argmax(axis=1) - rows).max())
    unrestricted = (first <= 1 - softmax.queries, last >= softmax.keys - 1)
    if all(unrestricted):
        return None
    return Band(None if unrestricted[0] else first, None if unrestricted[1] else last)


def same_inside(softmax: Softmax, band: Band) -> dict[Value, float]:
    """Return values that depend on constants only, lie between matmul and softmax, and are one number wherever a query
    sees a key.

    So a causal mask, which is zero (or true) there, need not be read. The order does not depend on names.
    """
    walk = _Walk(softmax)
    walk.look(softmax.scores)
    row, key = np.ogrid[: softmax.queries, : softmax.keys]
    inside = np.ones((softmax.queries, softmax.keys), bool)
    if band.first is not None:
        inside &= key >= row + band.first
    if band.last is not None:
        inside &= key <= row + band.last
    found: dict[Value, float] = {}
    for node in walk.varying(softmax.scores):
        if node.output.shape[-2:] != inside.shape:
            continue
        for value in node.inputs:
            exact = walk.look(value).exact
            if exact is None or exact.size == 1:
                continue
            numbers = np.broadcast_to(exact, (*exact.shape[:-2], *inside.shape))[..., inside]
            if numbers.size and (numbers == numbers.flat[0]).all():
                found[value] = numbers.flat[0].item()
    return found


class _Walk:
    def __init__(self, softmax: Softmax) -> None:
        self.matmul = softmax.matmul.output
        self.known: dict[Value, _Known] = {}
        self.nodes = 0

    def look(self, value: Value) -> _Known:
        if value not in self.known:
            self.known[value] = _UNKNOWN  # what is too deep or too large stays unknown
            self.known[value] = self._look(value)
        return self.known[value]

    def varying(self, value: Value) -> Iterator[Node]:
        """Yield the nodes between the matmul and a value, as far as they were analysed."""
        stack, seen = [value], {value}
        while stack:
            node = stack.pop().producer
            if node is None or node is self.matmul.producer:
                continue
            yield node
            more = [v for v in node.inputs if v in self.known and self.known[v].exact is None and v not in seen]
            stack += more
            seen.update(more)

    def _look(self, value: Value) -> _Known:
        if not value.tensor_type.is_static or value.tensor_type.num_elements > MOST_ELEMENTS:
            # The scores of all heads may be large: what is known of them broadcasts.
            if value.data is not None or value.producer is None:
                return _UNKNOWN
        if value.data is not None:
            return _Known.of(np.asarray(value.data))
        if value is self.matmul:
            return _DOT_PRODUCTS
        node = value.producer
        self.nodes += 1
        if node is None or self.nodes > MOST_NODES or kind_of(node.op) is Kind.CONTRACTION:
            return _UNKNOWN
        if kind_of(node.op) not in (Kind.VIEW, Kind.INJECTIVE):
            return _UNKNOWN
        operands = [self.look(v) for v in node.inputs]
        if all(k.exact is not None for k in operands):
            return self._exact(node, [k.exact for k in operands])
        return _RULES[node.op](node, operands) if node.op in _RULES else _UNKNOWN

    def _exact(self, node: Node, operands: list[np.ndarray | None]) -> _Known:
        if not node.output.tensor_type.is_static or prod(node.output.shape) > MOST_ELEMENTS:
            return _UNKNOWN
        if symbols_of_node(node):  # however few elements there are, what they are depends on open sizes
            return _UNKNOWN
        try:
            with np.errstate(all="ignore"):
                return _Known.of(np.asarray(reference(node.op)(operands, node.attrs)[0]))
        except (TilestitchRuntimeError, ValueError, IndexError, ArithmeticError):
            return _UNKNOWN


def _masked(known: _Known) -> np.ndarray:
    return _NOWHERE if known.masked is None else known.masked


def _may(known: _Known) -> np.ndarray:
    return np.ones((), bool) if known.may is None else known.may


def _may_not(known: _Known) -> np.ndarray:
    return np.ones((), bool) if known.may_not is None else known.may_not


def _joined(
    join: Callable[[np.ndarray, np.ndarray], np.ndarray], a: np.ndarray | None, b: np.ndarray | None
) -> np.ndarray | None:
    if a is None or b is None:
        return None
    with np.errstate(all="ignore"):
        return join(a, b)


def _add(node: Node, operands: list[_Known]) -> _Known:
    a, b = operands
    return _Known(masked=_masked(a) | _masked(b), offset=_joined(np.add, a.offset, b.offset))


def _sub(node: Node, operands: list[_Known]) -> _Known:
    a, b = operands
    return _Known(masked=_masked(a), offset=_joined(np.subtract, a.offset, b.offset))


def _scale(node: Node, operands: list[_Known]) -> _Known:
    """Return what is known of a product or quotient; positive factors keep -inf."""
    join = np.multiply if node.op == "mul" else np.divide
    for this, other in (operands, operands[::-1]) if node.op == "mul" else (operands,):
        if other.exact is not None and (other.exact > 0).all() and np.isfinite(other.exact).all():
            return _Known(masked=_masked(this), offset=_joined(join, this.offset, other.offset))
    return _UNKNOWN


def _select(node: Node, operands: list[_Known]) -> _Known:
    condition, yes, no = operands
    if node.output.dtype == "bool":
        return _UNKNOWN
    masked = (~_may(condition) | _masked(yes)) & (~_may_not(condition) | _masked(no))
    if condition.exact is None or yes.offset is None or no.offset is None:
        return _Known(masked=masked)
    return _Known(masked=masked, offset=np.where(condition.exact, yes.offset, no.offset))


def _minimum(node: Node, operands: list[_Known]) -> _Known:
    return _Known(masked=_masked(operands[0]) | _masked(operands[1]))


def _maximum(node: Node, operands: list[_Known]) -> _Known:
    return _Known(masked=_masked(operands[0]) & _masked(operands[1]))


def _and(node: Node, operands: list[_Known]) -> _Known:
    a, b = operands
    return _Known(may=_may(a) & _may(b), may_not=_may_not(a) | _may_not(b))


def _or(node: Node, operands: list[_Known]) -> _Known:
    a, b = operands
    return _Known(may=_may(a) | _may(b), may_not=_may_not(a) & _may_not(b))


def _not(node: Node, operands: list[_Known]) -> _Known:
    return _Known(may=_may_not(operands[0]), may_not=_may(operands[0]))


def _cast(node: Node, operands: list[_Known]) -> _Known:
    (known,) = operands
    if not is_float(node.output.dtype):
        return _UNKNOWN
    return _Known(masked=known.masked, offset=known.offset if node.output.dtype in _WIDE else None)


def _view(node: Node, operands: list[_Known]) -> _Known:
    """Return what is known of a view: of reshapes that regroup only leading dimensions that it does not depend on."""
    (known,) = operands
    source, target = node.inputs[0].shape, node.output.shape
    if node.op == "reshape" and source[-2:] != target[-2:]:
        return _UNKNOWN

    def moved(array: np.ndarray | None) -> np.ndarray | None:
        lead = () if array is None else array.shape[:-2]
        if array is None or prod(lead) == 1:
            return None if array is None else array.reshape(array.shape[-2:])
        return None

    offset = moved(known.offset)
    return _Known(masked=moved(known.masked), offset=offset, may=moved(known.may), may_not=moved(known.may_not))


_RULES = {
    "add": _add, "sub": _sub, "mul": _scale, "div": _scale, "select": _select, "minimum": _minimum,
    "maximum": _maximum, "logical_and": _and, "logical_or": _or, "logical_not": _not, "cast": _cast, "reshape": _view,
    "broadcast_to": _view,
}  # fmt: skip
"""What is known of a result where an operand varies between runs, by operator."""
