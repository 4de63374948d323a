"""What latency models are told of a GPU's kernels is what the plan launches."""

from collections.abc import Callable
from functools import partial

import pytest
from onnx import ModelProto

from tests.models import cnn, transformer
from tests.networks import bert, gpt2, half, residual_block
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.facts import Launch as Told
from tilestitch.passes import PassContext, TargetInfo, make_plan, run_pipeline
from tilestitch.passes.fusion.cost.facts import group_facts, nodes_by_name
from tilestitch.passes.plan import Group, StitchPlan
from tilestitch.passes.plan.launches.launch import Launch
from tilestitch.passes.plan.registers import registers_of
from tilestitch.passes.plan.view import look_up
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
TARGETS = {
    "A100": TargetInfo("cuda", 1, "A100", ("sm_80",)),
    "H100": TargetInfo("cuda", 1, "H100", ("sm_90a",)),
    "H200": TargetInfo("cuda", 1, "H200", ("sm_90a",)),
}


def planned(model: str, target: TargetInfo) -> tuple[Graph, StitchPlan]:
    context = PassContext(target)
    graph = run_pipeline(import_model(MODELS[model]()).graph, context)
    return graph, make_plan(graph, context)


def of_group(plan: StitchPlan, group: Group) -> list[Launch]:
    """Of kernels of several parts all look at their indices first, of which the facts of the parts tell."""
    assert plan.launches is not None
    return [launch for launch in plan.launches if launch.group == group.name]


def geometry(launch: Launch) -> tuple[int, int, int, int]:
    return launch.blocks, launch.threads, launch.shared_bytes, launch.static_shared_bytes


def told(launch: Told) -> tuple[int, int, int, int]:
    return launch.grid, launch.threads, launch.shared_bytes, launch.static_shared_bytes


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", MODELS)
def test_facts_have_the_launches_of_the_plan(model: str, target: str) -> None:
    graph, plan = planned(model, TARGETS[target])
    nodes = nodes_by_name(graph)
    for group in plan.groups:
        facts = group_facts(nodes, group, TARGETS[target])
        launches = of_group(plan, group)
        assert facts.launches == len(launches), group.name
        for fact, launch in zip(facts.sequence, launches, strict=True):
            if not group.stages:
                assert told(fact) == geometry(launch), group.name
            else:
                assert (fact.grid, fact.threads) == (launch.blocks, launch.threads), group.name


@pytest.mark.parametrize("target", TARGETS)
def test_registers_are_those_of_the_schedule(target: str) -> None:
    graph, plan = planned("bert", TARGETS[target])
    nodes = nodes_by_name(graph)
    for group in (group for group in plan.groups if not group.stages):
        assert group.schedule is not None
        expected = registers_of(look_up(nodes, group), group.kind, group.schedule)
        assert group_facts(nodes, group, TARGETS[target]).registers == expected


# -- structure ---------------------------------------------------------------------------------------------------------


def test_layers_have_one_structure_and_facts_of_their_own_values() -> None:
    graph, plan = planned("bert", TARGETS["H100"])
    nodes = nodes_by_name(graph)
    layers = [group for group in plan.groups if group.kind.value == "attention"]
    first, second = (structure_of(nodes, group, TARGETS["H100"]) for group in layers)
    assert isinstance(first, Structure) and isinstance(second, Structure)
    assert first.key == second.key and first.names != second.names
    for group in layers:
        facts = group_facts(nodes, group, TARGETS["H100"])
        assert {t.value for t in facts.writes} == set(group.outputs)
        assert {t.value for t in facts.reads} >= set(group.inputs)


def test_another_target_is_another_structure() -> None:
    graph, plan = planned("bert", TARGETS["H100"])
    found = [structure_of(nodes_by_name(graph), plan.groups[-1], target) for target in TARGETS.values()]
    assert len({s.key for s in found if s is not None}) == len(TARGETS)
