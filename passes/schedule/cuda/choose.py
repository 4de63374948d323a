"""The schedule of any group on a GPU; those of windows, cumulative operators, sorting and scatters."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.types import HALVES, storage_bytes
from tilestitch.cost_model.protocol import LatencyModel, fastest
from tilestitch.passes.plan import Group, GroupKind
from tilestitch.passes.plan.access.windows import window_extents, window_schedules
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.roles import legal_roles
from tilestitch.passes.plan.schedules import (
    OPERATORS,
    OperatorSchedule,
    ScanSchedule,
    ScatterSchedule,
    Schedule,
    SortSchedule,
    WindowSchedule,
)
from tilestitch.passes.plan.view import GroupView, look_up

from .attention import choose_attention
from .elementwise import elementwise_schedules
from .facts import gpu_facts
from .gemm import choose_contraction
from .gpu import Gpu
from .rows import row_schedules

THREADS = 256
WINDOW_THREADS = 256
"""Threads per SM from which each may compute several windows."""
SCAN_THREADS = 128
MOST_LINES, LEAST_LENGTH = 4096, 256
"""Line count above which each line is summed by a thread; fewer lines are summed by a block each, if they are long."""
MOST_SORT_THREADS = 512
SORT_SHARED_BYTES = 40 * 1024
"""Most bytes of keys and positions in shared memory; larger ones are kept in global memory."""
POSITION_BYTES = 4
MANY_THREADS = 4096
"""Independent updates that are applied by this many threads need no claims."""


def choose_opaque(anchor: Node, inputs: Sequence[Value], sm_count: int) -> Schedule | None:
    """Return the schedule of a group around `anchor` that reads `inputs`; None for an operator that has no template."""
    if anchor.op == "window_reduce":
        return _window(anchor, inputs, sm_count)
    if anchor.op == "cumulative":
        return _scan(anchor)
    if anchor.op == "top_k":
        return _sort(anchor)
    if anchor.op in OPERATORS:
        return OperatorSchedule(THREADS)
    return _scatter(anchor) if anchor.op in ("scatter_elements", "scatter_nd") else None


def _window(anchor: Node, inputs: Sequence[Value], sm_count: int) -> WindowSchedule:
    """Give a thread as many results as leave threads enough: neighbouring windows share what is read."""
    *several, single = window_schedules(anchor, inputs, THREADS)
    return next((one for one in several if prod(window_extents(anchor, one)) >= sm_count * WINDOW_THREADS), single)


def _scatter(node: Node) -> ScatterSchedule:
    shape, count = node.inputs[1].shape, node.inputs[2].tensor_type.num_elements
    if node.op == "scatter_nd":
        apart = prod(node.inputs[0].shape[shape[-1] :])
    else:
        axis = node.attrs["axis"]
        apart = prod(shape[:axis]) * prod(shape[axis + 1 :])
    claims = node.attrs["reduction"] == "none" and apart < min(MANY_THREADS, count)
    return ScatterSchedule(THREADS, claims)


def _scan(node: Node) -> ScanSchedule:
    shape, axis = node.inputs[0].shape, node.attrs["axis"]
    lines = prod(shape[:axis]) * prod(shape[axis + 1 :])
    return ScanSchedule(SCAN_THREADS, shape[axis] >= LEAST_LENGTH and lines <= MOST_LINES)


def _sort(node: Node) -> SortSchedule:
    x = node.inputs[0]
    room = sorting_room(x.shape[node.attrs["axis"]])
    key_bytes = 4 if x.dtype in HALVES else storage_bytes(x.dtype)
    nbytes = room * (key_bytes + POSITION_BYTES)
    return SortSchedule(min(MOST_SORT_THREADS, max(32, room // 2)), nbytes <= SORT_SHARED_BYTES)


def sorting_room(size: int) -> int:
    """Return the elements that a bitonic network sorts: a power of two."""
    return max(2, 1 << (size - 1).bit_length())


def choose(nodes: Mapping[str, Node], group: Group, gpu: Gpu, model: LatencyModel) -> Schedule | None:
    """Return the schedule of a single-part group, the fastest by `model` if there are several; None if it stores no
    elements, so that nothing is launched. `nodes` are the graph's nodes by name.
    """
    view = look_up(nodes, group)
    if not view.stored:
        return None
    if group.kind is GroupKind.CONTRACTION:
        return choose_contraction(AnchoredGroup.of(view), gpu, model)
    if group.kind is GroupKind.ATTENTION:
        return choose_attention(view, gpu, model)
    if group.kind is GroupKind.OPAQUE:
        assert view.anchor is not None
        return choose_opaque(view.anchor, view.inputs, gpu.device.sm_count)
    candidates = vector_schedules(view, group.kind, gpu)
    if len(candidates) == 1:
        return candidates[0]
    scheduled = (replace(group, schedule=each) for each in candidates)
    facts = [gpu_facts(nodes, each, legal_roles(view), gpu.multiprocessors) for each in scheduled]
    return fastest(candidates, facts, gpu.device, model)


def vector_schedules(view: GroupView, kind: GroupKind, gpu: Gpu) -> Sequence[Schedule]:
    """Return the candidate schedules of a row-wise or an element-wise group with non-empty outputs."""
    if kind is GroupKind.ROWWISE:
        return row_schedules(view, legal_roles(view), gpu)
    return elementwise_schedules(view.nodes, view.inputs, view.stored, gpu.device.sm_count)
