"""Other schedules for a scheduled kernel of a GPU: what the rules choose among, and what differs in one choice."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from tilestitch.compiler.ir import Node
from tilestitch.passes.plan import Group, GroupKind
from tilestitch.passes.plan.access.windows import direct_schedules, window_schedules
from tilestitch.passes.plan.attention.check import why_not_attention
from tilestitch.passes.plan.attention.operands import attention_of
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.check import why_not_scheduled
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.launches.cuda.group import stitching_of
from tilestitch.passes.plan.roles import legal_roles
from tilestitch.passes.plan.schedules import Schedule, WindowSchedule
from tilestitch.passes.plan.view import GroupView, look_up
from tilestitch.passes.schedule.variants import steps, variants

from .attention import attention_schedules
from .blocks import scheduled_blocks
from .choose import vector_schedules
from .gemm import DIRECT_THREADS, gemm_and_rows, gemm_schedules, tiled_schedules, with_bands
from .gpu import Gpu


def alternatives(nodes: Mapping[str, Node], group: Group, gpu: Gpu) -> list[Group]:
    """Return a scheduled group with each other schedule that its template can emit, in a fixed order. None for kernels
    that draw tiles from each other, whose schedules determine when they wait.
    """
    return [other for other in dict.fromkeys(_scheduled(nodes, group, gpu)) if other != group]


def _scheduled(nodes: Mapping[str, Node], group: Group, gpu: Gpu) -> Iterable[Group]:
    if group.tie == "band":
        gemm, after = gemm_and_rows(nodes, group)
        return (with_bands(group, gemm, one, after, gpu.device) for one in gemm_schedules(gemm, gpu, after))
    if group.tie == "block":
        return (scheduled for scheduled, _ in scheduled_blocks(nodes, group, gpu))
    if group.tie != "barrier":
        return ()
    if group.stages:
        return _with_parts(nodes, group, gpu)
    view = look_up(nodes, group)
    return (replace(group, schedule=one) for one in _schedules(view, group, gpu)) if view.stored else ()


def _with_parts(nodes: Mapping[str, Node], group: Group, gpu: Gpu) -> Iterator[Group]:
    """Yield the group with another schedule of one part, where all parts still fit one launch."""
    for number, stage in enumerate(group.stages):
        for place, part in enumerate(stage):
            for other in alternatives(nodes, part, gpu):
                changed = (*stage[:place], other, *stage[place + 1 :])
                whole = replace(group, stages=(*group.stages[:number], changed, *group.stages[number + 1 :]))
                if stitching_of(nodes, whole, gpu.multiprocessors).why_not() is None:
                    yield whole


def _schedules(view: GroupView, group: Group, gpu: Gpu) -> Iterator[Schedule]:
    assert group.schedule is not None
    if group.kind is GroupKind.CONTRACTION:
        yield from _of_contraction(AnchoredGroup.of(view), group.schedule, gpu)
    elif group.kind is GroupKind.ATTENTION:
        anchored = AnchoredGroup.of(view)
        yield from attention_schedules(attention_of(anchored), gpu)
        yield from (
            one for one in steps(group.schedule) if why_not_attention(anchored, one, gpu.machine) is None
        )  # fmt: skip
    else:
        yield from _listed(view, group, gpu)
        yield from variants(view, group.kind, legal_roles(view), group.schedule)


def _of_contraction(group: AnchoredGroup, schedule: Schedule, gpu: Gpu) -> Iterator[Schedule]:
    gemm = gemm_of(group)
    listed = direct_schedules(group, DIRECT_THREADS) if gemm is None else gemm_schedules(gemm, gpu)
    tiled = () if gemm is None else tiled_schedules(gemm, gpu)  # the rules take others for few rows
    yield from listed
    yield from (one for one in chain(tiled, steps(schedule)) if why_not_scheduled(group, one, gpu.machine) is None)


def _listed(view: GroupView, group: Group, gpu: Gpu) -> Sequence[Schedule]:
    """Return the candidates of the rules; of operators with templates of their own, only windows have several."""
    if group.kind is not GroupKind.OPAQUE:
        return vector_schedules(view, group.kind, gpu)
    if not isinstance(group.schedule, WindowSchedule):
        return ()
    assert view.anchor is not None
    return list(window_schedules(view.anchor, view.inputs, group.schedule.threads))
