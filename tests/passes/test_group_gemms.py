"""GEMMs of one shape, each of an input and a matrix of its own, become one batched GEMM where that is to pay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from onnx import numpy_helper, parser

from tests.passes.helpers import assert_same_values, ops, origins
from tilestitch.compiler import compile_model
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.compiler.ir.verify import verify
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.devices import find_device
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.protocol import AnyDevice, Prediction
from tilestitch.passes import PassContext, make_plan, run_pipeline
from tilestitch.passes.contract import PassResult
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.planner import predicted_us
from tilestitch.passes.rewrite.cse import DeadCode
from tilestitch.passes.rewrite.grouped_gemms import group_gemms

RNG = np.random.default_rng(0)


def numbers(graph: Graph, *shape: int) -> Value:
    return graph.constant(RNG.uniform(-1, 1, shape).astype(np.float32))


def linear(graph: Graph, x: Value, width: int, bias: bool = True, trans_b: bool = False) -> Value:
    depth = x.shape[-1]
    weight = numbers(graph, *((width, depth) if trans_b else (depth, width)))
    attrs = {"trans_b": True} if trans_b else {}
    y = graph.emit("matmul", x, weight, origins=[f"linear{len(graph)}"], **attrs)
    return graph.emit("add", y, numbers(graph, width)) if bias else y


def experts(count: int, *, rows: tuple[int, ...] = (5,), width: int = 8, hidden: int = 12, **gemm: bool) -> Graph:
    """Each scales the shared input for itself, and is a layer, tanh and a layer; then all are added."""
    g = Graph("experts")
    x = g.add_input("x", TensorType("float32", (*rows, width)))
    found = []
    for _ in range(count):
        own = g.emit("add", g.emit("mul", x, numbers(g, width)), numbers(g, width))
        found.append(linear(g, g.emit("tanh", linear(g, own, hidden, **gemm)), width, **gemm))
    total = found[0]
    for one in found[1:]:
        total = g.emit("add", total, one)
    g.outputs = [total]
    return g


def towers(**gemm: bool) -> Graph:
    """Two inputs, each with two layers of its own."""
    g = Graph("towers")
    both = [g.add_input(name, TensorType("float32", (3, 8))) for name in "uv"]
    g.outputs = [linear(g, g.emit("exp", linear(g, x, 16, **gemm)), 8, **gemm) for x in both]
    return g


def merged_layers() -> Graph:
    """The first layers are columns of one GEMM, as `merge_gemms` leaves them."""
    g = Graph("merged")
    whole = g.emit("tanh", linear(g, g.add_input("x", TensorType("float32", (5, 8))), 36))
    parts = [g.emit("slice", whole, starts=(0, 12 * lane), steps=(1, 1), sizes=(5, 12)) for lane in range(3)]
    g.outputs = [linear(g, part, 8) for part in parts]
    return g


def some_without_bias() -> Graph:
    g = Graph("biases")
    both = [g.add_input(name, TensorType("float32", (3, 8))) for name in "uvw"]
    g.outputs = [linear(g, x, 16, bias=number != 1) for number, x in enumerate(both)]
    return g


def read_between() -> Graph:
    """What is between two layers is a result, too, of one lane; and one lane's input has another reader."""
    g = towers()
    first = next(n for n in g.nodes if n.op == "exp")
    g.outputs = [*g.outputs, first.output, g.emit("neg", first.inputs[0])]
    return g


CASES: dict[str, tuple[Callable[[], Graph], list[int], int]] = {
    "experts": (lambda: experts(4), [4, 4], 2),
    "experts, transposed matrices": (lambda: experts(3, trans_b=True), [3, 3], 2),
    "experts without biases": (lambda: experts(3, bias=False), [3, 3], 2),
    "experts of batches": (lambda: experts(2, rows=(2, 5)), [2, 2], 2),
    "experts of one row": (lambda: experts(5, rows=(1,)), [5, 5], 2),
    "experts of one column": (lambda: experts(2, width=1, hidden=1), [2, 2], 2),
    "towers": (towers, [2, 2], 2),
    "merged first layers": (merged_layers, [3], 2),
    "some without a bias": (some_without_bias, [3], 1),
    "results between": (read_between, [2, 2], 2),
}
"""A graph, how many GEMMs become one each time, and how many there are afterwards."""


@pytest.mark.parametrize("case", CASES)
def test_families_become_batched_gemms_that_compute_the_same(case: str) -> None:
    build, sizes, left = CASES[case]
    graph = build()
    other = graph.clone()
    assert [len(names) for names in group_gemms(other)] == sizes
    other = DeadCode().run(other, PassContext()).graph
    verify(other)
    assert_same_values(graph, other)
    assert ops(other).count("matmul") == left
    assert origins(other) == origins(graph)


def test_layers_of_experts_are_joined_without_copies() -> None:
    """The first layer reads what is computed once for all experts, the second what the first has made."""
    for graph in (experts(4), merged_layers()):
        group_gemms(graph)
        graph = DeadCode().run(graph, PassContext()).graph
        assert "concat" not in ops(graph)


def chain(layers: int = 4) -> Graph:
    g = Graph("chain")
    x = g.add_input("x", TensorType("float32", (3, 8)))
    for _ in range(layers):
        x = linear(g, x, 8)
    g.outputs = [x]
    return g


def shared_matrix() -> Graph:
    g = Graph("shared")
    weight = numbers(g, 8, 8)
    inputs = [g.add_input(name, TensorType("float32", (3, 8))) for name in "uv"]
    g.outputs = [g.emit("matmul", x, weight) for x in inputs]
    return g


