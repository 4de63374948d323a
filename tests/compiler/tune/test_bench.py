"""A kernel by itself computes what it computes in the model, on the operands that it has there."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.compiler.tune.subjects import subject
from tests.models import cnn, transformer
from tilestitch.compiler.tune.bench import bench_of, values_read
from tilestitch.compiler.tune.machine import Turn
from tilestitch.compiler.tune.subject import Subject
from tilestitch.compiler.tune.tasks import neighbours, tasks_of, with_schedules
from tilestitch.compiler.tune.tuner import Tried, Trying
from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.passes.plan.launches.own import no_kernels


def gathering() -> onnx.ModelProto:
    """Rows of a table by indices that only the model's own inputs keep in range, scaled, and cut to an odd size."""
    table = numpy_helper.from_array(np.random.default_rng(0).standard_normal((7, 13)).astype(np.float32), "table")
    offset = numpy_helper.from_array(np.array([5], np.int64), "offset")
    nodes = [
        helper.make_node("Add", ["ids", "offset"], ["rows"]),
        helper.make_node("Gather", ["table", "rows"], ["picked"]),
        helper.make_node("Softmax", ["picked"], ["soft"]),
        helper.make_node("Transpose", ["soft"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["picked", "turned"], ["y"]),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [11])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [11, 11])
    graph = helper.make_graph(nodes, "gathering", [ids], [y], [table, offset])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


MODELS = {
    "transformer": transformer(batch=2, sequence=7, causal=True),
    "cnn": cnn(),
    "gathering": gathering(),
}


@pytest.fixture(scope="module", params=MODELS)
def found(request: pytest.FixtureRequest) -> Subject:
    return subject(MODELS[request.param])


def test_every_kernel_is_fed_what_it_reads_in_the_model(found: Subject) -> None:
    groups = [task.kernel for task in found.tasks]
    assert groups
    outputs = [name for group in groups for name in group.outputs if name not in found.plan.buffers.places]
    exposing = found.graph.clone()
    made = {value.name: value for node in exposing.nodes for value in node.outputs}
    first = len(exposing.outputs)
    known = {value.name for value in exposing.outputs}
    wanted = [name for name in outputs if name not in known]
    exposing.outputs = [*exposing.outputs, *(made[name] for name in wanted)]
    from tilestitch.passes.planner import make_plan

    with found.compiler.module(exposing, make_plan(exposing, found.compiler.context)) as model:
        results = model.run(found.feeds)
    in_model = dict(zip(wanted, list(results.values())[first:], strict=True))
    for group in groups:
        bench = bench_of(found.graph, group, found.values, found.trying)
        with bench.compiler.load(bench.artifact(group)) as module:
            mine = dict(zip(group.outputs, module.run(bench.feeds).values(), strict=True))
        for name in set(group.outputs) & set(in_model):
            np.testing.assert_allclose(mine[name], in_model[name], rtol=1e-5, atol=1e-6)


def test_each_schedule_that_is_tried_computes_the_same(found: Subject) -> None:
    (tuner,) = found.tuners(1, ANALYTICAL, 3)
    steps = tuner.tune(float("inf"), Turn())
    tried: list[Tried] = []
    while len(tried) < 20:
        trying, found_next = next(steps), next(steps)  # raises TuningError if results differ
        while isinstance(found_next, Trying):
            assert found_next == trying
            found_next = next(steps)
        assert (found_next.structure, found_next.group) == (trying.structure, trying.group)
        tried.append(found_next)
    assert all(one.ratio is None or one.ratio > 0 for one in tried)
    assert {one.structure for one in tried} <= {task.structure for task in found.tasks}


def test_equal_kernels_get_the_schedule_of_the_one_that_was_measured() -> None:
    found = subject(transformer(layers=3))
    task = next(task for task in found.tasks if len(task.groups) == 3)
    other = neighbours({node.name: node for node in found.graph.nodes}, task.kernel, found.plan.target)[0]
    plan = with_schedules(found.graph, found.plan, {group.name: other for group in task.groups}, no_kernels)
    changed = {group.name: group for group in plan.groups}
    for group in task.groups:
        assert changed[group.name].schedule == other.schedule
        assert changed[group.name].outputs == group.outputs
    same = [g for g in plan.groups if g.name not in {group.name for group in task.groups}]
    assert set(same) <= set(found.plan.groups)
    with found.compiler.module(found.graph, found.plan) as one, found.compiler.module(found.graph, plan) as two:
        for before, after in zip(one.run(found.feeds).values(), two.run(found.feeds).values(), strict=True):
            np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


def test_short_kernels_are_not_tuned() -> None:
    found = subject(transformer())
    longest = max(found.plan.groups, key=lambda group: len(group.nodes))
    latencies_us = {group.name: 1000.0 if group is longest else 0.1 for group in found.plan.groups}
    assert [task.kernel for task in tasks_of(found.graph, found.plan, latencies_us)] == [longest]


def test_values_that_are_inputs_are_not_computed() -> None:
    found = subject(transformer(layers=1))
    values = values_read(found.graph, found.plan, [found.plan.groups[0]], found.feeds, found.compiler)
    assert set(values) <= set(found.feeds)
