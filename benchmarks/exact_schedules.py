"""The shortest schedule of launches side by side, by constraint programming: what orders are judged by.

OR-tools CP-SAT. Each launch runs as long as it does alone, from a start that may be chosen freely, and takes its part
of the room and of what kernels share all the while; no more than the device has may be taken at a time. So nothing is
ever slowed down, and a launch may be held back, which a GPU does not do. A schedule by the makespan law may be
shorter, where kernels that want more than there is together are all slowed down.
"""

from __future__ import annotations

from ortools.sat.python import cp_model

from tilestitch.passes.schedule.parallel.graph import LaunchGraph

TICKS_PER_US = 100
DEVICE = 10_000
"""What the device has of each thing, in the units that demands are rounded down to."""


def exact_us(graph: LaunchGraph, seconds: float) -> tuple[float, bool]:
    """The least makespan, and whether it is proven; else the best that was found within so many seconds."""
    model = cp_model.CpModel()
    horizon = sum(_ticks(work.alone_us) for work in graph.works)
    starts, bodies = [], []
    for number, work in enumerate(graph.works):
        start = model.new_int_var(_ticks(work.gap_us), horizon, f"s{number}")
        starts.append(start)
        bodies.append(model.new_fixed_size_interval_var(start, _ticks(work.body_us), f"b{number}"))
    for before, after in graph.edges:
        ended = starts[before] + _ticks(graph.works[before].body_us)
        model.add(starts[after] >= ended + _ticks(graph.works[after].gap_us))
    kinds = [_demands(graph, number) for number in range(len(graph.works))]
    for demands in zip(*kinds):
        model.add_cumulative(bodies, list(demands), DEVICE)
    end = model.new_int_var(0, horizon, "end")
    for number, work in enumerate(graph.works):
        model.add(end >= starts[number] + _ticks(work.body_us))
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False  # it would leave Python without its handler of interrupts
    status = solver.solve(model)
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE), solver.status_name(status)
    return solver.objective_value / TICKS_PER_US, status == cp_model.OPTIMAL


def _ticks(us: float) -> int:
    return int(us * TICKS_PER_US)


def _demands(graph: LaunchGraph, number: int) -> list[int]:
    work = graph.works[number]
    held = min(work.blocks, work.resident)
    return [min(DEVICE, int(held * each * DEVICE)) for each in work.room] + [int(one * DEVICE) for one in work.rates]
