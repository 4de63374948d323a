"""When the tiles of a launch are over whose blocks draw them one after the other: a simulation, tile by tile."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from tilestitch.passes.plan.sync.edges import TileEdge

from .check import Parts


def drawn_us(
    parts: Parts, edges: Sequence[TileEdge], tile_us: Sequence[float], slots: int, hand_over_us: float
) -> float:
    """Microseconds until all tiles are over, of which `slots` are computed at a time.

    tile_us: of a tile of each part. hand_over_us: from a post to the tiles that wait for it.
    """
    free = [0.0] * slots
    over = {
        (edge.producer, edge.semaphores): np.zeros(edge.counts) for edge in edges
    }  # By semaphore: when its last post has come.
    end = 0.0
    for number, relation in enumerate(parts.relations):
        awaited = [edge for edge in edges if edge.consumer == number]
        posted = [(own, groupings) for (producer, groupings), own in over.items() if producer == number]
        for place in relation.grid.places():
            start = heapq.heappop(free)
            for edge in awaited:
                ready = over[edge.producer, edge.semaphores][_box(edge, place)]
                start = max(start, float(ready.max()) + hand_over_us)
            done = start + tile_us[number]
            for own, groupings in posted:
                at = tuple(g.of(i) for g, i in zip(groupings, place, strict=True))
                own[at] = max(own[at], done)
            end = max(end, done)
            heapq.heappush(free, done)
    return end


def _box(edge: TileEdge, place: Sequence[int]) -> tuple[slice, ...]:
    """The semaphores that a tile waits for."""
    found = []
    for first, last, count in zip(edge.first, edge.last, edge.counts, strict=True):
        low = min(max(0, first.at(place)), count - 1)
        found.append(slice(low, max(low, min(max(0, last.at(place)), count - 1)) + 1))
    return tuple(found)
