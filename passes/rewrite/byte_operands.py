"""Operands of byte contractions: conversion to the signedness that CPU instructions require, and sums of rows and
columns.
"""

import numpy as np

from tilestitch.compiler.ir import Graph, Node, Value

from .driver import computed_like, produced_by

SHIFT = 128
"""The difference between corresponding int8 and uint8 values."""


def reduced(node: Node) -> tuple[int, ...]:
    """Return the axes of the right operand that are summed over."""
    rank = len(node.inputs[1].shape)
    if node.op == "conv":
        return tuple(range(1, rank)) if node.attrs["layout"] == "NCX" else tuple(range(rank - 1))
    return (rank - 1 if node.attrs.get("trans_b") else rank - 2,)


def padded_shape(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (len(node.inputs[1].shape) - len(shape)) + tuple(shape)


def of_columns(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return `shape`, aligned with the right operand, as aligned with the result, with 1 along the reduction."""
    shape = padded_shape(node, shape)
    if node.op == "matmul":
        return (*shape[:-2], 1, shape[-2]) if node.attrs.get("trans_b") else shape
    rank = len(node.output.shape)
    return (1, shape[0], *(1,) * (rank - 2)) if node.attrs["layout"] == "NCX" else (*(1,) * (rank - 1), shape[-1])


def of_rows(graph: Graph, node: Node, wide: Value) -> Value:
    """Return the sum of each row of a left operand, aligned with the result."""
    axis = len(wide.shape) - (2 if node.attrs.get("trans_a") else 1)
    return _shaped_against(graph, node, wide, axis, transposed=bool(node.attrs.get("trans_a")))


def of_right_columns(graph: Graph, node: Node, wide: Value) -> Value:
    """Return the sum of each column of a right operand, aligned with the result."""
    axis = len(wide.shape) - (1 if node.attrs.get("trans_b") else 2)
    return _shaped_against(graph, node, wide, axis, transposed=bool(node.attrs.get("trans_b")))


def _shaped_against(graph: Graph, node: Node, wide: Value, axis: int, transposed: bool) -> Value:
    """Return sums along an axis, with the last two axes swapped for a `transposed` operand."""
    sums = computed_like(graph, node, "reduce_sum", wide, axes=(axis,), keepdims=True)
    last = len(wide.shape) - 2
    return computed_like(graph, node, "transpose", sums, perm=(*range(last), last + 1, last)) if transposed else sums


def as_left(graph: Graph, node: Node, x: Value, zero: Value | None, dtypes: tuple[str, ...]) -> tuple[Value, Value]:
    """Return a left operand as one of `dtypes` (`TargetInfo.left_bytes`), and its zero point as an int32 scalar. If
    both are possible, it is shifted if that makes its zero point 0.
    """
    plain = _scalar(graph, node, zero)
    other, shift = ("int8", -SHIFT) if x.dtype == "uint8" else ("uint8", SHIFT)
    shifts_to_zero = plain.data is not None and plain.data.item() == -shift
    if x.dtype in dtypes and not (other in dtypes and shifts_to_zero):
        return x, plain
    return _shifted(graph, node, x, other), _added(graph, node, plain, shift)


def as_signed(graph: Graph, node: Node, w: Value, zero: Value | None) -> tuple[Value, Value]:
    """Return a right operand as int8, and its zero point as an int32 scalar."""
    plain = _scalar(graph, node, zero)
    if w.dtype == "int8":
        return w, plain
    return _shifted(graph, node, w, "int8"), _added(graph, node, plain, -SHIFT)


def _scalar(graph: Graph, node: Node, zero: Value | None) -> Value:
    plain = graph.constant(np.int32(0), name="zero") if zero is None else zero
    return computed_like(graph, node, "reshape", plain, shape=())


def _shifted(graph: Graph, node: Node, x: Value, dtype: str) -> Value:
    """Return the bytes shifted by 128 to the other signedness. Other readers of `x` read these too, so that only they
    are stored.
    """
    of_other_sign = _source_of_other_sign(x)
    if of_other_sign is not None:
        return of_other_sign
    shifted = _bytes_of_other_sign(graph, node, x, dtype)
    if x.producer is not None and shifted.producer is not None and not graph.is_output(x):
        for reader, place in list(x.uses):
            if reader is not shifted.producer.inputs[0].producer:
                _read_shifted(graph, reader, place, shifted, SHIFT if x.dtype == "int8" else -SHIFT)
    return shifted


def _bytes_of_other_sign(graph: Graph, node: Node, x: Value, dtype: str) -> Value:
    sign = graph.constant(np.asarray(SHIFT, np.uint8).view(x.dtype), name="sign")
    return computed_like(graph, node, "bit_cast", computed_like(graph, node, "bitwise_xor", x, sign), to=dtype)


def _source_of_other_sign(x: Value) -> Value | None:
    """Return the bytes that `x` was shifted from; None if there are none."""
    cast = produced_by(x, "bit_cast")
    flipped = None if cast is None else produced_by(cast.inputs[0], "bitwise_xor")
    if flipped is None or flipped.inputs[0].dtype not in ("int8", "uint8") or flipped.inputs[0].dtype == x.dtype:
        return None
    sign = flipped.inputs[1].data
    return flipped.inputs[0] if sign is not None and (sign.view(np.uint8) == SHIFT).all() else None


def _read_shifted(graph: Graph, reader: Node, place: int, shifted: Value, shift: int) -> None:
    """Let a node read `shifted`, which exceeds its operand by `shift`: where a cast widens it, the shift goes into the
    zero point.
    """
    to = reader.attrs["to"] if reader.op == "cast" else None
    if to not in ("int32", "float32"):
        graph.set_input(reader, place, _bytes_of_other_sign(graph, reader, shifted, reader.inputs[place].dtype))
        return
    wide = computed_like(graph, reader, "cast", shifted, to="int32")
    for user, operand in list(reader.output.uses):
        zero = user.inputs[1].data if user.op == "sub" and operand == 0 else None
        if to == "int32" and zero is not None:
            graph.set_input(user, 0, wide)
            graph.set_input(user, 1, graph.constant(zero + np.int32(shift), name="zero"))
    plain = computed_like(graph, reader, "sub", wide, graph.constant(np.int32(shift), name="shift"))
    plain = plain if to == "int32" else computed_like(graph, reader, "cast", plain, to=to)
    graph.replace(reader, [plain])


def _added(graph: Graph, node: Node, zero: Value, shift: int) -> Value:
    if zero.data is not None:
        return graph.constant(zero.data + np.int32(shift))
    return computed_like(graph, node, "add", zero, graph.constant(np.int32(shift), name="shift"))


def is_zero(value: Value) -> bool:
    return value.data is not None and not value.data.any()
