"""Different legal plans of a graph: in fusion, and in the schedules of the kernels."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from tilestitch.compiler.ir import Graph, Node
from tilestitch.compiler.measure.shuffled import Shuffled
from tilestitch.compiler.tune.tasks import structure_digest
from tilestitch.passes.contract import PassContext
from tilestitch.passes.plan import Group, StitchPlan
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.schedules import Schedule
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.plan.view import look_up
from tilestitch.passes.planner import make_plan
from tilestitch.passes.schedule.launches import completed
from tilestitch.passes.schedule.variants import variants

PLANNERS = ("stitch", "injective", "none", "stitch")
"""Planners, in turn, that complete a fusion begun with random unions."""
MOST_STEPS = 4
"""Most steps from the schedule that the rules choose to another one."""


def random_plan(graph: Graph, context: PassContext, seed: int) -> StitchPlan:
    """Return a legal plan that depends on the seed, with the schedules that the context's model chooses."""
    random = Random(seed)
    rule = Shuffled(seed, random.choice((0.1, 0.3, 0.6)), forced=random.random() < 0.3)
    options = {**context.options, "planner": PLANNERS[seed % len(PLANNERS)]}
    return make_plan(graph, replace(context, options=options, rules=(*context.rules, rule)))


def with_random_schedules(graph: Graph, plan: StitchPlan, seed: int) -> StitchPlan:
    """Return the plan with random schedules, the same for kernels of one structure."""
    nodes = {node.name: node for node in graph.nodes}
    groups = tuple(_with_random_schedule(nodes, group, plan.target, seed) for group in plan.groups)
    return completed(replace(plan, groups=groups, launches=None, edges=None), graph)


def _with_random_schedule(nodes: Mapping[str, Node], group: Group, target: TargetInfo, seed: int) -> Group:
    if group.stages:
        stages = tuple(
            tuple(_with_random_schedule(nodes, part, target, seed) for part in stage) for stage in group.stages
        )
        return replace(group, stages=stages)
    if group.schedule is None:
        return group
    return replace(group, schedule=_other(nodes, group, target, seed))


def _other(nodes: Mapping[str, Node], group: Group, target: TargetInfo, seed: int) -> Schedule | None:
    view = look_up(nodes, group)
    roles = roles_of(view.nodes, view.outputs, view.name)
    assert isinstance(roles, Roles) and group.schedule is not None, roles
    random = Random(f"{seed} {structure_digest(nodes, group, target) or group.name}")
    schedule = group.schedule
    for _ in range(random.randint(0, MOST_STEPS)):
        options = variants(view, group.kind, roles, schedule)
        schedule = random.choice(options) if options else schedule
    return schedule
