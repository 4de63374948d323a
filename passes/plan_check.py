"""The check that a plan, such as a user-supplied one, fits its graph and machine."""

from tilestitch.compiler.ir import Graph, Node
from tilestitch.compiler.ir.errors import UndecidedError
from tilestitch.passes.fusion.rules.inplace import offsets_of
from tilestitch.passes.plan.attention.check import why_not_attention
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.check import why_no_band, why_not_scheduled
from tilestitch.passes.plan.gemm.rows_after import RowsAfter
from tilestitch.passes.plan.launches.cuda.group import blocking_of, ticketing_of, tying_of
from tilestitch.passes.plan.launches.own import KernelsOf, no_kernels

from .errors import PlanError
from .fusion.legality import check_group
from .host_steps import refused_kernels
from .launch_check import why_not_launches
from .open.check import why_not_launched, why_not_open, why_not_template
from .open.extents import is_of_open_size
from .open.memory import lifetimes_over
from .open.slices import why_not_sliced
from .plan import Group, GroupKind, HostGroup, StitchPlan, WhyNot, wholes_of
from .plan.cpu.isa import isa_named
from .plan.cpu.schedules import CpuSchedule
from .plan.kept_floats import why_not_floats
from .plan.roles import Roles, is_native, roles_of
from .plan.schedule_check import why_not
from .plan.schedules import AttentionSchedule, BandSchedule, DirectSchedule, GemmSchedule, RowSchedule
from .plan.target import TargetInfo
from .plan.view import look_up
from .schedule.cases import why_not_cases, why_not_kept
from .schedule.cuda.gpu import Gpu
from .schedule.launches import nested_graphs
from .schedule.memory import lifetimes_of
from .schedule.order import written
from .sync.check import why_not_tickets, why_not_tied
from .sync.joins import joined_of, why_not_joined


def check_plan(
    plan: StitchPlan, graph: Graph, target: TargetInfo | None = None, kernels_of: KernelsOf = no_kernels
) -> None:
    """Check a plan against its graph: fingerprint, legality and schedule of every group, order, aliases, buffers,
    launches and edges; and, if a target is given, that it was made for that.

    kernels_of: the kernels of plug-ins. Raises PlanMismatchError or PlanError; a plan that passes computes what the
    graph specifies.
    """
    plan.check_replay(graph, target)
    bodies = nested_graphs(graph)
    if set(bodies) != set(plan.bodies):
        raise PlanError(f"plan of {plan.graph}: plans of nested graphs are missing or too many; write the plan again")
    checker = _Checker(plan, graph, kernels_of)
    try:
        checker.run()
    except UndecidedError as error:
        checker.fail(f"it must hold for all sizes, but {error}")
    for key, body in bodies.items():
        check_plan(plan.bodies[key], body, target, kernels_of)


