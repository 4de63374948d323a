"""Decode steps of small language models as one launch whose blocks draw tiles, on the emulated device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, parser

from benchmarks.replay.catalogue import MODELS
from tests.compiled import assert_close
from tests.models import random_inputs
from tests.open_models.catalogue import fixture_of
from tests.open_models.sizes import Feeds
from tests.tolerances import SUMS
from tilestitch.compiler.driver import CompiledModel, compile_model
from tilestitch.passes import StitchPlan
from tilestitch.passes.plan.schedules import TicketSchedule
from tilestitch.passes.plan.sync.edges import TileEdge
from tilestitch.passes.sync.check import why_not_tickets
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions
from tilestitch.runtime.errors import ExecutionError

ORDERS = [
    EmulatorOptions(resident_blocks=1),
    EmulatorOptions(resident_blocks=2, block_order="reversed", thread_order="reversed"),
    EmulatorOptions(resident_blocks=64, block_order="adversarial", thread_order="random", seed=3),
    EmulatorOptions(resident_blocks=3, block_order="adversarial", seed=4),
    EmulatorOptions(resident_blocks=64, block_order="random", seed=5),
]
STEPS = {
    "gpt2": ("gpt2.script", 1, 7, "fp32"),
    "llama": ("llama.dynamo", 1, 1, "fp32"),
    "two sequences": ("gpt2.script", 2, 13, "fp32"),
    "halves": ("llama.dynamo", 2, 5, "fp16"),
}
"""The model, batch, length of the cache, and precision."""


def feeds_of(name: str, batch: int, past: int) -> tuple[ModelProto, Feeds]:
    """A step of one new token."""
    fixture = fixture_of(name)
    return fixture.model, fixture.feeds({"batch": batch, "past": past, "new": 1}, np.random.default_rng(1))


@cache
def compiled(step: str, mode: str = "model") -> CompiledModel:
    name, batch, past, precision = STEPS[step]
    model, feeds = feeds_of(name, batch, past)
    shapes = {key: value.shape for key, value in feeds.items()}
    return compile_model(model, "emulator", shapes=shapes, precision=precision, sync=mode)


@cache
def expected(step: str) -> dict[str, np.ndarray]:
    """What ONNX Runtime computes in float32."""
    name, batch, past, _ = STEPS[step]
    model, feeds = feeds_of(name, batch, past)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def check(step: str, options: EmulatorOptions, runs: int = 2, sync: bool = True) -> None:
    name, batch, past, precision = STEPS[step]
    _, feeds = feeds_of(name, batch, past)
    tolerance = 8 * SUMS["float16" if precision == "fp16" else "float32"]
    with load(compiled(step).to_bytes(), device=options, sync=sync) as module:
        for _ in range(runs):
            for output, found in module.run(feeds).items():
                assert_close(found, expected(step)[output], tolerance)


@pytest.mark.parametrize("step", STEPS)
def test_a_decode_step_is_one_launch_that_the_plan_shows(step: str) -> None:
    plan = compiled(step).plan
    (group,) = plan.groups
    assert plan.launches is not None and [launch.kind for launch in plan.launches] == ["tickets"]
    assert group.tie == "tickets" and isinstance(group.schedule, TicketSchedule)
    assert {edge.consumer for edge in group.schedule.edges} > set(range(10, len(group.parts)))
    check(step, ORDERS[2])


@pytest.mark.parametrize("options", ORDERS, ids=lambda o: f"{o.block_order}-{o.resident_blocks}")
def test_in_any_order_of_blocks(options: EmulatorOptions) -> None:
    check("gpt2", options, runs=3)


def test_blocks_may_have_queues_of_their_own() -> None:
    """Fixed when the model is compiled; all blocks are resident together."""
    found = compiled("gpt2", "model/queues")
    (group,) = found.plan.groups
    assert isinstance(group.schedule, TicketSchedule) and group.schedule.queues
    assert found.plan.launches is not None and [launch.cooperative for launch in found.plan.launches] == [True]
    _, feeds = feeds_of(*STEPS["gpt2"][:3])
    with load(found.to_bytes(), device=replace(ORDERS[4], cooperative_blocks=24)) as module:
        for _ in range(2):
            for output, array in module.run(feeds).items():
                assert_close(array, expected("gpt2")[output], 8 * SUMS["float32"])


@pytest.mark.parametrize("step", ["gpt2", "halves"])
def test_the_same_artifact_can_be_loaded_with_plain_ordering(step: str) -> None:
    found = compiled(step)
    (plain,) = (program for program in found.contents.programs if program.plain)
    assert sum(len(launches) for s in plain.steps if (launches := getattr(s, "launches", ()))) > 10
    check(step, ORDERS[2], sync=False)
    told = found.explain()["plain"]
    assert told["launches"] > 10 and told["predicted_us"] > 0


@pytest.mark.parametrize("model", ["sorting", "decoder"])
def test_sorts_sums_and_pools_are_parts(model: str) -> None:
    made = MODELS[model]()
    found = compile_model(made, "emulator", sync="model")
    assert found.plan.launches is not None and [launch.kind for launch in found.plan.launches] == ["tickets"]
    feeds = random_inputs(made)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, feeds)
    with load(found.to_bytes(), device=ORDERS[3]) as module:
        for _ in range(2):
            assert_close(module.run(feeds)["y"], wanted, 8 * SUMS["float32"])


def without(plan: StitchPlan, number: int) -> StitchPlan:
    """One edge less between the parts of the one kernel."""
    (group,) = plan.groups
    assert isinstance(group.schedule, TicketSchedule)
    edges = tuple(edge for at, edge in enumerate(group.schedule.edges) if at != number)
    spoilt = replace(group, schedule=replace(group.schedule, edges=edges))
    return replace(plan, groups=(spoilt,), launches=None, edges=None)


def reaches(edges: Sequence[TileEdge], producer: int, consumer: int) -> bool:
    """Whether a chain of waits leads from one to the other."""
    found = {producer}
    for edge in sorted(edges, key=lambda edge: edge.consumer):
        if edge.producer in found:
            found.add(edge.consumer)
    return consumer in found


def test_an_edge_may_be_missing_only_where_others_lead_the_same_way() -> None:
    """Of parts that need several earlier ones, all waits are proven one by one."""
    specialisation = compiled("gpt2").specialisations[0]
    (group,) = specialisation.plan.groups
    assert isinstance(group.schedule, TicketSchedule)
    refused = 0
    for number, edge in enumerate(group.schedule.edges):
        spoilt = without(specialisation.plan, number)
        (other,) = spoilt.groups
        assert isinstance(other.schedule, TicketSchedule)
        problem = why_not_tickets({n.name: n for n in specialisation.graph.nodes}, other)
        assert problem is not None or reaches(other.schedule.edges, edge.producer, edge.consumer), edge
        assert problem is None or "does not wait for it" in problem
        refused += problem is not None
    assert 10 < refused < len(group.schedule.edges)


def test_parts_in_another_order_are_refused() -> None:
    specialisation = compiled("gpt2").specialisations[0]
    (group,) = specialisation.plan.groups
    assert isinstance(group.schedule, TicketSchedule)
    last = len(group.parts)
    order = {number: last - 1 - number for number in range(last)}
    edges = tuple(
        replace(edge, producer=order[edge.producer], consumer=order[edge.consumer]) for edge in group.schedule.edges
    )
    stages = tuple((part,) for part in group.parts[::-1])
    spoilt = replace(group, stages=stages, schedule=replace(group.schedule, edges=edges))
    problem = why_not_tickets({n.name: n for n in specialisation.graph.nodes}, spoilt)
    assert problem is not None and "surely come without it" in problem


def test_with_open_dimensions_the_plan_says_once_that_kernels_wait_for_whole_ones() -> None:
    found = compile_model(fixture_of("gpt2.script").model, "emulator", sync="model")
    assert all(group.tie != "tickets" for group in found.plan.groups)
    (refusal,) = (refusal for refusal in found.plan.refusals if refusal.rule.startswith("sync."))
    assert refusal.rule == "sync.open" and "--shape" in refusal.reason and "--favour" in refusal.reason


HOST = """<ir_version: 10, opset_import: ["" : 21]>
    m (float[8,16] x, float[16,16] a, float[16,16] b) => (float[8,16] y) <int64 n = {3}, bool t = {1}> { %s }"""
LOOP = """ = Loop (n, t, %s) <body = body (int64 i, bool c, float[8,16] s) => (bool d, float[8,16] z) {
    d = Identity(c) z = Tanh(s) }>"""


def with_loop(before: str, looped: str, after: str) -> ModelProto:
    return parser.parse_model(HOST % (before + " l" + LOOP % looped + after))


def test_a_step_on_the_host_between_kernels_is_refused_by_name() -> None:
    model = with_loop("u = MatMul(x, a) r = Relu(u)", "r", " v = MatMul(l, b) w = Tanh(v) y = MatMul(w, a)")
    found = compile_model(model, "emulator", sync="model")
    (refusal,) = (refusal for refusal in found.plan.refusals if refusal.rule.startswith("sync."))
    assert (refusal.subject, refusal.rule) == (found.plan.host_groups[0].name, "sync.host")
    assert [(group.tie, len(group.parts)) for group in found.plan.groups] == [("barrier", 0), ("tickets", 2)]


def test_a_step_on_the_host_that_no_kernel_comes_before_cuts_nothing() -> None:
    model = with_loop("u = MatMul(x, a) p = Softmax(u)", "x", " v = MatMul(l, b) q = Softmax(v) y = Add(p, q)")
    found = compile_model(model, "emulator", sync="model", planner="xla")
    (group,) = found.plan.groups
    assert group.tie == "tickets" and not [r for r in found.plan.refusals if r.rule.startswith("sync.")]
    feeds = random_inputs(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with load(found.to_bytes(), device=ORDERS[3]) as module:
        assert_close(module.run(feeds)["y"], session.run(None, feeds)[0], 8 * SUMS["float32"])


def test_indices_are_looked_at_in_the_launch() -> None:
    _, feeds = feeds_of(*STEPS["gpt2"][:3])
    with load(compiled("gpt2").to_bytes(), device=ORDERS[2]) as module:
        module.run(feeds)
        for name in ("input_ids", "position_ids"):
            wrong = {**feeds, name: feeds[name] + 1000}
            with pytest.raises(ExecutionError, match="gather: an index is out of range"):
                module.run(wrong)
        module.run(feeds)


EMPTY = """<ir_version: 10, opset_import: ["" : 21]>
    m (float[4] x) => (float[1] y, float[0] none) <int64[0] places = {}> {
        y = ReduceSum(x) none = Gather<axis=0>(x, places) }"""


def test_kernels_that_are_packed_with_one_that_stores_nothing_are_refused() -> None:
    """The one without elements has no schedule."""
    found = compile_model(parser.parse_model(EMPTY), "emulator", sync="model")
    (refusal,) = (refusal for refusal in found.plan.refusals if refusal.rule.startswith("sync."))
    assert refusal.rule == "sync.part" and "gather has no schedule" in refusal.reason
    with load(found.to_bytes(), device=ORDERS[1]) as module:
        assert module.run({"x": np.ones(4, np.float32)})["y"].tolist() == [4]
