"""`--precision`: what it changes of a graph, what it leaves alone, and what compiled models then compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiled import assert_close
from tests.models import cnn, random_inputs, transformer
from tests.passes.helpers import assert_same_values
from tests.strategies import graphs
from tilestitch.compiler import compile_model
from tilestitch.compiler.errors import OptionError
from tilestitch.compiler.ir import Graph, Node, TensorType
from tilestitch.passes import PassContext, TargetInfo, VerifyListener, run_pipeline
from tilestitch.passes.errors import PassError
from tilestitch.passes.planner import check_plan, make_plan
from tilestitch.passes.rewrite.precision import Precision
from tilestitch.runtime import load
from tilestitch.runtime.artifact import read_artifact

CUDA = TargetInfo("cuda")


def lowered(graph: Graph, to: str, target: TargetInfo = CUDA) -> Graph:
    return run_pipeline(graph, PassContext(target, listeners=[VerifyListener()]), f"precision{{to={to}}},dce")


def contractions(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op in ("matmul", "conv", "conv_transpose")]


def mlp(dtype: str = "float32") -> Graph:
    graph = Graph()
    x = graph.add_input("x", TensorType(dtype, (4, 6)))
    random = np.random.default_rng(0)
    w, v = (graph.constant(random.uniform(-1, 1, (6, 6)).astype(dtype)) for _ in range(2))
    graph.outputs = [graph.emit("matmul", graph.emit("tanh", graph.emit("matmul", x, w)), v)]
    return graph


def test_fp32_changes_nothing() -> None:
    assert str(lowered(mlp(), "fp32")) == str(mlp())


def test_tf32_is_a_permission_of_contractions() -> None:
    graph = lowered(mlp(), "tf32")
    assert [n.attrs["precision"] for n in contractions(graph)] == ["tf32", "tf32"]
    assert all(v.dtype == "float32" for n in graph.nodes for v in n.outputs)


def test_tf32_on_the_cpu_is_an_error_that_says_why() -> None:
    with pytest.raises(PassError, match=r"CPUs have no instructions for TF32.*--precision fp32.*sm_80"):
        lowered(mlp(), "tf32", TargetInfo("cpu"))


@pytest.mark.parametrize(("to", "dtype"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_contractions_read_half_floats_and_add_up_in_float32(to: str, dtype: str) -> None:
    graph = lowered(mlp(), to)
    for node in contractions(graph):
        assert [v.dtype for v in node.inputs] == [dtype, dtype]
        assert node.output.dtype == "float32"
    assert [n.output.dtype for n in graph.nodes if n.op == "tanh"] == ["float32"]
    assert_same_values(mlp(), graph, tolerance=3e-3 if to == "fp16" else 3e-2)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_what_is_not_float32_stays_as_it_is(dtype: str) -> None:
    assert str(lowered(mlp(dtype), "bf16")) == str(mlp(dtype))


def test_a_value_that_a_contraction_reads_exists_in_half_only() -> None:
    """Its other readers widen the half float; statistics are still added up in float32."""
    graph = mlp()
    hidden = next(n for n in graph.nodes if n.op == "tanh").output
    gemm = graph.outputs[0]
    mean = graph.emit("reduce_sum", hidden, axes=(1,), keepdims=True)
    graph.outputs = [graph.emit("add", graph.emit("add", gemm, hidden), mean)]
    result = lowered(graph, "fp16")
    tanh = next(n for n in result.nodes if n.op == "tanh").output
    assert [(n.op, n.attrs["to"]) for n in tanh.users] == [("cast", "float16")]
    (total,) = (n for n in result.nodes if n.op == "reduce_sum")
    assert (total.inputs[0].dtype, total.output.dtype) == ("float32", "float32")
    assert_same_values(graph, result, tolerance=3e-3)


@pytest.mark.parametrize(
    ("columns", "taps", "rounded"), [(600, 1, True), (768, 1, False), (96, 9, False), (80, 9, True)]
)
def test_what_contractions_multiply_often_is_read_unrounded_by_others(columns: int, taps: int, rounded: bool) -> None:
    """Two GEMMs, or a convolution, and a sum of what they read."""
    graph, random = Graph(), np.random.default_rng(0)
    y = graph.emit("tanh", graph.add_input("x", TensorType("float32", (1, 5, 5, 8) if taps > 1 else (25, 8))))
    if taps > 1:
        w = graph.constant(random.uniform(-1, 1, (3, 3, 8, columns)).astype(np.float32))
        window = {"strides": (1, 1), "before": (1, 1), "after": (1, 1), "dilations": (1, 1), "groups": 1}
        products = [graph.emit("conv", y, w, layout="NXC", **window)]
    else:
        halves = [random.uniform(-1, 1, (8, columns // 2)).astype(np.float32) for _ in range(2)]
        products = [graph.emit("matmul", y, graph.constant(w)) for w in halves]
    graph.outputs = [*products, graph.emit("mul", y, y)]
    result = lowered(graph, "bf16")
    (square,) = (node for node in result.nodes if node.op == "mul")
    assert (square.inputs[0].producer.op == "cast") == rounded  # type: ignore[union-attr]
    assert all(node.inputs[0].dtype == "bfloat16" for node in contractions(result))


def test_outputs_and_host_steps_get_the_unrounded_value() -> None:
    graph = mlp()
    hidden = next(n for n in graph.nodes if n.op == "tanh").output
    graph.outputs = [*graph.outputs, hidden]
    result = lowered(graph, "bf16")
    producer = result.outputs[1].producer
    assert producer is not None and producer.op == "tanh"


def test_rounding_moves_before_what_only_moves() -> None:
    """convolution -> maximum -> pooling -> concat -> convolution: the kernel of the first one stores half floats."""
    graph = Graph()
    random = np.random.default_rng(0)
    conv = {"strides": (1, 1), "before": (1, 1), "after": (1, 1), "dilations": (1, 1), "groups": 1, "layout": "NCX"}
    window = {**{k: conv[k] for k in ("before", "after", "dilations", "layout")}, "strides": (2, 2), "kernel": (3, 3)}
    x = graph.add_input("x", TensorType("float32", (1, 3, 8, 8)))
    y = graph.emit("conv", x, graph.constant(random.uniform(-1, 1, (4, 3, 3, 3)).astype(np.float32)), **conv)
    y = graph.emit("maximum", y, graph.constant(np.float32(0)))
    y = graph.emit("window_reduce", y, reducer="max", **window)
    y = graph.emit("concat", y, y, axis=1)
    weight = graph.constant(random.uniform(-1, 1, (2, 8, 3, 3)).astype(np.float32))
    graph.outputs = [graph.emit("conv", y, weight, **conv)]
    result = lowered(graph, "fp16")
    dtypes = {n.op: n.output.dtype for n in result.nodes}
    assert (dtypes["maximum"], dtypes["window_reduce"], dtypes["concat"]) == ("float32", "float16", "float16")
    assert_same_values(graph, result, tolerance=5e-3)


def test_a_gather_from_an_input_is_rounded_after_it() -> None:
    """Rounding the table would touch rows that were not asked for; of a constant table it is done once, here."""
    for constant in (False, True):
        graph = Graph()
        table = (
            graph.constant(np.ones((50, 8), np.float32))
            if constant
            else graph.add_input("t", TensorType("float32", (50, 8)))
        )
        rows = graph.emit("gather", table, graph.add_input("i", TensorType("int64", (3,))), axis=0)
        graph.outputs = [graph.emit("matmul", rows, graph.constant(np.ones((8, 4), np.float32)))]
        (gather,) = (n for n in lowered(graph, "bf16").nodes if n.op == "gather")
        assert gather.output.dtype == ("bfloat16" if constant else "float32")


def test_weights_that_a_half_float_cannot_hold_keep_their_contraction_in_float32() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType("float32", (4, 2)))
    graph.outputs = [graph.emit("matmul", x, graph.constant(np.array([[1e6, 1], [1, 1]], np.float32)))]
    result = Precision("fp16").run(graph.clone(), PassContext(CUDA))
    assert not result.modified
    assert "cannot hold its weights" in result.notes[0]
    assert contractions(lowered(graph, "bf16"))[0].inputs[1].dtype == "bfloat16"


@given(graph=graphs(max_nodes=12), to=st.sampled_from(["tf32", "fp16", "bf16"]))
@settings(max_examples=30, deadline=None)
def test_any_graph_keeps_its_interface_and_has_a_plan(graph: Graph, to: str) -> None:
    """The pipeline verifies the graph after every pass; what crosses kernels is checked with the plan."""
    context = PassContext(CUDA, {"precision": to}, listeners=[VerifyListener()])
    result = run_pipeline(graph, context)
    assert [v.type for v in result.inputs] == [v.type for v in graph.inputs]
    assert [v.type for v in result.outputs] == [v.type for v in graph.outputs]
    for node in contractions(result):
        wide = {v.dtype for v in node.inputs} == {"float32"}
        assert node.output.dtype == "float32" and wide == (to == "tf32" == node.attrs.get("precision"))
    check_plan(make_plan(result, context), result)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="one of fp32, tf32, fp16, bf16"):
        Precision("int4")


@pytest.mark.parametrize("model", ["cnn", "transformer"])
@pytest.mark.parametrize(
    ("target", "precision"),
    [("cpu", "fp16"), ("cpu", "bf16"), ("emulator", "tf32"), ("emulator", "fp16"), ("emulator", "bf16")],
)
def test_whole_models(model: str, target: str, precision: str) -> None:
    onnx_model = cnn(batch=2) if model == "cnn" else transformer(layers=1)
    inputs = random_inputs(onnx_model)
    with load(compile_model(onnx_model, "cpu").to_bytes()) as exact:
        expected = exact.run(inputs)
    compiled = compile_model(onnx_model, target, precision=precision)
    assert compiled.explain()["precision"] == precision
    artifact = compiled.to_bytes()
    assert read_artifact(artifact).manifest.precision == precision
    with load(artifact, device=target) as lower:
        actual = lower.run(inputs)
    assert any(not np.array_equal(actual[name], want) for name, want in expected.items())
    for name, want in expected.items():
        assert_close(actual[name], want, 2e-2 if precision == "bf16" else 3e-3)


def half_kept(to: str) -> Graph:
    """A multilayer perceptron of which the second matmul stays float32."""
    graph = mlp()
    for number, node in enumerate(contractions(graph)):
        node.origins = (f"/layer.{number}/MatMul",)
    context = PassContext(CUDA, {"keep_fp32": ("/layer.1/*",)}, listeners=[VerifyListener()])
    return run_pipeline(graph, context, f"precision{{to={to}}},dce")


@pytest.mark.parametrize("to", ["tf32", "fp16", "bf16"])
def test_contractions_of_nodes_that_are_kept_read_float32(to: str) -> None:
    first, second = contractions(half_kept(to))
    assert [value.dtype for value in second.inputs] == ["float32"] * 2 and "precision" not in second.attrs
    assert first.attrs.get("precision") == "tf32" or first.inputs[0].dtype in ("float16", "bfloat16")
    assert all(node.op != "cast" for node in (second.inputs[0].producer,) if node is not None)


def test_what_is_kept_is_said_per_node_and_recorded() -> None:
    model = transformer(layers=1)
    names = [node.name for node in model.graph.node if node.op_type == "MatMul"]
    explained = compile_model(model, "cpu", precision="bf16", keep_fp32=[names[-1]]).explain()
    operands = {name: one["operands"] for kernel in explained["kernels"] for one in kernel["multiplies"]
                for name in one["onnx_nodes"] if name in names}  # fmt: skip
    assert operands[names[-1]] == ["float32", "float32"]
    assert operands[names[0]] == ["bfloat16", "bfloat16"]
    assert explained["options"]["keep_fp32"] == [names[-1]]
    assert any(f"{names[-1]} stays float32" in note["note"] for note in explained["notes"])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"precision": "bf16", "keep_fp32": ["nothing"]}, "no matmul or convolution is named 'nothing'; there is"),
        ({"keep_fp32": ["conv"]}, "for a lower precision"),
        ({"precision": "fp16", "keep_fp32": "conv"}, "give a list"),
    ],
)
def test_what_cannot_be_kept_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        compile_model(cnn(), "cpu", **options)


def read_by(shapes: list[list[int]], through: bool = False, columns: int = 8) -> Graph:
    """tanh of x, which matmuls with weights of some shapes read, perhaps by way of a view; and what else reads it."""
    graph = Graph("g")
    y = graph.emit("tanh", graph.add_input("x", TensorType("float32", (4, columns))))
    view = graph.emit("reshape", y, shape=(2, 2, columns)) if through else y
    for shape in shapes:
        weights = graph.constant(np.ones(shape, np.float32))
        graph.outputs = [*graph.outputs, graph.emit("matmul", view, weights)]
    graph.outputs = [*graph.outputs, graph.emit("exp", y)]
    return graph


@pytest.mark.parametrize("through", [False, True])
@pytest.mark.parametrize(
    ("widths", "kept"), [((384, 384), True), ((1024, 64), True), ((64, 1024), True), ((384,), False)]
)
def test_what_is_multiplied_often_is_float32_for_its_other_readers(
    widths: tuple[int, ...], kept: bool, through: bool
) -> None:
    """However the contractions that read it follow each other, and whatever lies between."""
    graph = lowered(read_by([[8, width] for width in widths], through), "bf16")
    (exp,) = (node for node in graph.nodes if node.op == "exp")
    assert (exp.inputs[0].producer.op == "tanh") == kept
