"""Schedules of sorting, cumulative operators and scatters on a CPU."""

from __future__ import annotations

from math import prod

from tilestitch.compiler.ir import Node
from tilestitch.passes.plan.cpu.isa import Isa
from tilestitch.passes.plan.cpu.opaque import OpaqueSchedule
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

SORT_ELEMENTS = 4096
"""Elements per task that sorts."""
MAX_INSERTION = 48
"""Largest k for which elements are inserted into a sorted list; for longer lists sorting everything is cheaper."""
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
