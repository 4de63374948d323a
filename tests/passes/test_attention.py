"""Attention as one kernel: what is recognised, whatever exporters call it, what is refused and why."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attention_graphs import Case, attention, softmax
from tests.passes.helpers import assert_close
from tests.passes.simulate import simulate
from tests.strategies import feeds
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.passes import PassContext, StitchPlan, WhyNot, check_plan, make_plan
from tilestitch.passes.errors import PlanError
from tilestitch.passes.explain import explain_plan
from tilestitch.passes.plan.attention.mask_band import Band, band_of, same_inside
from tilestitch.passes.plan.roles import Part, Roles, roles_of
from tilestitch.passes.plan.target import TargetInfo

CASES = {
    "plain": Case(),
    "one of many batches": Case(batch=3, mask="float"),
    "bool mask": Case(mask="bool"),
    "causal constant": Case(mask="causal"),
    "positions and padding": Case(mask="positions", mended=True),
    "softcap": Case(softcap=3.0),
    "grouped heads": Case(heads=6, kv_heads=2),
    "repeated heads": Case(heads=6, kv_heads=2, grouped=False),
    "heads merged after it": Case(merge_heads=True, mended=True),
    "one query": Case(queries=1, keys=33),
}


def planned(graph: Graph, planner: str = "stitch", target: str = "cuda") -> StitchPlan:
    """The plan of a graph, which is checked, saved and read again, and shown to compute the same."""
    plan = make_plan(graph, PassContext(TargetInfo(target, 2), options={"planner": planner}))
    check_plan(plan, graph)
    assert StitchPlan.from_json(plan.to_json()) == plan
    inputs = feeds(graph)
    with np.errstate(all="ignore"):
        assert_close(evaluate(graph, inputs), simulate(plan, graph, inputs))
    return plan


def kinds(plan: StitchPlan) -> list[str]:
    return [g.kind.value for g in plan.groups]


def roles(graph: Graph) -> Roles | WhyNot:
    return roles_of(graph.nodes, graph.outputs)


@pytest.mark.parametrize("planner", ["stitch", "explore"])
@pytest.mark.parametrize("name", CASES)
def test_attention_is_one_kernel(name: str, planner: str) -> None:
    plan = planned(attention(CASES[name]), planner)
    assert kinds(plan) == ["attention"]
    assert "online" in plan.groups[0].schemes


@pytest.mark.parametrize("planner", ["none", "injective", "xla"])
def test_other_planners_leave_it_apart(planner: str) -> None:
    assert "attention" not in kinds(planned(attention(Case(mask="float")), planner))


@given(
    queries=st.integers(2, 9), keys=st.integers(1, 9), width=st.integers(1, 9), columns=st.integers(1, 9),
    shared=st.integers(1, 3), mask=st.sampled_from(["", "float", "bool", "causal", "positions", "window"]),
    grouped=st.booleans(), mended=st.booleans(), merge_heads=st.booleans(),
)  # fmt: skip
def test_every_shape_is_recognised(
    queries: int, keys: int, width: int, columns: int, shared: int, mask: str, grouped: bool, mended: bool,
    merge_heads: bool,
) -> None:  # fmt: skip
    case = Case(
        2 * shared, queries, max(queries, keys), width, columns, kv_heads=2, mask=mask, grouped=grouped, mended=mended,
        merge_heads=merge_heads,
    )  # fmt: skip
    assert kinds(planned(attention(case), target="cpu")) == ["attention"]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("reader", ["keys", "mask"])
def test_queries_that_something_else_reads_are_scaled_before(reader: str, masked: bool) -> None:
    """What is computed for the mask, too, is stored: keys are read as they are."""
    graph = Graph("g")
    x, v, given = (graph.add_input(name, TensorType("float32", (2, 8, 8))) for name in ("x", "v", "mask"))
    half = graph.constant(np.float32(0.5))
    scaled = graph.emit("mul", x, half)
    scores = graph.emit("matmul", scaled if reader == "keys" else x, scaled, trans_b=True)
    if reader == "mask":
        scores = graph.emit("add", scores, scaled)
    if masked:
        scores = graph.emit("add", scores, graph.emit("mul", given, half))
    graph.outputs = [graph.emit("matmul", softmax(graph, scores), v)]
    assert kinds(planned(graph, target="cpu")) == ["injective", "attention"]


def test_the_parts_of_its_nodes() -> None:
    graph = attention(Case(mask="float", mended=True, merge_heads=True))
    found = roles(graph)
    assert isinstance(found, Roles)
    parts = list(found.parts.values())
    assert parts == [
        Part.SCORES, Part.SCORED, *[Part.SOFTMAX] * 5, Part.WEIGHED, Part.WEIGHED, Part.ANCHOR, Part.VIEW, Part.VIEW,
    ]  # fmt: skip
    assert found.softmax is not None
    assert (found.softmax.heads, found.softmax.queries, found.softmax.keys) == (2, 5, 7)


def test_explain_shows_the_kernel() -> None:
    graph = attention(Case())
    (kernel,) = explain_plan(graph, planned(graph))["kernels"]
    assert (kernel["kind"], kernel["composition"]) == ("attention", ["online"])
    size = 4 * 2 * 8
    assert (kernel["bytes_read"], kernel["bytes_written"]) == (size * (5 + 7 + 7), size * 5)


def test_a_saved_plan_must_not_call_something_else_attention() -> None:
    graph = attention(Case())
    data = make_plan(graph, PassContext(TargetInfo("cuda"), options={"planner": "stitch"})).to_json()
    data["groups"][0]["kind"] = "contraction"
    with pytest.raises(PlanError, match="attention around"):
        check_plan(StitchPlan.from_json(data), graph)


# -- refusals ----------------------------------------------------------------------------------------------------------


def pieces(dtype: str = "float32", width: int = 8) -> tuple[Graph, Value, Value]:
    """A graph with scores [2, 5, 7], and values for them."""
    graph = Graph("g")
    q, k = (
        graph.add_input("q", TensorType(dtype, (2, 5, width))),
        graph.add_input("k", TensorType(dtype, (2, 7, width))),
    )
    return graph, graph.emit("matmul", q, k, trans_b=True), graph.add_input("v", TensorType(dtype, (2, 7, width)))


def refusal(graph: Graph) -> str:
    found = roles(graph)
    assert isinstance(found, WhyNot)
    assert "attention" not in kinds(planned(graph))
    return found.rule


def test_scores_that_others_need_are_stored() -> None:
    graph, scores, v = pieces()
    graph.outputs = [graph.emit("matmul", softmax(graph, scores), v), scores]
    assert refusal(graph) == "legality.scores_stored"
    plan = planned(graph)
    (why,) = [r for r in plan.refusals if r.rule == "legality.scores_stored"]
    assert why.subject == "matmul -> matmul_1"


def test_weights_that_others_need_are_stored() -> None:
    graph, scores, v = pieces()
    weights = softmax(graph, scores)
    graph.outputs = [graph.emit("matmul", weights, v), weights]
    assert refusal(graph) == "legality.scores_stored"


def test_softmax_over_queries_is_none_over_keys() -> None:
    graph, scores, v = pieces()
    turned = graph.emit("transpose", softmax(graph, graph.emit("transpose", scores, perm=(0, 2, 1))), perm=(0, 2, 1))
    graph.outputs = [graph.emit("matmul", turned, v)]
    assert refusal(graph) == "legality.attention_softmax"


def test_what_follows_the_softmax_must_be_linear() -> None:
    graph, scores, v = pieces()
    graph.outputs = [graph.emit("matmul", graph.emit("tanh", softmax(graph, scores)), v)]
    assert refusal(graph) == "legality.attention_linear"


def test_exponentials_without_the_largest_score_are_none_of_a_softmax() -> None:
    graph, scores, v = pieces()
    e = graph.emit("exp", scores)
    weights = graph.emit("div", e, graph.emit("reduce_sum", e, axes=(2,), keepdims=True))
    graph.outputs = [graph.emit("matmul", weights, v)]
    assert refusal(graph) == "legality.attention_softmax"


def test_wide_values_are_refused_with_their_width() -> None:
    graph, scores, v = pieces(width=264)
    graph.outputs = [graph.emit("matmul", softmax(graph, scores), v)]
    assert refusal(graph) == "legality.attention_width"
    found = roles(graph)
    assert isinstance(found, WhyNot)
    assert found.numbers == {"width": 264, "limit": 256}


@pytest.mark.parametrize(("case", "numbers"), [
    (Case(keys=0), {"keys": 0, "width": 8}), (Case(width=0), {"keys": 7, "width": 0}),
])  # fmt: skip
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_scores_of_nothing_are_no_attention(case: Case, numbers: dict[str, int], target: str) -> None:
    graph = attention(case)
    plan = planned(graph, target=target)
    assert "attention" not in kinds(plan)
    check_plan(plan, graph)
    refused = roles(graph)
    assert isinstance(refused, WhyNot) and refused.rule == "legality.attention_empty" and refused.numbers == numbers


def test_values_made_of_the_scores_are_refused() -> None:
    graph, scores, _ = pieces()
    values = graph.emit("transpose", scores, perm=(0, 2, 1))
    graph.outputs = [graph.emit("matmul", softmax(graph, scores), values)]
    assert refusal(graph).startswith("legality.attention")


def test_few_queries_are_left_apart_on_a_cpu_with_the_numbers() -> None:
    plan = planned(attention(Case(queries=1, keys=33)), target="cpu")
    assert "attention" not in kinds(plan)
    (why,) = [r for r in plan.refusals if r.rule == "attention.profit"]
    assert why.numbers["queries"] == 1


@pytest.mark.parametrize(("heads", "links", "kernels"), [(2, 1, 1), (16, 40, 2)])
def test_a_mask_that_takes_long_to_compute_is_stored_once_for_all_heads(heads: int, links: int, kernels: int) -> None:
    graph = Graph("g")
    q, k, v = (graph.add_input(name, TensorType("float32", (heads, 64, 8))) for name in "qkv")
    mask = graph.add_input("m", TensorType("float32", (1, 64, 64)))
    for _ in range(links):
        mask = graph.emit("mul", mask, graph.emit("maximum", mask, graph.constant(np.float32(0.5))))
    scores = graph.emit("add", graph.emit("matmul", q, k, trans_b=True), mask)
    graph.outputs = [graph.emit("matmul", softmax(graph, scores), v)]
    plan = make_plan(graph, PassContext(TargetInfo("cpu", 2), options={"planner": "stitch"}))
    check_plan(plan, graph)
    assert len(plan.groups) == kernels and "attention" in kinds(plan)


# -- bands -------------------------------------------------------------------------------------------------------------


def band(case: Case) -> Band | None:
    found = roles(attention(case))
    assert isinstance(found, Roles) and found.softmax is not None
    return band_of(found.softmax)


@pytest.mark.parametrize("mask", ["causal", "positions"])
def test_causal_masks_are_proved_from_positions(mask: str) -> None:
    assert band(Case(queries=9, keys=9, mask=mask)) == Band(None, 0)
    assert band(Case(queries=5, keys=9, mask=mask)) == Band(None, 4)


def test_a_window_has_two_ends() -> None:
    assert band(Case(queries=9, keys=9, mask="window")) == Band(-3, 0)


def test_adding_the_least_number_hides_like_infinity_if_the_row_has_another_key() -> None:
    least = float(np.finfo(np.float32).min)
    assert band(Case(queries=9, keys=9, mask="causal", low=least)) == Band(None, 0)
    assert band(Case(queries=9, keys=9, mask="window", low=least)) == Band(-3, 0)
    assert band(Case(queries=9, keys=9, mask="causal", low=-1e4)) is None  # a dot product may be as large
    # Rows that see no key weigh all keys alike, which those of -inf do not.
    assert band(Case(queries=9, keys=5, mask="causal", low=least)) is None
    assert band(Case(queries=9, keys=5, mask="causal")) == Band(None, -4)
    # What is hidden at run time, too, may be all that a row sees by position.
    assert band(Case(queries=9, keys=9, mask="positions", low=least)) is None


@pytest.mark.parametrize(("mask", "numbers"), [("causal", [0.0]), ("window", [0.0]), ("positions", [True])])
def test_inside_the_band_a_mask_by_position_is_one_number(mask: str, numbers: list[float]) -> None:
    found = roles(attention(Case(queries=9, keys=12, mask=mask)))
    assert isinstance(found, Roles) and found.softmax is not None
    seen = band_of(found.softmax)
    assert seen is not None and list(same_inside(found.softmax, seen).values()) == numbers


@pytest.mark.parametrize("mask", ["", "float", "bool"])
def test_masks_known_at_run_time_only_prove_nothing(mask: str) -> None:
    assert band(Case(queries=9, keys=9, mask=mask)) is None


def test_a_mask_that_hides_nothing_is_no_band() -> None:
    assert band(replace(Case(mask="causal"), queries=2, keys=40)) == Band(None, 38)
    assert band(Case(queries=1, keys=9, mask="causal")) is None


def test_masks_whose_nodes_are_read_twice_are_looked_at_once() -> None:
    """They would be looked at 2**60 times."""
    case = Case(mask="float")
    graph = attention(case)
    mask = next(v for v in graph.inputs if v.name == "mask")
    add = next(n for n in graph.nodes if mask in n.inputs)
    far = graph.emit("iota", shape=(case.queries, case.keys), axis=1, dtype="int64")
    for _ in range(60):
        far = graph.emit("add", far, far)
    bias = graph.emit("add", mask, graph.emit("cast", far, to=case.dtype))
    graph.set_input(add, add.inputs.index(mask), bias)
    graph.sort()
    assert kinds(planned(graph)) in (["attention"], ["injective", "attention"])
