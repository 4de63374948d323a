"""Operands of contractions of bytes: of the signs that instructions of CPUs want, and sums of rows and columns."""

from __future__ import annotations

import numpy as np

from tilestitch.compiler.ir import Graph, Node, Value

from .driver import computed_like

SHIFT = 128
"""From int8 to uint8."""


def reduced(node: Node) -> tuple[int, ...]:
    """Axes of the right operand that are summed over."""
    rank = len(node.inputs[1].shape)
    if node.op == "conv":
        return tuple(range(1, rank)) if node.attrs["layout"] == "NCX" else tuple(range(rank - 1))
    return (rank - 1 if node.attrs.get("trans_b") else rank - 2,)


def padded_shape(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (len(node.inputs[1].shape) - len(shape)) + tuple(shape)


def of_columns(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape against the result of what has `shape` against the right operand, with 1 along the reduction."""
    shape = padded_shape(node, shape)
    if node.op == "matmul":
        return (*shape[:-2], 1, shape[-2]) if node.attrs.get("trans_b") else shape
    rank = len(node.output.shape)
    return (1, shape[0], *(1,) * (rank - 2)) if node.attrs["layout"] == "NCX" else (*(1,) * (rank - 1), shape[-1])


def of_rows(graph: Graph, node: Node, wide: Value) -> Value:
    """The sum of each row of a left operand, shaped against the result."""
    axis = len(wide.shape) - (2 if node.attrs.get("trans_a") else 1)
    return _shaped_against(graph, node, wide, axis, turned=bool(node.attrs.get("trans_a")))


def of_right_columns(graph: Graph, node: Node, wide: Value) -> Value:
    """The sum of each column of a right operand, shaped against the result."""
    axis = len(wide.shape) - (1 if node.attrs.get("trans_b") else 2)
    return _shaped_against(graph, node, wide, axis, turned=bool(node.attrs.get("trans_b")))


def _shaped_against(graph: Graph, node: Node, wide: Value, axis: int, turned: bool) -> Value:
    """Sums along an axis, with the last two of a `turned` operand swapped."""
    sums = computed_like(graph, node, "reduce_sum", wide, axes=(axis,), keepdims=True)
    last = len(wide.shape) - 2
    return computed_like(graph, node, "transpose", sums, perm=(*range(last), last + 1, last)) if turned else sums


def as_unsigned(graph: Graph, node: Node, x: Value, zero: Value | None, signed: bool) -> tuple[Value, Value]:
    """A left operand as uint8, or perhaps int8 where it may be `signed`, and its zero point as a scalar of int32."""
    plain = _scalar(graph, node, zero)
    if x.dtype == "uint8" or (signed and (plain.data is None or plain.data.item() != -SHIFT)):
        return x, plain
    return _turned(graph, node, x, "uint8"), _added(graph, node, plain, SHIFT)


def as_signed(graph: Graph, node: Node, w: Value, zero: Value | None) -> tuple[Value, Value]:
    """A right operand as int8, and its zero point as a scalar of int32."""
    plain = _scalar(graph, node, zero)
    if w.dtype == "int8":
        return w, plain
    return _turned(graph, node, w, "int8"), _added(graph, node, plain, -SHIFT)


def _scalar(graph: Graph, node: Node, zero: Value | None) -> Value:
    plain = graph.constant(np.int32(0), name="zero") if zero is None else zero
    return computed_like(graph, node, "reshape", plain, shape=())


def _turned(graph: Graph, node: Node, x: Value, dtype: str) -> Value:
    """Bytes of the other sign, 128 more or less."""
    sign = graph.constant(np.asarray(SHIFT, np.uint8).view(x.dtype), name="sign")
    return computed_like(graph, node, "bit_cast", computed_like(graph, node, "bitwise_xor", x, sign), to=dtype)


def _added(graph: Graph, node: Node, zero: Value, shift: int) -> Value:
    if zero.data is not None:
        return graph.constant(zero.data + np.int32(shift))
    return computed_like(graph, node, "add", zero, graph.constant(np.int32(shift), name="shift"))


def is_zero(value: Value) -> bool:
    return value.data is not None and not value.data.any()
