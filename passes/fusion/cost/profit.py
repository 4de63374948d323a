"""Profitability of a legal union, by simple counting: bytes no longer moved against arithmetic repeated."""

from collections.abc import Iterable, Sequence
from math import prod

from tilestitch.compiler.ir import Kind, Node, Value, kind_of
from tilestitch.cost_model.bounds import most_operations_again
from tilestitch.cost_model.counts import bytes_of, operations_per_element
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.fusion.clusters import Cluster, Fusion
from tilestitch.passes.fusion.legality import operands, roles_of_union
from tilestitch.passes.plan import Group, WhyNot
from tilestitch.passes.plan.roles import Roles
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.schedule.cpu.scalars import STRIDED
from tilestitch.passes.schedule.device import device_of
from tilestitch.passes.schedule.evaluations import evaluations, kept_by_row
from tilestitch.passes.schedule.facts import group_facts

MOST_NODES = 160
MOST_OPERANDS = 72
VECTOR_ELEMENTS = 16
STRIDED_OPERATIONS = STRIDED * VECTOR_ELEMENTS
"""Operations on contiguous elements in the time that an element takes which lies apart from its neighbours."""


def why_not(state: Fusion, clusters: Sequence[Cluster], copies: Iterable[Node], subject: str) -> WhyNot | None:
    """Return None if the union is expected to be at least as fast as its parts. It must be legal, and not too large."""
    copies = set(copies)
    union = state.union(clusters, copies)
    nodes, stored = union.nodes, union.stored
    roles = roles_of_union(state, clusters, copies, subject)
    if isinstance(roles, WhyNot):
        return roles
    return (
        _too_much_work(state, clusters, copies, nodes, stored, roles, subject)
        or _row_too_long(state, roles, subject)
        or _too_few_rows(state, clusters, roles, subject)
    )


def too_large(state: Fusion, clusters: Sequence[Cluster], copies: Iterable[Node], subject: str) -> WhyNot | None:
    """Return None if compilers can handle the union as one kernel. This check is faster than that of legality."""
    union = state.union(clusters, copies)
    operands = {v for n in union.nodes for v in n.inputs if v.producer not in union.members}
    if len(union.nodes) <= MOST_NODES and len(operands) + len(union.stored) <= MOST_OPERANDS:
        return None
    numbers = {"nodes": len(union.nodes), "operands": len(operands) + len(union.stored)}
    return WhyNot(subject, "profit.size", "the kernel would be too large to compile well", numbers)


def _too_much_work(
    state: Fusion, clusters: Sequence[Cluster], copies: set[Node], nodes: Sequence[Node], stored: Sequence[Value],
    roles: Roles, subject: str,
) -> WhyNot | None:  # fmt: skip
    fetched = {v for n in nodes if n not in copies for v in n.inputs if v.producer in copies}
    before = sum(bytes_of(state.outputs_of(c)) for c in clusters) + bytes_of(fetched)
    saved = max(0, before - bytes_of(stored))
    again = recomputation(state, nodes, stored, roles) + _copied_work(state, copies)
    results = prod(roles.rows.shape) if roles.rows is not None else max(v.tensor_type.num_elements for v in stored)
    if again <= most_operations_again(saved, results, device_of(state.target)):
        return None
    return WhyNot(
        subject, "profit.recompute", "values would be computed again more often than storing them costs",
        {"operations_again": again, "bytes_saved": saved},
    )  # fmt: skip


def _copied_work(state: Fusion, copies: set[Node]) -> int:
    """Return the operations of one evaluation of `copies`, less this reader's share if every reader has copies of its
    own.
    """
    users = {u for n in copies for o in n.outputs for u in o.users} - copies
    readers = len({state.cluster_of(u).number for u in users})
    work = sum(n.outputs[0].tensor_type.num_elements * operations_per_element(n.op) for n in copies)
    return int(work * (readers - 1) / max(1, readers))


