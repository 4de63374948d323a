"""The launch of stages in which each block computes a slab of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tilestitch.compiler.ir import Node, Value
from tilestitch.passes.plan.group import Group
from tilestitch.passes.plan.index_checks import pending_checks
from tilestitch.passes.plan.launches.cuda.emitted import Argument, Emitted, shared_array
from tilestitch.passes.plan.launches.cuda.rows import elementwise, rowwise
from tilestitch.passes.plan.launches.cuda.stitched import MOST_STATIC_SHARED_BYTES
from tilestitch.passes.plan.own_kernels import Temporary
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.schedule_check import why_not
from tilestitch.passes.plan.schedules import BlockSchedule, ElementwiseSchedule, RowSchedule
from tilestitch.passes.plan.slabs import Axes, Axis, Slabs, slab_view, slabs_of
from tilestitch.passes.plan.view import GroupView, look_up

PLACE_BYTES = 64
"""Alignment of places in shared memory."""


@dataclass(frozen=True)
class SlabPart:
    """A part of the group, as a whole and for one slab."""

    group: Group
    whole: GroupView
    slab: GroupView
    roles: Roles

    @property
    def launch(self) -> Emitted:
        """The launch of one slab alone: its blocks become iterations of the slab's single block."""
        view, schedule = self.slab, self.group.schedule
        if isinstance(schedule, ElementwiseSchedule):
            return elementwise(view.inputs, view.stored, schedule)
        assert isinstance(schedule, RowSchedule), schedule
        return rowwise(view.nodes, self.roles, view.inputs, view.stored, (*view.inputs, *view.stored), schedule)

    def why_not(self) -> str | None:
        """Return why the part cannot be computed as scheduled; None if it can."""
        schedule = self.group.schedule
        if not isinstance(schedule, ElementwiseSchedule | RowSchedule):
            return f"{self.group.name} has no schedule for the slab of a block"
        if isinstance(schedule, RowSchedule) and schedule.blocks_per_row > 1:
            return f"{self.group.name} spreads rows over blocks, whose slabs are their own"
        return why_not(self.slab, self.group.kind, self.roles, schedule)


