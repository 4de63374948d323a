"""Groups of open size, and dimensions that are joined at typical sizes as they are at all sizes."""

from collections.abc import Mapping, Sequence

from tilestitch.compiler.ir import Node
from tilestitch.compiler.ir.sizes import Size, is_open
from tilestitch.passes.plan import Group


def is_of_open_size(group: Group, nodes: Mapping[str, Node]) -> bool:
    """Return whether a group has values of open size in the open graph, whose nodes are given by name."""
    values = (v for name in group.nodes for v in (*nodes[name].inputs, *nodes[name].outputs))
    return not all(v.tensor_type.is_static for v in values)


def joined(extents: Sequence[int], typical: Sequence[int], shape: Sequence[Size]) -> tuple[Size, ...] | None:
    """Return products of runs of `shape` for which those of `typical` are `extents`; None if there are no such runs."""
    pairs = [(a, b) for a, b in zip(typical, shape, strict=True) if a != 1 or is_open(b)]
    result: list[Size] = []
    for extent in extents:
        before: int = 1
        after: Size = 1
        while before != extent and pairs:
            one, other = pairs.pop(0)
            before, after = before * one, after * other
        if before != extent:
            return None
        result.append(after)
    return None if pairs else tuple(result)
