"""The XLA baseline, rule by rule: a graph in its text form in, the nodes of its kernels out."""

import numpy as np
import pytest

from tests.networks import bert
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.passes.contract import PassContext
from tilestitch.passes.fusion.xla.run_time import kernel_us
from tilestitch.passes.pipeline import run_pipeline
from tilestitch.passes.plan import GroupKind, StitchPlan
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.planner import check_plan, make_plan

TARGETS = (TargetInfo("cpu"), TargetInfo("cuda", device="H200"))
CONSTANTS = {"0": np.ones((64, 64), np.float32), "1": np.ones(64, np.float32), "2": np.ones((3, 3, 8, 8), np.float32)}


def graph_of(inputs: str, outputs: str, *lines: str) -> Graph:
    body = "\n".join(f"  %{line}" for line in lines)
    return parse_graph(f"graph @main({inputs}) -> ({outputs}) {{\n{body}\n}}", CONSTANTS)


def plan_of(graph: Graph, planner: str = "xla", target: TargetInfo = TARGETS[0]) -> StitchPlan:
    plan = make_plan(graph, PassContext(target, options={"planner": planner}))
    check_plan(plan, graph)
    return plan


def kernels(graph: Graph) -> list[str]:
    """The nodes of each kernel, which are the same on both targets."""
    found = [[" ".join(g.nodes) for g in plan_of(graph, target=target).groups] for target in TARGETS]
    assert found[0] == found[1]
    return found[0]


def reasons(graph: Graph) -> set[str]:
    return {r.reason for r in plan_of(graph).refusals if r.rule == "xla"}


LAYER_NORM = graph_of(
    "%x: float32[8,64], %g: float32[64]", "%y",
    "n = constant [0.015625] : float32[]",
    "e = constant [0.00001] : float32[]",
    "s = reduce_sum(%x) {axes=[1], keepdims=true} : float32[8,1]",
    "m = mul(%s, %n) : float32[8,1]",
    "d = sub(%x, %m) : float32[8,64]",
    "q = mul(%d, %d) : float32[8,64]",
    "t = reduce_sum(%q) {axes=[1], keepdims=true} : float32[8,1]",
    "v = mul(%t, %n) : float32[8,1]",
    "a = add(%v, %e) : float32[8,1]",
    "r = sqrt(%a) : float32[8,1]",
    "z = div(%d, %r) : float32[8,64]",
    "y = mul(%z, %g) : float32[8,64]",
)  # fmt: skip


def softmax(axis: int) -> Graph:
    shape = "float32[1,64]" if axis == 0 else "float32[8,1]"
    return graph_of(
        "%x: float32[8,64]", "%y",
        f"m = reduce_max(%x) {{axes=[{axis}], keepdims=true}} : {shape}",
        "d = sub(%x, %m) : float32[8,64]",
        "e = exp(%d) : float32[8,64]",
        f"s = reduce_sum(%e) {{axes=[{axis}], keepdims=true}} : {shape}",
        "y = div(%e, %s) : float32[8,64]",
    )  # fmt: skip


# -- rows that meet a reduction of themselves ------------------------------------------------------------------------


def test_layer_normalisation_is_one_triton_kernel() -> None:
    assert kernels(LAYER_NORM) == ["s m d q t v a r z y"]


def test_softmax_over_the_last_axis_is_one_triton_kernel() -> None:
    assert kernels(softmax(axis=1)) == ["m d e s y"]


def test_over_another_axis_each_reduction_ends_a_kernel() -> None:
    assert kernels(softmax(axis=0)) == ["m", "d e s", "d e y"]
    assert "the kernel ends with the reduction m" in reasons(softmax(axis=0))


def test_what_precedes_softmax_joins_it_but_a_triton_kernel_has_one_result() -> None:
    lines = (
        "h = mul(%w, %w) : float32[8,64]",
        "m = reduce_max(%h) {axes=[1], keepdims=true} : float32[8,1]",
        "d = sub(%h, %m) : float32[8,64]",
    )
    assert kernels(graph_of("%w: float32[8,64]", "%d", *lines)) == ["h m d"]
    assert kernels(graph_of("%w: float32[8,64]", "%d, %h", *lines)) == ["h", "m d"]


def test_a_row_needed_elsewhere_before_its_reduction_is_no_diamond() -> None:
    graph = graph_of(
        "%x: float32[8,64]", "%y, %s",
        "s = reduce_sum(%x) {axes=[1], keepdims=true} : float32[8,1]",
        "t = sqrt(%s) : float32[8,1]",
        "u = tanh(%s) : float32[8,1]",
        "p = div(%x, %t) : float32[8,64]",
        "y = div(%p, %u) : float32[8,64]",
    )  # fmt: skip
    assert kernels(graph) == ["s", "t u p y"]


# -- reductions ------------------------------------------------------------------------------------------------------


