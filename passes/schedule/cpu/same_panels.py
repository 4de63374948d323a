"""Common panel widths for weights shared by several specialisations, so that packed weights are stored once: those for
one row would otherwise have wider panels than those for many.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from tilestitch.compiler.ir import Graph, Node
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.cpu.gemm import GemmPlan
from tilestitch.passes.plan.cpu.operands import Matmul
from tilestitch.passes.plan.cpu.packing import Packing
from tilestitch.passes.plan.cpu.schedules import CpuGemmSchedule, CpuTileGemmSchedule
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.plan.view import look_up

from .cycles import gemm_cycles
from .gemm import choose_blocks_of_panels

Panels: TypeAlias = Mapping[str, Packing]
"""Packings of weights, by name."""
PANELS = "panels"
"""The plan option with the panels that other specialisations use."""
LEAST_BYTES = 1 << 20
"""Least bytes of weights: storing smaller ones twice costs little."""
MOST_SLOWER = 2.0
"""Accepted slowdown in cycles relative to a GEMM's own panels: GEMMs of few rows wait for the weights anyway."""


def panels_of(graph: Graph, groups: Sequence[Group]) -> dict[str, Packing]:
    """Return the packings of the weights of a plan."""
    by_name = {node.name: node for node in graph.nodes}
    parts = (part for group in groups for part in (group.parts if group.stages else (group,)))
    found = (packed for part in parts if (packed := _packed(by_name, part)) is not None)
    return {name: plan.packing() for name, plan, _ in found}


def with_panels(graph: Graph, groups: Sequence[Group], panels: Panels, target: TargetInfo) -> tuple[Group, ...]:
    """Return scheduled groups with the panels of other specialisations, where this costs little."""
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
    name, own, waits = packed
    wanted = panels.get(name, own.packing())
    if wanted == own.packing():
        return group
    isa, vectors = target.core, wanted.columns // own.schedule.lanes
    other = GemmPlan(own.shape, choose_blocks_of_panels(own.shape, vectors, isa, target.threads))
    fits = other.packing() == wanted and (waits or gemm_cycles(other, isa) <= MOST_SLOWER * gemm_cycles(own, isa))
    return replace(group, schedule=other.schedule) if fits else group


def _packed(by_name: Mapping[str, Node], group: Group) -> tuple[str, GemmPlan, bool] | None:
    """Return the packed weights of a group by name, its GEMM as scheduled, and whether it waits for them whatever it
    computes, as indices choose some of many; None if there are none.
    """
    schedule = group.schedule
    # Weights for tiles are padded to whole tiles.
    if not isinstance(schedule, CpuGemmSchedule) or isinstance(schedule, CpuTileGemmSchedule):
        return None
    matmul = Matmul(AnchoredGroup.of(look_up(by_name, group)))
    weights = matmul.operands[1]
    large = weights.data is not None and weights.data.nbytes >= LEAST_BYTES
    if not large or not matmul.gemm.packed:
        return None
    return weights.name, GemmPlan(matmul.gemm, schedule), matmul.chosen is not None