def unlike() -> Graph:
    g = Graph("unlike")
    inputs = [g.add_input(name, TensorType("float32", (rows, 8))) for name, rows in (("u", 3), ("v", 4))]
    g.outputs = [linear(g, inputs[0], 8), linear(g, inputs[1], 8), linear(g, inputs[0], 6)]
    return g


@pytest.mark.parametrize("build", [chain, shared_matrix, unlike])
def test_what_is_no_family_stays(build: Callable[[], Graph]) -> None:
    graph = build()
    before = str(graph)
    assert group_gemms(graph) == []
    assert str(graph) == before


def test_layers_of_one_shape_are_one_family_for_each_depth() -> None:
    g = Graph("square")
    inputs = [g.add_input(name, TensorType("float32", (3, 8))) for name in "uv"]
    g.outputs = [linear(g, g.emit("exp", linear(g, x, 8)), 8) for x in inputs]
    other = g.clone()
    assert [len(names) for names in group_gemms(other)] == [2, 2]
    assert_same_values(g, other)


# -- the choice --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dear:
    """The analytical model, if kernels whose largest matrix has one of these numbers of bytes took a second more."""

    nbytes: tuple[int, ...]
    name: str = "dear"

    def predict(self, kernels: Sequence[KernelFacts], device: AnyDevice) -> list[Prediction]:
        found = AnalyticalModel().predict(kernels, device)
        return [
            replace(one, latency_us=one.latency_us + 1e6 * (largest_matrix(kernel) in self.nbytes))
            for one, kernel in zip(found, kernels, strict=True)
        ]


def largest_matrix(kernel: KernelFacts) -> int:
    reads = [t for launch in kernel.sequence for part in launch.parts for t in part.traffic]
    return max((t.footprint_bytes for t in reads if t.role == "weight"), default=0)


ONE, ALL = (512, 256), (1536, 768)
"""Bytes of the matrices of `three_towers`, first and second layer: of one tower, and of all."""


def three_towers() -> Graph:
    g = Graph("towers")
    inputs = [g.add_input(name, TensorType("float32", (3, 8))) for name in "uvw"]
    g.outputs = [linear(g, g.emit("exp", linear(g, x, 16)), 4) for x in inputs]
    return g


def chosen(dear: tuple[int, ...], **options: object) -> list[tuple[int, ...]]:
    """The shapes of the matrices that are left."""
    context = PassContext(TargetInfo("cuda:sm_80"), options, cost_model=Dear(dear))
    graph = three_towers()
    found = run_pipeline(graph, context, "group_gemms")
    assert_same_values(graph, found)
    return sorted(n.inputs[1].shape for n in found.nodes if n.op == "matmul")


@pytest.mark.parametrize(
    ("dear", "expected"),
    [
        pytest.param(ONE, [(3, 8, 16), (3, 16, 4)], id="launches of one tower are dear"),
        pytest.param(ALL, [(8, 16)] * 3 + [(16, 4)] * 3, id="launches of all towers are dear"),
        pytest.param((ONE[0], ALL[1]), [(3, 8, 16)] + [(16, 4)] * 3, id="of the second layer those of all"),
        pytest.param((ALL[0], ONE[1]), [(3, 16, 4)] + [(8, 16)] * 3, id="of the first layer those of all"),
    ],
)
def test_the_cost_model_decides_which_families_are_one_launch(
    dear: tuple[int, ...], expected: list[tuple[int, ...]]
) -> None:
    assert chosen(dear) == sorted(expected)


def test_both_times_are_noted() -> None:
    found: list[str] = []

    class Notes:
        def before(self, pass_: object, graph: Graph) -> None: ...

        def after(self, pass_: object, result: PassResult, seconds: float) -> None:
            found.extend(result.notes)

    run_pipeline(three_towers(), PassContext(TargetInfo("cuda:sm_80"), listeners=[Notes()]), "group_gemms")
    assert any("GEMMs became one: matmul, " in note or "GEMMs stay apart: matmul, " in note for note in found)
    assert any("us with none" in note and "us with all" in note for note in found)


@pytest.mark.parametrize("planner", ["none", "injective", "xla"])
def test_baselines_have_launches_of_their_own(planner: str) -> None:
    assert len(chosen(ONE, planner=planner)) == 6


def test_on_cpus_tasks_of_all_gemms_are_one_list_anyway() -> None:
    graph = three_towers()
    assert ops(run_pipeline(graph, PassContext(TargetInfo("cpu", 2)), "group_gemms")) == ops(graph)


def test_experts_of_few_tokens_are_predicted_to_gain_on_the_largest_gpu() -> None:
    """Launches of one expert each share the bandwidth as one launch does, but wait for memory one after the other."""
    graph, gpu = experts(8, rows=(16,), width=512, hidden=1024), find_device("H200")
    context = PassContext(TargetInfo("cuda", 1, gpu.name, (gpu.architecture,), gpu.sm_count))
    found = run_pipeline(graph, context, "group_gemms")
    times = [predicted_us(make_plan(one, context), one, context) for one in (graph, found)]
    assert times[1] < 0.8 * times[0]


def test_gemms_in_the_body_of_a_loop_over_open_sizes_stay_apart() -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[b, 4] h, float[t, b, 4] x) => (float[b, 4] y) {
        y = Scan<num_scan_inputs=1, body = turn (float[b, 4] s, float[b, 4] e) => (float[b, 4] n) {
            a = MatMul(s, v)  c = MatMul(e, w)  d = Add(a, c)  n = Tanh(d) }>(h, x) }""")
    for name in "vw":
        model.graph.initializer.append(numpy_helper.from_array(RNG.random((4, 4)).astype(np.float32), name))
    (body,) = compile_model(model, "cuda:sm_90a").specialisations[0].plan.bodies.values()
    assert body.groups and not body.host_groups
