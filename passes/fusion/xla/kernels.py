"""Sets of nodes that XLA:GPU emits as one kernel and that our code generation supports."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Kind, Node, Value, is_elementwise, kind_of
from tilestitch.passes.fusion.rules.builtin import Fuse
from tilestitch.passes.plan import WhyNot

from .. import legality
from ..clusters import Cluster, Fusion
from .diamonds import has_diamond, is_reduction
from .libraries import are_merged, why_no_call

MOST_OPERANDS = 96
"""Most operands and outputs (gpu_fusible: MaxOperandsAndOutputsPerFusion)."""
MOST_REDUCTIONS = 8
"""Most reductions (gpu_fusible: kMaxUnnestedReductionOutputsPerFusion)."""
MOST_NODES = 160
"""Most nodes of one of our kernels, for the sake of compilers. XLA counts instructions after duplication, at most
10,000.
"""
MOST_NODES_AGAIN = 48
"""Most nodes of a kernel that recomputes others' nodes, so that there is room for its own."""
UNTILED = frozenset({"concat", "pad", "gather", "gather_elements", "gather_nd", "arg_max", "arg_min"})
"""Operators that symbolic tile analysis does not support, so that no Triton kernel has them."""


@dataclass(frozen=True)
class KernelLimits:
    """Forbids what XLA does not emit as one kernel; proposes nothing."""

    name: ClassVar[str] = "xla"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        return iter(())

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        reason = why_no_kernel(state, nodes)
        return WhyNot(" + ".join(n.name for n in nodes), self.name, reason) if reason else None


def fits(state: Fusion, clusters: Sequence[Cluster], copies: Iterable[Node] = ()) -> bool:
    """Return whether XLA emits `clusters`, with `copies` recomputed, as one kernel, and we can, too."""
    copies = tuple(copies)
    union = state.union(clusters, copies)
    if len(union.nodes) > MOST_NODES_AGAIN and any(n.op != "reshape" for n in copies):
        return False
    return why_no_kernel(state, union.nodes) is None and legality.why_not(state, clusters, copies, "") is None


def why_no_kernel(state: Fusion, nodes: Sequence[Node]) -> str | None:
    """Return None if XLA emits `nodes`, in topological order, as one kernel or library call."""
    members = set(nodes)
    operands = {v for n in nodes for v in n.inputs if v.producer not in members}
    stored = _stored(state, nodes, members)
    if len(operands) + len(stored) > MOST_OPERANDS or len(nodes) > MOST_NODES:
        return f"a kernel has at most {MOST_OPERANDS} operands and outputs, and not too many operators"
    anchors = [n for n in nodes if kind_of(n.op) in (Kind.CONTRACTION, Kind.OPAQUE)]
    if len(anchors) > 1:
        return None if are_merged(anchors) else f"{anchors[0].name} and {anchors[1].name} are two library calls"
    if anchors:
        return why_no_call(anchors[0], nodes, stored)
    reductions = [n for n in nodes if is_reduction(n)]
    if not reductions:
        return None
    if has_diamond(nodes):
        return _why_no_triton_kernel(nodes, stored)
    if len(reductions) > MOST_REDUCTIONS:
        return f"a kernel has at most {MOST_REDUCTIONS} reductions"
    return _why_no_reduction_kernel(reductions, members)


def _stored(state: Fusion, nodes: Sequence[Node], members: set[Node]) -> list[Value]:
    owned = [n for n in nodes if state.cluster_of(n).owned <= members]
    return state.stored(owned, members)


def _why_no_triton_kernel(nodes: Sequence[Node], stored: Sequence[Value]) -> str | None:
    untiled = next((n for n in nodes if n.op in UNTILED), None)
    if untiled is not None:
        return f"Triton kernels cannot tile {untiled.name} ({untiled.op})"
    if len(stored) > 1:
        return f"a Triton kernel has one result, not also {stored[0].name}"
    return None


def _why_no_reduction_kernel(reductions: Sequence[Node], members: set[Node]) -> str | None:
    """Return why a reduction is not the root of its kernel; a chain of operators with one operand may follow it."""
    for reduction in reductions:
        value = reduction.outputs[0]
        while not members.isdisjoint(value.users):
            reader = value.users[0]
            if len(value.users) > 1 or len(reader.inputs) > 1 or not _follows(reader):
                return f"the kernel ends with the reduction {reduction.name}"
            value = reader.output
    return None


def _follows(node: Node) -> bool:
    return is_elementwise(node.op) or node.op == "reshape"
