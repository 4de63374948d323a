"""Sorting, cumulative operators, scatters and the box operators of detectors on a CPU, as scheduled."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar, TypeAlias

from tilestitch.compiler.ir import Node
from tilestitch.compiler.ir.sizes import Size, as_size, ceil_div, smallest
from tilestitch.compiler.ir.types import compute_dtype, storage_bytes

from .limits import lane_reasons
from .schedules import (
    CpuAppendSchedule,
    CpuFoundSchedule,
    CpuOrderSchedule,
    CpuRegionSchedule,
    CpuScanSchedule,
    CpuScatterSchedule,
    CpuSortSchedule,
    CpuSuppressSchedule,
)
from .tiling import align

OpaqueSchedule: TypeAlias = (
    CpuSortSchedule
    | CpuScanSchedule
    | CpuScatterSchedule
    | CpuSuppressSchedule
    | CpuRegionSchedule
    | CpuAppendSchedule
    | CpuFoundSchedule
    | CpuOrderSchedule
)
MOST_INSERTED = 1 << 12
"""Most elements of a list maintained by insertion, element by element."""
SPARE = 64
"""Extra elements that are sorted along with those requested, in case they are few."""
POSITION_BYTES = 4


@dataclass(frozen=True)
class _AlongAxis:
    """A node that works along lines of its first operand's `axis`."""

    node: Node

    @property
    def axis(self) -> int:
        axis: int = self.node.attrs["axis"]
        return axis

    @property
    def outer(self) -> Size:
        """Combinations of indices along the preceding axes."""
        return prod(self.node.inputs[0].shape[: self.axis])

    @property
    def size(self) -> Size:
        """Elements per line."""
        return self.node.inputs[0].shape[self.axis]

    @property
    def inner(self) -> Size:
        """Elements between neighbours on a line: neighbouring lines."""
        return prod(self.node.inputs[0].shape[self.axis + 1 :])


@dataclass(frozen=True)
class SortPlan(_AlongAxis):
    """A top_k node and its schedule: the workspace holds keys and positions. Keys are values that are inserted, or
    numbers without sign that are sorted.
    """

    schedule: CpuSortSchedule

    @property
    def k(self) -> Size:
        return as_size(self.node.attrs["k"])

    @property
    def lines(self) -> Size:
        return self.outer * self.inner

    @property
    def tasks(self) -> Size:
        return ceil_div(self.lines, self.schedule.lines)

    @property
    def capacity(self) -> Size:
        """Elements sorted together: the best so far, and as many candidates."""
        return smallest(self.size, 2 * self.k + SPARE)

    @property
    def room(self) -> Size:
        """Elements in the workspace: the best so far, or two alternating halves."""
        return self.k if self.schedule.inserts else 2 * self.capacity

    @property
    def key_dtype(self) -> str:
        dtype = compute_dtype(self.node.inputs[0].dtype)
        return dtype if self.schedule.inserts else "uint64" if storage_bytes(dtype) == 8 else "uint32"

    @property
    def key_bytes(self) -> Size:
        return align(self.room * storage_bytes(self.key_dtype))

    @property
    def scratch_bytes(self) -> Size:
        return self.key_bytes + align(self.room * POSITION_BYTES)

    def reasons(self) -> Iterator[str]:
        """Yield why no kernel sorts as scheduled."""
        if not self.schedule.lines:
            yield "a task has 0 lines; it has at least one"
        if self.schedule.inserts and self.k > MOST_INSERTED:
            yield f"elements are not inserted into a list of {self.k}, more than {MOST_INSERTED}"


@dataclass(frozen=True)
class ScanPlan(_AlongAxis):
    """A cumulative node and its schedule."""

    schedule: CpuScanSchedule
    scratch_bytes: ClassVar[int] = 0

    @property
    def blocks(self) -> Size:
        """Vectors across neighbouring lines."""
        return ceil_div(self.inner, self.schedule.lanes)

    @property
    def lines(self) -> Size:
        """Vectors of lines."""
        return self.outer * self.blocks

    @property
    def tasks(self) -> Size:
        return ceil_div(self.lines, self.schedule.lines)

    def reasons(self) -> Iterator[str]:
        """Yield why no kernel scans as scheduled."""
        odd = next(lane_reasons(self.schedule.lanes, 1), None)
        if odd is not None:
            yield odd
        elif self.schedule.lanes > self.inner:
            yield f"{self.inner} neighbouring lines are no vector of {self.schedule.lanes}"
        if not self.schedule.lines:
            yield "a task has 0 vectors of lines; it has at least one"


