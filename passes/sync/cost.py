"""What kernels take whose tiles wait for tiles, beside what they take one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from tilestitch.compiler.ir import Node
from tilestitch.cost_model import constants as c
from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.cost_model.devices import Device
from tilestitch.cost_model.facts import KernelFacts, Launch
from tilestitch.cost_model.laws.waves import waves_apart, waves_together
from tilestitch.cost_model.on_gpu import resident_blocks
from tilestitch.cost_model.protocol import latency_us
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.schedules import LaunchesSchedule, Schedule, TicketSchedule
from tilestitch.passes.plan.sync.edges import TileEdge

from .check import Parts
from .policies import KernelSync, edge_of
from .waves import Span, beside_spans, drawn_spans, drawn_us, last_of

TICKET_REGISTERS = 16
"""Of a thread, for the ticket, the run, and what the compiler keeps of other parts."""


def facts_of_tickets(
    nodes: Mapping[str, Node], group: Group, kernels: Sequence[KernelFacts], device: Device
) -> KernelFacts:
    """Return the facts of a group tied by tickets, given those of its parts."""
    schedule, parts = group.schedule, Parts.of(nodes, group.parts)
    if not isinstance(schedule, TicketSchedule) or isinstance(parts, str):
        raise ValueError(f"group {group.name} is no launch whose blocks draw tiles: {parts}; plan the graph again")
    return drawn_facts(parts, schedule.edges, schedule.blocks, kernels, device, queues=schedule.queues)


def drawn_facts(
    parts: Parts, edges: Sequence[TileEdge], blocks: int, kernels: Sequence[KernelFacts], device: Device, *,
    queues: bool = False,
) -> KernelFacts:  # fmt: skip
    """Return the facts of parts, which are `kernels` as launches of their own, in one launch of so many blocks."""
    steps = launches_of(parts, kernels)
    launch = one_launch(steps, blocks)
    apart_us = latency_us(ANALYTICAL, KernelFacts((launch,)), device) - c.GPU_LAUNCH_US
    tiles_us = tile_times_us(parts, crowded(steps, launch, device), device)
    held = min(blocks, slots(launch, device))
    together_us = drawn_us(parts, edges, tiles_us, held, c.GPU_HAND_OVER_US, queues=queues)
    return KernelFacts((one_launch(steps, blocks, together_us / apart_us if apart_us > 0 else 1.0),))


def facts_of_launches(
    nodes: Mapping[str, Node], group: Group, kernels: Sequence[KernelFacts], device: Device
) -> KernelFacts:
    """Return the facts of a group whose launches overlap, given those of its parts."""
    schedule, parts = group.schedule, Parts.of(nodes, group.parts)
    if not isinstance(schedule, LaunchesSchedule) or isinstance(parts, str):
        raise ValueError(f"group {group.name} has no launches that overlap: {parts}; plan the graph again")
    return beside_facts(parts, schedule.edges, kernels, device)


def beside_facts(
    parts: Parts, edges: Sequence[TileEdge], kernels: Sequence[KernelFacts], device: Device
) -> KernelFacts:
    """Return the facts of parts in launches of their own that overlap."""
    steps = launches_of(parts, kernels)
    apart_us = sum(latency_us(ANALYTICAL, step, device) - c.GPU_LAUNCH_US for step in steps)
    together_us = last_of(_beside(parts, edges, steps, device))
    pace = together_us / apart_us if apart_us > 0 else 1.0
    before = tuple(own for kernel in kernels for own in kernel.sequence[:-1])
    first, *others = (step.sequence[-1] for step in steps)
    return KernelFacts(
        (*before, replace(first, pace=pace), *(replace(launch, tie="beside", pace=pace) for launch in others))
    )


def _beside(parts: Parts, edges: Sequence[TileEdge], steps: Sequence[KernelFacts], device: Device) -> list[Span]:
    tiles_us = tile_times_us(parts, steps, device)
    resident = [slots(step.sequence[-1], device) // device.sm_count for step in steps]
    return beside_spans(parts, edges, tiles_us, resident, device.sm_count, c.GPU_HAND_OVER_US, c.GPU_LAUNCH_US)


def timeline(
    nodes: Mapping[str, Node], group: Group, kernels: Sequence[KernelFacts], device: Device
) -> tuple[list[Span], list[Span]]:
    """When the tiles of each launch of a group begin and end whose tiles wait for tiles: tied, and one launch after the
    other. In microseconds after the first has begun.
    """
    schedule, parts = group.schedule, Parts.of(nodes, group.parts)
    assert not isinstance(parts, str), parts
    steps = launches_of(parts, kernels)
    times_us = [max(0.0, latency_us(ANALYTICAL, step, device) - c.GPU_LAUNCH_US) for step in steps]
    apart: list[Span] = []
    for own_us in times_us:
        start_us = apart[-1][1] + c.GPU_LAUNCH_US if apart else 0.0
        apart.append((start_us, start_us + own_us))
    if isinstance(schedule, LaunchesSchedule):
        return _beside(parts, schedule.edges, steps, device), apart
    assert isinstance(schedule, TicketSchedule)
    launch = one_launch(steps, schedule.blocks)
    resident = min(schedule.blocks, slots(launch, device))
    tiles_us = tile_times_us(parts, crowded(steps, launch, device), device)
    spans = drawn_spans(parts, schedule.edges, tiles_us, resident, c.GPU_HAND_OVER_US, queues=schedule.queues)
    return spans, apart


@dataclass(frozen=True)
class Gain:
    """Of an edge, for its two launches alone: their waves one after the other and together, and the microseconds saved
    against waiting for the whole of the first.
    """

    waves: int
    waves_together: float
    saved_us: float


def gains(nodes: Mapping[str, Node], group: Group, kernels: Sequence[KernelFacts], device: Device) -> list[Gain]:
    """Return what each edge of a group brings whose tiles wait for tiles, given the facts of its parts."""
    schedule, parts = group.schedule, Parts.of(nodes, group.parts)
    assert isinstance(schedule, TicketSchedule | LaunchesSchedule) and not isinstance(parts, str), parts
    steps = launches_of(parts, kernels)
    found = []
    for edge in schedule.edges:
        pair = edge.producer, edge.consumer
        two, own = parts.only(*pair), [steps[number] for number in pair]
        tiles, held = [r.grid.blocks for r in two.relations], [slots(step.sequence[-1], device) for step in own]
        if isinstance(schedule, TicketSchedule):
            launch = one_launch(steps, schedule.blocks)
            held, own = [min(schedule.blocks, slots(launch, device))] * 2, crowded(own, launch, device)
        whole = edge_of(two.pair(0, 1), KernelSync())
        assert whole is not None
        each = [last_of(_pair(two, one, own, held[0], schedule, device)) for one in (whole, edge)]
        found.append(Gain(waves_apart(tiles, held), waves_together(tiles, min(held)), each[0] - each[1]))
    return found


def _pair(
    two: Parts, edge: TileEdge, steps: Sequence[KernelFacts], held: int, schedule: Schedule, device: Device
) -> list[Span]:
    alone = [replace(edge, producer=0, consumer=1)]
    if isinstance(schedule, LaunchesSchedule):
        return _beside(two, alone, steps, device)
    return drawn_spans(two, alone, tile_times_us(two, steps, device), held, c.GPU_HAND_OVER_US)


def launches_of(parts: Parts, kernels: Sequence[KernelFacts]) -> list[KernelFacts]:
    """Return each launch of the parts as a kernel; those that only look at indices are left out."""
    counts: dict[str, int] = {}
    for group in parts.groups:
        counts[group.name] = counts.get(group.name, 0) + 1
    return [
        KernelFacts((launch,))
        for kernel, count in zip(kernels, counts.values(), strict=True) for launch in kernel.sequence[-count:]
    ]  # fmt: skip


def one_launch(steps: Sequence[KernelFacts], blocks: int = 0, pace: float = 1.0) -> Launch:
    """Return the launches as one."""
    return Launch(tuple(step.sequence[-1].stages[0] for step in steps), "tickets", blocks, pace)


def crowded(steps: Sequence[KernelFacts], launch: Launch, device: Device) -> list[KernelFacts]:
    """Return the launches with as few blocks on a multiprocessor as `launch` has, which is one of all of them: a tile
    is faster where it shares its multiprocessor with fewer, by as much as the units are left to it.
    """
    held = max(1, resident_blocks(launch, device))
    return [KernelFacts((replace(step.sequence[-1], resident=held),)) for step in steps]


def roomy_blocks(steps: Sequence[KernelFacts], device: Device) -> int:
    """Return the blocks of launches as one that a multiprocessor holds if a thread has some registers more than the
    largest takes alone. Without a bound a compiler keeps what it has computed of one part while others run, and takes
    all there are.
    """
    launch = one_launch(steps)
    wider = tuple(
        tuple(replace(part, registers=part.registers + TICKET_REGISTERS) for part in stage) for stage in launch.stages
    )
    return max(1, resident_blocks(replace(launch, stages=wider), device))


def slots(launch: Launch, device: Device) -> int:
    """Return the blocks that the device holds at a time."""
    return device.sm_count * max(1, resident_blocks(launch, device))


def tile_times_us(parts: Parts, steps: Sequence[KernelFacts], device: Device) -> list[float]:
    """Return the microseconds of a tile of each launch, as if all of a round of blocks took as long."""
    found = []
    for relation, kernel in zip(parts.relations, steps, strict=True):
        launch = kernel.sequence[-1]
        rounds = ceil(max(1, launch.tasks, relation.grid.blocks) / slots(launch, device))
        found.append(max(0.0, latency_us(ANALYTICAL, kernel, device) - c.GPU_LAUNCH_US) / rounds)
    return found
