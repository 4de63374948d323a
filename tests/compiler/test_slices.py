"""Launches that go through the images of a batch a few at a time give what those give that go through all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.compiled import assert_close
from tests.guarded import run_guarded
from tests.tolerances import MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.compiler.driver import CompiledModel
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.passes import PassContext, StitchPlan, batches, check_plan, make_plan
from tilestitch.passes.api import CKernel, Schedule
from tilestitch.passes.errors import PlanError
from tilestitch.passes.open import slices
from tilestitch.passes.open.memory import place_open
from tilestitch.passes.plan.slices import Run, Slices
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.runtime import load
from tilestitch.runtime.cpu import sliced_segment
from tilestitch.runtime.errors import InputError

pytest.importorskip("onnxruntime")

BATCHES = (1, 2, 3, 4, 5, 8, 13)
SIDE = 9


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small models have results that any cache holds."""
    with monkeypatch.context() as patched:
        patched.setattr(slices, "LAST_CACHE_BYTES", 48_000)
        patched.setattr(batches, "LAST_CACHE_BYTES", 48_000)
        patched.setattr(slices, "LAUNCH_BYTES", 10)
        yield


class Network:
    """Layers on images [batch, channels, height, width], of which some results are used again."""

    def __init__(self, channels: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.value, self.channels, self.side = "x", channels, SIDE
        self.earlier: list[tuple[str, int, int]] = [("x", channels, SIDE)]

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        data = self.random.standard_normal(shape).astype(np.float32) / np.sqrt(max(1, int(np.prod(shape[1:]))))
        self.weights.append(numpy_helper.from_array(data.astype(np.float32), name))
        return name

    def node(self, op: str, *inputs: str, **attrs: object) -> None:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], f"node{len(self.nodes)}", **attrs))
        self.value = name

    def add(self, layer: str) -> None:
        match layer:
            case "conv" | "wide":
                out = 2 * self.channels if layer == "wide" and self.channels < 24 else self.channels
                self.node("Conv", self.value, self.weight(out, self.channels, 3, 3), pads=[1, 1, 1, 1])
                self.channels = out
            case "narrow":
                out = max(1, self.channels // 2)
                self.node("Conv", self.value, self.weight(out, self.channels, 1, 1))
                self.channels = out
            case "depthwise":
                weight = self.weight(self.channels, 1, 3, 3)
                self.node("Conv", self.value, weight, pads=[1, 1, 1, 1], group=self.channels)
            case "half" if self.side > 2:
                self.node("MaxPool", self.value, kernel_shape=[2, 2], strides=[2, 2])
                self.side //= 2
            case "softmax":
                self.node("Softmax", self.value, axis=1)
            case "again":
                fitting = [v for v, channels, side in self.earlier if (channels, side) == (self.channels, self.side)]
                self.node("Add", self.value, fitting[self.random.integers(len(fitting))] if fitting else self.value)
            case "join":
                fitting = [(v, channels) for v, channels, side in self.earlier if side == self.side]
                other, channels = (
                    fitting[self.random.integers(len(fitting))] if fitting else (self.value, self.channels)
                )
                self.node("Concat", self.value, other, axis=1)
                self.channels += channels
            case _:
                self.node("Relu", self.value)
        self.earlier.append((self.value, self.channels, self.side))

    def model(self, more: str = "", batch: int | str = "batch") -> onnx.ModelProto:
        """With a mean over pixels, times a matrix. more: another value that is an output."""
        self.node("GlobalAveragePool", self.value)
        self.node("Flatten", self.value)
        self.node("MatMul", self.value, self.weight(self.channels, 7))
        channels = next(channels for name, channels, _ in self.earlier if name == "x")
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, channels, SIDE, SIDE])
        outputs = [helper.make_tensor_value_info(self.value, TensorProto.FLOAT, [batch, 7])]
        outputs += [helper.make_tensor_value_info(more, TensorProto.FLOAT, None)] if more else []
        graph = helper.make_graph(self.nodes, "network", [x], outputs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


LAYERS = ("conv", "wide", "narrow", "depthwise", "half", "relu", "softmax", "again", "join")


def check(model: onnx.ModelProto, threads: int = 2) -> CompiledModel:
    compiled, reference = compile_model(model, num_threads=threads), rivals.onnxruntime(model, 1)
    channels = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    with load(compiled.to_bytes(), num_threads=threads) as module:
        for batch in (*BATCHES, *reversed(BATCHES)):
            x = np.random.default_rng(batch).standard_normal((batch, channels, SIDE, SIDE)).astype(np.float32)
            for actual, wanted in zip(run_guarded(module, {"x": x}).values(), reference({"x": x}), strict=True):
                assert_close(actual, wanted, MODELS["float32"])
            assert len(module.profile({"x": x})) == len(module.artifact.programs[0].steps[0].launches)
    return compiled


@given(st.lists(st.sampled_from(LAYERS), min_size=3, max_size=9), st.integers(1, 8), st.integers(0, 99))
@settings(max_examples=4, suppress_health_check=list(HealthCheck), deadline=None)
def test_any_network(layers: list[str], channels: int, seed: int) -> None:
    network = Network(channels, seed)
    for layer in layers:
        network.add(layer)
    check(network.model(more=network.earlier[len(layers) // 2][0] if seed % 2 and len(layers) > 3 else ""))


def deep(batch: int | str = "batch") -> onnx.ModelProto:
    network = Network(6, 0)
    for layer in ("conv", "conv", "wide", "depthwise", "again", "half", "conv", "wide", "join", "conv"):
        network.add(layer)
    return network.model(batch=batch)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_network_in_several_runs(threads: int) -> None:
    compiled = check(deep(), threads)
    plan = compiled.plan.slices
    assert plan is not None and sum(run.most != 0 for run in plan.runs) > 1
    assert [name for run in plan.runs for name in run.groups] == list(compiled.plan.launch_order)


def test_all_images_at_a_time_where_the_cache_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "LAUNCH_BYTES", 1 << 30)
    compiled = compile_model(deep())
    assert compiled.plan.slices is None
    assert "slices" in {refusal.rule for refusal in compiled.plan.refusals}


def test_images_that_are_mixed_are_computed_together() -> None:
    """The mean over the batch is of all images; before and after it, they are apart."""
    network = Network(6, 0)
    for layer in ("conv", "wide", "conv"):
        network.add(layer)
    network.node("ReduceMean", network.value, axes=[0], keepdims=1)
    network.node("Sub", network.earlier[-1][0], network.value)
    for layer in ("conv", "conv", "conv"):
        network.add(layer)
    compiled = check(network.model())
    plan = compiled.plan.slices
    assert plan is not None and 0 in [run.most for run in plan.runs[1:-1]]


@given(st.lists(st.sampled_from(LAYERS), min_size=3, max_size=9), st.sampled_from((2, 5, 13)), st.integers(0, 99))
@settings(max_examples=4, suppress_health_check=list(HealthCheck), deadline=None)
def test_any_network_of_a_known_batch(layers: list[str], batch: int, seed: int) -> None:
    network = Network(5, seed)
    for layer in layers:
        network.add(layer)
    model = network.model(more=network.earlier[len(layers) // 2][0], batch=batch)
    x = np.random.default_rng(seed).standard_normal((batch, 5, SIDE, SIDE)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batches, "LEAST_GAIN", 0.0)
        compiled = compile_model(model, num_threads=2)
    expected = rivals.onnxruntime(model, 1)({"x": x})
    with load(compiled.to_bytes(), num_threads=2) as module:
        for _ in range(3):  # from the second run on, steps are a chain
            for actual, wanted in zip(run_guarded(module, {"x": x}).values(), expected, strict=True):
                assert_close(actual, wanted, MODELS["float32"])


def test_a_known_batch_goes_through_slices_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "LEAST_GAIN", 0.0)
    executed: list[int] = []
    execute = sliced_segment._Slice.execute

    def counted(self: Any, first: int, *more: Any) -> None:
        executed.append(first)
        execute(self, first, *more)

    monkeypatch.setattr(sliced_segment._Slice, "execute", counted)
    x = np.ones((13, 6, SIDE, SIDE), np.float32)
    with load(compile_model(deep(13), num_threads=1).to_bytes(), num_threads=1) as module:
        runs = []
        for _ in range(4):
            module.run({"x": x})
            runs.append(executed.copy())
            executed.clear()
    assert len(set(runs[0])) > 1 and runs == [runs[0]] * 4


def in_images_of(compiled: CompiledModel) -> Slices:
    (body,) = compiled.plan.bodies.values()
    assert body.slices is not None
    return body.slices


def test_a_batch_of_known_size_goes_through_a_few_images_at_a_time() -> None:
    """The model keeps its sizes, and its explanation tells of the kernels as of those of any model."""
    model = deep(13)
    compiled = compile_model(model, num_threads=1)
    assert sum(run.most != 0 for run in in_images_of(compiled).runs) > 1
    explained = compiled.explain()
    assert [k["name"] for k in explained["kernels"]] == list(compiled.plan.bodies["call.body"].launch_order)
    assert explained["calls"]["call.body"]["prediction"]["sizes"] == {"images": 13}
    assert explained["prediction"]["total_us"] == pytest.approx(
        sum(k["predicted_us"] for k in explained["kernels"]), rel=1e-3
    )
    with load(compiled.to_bytes()) as module:
        assert [str(info) for info in module.inputs] == ["x: float32[13, 6, 9, 9]"]
        assert len(module.profile({"x": np.zeros((13, 6, 9, 9), np.float32)})) == len(explained["kernels"])
        with pytest.raises(InputError, match="float32"):
            module.run({"x": np.zeros((12, 6, 9, 9), np.float32)})


def test_a_plan_with_a_batch_of_known_size_is_replayed() -> None:
    compiled = compile_model(deep(13), num_threads=1)
    again = compile_model(
        deep(13), num_threads=1, plan=StitchPlan.from_json(json.loads(json.dumps(compiled.plan.to_json())))
    )
    assert again.to_bytes() == compiled.to_bytes()


def test_a_favoured_batch_has_slices() -> None:
    network = Network(6, 0)
    for layer in ("depthwise", "relu", "softmax"):
        network.add(layer)
    compiled = compile_model(network.model(), favour=[{"batch": 13}], num_threads=1)
    assert in_images_of(compiled).symbol == "images" and compiled.plans[1].slices is not None


def test_a_batch_is_replayed_beside_what_the_data_sizes() -> None:
    """The rows that NonZero finds go through slices of their own."""
    network = Network(6, 0)
    for layer in ("depthwise", "relu", "softmax"):
        network.add(layer)
    images = network.value
    network.node("NonZero", images)
    network.node("Cast", network.value, to=TensorProto.FLOAT)
    found, network.value = network.value, images
    model = network.model(more=found, batch=13)
    compiled = compile_model(model, num_threads=1)
    assert {body.graph for body in compiled.plan.bodies.values()} > {"network.images"}
    again = compile_model(
        model, num_threads=1, plan=StitchPlan.from_json(json.loads(json.dumps(compiled.plan.to_json())))
    )
    assert again.to_bytes() == compiled.to_bytes()


def test_kernels_of_the_known_size_stay_where_slices_have_too_few_tasks() -> None:
    """A running sum of each image is one task: two images at a time are too few for eight threads."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
g (float[16, 4096] x) => (float[16, 4096] y) <int64 one = {1}>
{ a = CumSum(x, one)  b = CumSum<reverse=1>(a, one)  c = CumSum(b, one)  y = CumSum<reverse=1>(c, one) }"""
    one, many = (compile_model(onnx.parser.parse_model(text), num_threads=threads) for threads in (1, 8))
    assert in_images_of(one) and not many.plan.bodies


def test_kernels_of_plug_ins_are_for_the_size_that_the_model_has() -> None:
    """Their text may have numbers in it."""

    @dataclass(frozen=True)
    class Tanh(Schedule):
        name: ClassVar[str] = "tanh_of_all"

        def schedule(self, graph: Any, group: Any, target: Any) -> list[CKernel] | None:
            if [graph.node(name).op for name in group.nodes] != ["tanh"]:
                return None
            count = int(np.prod(graph.node(group.nodes[0]).output.shape))
            text = (
                "float tanhf(float);\nvoid TILESTITCH_KERNEL(const float *x, float *y, int64_t task) {"
                f" for (int i = 0; i < {count}; ++i) y[i] = tanhf(x[i]); }}"
            )
            return [CKernel(text, (group.inputs[0], group.outputs[0]), tasks=1)]

    text = """<ir_version: 8, opset_import: ["" : 17]>
g (float[16, 4096] x) => (float[16, 4096] y) <int64 one = {1}>
{ a = CumSum(x, one)  b = CumSum(a, one)  t = Tanh(b)  c = CumSum(t, one)  y = CumSum(c, one) }"""
    model = onnx.parser.parse_model(text)
    assert compile_model(model, num_threads=1).plan.bodies
    compiled = compile_model(model, num_threads=1, passes=[Tanh()], planner="none")
    assert not compiled.plan.bodies
    x = np.random.default_rng(0).standard_normal((16, 4096)).astype(np.float32)
    (wanted,) = rivals.onnxruntime(model, 1)({"x": x})
    with load(compiled.to_bytes(), num_threads=1) as module:
        assert_close(module.run({"x": x})["y"], wanted, MODELS["float32"])


def test_kernels_of_the_known_size_stay_where_slices_save_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "LEAST_GAIN", 1e9)
    assert not compile_model(deep(13), num_threads=1).plan.bodies


def planned() -> tuple[Graph, StitchPlan]:
    text = """graph @main[n=1..99](%x: float32[n,8,8], %w: float32[8,2]) -> (%y) {
  %a = cumulative(%x) {axis=1, exclusive=false, reducer="sum", reverse=false} : float32[n,8,8]
  %b = cumulative(%a) {axis=2, exclusive=false, reducer="sum", reverse=false} : float32[n,8,8]
  %c = cumulative(%b) {axis=1, exclusive=false, reducer="sum", reverse=true} : float32[n,8,8]
  %s = reduce_sum(%c) {axes=[0], keepdims=true} : float32[1,8,8]
  %d = sub(%c, %s) : float32[n,8,8]
  %e = cumulative(%d) {axis=1, exclusive=false, reducer="sum", reverse=true} : float32[n,8,8]
  %y = matmul(%e, %w) : float32[n,8,2]
}"""
    graph, context = parse_graph(text), PassContext(TargetInfo("cpu", 1))
    return graph, make_plan(graph, context)


def test_a_plan_with_slices_is_checked() -> None:
    graph, plan = planned()
    assert plan.slices is not None
    check_plan(plan, graph)
    data = json.loads(json.dumps(plan.slices.to_json()))
    assert Slices.from_json(data, "slices") == plan.slices
    everything = tuple(name for run in plan.slices.runs for name in run.groups)
    for runs, problem in (
        ((Run(everything, 4),), "does not compute each image by itself"),
        ((Run(everything[:-1], 0),), "other groups"),
        ((Run(everything[::-1], 0),), "in another order"),
        ((Run(everything[:2], 0), Run(everything[2:3], -4), Run(everything[3:], 0)), "of -4 images"),
    ):
        with pytest.raises(PlanError, match=problem):
            check_plan(replace(plan, slices=Slices("n", runs)), graph)
    with pytest.raises(PlanError, match="no symbol"):
        check_plan(replace(plan, slices=replace(plan.slices, symbol="m")), graph)


def test_buffers_live_until_all_slices_are_done() -> None:
    graph, plan = planned()
    short = place_open(graph, plan.groups, plan.host_groups, plan.segments, plan.buffers.aliases)
    with pytest.raises(PlanError, match="too short-lived"):
        check_plan(replace(plan, buffers=short), graph)
