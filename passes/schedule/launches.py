"""The launches of a plan's groups, and the memory of their temporaries."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilestitch.compiler.ir import Graph, Node
from tilestitch.compiler.ir.sizes import largest
from tilestitch.passes.plan import BufferPlan, Group, Segment, StitchPlan
from tilestitch.passes.plan.buffers import TemporaryBuffer, aligned
from tilestitch.passes.plan.launches.cpu import cpu_launches
from tilestitch.passes.plan.launches.cuda.group import cuda_launches
from tilestitch.passes.plan.launches.dependences import edges_of, segment_ranges
from tilestitch.passes.plan.launches.launch import Edge, Lane, Launch
from tilestitch.passes.plan.launches.own import KernelsOf, no_kernels, own_launches
from tilestitch.passes.plan.target import TargetInfo

from .cuda.gpu import Gpu

TEMPORARY_BYTES = 64 << 20
"""Temporary memory beyond which groups that could run concurrently share it, and so wait for each other."""


def completed(plan: StitchPlan, graph: Graph, kernels_of: KernelsOf = no_kernels) -> StitchPlan:
    """Return the plan, and those of nested graphs, with launches and edges added where they are missing. kernels_of:
    the kernels of plug-ins.
    """
    bodies = {key: completed(plan.bodies[key], body, kernels_of) for key, body in nested_graphs(graph).items()}
    return replace(completed_alone(plan, graph, kernels_of), bodies=bodies)


def completed_alone(plan: StitchPlan, graph: Graph, kernels_of: KernelsOf = no_kernels) -> StitchPlan:
    """Return the plan as by `completed`, leaving those of nested graphs unchanged."""
    launches, buffers = plan.launches, plan.buffers
    if launches is None:
        launches = launches_of(graph, plan.groups, plan.segments, plan.target, kernels_of)
        buffers = place_temporaries(launches, buffers, concurrent=plan.target.is_gpu)
    edges = plan.edges
    if edges is None:
        edges = edges_of(graph, launches, plan.segments, buffers) if plan.target.is_gpu else ()
    lanes = plan.lanes if plan.launches is not None else None
    if lanes is None:
        lanes = lanes_of(launches, plan.segments, edges) if plan.target.is_gpu else ()
    return replace(plan, launches=launches, edges=edges, lanes=lanes, buffers=buffers)


def lanes_of(launches: Sequence[Launch], segments: Sequence[Segment], edges: Sequence[Edge]) -> tuple[Lane, ...]:
    """Return the branches that follow from the edges, numbered from 0 in each segment; without priorities."""
    found: list[Lane] = []
    for first, end in segment_ranges(launches, segments):
        inside = ((e.before - first, e.after - first) for e in edges if first <= e.before < end)
        found += map(Lane, branches(end - first, inside))
    return tuple(found)


def with_priorities(plan: StitchPlan, priorities: Iterable[int]) -> StitchPlan:
    """Return the plan with these priorities of its launches."""
    pairs = zip(plan.lanes or (), priorities, strict=True)
    return replace(plan, lanes=tuple(replace(lane, priority=priority) for lane, priority in pairs))


def edges_by_hand(plan: StitchPlan, graph: Graph) -> list[Edge]:
    """Return the edges of a plan that its launches do not require."""
    if not plan.edges or plan.launches is None:
        return []
    needed = {(e.before, e.after) for e in edges_of(graph, plan.launches, plan.segments, plan.buffers)}
    return [edge for edge in plan.edges if (edge.before, edge.after) not in needed]


def with_edges(plan: StitchPlan, added: Iterable[Edge]) -> StitchPlan:
    """Return the plan with additional edges between the same launches."""
    edges = {(e.after, e.before): e for e in (*added, *(plan.edges or ()))}
    return replace(plan, edges=tuple(edges[key] for key in sorted(edges)))


def in_order_of(plan: StitchPlan, before: StitchPlan, graph: Graph) -> StitchPlan:
    """Return a plan of the same groups in the same order with what was chosen for `before`: the priority of each group,
    and the edges that its launches do not require. Groups may have more or fewer launches.
    """
    assert plan.launches is not None and before.launches is not None and before.lanes is not None
    last = {launch.group: number for number, launch in enumerate(plan.launches)}
    first = {launch.group: number for number, launch in reversed([*enumerate(plan.launches)])}
    priorities: dict[str, int] = {}
    for launch, lane in zip(before.launches, before.lanes, strict=True):
        priorities[launch.group] = max(lane.priority, priorities.get(launch.group, 0))
    groups = [launch.group for launch in before.launches]
    added = [
        replace(edge, before=last[groups[edge.before]], after=first[groups[edge.after]])
        for edge in edges_by_hand(before, graph) if groups[edge.before] != groups[edge.after]
    ]  # fmt: skip
    return with_priorities(with_edges(plan, added), [priorities[launch.group] for launch in plan.launches])


def nested_graphs(graph: Graph) -> dict[str, Graph]:
    """Return the graphs inside control nodes by `node.attribute`, the key of `StitchPlan.bodies`."""
    return {f"{n.name}.{k}": a for n in graph.nodes for k, a in n.attrs.items() if isinstance(a, Graph)}


def launches_of(
    graph: Graph, groups: Iterable[Group], segments: Iterable[Segment], target: TargetInfo, kernels_of: KernelsOf
) -> tuple[Launch, ...]:
    """Return the launches of all groups in the order of the segments."""
    nodes = {node.name: node for node in graph.nodes}
    by_name = {group.name: group for group in groups}
    ordered = [by_name[name] for segment in segments if segment.native for name in segment.groups]
    return tuple(launch for group in ordered for launch in _of_group(graph, nodes, group, target, kernels_of))


def _of_group(
    graph: Graph, nodes: Mapping[str, Node], group: Group, target: TargetInfo, kernels_of: KernelsOf
) -> tuple[Launch, ...]:
    own = kernels_of(graph, group)
    if own is not None:
        return own_launches(nodes, group, own, on_gpu=target.is_gpu)
    if target.is_gpu:
        return cuda_launches(nodes, group, Gpu.of(target).multiprocessors)
    return cpu_launches(nodes, group)


# -- temporary memory --------------------------------------------------------------------------------------------------


def place_temporaries(launches: Sequence[Launch], buffers: BufferPlan, *, concurrent: bool) -> BufferPlan:
    """Return the buffers with room for the launches' temporaries after them. Temporaries of different groups share
    memory where groups never run concurrently, and where they would take more than TEMPORARY_BYTES.
    """
    if not (buffers.temporaries or any(launch.temporaries for launch in launches)):
        return buffers
    ends = (aligned(b.offset_bytes + b.nbytes) for b in buffers.buffers)
    base = aligned(buffers.arena_bytes) if buffers.is_open else max(ends, default=0)
    end = most = base
    placed: dict[tuple[str, str], TemporaryBuffer] = {}
    group = ""
    for launch in launches:
        for temporary in launch.temporaries:
            if (launch.group, temporary.name) in placed:
                continue
            if launch.group != group and not (concurrent and end - base < TEMPORARY_BYTES):
                end = base
            group = launch.group
            placed[group, temporary.name] = TemporaryBuffer(group, temporary.name, end, temporary.nbytes)
            end += aligned(temporary.nbytes)
            most = largest(most, end)
    return replace(buffers, arena_bytes=most, temporaries=tuple(placed.values()))


def branches(count: int, edges: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return the branch of each of `count` launches, numbered from 0. Each launch comes after its predecessor in the
    branch.

    edges: pairs (before, after).
    """
    waits_for: list[list[int]] = [[] for _ in range(count)]
    for before, after in edges:
        waits_for[after].append(before)
    earlier: list[int] = []  # for each launch, the set (as bits) of those that end before it starts
    ends: list[int] = []  # the last launch of each branch
    last = 0  # these, as bits
    found: list[int] = []
    for number in range(count):
        above = 0
        for other in waits_for[number]:
            above |= earlier[other] | 1 << other
        earlier.append(above)
        free = above & last
        if free & (free - 1):
            branch = next(branch for branch, end in enumerate(ends) if free >> end & 1)
        else:
            branch = found[free.bit_length() - 1] if free else len(ends)
        last |= 1 << number
        if branch < len(ends):
            last ^= 1 << ends[branch]
        ends[branch : branch + 1] = [number]
        found.append(branch)
    return tuple(found)
