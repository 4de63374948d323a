"""When a set of launches with dependences is over: a discrete-event model of kernels that share one GPU.

Every launch wants some share of the chip (blocks it has over blocks the chip holds, at most 1). Launches that are ready
run together; where they want more than the whole chip, each slows down in proportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """One launch. duration_us: with the chip to itself; share: of the chip that it then keeps busy, in (0, 1];
    after: the launches, by position, that must be over before it starts; gap_us: between these and its start.
    """

    duration_us: float
    share: float = 1.0
    after: tuple[int, ...] = ()
    gap_us: float = 0.0


@dataclass(frozen=True)
class Span:
    """When a launch runs."""

    start_us: float
    end_us: float


def timeline(launches: Sequence[Launch]) -> tuple[Span, ...]:
    """When each launch starts and ends. Raises ValueError for dependences on later launches, or on none that exist."""
    for number, launch in enumerate(launches):
        if any(not 0 <= before < number for before in launch.after):
            raise ValueError(f"launch {number} waits for {launch.after}; a launch waits for earlier ones only")
        if launch.duration_us < 0 or launch.gap_us < 0 or not 0 < launch.share <= 1:
            raise ValueError(f"launch {number} has times below 0 or a share of the chip outside of (0, 1]: {launch}")
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    left = [launch.duration_us for launch in launches]
    waiting = set(range(len(launches)))
    now = 0.0
    while waiting or len(ends) < len(launches):
        ready = {n: _ready_us(launches[n], ends) for n in waiting}
        running = [n for n in starts if n not in ends]
        for number in [n for n, at in ready.items() if at is not None and at <= now]:
            starts[number] = now
            waiting.discard(number)
            running.append(number)
        speed = 1.0 / max(1.0, sum(launches[n].share for n in running))
        coming = [at for n, at in ready.items() if n in waiting and at is not None]
        moments = [now + left[n] / speed for n in running] + coming
        then = min(moments)
        for number in running:
            left[number] -= (then - now) * speed
            if left[number] <= 1e-9 * max(1.0, launches[number].duration_us):
                ends[number] = then
        now = then
    return tuple(Span(starts[n], ends[n]) for n in range(len(launches)))


def makespan_us(launches: Sequence[Launch]) -> float:
    """From the first start to the last end."""
    return max((span.end_us for span in timeline(launches)), default=0.0)


def _ready_us(launch: Launch, ends: dict[int, float]) -> float | None:
    """When a launch may start, or None as long as that is not known."""
    if any(before not in ends for before in launch.after):
        return None
    return max((ends[before] for before in launch.after), default=0.0) + launch.gap_us
