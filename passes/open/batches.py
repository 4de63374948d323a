"""Batches of known size that exceed the last-level cache: launches process a few of their images at a time.

Nodes that compute each image separately are moved to the body of a `call` in which the number of images is a symbol;
the body is planned like any other open graph, with slices. The model's own sizes stay known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilestitch.compiler.ir import Graph, Kind, Node, TensorType, Type, Value, kind_of
from tilestitch.compiler.ir.claims import Claim, noting
from tilestitch.compiler.ir.errors import IRError
from tilestitch.compiler.ir.ops import infer_types
from tilestitch.compiler.ir.sizes import Symbol, at, size_of
from tilestitch.compiler.ir.types import is_sized_tensor, is_static_tensor

from .images import SAME, images_of, why_not_by_image
from .regions import moved_to_call

MOST_TRIED = 4
"""Most sizes that are tried as the batch."""
IMAGES = "images"
"""Symbol of a body that processes a batch of known size."""


def batches_of(graph: Graph) -> list[int]:
    """Return candidates for the batch: first dimensions of inputs, those with most data first, at most `MOST_TRIED`."""
    found: dict[int, int] = {}
    for value in graph.inputs:
        if is_static_tensor(value.type) and value.tensor_type.rank:
            size = int(value.tensor_type.shape[0])
            found[size] = found.get(size, 0) + value.tensor_type.nbytes
    return sorted((size for size in found if size > 1), key=lambda size: (-found[size], size))[:MOST_TRIED]


def body_name(graph: Graph) -> str:
    """Return the name of the body that processes the images of a graph's batch."""
    return f"{graph.name}.{IMAGES}"


def in_images(graph: Graph, batch: int) -> tuple[Graph, Node] | None:
    """Return a copy in which the nodes that compute each image separately are the body of a call, and this call; None
    if there are none.

    `graph`: without symbols. Its inputs whose first dimension is `batch` have images.
    """
    copy, symbol = graph.clone(), Symbol(IMAGES, 1, batch)
    known = {value.name: value.type for value in copy.values()}
    for value in copy.inputs:
        if is_sized_tensor(value.type) and value.shape[:1] == (batch,):
            value.type = value.tensor_type.with_shape((size_of(symbol), *value.shape[1:]))
    members = list(_by_image(copy, symbol, batch))
    if not members:
        return None
    call = moved_to_call(copy, members, body_name(graph))
    call.attrs["body"].symbols = (symbol,)
    for value in copy.values():
        value.type = known[value.name]
    copy.sort()
    return copy, call


def _by_image(graph: Graph, symbol: Symbol, batch: int) -> Iterator[Node]:
    """Yield the nodes that compute each image separately, from the inputs on; their results get types with the
    symbol.
    """
    beyond: set[Value] = set()  # depends on images, but is not computed image by image
    for node in graph.nodes:
        if not any(v in beyond or images_of(v, symbol) != SAME for v in node.inputs):
            continue
        if not beyond.isdisjoint(node.inputs) or not _opened(node, symbol, batch):
            beyond.update(node.outputs)
            continue
        yield node


def _opened(node: Node, symbol: Symbol, batch: int) -> bool:
    """Return whether the node computes each image separately; if so, it gets types and attributes with the symbol."""
    if kind_of(node.op) in (Kind.HOST, Kind.CONTROL):
        return False
    known, attrs = [value.type for value in node.outputs], dict(node.attrs)
    claims: list[Claim] = []
    node.attrs.update(_with_images(node, symbol, batch))
    try:
        with noting(claims.append):
            found = infer_types(node.op, [value.type for value in node.inputs], node.attrs)
    except IRError:
        found = known
    for value, type_ in zip(node.outputs, found, strict=True):
        value.type = type_
    by_image = not claims and why_not_by_image(node, symbol) is None
    if by_image and [_at(type_, symbol, batch) for type_ in found] == known and found != known:
        return True
    node.attrs = attrs
    for value, type_ in zip(node.outputs, known, strict=True):
        value.type = type_
    return False


def _with_images(node: Node, symbol: Symbol, batch: int) -> dict[str, Any]:
    """Return the attributes for the size of a result with images, with the symbol."""
    found = {}
    for name in {"shape", "sizes"} & node.attrs.keys():
        first, *others = node.attrs[name] or (0,)
        if isinstance(first, int) and first > 0 and first % batch == 0:
            found[name] = (first // batch * size_of(symbol), *others)
    return found


def _at(type_: Type, symbol: Symbol, batch: int) -> Type:
    if not isinstance(type_, TensorType) or not is_sized_tensor(type_):
        return type_
    return type_.with_shape(tuple(at(size, {symbol.name: batch}) for size in type_.sizes))
