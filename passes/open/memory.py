"""Memory of an open graph: slots, each shared by values with disjoint lifetimes.

A slot is as large as the largest of its values at any sizes, so that the order of the slots, and disjointness, hold for
all sizes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilestitch.compiler.ir import Graph, Value
from tilestitch.compiler.ir.sizes import Size, is_open, largest, over, symbols_of
from tilestitch.compiler.ir.types import is_sized_tensor
from tilestitch.passes.plan import Buffer, BufferPlan, Group, HostGroup, Segment
from tilestitch.passes.plan.buffers import aligned
from tilestitch.passes.plan.slices import Slices
from tilestitch.passes.schedule.memory import Lifetime, lifetimes_of


@dataclass
class _Slot:
    nbytes: Size
    values: list[tuple[Value, Lifetime]] = field(default_factory=list)

    def is_free(self, alive: Lifetime) -> bool:
        return all(first > alive[1] or last < alive[0] for _, (first, last) in self.values)


def place_open(
    graph: Graph, groups: Sequence[Group], host_groups: Sequence[HostGroup], segments: Sequence[Segment],
    aliases: Mapping[str, str], slices: Slices | None = None,
) -> BufferPlan:  # fmt: skip
    """Place every value that native groups write and only native groups read."""
    values = {o.name: o for n in graph.nodes for o in n.outputs}
    lifetimes = lifetimes_of(groups, segments, aliases)
    if slices is not None:
        lifetimes = lifetimes_over(slices, lifetimes, segments)
    outside = {v.name for v in graph.outputs} | {aliases.get(v, v) for g in host_groups for v in g.inputs}
    whole = {s.name: replace(s, low=0) for v in values.values() for s in symbols_of(_dims(v)) if s.or_empty}
    slots: list[_Slot] = []
    for name, alive in sorted(lifetimes.items(), key=lambda item: item[1]):
        if name not in outside:
            _put(slots, values[name], over(values[name].tensor_type.nbytes, whole), alive)
    buffers, end = list[Buffer](), 0
    for slot in slots:
        buffers += [Buffer(v.name, end, v.tensor_type.nbytes, first, last) for v, (first, last) in slot.values]
        end = end + aligned(slot.nbytes)
    return BufferPlan(end, tuple(sorted(buffers, key=lambda b: (b.first, b.value))), dict(aliases))


def lifetimes_over(
    slices: Slices, lifetimes: Mapping[str, Lifetime], segments: Sequence[Segment]
) -> dict[str, Lifetime]:  # fmt: skip
    """Return lifetimes with slices: what enters or leaves launches that iterate over slices lives from the first to the
    last of them, as it is complete only before or after.
    """
    spans = slices.spans([name for segment in segments for name in segment.groups])
    return {
        name: alive if spans[alive[0]] == spans[alive[1]] else (spans[alive[0]][0], spans[alive[1]][1])
        for name, alive in lifetimes.items()
    }


def _dims(value: Value) -> tuple[Size, ...]:
    return value.tensor_type.sizes if is_sized_tensor(value.type) else ()


def _put(slots: list[_Slot], value: Value, nbytes: Size, alive: Lifetime) -> None:
    """Put a value into a free slot for values of comparable size: the rest of another one would often be wasted."""
    free = [slot for slot in slots if slot.is_free(alive)]
    slot = next((s for s in free if s.nbytes == nbytes), None)
    slot = slot or next((s for s in free if not is_open(largest(s.nbytes, nbytes)) or _alike(s.nbytes, nbytes)), None)
    if slot is None:
        slot = _Slot(nbytes)
        slots.append(slot)
    slot.nbytes = largest(slot.nbytes, nbytes)
    slot.values.append((value, alive))


def _alike(a: Size, b: Size) -> bool:
    """Return whether one of two open sizes is certainly the larger."""
    return largest(a, b) in (a, b)
