"""Facts about fusion candidates for the latency models."""

from __future__ import annotations

from collections.abc import Sequence

from tilestitch.compiler.ir import Node, Value
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.fusion.legality import operands
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.roles import Roles
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.schedule.facts import group_facts


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
