"""Kernels of unlike parallelism in one launch, of which each block computes a slab: reductions over one axis that feed
reductions over others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codegen.cuda.cuda_harness import target
from tests.codegen.kernel_harness import interpret
from tests.compiled import assert_close
from tests.tolerances import DEVICE_KERNELS, OPERATORS
from tilestitch.codegen.assemble import Planned, assemble
from tilestitch.codegen.cuda.backend import CudaBackend
from tilestitch.codegen.cuda.target import parse_cuda_target
from tilestitch.codegen.cuda.toolchain.compile import BuildOptions
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.passes import PassContext, StitchPlan, TargetInfo, check_plan, make_plan, run_pipeline
from tilestitch.passes.errors import PlanError
from tilestitch.passes.fusion.planners import PLANNERS
from tilestitch.passes.fusion.rules.combining import BlockStitching
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.launches.cuda.group import blocking_of
from tilestitch.passes.plan.schedules import BlockSchedule, SharedPlace
from tilestitch.passes.schedule.cuda.blocks import shared_places
from tilestitch.passes.schedule.facts import nodes_by_name
from tilestitch.passes.schedule.launches import completed_alone
from tilestitch.runtime import load
from tilestitch.runtime.artifact_writer import artifact_bytes
from tilestitch.runtime.emulator import EmulatorOptions

ORDERS = [
    EmulatorOptions(),
    EmulatorOptions(block_order="reversed", thread_order="reversed"),
    EmulatorOptions(block_order="adversarial", thread_order="random", seed=7),
]
TARGETS = ["cuda:h200", "cuda:sm_80"]


def planned(graph: Graph, machine: TargetInfo, without: str = "") -> tuple[Graph, StitchPlan]:
    """The plan of the rules of the default planner; without: the rule that is left out."""
    rules = tuple(rule for rule in PLANNERS["stitch"] if rule.name != without)
    context = PassContext(machine, {"planner": "none"}, rules=rules)
    graph = run_pipeline(graph, context)
    plan = make_plan(graph, context)
    check_plan(plan, graph)
    return graph, plan


def run(graph: Graph, plan: StitchPlan, feeds: dict[str, np.ndarray], options: EmulatorOptions) -> list[np.ndarray]:
    names = tuple(f"y{i}" for i in range(len(graph.outputs)))
    backend = CudaBackend(target(), BuildOptions(text_only=True))
    contents = assemble([Planned(graph, plan, names)], backend, keep_source=True, progress=lambda *_: None).contents
    with load(artifact_bytes(replace(contents, compiler_version="test")), device=options) as module:
        return list(module.run(feeds).values())


# -- five models, and more ---------------------------------------------------------------------------------------------

HEADER = '<ir_version: 9, opset_import: ["" : 21]> g '
MODELS = {
    "softmax, then a sum over another axis": """(float[137,37,53] x) => (float[137,53] y) {
        p = Softmax <axis = 2> (x)
        axes = Constant <value_ints = [1]> ()
        y = ReduceSum <keepdims = 0> (p, axes)
    }""",
    "attention's weights, and their mean over heads": """(float[2,7,67,61] x)
        => (float[2,7,67,61] p, float[2,67,61] y) {
        p = Softmax <axis = 3> (x)
        axes = Constant <value_ints = [1]> ()
        y = ReduceMean <keepdims = 0> (p, axes)
    }""",
    "slot attention: softmax over slots, weights over inputs": """(float[131,11,97] x) => (float[131,11,97] y) {
        p = Softmax <axis = 1> (x)
        axes = Constant <value_ints = [2]> ()
        s = ReduceSum (p, axes)
        y = Div (p, s)
    }""",
    "group normalisation, then softmax of lines": """(float16[33,24,5,31] x, float16[24] g, float16[24] b)
        => (float16[33,24,5,31] y) {
        n = GroupNormalization <num_groups = 8> (x, g, b)
        y = Softmax <axis = 3> (n)
    }""",
    "layer normalisation of tokens, then softmax over them": """(float[137,13,88] x, float[88] g, float[88] b)
        => (float[137,13,88] y) {
        n = LayerNormalization (x, g, b)
        y = Softmax <axis = 1> (n)
    }""",
    "pooling feeds a norm of channels that scales them": """(float[129,24,7,13] x, float[24] g)
        => (float[129,24,7,13] y) {
        pixels = Constant <value_ints = [2, 3]> ()
        m = ReduceMean <keepdims = 0> (x, pixels)
        n = LayerNormalization (m, g)
        h = Tanh (n)
        u = Unsqueeze (h, pixels)
        y = Mul (x, u)
    }""",
    "rows and columns in turn (Sinkhorn)": """(float[131,17,19] x) => (float[131,17,19] y) {
        rows = Constant <value_ints = [1]> ()
        columns = Constant <value_ints = [2]> ()
        e = Exp (x)
        s = ReduceSum (e, rows)
        f = Div (e, s)
        t = ReduceSum (f, columns)
        h = Div (f, t)
        u = ReduceSum (h, rows)
        y = Div (h, u)
    }""",
}


@pytest.mark.parametrize("machine", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_kernels_of_unlike_parallelism_become_one(name: str, machine: str) -> None:
    graph = import_model(onnx.parser.parse_model(HEADER + MODELS[name])).graph
    info = parse_cuda_target(machine).planned_for
    _, apart = planned(graph.clone(), info, without="block")
    assert len(apart.groups) > 1
    _, plan = planned(graph, info)
    (group,) = plan.groups
    assert (group.tie, len(group.stages) > 1, "block" in group.schemes) == ("block", True, True)
    (launch,) = plan.launches or ()
    assert launch.kind == "blocks" and launch.blocks > 30 and not launch.cooperative


@pytest.mark.parametrize("name", MODELS)
def test_against_onnx_runtime(name: str) -> None:
    model = onnx.parser.parse_model(HEADER + MODELS[name])
    graph, plan = planned(import_model(model).graph, target().planned_for)
    (group,) = plan.groups
    assert group.tie == "block"
    random = np.random.default_rng(1)
    feeds = {v.name: random.standard_normal(v.shape).astype(v.dtype) for v in graph.inputs}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = run(graph, plan, feeds, ORDERS[list(MODELS).index(name) % len(ORDERS)])
    for value, got, expected in zip(graph.outputs, found, session.run(None, feeds), strict=True):
        assert_close(got, expected, OPERATORS[value.dtype])


# -- shared memory -----------------------------------------------------------------------------------------------------


def turns(shape: tuple[int, ...], axes: list[int], dtype: str = "float32") -> Graph:
    """Softmaxes over one axis after the other."""
    graph = Graph("turns")
    x = graph.add_input("x", TensorType(dtype, shape))
    for axis in axes:
        x = softmax(graph, x, axis)
    graph.outputs = [x]
    return graph


def softmax(graph: Graph, x: Value, axis: int) -> Value:
    largest = graph.emit("reduce_max", x, axes=(axis,), keepdims=True)
    weights = graph.emit("exp", graph.emit("sub", x, largest))
    return graph.emit("div", weights, graph.emit("reduce_sum", weights, axes=(axis,), keepdims=True))


def forced(graph: Graph) -> tuple[StitchPlan, Group]:
    rules = (*PLANNERS["stitch"][:8], BlockStitching(forced=True))
    plan = make_plan(graph, PassContext(target().planned_for, {"planner": "none"}, rules=rules))
    check_plan(plan, graph)
    (group,) = plan.groups
    return plan, group


def edited(plan: StitchPlan, schedule: BlockSchedule) -> StitchPlan:
    """The plan by hand: what follows from the schedule is left out."""
    (group,) = plan.groups
    buffers = replace(plan.buffers, temporaries=())
    return replace(
        plan, groups=(replace(group, schedule=schedule),), launches=None, edges=None, lanes=None, buffers=buffers
    )  # fmt: skip


def test_values_that_never_meet_share_their_place() -> None:
    graph = turns((5, 16, 40), [2, 1, 2, 1, 2])
    _, group = forced(graph)
    found = blocking_of(nodes_by_name(graph), group)
    assert not isinstance(found, str)
    blocking, _ = found
    places = shared_places(blocking, 1 << 16)
    assert [place.offset_bytes for place in places] == [0, 2560, 0, 2560], "each stage reads what the one before stored"
    assert blocking.shared_bytes(BlockSchedule((0,), places)) == 2 * 16 * 40 * 4
    assert [place.value for place in shared_places(blocking, 2560)] == [0, 2], "one of two that meet stays outside"
    assert not shared_places(blocking, 2559)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_what_has_no_room_goes_through_memory(dtype: str, kept: int) -> None:
    graph = turns((3, 8, 24), [2, 1, 2], dtype)
    plan, group = forced(graph)
    assert isinstance(group.schedule, BlockSchedule) and len(group.schedule.places) in (0, 2)
    places = tuple(SharedPlace(number, number * 1024) for number in range(kept))
    plan = completed_alone(edited(plan, replace(group.schedule, places=places)), graph)
    feeds = {"x": np.random.default_rng(2).standard_normal((3, 8, 24)).astype(dtype)}
    (got,) = run(graph, plan, feeds, ORDERS[2])
    assert_close(got, interpret(graph, feeds)[graph.outputs[0]], 4 * DEVICE_KERNELS[dtype])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"axes": (1,)}, "no thread block can have places along axes"),
        ({"axes": ()}, "no thread block can have places along axes"),
        ({"places": (SharedPlace(0, 0), SharedPlace(1, 64))}, "meets another one at 64"),
        ({"places": (SharedPlace(2, 0),)}, "value 2 of its parts has no place"),
        ({"places": (SharedPlace(9, 0),)}, "value 9 of its parts has no place"),
        ({"places": (SharedPlace(0, 4),)}, "has no place at 4"),
        ({"places": (SharedPlace(0, 1 << 20),)}, "of shared memory"),
    ],
)
def test_edited_plans_are_refused(change: dict[str, object], complaint: str) -> None:
    graph = turns((3, 8, 24), [2, 1, 2])
    plan, group = forced(graph)
    assert isinstance(group.schedule, BlockSchedule)
    with pytest.raises(PlanError, match=complaint):
        check_plan(edited(plan, replace(group.schedule, **change)), graph)


def test_plans_are_read_back() -> None:
    plan, _ = forced(turns((3, 8, 24), [2, 1, 2]))
    assert StitchPlan.from_json(plan.to_json()) == plan


# -- whatever the axes -------------------------------------------------------------------------------------------------


@st.composite
def chains(draw: st.DrawFn) -> Graph:
    """Reductions over any axes that scale, centre or look at what they are of, with transposes between."""
    graph = Graph("chain")
    dtype = draw(st.sampled_from(["float32", "float16"]))
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 33]), min_size=2, max_size=4)))
    x = graph.add_input("x", TensorType(dtype, shape))
    for _ in range(draw(st.integers(2, 4))):
        rank = len(x.shape)
        axes = tuple(sorted(draw(st.sets(st.integers(0, rank - 1), min_size=1, max_size=2))))
        step = draw(st.sampled_from(["centre", "softmax", "turn", "where"]))
        if step == "turn":
            x = graph.emit("tanh", graph.emit("transpose", x, perm=tuple(draw(st.permutations(range(rank))))))
        elif step == "where":
            place = graph.emit("arg_max", x, axis=axes[0], keepdims=True, select_last=False)
            x = graph.emit("mul", x, graph.emit("cast", graph.emit("equal", place, place), to=dtype))
        elif step == "softmax":
            x = softmax(graph, x, axes[0])
        else:
            x = graph.emit("sub", x, graph.emit("tanh", graph.emit("reduce_max", x, axes=axes, keepdims=True)))
    total = graph.emit("reduce_max", x, axes=(0,), keepdims=draw(st.booleans()))
    graph.outputs = [x, total] if draw(st.booleans()) else [x]
    return graph


@settings(max_examples=8)
@given(graph=chains(), order=st.sampled_from(ORDERS))
def test_whatever_the_axes(graph: Graph, order: EmulatorOptions) -> None:
    rules = (*PLANNERS["stitch"][:8], BlockStitching(forced=True))
    plan = make_plan(graph, PassContext(target().planned_for, {"planner": "none"}, rules=rules))
    check_plan(plan, graph)
    (x,) = graph.inputs
    feeds = {"x": np.random.default_rng(3).standard_normal(x.shape).astype(x.dtype)}
    expected = interpret(graph, feeds)
    for value, got in zip(graph.outputs, run(graph, plan, feeds, order), strict=True):
        assert_close(got, expected[value], 8 * DEVICE_KERNELS.get(value.dtype, 0))