@dataclass(frozen=True)
class ScatterPlan:
    """A scatter_elements or scatter_nd node and its schedule."""

    node: Node
    schedule: CpuScatterSchedule

    @property
    def vectors(self) -> Size:
        """Vectors that are copied."""
        return ceil_div(self.node.inputs[0].tensor_type.num_elements, self.schedule.copy_lanes)

    @property
    def copy_tasks(self) -> Size:
        return ceil_div(self.vectors, self.schedule.copy_vectors)

    @property
    def extent(self) -> Size:
        """What the tasks of updates share: lines that never overlap, or the elements of a slice."""
        indices = self.node.inputs[1].shape
        if self.node.op == "scatter_elements":
            return prod(indices[: self.node.attrs["axis"]])
        return prod(self.node.inputs[0].shape[indices[-1] :])

    @property
    def tasks(self) -> Size:
        """Tasks of the updates; 0 if there are no updates, at any size."""
        return 0 if self.node.inputs[2].tensor_type.always_empty else ceil_div(self.extent, self.schedule.part)

    def reasons(self) -> Iterator[str]:
        """Yield why no kernel scatters as scheduled."""
        schedule = self.schedule
        odd = next(lane_reasons(schedule.copy_lanes, 1), None) or next(lane_reasons(schedule.lanes, 1), None)
        if odd is not None:
            yield odd
            return
        elements = self.node.inputs[0].tensor_type.num_elements
        if not schedule.copy_vectors or not schedule.part or schedule.copy_lanes > elements:
            yield (
                f"a task copies {schedule.copy_vectors} vectors of {schedule.copy_lanes} of {elements} elements, and "
                f"has {schedule.part} parts of the updates; it has at least one of each"
            )
            return
        if schedule.lanes == 1:
            return
        if self.node.op == "scatter_elements":
            yield f"updates of scatter_elements are applied one by one, not in vectors of {schedule.lanes}"
        elif self.extent % schedule.part or schedule.part % schedule.lanes:
            yield f"parts of {schedule.part} of {self.extent} elements are not whole vectors of {schedule.lanes}"
        elif self.node.inputs[0].dtype in ("bool", "bfloat16"):
            yield f"updates of {self.node.inputs[0].dtype} are applied one by one, not in vectors of {schedule.lanes}"


@dataclass(frozen=True)
class SuppressPlan:
    """A suppress node and its schedule."""

    node: Node
    schedule: CpuSuppressSchedule
    KEPT_BYTES: ClassVar[int] = 20
    """Bytes per box that is kept: its corners and its area."""

    @property
    def boxes(self) -> Size:
        return self.node.inputs[0].shape[1]

    @property
    def classes(self) -> Size:
        return self.node.inputs[1].shape[1]

    @property
    def tasks(self) -> Size:
        return self.node.inputs[1].shape[0] * self.classes

    @property
    def room(self) -> Size:
        """Scores in the workspace: two alternating halves."""
        return 2 * self.boxes

    @property
    def key_bytes(self) -> Size:
        return align(self.room * POSITION_BYTES)

    @property
    def scratch_bytes(self) -> Size:
        return 2 * self.key_bytes + align(self.boxes * self.KEPT_BYTES)

    def reasons(self) -> Iterator[str]:
        """Yield nothing: there is only one schedule."""
        return iter(())


@dataclass(frozen=True)
class RegionPlan:
    """A roi_align node and its schedule."""

    node: Node
    schedule: CpuRegionSchedule
    scratch_bytes: ClassVar[int] = 0

    @property
    def channels_last(self) -> bool:
        return bool(self.node.attrs["layout"] == "NXC")

    @property
    def channels(self) -> Size:
        return self.node.inputs[0].shape[-1 if self.channels_last else 1]

    @property
    def parts(self) -> Size:
        """Tasks per region."""
        return ceil_div(self.channels, self.schedule.channels)

    @property
    def tasks(self) -> Size:
        return self.node.inputs[1].shape[0] * self.parts

    def reasons(self) -> Iterator[str]:
        """Yield why no kernel pools as scheduled."""
        if not self.schedule.channels:
            yield "a task has 0 channels; it has at least one"
        elif self.schedule.lanes > 1 and not self.channels_last:
            yield "vectors of channels are for images whose channels are next to each other"
        elif self.schedule.lanes < 1 or self.schedule.channels % self.schedule.lanes:
            yield f"{self.schedule.channels} channels are no whole vectors of {self.schedule.lanes}"


