"""How long a launch graph takes: kernels side by side as its edges allow, where the device has room for them."""

from __future__ import annotations

from collections.abc import Mapping

from tilestitch.cost_model.devices import Device
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.laws.makespan import makespan_us
from tilestitch.cost_model.on_gpu import resident_blocks
from tilestitch.passes.plan import StitchPlan


def plan_us(plan: StitchPlan, durations_us: Mapping[str, float], shares: Mapping[str, float]) -> float:
    """Microseconds of all kernels of a plan, by the name of their groups; host steps between them take none.

    On a CPU kernels follow each other; segments do anywhere.
    """
    if not plan.target.is_gpu:
        return sum(durations_us.values())
    launches, total_us = plan.launches or (), 0.0
    before: dict[str, set[str]] = {}
    for edge in plan.edges or ():
        before.setdefault(launches[edge.after].group, set()).add(launches[edge.before].group)
    for segment in plan.segments:
        number = {name: i for i, name in enumerate(segment.groups)} if segment.native else {}
        pairs = {
            (number[other], number[name]) for name in number for other in before.get(name, ())
            if other in number and other != name
        }  # fmt: skip
        total_us += makespan_us([durations_us[name] for name in number], [shares[name] for name in number], pairs)
    return total_us


def share_of(kernel: KernelFacts, device: Device) -> float:
    """Of the device that a kernel occupies: thread blocks over those that it holds together, at most 1."""
    held = (device.sm_count * max(1, resident_blocks(launch, device)) for launch in kernel.sequence)
    return min(1.0, max(launch.grid / count for launch, count in zip(kernel.sequence, held, strict=True)))