class _Checker:
    def __init__(self, plan: StitchPlan, graph: Graph, kernels_of: KernelsOf) -> None:
        self.plan, self.graph, self.kernels_of = plan, graph, kernels_of
        self.nodes: dict[str, Node] = {n.name: n for n in graph.nodes}
        self.values = {o.name: o for n in graph.nodes for o in n.outputs}

    def fail(self, problem: str | WhyNot) -> None:
        raise PlanError(f"plan of {self.plan.graph}: {problem}; write the plan again with `tilestitch compile`")

    def run(self) -> None:
        position = {n.name: i for i, n in enumerate(self.graph.nodes)}
        for group in self.plan.groups:
            refusal = check_group(self.nodes, position, group) or why_not_floats(self.nodes, group)
            if refusal is not None:
                self.fail(refusal)
            self._check_target(group)
            if not self._is_own(group):
                self._check_scheduled(group)
        self._check_host_groups()
        self._check_aliases()
        self._check_places()
        self._check_order()
        self._check_buffers()
        problem = why_not_launches(self.plan, self.graph, self.kernels_of)
        if problem is not None:
            self.fail(problem)

    def _check_target(self, group: Group) -> None:
        target = self.plan.target
        if len(group.stages) > 1 and not target.is_gpu:
            self.fail(f"group {group.name} has several stages; on a CPU each of them is a launch")
        lacking = sorted(group.instructions - target.instructions)
        if lacking:
            self.fail(f"group {group.name} needs the instruction {lacking[0]}, which {target} lacks")
        if group.looks_up and not isa_named(target.isa).looks_up:
            self.fail(f"group {group.name} looks up floats, for which {target} has no instruction")

    def _check_scheduled(self, group: Group) -> None:
        """Check that the kernels of a group can be emitted as scheduled, and tied as it says."""
        if group.tie == "block":
            self._check_blocks(group)
            return
        for part in group.parts or group.by_case:
            self._check_at_all_sizes(part)
        if len(group.parts) > 1 and self.plan.target.is_gpu and is_of_open_size(group, self.nodes):
            self.fail(f"group {group.name} has several parts, whose launch is for known sizes only")
        self._check_cases(group)
        if group.tie == "band":
            self._check_band(group)
        elif group.tie == "tickets":
            self._check_tickets(group)
        elif group.tie == "launches":
            self._check_tied(group)
        elif group.parts and group.schedule is not None:
            self.fail(f"group {group.name} has stages, and a schedule besides those of its parts")
        for kernel in (group,) if group.tie == "band" else group.parts or (group,):
            self._check_joins(kernel)

    def _is_own(self, group: Group) -> bool:
        """Return whether a plug-in provides the kernels of a group, which then has no schedule."""
        own = self.kernels_of(self.graph, group)
        if own is None:
            return False
        if any(part.schedule is not None for part in (group, *group.parts)):
            self.fail(
                f"group {group.name} has a schedule, but {own.identity} brings its kernels; leave that plug-in out, or "
                "put null in the place of the schedule, launches and edges"
            )
        return True

    def _check_at_all_sizes(self, group: Group) -> None:
        if not is_of_open_size(group, self.nodes):
            self._check_schedule(group)
            return
        try:
            problem = why_not_template(group.schedule)
            if problem is None:
                self._check_schedule(group)
                problem = why_not_open(look_up(self.nodes, group), group.schedule)
                problem = problem or why_not_launched(self.nodes, group, self.plan.target)
        except UndecidedError as error:
            problem = f"its schedule must hold for all sizes, but {error}"
        if problem is not None:
            self.fail(f"group {group.name}: {problem}")

    def _check_schedule(self, group: Group) -> None:
        view = look_up(self.nodes, group)
        if group.schedule is None:
            if view.stored:
                known = ", ".join(plugin.name for plugin in self.plan.plugins)
                hint = f"; if a plug-in of that plan ({known}) brought its kernels, give it again" if known else ""
                self.fail(f"group {group.name} has no schedule{hint}")
            return
        if isinstance(group.schedule, CpuSchedule) == self.plan.target.is_gpu:
            self.fail(f"group {group.name}: template {group.schedule.template} is not for {self.plan.target.name}")
        if isinstance(group.schedule, GemmSchedule | DirectSchedule) and group.kind is GroupKind.CONTRACTION:
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

    def _check_cases(self, group: Group) -> None:
        problem = next((f"its part {part.name} has cases" for part in group.parts if part.cases is not None), None)
        if problem is None and group.cases is not None:
            problem = why_not_cases(self.nodes, group, self.plan.target)
        elif problem is None:
            problem = next(filter(None, (why_not_kept(self.nodes, each) for each in (group, *group.parts))), None)
        if problem is not None:
            self.fail(f"group {group.name}: {problem}")

    def _check_band(self, group: Group) -> None:
        gemm, rows = (look_up(self.nodes, part) for part in group.parts)
        schedules = [part.schedule for part in group.parts]
        if not (isinstance(schedules[0], GemmSchedule) and isinstance(schedules[1], RowSchedule)):
            self.fail(f"group {group.name}: its parts are no GEMM and rows by their schedules")
        elif not isinstance(group.schedule, BandSchedule):
            self.fail(f"group {group.name} has no schedule of its bands")
        else:
            after = RowsAfter.of(rows, gemm.outputs[0].shape[-1])
            problem = why_no_band(after, schedules[0], schedules[1], group.schedule)
            if problem is not None:
                self.fail(f"group {group.name}: {problem}")

    def _check_blocks(self, group: Group) -> None:
        found = blocking_of(self.nodes, group)
        if isinstance(found, str):
            self.fail(f"group {group.name}: {found}")
            return
        blocking, schedule = found
        problem = blocking.why_not(schedule, Gpu.of(self.plan.target).machine.shared_bytes_per_block)
        if problem is not None:
            self.fail(f"group {group.name}: {problem}")

    def _check_tickets(self, group: Group) -> None:
        most = Gpu.of(self.plan.target).machine.shared_bytes_per_block
        problem = ticketing_of(self.nodes, group).why_not(most) or why_not_tickets(self.nodes, group)
        if problem is not None:
            self.fail(f"group {group.name}: {problem}")

    def _check_tied(self, group: Group) -> None:
        least = Gpu.of(self.plan.target).capability
        problem = tying_of(self.nodes, group).why_not(least) or why_not_tied(self.nodes, group)
        if problem is not None:
            self.fail(f"group {group.name}: {problem}")

    def _check_joins(self, kernel: Group) -> None:
        joined = joined_of(self.nodes, kernel)
        problem = None if joined is None else why_not_joined(joined)
        if problem is not None:
            self.fail(f"group {kernel.name}: {problem}")

    def _check_host_groups(self) -> None:
        named = {g.name for g in self.plan.host_groups}
        expected = {n.name for n in self.graph.nodes if not is_native(n)} | refused_kernels(self.plan).keys()
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
            known = {whole, *parts} <= self.values.keys() and set(parts) <= stored and whole not in stored
            offsets = offsets_of(self.values[whole], [self.values[p] for p in parts]) if known else None
            expected = {v.name: offset for v, offset in (offsets or {}).items()}
            if expected != {p: self.plan.buffers.places[p].offset_bytes for p in parts}:
                self.fail(f"%{whole} is not made of {', '.join('%' + p for p in parts)} at the places given")
        for group in self.plan.groups:
            into = [self.plan.buffers.places[v].whole for v in group.outputs if v in self.plan.buffers.places]
            both = {self.plan.buffers.aliases.get(v, v) for v in group.inputs}.intersection(into) if into else ()
            for whole in sorted(both):
                self.fail(f"group {group.name} reads %{whole} and writes a part of it, by two pointers to one memory")

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
        if plan.slices is not None:
            problem = why_not_sliced(plan, self.graph, plan.slices)
            if problem is not None:
                self.fail(problem)
            lifetimes = lifetimes_over(plan.slices, lifetimes, plan.segments)
        outside = {v.name for v in self.graph.outputs}
        outside.update(plan.buffers.aliases.get(v, v) for g in plan.host_groups for v in g.inputs)
        if {b.value for b in plan.buffers.buffers} != set(lifetimes) - outside:
            self.fail("the arena holds too few or too many values")
        for b in plan.buffers.buffers:
            first, last = lifetimes[b.value]
            if b.first > first or b.last < last:
                self.fail(f"the buffer of %{b.value} is too short-lived")
            if b.nbytes != self.values[b.value].tensor_type.nbytes:
                self.fail(f"%{b.value} has {self.values[b.value].tensor_type.nbytes} bytes, its buffer {b.nbytes}")
