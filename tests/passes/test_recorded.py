"""Explanations in artifacts: what the plan beside them says is left out, and filled in when they are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests import models
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.explain import read_explain
from tilestitch.passes.explanation import OF_GROUPS, with_plans, without_plans
from tilestitch.runtime.artifact import read_artifact


def branches() -> onnx.ModelProto:
    """Nested graphs, a part of open size that is called, and several specialisations."""
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "n"]) for name in "bexy"]
    then = helper.make_graph(
        [helper.make_node("MatMul", ["x", "x"], ["a"]), helper.make_node("Tanh", ["a"], ["b"])], "then", [], made[:1]
    )
    otherwise = helper.make_graph([helper.make_node("Neg", ["x"], ["e"])], "else", [], made[1:2])
    nodes = [
        helper.make_node("If", ["p"], ["y"], then_branch=then, else_branch=otherwise),
        helper.make_node("NonZero", ["y"], ["places"]),
        helper.make_node("Cast", ["places"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Exp", ["floats"], ["z"]),
    ]
    inputs = [made[2], helper.make_tensor_value_info("p", TensorProto.BOOL, [])]
    outputs = [made[3], helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, None])]
    return helper.make_model(
        helper.make_graph(nodes, "branches", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )


@pytest.mark.parametrize("model", [models.cnn, branches])
def test_what_is_read_is_what_was_explained(model: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    compiled = compile_model(model())
    path = compiled.save(tmp_path / "m.tsm")
    held = read_artifact(path).json_member("explain.json")
    assert "refusals" not in held
    assert not any(kernel.keys() & OF_GROUPS.keys() for kernel in held["kernels"])
    assert read_explain(path) == json.loads(json.dumps(compiled.explain()))


def test_what_says_something_else_than_the_plan_stays() -> None:
    compiled = compile_model(models.cnn())
    plans = [plan.to_json() for plan in compiled.plans]
    explained = compiled.explain()
    odd = {**explained, "refusals": [], "kernels": [{**kernel, "nodes": ["odd"]} for kernel in explained["kernels"]]}
    short = without_plans(odd, plans)
    assert short["refusals"] == []
    assert with_plans(short, plans) == odd
