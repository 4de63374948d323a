"""Planning: from a canonical graph to its StitchPlan, and loading of saved plans."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tilestitch.compiler.ir import Graph, Kind, kind_of
from tilestitch.compiler.ir.substitute import data_at, graph_at
from tilestitch.compiler.ir.text import fingerprint
from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.cost_model.bounds import least_us
from tilestitch.cost_model.protocol import hardly_slower
from tilestitch.passes.fusion.rules.builtin import FusionRule
from tilestitch.passes.plan.launches.own import KernelsOf, no_kernels

from .contract import PassContext
from .errors import PassError, PlanError
from .fusion.planners import PLANNERS, SEARCHES, asking, default_work
from .fusion.stages import Kernels
from .fusion.stitcher import Fused, PlansMade, Stitched, fuse, stitch
from .open.memory import place_open
from .open.plan import make_open_plan
from .open.typical import typical_sizes
from .plan import Group, StitchPlan, WhyNot, wholes_of
from .plan.kept_floats import with_floats
from .plan.target import TargetInfo
from .plan_check import check_plan
from .schedule.cpu.same_panels import PANELS, with_panels
from .schedule.device import device_of
from .schedule.facts import group_facts, nodes_by_name
from .schedule.kernels import apart_where_too_large, schedule_groups, without_schedule
from .schedule.launches import completed, edges_by_hand, nested_graphs, with_edges, with_priorities
from .schedule.makespan import plan_us
from .schedule.memory import WINDOW, plan_buffers
from .schedule.order import segments_of
from .schedule.parallel.alternatives import Alternatives
from .schedule.parallel.arrange import arranged, sooner
from .schedule.search import search_schedules
from .sync.policies import TIES_OF_TILES, wanted_sync
from .sync.synchronise import synchronise


def make_plan(graph: Graph, context: PassContext) -> StitchPlan:
    """Plan `graph` and the graphs nested in it by the planner `context.options["planner"]` (default `stitch`).

    `context.options["sync"]` determines whether dependent kernels become launches whose blocks draw tiles
    (`sync.choose`). The rules of `stitch` make a first plan; with `context.options["search"]`, or
    `context.options["plan_budget_s"]` (seconds in place of the usual work), a search starts from that plan, and its
    result replaces it if the latency model predicts it to be faster by more than one percent, and the host computes
    nothing more. Where the model has a minimum predicted gain (`least_gain`), the first plan and a second search use
    the analytical laws, and a plan must be better under both (`is_better`). An open graph is searched at typical sizes.
    The seconds also limit planners that search by themselves, and the search for schedules where the model can judge
    these.

    On a GPU, kernels packed into one launch are separated, and tiles chosen for fewer multiprocessors, where concurrent
    launches are predicted to finish sooner; with `context.options["alone"]` kernels are optimised in isolation.

    Rules of plug-ins (`context.rules`) are consulted before the planner's own. Raises PassError for an unknown planner,
    and PassContractError if a rule does not follow its protocol.
    """
    planner = str(context.options.get("planner", "stitch"))
    if planner not in PLANNERS:
        raise PassError(f"there is no planner {planner!r}; known: {', '.join(PLANNERS)}")
    wanted_sync(context.options.get("sync"))
    bodies = {key: make_plan(body, context) for key, body in nested_graphs(graph).items()}
    planned = make_open_plan if graph.symbols else _planned
    budget_s, work = context.options.get("plan_budget_s"), default_work(len(graph.nodes))
    sure = context.least_gain is None or planner not in SEARCHES
    laws = context if sure else replace(context, cost_model=ANALYTICAL)
    made = PlansMade()
    plan = planned(graph, laws, planner, _rules(PLANNERS[planner], laws, budget_s), bodies, made)
    if planner not in SEARCHES or not (budget_s or (budget_s is None and context.options.get("search"))):
        return plan
    if sure and _is_one_kernel(plan, graph, context):
        return plan
    try:
        gains = [(laws, 0.0, made)]
        if not sure:
            gains.append((context, context.least_gain or 0.0, PlansMade()))
        found = [
            (planned(graph, each, planner, _rules(SEARCHES[planner], each, budget_s, work), bodies, done), gain)
            for each, gain, done in gains
        ]
        others = [(one, gain) for one, gain in found if one is not plan]
        better = [one for one, gain in others if is_better(one, plan, graph, laws, context, gain)]
        return min(better, key=lambda one: _at_sizes_us(one, graph, context), default=plan)
    except KeyboardInterrupt:
        reason = "an interrupt ended the search for a better plan; another run may find one"
        return replace(plan, refusals=(*plan.refusals, WhyNot(graph.name, "search", reason)))


def _is_one_kernel(plan: StitchPlan, graph: Graph, context: PassContext) -> bool:
    """Return whether the graph is a single kernel, of one node or so short that it takes no longer than two launches: a
    search could find nothing better, since any other plan has at least two kernels. Views may belong to no kernel, and
    with several outputs the kernels of some may form one launch.
    """
    if context.rules or context.judged_schedules or plan.host_groups or len(plan.groups) != 1:
        return False
    group, nodes = plan.groups[0], list(graph.nodes)
    if group.stages or len(group.nodes) < len(nodes) or any(kind_of(node.op) is Kind.VIEW for node in nodes):
        return False
    if len(nodes) == 1:
        return True
    if context.target.is_gpu or len(group.outputs) > 1:
        return False
    two_us = 2 * least_us(context.cost_model, device_of(context.target))
    return hardly_slower(_at_sizes_us(plan, graph, context), two_us)


def _rules(
    rules: Sequence[FusionRule], context: PassContext, budget_s: float | None, work: int | None = None
) -> tuple[FusionRule, ...]:
    """Return the rules of plug-ins followed by `rules`, which use the latency model of the compilation."""
    return (*context.rules, *asking(rules, context.cost_model, budget_s, work))


def is_better(
    one: StitchPlan, rules: StitchPlan, graph: Graph, laws: PassContext, context: PassContext, gain: float = 0.0
) -> bool:
    """Return whether a searched plan replaces that of the rules. It does not if it leaves more to the host, whose steps
    no model predicts.

    It must be predicted to be faster by more than one percent, and by `gain`, by the model and by the laws where these
    differ. A search selects the best of thousands of predictions, which is where predictions err most: the model that
    guided the search must therefore predict a gain of at least its known error, while one that did not is free of this
    bias.
    """
    if not {g.name for g in one.host_groups} <= {g.name for g in rules.host_groups}:
        return False
    rules_us, one_us = (_at_sizes_us(plan, graph, context) for plan in (rules, one))
    if hardly_slower(rules_us, one_us) or one_us > (1 - gain) * rules_us:
        return False
    return laws is context or not hardly_slower(*(_at_sizes_us(plan, graph, laws) for plan in (rules, one)))


def _at_sizes_us(plan: StitchPlan, graph: Graph, context: PassContext) -> float:
    """Return the full estimate, for an open graph at typical sizes."""
    sizes = typical_sizes(graph)
    return predicted_us(data_at(plan, sizes) if sizes else plan, graph_at(graph, sizes) if sizes else graph, context)


def predicted_us(plan: StitchPlan, graph: Graph, context: PassContext) -> float:
    """Return the full estimate: of all launches, with the plan's concurrency."""
    nodes, device = nodes_by_name(graph), device_of(context.target)
    facts = {group.name: group_facts(nodes, group, context.target, context.cost_model) for group in plan.groups}
    found = context.cost_model.predict(list(facts.values()), device)
    latencies = {name: each.latency_us for name, each in zip(facts, found, strict=True)}
    return plan_us(plan, facts, latencies, device)


