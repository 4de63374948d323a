"""Schedules for kernels whose blocks draw tiles in a launch of several kernels: those with one tile per block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilestitch.compiler.ir import Node
from tilestitch.cost_model.protocol import LatencyModel, fastest
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.gemm.tiles import WgmmaTile
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.schedules import GemmSchedule, RowSchedule
from tilestitch.passes.plan.view import look_up

from .facts import gpu_facts
from .gemm import choose_among, tiled_schedules
from .gpu import Gpu
from .rows import row_schedules


def drawable(nodes: Mapping[str, Node], group: Group, gpu: Gpu, model: LatencyModel) -> Group:
    """Return a scheduled single-part group with the fastest schedule under which its blocks can draw tiles, if its
    current one does not allow that, as with persistent clusters, or rows whose blocks must be resident together.
    """
    match group.schedule:
        case GemmSchedule(tile=WgmmaTile()):
            gemm = gemm_of(AnchoredGroup.of(look_up(nodes, group)))
            assert gemm is not None, "a schedule of tiles is of a GEMM"
            return replace(group, schedule=choose_among(gemm, tiled_schedules(gemm, gpu), gpu.device, model))
        case RowSchedule(blocks_per_row=blocks) if blocks > 1:
            view = look_up(nodes, group)
            roles = roles_of(view.nodes, view.outputs, view.name)
            assert isinstance(roles, Roles), roles
            kept = [
                each for each in row_schedules(view, roles, gpu)
                if not (isinstance(each, RowSchedule) and each.blocks_per_row > 1)
            ]  # fmt: skip
            scheduled = (replace(group, schedule=each) for each in kept)
            facts = [gpu_facts(nodes, each, roles, gpu.multiprocessors) for each in scheduled]
            return replace(group, schedule=fastest(kept, facts, gpu.device, model))
    return group
