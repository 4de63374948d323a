"""Legality of unions. Only this module may refuse for correctness; it does not consider speed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilestitch.compiler.ir import IRError, Node, Value
from tilestitch.passes.fusion.cost.row_bands import why_no_band
from tilestitch.passes.plan import Group, GroupKind, WhyNot
from tilestitch.passes.plan.index_checks import pending_checks
from tilestitch.passes.plan.parts import MOST_GATES
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.target import TargetInfo

from .clusters import Cluster, Fusion


def why_not(state: Fusion, clusters: Sequence[Cluster], copies: Iterable[Node], subject: str) -> WhyNot | None:
    """Return None if `clusters`, with `copies` computed inside as well, may be one group of some kind."""
    return why_cyclic(state, clusters, copies, subject) or why_no_group(state, clusters, copies, subject)


def why_cyclic(state: Fusion, clusters: Sequence[Cluster], copies: Iterable[Node], subject: str) -> WhyNot | None:
    """Return None if no outside node both depends on the union and is needed by it."""
    between = state.cycle(clusters, copies)
    if between is None:
        return None
    return WhyNot(subject, "legality.cycle", f"{between.name} lies between them: the kernel would wait for itself")


def why_no_group(state: Fusion, clusters: Sequence[Cluster], copies: Iterable[Node], subject: str) -> WhyNot | None:
    """Return None if the target has kernels that compute and store what the union must."""
    found = roles_of_union(state, clusters, copies, subject)
    if isinstance(found, WhyNot):
        return found
    return why_not_on(state.target, found, subject)


def why_not_on(target: TargetInfo, roles: Roles, subject: str) -> WhyNot | None:
    """Return None if kernels for `target` support `roles`."""
    if roles.gate_width is None or target.name == "cpu":
        return None
    assert roles.anchor is not None
    weights, gates = roles.anchor.inputs[1], roles.anchor.output.shape[-1] // roles.gate_width
    if gates > MOST_GATES:
        reason = f"GEMMs for {target.name} have at most {MOST_GATES} gates"
        return WhyNot(subject, "legality.gates_target", reason, {"gates": gates, "most": MOST_GATES})
    if any(weights in n.inputs for n in roles.parts if n is not roles.anchor):
        reason = f"{weights.name} is read as it is, too, but its columns lie gate by gate for {target.name}"
        return WhyNot(subject, "legality.gates_target", reason)
    return None


def roles_of_union(state: Fusion, clusters: Sequence[Cluster], copies: Iterable[Node], subject: str) -> Roles | WhyNot:
    """Return the roles of the nodes of `clusters` and `copies` as one group."""
    found = state.union(clusters, copies).roles
    return replace(found, subject=subject or found.subject) if isinstance(found, WhyNot) else found


def check_group(by_name: Mapping[str, Node], position: Mapping[str, int], group: Group) -> WhyNot | None:
    """Return None if `group` satisfies the invariants of `tilestitch.passes.plan` for its kind and lists its operands
    correctly.

    `by_name`: the nodes of its graph; `position`: their positions in it.
    """
    missing = [n for n in group.nodes if n not in by_name]
    if missing:
        return WhyNot(group.name, "legality.nodes", f"the graph has no node {missing[0]}")
    if group.kind is GroupKind.STITCHED:
        return check_stitched(by_name, position, group)
    nodes = [by_name[n] for n in group.nodes]
    if nodes != sorted(nodes, key=lambda n: position[n.name]):
        return WhyNot(group.name, "legality.order", "its nodes are not in topological order")
    values = {o.name: o for n in nodes for o in n.outputs}
    foreign = [v for v in group.outputs if v not in values]
    if foreign:
        return WhyNot(group.name, "legality.outputs", f"it does not compute its output {foreign[0]}")
    inputs, constants = operands(nodes)
    if group.inputs != tuple(v.name for v in inputs) or group.constants != tuple(v.name for v in constants):
        return WhyNot(
            group.name, "legality.operands", "its inputs or constants are not what its nodes read from outside"
        )
    try:
        found = roles_of(nodes, [values[v] for v in group.outputs], group.name)
    except IRError as error:
        return WhyNot(group.name, "legality.types", str(error))
    if isinstance(found, WhyNot):
        return found
    anchor = found.anchor.name if found.anchor else None
    if (found.kind, anchor) != (group.kind, group.anchor):
        return WhyNot(group.name, "legality.kind", f"its nodes form a group of kind {found.kind.value} around {anchor}")
    return None


def check_stitched(by_name: Mapping[str, Node], position: Mapping[str, int], group: Group) -> WhyNot | None:
    """Check a stitched group as `check_group` does: its parts, and that they only read what earlier stages have
    stored.
    """
    for part in group.parts:
        refusal = check_group(by_name, position, part)
        if refusal is not None:
            return refusal
    refusal = _why_no_stages(group) or _why_unchecked(by_name, group)
    if refusal is not None:
        return refusal
    if group.tie == "band":
        gemm, after = group.parts
        refusal = why_no_band(by_name, gemm, after, group.name)
    return refusal or _why_not_operands(group)


def _why_no_stages(group: Group) -> WhyNot | None:
    """Return None if parts only read what earlier stages have stored, and each value is stored once."""
    stored = [v for part in group.parts for v in part.outputs]
    if len(set(stored)) != len(stored):
        return WhyNot(group.name, "legality.parts", "two parts store one value")
    later = set(stored)
    for stage in group.stages:
        late = [v for part in stage for v in part.inputs if v in later]
        if late:
            return WhyNot(group.name, "legality.stages", f"a part reads {late[0]} before a barrier has made it known")
        later.difference_update(v for part in stage for v in part.outputs)
    return None


def _why_unchecked(by_name: Mapping[str, Node], group: Group) -> WhyNot | None:
    """Return None if the indices of every part can be checked before it runs: those of later stages are not known at
    the launch. With drawn tiles, the block of a part's first tile checks its indices itself.
    """
    later = () if group.tie == "tickets" else group.stages[1:]
    for part in (part for stage in later for part in stage):
        if pending_checks([by_name[name] for name in part.nodes]):
            return WhyNot(
                group.name, "legality.part", f"{part.name} gathers by indices that are checked before the launch"
            )
    return None


def _why_not_operands(group: Group) -> WhyNot | None:
    """Return None if a stitched group's outputs, inputs and constants are those of its parts."""
    stored = {v for part in group.parts for v in part.outputs}
    if not set(group.outputs) <= stored:
        return WhyNot(group.name, "legality.outputs", f"no part stores its output {min(set(group.outputs) - stored)}")
    inputs = tuple(dict.fromkeys(v for part in group.parts for v in part.inputs if v not in stored))
    constants = tuple(dict.fromkeys(v for part in group.parts for v in part.constants))
    if (group.inputs, group.constants) != (inputs, constants):
        return WhyNot(group.name, "legality.operands", "its inputs or constants are not what its parts read")
    return None


def operands(nodes: Sequence[Node]) -> tuple[list[Value], list[Value]]:
    """Return the non-constant values and the constants that `nodes` read from outside, in order of first use."""
    members = set(nodes)
    read = dict.fromkeys(v for n in nodes for v in n.inputs if v.producer not in members)
    return [v for v in read if not v.is_constant], [v for v in read if v.is_constant]
