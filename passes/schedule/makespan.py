"""How long a launch graph takes: kernels side by side as its edges allow, where the device has room for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tilestitch.cost_model.devices import Device
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.on_gpu import resident_blocks
from tilestitch.passes.plan import StitchPlan


def plan_us(plan: StitchPlan, durations_us: Mapping[str, float], shares: Mapping[str, float]) -> float:
    """Microseconds of all kernels of a plan, by the name of their groups; host steps between them take none.

    On a CPU kernels follow each other; segments do anywhere.
    """
    if not plan.target.is_gpu:
        return sum(durations_us.values())
    launches, total_us = plan.launches or (), 0.0
    for segment in plan.segments:
        number = {name: i for i, name in enumerate(segment.groups)} if segment.native else {}
        pairs = {
            (number[before], number[after])
            for before, after in ((launches[e.before].group, launches[e.after].group) for e in plan.edges or ())
            if before in number and after in number and before != after
        }
        total_us += makespan_us([durations_us[name] for name in number], [shares[name] for name in number], pairs)
    return total_us


def share_of(kernel: KernelFacts, device: Device) -> float:
    """Of the device that a kernel occupies: thread blocks over those that it holds together, at most 1."""
    held = (device.sm_count * max(1, resident_blocks(launch, device)) for launch in kernel.sequence)
    return min(1.0, max(launch.grid / count for launch, count in zip(kernel.sequence, held, strict=True)))


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
