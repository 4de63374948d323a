"""Which keys a query can see, as far as masks by position prove it: causal attention and sliding windows.

A score that is -inf whatever the product of query and key is has no weight. The masks are not recognised by form: what
depends on constants is computed by numpy, the rest of the chain from the product to the softmax is walked with what is
known of each value. So nothing depends on how an exporter spells a causal mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from tilestitch.compiler.ir import Kind, Node, Value, kind_of, reference
from tilestitch.compiler.ir.types import is_float
from tilestitch.runtime.errors import TilestitchRuntimeError

from .parts import Softmax

MOST_ELEMENTS = 1 << 25
"""Masks of more elements are not looked at."""
MOST_NODES = 64


@dataclass(frozen=True)
class Band:
    """Query m sees at most the keys from m + first to m + last; None: from the first, or to the last."""

    first: int | None
    last: int | None


@dataclass(frozen=True)
class _Known:
    """What is known of a value, as arrays that broadcast to it.

    exact: the value itself. masked (of floats): where it is -inf for sure. may, may_not (of bools): where it may be
    true, and where false.
    """

    exact: np.ndarray | None = None
    masked: np.ndarray | None = None
    may: np.ndarray | None = None
    may_not: np.ndarray | None = None

    @staticmethod
    def of(array: np.ndarray) -> _Known:
        if array.dtype == bool:
            return _Known(array, None, array, ~array)
        if array.dtype.kind in "iu":
            return _Known(array)
        return _Known(array, np.isneginf(array.astype(np.float32)))


_UNKNOWN = _Known()
_NOWHERE = np.zeros((), bool)


def band_of(softmax: Softmax) -> Band | None:
    """The band of keys that queries see; None if nothing restricts it, or nothing is known."""
    if softmax.queries < 2 or softmax.keys < 2:
        return None
    masked = _Walk(softmax).look(softmax.scores).masked
    shape = softmax.scores.shape
    if masked is None or not masked.any() or shape[-2:] != (softmax.queries, softmax.keys):
        return None
    visible: np.ndarray = np.logical_not(masked)
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


class _Walk:
    def __init__(self, softmax: Softmax) -> None:
        self.product = softmax.product.output
        self.known: dict[Value, _Known] = {}
        self.nodes = 0

    def look(self, value: Value) -> _Known:
        if value not in self.known:
            self.known[value] = _UNKNOWN  # what is too deep or too large stays unknown
            self.known[value] = self._look(value)
        return self.known[value]

    def _look(self, value: Value) -> _Known:
        if value.tensor_type.num_elements > MOST_ELEMENTS:
            # The scores of all heads may be large: what is known of them broadcasts.
            if value.data is not None or value.producer is None:
                return _UNKNOWN
        if value.data is not None:
            return _Known.of(np.asarray(value.data))
        node = value.producer
        self.nodes += 1
        if node is None or value is self.product or self.nodes > MOST_NODES or kind_of(node.op) is Kind.CONTRACTION:
            return _UNKNOWN
        if kind_of(node.op) not in (Kind.VIEW, Kind.INJECTIVE):
            return _UNKNOWN
        operands = [self.look(v) for v in node.inputs]
        if all(k.exact is not None for k in operands):
            return self._exact(node, [k.exact for k in operands])
        return _RULES[node.op](node, operands) if node.op in _RULES else _UNKNOWN

    def _exact(self, node: Node, operands: list[np.ndarray | None]) -> _Known:
        if prod(node.output.shape) > MOST_ELEMENTS:
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


def _add(node: Node, operands: list[_Known]) -> _Known:
    return _Known(masked=_masked(operands[0]) | _masked(operands[1]))


def _sub(node: Node, operands: list[_Known]) -> _Known:
    return _Known(masked=_masked(operands[0]))


def _scale(node: Node, operands: list[_Known]) -> _Known:
    """A product or quotient by positive numbers keeps -inf."""
    for this, other in (operands, operands[::-1]) if node.op == "mul" else (operands,):
        if other.exact is not None and (other.exact > 0).all() and np.isfinite(other.exact).all():
            return _Known(masked=_masked(this))
    return _UNKNOWN


def _select(node: Node, operands: list[_Known]) -> _Known:
    condition, yes, no = operands
    if node.output.dtype == "bool":
        return _UNKNOWN
    masked = (~_may(condition) | _masked(yes)) & (~_may_not(condition) | _masked(no))
    return _Known(masked=masked)


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
    return known if known.masked is not None and is_float(node.output.dtype) else _UNKNOWN


def _view(node: Node, operands: list[_Known]) -> _Known:
    """Reshapes that regroup the leading dimensions only, where what is known does not depend on these."""
    (known,) = operands
    source, target = node.inputs[0].shape, node.output.shape
    if node.op == "reshape" and source[-2:] != target[-2:]:
        return _UNKNOWN

    def moved(array: np.ndarray | None) -> np.ndarray | None:
        lead = () if array is None else array.shape[:-2]
        if array is None or prod(lead) == 1:
            return None if array is None else array.reshape(array.shape[-2:])
        return None

    return _Known(masked=moved(known.masked), may=moved(known.may), may_not=moved(known.may_not))


_RULES = {
    "add": _add, "sub": _sub, "mul": _scale, "div": _scale, "select": _select, "minimum": _minimum,
    "maximum": _maximum, "logical_and": _and, "logical_or": _or, "logical_not": _not, "cast": _cast, "reshape": _view,
    "broadcast_to": _view,
}  # fmt: skip
"""What is known of a result where an operand varies from run to run."""
