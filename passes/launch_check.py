"""The check of a plan's launches: that the schedules imply them, that the arena holds what they use, and that edges and
branches keep every dependence between them.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce

from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.proofs import is_at_most
from tilestitch.compiler.ir.sizes import Size, ceil_div, over, surely
from tilestitch.passes.plan.launches.dependences import Accesses, Memory, segment_ranges, shared_memory, unordered
from tilestitch.passes.plan.launches.launch import Edge, Launch
from tilestitch.passes.plan.launches.own import KernelsOf
from tilestitch.runtime.launches import MAX_BLOCK, MAX_GRID

from .plan import ALIGNMENT, StitchPlan
from .plan.buffers import why_not_apart
from .plan.open_sizes import with_empty
from .schedule.launches import completed_alone, launches_of


def why_not_launches(plan: StitchPlan, graph: Graph, kernels_of: KernelsOf) -> str | None:
    """Return what is wrong with the launches of a plan whose groups are right, or with their memory, edges and
    branches; None if nothing is.

    kernels_of: the kernels of plug-ins.
    """
    return next(_problems(plan, graph, kernels_of), None)


def _problems(plan: StitchPlan, graph: Graph, kernels_of: KernelsOf) -> Iterator[str]:
    expected = launches_of(graph, plan.groups, plan.segments, plan.target, kernels_of)
    if plan.launches is not None and plan.launches != expected:
        yield f"{_first_difference(plan.launches, expected)}; put null in the place of launches and edges"
    if plan.target.is_gpu:
        yield from _too_large(expected)
    whole = completed_alone(plan, graph, kernels_of)
    yield from _in_arena(whole, expected)
    if plan.target.is_gpu:
        yield from _in_edges(whole, expected, Memory(graph, whole.buffers))
        yield from _in_lanes(whole, expected)
    elif whole.edges:
        yield f"it has {len(whole.edges)} edges, but on a CPU launches follow each other"
    elif whole.lanes:
        yield f"it has {len(whole.lanes)} branches and priorities, but on a CPU launches have none"


def _too_large(launches: Sequence[Launch]) -> Iterator[str]:
    """Yield which launches have more blocks, or larger ones, than any GPU takes. Where a grid is so only for some
    sizes, runs reject those.
    """
    for launch in launches:
        extents = zip((*launch.grid, *launch.block), (*MAX_GRID, *MAX_BLOCK), strict=True)
        if launch.threads > MAX_BLOCK[0] or any(_surely_exceeds(size, most) for size, most in extents):
            shape = f"{launch.grid} blocks of {launch.block} threads"
            yield f"group {launch.group}: no GPU launches {shape} ({launch.kind})"


def _surely_exceeds(size: Size, most: int) -> bool:
    return surely(lambda: size > most)


def _in_arena(plan: StitchPlan, launches: Sequence[Launch]) -> Iterator[str]:
    """Yield what is wrong with the arena: it is no larger than if nothing shared memory, the most that is ever needed,
    and holds the temporaries of the launches.
    """
    buffers = plan.buffers
    if buffers.is_open:
        problem = why_not_apart(buffers, plan.symbols)
        if problem is not None:
            yield problem
    sizes = [b.nbytes for b in buffers.buffers] + [t.nbytes for t in buffers.temporaries]
    empty = with_empty(plan.symbols)
    most = sum(ceil_div(over(nbytes, empty), ALIGNMENT) * ALIGNMENT for nbytes in sizes)
    if not is_at_most(buffers.arena_bytes, most):
        yield f"the arena has {buffers.arena_bytes} bytes, all that lies in it {most}"
    expected = {(launch.group, t.name, t.nbytes) for launch in launches for t in launch.temporaries}
    if {(t.group, t.name, t.nbytes) for t in buffers.temporaries} != expected:
        yield "the arena holds other temporaries than its launches have"


def _in_edges(plan: StitchPlan, launches: Sequence[Launch], memory: Memory) -> Iterator[str]:
    """Yield which edges are impossible, and which dependences they do not keep."""
    ranges = list(segment_ranges(launches, plan.segments))
    starts = [first for first, _ in ranges]
    by_segment: list[list[Edge]] = [[] for _ in ranges]
    known: set[tuple[int, int]] = set()
    for edge in plan.edges or ():
        number = bisect_right(starts, edge.before) - 1
        first, end = ranges[number] if number >= 0 else (0, 0)
        if edge.after >= end:
            yield f"the edge from launch {edge.before} to {edge.after} lies in no segment"
        if (edge.before, edge.after) in known:
            yield f"there are two edges from launch {edge.before} to {edge.after}"
        known.add((edge.before, edge.after))
        by_segment[number].append(replace(edge, before=edge.before - first, after=edge.after - first))
    for (first, end), edges in zip(ranges, by_segment, strict=True):
        accesses = [memory.accesses(launch) for launch in launches[first:end]]
        yield from _in_overlaps(launches, first, accesses, edges)
        missed = unordered(accesses, edges)
        if missed is not None:
            before, after = (launches[first + number] for number in (missed.before, missed.after))
            yield (
                f"launch {first + missed.after} ({after.kind} of {after.group}) must wait for {missed.reason}: no "
                f"edges lead from launch {first + missed.before} ({before.kind} of {before.group}) to it"
            )


def _in_overlaps(
    launches: Sequence[Launch], first: int, accesses: Sequence[Accesses], edges: Sequence[Edge]
) -> Iterator[str]:
    """Yield which launches of a segment overlap although they must not: only those whose blocks wait for tiles begin
    before others have ended, and they access no other memory of those.
    """
    for edge in edges:
        tied = edge.after - edge.before in accesses[edge.after].overlaps
        if edge.kind != "full" and not tied:
            before, after = (launches[first + number] for number in (edge.before, edge.after))
            yield (
                f"the edge from launch {first + edge.before} ({before.kind} of {before.group}) to "
                f"{first + edge.after} ({after.kind} of {after.group}) is {edge.kind}, but no block of the second "
                "waits for tiles of the first"
            )
    shared = shared_memory(accesses)
    if shared is not None:
        before, after = (launches[first + number] for number in shared[:2])
        yield (
            f"launches {first + shared[0]} ({before.kind} of {before.group}) and {first + shared[1]} ({after.kind} "
            f"of {after.group}) may run side by side, and the memory of %{shared[2]} is used by both"
        )


def _in_lanes(plan: StitchPlan, launches: Sequence[Launch]) -> Iterator[str]:
    """Yield which launches do not wait, perhaps indirectly, for their predecessor in the branch."""
    lanes = plan.lanes or ()
    if len(lanes) != len(launches):
        yield f"it has {len(lanes)} branches and priorities for {len(launches)} launches; put null in their place"
    for number, lane in enumerate(lanes):
        if lane.branch >= len(lanes):
            yield (
                f"launch {number} is in branch {lane.branch}, of {len(lanes)} launches; put null in the place of lanes"
            )
    ancestors = _ancestors(len(launches), plan.edges or ())
    for first, end in segment_ranges(launches, plan.segments):
        last: dict[int, int] = {}
        for number in range(first, end):
            branch = lanes[number].branch
            if branch in last and not ancestors[number] >> last[branch] & 1:
                yield (
                    f"launches {last[branch]} and {number} are both in branch {branch}, but the later one does "
                    "not wait for the other; put null in the place of lanes"
                )
            last[branch] = number


def _ancestors(count: int, edges: Sequence[Edge]) -> list[int]:
    """Return for each launch the set, as bits, of those that end before it starts."""
    before: dict[int, list[int]] = {}
    for edge in edges:
        before.setdefault(edge.after, []).append(edge.before)
    result: list[int] = []
    for number in range(count):
        result.append(reduce(int.__or__, (result[other] | 1 << other for other in before.get(number, ())), 0))
    return result


def _first_difference(given: tuple[Launch, ...], expected: tuple[Launch, ...]) -> str:
    for number, (mine, implied) in enumerate(zip(given, expected)):
        if mine != implied:
            fields = mine.to_json(), implied.to_json()
            names = [k for k in dict.fromkeys((*fields[0], *fields[1])) if fields[0].get(k) != fields[1].get(k)]
            differences = ", ".join(f"{k} is {fields[0].get(k)}, its schedule gives {fields[1].get(k)}" for k in names)
            return f"launch {number} of group {implied.group}: {differences}"
    return f"there are {len(given)} launches, the schedules give {len(expected)}"
