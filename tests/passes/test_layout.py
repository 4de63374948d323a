"""Channels-last layout: a convolutional network ends with one transpose at its input."""

import numpy as np
import pytest

from tests.models import cnn, transformer
from tests.passes.helpers import assert_same_values, ops, origins
from tilestitch.compiler.frontend.importer import import_model
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.passes import PassContext, VerifyListener, make_plan, run_pipeline


def rewritten(graph: Graph) -> Graph:
    result = run_pipeline(graph, PassContext(listeners=[VerifyListener()]))
    assert_same_values(graph, result, tolerance=1e-4)
    return result


def test_a_cnn_has_one_transpose_at_its_input_and_its_batch_normalisation_in_its_weights() -> None:
    graph = import_model(cnn()).graph
    result = rewritten(graph)
    moved = [n for n in result.nodes if n.op == "transpose"]
    assert [n.inputs[0] for n in moved if n.inputs[0].producer is None] == [result.inputs[0]]
    assert all(n.attrs["layout"] == "NXC" for n in result.nodes if "layout" in n.attrs)
    # another transpose is there only where channels are shuffled
    assert all(n.inputs[0].producer and n.inputs[0].producer.op == "reshape" for n in moved[1:])
    assert {r.op for n in result.nodes if n.op == "conv" for r in n.output.users} == {"add"}


def test_every_onnx_node_of_a_cnn_is_still_named_by_a_kernel() -> None:
    graph = import_model(cnn()).graph
    result = rewritten(graph)
    plan = make_plan(result, PassContext())
    named = {o for g in plan.groups for o in g.origins}
    heavy = {o for n in graph.nodes if n.op in ("conv", "matmul", "window_reduce") for o in n.origins}
    assert heavy <= named <= origins(graph)


def test_layers_of_a_transformer_are_few_kernels() -> None:
    graph = import_model(transformer(layers=2)).graph
    result = rewritten(graph)
    plan = make_plan(result, PassContext())
    kinds = [part.kind.value for g in plan.groups for part in g.parts or (g,)]
    assert kinds.count("attention") == 2
    assert kinds.count("contraction") == sum(n.op == "matmul" for n in result.nodes) - 4
    reductions = sum(n.op.startswith("reduce") for n in result.nodes)
    assert kinds.count("rowwise") <= reductions // 2
    assert len(plan.segments) == 1


def test_a_graph_without_convolutions_keeps_its_layout() -> None:
    text = """graph @g(%x: float32[1,2,4,4]) -> (%y) {
      %y = window_reduce(%x) {reducer="max", kernel=[2,2], strides=[2,2], before=[0,0], after=[0,0], dilations=[1,1],
        layout="NCX"} : float32[1,2,2,2]
    }"""
    assert rewritten(parse_graph(text)).nodes[0].attrs["layout"] == "NCX"


def test_regions_are_read_from_what_convolutions_store() -> None:
    text = """graph @g(%x: float32[1,3,8,8], %r: float32[5,4], %i: int64[5], %w: float32[4,3,1,1]) -> (%y) {
      %c = conv(%x, %w) {strides=[1,1], before=[0,0], after=[0,0], dilations=[1,1], groups=1, layout="NCX"}
        : float32[1,4,8,8]
      %y = roi_align(%c, %r, %i) {mode="avg", size=[2,2], ratio=2, scale=1.0, offset=0.0, layout="NCX"}
        : float32[5,4,2,2]
    }"""
    graph = run_pipeline(parse_graph(text), PassContext(listeners=[VerifyListener()]))
    (regions,) = [node for node in graph.nodes if node.op == "roi_align"]
    assert regions.attrs["layout"] == "NXC" and regions.inputs[0].shape == (1, 8, 8, 4)
    assert regions.outputs == graph.outputs


@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("op", ["conv", "conv_transpose"])
@pytest.mark.parametrize("groups", [1, 2])
def test_weights_follow_the_layout(op: str, spatial: int, groups: int) -> None:
    rng = np.random.default_rng(0)
    graph = Graph("conv")
    x = graph.add_input("x", TensorType("float32", (2, 4, *(5,) * spatial)))
    shape = (6, 4 // groups) if op == "conv" else (4, 6 // groups)
    weight = graph.constant(rng.standard_normal((*shape, *(3,) * spatial)).astype(np.float32))
    attrs = {"strides": (2,) * spatial, "before": (1,) * spatial, "after": (0,) * spatial, "dilations": (1,) * spatial}
    attrs = {**attrs, "groups": groups, "layout": "NCX"}
    if op == "conv_transpose":
        attrs["output_padding"] = (1,) * spatial
    graph.outputs = [graph.emit(op, x, weight, **attrs)]
    result = rewritten(graph)
    assert ops(result) == ["transpose", op, "transpose"]


def test_squeeze_and_excitation_needs_no_transposes_of_its_own() -> None:
    rng = np.random.default_rng(0)
    graph = Graph("se")
    x = graph.add_input("x", TensorType("float32", (1, 8, 6, 6)))
    attrs = {"strides": (1, 1), "before": (0, 0), "after": (0, 0), "dilations": (1, 1), "groups": 1, "layout": "NCX"}

    def conv(value: object) -> object:
        weight = graph.constant(rng.standard_normal((8, 8, 1, 1)).astype(np.float32))
        return graph.emit("conv", value, weight, **attrs)  # type: ignore[arg-type]

    y = conv(x)
    gate = graph.emit("tanh", conv(graph.emit("reduce_sum", y, axes=(2, 3), keepdims=True)))  # type: ignore[arg-type]
    graph.outputs = [graph.emit("reduce_max", graph.emit("mul", y, gate), axes=(2, 3), keepdims=False)]  # type: ignore[arg-type]
    assert ops(rewritten(graph)).count("transpose") == 1
