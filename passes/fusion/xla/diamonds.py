"""Rows that are combined with a reduction of themselves: XLA emits softmax and layer normalisation as Triton kernels.

A *diamond* is `root(x', f(reduce(x'')))`, where x' and x'' are computed from one producer x by trivial operators, and
the reduction folds the last axis. Consecutive diamonds are fused to one kernel later, by priority fusion.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Kind, Node, Value, is_elementwise, kind_of
from tilestitch.passes.fusion.rules.builtin import AllowsAll, Fuse
from tilestitch.passes.plan.roles import is_native, reduced_axes

from ..clusters import Fusion

COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum"})
FOLDS = frozenset({"reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and"})


@dataclass(frozen=True)
class Diamond:
    """`nodes`: all from the producer, exclusive, to the root, which is the last."""

    root: Node
    reduction: Node
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Normalisations(AllowsAll):
    """Fuses each diamond to one kernel, the last one first."""

    name: ClassVar[str] = "softmax_rewriter_triton"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        for node in reversed(state.nodes):
            diamond = diamond_at(node) if is_native(node) else None
            if diamond is not None:
                yield Fuse(tuple(state.in_order(diamond.nodes)), forced=True)


def has_diamond(nodes: Sequence[Node]) -> bool:
    """Return whether the kernel of `nodes` is one that XLA lets Triton compile."""
    members = set(nodes)
    if not any(map(is_reduction, nodes)):
        return False
    found = (d for n in nodes if (d := diamond_at(n)) is not None)
    return any(members.issuperset(d.nodes) for d in found)


def diamond_at(root: Node) -> Diamond | None:
    """Return the diamond whose last operator is `root`."""
    if not is_elementwise(root.op) or len(root.inputs) != 2 or root.inputs[0] is root.inputs[1]:
        return None
    sides = (1, 0) if root.op in COMMUTATIVE else (1,)
    return next((d for side in sides if (d := _closed(root, root.inputs[1 - side], root.inputs[side]))), None)


def _closed(root: Node, full: Value, reduced: Value) -> Diamond | None:
    after: list[Node] = []
    while reduced.producer is not None and reduced.producer.op not in FOLDS:
        step = reduced.producer
        if not _is_trivial(step):
            return None
        after.append(step)
        reduced = _passed_on(step)
    reduction = reduced.producer
    if reduction is None or not _folds_rows(reduction, root) or full.shape != root.output.shape:
        return None
    before, producer = _trivial_chain(reduction.inputs[0])
    direct, source = _trivial_chain(full, producer)
    if source is not producer or (direct and len(full.users) != 1):
        return None
    nodes = dict.fromkeys((*before, *direct, reduction, *after, root))
    return Diamond(root, reduction, tuple(nodes))


def _folds_rows(reduction: Node, root: Node) -> bool:
    operand = reduction.inputs[0]
    rows = reduced_axes(reduction) == (len(operand.shape) - 1,) and operand.shape == root.output.shape
    return rows and len(reduction.output.users) == 1


def _trivial_chain(value: Value, until: Value | None = None) -> tuple[list[Node], Value]:
    """Return the trivial operators that lead to `value`, and the value that they start from."""
    chain: list[Node] = []
    while value is not until and value.producer is not None and _is_trivial(value.producer):
        chain.append(value.producer)
        value = _passed_on(value.producer)
    return chain, value


def _is_trivial(node: Node) -> bool:
    """Return whether a node has one reader, and moves no more bytes than the one tensor that passes through it."""
    if len(node.outputs) != 1 or len(node.output.users) != 1:
        return False
    if node.op in ("reshape", "broadcast_to"):
        return True
    if not is_elementwise(node.op) or not 1 <= len(node.inputs) <= 2:
        return False
    return len(set(node.inputs)) == 1 or sum(map(_is_splat, node.inputs)) == 1


def _passed_on(node: Node) -> Value:
    return next((v for v in node.inputs if not _is_splat(v)), node.inputs[0])


def _is_splat(value: Value) -> bool:
    """Return whether a value is a broadcast constant or argument."""
    return value.producer is None and (value.is_constant or not value.shape)


def is_reduction(node: Node) -> bool:
    return kind_of(node.op) is Kind.REDUCTION
