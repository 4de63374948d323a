"""Arrangement of a GPU plan: the order, branches and priorities of launches with the least predicted makespan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.devices import Device
from tilestitch.cost_model.laws.makespan import Work, makespan_us
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.cost_model.side_by_side import works_of
from tilestitch.passes.errors import PassError
from tilestitch.passes.plan import BufferPlan, Segment, StitchPlan, WhyNot
from tilestitch.passes.plan.buffers import aligned
from tilestitch.passes.plan.launches.dependences import edges_of, segment_ranges
from tilestitch.passes.plan.launches.launch import Edge, Launch
from tilestitch.passes.schedule.device import device_of
from tilestitch.passes.schedule.facts import group_facts, nodes_by_name
from tilestitch.passes.schedule.launches import lanes_of, place_temporaries, with_edges, with_priorities
from tilestitch.passes.schedule.makespan import NOTHING, launch_works, spans_of
from tilestitch.passes.schedule.memory import WINDOW, plan_buffers

from .graph import LaunchGraph
from .search import LEAST_GAIN, best_order

WINDOWS = (WINDOW, 16, 8, 4, 2, 0)
"""Candidate windows: launches further apart in the order may share memory, and then wait for each other."""
HELD = "its turn"
"""The reason of an edge that no dependence requires: less concurrency lets all finish sooner."""
Key = tuple[str, int]
"""A launch, by its group and its number within the group."""


@dataclass(frozen=True)
class Arrangement:
    """Segments with ordered groups, priorities of launches (default: 0), and additional edges."""

    segments: tuple[Segment, ...]
    levels: Mapping[Key, int] = field(default_factory=dict)
    held: tuple[tuple[Key, Key], ...] = ()


def arranged(plan: StitchPlan, graph: Graph, model: LatencyModel, most_bytes: int | None = None) -> StitchPlan:
    """Return the plan with the order of groups in each segment, and the priorities of launches, that have the least
    predicted makespan. The given order is kept if no other is predicted to be faster.

    most_bytes: how much larger than for sequential launches the arena may be, for the sake of concurrency. Raises
    PassError if it is negative.
    """
    if not plan.target.is_gpu or not plan.launches:
        return plan
    if most_bytes is not None and most_bytes < 0:
        raise PassError(f"branch_bytes is {most_bytes}; give a number of bytes, 0 or more, or None")
    works = works_of_plan(plan, graph, model)
    given, ours = Arrangement(plan.segments), _best_arrangement(plan, graph, works)
    options: Iterator[StitchPlan]
    if most_bytes is None:
        options = iter((plan, placed(plan, graph, ours)))
    else:
        most_bytes += one_at_a_time_bytes(plan, graph)
        windows = [(order, _widest(plan, graph, order, most_bytes)) for order in (given, ours)]
        options = (placed(plan, graph, order, window) for order, window in windows if window is not None)
    best = next(options)
    best_us = makespan_us(spans_of(best, works))
    for option in options:
        option_us = makespan_us(spans_of(option, works))
        if option_us < best_us * (1 - LEAST_GAIN):
            best, best_us = option, option_us
    return best


def sooner(plan: StitchPlan, other: StitchPlan, graph: Graph, model: LatencyModel) -> StitchPlan:
    """Return the plan whose last launch is predicted to end sooner, the first in case of a tie; if it is the other,
    with refusals for those parts of the first that it has in another form.
    """
    us, other_us = (makespan_us(spans_of(one, works_of_plan(one, graph, model))) for one in (plan, other))
    if other_us >= us * (1 - LEAST_GAIN):
        return plan
    left = {group.name for group in other.groups}
    numbers = {"packed_us": round(us, 3), "apart_us": round(other_us, 3)}
    apart = [
        WhyNot(group.name, "schedule.beside", "its parts end sooner as launches side by side", numbers)
        for group in plan.groups if group.name not in left
    ]  # fmt: skip
    return replace(other, refusals=(*other.refusals, *apart))


def one_at_a_time_bytes(plan: StitchPlan, graph: Graph) -> int:
    """Return the arena size for the same kernels in the same order, run strictly in sequence."""
    return _buffers(plan, graph, plan.segments, 0)[0].arena_bytes


def _widest(plan: StitchPlan, graph: Graph, order: Arrangement, most_bytes: int) -> int | None:
    """Return the widest window for which the arena is within the limit, by bisection, since narrower ones need no more
    memory; None if it is not even with sequential launches.
    """
    first, last = 0, len(WINDOWS)
    while first < last:
        middle = (first + last) // 2
        fits = _buffers(plan, graph, order.segments, WINDOWS[middle])[0].arena_bytes <= most_bytes
        first, last = (first, middle) if fits else (middle + 1, last)
    return WINDOWS[first] if first < len(WINDOWS) else None


def works_of_plan(plan: StitchPlan, graph: Graph, model: LatencyModel) -> dict[str, tuple[Work, ...]]:
    """Return the work of each group's launches, for a GPU plan."""
    gpu = device_of(plan.target)
    assert isinstance(gpu, Device), gpu
    nodes = nodes_by_name(graph)
    facts = {group.name: group_facts(nodes, group, plan.target, model) for group in plan.groups}
    found = model.predict(list(facts.values()), gpu)
    return works_of(facts, {name: one.latency_us for name, one in zip(facts, found, strict=True)}, gpu)


