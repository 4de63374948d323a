"""Semantics of scatters on any target: where updates go, and how they change the element there."""

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.compiler.ir.graph import Node
from tilestitch.compiler.ir.sizes import Size

from . import reducers
from .dtypes import Expr, from_storage, named, to_storage
from .sizes import integer


def wrapped(raw: Expr, size: Size) -> Expr:
    """Return a possibly negative index counted from the front, int64."""
    wide = T.bind(T.cast(raw, "int64"))
    return T.bind(tirx.Select(wide < T.int64(0), wide + integer(size, "int64"), wide))


def in_range(index: Expr, size: Size) -> Expr:
    return tirx.And(index >= T.int64(0), index < integer(size, "int64"))


def offset_of(node: Node) -> Callable[[Expr, range], Expr]:
    """Return, for scatter_elements, `offset(flat, dims)`: the position in the data of the flat index `flat` into the
    dimensions `dims` of the updates.
    """
    x, shape = node.inputs[0], node.inputs[1].shape
    strides = [prod(x.shape[d + 1 :]) for d in range(len(shape))]

    def offset(flat: Expr, dims: range) -> Expr:
        position: Expr = T.int64(0)
        rest: Size = prod(shape[d] for d in dims)
        for d in dims:
            rest //= shape[d]
            position = position + flat // rest % shape[d] * strides[d]
        return T.bind(position)

    return offset


def slice_of(node: Node, indices: Any, number: Expr) -> tuple[Expr, Expr]:
    """Return, for scatter_nd, the number of the slice that update `number` goes to, and whether there is one."""
    x, depth = node.inputs[0], node.inputs[1].shape[-1]
    place, inside = T.int64(0), T.bool(True)
    for d in range(depth):
        entry = wrapped(indices[number * depth + d], x.shape[d])
        inside = tirx.And(inside, in_range(entry, x.shape[d]))
        place = place + entry * prod(x.shape[d + 1 : depth])
    return T.bind(place), inside


def store_update(node: Node, target: Any, position: Expr, update: Expr) -> None:
    """Replace an element of the data, or combine it with an update."""
    dtype, reduction = node.inputs[0].dtype, node.attrs["reduction"]
    if reduction == "none":
        T.buffer_store(target, update, [position])
        return
    reducer = {"add": "sum", "mul": "prod"}.get(reduction, reduction)
    old, new = (named(reducers.to_accumulator(from_storage(e, dtype), dtype)) for e in (target[position], update))
    joined = named(reducers.combine(reducer, dtype, old, new))
    T.buffer_store(target, to_storage(reducers.from_accumulator(joined, dtype), dtype), [position])
