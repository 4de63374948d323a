"""Launch order: groups in dependence order, with few switches between native and host steps."""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tilestitch.passes.errors import PlanError
from tilestitch.passes.plan import Group, HostGroup, Segment


def written(values: Iterable[str], aliases: Mapping[str, str], wholes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the values written by groups that contain the bytes of `values`."""
    for value in values:
        root = aliases.get(value, value)
        yield from wholes.get(root, (root,))


def segments_of(
    groups: Sequence[Group], host_groups: Sequence[HostGroup], aliases: Mapping[str, str], position: Mapping[str, int],
    wholes: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Segment, ...]:  # fmt: skip
    """Order all groups into segments. `position` gives each group's position in the original order, which is kept where
    dependences allow. `wholes`: the parts of values that are written in parts.

    Raises PlanError if the groups depend on each other in a cycle.
    """
    first = _greedy(groups, host_groups, aliases, position, wholes or {}, start_native=True)
    second = _greedy(groups, host_groups, aliases, position, wholes or {}, start_native=False)
    return min(first, second, key=len)


def _greedy(
    groups: Sequence[Group], host_groups: Sequence[HostGroup], aliases: Mapping[str, str], position: Mapping[str, int],
    wholes: Mapping[str, Sequence[str]], *, start_native: bool,
) -> tuple[Segment, ...]:  # fmt: skip
    native = {g.name for g in groups}
    waits = _waits([*groups, *host_groups], aliases, wholes)
    readers: dict[str, list[str]] = {name: [] for name in waits}
    for name, needed in waits.items():
        for other in sorted(needed):
            readers[other].append(name)
    ready: dict[bool, list[tuple[int, str]]] = {True: [], False: []}
    for name, needed in waits.items():
        if not needed:
            heapq.heappush(ready[name in native], (position[name], name))
    segments: list[Segment] = []
    side = start_native
    while ready[True] or ready[False]:
        if not ready[side]:
            side = not side
        run: list[str] = []
        while ready[side]:
            _, name = heapq.heappop(ready[side])
            run.append(name)
            for reader in readers[name]:
                waits[reader].discard(name)
                if not waits[reader]:
                    heapq.heappush(ready[reader in native], (position[reader], reader))
        segments.append(Segment(side, tuple(run)))
    left = [name for name, needed in waits.items() if needed]
    if left:
        raise PlanError(f"groups wait for each other in a cycle: {', '.join(left)}")
    return tuple(segments)


def _waits(
    groups: Sequence[Group | HostGroup], aliases: Mapping[str, str], wholes: Mapping[str, Sequence[str]]
) -> dict[str, set[str]]:
    """Return, for each group, the groups that store what it reads."""
    producer = {v: g.name for g in groups for v in g.outputs}
    read = {g.name: written(g.inputs, aliases, wholes) for g in groups}
    return {name: {producer[v] for v in values if v in producer} - {name} for name, values in read.items()}
