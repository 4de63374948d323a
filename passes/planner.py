"""From a canonical graph to its StitchPlan, and the check that a plan given from outside fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tilestitch.compiler.ir import Graph, Node
from tilestitch.compiler.ir.text import fingerprint

from .contract import PassContext
from .errors import PassError, PlanError
from .fusion.inplace import offsets_of
from .fusion.legality import check_group
from .fusion.planners import PLANNERS, asking
from .fusion.rules import FusionRule
from .fusion.stitcher import stitch
from .plan import Group, GroupKind, HostGroup, StitchPlan, WhyNot, wholes_of
from .plan.anchored import AnchoredGroup
from .plan.attention_check import why_not_attention
from .plan.gemm_check import why_not_scheduled
from .plan.roles import Roles, is_native, roles_of
from .plan.schedule_check import why_not
from .plan.schedules import AttentionSchedule, DirectSchedule, GemmSchedule
from .plan.target import TargetInfo
from .plan.view import look_up
from .schedule.cuda.gpu import Gpu
from .schedule.kernels import schedule_groups
from .schedule.memory import lifetimes_of, plan_buffers
from .schedule.order import segments_of, written


def make_plan(graph: Graph, context: PassContext) -> StitchPlan:
    """Plan `graph` and the graphs nested in it by the planner `context.options["planner"]` (default `stitch`).

    Rules of plug-ins (`context.rules`) are asked before the planner's own. Raises PassError for an unknown planner, and
    PassContractError if a rule does not follow its protocol.
    """
    planner = str(context.options.get("planner", "stitch"))
    if planner not in PLANNERS:
        raise PassError(f"there is no planner {planner!r}; known: {', '.join(PLANNERS)}")
    rules: tuple[FusionRule, ...] = (*context.rules, *asking(PLANNERS[planner], context.cost_model))
    result = stitch(graph, rules, context.target, aliases=planner != "none")
    positions = {n.name: i for i, n in enumerate(graph.nodes)}
    position = {g.name: max(positions[n] for n in g.nodes) for g in result.groups}
    position.update((g.name, positions[g.name]) for g in result.host_groups)
    groups = schedule_groups(graph, result.groups, context.target)
    wholes = wholes_of(result.places)
    segments = segments_of(groups, result.host_groups, result.aliases, position, wholes)
    return StitchPlan(
        graph=graph.name,
        fingerprint=fingerprint(graph),
        planner=planner,
        target=context.target,
        groups=groups,
        host_groups=result.host_groups,
        segments=segments,
        buffers=plan_buffers(
            graph,
            groups,
            result.host_groups,
            segments,
            result.aliases,
            result.places,
            concurrent=context.target.name == "cuda",
        ),
        refusals=result.refusals,
        plugins=tuple(context.plugins),
        bodies={key: make_plan(body, context) for key, body in nested_graphs(graph).items()},
    )


def nested_graphs(graph: Graph) -> dict[str, Graph]:
    """Graphs inside control nodes by `node.attribute`, the key of `StitchPlan.bodies`."""
    return {f"{n.name}.{k}": a for n in graph.nodes for k, a in n.attrs.items() if isinstance(a, Graph)}


def storing(plan: StitchPlan, graph: Graph, names: Sequence[str]) -> StitchPlan:
    """The plan with the same kernels and launches for `graph` with these values as further outputs, which it is given.

    Raises PlanError for a value that no kernel stores in memory of its own.
    """
    stored = {v.name: v for n in graph.nodes for v in n.outputs}
    own = {v for g in plan.groups for v in g.outputs} - set(plan.buffers.places)
    lacking = [name for name in names if name not in own]
    if lacking:
        raise PlanError(
            f"plan of {plan.graph}: no kernel stores {', '.join(lacking)}; expose what `explain` calls outputs"
        )
    graph.outputs = [*graph.outputs, *(stored[name] for name in names)]
    buffers = plan_buffers(
        graph, plan.groups, plan.host_groups, plan.segments, plan.buffers.aliases, plan.buffers.places,
        concurrent=plan.target.name == "cuda",
    )  # fmt: skip
    changed = replace(plan, fingerprint=fingerprint(graph), buffers=buffers)
    check_plan(changed, graph)
    return changed


def load_plan(path: str | Path, graph: Graph, target: TargetInfo | None = None) -> StitchPlan:
    """Read a saved plan for replay on `graph`, and for `target` if one is given.

    Raises PlanError if the file is no plan or is inconsistent, and PlanMismatchError if it was made for another graph
    or machine.
    """
    plan = StitchPlan.load(path)
    check_plan(plan, graph, target)
    return plan


def check_plan(plan: StitchPlan, graph: Graph, target: TargetInfo | None = None) -> None:
    """Check a plan against its graph: fingerprint, legality and schedule of every group, order, aliases and buffers;
    and, if a target is given, that it was made for that.

    Raises PlanMismatchError or PlanError; a plan that passes computes what the graph says.
    """
    plan.check_replay(graph, target)
    _Checker(plan, graph).run()
    bodies = nested_graphs(graph)
    if set(bodies) != set(plan.bodies):
        raise PlanError(f"plan of {plan.graph}: plans of nested graphs are missing or too many; write the plan again")
    for key, body in bodies.items():
        check_plan(plan.bodies[key], body, target)


class _Checker:
    def __init__(self, plan: StitchPlan, graph: Graph) -> None:
        self.plan, self.graph = plan, graph
        self.nodes: dict[str, Node] = {n.name: n for n in graph.nodes}
        self.values = {o.name: o for n in graph.nodes for o in n.outputs}

    def fail(self, problem: str | WhyNot) -> None:
        raise PlanError(f"plan of {self.plan.graph}: {problem}; write the plan again with `tilestitch compile`")

    def run(self) -> None:
        for group in self.plan.groups:
            refusal = check_group(self.graph, group)
            if refusal is not None:
                self.fail(refusal)
            for part in group.parts or (group,):
                self._check_schedule(part)
        self._check_host_groups()
        self._check_aliases()
        self._check_places()
        self._check_order()
        self._check_buffers()

    def _check_schedule(self, group: Group) -> None:
        if group.schedule is None:
            return
        view = look_up(self.nodes, group)
        if isinstance(group.schedule, GemmSchedule | DirectSchedule):
            problem = why_not_scheduled(AnchoredGroup.of(view), group.schedule, Gpu.of(self.plan.target).machine)
        elif isinstance(group.schedule, AttentionSchedule) and group.kind is GroupKind.ATTENTION:
            machine = Gpu.of(self.plan.target).machine
            problem = why_not_attention(AnchoredGroup.of(view), group.schedule, machine)
        else:
            roles = roles_of(view.nodes, view.outputs, group.name)
            assert isinstance(roles, Roles), roles
            problem = why_not(view, group.kind, roles, group.schedule)
        if problem is not None:
            self.fail(f"group {group.name}: {problem}")

    def _check_host_groups(self) -> None:
        named = {g.name for g in self.plan.host_groups}
        expected = {n.name for n in self.graph.nodes if not is_native(n)}
        if named != expected:
            self.fail(f"host steps differ from the graph's in {', '.join(sorted(named ^ expected))}")
        for group in self.plan.host_groups:
            node = self.nodes[group.name]
            inputs = tuple(dict.fromkeys(v.name for v in node.inputs if not v.is_constant))
            if (group.inputs, group.outputs) != (inputs, tuple(o.name for o in node.outputs)):
                self.fail(f"host step {group.name} names other operands or results than its node has")

    def _check_aliases(self) -> None:
        inputs = {v.name for v in self.graph.inputs}
        stored = {v for g in self.plan.groups for v in g.outputs}
        shown = {v.name for v in self.graph.outputs} | {v for g in self.plan.host_groups for v in g.inputs}
        for name, root in self.plan.buffers.aliases.items():
            value = self.values.get(name)
            while value is not None and value.name != root:
                node = value.producer
                value = node.inputs[0] if node is not None and node.op == "reshape" else None
            if value is None or root not in inputs | stored or name in stored | shown:
                self.fail(f"%{name} is no reshape of a stored %{root} that only kernels read")

    def _check_places(self) -> None:
        stored = {v for g in self.plan.groups for v in g.outputs}
        for whole, parts in wholes_of(self.plan.buffers.places).items():
            known = {whole, *parts} <= set(self.values) and set(parts) <= stored and whole not in stored
            offsets = offsets_of(self.values[whole], [self.values[p] for p in parts]) if known else None
            expected = {v.name: offset for v, offset in (offsets or {}).items()}
            if expected != {p: self.plan.buffers.places[p].offset_bytes for p in parts}:
                self.fail(f"%{whole} is not made of {', '.join('%' + p for p in parts)} at the places given")
            for group in self.plan.groups:
                read = {self.plan.buffers.aliases.get(v, v) for v in group.inputs}
                if whole in read and not set(parts).isdisjoint(group.outputs):
                    self.fail(
                        f"group {group.name} reads %{whole} and writes a part of it, by two pointers to one memory"
                    )

    def _check_order(self) -> None:
        known = {v.name for v in self.graph.inputs}
        by_name: dict[str, Group | HostGroup] = {g.name: g for g in self.plan.groups}
        by_name.update((g.name, g) for g in self.plan.host_groups)
        aliases, wholes = self.plan.buffers.aliases, wholes_of(self.plan.buffers.places)
        for name in self.plan.launch_order:
            group = by_name[name]
            missing = [v for v in written(group.inputs, aliases, wholes) if v not in known]
            if missing:
                self.fail(f"group {name} reads %{missing[0]} before it is written")
            known.update(group.outputs)
        missing = [v.name for v in self.graph.outputs if not v.is_constant and v.name not in known]
        if missing:
            self.fail(f"the output %{missing[0]} is never written")

    def _check_buffers(self) -> None:
        plan = self.plan
        lifetimes = lifetimes_of(plan.groups, plan.segments, plan.buffers.aliases, plan.buffers.places)
        outside = {v.name for v in self.graph.outputs}
        outside.update(plan.buffers.aliases.get(v, v) for g in plan.host_groups for v in g.inputs)
        if {b.value for b in plan.buffers.buffers} != set(lifetimes) - outside:
            self.fail("the arena holds too few or too many values")
        for b in plan.buffers.buffers:
            first, last = lifetimes[b.value]
            if b.first > first or b.last < last or b.nbytes < self.values[b.value].tensor_type.nbytes:
                self.fail(f"the buffer of %{b.value} is too small or too short-lived")
