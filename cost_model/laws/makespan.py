"""When kernels that share one GPU are over: a discrete-event model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def makespan_us(durations_us: Sequence[float], shares: Sequence[float], edges: Iterable[tuple[int, int]]) -> float:
    """Microseconds until the last kernel has ended. `shares`: of the device that each occupies, between 0 and 1.

    edges: (before, after), the second being later in the sequence. Kernels that would occupy more than the whole device
    together are slowed down alike, so that the device is never busier than it can be. Hence the result is at least the
    longest path, and at least the work (durations times shares), and at most the sum of all.
    """
    waits = [0] * len(durations_us)
    readers: list[list[int]] = [[] for _ in durations_us]
    for before, after in edges:
        waits[after] += 1
        readers[before].append(after)
    left = list(durations_us)
    running = [number for number, count in enumerate(waits) if not count]
    now_us = 0.0
    while running:
        pace = 1.0 / max(1.0, sum(shares[number] for number in running))
        step_us = min(left[number] for number in running) / pace
        now_us += step_us
        ended = [number for number in running if left[number] <= step_us * pace]
        running = [number for number in running if left[number] > step_us * pace]
        for number in running:
            left[number] -= step_us * pace
        for number in ended:
            for reader in readers[number]:
                waits[reader] -= 1
                if not waits[reader]:
                    running.append(reader)
    return now_us