def test_a_reduction_takes_what_it_reduces_and_operators_of_one_operand_after_it() -> None:
    graph = graph_of(
        "%x: float32[8,64], %w: float32[8]", "%y",
        "q = mul(%x, %x) : float32[8,64]",
        "s = reduce_sum(%q) {axes=[1], keepdims=false} : float32[8]",
        "r = sqrt(%s) : float32[8]",
        "y = add(%r, %w) : float32[8]",
    )  # fmt: skip
    assert kernels(graph) == ["q s r", "y"]


def test_sibling_reductions_of_one_tensor_share_a_kernel() -> None:
    graph = graph_of(
        "%x: float32[8,64]", "%s, %m",
        "q = mul(%x, %x) : float32[8,64]",
        "s = reduce_sum(%q) {axes=[1], keepdims=false} : float32[8]",
        "m = reduce_max(%x) {axes=[1], keepdims=false} : float32[8]",
    )  # fmt: skip
    assert kernels(graph) == ["q s m"]


def test_reductions_over_different_axes_do_not() -> None:
    graph = graph_of(
        "%x: float32[8,64]", "%s, %m",
        "s = reduce_sum(%x) {axes=[1], keepdims=false} : float32[8]",
        "m = reduce_max(%x) {axes=[0], keepdims=false} : float32[64]",
    )  # fmt: skip
    assert kernels(graph) == ["s", "m"]


def test_a_reduction_of_a_reduction_is_a_kernel_of_its_own() -> None:
    graph = graph_of(
        "%x: float32[8,64]", "%m",
        "s = reduce_sum(%x) {axes=[1], keepdims=false} : float32[8]",
        "m = reduce_max(%s) {axes=[0], keepdims=false} : float32[]",
    )  # fmt: skip
    assert kernels(graph) == ["s", "m"]


# -- element-wise work -----------------------------------------------------------------------------------------------


def test_a_producer_is_computed_again_in_all_of_its_consumers() -> None:
    graph = graph_of(
        "%x: float32[8,64]", "%a, %b",
        "h = add(%x, %x) : float32[8,64]",
        "t = transpose(%h) {perm=[1,0]} : float32[64,8]",
        "a = tanh(%t) : float32[64,8]",
        "b = reduce_sum(%h) {axes=[0], keepdims=false} : float32[64]",
    )  # fmt: skip
    assert kernels(graph) == ["h t a", "h b"]


def test_siblings_of_one_shape_share_a_kernel() -> None:
    graph = graph_of(
        "%x: float32[8,64], %w: float32[8,64]", "%a, %b",
        "a = tanh(%x) : float32[8,64]",
        "b = mul(%x, %w) : float32[8,64]",
    )  # fmt: skip
    assert kernels(graph) == ["a b"]


def test_parts_of_a_tensor_that_do_not_overlap_are_read_by_kernels_of_their_own() -> None:
    graph = graph_of(
        "%x: float32[8,64]", "%a, %b",
        "l = slice(%x) {starts=[0,0], steps=[1,1], sizes=[8,32]} : float32[8,32]",
        "r = slice(%x) {starts=[0,32], steps=[1,1], sizes=[8,32]} : float32[8,32]",
        "a = tanh(%l) : float32[8,32]",
        "b = tanh(%r) : float32[8,32]",
    )  # fmt: skip
    assert kernels(graph) == ["l a", "r b"]


def test_a_producer_that_a_library_needs_is_stored_by_the_kernel_of_another_reader() -> None:
    graph = graph_of(
        "%x: float32[8,64]", "%p, %y",
        "w = constant #sha256:0 : float32[64,64]",
        "h = tanh(%x) : float32[8,64]",
        "p = matmul(%h, %w) : float32[8,64]",
        "y = add(%h, %x) : float32[8,64]",
    )  # fmt: skip
    assert kernels(graph) == ["h y", "p"]


def test_a_broadcast_is_read_where_it_lies() -> None:
    graph = graph_of(
        "%x: float32[8,64], %b: float32[64]", "%y",
        "c = tanh(%b) : float32[64]",
        "y = add(%x, %c) : float32[8,64]",
    )  # fmt: skip
    assert kernels(graph) == ["c y"]


def test_a_reshape_is_nothing_to_a_library_and_joins_other_readers() -> None:
    graph = graph_of(
        "%x: float32[2,4,64]", "%p, %y",
        "w = constant #sha256:0 : float32[64,64]",
        "h = tanh(%x) : float32[2,4,64]",
        "r = reshape(%h) {shape=[8,64]} : float32[8,64]",
        "p = matmul(%r, %w) : float32[8,64]",
        "y = neg(%r) : float32[8,64]",
    )  # fmt: skip
    plan = plan_of(graph)
    assert [g.nodes for g in plan.groups] == [("h", "r", "y"), ("p",)] or plan.buffers.aliases == {"r": "h"}


