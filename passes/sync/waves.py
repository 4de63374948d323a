"""Tile-by-tile simulations of when waiting tiles finish, in one launch or in overlapping launches."""

import heapq
from collections.abc import Sequence
from math import inf

import numpy as np

from tilestitch.passes.plan.sync.edges import TileEdge

from .check import Parts

ROUNDING = 1e-6
"""Tolerance for sums of shares of a multiprocessor."""


Span = tuple[float, float]
"""Begin and end, in microseconds."""


def last_of(spans: Sequence[Span]) -> float:
    """Return when the last span ends."""
    return max((end for _, end in spans), default=0.0)


def drawn_us(
    parts: Parts, edges: Sequence[TileEdge], tile_us: Sequence[float], slots: int, hand_over_us: float, *,
    queues: bool = False,
) -> float:  # fmt: skip
    """Return the microseconds until all tiles are done, as by `drawn_spans`."""
    return last_of(drawn_spans(parts, edges, tile_us, slots, hand_over_us, queues=queues))


def drawn_spans(
    parts: Parts, edges: Sequence[TileEdge], tile_us: Sequence[float], slots: int, hand_over_us: float, *,
    queues: bool = False,
) -> list[Span]:  # fmt: skip
    """Return when the tiles of each part begin and end, in microseconds, with `slots` computed at a time.

    tile_us: duration of a tile, per part. hand_over_us: from a post to the tiles that wait for it. queues: a block
    takes every `slots`-th tile rather than the next one.
    """
    free = [0.0] * slots
    over = {
        (edge.producer, edge.semaphores): np.zeros(edge.counts) for edge in edges
    }  # By semaphore: when its last post arrived.
    spans, ticket = [], 0
    for number, relation in enumerate(parts.relations):
        awaited = [edge for edge in edges if edge.consumer == number]
        posted = [(own, groupings) for (producer, groupings), own in over.items() if producer == number]
        first, end = inf, 0.0
        for place in relation.grid.places():
            start = free[ticket % slots] if queues else heapq.heappop(free)
            for edge in awaited:
                ready = over[edge.producer, edge.semaphores][_box(edge, place)]
                start = max(start, float(ready.max()) + hand_over_us)
            done = start + tile_us[number]
            for own, groupings in posted:
                at = tuple(g.of(i) for g, i in zip(groupings, place, strict=True))
                own[at] = max(own[at], done)
            first, end = min(first, start), max(end, done)
            if queues:
                free[ticket % slots] = done
            else:
                heapq.heappush(free, done)
            ticket += 1
        spans.append((first, end))
    return spans


def beside_spans(
    parts: Parts,
    edges: Sequence[TileEdge],
    tile_us: Sequence[float],
    resident: Sequence[int],
    multiprocessors: int,
    hand_over_us: float,
    launch_us: float,
) -> list[Span]:
    """Return when the tiles of parts in separate launches begin and end, in microseconds. Each launch begins its blocks
    `launch_us` after all blocks of the previous one have begun. A waiting block stays resident.

    resident: blocks of each part that a multiprocessor holds at a time.
    """
    over = {(edge.producer, edge.semaphores): np.zeros(edge.counts) for edge in edges}
    running: list[tuple[float, float]] = []  # when blocks end, and their share of the device
    room, now, spans = float(multiprocessors), 0.0, []
    for number, relation in enumerate(parts.relations):
        awaited = [edge for edge in edges if edge.consumer == number]
        posted = [(own, groupings) for (producer, groupings), own in over.items() if producer == number]
        taken = 1 / resident[number]
        now += launch_us if number else 0.0
        while running and running[0][0] <= now:
            room += heapq.heappop(running)[1]
        first, end = inf, 0.0
        for place in relation.grid.places():
            while room < taken - ROUNDING:
                ended, freed = heapq.heappop(running)
                now, room = max(now, ended), room + freed
            start = now
            for edge in awaited:
                start = max(start, float(over[edge.producer, edge.semaphores][_box(edge, place)].max()) + hand_over_us)
            done = start + tile_us[number]
            for own, groupings in posted:
                at = tuple(g.of(i) for g, i in zip(groupings, place, strict=True))
                own[at] = max(own[at], done)
            first, end, room = min(first, start), max(end, done), room - taken
            heapq.heappush(running, (done, taken))
        spans.append((first, end))
    return spans


def _box(edge: TileEdge, place: Sequence[int]) -> tuple[slice, ...]:
    """Return the semaphores that a tile waits for."""
    found = []
    for first, last, count in zip(edge.first, edge.last, edge.counts, strict=True):
        low = min(max(0, first.at(place)), count - 1)
        found.append(slice(low, max(low, min(max(0, last.at(place)), count - 1)) + 1))
    return tuple(found)
