"""Memory planning: live ranges over the launch order, and offsets in one arena, best fit in order of size.

On a device that runs independent launches concurrently, sharing memory would serialise them. There, values share memory
only if the data flow orders them anyway, or if they are WINDOW launches apart.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from tilestitch.compiler.ir import Graph, Value
from tilestitch.passes.plan import Buffer, BufferPlan, Group, HostGroup, Place, Segment, wholes_of
from tilestitch.passes.plan.buffers import aligned

from .order import written

WINDOW = 32
"""Launches farther apart than this do not run concurrently: wide models need memory for a bounded number of
branches.
"""

Lifetime = tuple[int, int]
"""The first and last launch at which a value's bytes are needed."""


def plan_buffers(
    graph: Graph,
    groups: Sequence[Group],
    host_groups: Sequence[HostGroup],
    segments: Sequence[Segment],
    aliases: Mapping[str, str],
    places: Mapping[str, Place] | None = None,
    *,
    window: int = 0,
) -> BufferPlan:
    """Place every value that native groups write and only native groups read. Sizes are rounded up to `ALIGNMENT`.

    window: independent launches at most this far apart may run concurrently; 0 where each ends before the next begins.
    """
    values = {o.name: o for n in graph.nodes for o in n.outputs}
    lifetimes = lifetimes_of(groups, segments, aliases, places)
    outside = {v.name for v in graph.outputs} | {aliases.get(v, v) for g in host_groups for v in g.inputs}
    placed = [(values[name], first, last) for name, (first, last) in lifetimes.items() if name not in outside]
    buffers = _place(placed, _unordered(groups, segments, aliases, places or {}, window) if window else _overlapping)
    size = max((b.offset_bytes + aligned(b.nbytes) for b in buffers), default=0)
    return BufferPlan(size, tuple(sorted(buffers, key=lambda b: (b.first, b.value))), dict(aliases), dict(places or {}))


def lifetimes_of(
    groups: Sequence[Group], segments: Sequence[Segment], aliases: Mapping[str, str],
    places: Mapping[str, Place] | None = None,
) -> dict[str, Lifetime]:  # fmt: skip
    """Return the live range of each value that a native group writes: the first and last launch at which its bytes are
    needed.

    Wholes are included, from the first part's launch on, but not their parts.
    """
    places = places or {}
    wholes = wholes_of(places)
    by_name = {g.name: g for g in groups}
    lifetimes: dict[str, Lifetime] = {}
    for launch, name in enumerate(n for s in segments for n in s.groups):
        group = by_name.get(name)
        if group is None:
            continue
        for value in group.outputs:
            lifetimes[value] = (launch, launch)
        for root in written(group.inputs, aliases, wholes):
            if root in lifetimes:
                lifetimes[root] = (lifetimes[root][0], launch)
    for whole, parts in wholes.items():
        alive = [lifetimes.pop(part) for part in parts]
        lifetimes[whole] = (min(first for first, _ in alive), max(last for _, last in alive))
    return lifetimes


Together = Callable[[str, Lifetime, str, Lifetime], bool]
"""Whether two values, given their live ranges, need separate memory."""


def _overlapping(a: str, alive_a: Lifetime, b: str, alive_b: Lifetime) -> bool:
    return alive_a[0] <= alive_b[1] and alive_b[0] <= alive_a[1]


def _unordered(
    groups: Sequence[Group], segments: Sequence[Segment], aliases: Mapping[str, str], places: Mapping[str, Place],
    window: int,
) -> Together:  # fmt: skip
    """Return the predicate whether launches that use one value may run concurrently with the launch that writes the
    other.
    """
    wholes = wholes_of(places)
    by_name = {g.name: g for g in groups}
    writer: dict[str, int] = {}
    users: dict[str, int] = {}  # a value's writer among them, as a bit set
    ancestors: list[int] = []  # ancestors of each launch by data flow
    for launch, name in enumerate(n for s in segments for n in s.groups):
        group = by_name.get(name)
        before = 0
        for root in written(group.inputs if group else (), aliases, wholes):
            if root in writer:
                before |= ancestors[writer[root]] | 1 << writer[root]
                users[root] |= 1 << launch
        for value in group.outputs if group else ():
            writer[value], users[value] = launch, 1 << launch
        ancestors.append(before)
    for whole, parts in wholes.items():
        users[whole] = 0
        for part in parts:
            users[whole] |= users[part]

    def together(a: str, alive_a: Lifetime, b: str, alive_b: Lifetime) -> bool:
        if _overlapping(a, alive_a, b, alive_b):
            return True
        earlier, start = (a, alive_b[0]) if alive_a[1] < alive_b[0] else (b, alive_a[0])
        beside = users[earlier] & ~ancestors[start]
        return beside >> max(0, start - window) != 0

    return together


def _place(values: Sequence[tuple[Value, int, int]], together: Together = _overlapping) -> list[Buffer]:
    """Return buffers, placing large values first, each in the smallest sufficient gap among those alive at the same
    time, or after them.
    """
    order = sorted(values, key=lambda item: (-item[0].tensor_type.nbytes, item[1], item[0].name))
    buffers: list[Buffer] = []
    neighbours = _Neighbours()
    for value, first, last in order:
        nbytes = value.tensor_type.nbytes
        taken = sorted(
            (b.offset_bytes, b.offset_bytes + aligned(b.nbytes))
            for b in (buffers[number] for number in neighbours.of((first, last)))
            if b.nbytes and together(b.value, (b.first, b.last), value.name, (first, last))
        )
        neighbours.add(len(buffers), (first, last))
        buffers.append(Buffer(value.name, _best_offset(taken, aligned(nbytes)), nbytes, first, last))
    return buffers


class _Neighbours:
    """Numbered live ranges by spans of WINDOW launches: values further apart never need separate memory."""

    def __init__(self) -> None:
        self._spans: defaultdict[int, list[int]] = defaultdict(list)

    def add(self, number: int, alive: Lifetime) -> None:
        for span in range(alive[0] // WINDOW, alive[1] // WINDOW + 1):
            self._spans[span].append(number)

    def of(self, alive: Lifetime) -> set[int]:
        """Return the live ranges at most WINDOW launches from this one, and some that are further."""
        spans = range(alive[0] // WINDOW - 1, alive[1] // WINDOW + 2)
        return {number for span in spans for number in self._spans.get(span, ())}


def _best_offset(taken: Sequence[tuple[int, int]], size: int) -> int:
    """Return the start of the smallest gap of at least `size` between the intervals `taken` (sorted by start)."""
    end = 0
    best: tuple[int, int] | None = None
    for low, high in taken:
        gap = low - end
        if gap >= size and (best is None or gap < best[0]):
            best = (gap, end)
        end = max(end, high)
    return best[1] if best else end
