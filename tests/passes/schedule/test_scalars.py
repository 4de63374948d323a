"""On CPUs only what is evaluated element by element counts as that: what moves elements along the last dimension."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.replay.catalogue import decoder
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.compiler.measure.shuffled import Shuffled
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.passes import PassContext, TargetInfo, make_plan, run_pipeline
from tilestitch.passes.plan.cpu.loops import LoopPlan
from tilestitch.passes.plan.cpu.schedules import CpuGemmSchedule, CpuGemvSchedule, CpuLoopSchedule
from tilestitch.passes.schedule.cpu.loops import choose_loops
from tilestitch.passes.schedule.cpu.scalars import DIVIDED, STRIDED, apart, scalar_steps, scalars
from tilestitch.passes.schedule.device import device_of
from tilestitch.passes.schedule.facts import group_facts, nodes_by_name

TARGET = TargetInfo("cpu", 1, isa="avx512")
ISA = TARGET.core
MOVED = {
    "concat(%x, %x) {axis = 1} : float32[6,16]": 2,
    "concat(%x, %x, %x) {axis = 1} : float32[6,24]": 3,
    "concat(%x, %x) {axis = 0} : float32[12,8]": 0,
    "pad(%x) {before = [0, 1], after = [0, 0], mode = \"constant\"} : float32[6,9]": 1,
    "pad(%x) {before = [1, 0], after = [2, 0], mode = \"constant\"} : float32[9,8]": 0,
    "gather(%x, %i) {axis = 1} : float32[6,3]": 1,
    "gather(%x, %i) {axis = 0} : float32[3,8]": 0,
    "gather_elements(%x, %e) {axis = 0} : float32[2,8]": 2,
    "gather_nd(%x, %p) {batch_dims = 0} : float32[4]": 2,
    "gather_nd(%x, %r) {batch_dims = 0} : float32[4,8]": 0,
    "neg(%x) : float32[6,8]": 0,
}  # fmt: skip


def graph(lines: str, inputs: str = "%x: float32[6,8]") -> Graph:
    return parse_graph(f"graph @g({inputs}) -> (%y) {{\n{lines}\n}}")


@pytest.mark.parametrize("moved", MOVED)
def test_steps_of_an_element(moved: str) -> None:
    inputs = "%x: float32[6,8], %i: int64[3], %e: int64[2,8], %p: int64[4,2], %r: int64[4,1]"
    (node,) = graph(f"  %y = {moved}", inputs).nodes
    assert scalar_steps(node) == MOVED[moved]


def test_rows_that_begin_anywhere_in_padded_rows_are_located_by_divisions() -> None:
    lines = '  %p = pad(%x) {before = [0, 1], after = [0, 0], mode = "constant"} : float32[6,9]\n'
    nodes = graph(lines + "  %y = reshape(%p) {shape = [9, 6]} : float32[9,6]").nodes
    counts = {node.output: 54.0 for node in nodes}
    assert [each.operations for each in scalars(nodes, counts, "float32")] == [54 + DIVIDED * 54]
    assert not list(scalars(nodes[1:], counts, "float32"))


SHIFTED = """
  %p = matmul(%q, %r) {trans_b = true} : float32[1,4,80,159]
  %o = pad(%p) {before = [0, 0, 0, 1], after = [0, 0, 0, 0], mode = "constant"} : float32[1,4,80,160]  node "pad"
  %a = reshape(%o) {shape = [1, 4, 160, 80]} : float32[1,4,160,80]
  %b = slice(%a) {starts = [0, 0, 1, 0], sizes = [1, 4, 159, 80], steps = [1, 1, 1, 1]} : float32[1,4,159,80]
  %c = reshape(%b) {shape = [1, 4, 80, 159]} : float32[1,4,80,159]
  %d = slice(%c) {starts = [0, 0, 0, 0], sizes = [1, 4, 80, 80], steps = [1, 1, 1, 1]} : float32[1,4,80,80]
  %s = matmul(%q, %k) {trans_b = true} : float32[1,4,80,80]
  %t = add(%s, %d) : float32[1,4,80,80]
  %m = reduce_max(%t) {axes = [3], keepdims = true} : float32[1,4,80,1]
  %u = sub(%t, %m) : float32[1,4,80,80]
  %e = exp(%u) : float32[1,4,80,80]  node "exp"
  %n = reduce_sum(%e) {axes = [3], keepdims = true} : float32[1,4,80,1]
  %w = div(%e, %n) : float32[1,4,80,80]
  %y = matmul(%w, %v) : float32[1,4,80,16]"""


def test_padded_scores_by_relative_position_are_stored_before_attention() -> None:
    """As Conformers shift them: the kernel then reads contiguous elements."""
    inputs = ", ".join(f"%{name}: float32[1,4,{rows},16]" for name, rows in zip("qkvr", (80, 80, 80, 159), strict=True))
    *_, attention = make_plan(graph(SHIFTED, inputs), PassContext(TARGET, {"planner": "explore"})).groups
    assert "exp" in attention.nodes and "pad" not in attention.nodes


def fused(x: str, prologue: str) -> tuple[int, float, float]:
    """Scalar steps of a GEMM with what comes before it in one kernel, and its prediction over that of kernels apart."""
    made = graph(f"{prologue}\n  %y = matmul(%v, %w) : float32[256,64]", f"%x: {x}, %w: float32[256,64]")
    context = PassContext(TARGET, rules=(Shuffled(1, 1.0, forced=True),))
    device, totals, steps = device_of(TARGET), [], 0
    for plan in (make_plan(made, context), make_plan(made, PassContext(TARGET, {"planner": "none"}))):
        facts = [group_facts(nodes_by_name(made), group, TARGET, context.cost_model) for group in plan.groups]
        totals.append(sum(one.latency_us for one in AnalyticalModel().predict(facts, device)))
        steps = steps or sum(kernel.operations("scalar") for kernel in facts)
    assert len(make_plan(made, context).groups) == 1
    return steps, *totals


def test_what_comes_before_a_gemm_in_vectors_costs_hardly_more_than_apart() -> None:
    prologue = "  %c = neg(%x) : float32[128,256]\n  %v = concat(%c, %x) {axis = 0} : float32[256,256]"
    steps, together_us, apart_us = fused("float32[128,256]", prologue)
    assert steps == 0 and together_us < 1.2 * apart_us


def test_operands_of_a_concat_before_a_gemm_are_told_apart_one_by_one() -> None:
    steps, together_us, apart_us = fused("float32[256,128]", "  %v = concat(%x, %x) {axis = 1} : float32[256,256]")
    assert steps == 2 * 256 * 256 and together_us > apart_us


def test_a_matrix_computed_before_a_gemv_is_read_along_memory() -> None:
    """Each element once: a concat of rows costs nothing, one along rows a comparison for each operand."""

    def steps(matrix: str) -> int:
        made = graph(f"  %v = {matrix} : float32[64,64]\n  %y = matmul(%v, %r) : float32[64,1]",
                     "%r: float32[64,1], %x: float32[32,64], %t: float32[64,32]")  # fmt: skip
        (group,) = make_plan(made, PassContext(TARGET, rules=(Shuffled(1, 1.0, forced=True),))).groups
        assert isinstance(group.schedule, CpuGemvSchedule)
        return group_facts(nodes_by_name(made), group, TARGET).operations("scalar")

    assert steps("concat(%x, %x) {axis=0}") == 0
    assert steps("concat(%t, %t) {axis=1}") == 2 * 64 * 64


def windows(x: str, kernel: str, groups: int) -> int:
    """Scalar steps of a convolution of 8 x 8 pixels of 32 channels with what comes before it in one kernel."""
    pad = "[1,1]" if kernel == "3,3" else "[0,0]"
    attrs = f'strides=[1,1], dilations=[1,1], before={pad}, after={pad}, groups={groups}, layout="NXC"'
    conv = f"  %y = conv(%v, %w) {{{attrs}}} : float32[1,8,8,32]"
    made = graph(f"  %v = {x} : float32[1,8,8,32]\n{conv}",
                 f"%x: float32[1,8,8,16], %t: float32[1,32,8,8], %w: float32[{kernel},{32 // groups},32]")  # fmt: skip
    plan = make_plan(made, PassContext(TARGET, rules=(Shuffled(1, 1.0, forced=True),)))
    (group,) = plan.groups
    return group_facts(nodes_by_name(made), group, TARGET).operations("scalar")


def test_what_comes_before_windows_is_done_anew_for_each_tap() -> None:
    pixels = 8 * 8 * 32
    assert windows("concat(%x, %x) {axis=3}", "3,3", 32) == 2 * 9 * pixels
    assert windows("transpose(%t) {perm=[0,2,3,1]}", "3,3", 32) == int(STRIDED * 9 * pixels)


def test_what_comes_before_an_image_that_is_copied_is_done_once() -> None:
    for kernel in ("3,3", "1,1"):
        assert windows("concat(%x, %x) {axis=3}", kernel, 1) == 2 * 8 * 8 * 32
    assert windows("transpose(%t) {perm=[0,2,3,1]}", "3,3", 1) == 0, "a copy turns whole vectors of columns"


def test_a_gemm_that_copies_no_rows_computes_them_one_by_one_in_each_tile() -> None:
    made = graph("  %v = exp(%x) : float32[16,64]\n  %y = matmul(%v, %w) : float32[16,160]",
                 "%x: float32[16,64], %w: float32[64,160]")  # fmt: skip
    context = PassContext(TARGET, rules=(Shuffled(1, 1.0, forced=True),))
    (group,) = make_plan(made, context).groups
    assert isinstance(group.schedule, CpuGemmSchedule) and group.schedule.stage_left
    steps = []
    for schedule in (group.schedule, replace(group.schedule, stage_left=False)):
        kernel = group_facts(nodes_by_name(made), replace(group, schedule=schedule), TARGET, context.cost_model)
        steps.append(kernel.operations("scalar"))
    panels = -(-160 // (group.schedule.vectors * group.schedule.lanes))
    assert steps == [0, 16 * 64 * panels * 16]


APART = {
    "transpose(%x) {perm = [1, 0]} : float32[64,48]": (0, 1),
    "gather(%t, %i) {axis = 1} : float32[64,40]": (1, 0),
    "gather(%t, %i) {axis = 0} : float32[40,48]": (0, 1),
    "transpose(%g) {perm = [1, 0]} : float32[64,40]": (1, 0),
    "add(%x, %x) : float32[48,64]": (0, 0),
}


@pytest.mark.parametrize("last", APART)
def test_what_lies_apart_in_a_vector_is_read_one_by_one(last: str) -> None:
    """Rows that a gather picked are columns after a transpose. The kernel is `y` and what it reads."""
    made = graph(
        "  %t = transpose(%x) {perm = [1, 0]} : float32[64,48]\n  %g = gather(%x, %i) {axis = 0} : float32[40,64]\n"
        f"  %y = {last}", "%x: float32[48,64], %i: int64[40]",
    )  # fmt: skip
    (node,) = (node for node in made.nodes if node.output.name == "y")
    used = [n for n in made.nodes if n is node or n.output in node.inputs]
    inputs = list(dict.fromkeys(v for n in used for v in n.inputs if v.producer not in used))
    schedule = choose_loops(used, inputs, [node.output], ISA)
    assert apart(inputs, [node.output], schedule) == APART[last]


def test_an_element_of_a_concat_with_branches_is_of_one_operand() -> None:
    made = graph(
        "  %v = concat(%a, %b, %c, %d) {axis = 2} : float32[14,14,80]\n"
        "  %y = transpose(%v) {perm = [2, 0, 1]} : float32[80,14,14]",
        ", ".join(f"%{name}: float32[14,14,20]" for name in "abcd"),
    )  # fmt: skip
    schedule = choose_loops(made.nodes, made.inputs, made.outputs, ISA)
    assert schedule.branches and apart(made.inputs, made.outputs, schedule) == (0, 1)
    whole = replace(schedule, branches=(), branch=0)
    assert apart(made.inputs, made.outputs, whole) == (0, 4)


def test_the_search_leaves_a_transpose_after_interpolation_to_a_kernel_of_its_own() -> None:
    """Interpolated channels last, as convolutions leave them, columns are picked once for all channels."""
    made = run_pipeline(import_model(decoder()).graph, PassContext(TARGET))
    for searched, last in ((False, 9), (True, 1)):
        plan = make_plan(made, PassContext(TARGET, {"search": searched}))
        (group,) = (group for group in plan.groups if "y" in group.outputs)
        assert len(group.nodes) == last


@pytest.mark.parametrize(("pixels", "columns"), [(1024, 8), (4096, 8), (512, 16), (256, 32), (1000, 32), (1025, 32)])
def test_a_tile_that_is_read_by_elements_has_as_many_lines_as_the_cache_keeps(pixels: int, columns: int) -> None:
    """Lines a multiple of 4096 bytes apart meet in one set of the first-level cache."""

    def added(source: tuple[int, int]) -> CpuLoopSchedule:
        target = f"float32[{source[1]},{source[0]}]"
        made = graph(
            f"  %t = transpose(%x) {{perm = [1, 0]}} : {target}\n"
            f"  %r = reshape(%x) {{shape = [{source[1]},{source[0]}]}} : {target}\n"
            f"  %y = add(%t, %r) : {target}", f"%x: float32[{source[0]},{source[1]}]",
        )  # fmt: skip
        return choose_loops(made.nodes, made.inputs, made.outputs, ISA)

    schedule = added((67, pixels))
    assert (schedule.chunk, schedule.lanes) == (columns, min(columns, 16))
    assert added((pixels, 67)).chunk == 32


def test_a_tile_that_registers_transpose_reads_whole_lines() -> None:
    made = graph("  %y = transpose(%x) {perm = [1, 0]} : float32[4096,67]", "%x: float32[67,4096]")
    schedule = choose_loops(made.nodes, made.inputs, made.outputs, ISA)
    assert (schedule.edge, schedule.chunk, LoopPlan(67 * 4096, schedule).block) == (32, 64, 16)