# -- library calls ---------------------------------------------------------------------------------------------------


def gemm(*after: str, output: str = "%y") -> Graph:
    lines = ("w = constant #sha256:0 : float32[64,64]", "b = constant #sha256:1 : float32[64]",
             "p = matmul(%x, %w) : float32[8,64]", "a = add(%p, %b) : float32[8,64]")  # fmt: skip
    return graph_of("%x: float32[8,64], %r: float32[8,64]", output, *lines, *after)


def gelu(cube: float) -> tuple[str, ...]:
    return (
        "k0 = constant [0.5] : float32[]", "k1 = constant [1.0] : float32[]",
        "k2 = constant [0.7978846] : float32[]", f"k3 = constant [{cube}] : float32[]",
        "g1 = mul(%a, %a) : float32[8,64]", "g2 = mul(%g1, %a) : float32[8,64]", "g3 = mul(%g2, %k3) : float32[8,64]",
        "g4 = add(%a, %g3) : float32[8,64]", "g5 = mul(%g4, %k2) : float32[8,64]", "g6 = tanh(%g5) : float32[8,64]",
        "g7 = add(%g6, %k1) : float32[8,64]", "g8 = mul(%a, %k0) : float32[8,64]", "y = mul(%g8, %g7) : float32[8,64]",
    )  # fmt: skip


def test_a_gemm_takes_a_bias_relu_and_a_residual() -> None:
    after = ("z = constant [0.0] : float32[]", "c = maximum(%a, %z) : float32[8,64]", "y = add(%c, %r) : float32[8,64]")
    assert kernels(gemm(*after)) == ["p a c y"]


def test_a_gemm_takes_gelu_by_tanh_and_no_other_function_that_reads_its_result_twice() -> None:
    assert kernels(gemm(*gelu(0.044715))) == ["p a g1 g2 g3 g4 g5 g6 g7 g8 y"]
    assert kernels(gemm(*gelu(0.5))) == ["p a", "g1 g2 g3 g4 g5 g6 g7 g8 y"]


def test_nothing_follows_gelu_in_a_gemm() -> None:
    after = (*gelu(0.044715), "n = add(%y, %r) : float32[8,64]")
    assert kernels(gemm(*after, output="%n")) == ["p a g1 g2 g3 g4 g5 g6 g7 g8 y", "n"]


def test_a_gemm_ends_where_its_result_has_another_reader() -> None:
    after = ("t = tanh(%a) : float32[8,64]", "y = mul(%t, %a) : float32[8,64]")
    assert kernels(gemm(*after)) == ["p a", "t y"]


def test_a_gemm_computes_nothing_as_it_reads_but_moves_axes() -> None:
    graph = graph_of(
        "%x: float32[64,8]", "%p",
        "w = constant #sha256:0 : float32[64,64]",
        "h = tanh(%x) : float32[64,8]",
        "t = transpose(%h) {perm=[1,0]} : float32[8,64]",
        "p = matmul(%t, %w) : float32[8,64]",
    )  # fmt: skip
    assert kernels(graph) == ["h", "t p"]


def test_gemms_of_one_operand_are_merged() -> None:
    graph = graph_of(
        "%x: float32[8,64]", "%p, %q",
        "w = constant #sha256:0 : float32[64,64]",
        "h = tanh(%x) : float32[8,64]",
        "p = matmul(%h, %w) : float32[8,64]",
        "q = matmul(%h, %w) {trans_b=true} : float32[8,64]",
    )  # fmt: skip
    groups = plan_of(graph).groups
    assert [g.kind for g in groups] == [GroupKind.INJECTIVE, GroupKind.STITCHED]


def convolution(groups: int, *after: str) -> Graph:
    weight = "float32[3,3,8,8]" if groups == 1 else "float32[3,3,1,8]"
    attrs = "strides=[1,1], before=[1,1], after=[1,1], dilations=[1,1]"
    shape = "float32[1,6,6,8]"
    lines = [f'p = conv(%x, %w) {{{attrs}, groups={groups}, layout="NXC"}} : {shape}', f"a = add(%p, %b) : {shape}"]
    lines += [f"{line} : {shape}" for line in after]
    return graph_of(f"%x: {shape}, %r: {shape}, %b: float32[8], %w: {weight}", "%y", *ZERO_AND_SIX, *lines)


ZERO_AND_SIX = ("z = constant [0.0] : float32[]", "k = constant [6.0] : float32[]")


def test_a_convolution_takes_a_bias_a_side_input_and_relu() -> None:
    assert kernels(convolution(1, "c = add(%a, %r)", "y = maximum(%c, %z)")) == ["p a c y"]


def test_of_float32_it_does_not_clamp_at_six() -> None:
    assert kernels(convolution(1, "c = maximum(%a, %z)", "y = minimum(%c, %k)")) == ["p a c", "y"]


