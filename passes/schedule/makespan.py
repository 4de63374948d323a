"""The duration of a launch graph, by a discrete-event model of concurrent kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilestitch.cost_model.devices import Device
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.laws.makespan import Span, Work, makespan_us, spans
from tilestitch.cost_model.protocol import AnyDevice
from tilestitch.cost_model.side_by_side import works_of
from tilestitch.passes.plan import StitchPlan
from tilestitch.passes.plan.launches.dependences import segment_ranges
from tilestitch.passes.plan.launches.launch import Launch

NOTHING = Work(0.0, 0.0)


def plan_us(
    plan: StitchPlan, facts: Mapping[str, KernelFacts], latencies_us: Mapping[str, float], device: AnyDevice
) -> float:
    """Return the microseconds of a plan, given the latencies of kernels by group name; host steps between them take
    none.

    On a CPU kernels run in sequence; segments do so everywhere.
    """
    if not isinstance(device, Device):
        return sum(latencies_us.values())
    return makespan_us(spans_of(plan, works_of(facts, latencies_us, device)))


def spans_of(plan: StitchPlan, works: Mapping[str, Sequence[Work]]) -> list[Span]:
    """Return when each launch of a GPU plan runs. works: the work of each group's launches."""
    launches = plan.launches or ()
    needs = launch_works(launches, works)
    priorities = [lane.priority for lane in plan.lanes or ()]
    found: list[Span] = []
    for first, end in segment_ranges(launches, plan.segments):
        edges = [(e.before - first, e.after - first) for e in plan.edges or () if first <= e.before < end]
        start_us = makespan_us(found)
        inside = spans(needs[first:end], edges, priorities[first:end])
        found += [Span(*(start_us + us for us in span)) for span in inside]
    return found


def launch_works(launches: Sequence[Launch], works: Mapping[str, Sequence[Work]]) -> list[Work]:
    """Return the work of each launch. Where a plug-in has another number of launches than its group's facts, the first
    stands for all.
    """
    counts: dict[str, int] = {}
    for launch in launches:
        counts[launch.group] = counts.get(launch.group, 0) + 1
    left = {name: iter(_of_group(works[name], count)) for name, count in counts.items()}
    return [next(left[launch.group]) for launch in launches]


def _of_group(works: Sequence[Work], count: int) -> Sequence[Work]:
    if len(works) == count:
        return works
    total_us = sum(work.alone_us for work in works)
    largest = max(works, key=lambda work: work.body_us)
    whole = replace(largest, gap_us=works[0].gap_us, body_us=total_us - works[0].gap_us)
    return (whole, *(NOTHING for _ in range(count - 1)))
