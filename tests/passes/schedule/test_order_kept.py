"""Other schedules in a plan keep the order that was chosen for its launches, also where their number changes."""

from __future__ import annotations

from onnx import TensorProto, helper

from tilestitch.compiler import compile_model
from tilestitch.compiler.tune.tasks import with_schedules
from tilestitch.passes.plan.launches.launch import Edge
from tilestitch.passes.plan.schedules import RowSchedule, SplitRowSchedule
from tilestitch.passes.plan_check import check_plan
from tilestitch.passes.schedule.cuda.alternatives import alternatives
from tilestitch.passes.schedule.cuda.gpu import Gpu
from tilestitch.passes.schedule.launches import edges_by_hand, with_edges, with_priorities


def test_priorities_and_added_edges_are_those_of_the_groups() -> None:
    graph = helper.make_graph(
        [helper.make_node("ReduceL2", [f"x{name}"], [f"y{name}"], keepdims=0, name=name) for name in "ab"],
        "two",
        [
            helper.make_tensor_value_info(f"x{name}", TensorProto.FLOAT, (size,))
            for name, size in (("a", 1 << 16), ("b", 99))
        ],
        [helper.make_tensor_value_info(f"y{name}", TensorProto.FLOAT, ()) for name in "ab"],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    (one,) = compile_model(model, "emulator:sm_80").specialisations
    first, second = one.plan.groups
    others = [first, *alternatives({n.name: n for n in one.graph.nodes}, first, Gpu.of(one.plan.target))]
    whole = next(
        each for each in others if isinstance(each.schedule, RowSchedule) and each.schedule.blocks_per_row == 1
    )
    split = next(each for each in others if isinstance(each.schedule, SplitRowSchedule))
    single = with_schedules(one.graph, one.plan, {first.name: whole}, lambda *_: None)
    assert [launch.group for launch in single.launches or ()] == [first.name, second.name]
    ordered = with_priorities(with_edges(single, [Edge(0, 1)]), [3, 1])
    found = with_schedules(one.graph, ordered, {first.name: split}, lambda *_: None)
    assert [launch.group for launch in found.launches or ()] == [first.name] * 3 + [second.name]
    assert [lane.priority for lane in found.lanes or ()] == [3, 3, 3, 1]
    assert [(edge.before, edge.after) for edge in edges_by_hand(found, one.graph)] == [(2, 3)]
    check_plan(found, one.graph)
    back = with_schedules(one.graph, found, {first.name: whole}, lambda *_: None)
    assert back == ordered and not back.buffers.temporaries
