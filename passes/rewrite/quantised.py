"""The decomposition of dequantised values: integers, scale and zero point; and replacing contractions of these."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from tilestitch.compiler.ir import Graph, Kind, Node, Value, kind_of
from tilestitch.compiler.ir.magnitudes import magnitude
from tilestitch.compiler.ir.types import SMALL_FLOATS

from .driver import computed_like, is_sized, produced_by

BYTES = ("int8", "uint8")
MOST_EXACT = 2.0**24
"""The range of integers that float32 represents exactly."""


def replace_contractions(
    graph: Graph, ops: Collection[str], instead: Callable[[Node], Value | str | None], operands: str = ""
) -> tuple[list[Node], list[str]]:
    """Replace nodes of these operators by the values that `instead` returns. Returns those nodes, and notes on the
    others with the reasons that it returns for them, if any.

    operands: what those others multiply; by default the dtype of the left one.
    """
    replaced, notes = list[Node](), list[str]()
    for node in [node for node in graph.nodes if node.op in ops]:
        found = instead(node)
        if isinstance(found, Value):
            graph.replace(node, [found])
            replaced.append(node)
        elif found is not None:
            who = ", ".join(node.origins) or node.name
            notes.append(f"{who} multiplies {operands or node.inputs[0].dtype}: {found}")
    return replaced, notes


@dataclass(frozen=True)
class Quantised:
    """The value scale * (q - zero): q has 8 bits, the scale is float32, the zero point int32, if there is one; 8-bit
    floats have none.

    Scale and zero point broadcast against q.
    """

    q: Value
    scale: Value
    zero: Value | None

    @property
    def per_tensor(self) -> bool:
        """Whether all elements share scale and zero point."""
        return all(set(v.shape) <= {1} for v in self._parameters)

    @property
    def _parameters(self) -> tuple[Value, ...]:
        return (self.scale,) if self.zero is None else (self.scale, self.zero)

    def seen_through(self, graph: Graph, node: Node, view: Node) -> Quantised | None:
        """Return the same after a view, which is created before `node`; None if its parameters no longer vary along
        axes.
        """

        def viewed(value: Value) -> Value:
            return computed_like(graph, node, view.op, value, **view.attrs)

        def scalar(value: Value) -> Value:
            return computed_like(graph, node, "reshape", value, shape=())

        if self.per_tensor:
            return Quantised(viewed(self.q), *self._mapped(scalar))
        if view.op != "transpose" or any(len(v.shape) != len(self.q.shape) for v in self._parameters):
            return None
        return Quantised(viewed(self.q), *self._mapped(viewed))

    def _mapped(self, change: Callable[[Value], Value]) -> tuple[Value, Value | None]:
        return change(self.scale), None if self.zero is None else change(self.zero)


def dequantised(graph: Graph, node: Node, value: Value) -> Quantised | None:
    """Return the decomposition of a float32 value that is dequantised, perhaps followed by views, which are then
    applied to the integers before `node`; None for others.
    """
    views = []
    while value.producer is not None and kind_of(value.producer.op) is Kind.VIEW:
        views.append(value.producer)
        value = value.producer.inputs[0]
    found = _dequantised(graph, node, value)
    for view in reversed(views):
        found = None if found is None else found.seen_through(graph, node, view)
    return found


def _dequantised(graph: Graph, node: Node, value: Value) -> Quantised | None:
    product = produced_by(value, "mul")
    if product is None or value.dtype != "float32":
        return None
    whole, scale = product.inputs
    cast = produced_by(whole, "cast")
    less = produced_by(whole if cast is None else cast.inputs[0], "sub")
    if less is None:
        q, zero = None if cast is None else cast.inputs[0], None
    else:
        widened = produced_by(less.inputs[0], "cast")
        q = None if widened is None else widened.inputs[0]
        zero = None if q is None or q.dtype not in BYTES else _integral(graph, node, less.inputs[1], q.dtype)
        if zero is None:
            return None
    small = q is not None and zero is None and q.dtype in SMALL_FLOATS
    if (
        q is None
        or (q.dtype not in BYTES and not small)
        or q.tensor_type.shape != value.tensor_type.shape
        or not is_sized(value)
    ):
        return None
    return Quantised(q, scale, zero)


def _integral(graph: Graph, node: Node, zero: Value, dtype: str) -> Value | None:
    """Return a zero point as int32 if it has values of `dtype`, or was widened from it; None for others, which may be
    too large.
    """
    found = integral(zero, dtype)
    return None if found is None else computed_like(graph, node, "cast", found, to="int32")


def counts_bytes(node: Node) -> bool:
    """Return whether a float32 contraction multiplies only integers, and few enough for its sums to be exact."""
    x, w = node.inputs[:2]
    cast = produced_by(x, "cast")
    if cast is None or cast.inputs[0].dtype not in (*BYTES, "int32") or w.data is None or w.dtype != "float32":
        return False
    return bool((w.data == np.rint(w.data)).all()) and magnitude(node.output) <= MOST_EXACT


def integral(zero: Value, dtype: str) -> Value | None:
    """Return `zero` itself, if it has values of `dtype`, or was widened from it."""
    if zero.data is not None:
        info = np.iinfo(dtype)
        fits = (zero.data == np.round(zero.data)) & (zero.data >= info.min) & (zero.data <= info.max)
        return zero if fits.all() else None
    seen = zero
    while seen.producer is not None and kind_of(seen.producer.op) is Kind.VIEW:
        seen = seen.producer.inputs[0]
    cast = produced_by(seen, "cast")
    return None if cast is None or cast.inputs[0].dtype != dtype else zero
