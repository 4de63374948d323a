"""Predicted times of kernels with tile-level waits, relative to sequential execution."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from tilestitch.compiler.ir import Node
from tilestitch.cost_model import constants as c
from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.cost_model.devices import Device
from tilestitch.cost_model.facts import KernelFacts, Launch
from tilestitch.cost_model.laws.compute import waves_apart, waves_together
from tilestitch.cost_model.on_gpu import resident_blocks
from tilestitch.cost_model.protocol import latency_us
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.schedules import LaunchesSchedule, Schedule, TicketSchedule
from tilestitch.passes.plan.sync.edges import TileEdge

from .check import Parts
from .policies import KernelSync, edge_of
from .waves import Span, beside_spans, drawn_spans, drawn_us, last_of

TICKET_REGISTERS = 16
"""Additional registers per thread, for the ticket, the run, and what the compiler keeps of other parts."""


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
    """Return the facts of parts, given as separate `kernels`, fused into one launch of `blocks` blocks."""
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
    """Return the facts of a group of overlapping launches, given those of its parts."""
    schedule, parts = group.schedule, Parts.of(nodes, group.parts)
    if not isinstance(schedule, LaunchesSchedule) or isinstance(parts, str):
        raise ValueError(f"group {group.name} has no launches that overlap: {parts}; plan the graph again")
    return beside_facts(parts, schedule.edges, kernels, device)


def beside_facts(
    parts: Parts, edges: Sequence[TileEdge], kernels: Sequence[KernelFacts], device: Device
) -> KernelFacts:
    """Return the facts of parts in separate, overlapping launches."""
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
    """Return when the tiles of each launch begin and end, with tile-level waits and with sequential launches. In
    microseconds after the first begins.
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
    """The gain of an edge, for its two launches alone: their waves in sequence and together, and the microseconds saved
    compared with waiting for the whole first launch.
    """

    waves: int
    waves_together: float
    saved_us: float


def gains(nodes: Mapping[str, Node], group: Group, kernels: Sequence[KernelFacts], device: Device) -> list[Gain]:
    """Return the gain of each edge of a group with tile-level waits, given the facts of its parts."""
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
    """Return each launch of the parts as a kernel, without index checks."""
    counts: dict[str, int] = {}
    for group in parts.groups:
        counts[group.name] = counts.get(group.name, 0) + 1
    return [
        KernelFacts((launch,))
        for kernel, count in zip(kernels, counts.values(), strict=True) for launch in kernel.sequence[-count:]
    ]  # fmt: skip


def one_launch(steps: Sequence[KernelFacts], blocks: int = 0, pace: float = 1.0) -> Launch:
    """Return the launches fused into one."""
    return Launch(tuple(step.sequence[-1].stages[0] for step in steps), "tickets", blocks, pace)


def crowded(steps: Sequence[KernelFacts], launch: Launch, device: Device) -> list[KernelFacts]:
    """Return the launches with no more resident blocks per multiprocessor than `launch`, their fusion: a tile is faster
    where fewer share the multiprocessor, as it gets a larger share of the units.
    """
    held = max(1, resident_blocks(launch, device))
    return [KernelFacts((replace(step.sequence[-1], resident=held),)) for step in steps]


def roomy_blocks(steps: Sequence[KernelFacts], device: Device) -> int:
    """Return the blocks of the fused launch that fit a multiprocessor if a thread has some registers more than the
    largest part alone. Without a bound, a compiler keeps results of one part while others run, and uses all registers.
    """
    launch = one_launch(steps)
    wider = tuple(
        tuple(replace(part, registers=part.registers + TICKET_REGISTERS) for part in stage) for stage in launch.stages
    )
    return max(1, resident_blocks(replace(launch, stages=wider), device))


def slots(launch: Launch, device: Device) -> int:
    """Return how many blocks the device holds at a time."""
    return device.sm_count * max(1, resident_blocks(launch, device))


def tile_times_us(parts: Parts, steps: Sequence[KernelFacts], device: Device) -> list[float]:
    """Return the microseconds per tile of each launch, as if all blocks of a wave took equally long."""
    found = []
    for relation, kernel in zip(parts.relations, steps, strict=True):
        launch = kernel.sequence[-1]
        rounds = ceil(max(1, launch.tasks, relation.grid.blocks) / slots(launch, device))
        found.append(max(0.0, latency_us(ANALYTICAL, kernel, device) - c.GPU_LAUNCH_US) / rounds)
    return found