def recomputation(state: Fusion, nodes: Sequence[Node], stored: Sequence[Value], roles: Roles) -> int:
    """Return the operations beyond one evaluation of every element, where readers use indices of their own.

    On a CPU, a reader through a transpose that reads strided elements repeatedly loads element by element: a scalar
    step takes as long as an operation on a whole vector.
    """
    if not _any_again(state, nodes, roles):
        return 0
    counts = evaluations(nodes, stored, roles)
    again = 0.0
    for node in nodes:
        if kind_of(node.op) in (Kind.VIEW, Kind.INJECTIVE):
            extra = counts.get(node.output, 0.0) - node.output.tensor_type.num_elements
            apart = state.target.name == "cpu" and _moves_last_axis(node)
            again += max(0.0, extra) * (STRIDED_OPERATIONS if apart else operations_per_element(node.op))
    return int(again)


def _any_again(state: Fusion, nodes: Sequence[Node], roles: Roles) -> bool:
    """Return whether any reader uses indices of its own on values that are not kept."""
    members = set(nodes)
    read = (value for node in nodes for value in state.read_apart(node) if value.producer in members)
    return any(roles.rows is None or not kept_by_row(value, roles) for value in read)


def _moves_last_axis(node: Node) -> bool:
    """Return whether a transpose changes the contiguous axis."""
    perm: Sequence[int] = node.attrs["perm"] if node.op == "transpose" else ()
    return bool(perm) and perm[-1] != len(perm) - 1


def _row_too_long(state: Fusion, roles: Roles, subject: str) -> WhyNot | None:
    """Return why a row is too long to be read again after its reduction: a task keeps it, so it should fit its
    cache.
    """
    rows = roles.rows
    if rows is None or state.target.name != "cpu" or not roles.looks_again:
        return None  # on a GPU a long row is in the registers of many blocks, or is read again
    lanes = 1 if len(rows.shape) - 1 in rows.axes else VECTOR_ELEMENTS
    width = max(o.tensor_type.nbytes // max(1, o.tensor_type.num_elements) for n in roles.parts for o in n.outputs)
    row_bytes = rows.length * width * lanes
    limit = 4 * state.target.task_buffer_bytes
    if row_bytes <= limit:
        return None
    return WhyNot(subject, "profit.row", "a row does not fit a task's cache", {"row_bytes": row_bytes, "limit": limit})


def _too_few_rows(state: Fusion, clusters: Sequence[Cluster], roles: Roles, subject: str) -> WhyNot | None:
    """Return why a large element-wise part must not be tied to few rows, each of which one task computes."""
    rows = roles.rows
    if rows is None or state.target.name != "cpu" or len(clusters) < 2:
        return None  # on a GPU few long rows are spread over blocks
    elements, tasks = prod(rows.shape), rows.count
    if elements < 1 << 16 or tasks >= state.target.threads or not roles.looks_again:
        return None
    return WhyNot(
        subject, "profit.parallelism", "its rows are too few to occupy the threads",
        {"rows": tasks, "threads": state.target.threads},
    )  # fmt: skip


def facts_of(
    nodes: Sequence[Node], stored: Sequence[Value], roles: Roles, target: TargetInfo, model: LatencyModel
) -> KernelFacts:
    """Return the facts of `nodes` (in topological order) as one kernel that stores `stored`, scheduled by `model`."""
    return group_facts({node.name: node for node in nodes}, _group(nodes, stored, roles), target, model, roles)


def _group(nodes: Sequence[Node], stored: Sequence[Value], roles: Roles) -> Group:
    """Return the group that a candidate would become."""
    inputs, constants = operands(nodes)
    return Group(
        "candidate", roles.kind, tuple(n.name for n in nodes), roles.anchor.name if roles.anchor else None,
        tuple(v.name for v in inputs), tuple(v.name for v in constants), tuple(v.name for v in stored),
    )  # fmt: skip
