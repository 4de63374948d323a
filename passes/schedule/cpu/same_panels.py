"""Weights that several specialisations multiply by are packed in panels of one width, and so stored once: those of one
row would have wider ones than those of many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from tilestitch.compiler.ir import Graph, Node
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.cpu.gemm import GemmPlan, GemmShape
from tilestitch.passes.plan.cpu.operands import Matmul
from tilestitch.passes.plan.cpu.schedules import CpuGemmSchedule
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.plan.view import look_up

from .cycles import gemm_cycles
from .gemm import choose_gemm_of_panels

Panels: TypeAlias = Mapping[str, int]
"""How many vectors the panels of weights are wide, by their names."""
PANELS = "panels"
"""The option of a plan that says which panels others have made."""
LEAST_BYTES = 1 << 20
"""Of weights: smaller ones cost little where they are stored twice."""
MOST_SLOWER = 2.0
"""Times the cycles that a GEMM would take with panels of its own: those of few rows wait for the weights meanwhile."""


def panels_of(graph: Graph, groups: Sequence[Group]) -> dict[str, int]:
    """Return those of a plan."""
    by_name = {node.name: node for node in graph.nodes}
    parts = (part for group in groups for part in (group.parts if group.stages else (group,)))
    found = (packed for part in parts if (packed := _packed(by_name, part)) is not None)
    return {name: schedule.vectors for name, _, schedule in found}


def with_panels(graph: Graph, groups: Sequence[Group], panels: Panels, target: TargetInfo) -> tuple[Group, ...]:
    """Scheduled groups, with the panels that others have made, where this costs them little."""
    if not panels or target.is_gpu:
        return tuple(groups)
    by_name = {node.name: node for node in graph.nodes}
    return tuple(_with_panels(by_name, group, panels, target) for group in groups)


def _with_panels(by_name: Mapping[str, Node], group: Group, panels: Panels, target: TargetInfo) -> Group:
    if group.stages:
        stages = tuple(tuple(_with_panels(by_name, part, panels, target) for part in stage) for stage in group.stages)
        return replace(group, stages=stages)
    packed = _packed(by_name, group)
    if packed is None:
        return group
    name, shape, own = packed
    if panels.get(name, own.vectors) == own.vectors:
        return group
    isa = target.core
    other = choose_gemm_of_panels(shape, panels[name], isa, target.threads)
    own_cycles, cycles = (gemm_cycles(GemmPlan(shape, each), isa) for each in (own, other))
    fits = type(other) is CpuGemmSchedule and other.vectors == panels[name] and cycles <= MOST_SLOWER * own_cycles
    return replace(group, schedule=other) if fits else group


def _packed(by_name: Mapping[str, Node], group: Group) -> tuple[str, GemmShape, CpuGemmSchedule] | None:
    """Return the weights that a group has packed, by their name, its GEMM, and the schedule of that."""
    schedule = group.schedule
    # Those of instructions that take several steps at once are packed otherwise, by more than the width of a panel.
    if type(schedule) is not CpuGemmSchedule:
        return None
    matmul = Matmul(AnchoredGroup.of(look_up(by_name, group)))
    weights = matmul.operands[1]
    large = weights.data is not None and weights.data.nbytes >= LEAST_BYTES
    fits = large and matmul.gemm.packed and matmul.gemm.blocks is None
    return (weights.name, matmul.gemm, schedule) if fits else None
