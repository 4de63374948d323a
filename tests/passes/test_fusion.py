"""Fusion: what becomes one kernel, what may not, and that every plan computes what its graph says."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.passes.helpers import assert_close
from tests.passes.simulate import simulate
from tests.strategies import feeds, graphs
from tilestitch.compiler.ir import Graph, Node
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.passes import PassContext, StitchPlan, TargetInfo, WhyNot, check_plan, make_plan, run_pipeline
from tilestitch.passes.errors import PassContractError, PassError
from tilestitch.passes.fusion.clusters import Fusion
from tilestitch.passes.fusion.planners import PLANNERS
from tilestitch.passes.fusion.rules.builtin import Fuse


def plan_of(text: str, planner: str = "stitch", rules: Sequence[object] = (), target: str = "cpu") -> StitchPlan:
    """The checked plan of a graph, which is shown to compute the same as the graph."""
    graph = parse_graph(text)
    plan = make_plan(graph, PassContext(TargetInfo(target), {"planner": planner}, rules=rules))
    check_plan(plan, graph)
    inputs = feeds(graph)
    assert_close(evaluate(graph, inputs), simulate(plan, graph, inputs))
    return plan


def kernels(plan: StitchPlan) -> list[tuple[str, list[str]]]:
    by_name = {g.name: g for g in plan.groups}
    return [(by_name[n].kind.value, list(by_name[n].nodes)) for n in plan.launch_order if n in by_name]


def reasons(plan: StitchPlan) -> dict[str, str]:
    return {r.subject: r.rule for r in plan.refusals}


SOFTMAX = """graph @g(%x: float32[4,8], %m: float32[8]) -> (%y) {
  %a = add(%x, %m) : float32[4,8]
  %r = reduce_max(%a) {axes=[1], keepdims=true} : float32[4,1]
  %s = sub(%a, %r) : float32[4,8]
  %e = exp(%s) : float32[4,8]
  %t = reduce_sum(%e) {axes=[1], keepdims=true} : float32[4,1]
  %y = div(%e, %t) : float32[4,8]
}"""


def test_softmax_with_its_mask_is_one_kernel() -> None:
    plan = plan_of(SOFTMAX)
    assert kernels(plan) == [("rowwise", ["a", "r", "s", "e", "t", "y"])]
    assert plan.refusals == () and plan.buffers.arena_bytes == 0
    assert {(s.producer, s.consumer): s.scheme for s in plan.groups[0].stitches}[("r", "s")] == "row"


def test_layer_normalisation_is_one_kernel_whether_dims_are_kept_or_not() -> None:
    plan = plan_of("""graph @g(%x: float32[3,16], %w: float32[16]) -> (%y) {
      %n = constant [0.0625] : float32[]
      %u = reduce_sum(%x) {axes=[1], keepdims=false} : float32[3]
      %v = mul(%u, %n) : float32[3]
      %k = reshape(%v) {shape=[3,1]} : float32[3,1]
      %c = sub(%x, %k) : float32[3,16]
      %q = mul(%c, %c) : float32[3,16]
      %s = reduce_sum(%q) {axes=[1], keepdims=true} : float32[3,1]
      %d = sqrt(%s) : float32[3,1]
      %z = div(%c, %d) : float32[3,16]
      %y = mul(%z, %w) : float32[3,16]
    }""")
    assert [k for k, _ in kernels(plan)] == ["rowwise"]


def test_reductions_over_leading_axes_broadcast_without_kept_dims() -> None:
    plan = plan_of("""graph @g(%x: float32[5,3]) -> (%y) {
      %s = reduce_sum(%x) {axes=[0], keepdims=false} : float32[3]
      %y = sub(%x, %s) : float32[5,3]
    }""")
    assert kernels(plan) == [("rowwise", ["s", "y"])]


def test_a_reduced_value_may_not_be_read_across_rows() -> None:
    plan = plan_of("""graph @g(%x: float32[3,3]) -> (%y) {
      %s = reduce_sum(%x) {axes=[1], keepdims=false} : float32[3]
      %y = sub(%x, %s) : float32[3,3]
    }""")
    assert len(plan.groups) == 2
    assert reasons(plan) == {"s -> y": "legality.row_index"}


def test_reductions_over_other_axes_stay_apart() -> None:
    plan = plan_of("""graph @g(%x: float32[4,4]) -> (%a, %b) {
      %e = exp(%x) : float32[4,4]
      %a = reduce_sum(%e) {axes=[0], keepdims=true} : float32[1,4]
      %b = reduce_sum(%e) {axes=[1], keepdims=true} : float32[4,1]
    }""")
    assert len([k for k, _ in kernels(plan) if k == "rowwise"]) == 2


MATMUL = f"""graph @g(%x: float32[4,6], %r: float32[4,5]) -> (%y) {{
  %w = constant {[float(i) / 30 for i in range(30)]} : float32[6,5]
  %b = constant [1.0, 2.0, 3.0, 4.0, 5.0] : float32[5]
  %z = constant [0.0] : float32[]
  %m = matmul(%x, %w) : float32[4,5]
  %a = add(%m, %b) : float32[4,5]
  %c = add(%a, %r) : float32[4,5]
  %y = maximum(%c, %z) : float32[4,5]
}}"""


def test_bias_residual_and_activation_are_computed_on_the_gemms_result() -> None:
    plan = plan_of(MATMUL)
    assert kernels(plan) == [("contraction", ["m", "a", "c", "y"])]
    assert plan.groups[0].schemes == ("epilogue",)
    assert plan.groups[0].inputs == ("x", "r") and plan.groups[0].constants == ("w", "b", "z")


@pytest.mark.parametrize(("planner", "count"), [("none", 4), ("injective", 2), ("stitch", 1)])
def test_planners_differ_in_what_they_fuse(planner: str, count: int) -> None:
    assert len(plan_of(MATMUL, planner).groups) == count


def test_a_residual_that_goes_around_the_gemm_is_no_reason_for_a_cycle() -> None:
    plan = plan_of("""graph @g(%x: float32[4,4], %w: float32[4,4]) -> (%y) {
      %a = tanh(%x) : float32[4,4]
      %m = matmul(%a, %w) : float32[4,4]
      %y = add(%m, %a) : float32[4,4]
    }""")
    assert kernels(plan) == [("injective", ["a"]), ("contraction", ["m", "y"])]


def test_the_later_of_two_gemms_takes_their_sum() -> None:
    plan = plan_of("""graph @g(%x: float32[4,4], %w: float32[4,4]) -> (%y) {
      %m = matmul(%x, %w) : float32[4,4]
      %t = tanh(%m) : float32[4,4]
      %n = matmul(%t, %w) : float32[4,4]
      %y = add(%m, %n) : float32[4,4]
    }""")
    assert kernels(plan) == [("contraction", ["m", "t"]), ("contraction", ["n", "y"])]
    assert reasons(plan)["t -> n"] == "legality.one_anchor"


def test_heads_are_split_as_the_gemm_is_stored_and_read_through_views() -> None:
    plan = plan_of("""graph @g(%x: float32[6,8], %w: float32[8,8], %k: float32[6,8]) -> (%y) {
      %m = matmul(%x, %w) : float32[6,8]
      %r = reshape(%m) {shape=[6,2,4]} : float32[6,2,4]
      %t = transpose(%r) {perm=[1,0,2]} : float32[2,6,4]
      %q = reshape(%k) {shape=[6,2,4]} : float32[6,2,4]
      %s = transpose(%q) {perm=[1,0,2]} : float32[2,6,4]
      %y = matmul(%t, %s) {trans_b=true} : float32[2,6,6]
    }""")
    assert [n for _, n in kernels(plan)] == [["m", "r", "t"], ["q", "s", "y"]]


@pytest.mark.parametrize(
    ("channels", "pad", "target", "count"),
    [(3, 1, "cpu", 1), (3, 0, "cpu", 2), (32, 1, "cpu", 2), (3, 0, "cuda", 1), (4, 1, "cuda", 2)],
)
def test_the_first_convolution_reads_its_image_through_the_transpose(
    channels: int, pad: int, target: str, count: int
) -> None:
    size = 4 + 2 * pad
    plan = plan_of(
        f"""graph @g(%x: float32[1,{channels},6,6], %w: float32[3,3,{channels},2]) -> (%y) {{
      %t = transpose(%x) {{perm=[0,2,3,1]}} : float32[1,6,6,{channels}]
      %y = conv(%t, %w) {{strides=[1,1], before=[{pad},{pad}], after=[{pad},{pad}], dilations=[1,1], groups=1,
        layout="NXC"}} : float32[1,{size},{size},2]
    }}""",
        target=target,
    )
    assert len(kernels(plan)) == count


@pytest.mark.parametrize(("target", "size", "count"), [("cuda", 1, 1), ("cuda", 3, 2), ("cpu", 1, 2)])
def test_on_a_gpu_a_convolution_of_single_pixels_scales_its_image_as_it_reads_it(
    target: str, size: int, count: int
) -> None:
    plan = plan_of(
        f"""graph @g(%x: float32[1,6,6,32], %g: float32[1,1,1,32], %w: float32[{size},{size},32,8]) -> (%y) {{
      %s = mul(%x, %g) : float32[1,6,6,32]
      %y = conv(%s, %w) {{strides=[1,1], before=[0,0], after=[0,0], dilations=[1,1], groups=1,
        layout="NXC"}} : float32[1,{7 - size},{7 - size},8]
    }}""",
        target=target,
    )
    assert len(kernels(plan)) == count


def test_a_value_needed_outside_is_stored_by_an_epilogue_but_not_by_a_prologue() -> None:
    plan = plan_of("""graph @g(%x: float32[4,6], %w: float32[4,5]) -> (%y, %t, %m) {
      %t = transpose(%x) {perm=[1,0]} : float32[6,4]
      %m = matmul(%t, %w) : float32[6,5]
      %y = exp(%m) : float32[6,5]
    }""")
    assert kernels(plan) == [("injective", ["t"]), ("contraction", ["m", "y"])]
    assert reasons(plan) == {"t -> m": "legality.pulled_stored"}


def test_a_window_takes_an_epilogue_and_a_scan_takes_nothing() -> None:
    plan = plan_of("""graph @g(%x: float32[1,6,6,2]) -> (%y, %q) {
      %c = constant [0.25] : float32[]
      %w = window_reduce(%x) {reducer="sum", kernel=[2,2], strides=[2,2], before=[0,0], after=[0,0], dilations=[1,1],
        layout="NXC"} : float32[1,3,3,2]
      %y = mul(%w, %c) : float32[1,3,3,2]
      %p = cumulative(%y) {axis=3, reducer="sum", exclusive=false, reverse=false} : float32[1,3,3,2]
      %q = neg(%p) : float32[1,3,3,2]
    }""")
    assert [n for _, n in kernels(plan)] == [["w", "y"], ["p"], ["q"]]
    assert reasons(plan)["p -> q"] == "legality.opaque_alone"


def test_an_operator_with_two_results_stores_both() -> None:
    plan = plan_of("""graph @g(%x: float32[3,6]) -> (%y) {
      %v, %i = top_k(%x) {k=2, axis=1, largest=true} : float32[3,2], int64[3,2] node "top"
      %y = neg(%v) : float32[3,2]
    }""")
    assert set(plan.group("top_k").outputs) == {"v", "i"}


def test_an_expensive_value_is_not_computed_again_for_every_row_it_is_broadcast_to() -> None:
    plan = plan_of("""graph @g(%x: float32[512], %y: float32[256,512]) -> (%z) {
      %e = exp(%x) : float32[512]
      %z = add(%y, %e) : float32[256,512]
    }""")
    assert len(plan.groups) == 2
    refusal = next(r for r in plan.refusals if r.subject == "e -> z")
    assert refusal.rule == "profit.recompute" and refusal.numbers["operations_again"] > 1_000_000


@pytest.mark.parametrize(("reads", "kernels_of_it"), [(2, 1), (3, 2)])
def test_a_turned_image_that_gathers_pick_from_is_stored_if_they_are_many(reads: int, kernels_of_it: int) -> None:
    """Otherwise each reads it element by element."""
    indices = ", ".join(f"%i{k}: int64[2,1024,1]" for k in range(reads))
    gathers = "".join(
        f"%g{k} = gather_nd(%t, %i{k}) {{batch_dims=1}} : float32[2,1024,61]\n"
        f"%s{k + 1} = add(%s{k}, %g{k}) : float32[2,1024,61]\n"
        for k in range(reads)
    )
    plan = plan_of(f"""graph @g(%x: float32[2,61,1024], %s0: float32[2,1024,61], {indices}) -> (%s{reads}) {{
      %t = transpose(%x) {{perm=[0,2,1]}} : float32[2,1024,61]
      {gathers}
    }}""")
    assert len(kernels(plan)) == kernels_of_it


def test_the_steps_of_a_recurrence_are_not_computed_again_by_each_gemm_that_reads_one() -> None:
    steps = [("x", "a")] + [(f"h{i}", "a") for i in range(1, 12)]
    states = "".join(
        f"%m{i} = mul(%{h}, %{a}) : float32[64,512]\n%h{i} = add(%m{i}, %x) : float32[64,512]\n"
        f"%y{i} = matmul(%h{i}, %w) : float32[64,2]\n"
        for i, (h, a) in enumerate(steps, 1)
    )
    results = ", ".join(f"%y{i}" for i in range(1, len(steps) + 1))
    plan = plan_of(f"""graph @g(%x: float32[64,512], %a: float32[64,512], %w: float32[512,2]) -> ({results}) {{
      {states}
    }}""")
    held = [n for g in plan.groups for part in g.parts or (g,) for n in part.nodes]
    assert sum(n.startswith("m") for n in held) < 3 * len(steps)


def test_an_embedding_is_stored_by_the_kernel_that_normalises_its_rows() -> None:
    plan = plan_of("""graph @g(%t: float32[50,16], %i: int64[7]) -> (%e, %y) {
      %e = gather(%t, %i) {axis=0} : float32[7,16]
      %s = reduce_sum(%e) {axes=[1], keepdims=true} : float32[7,1]
      %y = div(%e, %s) : float32[7,16]
    }""")
    assert kernels(plan) == [("rowwise", ["e", "s", "y"])]


def test_cheap_values_are_computed_by_each_of_their_readers() -> None:
    plan = plan_of("""graph @g(%x: float32[4,3], %y: float32[4,4]) -> (%a, %b) {
      %i = iota() {shape=[4], axis=0, dtype="float32"} : float32[4]
      %k = reshape(%i) {shape=[4,1]} : float32[4,1]
      %a = add(%x, %k) : float32[4,3]
      %b = add(%y, %i) : float32[4,4]
    }""")
    (group,) = plan.groups  # the two are packed
    assert sum("i" in part.nodes for part in group.parts) == 2
    assert "duplicate" in group.schemes


def test_a_reshape_between_kernels_needs_none() -> None:
    plan = plan_of("""graph @g(%x: float32[4,6], %w: float32[3,2]) -> (%y) {
      %a = reduce_max(%x) {axes=[0], keepdims=false} : float32[6]
      %r = reshape(%a) {shape=[2,3]} : float32[2,3]
      %y = matmul(%r, %w) : float32[2,2]
    }""")
    assert [n for _, n in kernels(plan)] == [["a"], ["y"]]
    assert plan.buffers.aliases == {"r": "a"}


def test_host_steps_split_the_launch_order_into_few_segments() -> None:
    plan = plan_of("""graph @g(%x: float32[4]) -> (%y, %z, %n) {
      %a = neg(%x) : float32[4]
      %u = cast(%x) {to="float8_e5m2fnuz"} : float8_e5m2fnuz[4]
      %b = cast(%a) {to="float8_e5m2fnuz"} : float8_e5m2fnuz[4]
      %c = cast(%b) {to="float32"} : float32[4]
      %y = exp(%c) : float32[4]
      %z = abs(%a) : float32[4]
      %n = cast(%u) {to="float32"} : float32[4]
    }""")
    assert [s.native for s in plan.segments] == [True, False, True]
    assert reasons(plan)["b"] == "legality.native"
    assert plan.buffers.buffers == ()  # what host steps read or write is not in the arena


def test_nested_graphs_have_plans_of_their_own() -> None:
    plan = plan_of("""graph @g(%x: float32[2], %c: bool[]) -> (%y) {
      %y = if(%c, %x) {else_graph=graph @e(%m: float32[2]) -> (%q) {
        %q = neg(%m) : float32[2]
      }, then_graph=graph @f(%m: float32[2]) -> (%q) {
        %a = exp(%m) : float32[2]
        %q = abs(%a) : float32[2]
      }} : float32[2]
    }""")
    assert set(plan.bodies) == {"y.else_graph", "y.then_graph"}
    assert [len(b.groups) for b in plan.bodies.values()] == [1, 1]


def test_every_border_between_kernels_has_a_reason() -> None:
    graph = run_pipeline(parse_graph(SOFTMAX), PassContext())
    for planner in PLANNERS:
        plan = make_plan(graph, PassContext(options={"planner": planner}))
        home = {n: g.name for g in plan.groups for n in g.nodes}
        borders = {(v.producer.name, n.name) for n in graph.nodes for v in n.inputs if v.producer}
        open_borders = {(home[a], home[b]) for a, b in borders if home[a] != home[b]}
        named = {tuple(home[n] for n in r.subject.split(" -> ")) for r in plan.refusals if " -> " in r.subject}
        assert open_borders <= named


def test_an_unknown_planner_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(PassError, match="none, injective, xla, stitch"):
        make_plan(parse_graph(SOFTMAX), PassContext(options={"planner": "magic"}))


# -- rules of others ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeepApart:
    op: str = "exp"
    name: ClassVar[str] = "keep_apart"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        return iter(())

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        lonely = [n for n in nodes if n.op == self.op]
        return WhyNot(lonely[0].name, self.name, f"{self.op} stays alone") if lonely and len(nodes) > 1 else None


@dataclass(frozen=True)
class Together:
    forced: bool = True
    name: ClassVar[str] = "together"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        yield Fuse(tuple(state.nodes), forced=self.forced)

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        return None


def test_a_rule_can_forbid_what_others_propose() -> None:
    plan = plan_of(SOFTMAX, rules=[KeepApart()])
    assert ["e"] in [n for _, n in kernels(plan)]
    assert "keep_apart" in {r.rule for r in plan.refusals}


def test_a_rule_can_force_what_is_legal_even_if_it_does_not_pay() -> None:
    text = """graph @g(%x: float32[512], %y: float32[256,512]) -> (%z) {
      %e = exp(%x) : float32[512]
      %z = add(%y, %e) : float32[256,512]
    }"""
    plan = plan_of(text, rules=[Together()])
    assert kernels(plan) == [("injective", ["e", "z"])]
    assert plan.groups[0].stitches[0].rule == "together"
    assert len(plan_of(text, rules=[Together(forced=False)]).groups) == 2


@pytest.mark.parametrize("names", ["eyz", "yez"])
def test_a_proposal_may_name_a_node_that_is_only_copied_by_then(names: str) -> None:
    class Copied(Together):
        def propose(self, state: Fusion) -> Iterator[Fuse]:
            of = {n.name: n for n in state.nodes}
            yield from (Fuse((of[name],), (of["e"],), forced=True) for name in "yz")
            yield Fuse(tuple(of[name] for name in names), forced=True)

    text = """graph @g(%x: float32[4,4]) -> (%y, %z) {
      %e = exp(%x) : float32[4,4]
      %y = mul(%e, %x) : float32[4,4]
      %z = neg(%e) : float32[4,4]
    }"""
    assert kernels(plan_of(text, rules=[Copied()])) == [("injective", ["e", "y", "z"])]


def test_a_forced_group_that_is_not_legal_is_refused_with_the_reason() -> None:
    text = """graph @g(%x: float32[4,4]) -> (%y) {
      %m = matmul(%x, %x) : float32[4,4]
      %y = matmul(%m, %x) : float32[4,4]
    }"""
    plan = plan_of(text, rules=[Together()])
    assert reasons(plan) == {"m + y": "legality.one_anchor", "m -> y": "legality.one_anchor"}


def test_a_rule_that_proposes_something_else_is_told_so() -> None:
    class Wrong(Together):
        def propose(self, state: Fusion) -> Iterator[Fuse]:
            yield "x"  # type: ignore[misc]

    with pytest.raises(PassContractError, match="not a Fuse"):
        plan_of(SOFTMAX, rules=[Wrong()])


# -- random graphs -----------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(graphs(max_nodes=12), st.sampled_from(sorted(PLANNERS)), st.booleans())
def test_plans_of_random_graphs_are_legal_and_right(graph: Graph, planner: str, rewrite: bool) -> None:
    if rewrite:
        graph = run_pipeline(graph, PassContext())
    plan = make_plan(graph, PassContext(options={"planner": planner}))
    check_plan(plan, graph)
    assert StitchPlan.from_json(plan.to_json()) == plan
    inputs = feeds(graph)
    assert_close(evaluate(graph, inputs), simulate(plan, graph, inputs))


TURNED = """graph @g(%x: float32[64,48], %i: int64[ROWS]) -> (%y) {
  %t = transpose(%x) {perm=[1, 0]} : float32[48,64]
  %g = gather(%t, %i) {axis=0} : float32[ROWS,64]
  %y = exp(%g) : float32[ROWS,64]
}"""


def test_what_is_read_many_times_through_a_transpose_is_stored_once_on_cpus() -> None:
    """Else each of many reads loads element by element what lies apart."""

    def groups(rows: int, target: str) -> list[list[str]]:
        text = TURNED.replace("ROWS", str(rows))
        return [nodes for _, nodes in kernels(plan_of(text, target=target))]

    assert len(groups(1000, "cpu")) == 2
    assert len(groups(40, "cpu")) == 1
    assert len(groups(1000, "cuda")) == 1
