"""Memory plan: lifetimes over the launch order, and offsets in one arena by size, best fit first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilestitch.compiler.ir import Graph, Value
from tilestitch.passes.plan import ALIGNMENT, Buffer, BufferPlan, Group, HostGroup, Segment


def plan_buffers(
    graph: Graph,
    groups: Sequence[Group],
    host_groups: Sequence[HostGroup],
    segments: Sequence[Segment],
    aliases: Mapping[str, str],
) -> BufferPlan:
    """Place every value that native groups write and only native groups read. Sizes are rounded up to `ALIGNMENT`."""
    values = {o.name: o for n in graph.nodes for o in n.outputs}
    lifetimes = lifetimes_of(groups, segments, aliases)
    outside = {v.name for v in graph.outputs} | {aliases.get(v, v) for g in host_groups for v in g.inputs}
    placed = [(values[name], first, last) for name, (first, last) in lifetimes.items() if name not in outside]
    buffers = _place(placed)
    size = max((b.offset_bytes + _rounded(b.nbytes) for b in buffers), default=0)
    return BufferPlan(size, tuple(sorted(buffers, key=lambda b: (b.first, b.value))), dict(aliases))


def lifetimes_of(
    groups: Sequence[Group], segments: Sequence[Segment], aliases: Mapping[str, str]
) -> dict[str, tuple[int, int]]:
    """By value that a native group writes: the first and the last launch at which its bytes are needed."""
    by_name = {g.name: g for g in groups}
    lifetimes: dict[str, tuple[int, int]] = {}
    for launch, name in enumerate(n for s in segments for n in s.groups):
        group = by_name.get(name)
        if group is None:
            continue
        for value in group.outputs:
            lifetimes[value] = (launch, launch)
        for value in group.inputs:
            root = aliases.get(value, value)
            if root in lifetimes:
                lifetimes[root] = (lifetimes[root][0], launch)
    return lifetimes


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _place(values: Sequence[tuple[Value, int, int]]) -> list[Buffer]:
    """Large values first; each goes into the tightest gap among those alive at the same time, or behind them."""
    order = sorted(values, key=lambda item: (-item[0].tensor_type.nbytes, item[1], item[0].name))
    buffers: list[Buffer] = []
    for value, first, last in order:
        nbytes = value.tensor_type.nbytes
        together = sorted(
            (b.offset_bytes, b.offset_bytes + _rounded(b.nbytes))
            for b in buffers
            if b.first <= last and first <= b.last and b.nbytes
        )
        buffers.append(Buffer(value.name, _best_offset(together, _rounded(nbytes)), nbytes, first, last))
    return buffers


def _best_offset(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The start of the smallest gap of at least `size` between the intervals `taken` (sorted by start)."""
    end = 0
    best: tuple[int, int] | None = None
    for low, high in taken:
        gap = low - end
        if gap >= size and (best is None or gap < best[0]):
            best = (gap, end)
        end = max(end, high)
    return best[1] if best else end