def _planned(
    graph: Graph,
    context: PassContext,
    planner: str,
    rules: Sequence[FusionRule],
    bodies: Mapping[str, StitchPlan],
    made: PlansMade,
) -> StitchPlan:
    """Return the plan that `rules` make, from `made` if the same fusion was planned before; `bodies` are the plans of
    nested graphs.
    """
    fused = fuse(graph, rules, context.target)
    known = made.of(fused)
    return known or made.keep(fused, _plan_of(fused, graph, context, planner, bodies))


def _plan_of(
    fused: Fused, graph: Graph, context: PassContext, planner: str, bodies: Mapping[str, StitchPlan]
) -> StitchPlan:
    wanted = wanted_sync(context.options.get("sync"))
    result = stitch(fused, aliases=planner != "none")
    groups, remarks = _scheduled(graph, result.groups, context)
    draft = _Draft(graph, context, planner, bodies, replace(result, refusals=(*result.refusals, *remarks)))
    if wanted is None or not context.target.is_gpu:
        return draft.side_by_side(groups, result.aliases)
    kernels = Kernels(graph, groups, result.host_groups, result.aliases, context.target, result.places)
    choices = tuple(synchronise(graph, kernels, wanted, context.cost_model))
    tied = draft.side_by_side(tuple(kernels.groups.values()), kernels.aliases, choices)
    if wanted.forced or not any(group.tie in TIES_OF_TILES for group in tied.groups):
        return tied
    # Chains were chosen as if each had the GPU to itself; they may serialise branches that ran concurrently.
    return _unless_slower(tied, draft.side_by_side(groups, result.aliases, choices), graph, context)


