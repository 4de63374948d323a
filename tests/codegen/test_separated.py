"""Slices that are ranges of bytes: kernels get the address where one begins, so that different ones share a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, parser
from onnx.numpy_helper import from_array
from onnx.reference import ReferenceEvaluator

from tests.codegen.cuda.cuda_harness import emulated
from tests.compiled import assert_close, compile_graph
from tilestitch.codegen.launch import RangeArg
from tilestitch.codegen.separated import ranged
from tilestitch.compiler import compile_model
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.passes.contract import PassContext
from tilestitch.passes.plan import Group, GroupKind
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.planner import make_plan
from tilestitch.passes.schedule.structure import structure_of
from tilestitch.runtime import load
from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.program import DeviceStep, NativeStep

ARRAY = np.linspace(-3, 3, 2 * 6 * 8, dtype=np.float32)


def cut(graph: Graph, value: Value, starts: tuple[int, ...], sizes: tuple[int, ...], step: int = 1) -> Value:
    steps = tuple(step if size > 1 else 1 for size in sizes)
    return graph.emit("slice", value, starts=starts, sizes=sizes, steps=steps)


def with_input(*shape: int, dtype: str = "float32") -> tuple[Graph, Value]:
    graph = Graph("g")
    return graph, graph.add_input("x", TensorType(dtype, shape))


def ranges_in(graph: Graph) -> list[RangeArg]:
    """The ranges that the groups of a plan read, in order."""
    plan = make_plan(graph, PassContext(TargetInfo("cpu", 2)))
    found = [apart for group in plan.groups if (apart := ranged(graph, group)) is not None]
    return [range_ for apart in found for range_ in apart.ranges.values()]


def symbols_and_result(graph: Graph, target: str, feeds: dict[str, Any]) -> tuple[list[str], list[np.ndarray]]:
    artifact = emulated(graph) if target == "emulator" else compile_graph(graph)
    steps = [step for program in read_artifact(artifact).programs for step in program.steps]
    launches = [launch for step in steps if isinstance(step, NativeStep | DeviceStep) for launch in step.launches]
    with load(artifact, device=target) as module:
        return [launch.symbol for launch in launches], list(module.run(feeds).values())


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_kernels_read_the_range_that_their_slice_shows(target: str) -> None:
    graph, x = with_input(6, 8)
    first = graph.emit("tanh", cut(graph, x, (1, 0), (2, 8)))
    spread = graph.emit("reduce_sum", first, axes=(0, 1), keepdims=True)
    graph.outputs = [first, graph.emit("tanh", cut(graph, graph.emit("mul", x, spread), (3, 0), (2, 8)))]
    rows = ARRAY[:48].reshape(6, 8)
    _, (one, other) = symbols_and_result(graph, target, {"x": rows})
    assert_close(one, np.tanh(rows[1:3]), 1e-6)
    assert_close(other, np.tanh(rows[3:5] * one.sum()), 1e-5)


@pytest.mark.parametrize("target", ["cpu", "emulator"])
@pytest.mark.parametrize("op", ["tanh", "softmax"])
def test_launches_of_different_ranges_share_a_symbol(target: str, op: str) -> None:
    graph, x = with_input(24, 8)
    parts = [cut(graph, x, (first, 0), (1, 8)) for first in range(24)]
    if op == "tanh":
        graph.outputs = [graph.emit("tanh", part) for part in parts]
    else:
        tops = [graph.emit("reduce_max", part, axes=(1,), keepdims=True) for part in parts]
        graph.outputs = [graph.emit("sub", part, top) for part, top in zip(parts, tops, strict=True)]
    rows = ARRAY.reshape(12, 8).repeat(2, axis=0)
    symbols, results = symbols_and_result(graph, target, {"x": rows})
    assert len(set(symbols)) <= max(1, len(symbols) // 2)
    for result, row in zip(results, rows, strict=True):
        assert_close(result[0], np.tanh(row) if op == "tanh" else row - row.max(), 1e-6)


@pytest.mark.parametrize(
    ("starts", "sizes", "offset"),
    [((1, 2, 0), (1, 3, 8), 4 * (48 + 16)), ((1, 0, 0), (1, 6, 8), 4 * 48), ((1, 5, 4), (1, 1, 3), 4 * (48 + 44))],
)
def test_a_range_begins_where_its_first_element_lies(
    starts: tuple[int, ...], sizes: tuple[int, ...], offset: int
) -> None:
    graph, x = with_input(2, 6, 8)
    graph.outputs = [graph.emit("tanh", cut(graph, x, starts, sizes))]
    assert ranges_in(graph) == [RangeArg("x", offset, 4 * int(np.prod(sizes)))]


@pytest.mark.parametrize(
    ("starts", "sizes", "step"),
    [
        ((0, 2, 0), (2, 3, 8), 1),  # two pieces of memory
        ((1, 2, 0), (1, 3, 4), 1),  # half of each row
        ((1, 0, 0), (1, 1, 4), 2),  # every other element
        ((1, 5, 7), (1, 1, 4), -1),  # backwards
        ((1, 5, 1), (1, 1, 3), 1),  # not aligned
        ((0, 0, 0), (2, 6, 8), 1),  # all of it
    ],
)
def test_other_slices_are_computed_by_the_kernel(starts: tuple[int, ...], sizes: tuple[int, ...], step: int) -> None:
    graph, x = with_input(2, 6, 8)
    graph.outputs = [graph.emit("tanh", cut(graph, x, starts, sizes, step))]
    assert ranges_in(graph) == []


def test_what_a_group_computes_itself_has_no_address() -> None:
    graph, x = with_input(6, 8)
    graph.outputs = [graph.emit("tanh", cut(graph, graph.emit("exp", x), (2, 0), (2, 8)))]
    assert ranges_in(graph) == []


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_a_value_is_read_whole_and_in_ranges_by_one_kernel(target: str) -> None:
    graph, x = with_input(6, 8)
    row = cut(graph, x, (4, 0), (1, 8))
    graph.outputs = [graph.emit("sub", graph.emit("mul", x, row), cut(graph, x, (2, 0), (1, 8)))]
    rows = ARRAY[:48].reshape(6, 8)
    _, (result,) = symbols_and_result(graph, target, {"x": rows})
    assert_close(result, rows * rows[4:5] - rows[2:3], 1e-6)


@pytest.mark.parametrize("target", ["cpu", "emulator"])
@pytest.mark.parametrize("dtype", ["float16", "int8", "bool"])
def test_offsets_are_in_bytes_of_the_dtype(target: str, dtype: str) -> None:
    graph, x = with_input(6, 16, dtype=dtype)
    graph.outputs = [graph.emit("cast", cut(graph, x, (first, 0), (2, 16)), to="float32") for first in (0, 2, 3)]
    rows = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, (6, 16)).astype(dtype)
    _, results = symbols_and_result(graph, target, {"x": rows})
    for first, result in zip((0, 2, 3), results, strict=True):
        np.testing.assert_array_equal(result, rows[first : first + 2].astype(np.float32))


@pytest.mark.parametrize("planner", ["stitch", "injective"])
def test_indices_that_another_kernel_keeps_in_range_are_not_looked_at(planner: str) -> None:
    """The plan has no check of them, so neither may a group that is taken apart from what computes them."""
    graph, x = with_input(6, 8)
    place = graph.emit("arg_max", graph.emit("exp", x), axis=1, keepdims=False, select_last=False)
    part = cut(graph, x, (2, 0), (4, 8))
    rows = graph.emit("gather", part, cut(graph, place, (0,), (4,)), axis=1)
    graph.outputs = [place, graph.emit("tanh", rows)]
    values = ARRAY[:48].reshape(6, 8)[:, ::-1].copy()
    values[1, 5] = 9
    with load(compile_graph(graph, planner)) as module:
        places, found = module.run({"x": values}).values()
    np.testing.assert_array_equal(places, values.argmax(1))
    assert_close(found, np.tanh(values[2:][:, places[:4]]), 1e-5)


STEPS = """<ir_version: 9, opset_import: ["" : 20]>
    g (float[6, {batch}, 16] x, float[{batch}, 16] s) => (float[{batch}, 16] y) {{
    zero, one, two, three, four, five = Split<axis = 0, num_outputs = 6>(x)
    {steps} }}"""


def unrolled(batch: str) -> ModelProto:
    """Each of six steps multiplies by a matrix and adds its part of the inputs."""
    lines, state = [], "s"
    for number, part in enumerate(("zero", "one", "two", "three", "four", "five")):
        result = "y" if number == 5 else f"s{number}"
        lines.append(f"m{number} = MatMul({state}, w)  e{number} = Squeeze({part}, front)")
        lines.append(f"a{number} = Add(m{number}, e{number})  {result} = Tanh(a{number})")
        state = result
    model = parser.parse_model(STEPS.format(batch=batch, steps="\n".join(lines)))
    weights = np.random.default_rng(0).normal(0, 0.25, (16, 16)).astype(np.float32)
    model.graph.initializer.extend([from_array(weights, "w"), from_array(np.zeros(1, np.int64), "front")])
    return model


@pytest.mark.parametrize("batch", ["4", "b"])
def test_steps_that_add_other_ranges_to_what_they_multiply_are_one_kernel(batch: str) -> None:
    model = unrolled(batch)
    artifact = compile_model(model, num_threads=1).to_bytes()
    program = read_artifact(artifact).programs[0]
    launches = [launch for step in program.steps if isinstance(step, NativeStep) for launch in step.launches]
    assert len(launches) == 6 and len({launch.symbol for launch in launches}) == 1
    module, random = load(artifact), np.random.default_rng(1)
    for rows in (4,) if batch == "4" else (1, 4, 7):
        feeds = {"x": random.normal(size=(6, rows, 16)), "s": random.normal(size=(rows, 16))}
        feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
        (wanted,) = ReferenceEvaluator(model).run(None, feeds)
        assert_close(module.run(feeds)["y"], wanted, 1e-5)


def test_slices_of_what_is_multiplied_are_no_ranges() -> None:
    graph, x = with_input(8, 16)
    weights = graph.constant(np.ones((16, 16), np.float32))
    product = graph.emit("matmul", cut(graph, x, (2, 0), (4, 16)), weights)
    graph.outputs = [graph.emit("add", product, cut(graph, x, (4, 0), (4, 16)))]
    assert ranges_in(graph) == [RangeArg("x", 4 * 64, 4 * 64)]


def test_groups_that_read_other_ranges_have_the_same_structure_if_these_lie_alike() -> None:
    graph, x = with_input(8, 16)
    pairs = [(0, 1), (2, 3), (4, 7)]
    graph.outputs = [
        graph.emit("add", cut(graph, x, (one, 0), (1, 16)), cut(graph, x, (other, 0), (1, 16))) for one, other in pairs
    ]
    target, keys = TargetInfo("cpu", 2), []
    for output in graph.outputs:
        assert output.producer is not None
        members = [*(v.producer for v in output.producer.inputs if v.producer), output.producer]
        names = tuple(node.name for node in members)
        group = Group("g", GroupKind.INJECTIVE, names, None, ("x",), (), (output.name,))
        structure = structure_of({node.name: node for node in graph.nodes}, group, target)
        assert structure is not None
        keys.append(structure.key)
    assert keys[0] == keys[1] != keys[2]
