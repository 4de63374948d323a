"""Open graphs whose ranges are so short that an order is open, or a size in memory is the same for all of them."""

from __future__ import annotations

from tilestitch.compiler.ir.sizes import is_open
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.passes import PassContext, StitchPlan, check_plan, make_plan, run_pipeline
from tilestitch.passes.host_steps import refused_kernels
from tilestitch.passes.plan.target import TargetInfo

GPU = TargetInfo("cuda", 1, "H200", ("sm_90a",))


def planned(text: str) -> StitchPlan:
    """The plan of what the pipeline makes of a graph, checked."""
    graph = run_pipeline(parse_graph(text), PassContext(GPU))
    plan = make_plan(graph, PassContext(GPU))
    check_plan(plan, graph)
    return plan


def test_gemms_of_one_operand_with_one_element_or_more() -> None:
    plan = planned("""graph @main[n=1..2](%x: float32[n,2]) -> (%y, %z) {
  %w = constant [1.0, 2.0] : float32[2,1]
  %v = constant [3.0, 4.0] : float32[2,1]
  %a = matmul(%x, %w) : float32[n,1]
  %b = matmul(%x, %v) : float32[n,1]
  %y = reduce_sum(%a) {axes=[0], keepdims=false} : float32[1]
  %z = reduce_max(%b) {axes=[0], keepdims=false} : float32[1]
}""")
    assert not plan.host_groups


def test_an_arena_of_one_size_holds_values_of_open_sizes() -> None:
    """Up to 16 floats fill the 64 bytes that 16 do."""
    plan = planned("""graph @main[n=1..16](%x: float32[n], %w: float32[16,16]) -> (%y) {
  %a = reduce_sum(%w) {axes=[0], keepdims=false} : float32[16]
  %b = cumulative(%a) {axis=0, exclusive=false, reducer="sum", reverse=false} : float32[16]
  %c = cumulative(%b) {axis=0, exclusive=false, reducer="sum", reverse=true} : float32[16]
  %d = reduce_sum(%c) {axes=[0], keepdims=true} : float32[1]
  %e = add(%x, %d) : float32[n]
  %f = cumulative(%e) {axis=0, exclusive=false, reducer="sum", reverse=false} : float32[n]
  %g = cumulative(%f) {axis=0, exclusive=false, reducer="sum", reverse=true} : float32[n]
  %y = cumulative(%g) {axis=0, exclusive=false, reducer="sum", reverse=false} : float32[n]
}""")
    assert not is_open(plan.buffers.arena_bytes)
    assert any(is_open(b.nbytes) for b in plan.buffers.buffers)
    assert plan.buffers.is_open


def test_what_has_no_kernel_at_all_sizes_is_no_mistake_of_the_plan() -> None:
    plan = planned("""graph @main[n=1..2](%x: float32[n,n]) -> (%y) {
  %s = matmul(%x, %x) {trans_b=true} : float32[n,n]
  %m = reduce_max(%s) {axes=[1], keepdims=true} : float32[n,1]
  %d = sub(%s, %m) : float32[n,n]
  %e = exp(%d) : float32[n,n]
  %t = reduce_sum(%e) {axes=[1], keepdims=true} : float32[n,1]
  %p = div(%e, %t) : float32[n,n]
  %y = matmul(%p, %x) : float32[n,n]
}""")
    assert refused_kernels(plan).keys() == {group.name for group in plan.host_groups}


def test_rows_times_a_vector_of_weights_may_be_one_row() -> None:
    """At one row there is no matrix to read as it lies, for which rows have their schedule."""
    weights = ", ".join(["1.0"] * 256)
    graph = parse_graph(f"""graph @main[n=1..](%x: float32[n,256]) -> (%y) {{
  %w = constant [{weights}] : float32[1,256]
  %a = matmul(%x, %w) {{trans_b=true}} : float32[n,1]
  %y = exp(%a) : float32[n,1]
}}""")
    plan = make_plan(graph, PassContext(TargetInfo("cpu", 1)))
    check_plan(plan, graph)
    assert len(plan.groups) == 1 and not plan.host_groups
