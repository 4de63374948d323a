"""The dtype of positions in tensors, and which values kernels compute between others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from tilestitch.compiler.ir import Kind, Node, Value, kind_of
from tilestitch.compiler.ir.indexing import blocks_of_reshape
from tilestitch.compiler.ir.sizes import Size, bounds_of, symbols_of

BEYOND = 2**20
INT32_ELEMENTS = 2**31 - BEYOND
"""From so many elements on positions are 64-bit integers; loops may run a little beyond the last element."""


def index_dtype(values: Iterable[Value]) -> str:
    """Return the dtype that holds every position in every one of `values`."""
    return "int32" if all(bounds_of(v.tensor_type.num_elements)[1] < INT32_ELEMENTS for v in values) else "int64"


def index_dtype_of(nodes: Iterable[Node]) -> str:
    """Return the dtype that holds every position in every value of a group, those included that are never stored."""
    return index_dtype(v for node in nodes for v in (*node.inputs, *node.outputs))


def counted(nodes: Iterable[Node], inputs: Iterable[Value], outputs: Iterable[Value], scores: bool) -> tuple[Size, ...]:
    """Return what positions in the kernels of a group stay below: the elements of its values. scores: it is attention,
    whose scores have an index but no position, but for views that join some of their dimensions.
    """
    members = tuple(nodes)
    if not scores:
        return tuple(dict.fromkeys(v.tensor_type.num_elements for n in members for v in (*n.inputs, *n.outputs)))
    values = dict.fromkeys((*inputs, *outputs, *_multiplied(members, inputs)))
    joined = (size for node in members for size in _joined(node))
    return tuple(dict.fromkeys((*(value.tensor_type.num_elements for value in values), *joined)))


def _multiplied(members: Iterable[Node], inputs: Iterable[Value]) -> list[Value]:
    """Return what the contractions of attention multiply, but for the scores, and what that is made of."""
    nodes = tuple(members)
    contractions = [node for node in nodes if kind_of(node.op) is Kind.CONTRACTION]
    derived = {value for node in contractions for value in node.outputs}
    for node in nodes:
        derived.update(node.outputs if derived.intersection(node.inputs) else ())
    found = values_between((v for node in contractions for v in node.inputs if v not in derived), inputs)
    return [v for node in nodes for v in (*node.inputs, *node.outputs) if v in found]


def _joined(node: Node) -> Iterator[Size]:
    """Of a reshape, the sizes of what it makes of several dimensions, or several of."""
    if node.op != "reshape" or 0 in node.output.shape:
        return
    source = node.inputs[0].shape
    for axes, others in blocks_of_reshape(source, node.output.shape):
        if len(axes) > 1 or len(others) > 1:
            yield prod(source[axis] for axis in axes)


def gpu_index_dtype_of(nodes: Iterable[Node]) -> str:
    """Return the dtype that holds every position in every value of a group on a GPU that is no attention."""
    return "int32" if are_narrow(counted(nodes, (), (), scores=False)) else "int64"


def are_narrow(counts: Iterable[Size]) -> bool:
    """Return whether positions below each of these counts are 32-bit integers on a GPU: their ranges say so, or a
    dimension among theirs was given none. Then a run checks it (`to_check`).
    """
    return all(_is_small(count) or _lacks_range(count) for count in counts)


def to_check(counts: Iterable[Size]) -> tuple[Size, ...]:
    """Return those that are below `INT32_ELEMENTS` only if a run finds them so."""
    return tuple(dict.fromkeys(count for count in counts if not _is_small(count)))


def _is_small(count: Size) -> bool:
    return bounds_of(count)[1] < INT32_ELEMENTS


def _lacks_range(count: Size) -> bool:
    return not all(symbol.given for symbol in symbols_of([count]))


def values_between(values: Iterable[Value], inputs: Iterable[Value]) -> set[Value]:
    """`values`, all that they are computed from as far as `inputs`, and those of `inputs` that are read."""
    found: set[Value] = set()
    ends, stack = set(inputs), list(values)
    while stack:
        value = stack.pop()
        if value not in found:
            found.add(value)
            stack.extend(() if value in ends or value.producer is None else value.producer.inputs)
    return found