# -- order -------------------------------------------------------------------------------------------------------------


def _best_arrangement(plan: StitchPlan, graph: Graph, works: Mapping[str, tuple[Work, ...]]) -> Arrangement:
    """Return the best arrangement by data flow alone."""
    launches = plan.launches or ()
    native = iter(segment_ranges(launches, plan.segments))
    graphs = iter(graphs_by_data(plan, graph, works))
    segments: list[Segment] = []
    levels: dict[Key, int] = {}
    held: list[tuple[Key, Key]] = []
    for segment in plan.segments:
        if not segment.native:
            segments.append(segment)
            continue
        first, end = next(native)
        mine, whole = launches[first:end], next(graphs)
        chosen = best_order(whole)
        keys = list(_keys(mine))
        levels.update(zip(keys, chosen.levels, strict=True))
        held += ((keys[before], keys[after]) for before, after in chosen.held)
        segments.append(Segment(True, _groups_in_order(segment, mine, whole.edges, chosen.order)))
    return Arrangement(tuple(segments), levels, tuple(held))


def graphs_by_data(plan: StitchPlan, graph: Graph, works: Mapping[str, tuple[Work, ...]]) -> Iterator[LaunchGraph]:
    """Yield the launch graph of each native segment, without waits due to memory reuse."""
    launches = plan.launches or ()
    edges = edges_of(graph, launches, plan.segments, _apart(plan.buffers))
    needs = launch_works(launches, works)
    for first, end in segment_ranges(launches, plan.segments):
        inside = tuple((e.before - first, e.after - first) for e in edges if first <= e.before < end)
        yield LaunchGraph(tuple(needs[first:end]), inside)


def _keys(launches: tuple[Launch, ...]) -> Iterator[Key]:
    counts: dict[str, int] = {}
    for launch in launches:
        number = counts.get(launch.group, 0)
        counts[launch.group] = number + 1
        yield launch.group, number


def _groups_in_order(
    segment: Segment, launches: tuple[Launch, ...], edges: tuple[tuple[int, int], ...], order: tuple[int, ...]
) -> tuple[str, ...]:
    """Return the groups of a segment in the order of their first launches, as far as data flow allows."""
    number = {name: at for at, name in enumerate(segment.groups)}
    group = [number[launch.group] for launch in launches]
    between = {(group[before], group[after]) for before, after in edges}
    place: dict[int, int] = {}
    for at, launch in enumerate(order):
        place.setdefault(group[launch], at)
    whole = LaunchGraph((NOTHING,) * len(number), tuple(sorted(pair for pair in between if pair[0] != pair[1])))
    return tuple(segment.groups[at] for at in whole.ordered(lambda at: place.get(at, -1)))


def _apart(buffers: BufferPlan) -> BufferPlan:
    """Return the same values and temporaries without any memory sharing."""
    end = 0
    moved, temporaries = [], []
    for buffer in buffers.buffers:
        moved.append(replace(buffer, offset_bytes=end))
        end += aligned(buffer.nbytes)
    for temporary in buffers.temporaries:
        temporaries.append(replace(temporary, offset_bytes=end))
        end += aligned(temporary.nbytes)
    return replace(buffers, arena_bytes=end, buffers=tuple(moved), temporaries=tuple(temporaries))


# -- memory ------------------------------------------------------------------------------------------------------------


def placed(plan: StitchPlan, graph: Graph, arrangement: Arrangement, window: int = WINDOW) -> StitchPlan:
    """Return the plan in another order, with matching memory, edges, branches and priorities."""
    segments = arrangement.segments
    buffers, launches = _buffers(plan, graph, segments, window)
    edges = edges_of(graph, launches, segments, buffers)
    number = {key: at for at, key in enumerate(_keys(launches))}
    pairs = ((number[before], number[after]) for before, after in arrangement.held)
    held = [Edge(before, after, reason=HELD) for before, after in pairs if before < after]
    moved = replace(plan, segments=segments, buffers=buffers, launches=launches, edges=edges, lanes=None)
    moved = with_edges(moved, held) if held else moved
    moved = replace(moved, lanes=lanes_of(launches, segments, moved.edges or ()))
    return with_priorities(moved, [arrangement.levels.get(key, 0) for key in number])


def _buffers(
    plan: StitchPlan, graph: Graph, segments: tuple[Segment, ...], window: int
) -> tuple[BufferPlan, tuple[Launch, ...]]:
    """Return the memory plan for an order, and the launches in it."""
    by_group: dict[str, list[Launch]] = {}
    for launch in plan.launches or ():
        by_group.setdefault(launch.group, []).append(launch)
    launches = tuple(launch for segment in segments for name in segment.groups for launch in by_group.get(name, ()))
    aliases, places = plan.buffers.aliases, plan.buffers.places
    values = plan_buffers(graph, plan.groups, plan.host_groups, segments, aliases, places, window=window)
    return place_temporaries(launches, values, concurrent=window > 0), launches
