"""The dtype of positions in tensors, and the values that lie between others in a kernel."""

from collections.abc import Iterable, Iterator
from math import prod

from tilestitch.compiler.ir import Kind, Node, Value, kind_of
from tilestitch.compiler.ir.indexing import blocks_of_reshape
from tilestitch.compiler.ir.sizes import Size, bounds_of, symbols_of

BEYOND = 2**20
INT32_ELEMENTS = 2**31 - BEYOND
"""From this number of elements on, positions are 64-bit integers; loops may run a little beyond the last element."""


def index_dtype(values: Iterable[Value]) -> str:
    """Return a dtype that can hold every position in each of `values`."""
    return "int32" if all(bounds_of(v.tensor_type.num_elements)[1] < INT32_ELEMENTS for v in values) else "int64"


def index_dtype_of(nodes: Iterable[Node]) -> str:
    """Return a dtype that can hold every position in every value of a group, including those never stored."""
    return index_dtype(v for node in nodes for v in (*node.inputs, *node.outputs))


def counted(nodes: Iterable[Node], inputs: Iterable[Value], outputs: Iterable[Value], scores: bool) -> tuple[Size, ...]:
    """Return upper bounds of the positions in a group's kernels: the element counts of its values. scores: the group is
    attention, whose scores are indexed but have no position, except for views that merge some of their dimensions.
    """
    members = tuple(nodes)
    if not scores:
        return tuple(dict.fromkeys(v.tensor_type.num_elements for n in members for v in (*n.inputs, *n.outputs)))
    values = dict.fromkeys((*inputs, *outputs, *_multiplied(members, inputs)))
    joined = (size for node in members for size in _joined(node))
    return tuple(dict.fromkeys((*(value.tensor_type.num_elements for value in values), *joined)))


def _multiplied(members: Iterable[Node], inputs: Iterable[Value]) -> list[Value]:
    """Return the operands of attention's contractions except the scores, and what they are computed from."""
    nodes = tuple(members)
    contractions = [node for node in nodes if kind_of(node.op) is Kind.CONTRACTION]
    derived = {value for node in contractions for value in node.outputs}
    for node in nodes:
        derived.update(node.outputs if derived.intersection(node.inputs) else ())
    found = values_between((v for node in contractions for v in node.inputs if v not in derived), inputs)
    return [v for node in nodes for v in (*node.inputs, *node.outputs) if v in found]


def _joined(node: Node) -> Iterator[Size]:
    """Yield the sizes of the dimensions that a reshape merges or splits."""
    if node.op != "reshape" or 0 in node.output.shape:
        return
    source = node.inputs[0].shape
    for axes, others in blocks_of_reshape(source, node.output.shape):
        if len(axes) > 1 or len(others) > 1:
            yield prod(source[axis] for axis in axes)


def gpu_index_dtype_of(nodes: Iterable[Node]) -> str:
    """Return a dtype that can hold every position in every value of a non-attention group on a GPU."""
    return "int32" if are_narrow(counted(nodes, (), (), scores=False)) else "int64"


def are_narrow(counts: Iterable[Size]) -> bool:
    """Return whether positions below these counts are 32-bit integers on a GPU: either their ranges prove it, or one of
    their dimensions has no declared range. In the latter case a run checks it (`to_check`).
    """
    return all(_is_small(count) or _lacks_range(count) for count in counts)


def to_check(counts: Iterable[Size]) -> tuple[Size, ...]:
    """Return the counts that only a run can show to be below `INT32_ELEMENTS`."""
    return tuple(dict.fromkeys(count for count in counts if not _is_small(count)))


def _is_small(count: Size) -> bool:
    return bounds_of(count)[1] < INT32_ELEMENTS


def _lacks_range(count: Size) -> bool:
    return not all(symbol.given for symbol in symbols_of([count]))


def values_between(values: Iterable[Value], inputs: Iterable[Value]) -> set[Value]:
    """Return `values`, everything that they are computed from back to `inputs`, and those of `inputs` that are read."""
    found: set[Value] = set()
    ends, stack = set(inputs), list(values)
    while stack:
        value = stack.pop()
        if value not in found:
            found.add(value)
            stack.extend(() if value in ends or value.producer is None else value.producer.inputs)
    return found