def _scheduled(
    graph: Graph, groups: Sequence[Group], context: PassContext
) -> tuple[tuple[Group, ...], tuple[WhyNot, ...]]:
    """Return the groups with their schedules, parts of those that are too large for one kernel apart, and why."""
    target, model = context.target, context.cost_model
    scheduled = schedule_groups(graph, groups, target, model)
    scheduled = with_panels(graph, scheduled, context.options.get(PANELS, {}), target)
    apart, too_large = apart_where_too_large(graph, scheduled, target)
    found = tuple(without_schedule(g) if context.kernels_of(graph, g) else g for g in apart)
    if not context.judged_schedules or target.is_gpu:
        return found, tuple(too_large)
    budget_s = context.options.get("plan_budget_s")
    searched = search_schedules(graph, found, target, model, context.judged_schedules, budget_s)
    return searched.groups, (*too_large, *searched.remarks)


@dataclass(frozen=True)
class _Draft:
    """What all plans of a fused graph share; they differ in their groups, which `result` has as they were fused."""

    graph: Graph
    context: PassContext
    planner: str
    bodies: Mapping[str, StitchPlan]
    result: Stitched

    def plan(self, groups: tuple[Group, ...], aliases: Mapping[str, str], remarks: Sequence[WhyNot]) -> StitchPlan:
        """Return the plan of these groups: with order, memory, launches and their edges."""
        graph, context, result = self.graph, self.context, self.result
        nodes, places = nodes_by_name(graph), {n.name: i for i, n in enumerate(graph.nodes)}
        groups = tuple(with_floats(nodes, group) for group in groups)
        position = {g.name: max(places[n] for n in g.nodes) for g in groups}
        position.update((g.name, places[g.name]) for g in result.host_groups)
        segments = segments_of(groups, result.host_groups, aliases, position, wholes_of(result.places))
        window = WINDOW if context.target.is_gpu else 0
        buffers = plan_buffers(graph, groups, result.host_groups, segments, aliases, result.places, window=window)
        plan = StitchPlan(
            graph=graph.name,
            fingerprint=fingerprint(graph),
            planner=self.planner,
            target=context.target.needed_by(groups),
            groups=groups,
            host_groups=result.host_groups,
            segments=segments,
            buffers=buffers,
            refusals=(*result.refusals, *remarks),
            plugins=tuple(context.plugins),
            bodies=dict(self.bodies),
        )
        plan = completed(plan, graph, context.kernels_of)
        return arranged(plan, graph, context.cost_model, context.options.get("branch_bytes"))

    def side_by_side(
        self, groups: tuple[Group, ...], aliases: Mapping[str, str], remarks: Sequence[WhyNot] = ()
    ) -> StitchPlan:
        """Return the plan with kernels optimised for running beside others, where that is predicted to be faster."""
        graph, context = self.graph, self.context
        plan = self.plan(groups, aliases, remarks)
        own = any(context.kernels_of(graph, group) for group in groups)
        if own or not context.target.is_gpu or context.options.get("alone"):
            return plan
        wholes = wholes_of(self.result.places)
        others = Alternatives(graph, context.target, context.cost_model, aliases, wholes).best(groups)
        if others == groups:
            return plan
        return sooner(plan, self.plan(others, aliases, remarks), graph, context.cost_model)


