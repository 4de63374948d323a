"""Fusion after GEMMs: gates, and the views that the epilogue reads.

The cell of an LSTM or GRU is one GEMM, whose columns consist of one range per gate, followed by element-wise work that
reads a column of every range. All of it becomes the GEMM's kernel.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import ClassVar

from tilestitch.compiler.ir import Kind, Node, Value, is_elementwise, kind_of
from tilestitch.passes.fusion.clusters import Cluster, Fusion
from tilestitch.passes.fusion.rules.builtin import AllowsAll, Fuse
from tilestitch.passes.plan import GroupKind
from tilestitch.passes.plan.roles import Roles, is_native
from tilestitch.passes.rewrite.siblings import reads_in_place


@dataclass(frozen=True)
class Gates(AllowsAll):
    """Slices that split the columns of a GEMM into ranges, and the element-wise nodes that combine these."""

    name: ClassVar[str] = "gates"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        for anchor in state.nodes:
            if anchor.op != "matmul" or not is_native(anchor):
                continue
            stored = state.outputs_of(state.cluster_of(anchor))
            if len(stored) != 1 or state.graph.is_output(stored[0]):
                continue
            slices = stored[0].users
            if len(slices) > 1 and all(n.op == "slice" and n.output.shape == slices[0].output.shape for n in slices):
                gated = _gated(state, anchor, slices)
                if gated or not all(_is_read_in_place(state, n) for n in slices):
                    yield Fuse((anchor, *slices, *gated))


def _gated(state: Fusion, anchor: Node, slices: Sequence[Node]) -> list[Node]:
    """Return the element-wise nodes after `slices` that depend on nothing else after the GEMM, in order."""
    shape = slices[0].output.shape
    gemm = state.cluster_of(anchor).reach.mask
    found = set(slices)
    gated: list[Node] = []
    waiting = sorted({state.position[user] for node in slices for user in node.output.users})
    seen = set(waiting)
    while waiting:
        node = state.nodes[heappop(waiting)]
        if node in found or not _may_be_gated(state, node, shape):
            continue
        operands = [v.producer for v in node.inputs if v.producer is not None]
        if any(p not in found and state.cluster_of(p).reach.above & gemm for p in operands):
            continue
        found.add(node)
        gated.append(node)
        for position in {state.position[user] for user in node.output.users} - seen:
            seen.add(position)
            heappush(waiting, position)
    return gated


def _is_read_in_place(state: Fusion, node: Node) -> bool:
    """Return whether a slice that nothing recombines need not be stored: what reads it does so in the whole GEMM, which
    is stored in whole vectors, as units of several ranges are not.
    """
    graph, on_gpu = state.graph, state.target.name != "cpu"
    return on_gpu and not graph.is_output(node.output) and all(reads_in_place(u, graph) for u in node.output.users)


def _may_be_gated(state: Fusion, node: Node, shape: tuple[int, ...]) -> bool:
    if not is_elementwise(node.op) or node.output.shape != shape or not is_native(node):
        return False
    return len(state.cluster_of(node).owned) == 1


@dataclass(frozen=True)
class OperandViews(AllowsAll):
    """Views that the epilogue of a GEMM or window reads are fused instead of being stored."""

    name: ClassVar[str] = "operand_views"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        for node in reversed(state.nodes):
            cluster = state.cluster_of(node)
            if not state.is_live(cluster) or not _only_views(cluster) or not all(map(is_native, cluster.members)):
                continue
            readers = state.readers(cluster)
            if not readers or any(state.graph.is_output(v) for v in state.outputs_of(cluster)):
                continue
            if not all(_after(state, r, state.outputs_of(cluster)) for r in readers):
                continue
            if len(readers) == 1:
                yield Fuse((node, state.in_order(readers[0].owned)[0]))
                continue
            copies = tuple(state.in_order(cluster.members))
            for reader in readers:
                yield Fuse((state.in_order(reader.owned)[0],), copies)


def _only_views(cluster: Cluster) -> bool:
    """Return whether the members only rearrange. Reshapes alone do not count: they are aliases of their operands."""
    return all(kind_of(n.op) is Kind.VIEW for n in cluster.members) and any(n.op != "reshape" for n in cluster.members)


def _after(state: Fusion, reader: Cluster, values: Sequence[Value]) -> bool:
    roles = state.roles(reader)
    if not isinstance(roles, Roles) or roles.kind is not GroupKind.CONTRACTION or roles.anchor is None:
        return False
    return not any(v in roles.anchor.inputs for v in values)
