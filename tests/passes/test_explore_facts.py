"""What a latency model is told of a kernel: bytes, operations and tasks, counted from the plan."""

import numpy as np
import pytest

from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.passes import PassContext, TargetInfo, make_plan
from tilestitch.passes.schedule.facts import group_facts, nodes_by_name


def facts(text: str | Graph, target: str = "cpu", planner: str = "stitch", threads: int = 2) -> list[KernelFacts]:
    graph = parse_graph(text) if isinstance(text, str) else text
    info = TargetInfo(target, threads)
    plan = make_plan(graph, PassContext(info, {"planner": planner}))
    return [group_facts(nodes_by_name(graph), plan.group(name), info) for name in plan.launch_order]


def moved(kernel: KernelFacts) -> dict[str, tuple[int, int]]:
    return {t.value: (t.bytes_requested, t.footprint_bytes) for t in (*kernel.reads, *kernel.writes)}


SOFTMAX = """graph @g(%a: float32[512,64]) -> (%y) {
  %r = reduce_max(%a) {axes=[1], keepdims=true} : float32[512,1]
  %s = sub(%a, %r) : float32[512,64]
  %e = exp(%s) : float32[512,64]
  %t = reduce_sum(%e) {axes=[1], keepdims=true} : float32[512,1]
  %y = div(%e, %t) : float32[512,64]
}"""


def test_softmax_reads_its_rows_twice_and_keeps_exponentials() -> None:
    """Once for the maximum, once for the exponentials."""
    (kernel,) = facts(SOFTMAX)
    size = 512 * 64
    assert moved(kernel) == {"a": (2 * 4 * size, 4 * size), "y": (4 * size, 4 * size)}
    assert (kernel.kind, kernel.transcendental, kernel.fma) == ("rowwise", size, 0)
    assert kernel.cheap == size * (1 + 1 + 1 + 4)
    assert (kernel.shared_bytes, kernel.barriers) == (64 * 4, 0) and 1 < kernel.tasks < 512


def test_on_a_gpu_short_rows_share_a_block_and_reductions_wait() -> None:
    (kernel,) = facts(SOFTMAX, "cuda:sm_90a")
    assert kernel.threads == 128 and kernel.tasks < 512 and kernel.barriers == 2


def test_on_a_gpu_a_warp_reads_neighbouring_columns_and_several_warps_share_them() -> None:
    text = "graph @g(%x: float32[100,64]) -> (%y) { %y = reduce_sum(%x) {axes=[0], keepdims=false} : float32[64] }"
    (kernel,) = facts(text, "cuda")
    assert kernel.tasks == 64 // 32 and kernel.threads == 32 * 16


def test_a_broadcast_operand_is_requested_often_and_fetched_once() -> None:
    (kernel,) = facts("""graph @g(%x: float16[100,64], %b: float16[64]) -> (%y) {
      %y = add(%x, %b) : float16[100,64]
    }""")
    assert moved(kernel)["b"] == (100 * 64 * 2, 64 * 2)


def test_a_slice_reads_what_it_shows_only() -> None:
    (kernel,) = facts("""graph @g(%x: float32[1000]) -> (%y) {
      %s = slice(%x) {starts=[10], steps=[2], sizes=[5]} : float32[5]
      %y = exp(%s) : float32[5]
    }""")
    assert moved(kernel)["x"] == (20, 20) and kernel.transcendental == 5


def test_what_is_computed_again_counts_again() -> None:
    graph = parse_graph("""graph @g(%x: float32[64]) -> (%y) {
      %e = exp(%x) : float32[64]
      %b = broadcast_to(%e) {shape=[8,64]} : float32[8,64]
      %y = neg(%b) : float32[8,64]
    }""")
    (kernel,) = facts(graph)
    assert kernel.transcendental == 8 * 64


def test_a_gemm_counts_multiply_adds_and_tasks() -> None:
    graph = parse_graph(
        """graph @g(%x: float32[256,128]) -> (%y) {
      %w = constant #sha256:0 : float32[128,512]
      %p = matmul(%x, %w) : float32[256,512]
      %y = tanh(%p) : float32[256,512]
    }""",
        {"0": np.ones((128, 512), np.float32)},
    )
    (kernel,) = facts(graph)
    assert (kernel.kind, kernel.fma, kernel.transcendental) == ("contraction", 256 * 128 * 512, 256 * 512)
    assert 1 < kernel.tasks < 256 * 512 // 64


@pytest.mark.parametrize(
    ("m", "k", "n", "blocks"),
    [
        (4096, 64, 4096, 32 * 32),  # tiles of 128 x 128
        (1024, 100, 512, 16 * 8),  # of 64 x 64, since there would be 32 for 132 multiprocessors
        (128, 768, 768, 48 * 8),  # of 64 x 32, and still too few: the reduction in parts
        (1, 4096, 4096, 128 * 2),  # by columns, 32 a block
        (1, 300, 64, 2),  # too short a reduction to cut
    ],
)
def test_on_a_gpu_gemms_are_cut_until_all_multiprocessors_have_work(m: int, k: int, n: int, blocks: int) -> None:
    text = f"graph @g(%a: float32[{m},{k}], %b: float32[{k},{n}]) -> (%y) {{ %y = matmul(%a, %b) : float32[{m},{n}] }}"
    (kernel,) = facts(text, "cuda")
    assert kernel.tasks == blocks


def test_values_without_elements_and_of_rank_0_are_counted_without_trouble() -> None:
    for shape, size in (("[0,3]", 0), ("[]", 1), ("[1]", 1)):
        (kernel,) = facts(f"graph @g(%x: float32{shape}) -> (%y) {{\n  %y = exp(%x) : float32{shape}\n}}")
        assert (kernel.transcendental, kernel.elements, kernel.footprint_bytes) == (size, size, 8 * size)


def test_few_long_rows_are_cut_if_nothing_reads_the_row_again() -> None:
    text = """graph @g(%x: float32[1,1000000]) -> (%r) {
      %r = reduce_sum(%x) {axes=[1], keepdims=true} : float32[1,1]
    }"""
    (kernel,) = facts(text)
    assert [launch.tasks for launch in kernel.sequence] == [64, 1, 1]


def test_an_image_is_not_turned_anew_for_each_tap_of_a_window() -> None:
    text = """graph @g(%x: float32[2,16,127], %w: float32[64,1,16]) -> (%y) {
      %t = transpose(%x) {perm=[0,2,1]} : float32[2,127,16]
      %y = conv(%t, %w) {strides=[1], dilations=[1], before=[0], after=[0], groups=16, layout="NXC"} : float32[2,64,16]
    }"""
    assert [kernel.kind for kernel in facts(text, planner="explore")] == ["injective", "contraction"]
