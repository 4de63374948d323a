"""The explanation of a plan: every decision as data."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tilestitch.compiler.ir.text import parse_graph
from tilestitch.cost_model.models import RandomModel
from tilestitch.passes import PassContext, TargetInfo, explain_edge, explain_node, explain_plan, make_plan
from tilestitch.passes.explanation import with_origins
from tilestitch.passes.plan import Segment
from tilestitch.passes.waits import waits_of

TEXT = """graph @g(%x: float32[64,64], %s: float32[64,64]) -> (%y, %z) {
  %m = matmul(%x, %s) : float32[64,64]  from "MatMul_0"
  %a = tanh(%m) : float32[64,64]  from "Tanh_1"
  %r = reduce_sum(%a) {axes=[1], keepdims=true} : float32[64,1]  from "ReduceSum_2"
  %y = div(%a, %r) : float32[64,64]  from "Div_3"
  %z = cast(%y) {to="string"} : string[64,64]  from "Cast_4"
}"""


def explanation() -> dict[str, Any]:
    graph = parse_graph(TEXT)
    return explain_plan(graph, make_plan(graph, PassContext()))


def test_kernels_are_in_launch_order_with_all_that_was_promised() -> None:
    gemm, rows = explanation()["kernels"]
    assert gemm["onnx_nodes"] == ["MatMul_0", "Tanh_1"] and gemm["kind"] == "contraction"
    assert rows["onnx_nodes"] == ["ReduceSum_2", "Div_3"] and rows["kind"] == "rowwise"
    assert (gemm["bytes_read"], gemm["bytes_written"]) == (2 * 64 * 64 * 4, 64 * 64 * 4)
    assert gemm["sync"] == [] and rows["sync"] == [{"after": gemm["name"], "kind": "order", "reason": ""}]
    assert gemm["composition"] == ["epilogue"] and rows["composition"] == ["row"]
    assert rows["memory_bound"]


def test_a_kernel_on_a_gpu_says_what_it_waits_for_and_why() -> None:
    graph = parse_graph(TEXT)
    target = TargetInfo("cuda", device="NVIDIA_H100_80GB_HBM3", architectures=("sm_90a",))
    kernels = explain_plan(graph, make_plan(graph, PassContext(target)))["kernels"]
    for kernel in kernels[1:]:
        assert kernel["sync"] == [{"after": kernels[0]["name"], "kind": "full", "reason": f"%{kernel['inputs'][0]}"}]


AROUND_A_HOST_STEP = """graph @g(%x: float32[64,64]) -> (%y, %z, %w) {
  %a = matmul(%x, %x) : float32[64,64]
  %s = cast(%a) {to="string"} : string[64,64]
  %b = cast(%s) {to="float32"} : float32[64,64]
  %y = matmul(%b, %a) : float32[64,64]
  %z = matmul(%y, %b) : float32[64,64]
  %u = cast(%z) {to="string"} : string[64,64]
  %v = cast(%u) {to="float32"} : float32[64,64]
  %w = matmul(%v, %v) : float32[64,64]
}"""
GPU = TargetInfo("cuda", device="NVIDIA_H100_80GB_HBM3", architectures=("sm_90a",))


@pytest.mark.parametrize(("target", "kind", "reason"), [(GPU, "full", "%y"), (TargetInfo("cpu", 2), "order", "")])
def test_a_kernel_says_what_it_waits_for_across_host_steps(target: TargetInfo, kind: str, reason: str) -> None:
    graph = parse_graph(AROUND_A_HOST_STEP)
    found = explain_plan(graph, make_plan(graph, PassContext(target)))
    first, second, third, last = found["kernels"]
    assert first["sync"] == []
    assert second["sync"] == [
        {"after": "b", "kind": "segment", "reason": "%b"}, {"after": first["name"], "kind": "segment", "reason": "%a"},
    ]  # fmt: skip
    assert third["sync"] == [
        {"after": second["name"], "kind": kind, "reason": reason}, {"after": "b", "kind": "segment", "reason": "%b"},
    ]  # fmt: skip
    assert last["sync"] == [{"after": "v", "kind": "segment", "reason": "%v"}]


def test_a_kernel_that_reads_inputs_only_still_waits_for_the_host_step_before_it() -> None:
    graph = parse_graph("""graph @g(%x: float32[64,64]) -> (%s, %u, %y) {
  %a = matmul(%x, %x) : float32[64,64]
  %s = cast(%a) {to="string"} : string[64,64]
  %b = cast(%s) {to="float32"} : float32[64,64]
  %u = matmul(%b, %b) : float32[64,64]
  %y = matmul(%x, %x) {trans_b=true} : float32[64,64]
}""")
    plan = make_plan(graph, PassContext(GPU))
    first, second, late = (g.name for value in "auy" for g in plan.groups if value in g.outputs)
    segments = Segment(True, (first,)), Segment(False, ("s", "b")), Segment(True, (second, late))
    waits = waits_of(replace(plan, segments=segments, edges=()))
    assert waits[late] == [{"after": "b", "kind": "segment", "reason": ""}]


def test_branches_that_leave_room_are_predicted_side_by_side() -> None:
    graph = parse_graph("""graph @branches(%x: float32[64,64], %y: float32[96,64]) -> (%p, %q) {
  %p = matmul(%x, %x) : float32[64,64]
  %q = matmul(%y, %x) : float32[96,64]
}""")
    target = TargetInfo("cuda", device="NVIDIA_H100_80GB_HBM3", architectures=("sm_90a",))
    found = explain_plan(graph, make_plan(graph, PassContext(target)))
    each = [kernel["predicted_us"] for kernel in found["kernels"]]
    assert len(each) == 2 and found["prediction"]["total_us"] < sum(each)


def test_a_kernel_says_what_its_nodes_would_be_unfused() -> None:
    gemm, rows = (k["unfused"] for k in explanation()["kernels"])
    whole, row = 64 * 64 * 4, 64 * 4
    assert gemm == {"kernels": 2, "bytes_read": 3 * whole, "bytes_written": 2 * whole}
    assert rows == {"kernels": 2, "bytes_read": 2 * whole + row, "bytes_written": whole + row}


def test_a_large_gemm_is_not_bound_by_memory() -> None:
    graph = parse_graph(TEXT.replace("64", "1024"))
    assert not explain_plan(graph, make_plan(graph, PassContext()))["kernels"][0]["memory_bound"]


def test_every_kernel_has_a_predicted_latency_and_the_prediction_says_whose_it_is() -> None:
    graph = parse_graph(TEXT.replace("64", "1024"))
    plan = make_plan(graph, PassContext())
    one, four = (explain_plan(graph, plan, target=TargetInfo("cpu", threads)) for threads in (1, 4))
    for kernel in one["kernels"]:
        low_us, high_us = kernel["predicted_range_us"]
        assert 0 < low_us <= kernel["predicted_us"] <= high_us and kernel["bound"]
    assert four["kernels"][0]["predicted_us"] < one["kernels"][0]["predicted_us"]
    total_us = sum(kernel["predicted_us"] for kernel in four["kernels"])
    expected = {"model": "analytical", "device": "generic CPU", "cores": 4, "estimate": True, "sizes": {}}
    assert four["prediction"] == {**expected, "total_us": pytest.approx(total_us)}
    gpu = TargetInfo("cuda")
    found = explain_plan(graph, make_plan(graph, PassContext(gpu)), target=gpu)
    assert found["prediction"]["device"] == "H100 SXM"


def test_any_latency_model_can_be_asked() -> None:
    graph = parse_graph(TEXT)
    plan = make_plan(graph, PassContext())
    first, again, other = (explain_plan(graph, plan, model=RandomModel(seed)) for seed in (1, 1, 2))
    assert first == again and first["prediction"]["model"] == "random"
    assert first["kernels"][0]["predicted_us"] != other["kernels"][0]["predicted_us"]


def test_host_steps_refusals_and_buffers_are_listed() -> None:
    found = explanation()
    assert [(h["name"], h["onnx_nodes"]) for h in found["host_steps"]] == [("z", ["Cast_4"])]
    assert {r["subject"]: r["rule"] for r in found["refusals"]} == {
        "a -> r": "legality.one_template",
        "z": "legality.native",
    }
    assert found["buffers"]["arena_bytes"] == 64 * 64 * 4
    assert (found["target"], found["planner"]) == ("cpu", "stitch")


def test_it_is_json() -> None:
    assert json.loads(json.dumps(explanation())) == explanation()


def test_one_onnx_node_can_be_asked_for() -> None:
    found = explain_node(explanation(), "Tanh_1")
    assert [k["name"] for k in found["kernels"]] == ["matmul_tanh"]
    assert [r["subject"] for r in found["refusals"]] == ["a -> r"]
    assert explain_node(explanation(), "Cast_4")["host_steps"][0]["op"] == "cast"


def test_an_edge_inside_a_kernel_has_its_scheme_and_rule() -> None:
    found = explain_edge(explanation(), "MatMul_0", "Tanh_1")
    assert [k["name"] for k in found["kernels"]] == ["matmul_tanh"]
    assert found["stitches"] == [{"producer": "m", "consumer": "a", "scheme": "epilogue", "rule": "epilogue"}]
    assert (found["refusals"], found["remark"]) == ([], "")


def test_an_edge_between_kernels_has_what_was_refused_between_them() -> None:
    for producer, consumer in (("Tanh_1", "ReduceSum_2"), ("MatMul_0", "Div_3")):
        found = explain_edge(explanation(), producer, consumer)
        assert found["kernels"] == [] and [r["rule"] for r in found["refusals"]] == ["legality.one_template"]


def test_where_no_edge_is_it_says_so() -> None:
    graph = parse_graph("""graph @g(%x: float32[8,8]) -> (%a, %b) {
      %a = reduce_sum(%x) {axes=[0], keepdims=true} : float32[1,8]  from "A"
      %b = reduce_sum(%x) {axes=[1], keepdims=true} : float32[8,1]  from "B"
    }""")
    found = explain_plan(graph, make_plan(graph, PassContext(options={"planner": "none"})))
    assert explain_edge(found, "A", "B")["remark"].startswith("nothing that one of the first stores is read")
    assert "numpy" in explain_edge(explanation(), "Div_3", "Cast_4")["remark"]


def test_kernels_keep_their_numbers_and_nodes_their_origins() -> None:
    assert [k["number"] for k in explain_node(explanation(), "Div_3")["kernels"]] == [1]
    assert with_origins(explanation(), "a -> r") == "a (Tanh_1) -> r (ReduceSum_2)"
    assert with_origins({"origins": {"a": []}}, "a + unknown") == "a + unknown"


def test_a_gather_reads_what_it_picks_and_not_the_table() -> None:
    graph = parse_graph("""graph @g(%t: float32[1000,8], %i: int64[3]) -> (%y) {
      %y = gather(%t, %i) {axis=0} : float32[3,8]
    }""")
    (kernel,) = explain_plan(graph, make_plan(graph, PassContext()))["kernels"]
    assert kernel["bytes_read"] == 3 * 8 * 4 + 3 * 8