def plan_of_groups(graph: Graph, groups: Sequence[Group], context: PassContext) -> StitchPlan:
    """Return the plan of groups that are all of a graph, with the schedules they have: to compile and time kernels of a
    model by themselves.
    """
    result = Stitched(tuple(groups), (), {}, {}, ())
    return _Draft(graph, context, "given", {}, result).plan(tuple(groups), {}, ())


def _unless_slower(tied: StitchPlan, apart: StitchPlan, graph: Graph, context: PassContext) -> StitchPlan:
    """Return the plan with chains of kernels, or the one without if that is predicted to be faster, with a remark."""
    tied_us, apart_us = (predicted_us(plan, graph, context) for plan in (tied, apart))
    if tied_us <= apart_us:
        return tied
    numbers = {"apart_us": round(apart_us, 3), "together_us": round(tied_us, 3)}
    reason = "with chains, branches that run side by side would end later"
    return replace(apart, refusals=(*apart.refusals, WhyNot(graph.name, "sync.gain", reason, numbers)))


def storing(plan: StitchPlan, graph: Graph, names: Sequence[str], kernels_of: KernelsOf = no_kernels) -> StitchPlan:
    """Return the plan with the same kernels and launches for `graph`, to which these values are added as outputs.
    Manually added edges are kept.

    Raises PlanError for a value that no kernel stores in memory of its own.
    """
    stored = {v.name: v for n in graph.nodes for v in n.outputs}
    own = {v for g in plan.groups for v in g.outputs} - set(plan.buffers.places)
    lacking = [name for name in names if name not in own]
    if lacking:
        raise PlanError(
            f"plan of {plan.graph}: no kernel stores {', '.join(lacking)}; expose what `explain` calls outputs "
            "of kernels that have no `body`, or compile without a plan"
        )
    added = edges_by_hand(plan, graph)
    graph.outputs = [*graph.outputs, *(stored[name] for name in names)]
    parts = graph, plan.groups, plan.host_groups, plan.segments, plan.buffers.aliases
    if plan.symbols:
        buffers = place_open(*parts, plan.slices)
    else:
        buffers = plan_buffers(*parts, plan.buffers.places, window=WINDOW if plan.target.is_gpu else 0)
    changed = replace(plan, fingerprint=fingerprint(graph), buffers=buffers, launches=None, edges=None)
    changed = with_edges(completed(changed, graph, kernels_of), added)
    changed = with_priorities(changed, [lane.priority for lane in plan.lanes or ()])
    check_plan(changed, graph, kernels_of=kernels_of)
    return changed


def load_plan(path: str | Path, graph: Graph, target: TargetInfo | None = None) -> StitchPlan:
    """Read a saved plan for replay on `graph`, and for `target` if one is given.

    Raises PlanError if the file is no plan or is inconsistent, and PlanMismatchError if it was made for another graph
    or machine.
    """
    plan = StitchPlan.load(path)
    check_plan(plan, graph, target)
    return plan
