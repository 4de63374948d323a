"""The plan of a graph with open dimensions.

Fusion and schedules are decided at typical sizes, where everything is a number. Each group is then lifted to the open
graph (`lift`), where its kernels' requirements must hold for all sizes of the ranges. A group for which it does not is
computed by the host, with the reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.substitute import graph_at
from tilestitch.compiler.ir.text import fingerprint
from tilestitch.passes.contract import PassContext
from tilestitch.passes.fusion.rules.builtin import FusionRule, KeptApart
from tilestitch.passes.fusion.rules.inplace import InPlace
from tilestitch.passes.fusion.stitcher import Fused, PlansMade, Stitched, fuse, stitch
from tilestitch.passes.plan import Group, StitchPlan, WhyNot
from tilestitch.passes.plan.kept_floats import with_floats
from tilestitch.passes.schedule.cpu.same_panels import PANELS, with_panels
from tilestitch.passes.schedule.kernels import apart_where_too_large, schedule_groups
from tilestitch.passes.schedule.launches import completed
from tilestitch.passes.schedule.order import segments_of
from tilestitch.passes.sync.policies import wanted_sync

from .cases import with_cases
from .cuda import launched_apart
from .lift import lifted
from .memory import place_open
from .slices import sliced
from .typical import typical_sizes

OPEN_KERNEL = "host.open_kernel"
"""Rule by which nodes are left to the host because their kernels do not hold for all sizes."""
MOST_CASES = "most_cases"
"""Option for the most schedules of a group; with 1, there are no decision tables."""
HOSTED = "host."
"""Prefix of operators that the host computes."""


def make_open_plan(
    graph: Graph,
    context: PassContext,
    planner: str,
    rules: Sequence[FusionRule],
    bodies: Mapping[str, StitchPlan],
    made: PlansMade,
) -> StitchPlan:
    """Return the plan of an open graph by `rules`, or an earlier one of the same fusion from `made`; `bodies` are the
    plans of its nested graphs.
    """
    found = _kernels(graph, context, rules, made)
    if isinstance(found, StitchPlan):
        return found
    fused, result, groups, refusals = found
    nodes = {node.name: node for node in graph.nodes}
    groups = tuple(with_floats(nodes, group) for group in groups)
    positions = {n.name: i for i, n in enumerate(graph.nodes)}
    position = {g.name: max(positions[n] for n in g.nodes) for g in groups}
    position.update((g.name, positions[g.name]) for g in result.host_groups)
    segments = segments_of(groups, result.host_groups, result.aliases, position)
    slices = None
    if not context.target.is_gpu:
        slices = sliced(graph, groups, segments, result.aliases, typical_sizes(graph))
    if isinstance(slices, WhyNot):
        refusals, slices = (*refusals, slices), None
    plan = StitchPlan(
        graph=graph.name,
        fingerprint=fingerprint(graph),
        planner=planner,
        target=context.target.needed_by(groups),
        groups=groups,
        host_groups=result.host_groups,
        segments=segments,
        buffers=place_open(graph, groups, result.host_groups, segments, result.aliases, slices),
        refusals=(*result.refusals, *refusals, *_not_tied(graph, context)),
        plugins=tuple(context.plugins),
        bodies=dict(bodies),
        symbols=graph.symbols,
        slices=slices,
    )
    return made.keep(fused, completed(plan, graph, context.kernels_of))


def _not_tied(graph: Graph, context: PassContext) -> tuple[WhyNot, ...]:
    """Return the refusal of tile synchronisation for open sizes, if it was requested."""
    if not context.target.is_gpu or wanted_sync(context.options.get("sync")) is None:
        return ()
    reason = "which tiles need which is known for fixed sizes only; give these with --shape, or favour some (--favour)"
    return (WhyNot(graph.name, "sync.open", reason),)


def _kernels(
    graph: Graph, context: PassContext, rules: Sequence[FusionRule], made: PlansMade
) -> StitchPlan | tuple[Fused, Stitched, tuple[Group, ...], tuple[WhyNot, ...]]:
    """Return the fusion at typical sizes, with the groups lifted to all sizes; or an earlier plan of it from `made`.
    The node that prevents a group, its anchor if it has one, is kept apart, and the rest is fused anew; a node that has
    no kernel for all sizes by itself is left to the host.
    """
    rules = [rule for rule in rules if not isinstance(rule, InPlace)]  # slots hold whole values
    nodes = {node.name: node for node in graph.nodes}
    sizes = typical_sizes(graph)
    refused: dict[str, WhyNot] = {}
    apart: dict[str, WhyNot] = {}
    while True:
        typical = graph_at(graph, sizes)
        for node in typical.nodes:
            if node.name in refused:
                node.op = HOSTED + node.op
        fused = fuse(typical, [KeptApart(apart), *rules], context.target)
        known = made.of(fused)
        if known is not None:
            return known
        result = stitch(fused)
        if context.target.is_gpu:
            result = launched_apart(result, nodes)
        by_name = {node.name: node for node in typical.nodes}
        scheduled = schedule_groups(typical, result.groups, context.target, context.cost_model)
        scheduled = with_panels(typical, scheduled, context.options.get(PANELS, {}), context.target)
        scheduled, too_large = apart_where_too_large(typical, scheduled, context.target)
        result = replace(result, refusals=(*result.refusals, *too_large))
        lift = partial(lifted, typical=by_name, nodes=nodes, target=context.target, model=context.cost_model)
        groups = [lift(group) for group in scheduled]
        problems = {g: p for g, p in zip(scheduled, groups, strict=True) if isinstance(p, str)}
        if not problems:
            whole = [group for group in groups if isinstance(group, Group)]
            most = context.options.get(MOST_CASES)
            cased = with_cases(whole, graph, sizes, context.target, context.cost_model, most)
            return fused, result, cased, (*refused.values(), *apart.values())
        for group, reason in problems.items():
            for part, why in _prevented(group, reason, lift).items():
                alone = len(part.nodes) == 1 or not apart.keys().isdisjoint(part.nodes)
                if part.anchor and not alone:
                    apart[part.anchor] = WhyNot(part.anchor, KeptApart.name, why)
                    continue
                culprits = [part.anchor] if part.anchor else part.nodes
                refused.update((name, WhyNot(name, OPEN_KERNEL, why)) for name in culprits)


def _prevented(group: Group, reason: str, lift: Callable[[Group], Group | str]) -> dict[Group, str]:
    """Return the parts of a group that cannot be lifted, with why not; the group itself where each part can be."""
    alone = {part: lift(part) for part in group.parts}
    return {part: why for part, why in alone.items() if isinstance(why, str)} or {group: reason}
