"""Predicted schedules as data."""

from __future__ import annotations

from itertools import pairwise

from tests.passes.schedule.parallel.test_arrange import planned, random_graph
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.cost_model.laws.makespan import Work
from tilestitch.passes import PassContext, TargetInfo, explain_plan, make_plan
from tilestitch.passes.schedule.makespan import timeline_of
from tilestitch.runtime.trace import timeline_events

FORK = """graph @fork(%x: float32[64,64]) -> (%d) {
  %a = tanh(%x) : float32[64,64]
  %b = sin(%a) : float32[64,64]
  %c = exp(%a) : float32[64,64]
  %d = add(%b, %c) : float32[64,64]
}"""
GPU = TargetInfo("cuda", device="NVIDIA_H100_80GB_HBM3", architectures=("sm_90a",))


def test_a_fork_by_hand() -> None:
    """Both branches want the whole device; the shorter waits for room or the longer does."""
    graph = parse_graph(FORK)
    plan = make_plan(graph, PassContext(GPU, options={"planner": "none"}))
    bodies_us = {"tanh": 1.0, "sin": 2.0, "exp": 3.0, "add": 1.0}
    op = {group.name: graph.node(group.nodes[0]).op for group in plan.groups}
    works = {name: (Work(1.0, bodies_us[op[name]], 1, 1, (1.0,)),) for name in op}
    found = timeline_of(plan, works)
    first, second, third, last = found["launches"]
    assert (first["start_us"], first["end_us"], first["why"], first["after"]) == (1, 2, "", "")
    assert {second["branch"], third["branch"]} == {0, 1}
    assert second["why"] == "waits for %a" and third["why"].endswith("us for room")
    assert third["beside"] == [] and third["ready_us"] == 3 and third["start_us"] == second["end_us"]
    assert (last["start_us"], last["end_us"]) == (9, 10)
    assert found["critical_path"] == [0, 2, 3] and [one["critical"] for one in found["launches"]] == [1, 0, 1, 1]
    assert (found["makespan_us"], found["one_at_a_time_us"]) == (10, 11)


def test_explanations_of_gpus_have_it_and_those_of_cpus_do_not() -> None:
    graph = random_graph(0)
    plan = planned(graph)
    found = explain_plan(graph, plan)
    schedule = found["schedule"]
    assert schedule["makespan_us"] == found["prediction"]["total_us"] < schedule["one_at_a_time_us"]
    assert [one["kernel"] for one in schedule["launches"]] == [launch.group for launch in plan.launches or ()]
    assert schedule["arena_bytes"] == plan.buffers.arena_bytes > schedule["one_at_a_time_bytes"]
    assert explain_plan(graph, make_plan(graph, PassContext(TargetInfo("cpu", 2))))["schedule"] is None


def test_a_trace_has_a_row_for_each_branch() -> None:
    launches = explain_plan(random_graph(0), planned(random_graph(0)))["schedule"]["launches"]
    events = timeline_events(launches, "predicted")["traceEvents"]
    rows = {event["tid"] for event in events if event["name"] == "thread_name"}
    slices = [event for event in events if event["ph"] == "X"]
    assert rows == {launch["branch"] for launch in launches} and len(slices) == len(launches)
    for row in rows:
        spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in slices if event["tid"] == row)
        assert all(before[1] <= after[0] + 0.002 for before, after in pairwise(spans))
