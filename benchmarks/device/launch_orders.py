"""The launches of an artifact in other orders than the planned one, over the same kernels and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilestitch.runtime.artifact_writer import ArtifactContents
from tilestitch.runtime.program import DeviceStep, Program, Step


def one_at_a_time(step: DeviceStep) -> DeviceStep:
    """Each launch after the one before."""
    return replace(step, edges=None)


def without_priorities(step: DeviceStep) -> DeviceStep:
    return replace(step, launches=tuple(replace(launch, priority=0) for launch in step.launches))


ORDERS: dict[str, Callable[[DeviceStep], DeviceStep]] = {
    "one_at_a_time": one_at_a_time, "without_priorities": without_priorities,
}  # fmt: skip


def has_branches(step: DeviceStep) -> bool:
    """Whether some launch need not wait for the one before it to end."""
    waits = {(edge.before, edge.after) for edge in step.dependences if edge.kind == "full"}
    return any((number - 1, number) not in waits for number in range(1, len(step.launches)))


def reordered(contents: ArtifactContents) -> dict[str, ArtifactContents]:
    """By name the orders that differ from the planned one; none for a chain."""
    steps = [step for program in contents.programs for step in program.steps if isinstance(step, DeviceStep)]
    if not any(map(has_branches, steps)):
        return {}
    found = {name: replace(contents, programs=_each(contents.programs, order)) for name, order in ORDERS.items()}
    return {name: other for name, other in found.items() if other.programs != contents.programs}


def _each(programs: tuple[Program, ...], order: Callable[[DeviceStep], DeviceStep]) -> tuple[Program, ...]:
    def changed(step: Step) -> Step:
        return order(step) if isinstance(step, DeviceStep) else step

    return tuple(replace(program, steps=tuple(map(changed, program.steps))) for program in programs)
