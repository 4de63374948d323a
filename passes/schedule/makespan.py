"""The duration of a launch graph, by a discrete-event model of concurrent kernels; and the predicted schedule of a GPU
plan as data: when each launch runs, beside which, and what it waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilestitch.cost_model.devices import Device
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.laws.makespan import Span, Work, makespan_us, spans
from tilestitch.cost_model.protocol import AnyDevice
from tilestitch.cost_model.side_by_side import works_of
from tilestitch.passes.plan import StitchPlan
from tilestitch.passes.plan.launches.dependences import segment_ranges
from tilestitch.passes.plan.launches.launch import FIRST_LANE, Edge, Launch

NOTHING = Work(0.0, 0.0)
MOST_BESIDE = 8
_NEAR_US = 1e-6


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


def timeline_of(plan: StitchPlan, works: Mapping[str, Sequence[Work]]) -> dict[str, Any]:
    """Return `launches` in order, `critical_path` as launch numbers, the total time, and that of sequential execution.

    Of a launch: its `kernel`, `branch` and `priority`, `ready_us`, `start_us`, `end_us`, its duration alone
    (`alone_us`), whether it is `critical`, some of the kernels that run `beside` it, the one it waits for last
    (`after`), and why.
    """
    found, needs = spans_of(plan, works), launch_works(plan.launches or (), works)
    into: dict[int, list[Edge]] = {}
    for edge in plan.edges or ():
        into.setdefault(edge.after, []).append(edge)
    path = _critical_path(plan, found, into)
    critical = set(path)
    beside = _beside(found)
    launches = []
    lanes = plan.lanes or [FIRST_LANE] * len(found)
    for number, (launch, lane) in enumerate(zip(plan.launches or (), lanes, strict=True)):
        span = found[number]
        last = max(into.get(number, ()), key=lambda edge: found[edge.before].end_us, default=None)
        launches.append({
            "kernel": launch.group, "branch": lane.branch, "priority": lane.priority,
            "ready_us": round(span.ready_us, 3), "start_us": round(span.start_us, 3), "end_us": round(span.end_us, 3),
            "alone_us": round(needs[number].alone_us, 3), "critical": number in critical,
            "beside": [(plan.launches or ())[other].group for other in beside[number][:MOST_BESIDE]],
            "after": (plan.launches or ())[last.before].group if last is not None else "",
            "why": _why(span, needs[number], last),
        })  # fmt: skip
    return {
        "launches": launches,
        "critical_path": path,
        "makespan_us": round(makespan_us(found), 3),
        "one_at_a_time_us": round(sum(work.alone_us for work in needs), 3),
    }


def _why(span: Span, work: Work, last: Edge | None) -> str:
    """Return why a launch did not run earlier, or as fast as alone."""
    reasons = [f"waits for {last.reason}"] if last is not None else []
    if span.start_us > span.ready_us + _NEAR_US:
        reasons.append(f"{span.start_us - span.ready_us:.1f} us for room")
    slower_us = span.end_us - span.start_us - work.body_us
    if slower_us > _NEAR_US:
        reasons.append(f"{slower_us:.1f} us longer beside others")
    return ", ".join(reasons)


def _beside(found: Sequence[Span]) -> list[list[int]]:
    """Return for each launch those that run at the same time, ordered by start."""
    beside: list[list[int]] = [[] for _ in found]
    running: list[int] = []
    for number in sorted(range(len(found)), key=lambda n: found[n].start_us):
        running = [other for other in running if found[other].end_us > found[number].start_us + _NEAR_US]
        for other in running:
            beside[number].append(other)
            beside[other].append(number)
        running.append(number)
    return beside


def _critical_path(plan: StitchPlan, found: Sequence[Span], into: Mapping[int, Sequence[Edge]]) -> list[int]:
    """Return the critical path, followed back from the launch that ends last through all segments."""
    if not found:
        return []
    number = max(range(len(found)), key=lambda n: (found[n].end_us, -n))
    path = [number]
    while True:
        before = [edge.before for edge in into.get(number, ())]
        if not before:  # first of its segment: the last launch of the previous segment has ended
            before = [n for n in range(number) if found[n].end_us <= found[number].ready_us + _NEAR_US]
        if not before:
            return path[::-1]
        number = max(before, key=lambda n: (found[n].end_us, -n))
        path.append(number)