@dataclass(frozen=True)
class AppendPlan(_AlongAxis):
    """An append node and its schedule."""

    schedule: CpuAppendSchedule
    scratch_bytes: ClassVar[int] = 0

    @property
    def parts_alike(self) -> Size:
        """Combinations of indices before the axis that share one list of places."""
        return self.outer if self.node.inputs[1].shape[0] == 1 else prod(self.node.inputs[0].shape[1 : self.axis])

    @property
    def tasks(self) -> Size:
        return ceil_div(self.outer, self.schedule.parts)

    def reasons(self) -> Iterator[str]:
        """Yield why no kernel appends as scheduled."""
        if not self.schedule.parts:
            yield "a task has 0 parts; it has at least one"


@dataclass(frozen=True)
class FoundPlan:
    """A tally or compact node and its schedule."""

    node: Node
    schedule: CpuFoundSchedule
    scratch_bytes: ClassVar[int] = 0

    @property
    def elements(self) -> Size:
        return self.node.inputs[0].tensor_type.num_elements

    @property
    def blocks(self) -> Size:
        return ceil_div(self.elements, self.node.attrs["block"])

    @property
    def tasks(self) -> Size:
        return ceil_div(self.blocks, self.schedule.blocks)

    def reasons(self) -> Iterator[str]:
        """Yield why no kernel counts or compacts as scheduled."""
        if not self.schedule.blocks:
            yield "a task has 0 blocks; it has at least one"


@dataclass(frozen=True)
class OrderPlan:
    """An order_rows node and its schedule."""

    node: Node
    schedule: CpuOrderSchedule

    @property
    def rows(self) -> Size:
        return self.node.inputs[0].shape[0]

    @property
    def length(self) -> Size:
        """Elements per row."""
        return self.node.inputs[0].shape[1]

    @property
    def tasks(self) -> Size:
        return smallest(1, self.rows)

    @property
    def room(self) -> Size:
        """Numbers in the workspace: two alternating halves."""
        return 2 * self.rows

    @property
    def scratch_bytes(self) -> Size:
        return align(self.room * POSITION_BYTES)

    def reasons(self) -> Iterator[str]:
        """Yield nothing: there is only one schedule."""
        return iter(())


OpaquePlan: TypeAlias = (
    SortPlan | ScanPlan | ScatterPlan | SuppressPlan | RegionPlan | AppendPlan | FoundPlan | OrderPlan
)


def opaque_plan(node: Node, schedule: OpaqueSchedule) -> OpaquePlan | str:
    """Return the plan that follows from a schedule, or why no kernel computes the node so."""
    plan = _plan_of(node, schedule)
    return plan if isinstance(plan, str) else next(plan.reasons(), None) or plan


def _plan_of(node: Node, schedule: OpaqueSchedule) -> OpaquePlan | str:
    match schedule:
        case CpuSortSchedule() if node.op == "top_k":
            return SortPlan(node, schedule)
        case CpuScanSchedule() if node.op == "cumulative":
            return ScanPlan(node, schedule)
        case CpuScatterSchedule() if node.op in ("scatter_elements", "scatter_nd"):
            return ScatterPlan(node, schedule)
        case CpuSuppressSchedule() if node.op == "suppress":
            return SuppressPlan(node, schedule)
        case CpuRegionSchedule() if node.op == "roi_align":
            return RegionPlan(node, schedule)
        case CpuAppendSchedule() if node.op == "append":
            return AppendPlan(node, schedule)
        case CpuFoundSchedule() if node.op in ("tally", "compact"):
            return FoundPlan(node, schedule)
        case CpuOrderSchedule() if node.op == "order_rows":
            return OrderPlan(node, schedule)
    return f"template {schedule.template} does not compute {node.op}"
