"""A group as numbers for the latency models: bytes, operations, and launches as scheduled."""

from collections.abc import Mapping, Sequence

from tilestitch.compiler.ir import Graph, Node
from tilestitch.cost_model.devices import Device
from tilestitch.cost_model.facts import KernelFacts, Part
from tilestitch.cost_model.joined import joined_facts, listed_facts
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.plan import Group, WhyNot
from tilestitch.passes.plan.launches.cuda.group import blocking_of
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.sync.cost import facts_of_launches, facts_of_tickets

from .cpu.facts import cpu_facts
from .cuda.band_facts import facts_of_band
from .cuda.blocks import facts_of_blocks
from .cuda.facts import gpu_facts
from .device import device_of, multiprocessors_of
from .kernels import schedule_group
from .structure import Known, Structure, structure_of

_KNOWN: Known[KernelFacts] = Known()


def group_facts(
    nodes: Mapping[str, Node],
    group: Group,
    target: TargetInfo,
    model: LatencyModel | None = None,
    roles: Roles | None = None,
) -> KernelFacts:
    """Return the facts of a planned group; `nodes` are the graph's by name. The group must be legal
    (`legality.check_group`).

    They follow from its schedule; a group without one gets that which `model` will choose. roles: of a single-part
    group, if known. Raises ValueError if the nodes form no group.
    """
    structure = structure_of(nodes, group, target)
    if structure is None:
        return _group_facts(nodes, group, target, model, None, roles)
    known, facts = _KNOWN.of(structure, model, lambda: _group_facts(nodes, group, target, model, structure, roles))
    return facts if known.names == structure.names else facts.renamed(known.renaming(structure))


def scheduled_facts(
    nodes: Mapping[str, Node], group: Group, target: TargetInfo, roles: Roles, work: Part
) -> KernelFacts:
    """Return the facts of a scheduled contraction with these roles, whose `work_of` is `work`. They are not cached, as
    each schedule is one of many.
    """
    if target.is_gpu:
        return gpu_facts(nodes, group, roles, multiprocessors_of(target))
    return cpu_facts(nodes, group, roles, target.core, work)


def _group_facts(
    nodes: Mapping[str, Node],
    group: Group,
    target: TargetInfo,
    model: LatencyModel | None,
    structure: Structure | None,
    roles: Roles | None,
) -> KernelFacts:
    if model is not None and not (group.schedule or any(part.schedule for part in group.parts)):
        group = schedule_group(nodes, group, target, model, structure)
    if group.tie == "band":
        gemm, after = group.parts
        return facts_of_band(nodes, group, (group_facts(nodes, gemm, target), group_facts(nodes, after, target)))
    if group.tie == "tickets":
        device = device_of(target)
        assert isinstance(device, Device)
        kernels = [group_facts(nodes, part, target, model) for part in group.parts]
        return facts_of_tickets(nodes, group, kernels, device)
    if group.tie == "block":
        found = blocking_of(nodes, group)
        if isinstance(found, str):
            raise ValueError(f"no kernel: {found}; plan the graph again")
        return facts_of_blocks(*found)
    if group.tie == "launches":
        device = device_of(target)
        assert isinstance(device, Device)
        kernels = [group_facts(nodes, part, target, model) for part in group.parts]
        return facts_of_launches(nodes, group, kernels, device)
    if group.stages:
        stages = [[part for part in stage if _launches(nodes, part)] for stage in group.stages]
        launched = [stage for stage in stages if stage] or group.stages
        return joined([[group_facts(nodes, part, target, model) for part in stage] for stage in launched], target)
    roles = roles or _roles(nodes, group)
    if not target.is_gpu:
        return cpu_facts(nodes, group, roles, target.core)
    return gpu_facts(nodes, group, roles, multiprocessors_of(target))


def _roles(nodes: Mapping[str, Node], group: Group) -> Roles:
    """Return the roles of a single-part group."""
    members = [nodes[name] for name in group.nodes]
    values = {o.name: o for n in members for o in n.outputs}
    found = roles_of(members, [values[name] for name in group.outputs], group.name)
    if isinstance(found, WhyNot):
        raise ValueError(f"no kernel: {found}; plan the graph again")
    return found


def _launches(nodes: Mapping[str, Node], part: Group) -> bool:
    """Return whether a part of a kernel stores any elements."""
    return any(v.name in part.outputs and v.tensor_type.num_elements for n in part.nodes for v in nodes[n].outputs)


def joined(stages: Sequence[Sequence[KernelFacts]], target: TargetInfo) -> KernelFacts:
    """Return the facts of kernels fused into one: stage by stage, on a CPU only one stage."""
    if target.is_gpu:
        return joined_facts(stages)
    (stage,) = stages
    return listed_facts(stage)


def nodes_by_name(graph: Graph) -> dict[str, Node]:
    return {n.name: n for n in graph.nodes}
