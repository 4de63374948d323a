"""Attention groups on CUDA, by the tile of their schedule."""

from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.cuda.attention.mma import emit_mma
from tilestitch.codegen.cuda.attention.operands import attended
from tilestitch.codegen.cuda.attention.simt import emit_simt
from tilestitch.codegen.cuda.attention.walk import walk
from tilestitch.codegen.cuda.gemm.contraction import machine_of
from tilestitch.codegen.cuda.surroundings import Anchored
from tilestitch.codegen.cuda.target import CudaTarget
from tilestitch.codegen.errors import KernelError
from tilestitch.codegen.groups import GroupView, roles_in
from tilestitch.passes.plan.attention.check import why_not_attention
from tilestitch.passes.plan.attention.tiles import AttentionMmaTile
from tilestitch.passes.plan.schedules import AttentionSchedule


def lower_attention(view: GroupView, schedule: AttentionSchedule | None, target: CudaTarget) -> tuple[CudaLaunch, ...]:
    """Return the launches of an attention group, in order. Raises KernelError for a schedule that no kernel has."""
    group = Anchored(view.nodes, roles_in(view), view.inputs, view.stored, target)
    if schedule is None:
        limit = target.device.shared_bytes_per_block
        fits = f"it was not scheduled, or no tile fits the {limit} bytes of shared memory of {target.name}"
        raise KernelError(f"attention {view.name}: {fits}; compile with --planner injective", view.origins)
    problem = why_not_attention(group, schedule, machine_of(target))
    if problem is not None:
        raise KernelError(f"group {view.name}: {problem}; repair the plan or write it again", view.origins)
    what, tile = attended(group), schedule.tile
    steps = walk(what, schedule)
    if isinstance(tile, AttentionMmaTile):
        return emit_mma(what, tile, steps)
    return emit_simt(what, tile, steps)
