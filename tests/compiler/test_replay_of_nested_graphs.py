"""Models whose graphs hold graphs: a plan that is replayed gives the same bytes, and one edited inside is obeyed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from onnx import ModelProto, TensorProto, helper

from tilestitch.compiler import compile_model
from tilestitch.passes import StitchPlan
from tilestitch.passes.plan.difference import differences

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
info, node = helper.make_tensor_value_info, helper.make_node
X, W = info("x", FLOAT, [16, 16]), info("w", FLOAT, [16, 16])
STEP = [
    node("MatMul", ["s", "w"], ["a"]), node("Softmax", ["a"], ["b"]), node("MatMul", ["b", "w"], ["t"]),
]  # fmt: skip


def _model(nodes: list[Any], inputs: list[Any], output: Any) -> ModelProto:
    return helper.make_model(
        helper.make_graph(nodes, "nested", inputs, [output]), opset_imports=[helper.make_opsetid("", 20)]
    )


def _loop_node(result: str) -> Any:
    body = helper.make_graph(
        [*STEP, node("Identity", ["more"], ["still"])], "body",
        [info("i", INT, []), info("more", BOOL, []), info("s", FLOAT, [16, 16])],
        [info("still", BOOL, []), info("t", FLOAT, [16, 16])],
    )  # fmt: skip
    return node("Loop", ["n", "", "x"], [result], "loop", body=body)


def loop() -> ModelProto:
    return _model([_loop_node("y")], [X, W, info("n", INT, [])], info("y", FLOAT, [16, 16]))


def scan() -> ModelProto:
    body = helper.make_graph(
        [*STEP, node("Add", ["t", "e"], ["o"])], "body", [info("s", FLOAT, [16, 16]), info("e", FLOAT, [16])],
        [info("t", FLOAT, [16, 16]), info("o", FLOAT, [16, 16])],
    )  # fmt: skip
    step = node("Scan", ["x", "rows"], ["last", "y"], "scan", body=body, num_scan_inputs=1)
    return _model([step], [X, W, info("rows", FLOAT, [20, 16])], info("y", FLOAT, [20, 16, 16]))


def loop_in_a_branch() -> ModelProto:
    then = helper.make_graph([_loop_node("u")], "then", [], [info("u", FLOAT, [16, 16])])
    otherwise = helper.make_graph(
        [node("Softmax", ["x"], ["v0"]), node("MatMul", ["v0", "w"], ["v"])], "else", [], [info("v", FLOAT, [16, 16])]
    )
    nodes = [node("If", ["p"], ["z"], "if", then_branch=then, else_branch=otherwise), node("Softmax", ["z"], ["y"])]
    return _model(nodes, [X, W, info("n", INT, []), info("p", BOOL, [])], info("y", FLOAT, [16, 16]))


MODELS = {"loop": loop, "scan": scan, "loop in a branch": loop_in_a_branch}
TARGETS = ("cpu", "emulator:sm_80")


def saved(plan: Any, folder: Path) -> Path:
    path = folder / "plan.json"
    path.write_text(json.dumps(plan))
    return path


def launches_anew(plan: dict[str, Any]) -> None:
    plan["launches"] = plan["edges"] = None
    for body in plan["bodies"].values():
        launches_anew(body)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_a_replayed_plan_gives_the_same_bytes(name: str, target: str, tmp_path: Path) -> None:
    first = compile_model(MODELS[name](), target=target)
    plan = first.plan.to_json()
    assert plan["bodies"], "the plan has one of each nested graph"
    again = compile_model(MODELS[name](), target=target, plan=saved(plan, tmp_path))
    assert again.to_bytes() == first.to_bytes()
    launches_anew(plan)
    anew = compile_model(MODELS[name](), target=target, plan=saved(plan, tmp_path))
    assert anew.to_bytes() == first.to_bytes()


@pytest.mark.parametrize("target", TARGETS)
def test_a_schedule_edited_in_a_nested_graph_is_obeyed_and_shows(target: str, tmp_path: Path) -> None:
    first = compile_model(loop_in_a_branch(), target=target)
    plan = json.loads(json.dumps(first.plan.to_json()))
    body = plan["bodies"]["if.else_graph"]
    group = next(g for g in body["groups"] if g["schedule"]["template"] in ("rows", "cpu_rows"))
    group["schedule"]["rows"] = 2
    launches_anew(plan)
    edited = compile_model(loop_in_a_branch(), target=target, plan=saved(plan, tmp_path))
    found = {path: new for path, _, new in differences(first.plan, edited.plan)}
    name = f"bodies.if.else_graph.groups[{group['name']}].schedule.rows"
    assert found[name] == 2
    assert found[f"bodies.if.else_graph.launches.{group['name']}.0.grid"] == [8, 1, 1]
    assert StitchPlan.from_json(edited.plan.to_json()) == edited.plan
