"""What latency models are told of kernels is what the plan launches, on GPUs and on CPUs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from onnx import ModelProto

from tests.mixed_graphs import mixed_graphs
from tests.models import cnn, transformer
from tests.networks import bert, gpt2, half, residual_block
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.compiler.ir.types import to_numpy_dtype
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.passes import PassContext, TargetInfo, check_plan, make_plan, run_pipeline
from tilestitch.passes.fusion.planners import PLANNERS
from tilestitch.passes.fusion.rules.combining import BlockStitching, GlobalStitching, Packing
from tilestitch.passes.plan import Group, StitchPlan
from tilestitch.passes.plan.cpu.isa import isa_named
from tilestitch.passes.plan.cpu.schedules import CpuDotGemmSchedule, CpuGemmSchedule, CpuSplitRowSchedule
from tilestitch.passes.plan.launches.launch import Launch
from tilestitch.passes.plan.registers import registers_of
from tilestitch.passes.plan.view import look_up
from tilestitch.passes.schedule.facts import group_facts, nodes_by_name
from tilestitch.passes.schedule.structure import Structure, structure_of

MODELS: dict[str, Callable[[], ModelProto]] = {
    "bert": bert,
    "bert of few heads": partial(bert, batch=1, length=128, hidden=256, heads=4),
    "bert in half floats": lambda: half(bert(batch=1, length=64, hidden=256, heads=4)),
    "gpt2": gpt2,
    "transformer": partial(transformer, hidden=64, sequence=33, causal=True),
    "cnn": cnn,
    "residual block": residual_block,
}
GPUS = {
    "A100": TargetInfo("cuda", 1, "A100", ("sm_80",)),
    "H100": TargetInfo("cuda", 1, "H100", ("sm_90a",)),
    "H200": TargetInfo("cuda", 1, "H200", ("sm_90a",)),
}
CPUS = {
    "one thread": TargetInfo("cpu", 1),
    "two threads": TargetInfo("cpu", 2, isa="avx512"),
    "eight threads": TargetInfo("cpu", 8, isa="neon"),
}
TARGETS = {**GPUS, **CPUS}


def planned(graph: Graph, target: TargetInfo, *rules: Any) -> tuple[Graph, StitchPlan]:
    context = PassContext(target, rules=rules)
    graph = run_pipeline(graph, context)
    return graph, make_plan(graph, context)


def model(name: str) -> Graph:
    return import_model(MODELS[name]()).graph


def of_group(plan: StitchPlan, group: Group) -> list[Launch]:
    assert plan.launches is not None
    return [launch for launch in plan.launches if launch.group == group.name]


def assert_told(graph: Graph, plan: StitchPlan, target: TargetInfo) -> None:
    """Of every group of the plan that has something to launch, the facts have the launches."""
    for group in plan.groups:
        launches = of_group(plan, group)
        if launches:
            facts = group_facts(nodes_by_name(graph), group, target)
            assert_told_of_gpu(facts, launches) if target.is_gpu else assert_told_of_cpu(facts, launches)


def assert_told_of_gpu(facts: KernelFacts, launches: Sequence[Launch]) -> None:
    """Of kernels of several parts all look at their indices first, of which the facts of the parts tell."""
    told = [(x.grid, x.threads, x.shared_bytes, x.static_shared_bytes) for x in facts.sequence]
    assert told == [(x.blocks, x.threads, x.shared_bytes, x.static_shared_bytes) for x in launches]


def assert_told_of_cpu(facts: KernelFacts, launches: Sequence[Launch]) -> None:
    """The parts of a launch of the facts are launches whose tasks are one list."""
    beside = [part is not launch.parts[0] for launch in facts.sequence for part in launch.parts]
    assert beside == [launch.beside for launch in launches]
    for part, launch in zip(facts.parts, launches, strict=True):
        assert (part.tasks, part.shared_bytes) == (launch.blocks, launch.scratch_bytes)
        moved: dict[str, set[str]] = {}
        for t in (*part.reads, *part.writes):
            moved.setdefault(t.role, set()).add(t.value)
        assert moved.get("activation", set()) <= {*launch.reads, *launch.writes}
        assert {t.value for t in part.writes if t.role == "activation"} <= set(launch.writes)
        assert {(t.name, t.nbytes) for t in launch.temporaries} == {
            (t.value, t.footprint_bytes) for t in (*part.reads, *part.writes) if t.role == "temporary"
        }


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_facts_have_the_launches_of_the_plan(name: str, target: str) -> None:
    assert_told(*planned(model(name), TARGETS[target]), TARGETS[target])


@pytest.mark.parametrize("target", ["H100", "two threads", "eight threads"])
@given(graph=mixed_graphs())
def test_whatever_the_graph(target: str, graph: Graph) -> None:
    """Of all dtypes and operators, with dimensions of 0, indices that are checked, sorting and scatters."""
    assert_told(*planned(graph, TARGETS[target]), TARGETS[target])


@pytest.mark.parametrize("target", GPUS)
@given(graph=mixed_graphs())
def test_stages_wherever_they_are_legal(target: str, graph: Graph) -> None:
    rules = Packing(forced=True), GlobalStitching(forced=True)
    assert_told(*planned(graph, GPUS[target], *rules), GPUS[target])


@pytest.mark.parametrize("target", GPUS)
@given(graph=mixed_graphs())
def test_slabs_wherever_they_are_legal(target: str, graph: Graph) -> None:
    rules = (*PLANNERS["stitch"][:8], BlockStitching(forced=True))
    context = PassContext(GPUS[target], {"planner": "none"}, rules=rules)
    graph = run_pipeline(graph, context)
    plan = make_plan(graph, context)
    check_plan(plan, graph)
    assert_told(graph, plan, GPUS[target])


@pytest.mark.parametrize("target", CPUS)
def test_a_long_row_is_cut_where_there_are_threads_for_its_parts_and_told_piece_by_piece(target: str) -> None:
    graph = parse_graph("""graph @g(%x: float32[1,600000], %g: float32[600000]) -> (%y) {
      %m = reduce_max(%x) {axes=[1], keepdims=true} : float32[1,1]
      %d = sub(%x, %m) : float32[1,600000]
      %e = exp(%d) : float32[1,600000]
      %s = reduce_sum(%e) {axes=[1], keepdims=true} : float32[1,1]
      %z = div(%e, %s) : float32[1,600000]
      %y = mul(%z, %g) : float32[1,600000]
    }""")
    graph, plan = planned(graph, CPUS[target])
    assert_told(graph, plan, CPUS[target])
    groups = [group for group in plan.groups if isinstance(group.schedule, CpuSplitRowSchedule)]
    assert bool(groups) is (CPUS[target].threads > 1)
    for group in groups:
        facts = group_facts(nodes_by_name(graph), group, CPUS[target])
        assert facts.launches > 1 and any(t.role == "temporary" for part in facts.parts for t in part.reads)


def test_a_row_that_several_walks_need_is_read_by_each() -> None:
    """Statistics of a sum that is too cheap to be kept: its operands are read, and it is added up, in every walk."""
    graph = parse_graph("""graph @g(%a: float32[64,96], %b: float32[64,96]) -> (%y) {
      %x = add(%a, %b) : float32[64,96]
      %m = reduce_max(%x) {axes=[1], keepdims=true} : float32[64,1]
      %y = sub(%x, %m) : float32[64,96]
    }""")
    size = 64 * 96
    graph, plan = planned(graph, CPUS["one thread"])
    (group,) = plan.groups
    (part,) = group_facts(nodes_by_name(graph), group, CPUS["one thread"]).parts
    assert {t.value: t.bytes_requested for t in part.reads} == {"a": 2 * 4 * size, "b": 2 * 4 * size}
    assert part.operations("alu") == size * (2 + 1 + 1) and part.shared_bytes == 0


@pytest.mark.parametrize("target", CPUS)
def test_vectors_and_shares_are_those_of_the_schedule(target: str) -> None:
    graph, plan = planned(model("transformer"), CPUS[target])
    isa = isa_named(CPUS[target].isa)
    for group in (group for group in plan.groups if isinstance(group.schedule, CpuGemmSchedule)):
        assert isinstance(group.schedule, CpuGemmSchedule)
        (part,) = group_facts(nodes_by_name(graph), group, CPUS[target]).parts
        (gemm,) = (a for a in part.arithmetic if a.unit == "fma")
        assert part.lanes == group.schedule.lanes == isa.lanes("float32")
        assert 0 < gemm.share <= 1


@pytest.mark.parametrize(
    ("left", "right", "sums"), [("bfloat16", "bfloat16", "float32"), ("uint8", "int8", "int32")], ids=["pairs", "bytes"]
)
def test_groups_that_an_instruction_multiplies_are_told_together(left: str, right: str, sums: str) -> None:
    """Vectors hold whole groups; what is computed besides is of the dtype of sums."""
    graph = Graph("g")
    x, w = graph.add_input("x", TensorType(left, (128, 512))), np.ones((512, 64), to_numpy_dtype(right))
    graph.outputs = [graph.emit("matmul", x, graph.constant(w, right), out_dtype=sums)]
    target = TargetInfo("cpu", 1, isa="avx512", dot="vpdpbusd", half_dot="vdpbf16ps")
    (group,) = make_plan(graph, PassContext(target)).groups
    assert isinstance(group.schedule, CpuDotGemmSchedule)
    (part,) = group_facts(nodes_by_name(graph), group, target).parts
    (products,) = (a for a in part.arithmetic if a.unit == "fma")
    neighbours = 2 if left == "bfloat16" else 4
    assert part.lanes == group.schedule.lanes * neighbours and products.dtype == right and 0 < products.share <= 1


def test_attention_is_told_what_it_computes_of_each_key() -> None:
    """Scale, mask, maximum, difference and sum: no weight is divided by the sum of its row."""
    graph, plan = planned(model("bert of few heads"), CPUS["two threads"])
    layers = [group for group in plan.groups if group.kind.value == "attention"]
    assert layers
    for group in layers:
        nodes = nodes_by_name(graph)
        ops = [nodes[name].op for name in group.nodes]
        (part,) = group_facts(nodes, group, CPUS["two threads"]).parts
        scores = part.operations("special")
        assert {"div", "mul", "add"} <= set(ops) and part.operations("alu") == 5 * scores > 0


@pytest.mark.parametrize("target", GPUS)
def test_registers_are_those_of_the_schedule(target: str) -> None:
    graph, plan = planned(model("bert"), TARGETS[target])
    nodes = nodes_by_name(graph)
    for group in (group for group in plan.groups if not group.stages):
        assert group.schedule is not None
        expected = registers_of(look_up(nodes, group), group.kind, group.schedule)
        assert group_facts(nodes, group, TARGETS[target]).registers == expected


# -- structure ---------------------------------------------------------------------------------------------------------


def test_layers_have_one_structure_and_facts_of_their_own_values() -> None:
    graph, plan = planned(model("bert"), TARGETS["H100"])
    nodes = nodes_by_name(graph)
    layers = [group for group in plan.groups if group.kind.value == "attention"]
    first, second = (structure_of(nodes, group, TARGETS["H100"]) for group in layers)
    assert isinstance(first, Structure) and isinstance(second, Structure)
    assert first.key == second.key and first.names != second.names
    for group in layers:
        facts = group_facts(nodes, group, TARGETS["H100"])
        assert {t.value for t in facts.writes} == set(group.outputs)
        assert {t.value for t in facts.reads} >= set(group.inputs)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ([0.5, 1.5], [2.5, 3.5], True),  # weights
        ([0.5], [1.5], False),  # becomes part of the code
        ([1.0, 1.0], [2.0, 2.0], False),
        (np.array([0, 1]), np.array([1, 0]), False),  # indices
    ],
)
def test_layers_of_other_weights_have_one_structure(first: Any, second: Any, same: bool) -> None:
    def structure(data: Any) -> Structure:
        data = np.asarray(data) if isinstance(data, np.ndarray) else np.float32(data)
        graph = Graph("layer")
        x = graph.add_input("x", TensorType(str(data.dtype), (8, len(data))))
        graph.outputs = [graph.emit("mul", x, graph.constant(data))]
        (group,) = make_plan(graph, PassContext(CPUS["one thread"])).groups
        found = structure_of(nodes_by_name(graph), replace(group, name="layer"), CPUS["one thread"])
        assert found is not None
        return found

    assert (structure(first).key == structure(second).key) == same


@pytest.mark.parametrize("first", ["safe", "any"])
def test_indices_that_are_looked_at_first_are_in_the_facts(first: str) -> None:
    """Whether they are is for what computes them, in another kernel, to say."""
    graph, target = Graph("rows"), CPUS["one thread"]
    x, any_ = graph.add_input("x", TensorType("float32", (8, 16))), graph.add_input("any", TensorType("int64", (40,)))
    safe = graph.emit("bitwise_and", any_, graph.constant(np.int64(7)))
    indices = [safe, any_] if first == "safe" else [any_, safe]
    graph.outputs = [safe, *(graph.emit("gather", x, each, axis=0) for each in indices)]
    plan = make_plan(graph, PassContext(target, options={"planner": "none"}))
    nodes = nodes_by_name(graph)
    found = {group.inputs[1]: group_facts(nodes, replace(group, name="rows"), target) for group in plan.groups[1:]}
    assert {name: [part.elements for part in facts.parts] for name, facts in found.items()} == {
        safe.name: [640], any_.name: [40, 640]
    }  # fmt: skip


def test_another_target_is_another_structure() -> None:
    graph, plan = planned(model("bert"), TARGETS["H100"])
    found = [structure_of(nodes_by_name(graph), plan.groups[-1], target) for target in TARGETS.values()]
    assert len({s.key for s in found if s is not None}) == len(TARGETS)
