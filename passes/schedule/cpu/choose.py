"""The schedule of any group on a CPU; those of sorting, cumulative operators and scatters."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tilestitch.compiler.ir import Node
from tilestitch.cost_model.protocol import LatencyModel, fastest
from tilestitch.passes.plan import Group, GroupKind
from tilestitch.passes.plan.cpu.anchors import window_of
from tilestitch.passes.plan.cpu.attention import attention_of
from tilestitch.passes.plan.cpu.isa import Isa
from tilestitch.passes.plan.cpu.opaque import OpaqueSchedule
from tilestitch.passes.plan.cpu.operands import Matmul, conv_of, conv_transpose_of
from tilestitch.passes.plan.cpu.schedules import (
    CpuAppendSchedule,
    CpuFoundSchedule,
    CpuOrderSchedule,
    CpuRegionSchedule,
    CpuScanSchedule,
    CpuScatterSchedule,
    CpuSortSchedule,
    CpuSuppressSchedule,
)
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.schedules import Schedule
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.plan.view import look_up
from tilestitch.passes.schedule.device import device_of

from .attention import choose_attention
from .conv import choose_conv, choose_conv_transpose
from .facts import cpu_facts
from .gemm import choose_gemm, choose_gemv
from .loops import choose_loops
from .rows import row_schedules
from .window import choose_window

SORT_ELEMENTS = 4096
"""Elements per task that sorts."""
MAX_INSERTION = 16
"""Largest k for which elements are inserted into a sorted list; for longer lists sorting candidates is cheaper."""
SCAN_ELEMENTS = 16384
COPY_ELEMENTS = 65536
UPDATE_ELEMENTS = 8192
FOUND_ELEMENTS = 65536
LEAST_PART, SLICE_LANES = 16, 16
"""Least elements of a slice for a separate task, and elements of a vector of them."""
PLANES, REGION_CHANNELS = 16, 256
"""Channels of a region that a task pools: where each channel is a plane, and where channels are contiguous."""
BY_ELEMENT = frozenset({"bool", "bfloat16"})
"""Dtypes whose elements are stored in another form than they are computed in."""


def choose_opaque(node: Node, isa: Isa) -> OpaqueSchedule | None:
    """Return the schedule of a node that is alone in its group; None for an operator without a template."""
    if node.op == "top_k":
        size = node.inputs[0].shape[node.attrs["axis"]]
        return CpuSortSchedule(max(1, SORT_ELEMENTS // max(1, size)), node.attrs["k"] <= MAX_INSERTION)
    if node.op == "cumulative":
        return _scan(node, isa)
    if node.op == "suppress":
        return CpuSuppressSchedule()
    if node.op == "roi_align":
        return _regions(node, isa)
    if node.op == "append":
        x, axis = node.inputs[0], node.attrs["axis"]
        return CpuAppendSchedule(max(1, COPY_ELEMENTS // max(1, prod(x.shape[axis:]))))
    if node.op == "order_rows":
        return CpuOrderSchedule()
    if node.op in ("tally", "compact"):
        return CpuFoundSchedule(max(1, FOUND_ELEMENTS // node.attrs["block"]))
    return _scatter(node, isa) if node.op in ("scatter_elements", "scatter_nd") else None


def _regions(node: Node, isa: Isa) -> CpuRegionSchedule:
    x = node.inputs[0]
    if node.attrs["layout"] == "NCX":
        return CpuRegionSchedule(min(PLANES, x.shape[1]))
    lanes = _lanes(x.shape[-1], isa)
    return CpuRegionSchedule(min(REGION_CHANNELS, x.shape[-1] // lanes * lanes), lanes)


def _scan(node: Node, isa: Isa) -> CpuScanSchedule:
    shape, axis = node.inputs[0].shape, node.attrs["axis"]
    lanes = _lanes(prod(shape[axis + 1 :]), isa)
    return CpuScanSchedule(lanes, max(1, SCAN_ELEMENTS // max(1, shape[axis] * lanes)))


def _lanes(count: int, isa: Isa) -> int:
    """Return the vector length for `count` neighbouring elements."""
    return min(isa.vector_bytes // 4, 1 << (count.bit_length() - 1))


def _scatter(node: Node, isa: Isa) -> CpuScatterSchedule:
    x, indices = node.inputs[0], node.inputs[1].shape
    copied = _lanes(x.tensor_type.num_elements, isa)
    vectors = max(1, COPY_ELEMENTS // copied)
    if node.op == "scatter_elements":
        line = prod(indices[node.attrs["axis"] :])
        return CpuScatterSchedule(copied, vectors, max(1, UPDATE_ELEMENTS // max(1, line)))
    count, width = prod(indices[:-1]), prod(x.shape[indices[-1] :])
    part = min(width, max(LEAST_PART, UPDATE_ELEMENTS // max(1, count)))
    whole = part % SLICE_LANES == 0 and width % part == 0 and x.dtype not in BY_ELEMENT
    return CpuScatterSchedule(copied, vectors, part, SLICE_LANES if whole else 1)


def choose(nodes: Mapping[str, Node], group: Group, target: TargetInfo, model: LatencyModel) -> Schedule | None:
    """Return the schedule of a single-part group; None if it stores no elements, so that nothing is launched.

    `nodes` are the graph's nodes by name. `model` decides whether splitting few long rows pays.
    """
    view, isa, threads = look_up(nodes, group), target.core, target.threads
    outputs, anchor = view.stored, view.anchor
    if not outputs:
        return None
    if group.kind is GroupKind.INJECTIVE:
        return choose_loops(view.nodes, view.inputs, outputs, isa)
    if group.kind is GroupKind.ROWWISE:
        roles = roles_of(view.nodes, view.outputs, view.name)
        assert isinstance(roles, Roles), roles
        candidates = row_schedules(view, roles, isa)
        if len(candidates) == 1:
            return candidates[0]
        facts = [cpu_facts(nodes, replace(group, schedule=each), roles, isa) for each in candidates]
        return fastest(candidates, facts, device_of(target), model)
    if group.kind is GroupKind.ATTENTION:
        return choose_attention(attention_of(AnchoredGroup.of(view)), isa, threads)
    if group.kind is GroupKind.CONTRACTION or (anchor is not None and anchor.op == "window_reduce"):
        return _choose_anchored(AnchoredGroup.of(view), isa, threads)
    assert anchor is not None
    return choose_opaque(anchor, isa)


def _choose_anchored(group: AnchoredGroup, isa: Isa, threads: int) -> Schedule:
    """Return the schedule of a group around a matmul, a convolution or a window, with non-empty outputs."""
    window = window_of(group)
    if window is not None:
        return choose_window(window, isa, threads)
    if group.anchor.op == "conv":
        return choose_conv(conv_of(group), isa, threads)
    if group.anchor.op == "conv_transpose":
        return choose_conv_transpose(conv_transpose_of(group), isa, threads)
    matmul = Matmul(group)
    return choose_gemv(matmul.gemv, isa, threads) if matmul.streams else choose_gemm(matmul.gemm, isa, threads)
