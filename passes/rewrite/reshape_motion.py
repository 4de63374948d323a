"""Reshapes move through element-wise operators towards the outputs, so that arithmetic directly follows its producer;
and their arithmetic: which axes correspond, and how reshapes commute with permutations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Graph, Node, Value, is_elementwise
from tilestitch.passes.contract import PassContext, PassResult

from .driver import (
    Pattern,
    Replacement,
    apply_patterns,
    elements,
    emit_like,
    is_sized,
    produced_by,
    reshaped,
)
from .views import reshape_chain


def axis_groups(source: Sequence[int], target: Sequence[int]) -> list[tuple[range, range]] | None:
    """Return the finest pairs of neighbouring source axes and target axes with equal numbers of elements, in order.

    None for shapes without elements, where the pairs would not be unique, and where none are certain. Axes of size 1
    belong to the preceding group.
    """
    if elements(source) != elements(target) or elements(source) == 0:
        return None
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        first_i, first_j = i, j
        a, b = 1, 1
        if i < len(source):
            a, i = source[i], i + 1
        if j < len(target):
            b, j = target[j], j + 1
        while a != b:
            if a < b and i < len(source):
                a, i = a * source[i], i + 1
            elif j < len(target):
                b, j = b * target[j], j + 1
            else:  # a size of 0 or 1 counts as 1 when they are compared
                return None
        while i < len(source) and source[i] == 1 and not (j < len(target) and target[j] == 1):
            i += 1
        while j < len(target) and target[j] == 1 and not (i < len(source) and source[i] == 1):
            j += 1
        groups.append((range(first_i, i), range(first_j, j)))
    return groups


def permuted_reshape(
    shape: Sequence[int], perm: Sequence[int], target: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return `(shape2, perm2)` with reshape(transpose(x, perm), target) = transpose(reshape(x, shape2), perm2), x of
    `shape`.

    None if the reshape merges axes that are not adjacent, in the same order, in x.
    """
    groups = axis_groups([shape[p] for p in perm], target)
    if groups is None:
        return None
    blocks: list[tuple[int, range]] = []  # start of each run of the group's axes in x, and its target axes
    for sources, targets in groups:
        origin = [perm[i] for i in sources]
        if origin != list(range(origin[0], origin[0] + len(origin))) if origin else False:
            return None
        blocks.append((origin[0] if origin else len(shape), targets))
    order = sorted(range(len(blocks)), key=lambda b: (blocks[b][0], b))
    axes = [t for b in order for t in blocks[b][1]]  # target axes in the order of x
    shape2 = tuple(target[t] for t in axes)
    perm2 = tuple(axes.index(t) for t in range(len(target)))
    return shape2, perm2


@dataclass(frozen=True)
class ReshapeMotion:
    """Rewrite f(reshape(a), reshape(b), small) to reshape(f(a, b, small')), where a and b have one shape.

    Constants are reshaped where the reshape does not merge the axes along which they vary. Reshapes that split or merge
    rows also move through matmul by a matrix.
    """

    name: ClassVar[str] = "reshape_motion"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        return PassResult.counted(graph, apply_patterns(graph, PATTERNS), "moves")


def through_elementwise(graph: Graph, node: Node) -> Replacement | None:
    if not is_elementwise(node.op) or not all(map(is_sized, (*node.inputs, *node.outputs))):
        return None
    target = node.output.shape
    found = [r for v in node.inputs if v.shape == target and (r := produced_by(v, "reshape")) is not None]
    if not found or not is_sized(found[0].inputs[0]) or not all(_readers_follow(graph, r.output) for r in found):
        return None
    source = found[0].inputs[0].shape
    shapes = [_shape_before(v, source, target) for v in node.inputs]
    if any(s is None for s in shapes):
        return None
    operands = [
        _operand_before(graph, node, v, source, s) for v, s in zip(node.inputs, shapes, strict=True) if s is not None
    ]
    value = emit_like(graph, node, node.op, *operands, **node.attrs)
    return [graph.emit("reshape", value, origins=found[0].origins, insert_before=node, shape=target)]


def _readers_follow(graph: Graph, value: Value) -> bool:
    """Return whether the reshape disappears: otherwise a softmax, half in one shape and half in another, would be split
    up.
    """
    return not graph.is_output(value) and all(is_elementwise(n.op) or n.op == "matmul" for n in value.users)


def through_matmul(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite reshape(x) @ W to reshape(x @ W) for a matrix W, if the reshape keeps the last axis."""
    inner = produced_by(node.inputs[0], "reshape")
    if inner is None or node.attrs.get("trans_a") or not all(map(is_sized, (inner.inputs[0], *node.inputs))):
        return None
    if not _readers_follow(graph, inner.output):
        return None
    source, rows = inner.inputs[0].shape, node.inputs[0].shape
    if len(source) < 2 or source[-1] != rows[-1] or len(node.inputs[1].shape) != 2:
        return None
    value = emit_like(graph, node, "matmul", inner.inputs[0], node.inputs[1], **node.attrs)
    shape = node.output.shape
    return [graph.emit("reshape", value, origins=inner.origins, insert_before=node, shape=shape)]


def _shape_before(value: Value, source: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape in which `value` broadcasts to `source` as it did to `target`; None if there is none."""
    inner = produced_by(value, "reshape")
    if inner is not None and value.shape == target and is_sized(inner.inputs[0]) and inner.inputs[0].shape == source:
        return source
    if elements(value.shape) == 1:
        return ()
    if not value.is_constant:
        return None
    padded = (1,) * (len(target) - len(value.shape)) + value.shape
    groups = axis_groups(source, target)
    if groups is None:
        return None
    shape = [1] * len(source)
    for sources, targets in groups:
        wide = [padded[t] for t in targets]
        if all(d == 1 for d in wide):
            continue
        if wide != [target[t] for t in targets]:
            return None
        for s in sources:
            shape[s] = source[s]
    return tuple(shape)


def _operand_before(graph: Graph, node: Node, value: Value, source: tuple[int, ...], shape: tuple[int, ...]) -> Value:
    inner = produced_by(value, "reshape")
    if inner is not None and shape == source and is_sized(inner.inputs[0]) and inner.inputs[0].shape == source:
        return inner.inputs[0]
    return reshaped(graph, node, value, shape)


PATTERNS: dict[str, list[Pattern]] = {
    "matmul": [through_matmul],
    "reshape": [reshape_chain],  # adjacent ones are merged before they move on
    "*": [through_elementwise],
}
