"""Plans whose kernels have schedules of a test's choice, and are tied then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.passes import StitchPlan, check_plan
from tilestitch.passes.fusion.stages import Kernels
from tilestitch.passes.plan import Group, Segment
from tilestitch.passes.schedule.launches import completed
from tilestitch.passes.schedule.memory import plan_buffers
from tilestitch.passes.sync.policies import wanted_sync
from tilestitch.passes.sync.synchronise import synchronise


def retied(graph: Graph, plan: StitchPlan, groups: Sequence[Group], sync: str) -> StitchPlan:
    """A plan with these groups, which have schedules, and chains of them tied."""
    kernels = Kernels(graph, groups, (), plan.buffers.aliases, plan.target)
    wanted = wanted_sync(sync)
    assert wanted is not None
    list(synchronise(graph, kernels, wanted, AnalyticalModel()))
    order = [name for name in kernels.order if name in kernels.groups]
    tied = tuple(kernels.groups[name] for name in order)
    segments = (Segment(True, tuple(order)),)
    buffers = plan_buffers(graph, tied, (), segments, kernels.aliases, {}, window=0)
    fresh = replace(plan, groups=tied, segments=segments, buffers=buffers, launches=None, edges=None, lanes=None)
    found = completed(fresh, graph)
    check_plan(found, graph)
    return found