@dataclass(frozen=True)
class Blocking:
    """The parts of a group tied by blocks, restricted to slabs. Schedules may still be missing."""

    name: str
    slabs: Slabs
    parts: tuple[SlabPart, ...]
    outputs: frozenset[str]

    @staticmethod
    def of(nodes: Mapping[str, Node], group: Group, axes: Sequence[int]) -> Blocking | str:
        """Return the parts of a group with slabs along `axes`, or why there are none."""
        views = [look_up(nodes, part) for part in group.parts]
        if any(view.stored != view.outputs for view in views):
            return "a part stores a value without elements"
        if any(pending_checks(view.nodes) for view in views):
            return "a part gathers by indices that are checked before the launch"
        slabs = slabs_of(views, axes)
        if isinstance(slabs, str):
            return slabs
        parts = []
        for part, view in zip(group.parts, views, strict=True):
            slab = slab_view(view, slabs)
            roles = roles_of(slab.nodes, slab.outputs, part.name)
            if not isinstance(roles, Roles) or roles.kind is not part.kind:
                return f"a slab of {part.name} is no {part.kind.value} kernel"
            parts.append(SlabPart(part, view, slab, roles))
        return Blocking(group.name, slabs, tuple(parts), frozenset(group.outputs))

    @cached_property
    def stored(self) -> tuple[Value, ...]:
        """The values that the parts store, in order."""
        return tuple(value for part in self.parts for value in part.whole.stored)

    @cached_property
    def lifetimes(self) -> dict[int, tuple[int, int]]:
        """The first and last stage of each value, by its number, that only the parts need."""
        numbers = {value: number for number, value in enumerate(self.stored)}
        found = {numbers[v]: (at, at) for at, part in enumerate(self.parts) for v in part.whole.stored}
        for at, part in enumerate(self.parts):
            for number in (numbers[v] for v in part.whole.inputs if v in numbers):
                found[number] = found[number][0], at
        return {number: found[number] for number, v in enumerate(self.stored) if v.name not in self.outputs}

    def shared(self, schedule: BlockSchedule) -> dict[Value, int]:
        """Return the values in shared memory and their offsets."""
        return {self.stored[place.value]: place.offset_bytes for place in schedule.places}

    def shared_bytes(self, schedule: BlockSchedule) -> int:
        """Return the dynamic shared memory of a block."""
        ends = (at + self.slabs.nbytes(value) for value, at in self.shared(schedule).items())
        return shared_array(max(ends, default=0), 1)

    @property
    def static_shared_bytes(self) -> int:
        return sum(part.launch.static_shared_bytes for part in self.parts)

    def why_not(self, schedule: BlockSchedule, most_shared_bytes: int) -> str | None:
        """Return why it is no single launch on a GPU with this much shared memory per block; None if it is one."""
        problem = next((p for p in (part.why_not() for part in self.parts) if p), None) or self._misplaced(schedule)
        if problem is not None:
            return problem
        static = self.static_shared_bytes
        if static > MOST_STATIC_SHARED_BYTES or static + self.shared_bytes(schedule) > most_shared_bytes:
            total = static + self.shared_bytes(schedule)
            return f"its parts take {total} bytes of shared memory ({static} of them static), more than there are"
        return None

    def _misplaced(self, schedule: BlockSchedule) -> str | None:
        """Return a complaint about a value in shared memory that is needed elsewhere or overlaps another; None if there
        is none.
        """
        ranges: list[tuple[int, int, int, int]] = []
        for place in schedule.places:
            if place.value not in self.lifetimes or place.offset_bytes % PLACE_BYTES:
                return f"value {place.value} of its parts has no place at {place.offset_bytes} in shared memory"
            nbytes, (first, last) = self.slabs.nbytes(self.stored[place.value]), self.lifetimes[place.value]
            here = first, last, place.offset_bytes, place.offset_bytes + nbytes
            if any(_meet(here, other) for other in ranges):
                return f"value {place.value} of its parts meets another one at {place.offset_bytes} in shared memory"
            ranges.append(here)
        return None

    def launch(self, schedule: BlockSchedule) -> Emitted:
        shared = self.shared(schedule)
        arguments: dict[Argument, None] = {}
        for value in (v for part in self.parts for v in (*part.whole.inputs, *part.whole.stored)):
            if value in self.stored and value.name not in self.outputs:
                if value not in shared:
                    arguments[Temporary(value.name, value.tensor_type.nbytes)] = None
                continue
            arguments[value] = None
        threads = max(part.launch.threads for part in self.parts)
        launch = Emitted.of("blocks", self.slabs.count, threads, arguments)
        return replace(
            launch, shared_bytes=self.shared_bytes(schedule), static_shared_bytes=self.static_shared_bytes
        )  # fmt: skip


def axes_of_slabs(nodes: Mapping[str, Node], group: Group) -> list[tuple[int, ...]]:
    """Return axes of the first stored value along which slabs of all parts are possible: as many axes as possible
    first, then fewer. Axes along which memory is contiguous are excluded.
    """
    views = [look_up(nodes, part) for part in group.parts]
    stored = [value for view in views for value in view.stored]
    if not stored or any(view.stored != view.outputs for view in views):
        return []
    related = Axes([node for view in views for node in view.nodes])
    common, first = related.common(stored), related.of(stored[0])
    touched = [*stored, *(value for view in views for value in view.inputs)]
    largest = max(value.tensor_type.num_elements for value in touched)
    last = {_innermost(related, value) for value in touched if value.tensor_type.num_elements == largest}
    outer = [axis for axis in common if axis not in last]
    choices = [tuple(first[axis] for axis in outer[:count]) for count in range(len(outer), 0, -1)]
    return [axes for axes in choices if not isinstance(Blocking.of(nodes, group, axes), str)]


def _innermost(related: Axes, value: Value) -> Axis | None:
    wide = [i for i, size in enumerate(value.shape) if size > 1]
    return next((axis for axis, i in related.of(value).items() if i == wide[-1]), None)


def _meet(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    """Return whether two ranges of stages and bytes intersect."""
    return a[0] <= b[1] and b[0] <= a[1] and a[2] < b[3] and b[2] < a[3]
