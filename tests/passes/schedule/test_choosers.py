"""Choosers of schedules on GPUs make candidates, and the latency model of the compilation chooses."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import pytest

from tests.attention_graphs import Case, attention
from tests.codegen.kernel_harness import one_group
from tests.cost_models import DearBarriers
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.devices import find_device
from tilestitch.cost_model.facts import Arithmetic, KernelFacts, Part, kernel_of
from tilestitch.cost_model.models import RandomModel
from tilestitch.cost_model.protocol import AnyDevice, LatencyModel, Prediction, fastest, latency_us
from tilestitch.passes import PassContext, TargetInfo, check_plan, make_plan
from tilestitch.passes.fusion.rules.combining import Bands
from tilestitch.passes.plan.attention.operands import attention_of
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.gemm.rows_after import RowsAfter
from tilestitch.passes.plan.schedules import (
    AttentionSchedule,
    BandSchedule,
    ElementwiseSchedule,
    GemmSchedule,
    RowSchedule,
    Schedule,
    SplitRowSchedule,
)
from tilestitch.passes.plan.view import look_up
from tilestitch.passes.schedule.cuda.attention_facts import candidate_facts as attention_candidate
from tilestitch.passes.schedule.cuda.band_facts import banded_candidate, writer_threads
from tilestitch.passes.schedule.cuda.gemm import band_schedule, choose_gemm, gemm_schedules
from tilestitch.passes.schedule.cuda.gemm_facts import candidate_facts
from tilestitch.passes.schedule.cuda.gpu import Gpu
from tilestitch.passes.schedule.facts import group_facts, nodes_by_name

A100 = TargetInfo("cuda", device="A100", architectures=("sm_80",))
H100 = TargetInfo("cuda", device="H100", architectures=("sm_90a",))
TARGETS = {"A100": A100, "H100": H100}
MODEL = AnalyticalModel()
SEEDS = range(12)


def matmul(m: int, n: int, k: int, dtype: str, batch: str = "") -> Graph:
    return parse_graph(
        f"graph @g(%x: {dtype}[{batch}{m},{k}], %w: {dtype}[{batch}{k},{n}]) -> (%p) {{\n"
        f'  %p = matmul(%x, %w) {{out_dtype="{dtype}"}} : {dtype}[{batch}{m},{n}]\n}}'
    )


def conv(size: int, channels: int, kernel: int, dtype: str) -> Graph:
    pad = kernel // 2
    return parse_graph(
        f"graph @g(%x: {dtype}[1,{size},{size},{channels}], %w: {dtype}[{kernel},{kernel},{channels},64]) -> (%p) {{\n"
        f"  %p = conv(%x, %w) {{after=[{pad}, {pad}], before=[{pad}, {pad}], dilations=[1, 1], groups=1, "
        f'layout="NXC", strides=[1, 1]}} : {dtype}[1,{size},{size},64]\n}}'
    )


def softmax_after_gemm(m: int, n: int, k: int, dtype: str) -> Graph:
    text = str(matmul(m, n, k, dtype)).replace("-> (%p)", "-> (%y)").rstrip().removesuffix("}")
    return parse_graph(
        f"{text}"
        f"  %m = reduce_max(%p) {{axes=[1], keepdims=true}} : {dtype}[{m},1]\n"
        f"  %d = sub(%p, %m) : {dtype}[{m},{n}]\n"
        f"  %e = exp(%d) : {dtype}[{m},{n}]\n"
        f"  %s = reduce_sum(%e) {{axes=[1], keepdims=true}} : {dtype}[{m},1]\n"
        f"  %y = div(%e, %s) : {dtype}[{m},{n}]\n}}"
    )


GEMMS: dict[str, Callable[[str], Graph]] = {
    "few tiles": lambda dtype: matmul(128, 768, 768, dtype),
    "many tiles": lambda dtype: matmul(4096, 1024, 512, dtype),
    "odd sizes": lambda dtype: matmul(201, 72, 1000, dtype),
    "batches": lambda dtype: matmul(64, 64, 256, dtype, batch="12,"),
    "one row": lambda dtype: matmul(1, 4096, 1024, dtype),
    "convolution": lambda dtype: conv(28, 64, 3, dtype),
}


# -- what candidates are told as ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", GEMMS)
def test_a_gemm_is_predicted_as_a_candidate_as_it_is_once_planned(name: str, dtype: str, target: str) -> None:
    graph, info = GEMMS[name](dtype), TARGETS[target]
    group, nodes, gpu = one_group(graph), nodes_by_name(graph), Gpu.of(info)
    gemm = gemm_of(AnchoredGroup.of(look_up(nodes, group)))
    assert gemm is not None
    schedules = list(gemm_schedules(gemm, gpu))
    assert len(schedules) > 1
    for schedule in schedules:
        planned = group_facts(nodes, replace(group, schedule=schedule), info)
        told, known = (latency_us(MODEL, facts, gpu.device) for facts in (candidate_facts(gemm, schedule), planned))
        assert told == pytest.approx(known, rel=0.01), schedule


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(128, 512, 512), (2048, 1024, 256)])
def test_rows_after_a_gemm_are_predicted_as_a_candidate_as_they_are_once_planned(
    shape: tuple[int, int, int], dtype: str, target: str
) -> None:
    graph, info = softmax_after_gemm(*shape, dtype), TARGETS[target]
    plan = make_plan(graph, PassContext(info, rules=(Bands(forced=True),)))
    (group,), nodes, gpu = plan.groups, nodes_by_name(graph), Gpu.of(info)
    first, rows = group.parts
    contraction = AnchoredGroup.of(look_up(nodes, first))
    gemm, after = (
        gemm_of(contraction),
        RowsAfter.of(look_up(nodes, rows), contraction.result.shape[-1], contraction.outputs),
    )
    assert gemm is not None
    for schedule in gemm_schedules(gemm, gpu, after):
        work = after.work(writer_threads(schedule.tile)).schedule
        stages = (replace(first, schedule=schedule),), (replace(rows, schedule=work),)
        whole = replace(group, schedule=band_schedule(gemm, schedule, after, gpu.device), stages=stages)
        candidate = banded_candidate(gemm, schedule, candidate_facts(gemm, schedule), after)
        told, known = (latency_us(MODEL, f, gpu.device) for f in (candidate, group_facts(nodes, whole, info)))
        assert told == pytest.approx(known, rel=0.01), schedule


@pytest.mark.parametrize("keys", [64, 2048])
def test_attention_is_predicted_as_a_candidate_as_it_is_once_planned(keys: int) -> None:
    graph = attention(Case(heads=4, queries=64, keys=keys, width=64, columns=64, dtype="float16"))
    plan = make_plan(graph, PassContext(H100))
    nodes, gpu = nodes_by_name(graph), Gpu.of(H100)
    (group,) = (group for group in plan.groups if isinstance(group.schedule, AttentionSchedule))
    assert isinstance(group.schedule, AttentionSchedule)
    view = look_up(nodes, group)
    anchored = AnchoredGroup.of(view)
    told = attention_candidate(view, anchored, attention_of(anchored), group.schedule)
    known = group_facts(nodes, group, H100)
    assert latency_us(MODEL, told, gpu.device) == pytest.approx(latency_us(MODEL, known, gpu.device), rel=0.1)


# -- any model chooses -------------------------------------------------------------------------------------------------


def chosen(graph: Graph, target: TargetInfo, seed: int) -> set[Hashable]:
    """The schedules of a plan that a random model makes, and that the checker accepts."""
    plan = make_plan(graph, PassContext(target, rules=(Bands(forced=True),), cost_model=RandomModel(seed)))
    check_plan(plan, graph, target)
    return {part.schedule for group in plan.groups for part in (group, *group.parts)}


def every_choice(graph: Graph, target: TargetInfo) -> set[Hashable]:
    return set[Hashable]().union(*(chosen(graph, target, seed) for seed in SEEDS))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_random_model_drives_gemms_to_other_legal_schedules(dtype: str, target: str) -> None:
    found = every_choice(matmul(256, 512, 1024, dtype), TARGETS[target])
    gemms = [schedule for schedule in found if isinstance(schedule, GemmSchedule)]
    assert len({schedule.tile for schedule in gemms}) > 3 and len({schedule.split_k for schedule in gemms}) > 2


@pytest.mark.parametrize("target", TARGETS)
def test_a_random_model_drives_streams_to_other_parts(target: str) -> None:
    found = every_choice(matmul(1, 512, 4096, "float32"), TARGETS[target])
    assert len({schedule.split_k for schedule in found if isinstance(schedule, GemmSchedule)}) > 2


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_random_model_drives_attention_to_other_legal_schedules(dtype: str) -> None:
    found = every_choice(attention(Case(queries=64, keys=2048, width=64, columns=64, dtype=dtype)), H100)
    attended = [schedule for schedule in found if isinstance(schedule, AttentionSchedule)]
    assert len({schedule.tile for schedule in attended}) > 1 and len({schedule.split_keys for schedule in attended}) > 2


@pytest.mark.parametrize("target", TARGETS)
def test_a_random_model_drives_bands_to_other_legal_schedules(target: str) -> None:
    found = every_choice(softmax_after_gemm(256, 512, 512, "float16"), TARGETS[target])
    assert len([schedule for schedule in found if isinstance(schedule, BandSchedule)]) > 2


def rows(shape: str, axis: int, dtype: str, op: str = "reduce_sum") -> Graph:
    """A reduction along an axis, and every element over it."""
    kept = ",".join("1" if i == axis else size for i, size in enumerate(shape.split(",")))
    return parse_graph(
        f"graph @g(%x: {dtype}[{shape}]) -> (%s, %y) {{\n"
        f"  %s = {op}(%x) {{axes=[{axis}], keepdims=true}} : {dtype}[{kept}]\n"
        f"  %y = div(%x, %s) : {dtype}[{shape}]\n}}"
    )


def reduction(shape: str, dtype: str) -> Graph:
    return parse_graph(
        f"graph @g(%x: {dtype}[{shape}]) -> (%s) {{\n"
        f"  %s = reduce_sum(%x) {{axes=[1], keepdims=true}} : {dtype}[{shape.split(',')[0]},1]\n}}"
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("graph", "least"),
    [
        pytest.param(rows("512,1024", 1, "float32"), 3, id="teams of a row"),
        pytest.param(rows("2048,96", 0, "float32"), 4, id="teams of a column"),
        pytest.param(rows("2,262144", 1, "float32"), 2, id="one block or several for a row"),
        pytest.param(reduction("1,1048576", "float16"), 3, id="one block, one launch or two for a row"),
    ],
)
def test_a_random_model_drives_rows_to_other_legal_schedules(graph: Graph, least: int, target: str) -> None:
    found = every_choice(graph, TARGETS[target])
    assert len({each for each in found if isinstance(each, RowSchedule | SplitRowSchedule)}) >= least


@pytest.mark.parametrize("target", TARGETS)
def test_a_random_model_drives_element_wise_work_to_other_numbers_of_vectors(target: str) -> None:
    graph = parse_graph("graph @g(%x: float16[4096,4096]) -> (%y) { %y = neg(%x) : float16[4096,4096] }")
    found = [each for each in every_choice(graph, TARGETS[target]) if isinstance(each, ElementwiseSchedule)]
    assert {each.vectors for each in found} == {1, 2, 4}


@pytest.mark.parametrize("target", TARGETS)
def test_parts_of_long_rows_are_joined_by_a_launch_where_barriers_are_dear(target: str) -> None:
    def schedule(model: LatencyModel) -> Schedule | None:
        (group,) = make_plan(reduction("1,1048576", "float32"), PassContext(TARGETS[target], cost_model=model)).groups
        return group.schedule

    usual = schedule(MODEL)
    assert isinstance(usual, RowSchedule) and usual.blocks_per_row > 1
    assert isinstance(schedule(DearBarriers()), SplitRowSchedule)


@pytest.mark.parametrize(("model", "scheme"), [(MODEL, "global"), (DearBarriers(), "block")])
def test_what_a_plan_says_of_a_row_is_how_its_schedule_exchanges_it(model: LatencyModel, scheme: str) -> None:
    (group,) = make_plan(rows("2,262144", 1, "float32"), PassContext(H100, cost_model=model)).groups
    assert {stitch.scheme for stitch in group.stitches} == {scheme}


# -- what the analytical model chooses ---------------------------------------------------------------------------------


def compute(operations: int) -> KernelFacts:
    return kernel_of(Part("contraction", "float32", arithmetic=(Arithmetic("fma", "float32", operations),), tasks=1000))


def test_of_candidates_that_are_nearly_as_fast_the_first_is_taken() -> None:
    device = find_device("A100")
    for operations, taken in ((999 << 30, "simple"), (900 << 30, "involved")):
        facts = [compute(1000 << 30), compute(operations)]
        assert fastest(["simple", "involved"], facts, device, MODEL) == taken


@pytest.mark.parametrize("rows", [1, 16])
def test_warps_without_queries_are_idle(rows: int) -> None:
    """Tiles of 16, 32 and 64 rows compute so few queries equally fast, and one warp reads no keys for nothing."""
    graph = attention(Case(heads=16, queries=rows, keys=256, width=64, columns=64, dtype="float16"))
    (schedule,) = (group.schedule for group in make_plan(graph, PassContext(H100)).groups)
    assert isinstance(schedule, AttentionSchedule) and schedule.tile.bm == 16


def test_large_parts_of_a_reduction_cost_what_their_sums_move_at_the_end() -> None:
    """All tiles are joined when the last parts end: their sums move together, through DRAM where they are too many."""
    graph = matmul(1024, 1024, 8192, "float32")
    gemm = gemm_of(AnchoredGroup.of(look_up(nodes_by_name(graph), one_group(graph))))
    assert gemm is not None
    found = choose_gemm(gemm, Gpu.of(A100), MODEL)
    assert 1 < found.split_k <= 8
    more_us, us = (
        latency_us(MODEL, candidate_facts(gemm, replace(found, split_k=parts)), find_device("A100"))
        for parts in (32, found.split_k)
    )
    assert more_us > 1.01 * us


@pytest.mark.parametrize("target", TARGETS)
def test_one_query_and_many_keys_are_cut_until_all_multiprocessors_have_work(target: str) -> None:
    graph = attention(Case(heads=4, queries=1, keys=3000, width=64, columns=64))
    plan = make_plan(graph, PassContext(TARGETS[target]))
    (schedule,) = (group.schedule for group in plan.groups)
    assert isinstance(schedule, AttentionSchedule), plan.refusals
    assert 4 * schedule.split_keys >= 0.7 * find_device(target).sm_count


# -- what is hardly slower ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judge:
    """Says of kernels that multiply how long they take, one with bands `band_us`; all others take a microsecond."""

    band_us: float
    name: str = "judge"

    def predict(self, batch: Sequence[KernelFacts], device: AnyDevice) -> list[Prediction]:
        return [self._predict(kernel) for kernel in batch]

    def _predict(self, kernel: KernelFacts) -> Prediction:
        us = self.band_us if kernel.sequence[0].tie == "band" else 99.0 if kernel.fma else 1.0
        return Prediction(us, us, us)


@pytest.mark.parametrize(("band_us", "launches"), [(99.0, 1), (100.9, 1), (102.0, 2)])
def test_a_launch_less_decides_where_one_kernel_is_hardly_slower_than_two(band_us: float, launches: int) -> None:
    graph = softmax_after_gemm(256, 512, 512, "float16")
    plan = make_plan(graph, PassContext(H100, cost_model=Judge(band_us)))
    assert plan.launches is not None and len(plan.launches) == launches