def test_nothing_is_added_after_relu() -> None:
    assert kernels(convolution(1, "c = maximum(%a, %z)", "y = add(%c, %r)")) == ["p a c", "y"]


def test_a_depthwise_convolution_takes_nothing() -> None:
    assert kernels(convolution(8, "y = maximum(%a, %z)")) == ["p", "a y"]


# -- recurrent networks, and the whole -------------------------------------------------------------------------------


def lstm_steps(steps: int) -> Graph:
    lines = ["w = constant #sha256:0 : float32[64,64]", "c0 = constant #sha256:1 : float32[64]",
             "h0 = slice(%x) {starts=[0,0], steps=[1,1], sizes=[1,64]} : float32[1,64]"]  # fmt: skip
    gates = "float32[1,16]"
    lines[1] = f"c0 = slice(%h0) {{starts=[0,0], steps=[1,1], sizes=[1,16]}} : {gates}"
    for t in range(1, steps + 1):
        lines += [f"p{t} = matmul(%h{t - 1}, %w) : float32[1,64]"]
        lines += [
            f"{gate}{t} = slice(%p{t}) {{starts=[0,{16 * i}], steps=[1,1], sizes=[1,16]}} : {gates}"
            for i, gate in enumerate("ifog")
        ]
        lines += [f"t{gate}{t} = tanh(%{gate}{t}) : {gates}" for gate in "ifog"]
        lines += [f"u{t} = mul(%ti{t}, %tg{t}) : {gates}", f"k{t} = mul(%tf{t}, %c{t - 1}) : {gates}",
                  f"c{t} = add(%u{t}, %k{t}) : {gates}", f"n{t} = tanh(%c{t}) : {gates}",
                  f"o_{t} = mul(%to{t}, %n{t}) : {gates}",
                  f"h{t} = concat(%o_{t}, %o_{t}, %o_{t}, %o_{t}) {{axis=1}} : float32[1,64]"]  # fmt: skip
    order = [lines[0], lines[2], lines[1], *lines[3:]]
    return graph_of("%x: float32[8,64]", f"%h{steps}", *order)


def test_a_step_of_an_lstm_is_a_gemm_and_a_kernel_that_computes_earlier_cells_again() -> None:
    """The cell of a step is needed by its result and by the next cell: it is stored where the kernel gets too large."""
    groups = plan_of(lstm_steps(6)).groups
    stored = [g.outputs for g in groups if g.kind is not GroupKind.CONTRACTION]
    assert stored == [("h0",), ("h1",), ("h2",), ("c3",), ("h3",), ("h4",), ("h5",), ("h6",)]
    assert len(groups) < len(plan_of(lstm_steps(6), "injective").groups)


@pytest.mark.parametrize("target", TARGETS, ids=["cpu", "cuda"])
def test_it_launches_no_more_than_injective(target: TargetInfo) -> None:
    graph = import_model(bert(layers=2)).graph
    counts = {}
    for planner in ("xla", "injective"):
        context = PassContext(target, options={"planner": planner})
        counts[planner] = len(make_plan(run_pipeline(graph, context), context).groups)
    assert counts["xla"] < counts["injective"]


def test_every_border_says_why() -> None:
    assert "the kernel ends with the reduction m" in reasons(softmax(axis=0))
    twice = ("t = tanh(%a) : float32[8,64]", "y = mul(%t, %a) : float32[8,64]")
    assert "no epilogue of the GEMM p reads a like that" in reasons(gemm(*twice))


def test_xla_expects_work_repeated_for_each_element_to_take_longer_and_a_triton_kernel_to_repeat_none() -> None:
    for axis, repeats in ((0, 8), (1, 1)):
        fold, subtract, *_ = softmax(axis).nodes
        together = kernel_us([fold, subtract], [subtract.output])
        apart = kernel_us([fold], [fold.output]) + kernel_us([subtract], [subtract.output])
        assert (together > apart) == (repeats > 1)


def test_a_plan_is_the_same_every_time_its_refusals_too() -> None:
    graph = import_model(bert(layers=2)).graph
    context = PassContext(options={"planner": "xla"})
    plans = [make_plan(run_pipeline(graph, context), context) for _ in range(8)]
    assert len({repr(p.refusals) for p in plans}) == 1


def test_sorting_takes_no_view_before_it_into_a_call() -> None:
    """A sort has several results; what reads none of them is no epilogue."""
    graph = graph_of(
        "%x: float32[4]", "%t.0, %t.1",
        "b = broadcast_to(%x) {shape=[3, 4]} : float32[3,4]",
        "t.0, %t.1 = top_k(%b) {axis=1, k=2, largest=true} : float32[3,2], int64[3,2]",
    )  # fmt: skip
    assert sorted(kernels(graph)) == ["b", "t.0"]
