"""Reductions and the work that depends on them get axes in which no reshape lies between them."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.passes.helpers import after, assert_same_values, ops, origins
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.passes import PassContext, run_pipeline

GROUP_NORM = """graph @g(%x: float32[2,8,3,5], %s: float32[8,1,1], %r: float32[2,8,3,5]) -> (%y) {
  %rows = reshape(%x) {shape=[2,4,30]} : float32[2,4,30]  from "to_rows"
  %sum = reduce_sum(%rows) {axes=[2], keepdims=true} : float32[2,4,1]  from "norm"
  %centred = sub(%rows, %sum) : float32[2,4,30]  from "norm"
  %image = reshape(%centred) {shape=[2,8,3,5]} : float32[2,8,3,5]  from "to_image"
  %scaled = mul(%image, %s) : float32[2,8,3,5]  from "scale"
  %y = add(%scaled, %r) : float32[2,8,3,5]  from "residual"
}"""


def test_statistics_of_groups_and_work_on_channels_share_the_axes_of_both() -> None:
    graph = after(GROUP_NORM, "fixpoint(refine_axes,canonicalise,dce)")
    work = [n for n in graph.nodes if n.op != "reshape"]
    assert [n.op for n in work] == ["reduce_sum", "sub", "mul", "add"]
    assert work[0].attrs["axes"] == (2, 3, 4)
    assert {n.output.shape for n in work[1:]} == {(2, 4, 2, 3, 5)}


def test_reshapes_are_left_at_the_edges_only_and_none_loses_its_onnx_node() -> None:
    graph = after(GROUP_NORM, "fixpoint(refine_axes,canonicalise,dce)")
    for node in graph.nodes:
        if node.op == "reshape":
            assert node.inputs[0].producer is None or graph.is_output(node.output)
    assert origins(graph) == {"to_rows", "norm", "to_image", "scale", "residual"}


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("no reshape", "%image = tanh(%centred) : float32[2,4,30]"),
        (
            "a reshape without common axes",
            "%image = reshape(%centred) {shape=[3,80]} : float32[3,80]",
        ),
    ],
)
def test_a_graph_stays_as_it_is_with(what: str, line: str) -> None:
    shape = line.rpartition(" : ")[2]
    text = f"""graph @g(%rows: float32[2,4,30]) -> (%y) {{
      %sum = reduce_sum(%rows) {{axes=[2], keepdims=true}} : float32[2,4,1]
      %centred = sub(%rows, %sum) : float32[2,4,30]
      {line}
      %y = exp(%image) : {shape}
    }}"""
    assert ops(after(text, "refine_axes"))[1] == "sub"
    assert str(after(text, "refine_axes")) == str(after(text, "dce"))


def test_what_a_later_convolution_can_compute_as_it_stores_is_left_to_it() -> None:
    text = """graph @g(%x: float32[1,8,3,5]) -> (%y) {
      %rows = reshape(%x) {shape=[1,4,30]} : float32[1,4,30]
      %sum = reduce_sum(%rows) {axes=[2], keepdims=true} : float32[1,4,1]
      %centred = sub(%rows, %sum) : float32[1,4,30]
      %image = reshape(%centred) {shape=[1,8,3,5]} : float32[1,8,3,5]
      %positive = tanh(%image) : float32[1,8,3,5]
      %w = constant [1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0,
        0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2]
        : float32[8,8,1,1]
      %conv = conv(%positive, %w) {strides=[1,1], before=[0,0], after=[0,0], dilations=[1,1], groups=1, layout="NCX"}
        : float32[1,8,3,5]
      %y = add(%conv, %positive) : float32[1,8,3,5]
    }"""
    graph = after(text, "fixpoint(refine_axes,canonicalise,dce)")
    (conv,) = [n for n in graph.nodes if n.op == "conv"]
    assert [n.op for n in conv.output.users] == ["add"]


def test_channels_last_groups_are_normalised_where_they_lie() -> None:
    """A batch of one does not keep the transposes of a convolution from going away."""
    text = """graph @g(%nhwc: float32[1,3,5,8], %s: float32[8,1,1]) -> (%y) {
      %x = transpose(%nhwc) {perm=[0,3,1,2]} : float32[1,8,3,5]
      %rows = reshape(%x) {shape=[1,4,30]} : float32[1,4,30]
      %max = reduce_max(%rows) {axes=[2], keepdims=true} : float32[1,4,1]
      %centred = sub(%rows, %max) : float32[1,4,30]
      %image = reshape(%centred) {shape=[1,8,3,5]} : float32[1,8,3,5]
      %scaled = mul(%image, %image) : float32[1,8,3,5]
      %y = transpose(%scaled) {perm=[0,2,3,1]} : float32[1,3,5,8]
    }"""
    graph = after(text, "fixpoint{limit=16}(refine_axes,transpose_motion,reshape_motion,canonicalise,dce)")
    assert ops(graph) == ["reshape", "reduce_max", "sub", "mul", "reshape"]


# -- any graph of reductions, element-wise work and reshapes ---------------------------------------------------------

SIZES = st.sampled_from(
    [(2, 6, 4), (12, 4), (2, 3, 2, 4), (1, 12, 2, 2), (48,), (4, 12), (2, 24), (6, 1, 8), (4, 4, 3)]
)
"""Shapes of 48 elements; some have common axes, some have none."""


@st.composite
def row_graphs(draw: st.DrawFn) -> Graph:
    """Statistics of rows, work on them in the same shape, then more of everything in any shape."""
    graph = Graph("rows")
    x = graph.add_input("x", TensorType("float32", draw(SIZES.filter(lambda shape: len(shape) > 1))))
    values = [x, _reduced(draw, graph, x, keepdims=True)]
    values.append(graph.emit("sub", x, values[-1]))
    for _ in range(draw(st.integers(2, 10))):
        values.append(_step(draw, graph, values))
    unread = [v for v in values if not v.uses]
    graph.outputs = [*unread, draw(st.sampled_from(values[1:]))]
    return graph


def _reduced(draw: st.DrawFn, graph: Graph, value: Value, keepdims: bool) -> Value:
    rank = len(value.shape)
    axes = draw(st.lists(st.integers(0, rank - 1), min_size=1, max_size=rank - 1, unique=True))
    return graph.emit("reduce_max", value, axes=tuple(sorted(axes)), keepdims=keepdims)


def _step(draw: st.DrawFn, graph: Graph, values: list[Value]) -> Value:
    value = draw(st.sampled_from(values[-2:]))
    kind = draw(st.sampled_from(["reduce", "reshape", "reshape", "unary", "combine", "combine"]))
    if kind == "reduce" and len(value.shape) > 1:
        return _reduced(draw, graph, value, draw(st.booleans()))
    if kind == "reshape":
        count = prod(value.shape)
        shapes = SIZES if count == 48 else st.sampled_from([(count,), (1, count), (count, 1), (count, 1, 1)])
        return graph.emit("reshape", value, shape=draw(shapes))
    if kind == "unary":
        return graph.emit(draw(st.sampled_from(["neg", "tanh"])), value)
    fitting = [v for v in values if _broadcasts(v, value)]
    return graph.emit(draw(st.sampled_from(["sub", "maximum"])), value, draw(st.sampled_from(fitting)))


def _broadcasts(value: Value, to: Value) -> bool:
    tail = to.shape[len(to.shape) - len(value.shape) :] if len(value.shape) <= len(to.shape) else ()
    return len(tail) == len(value.shape) and all(a in (1, b) for a, b in zip(value.shape, tail, strict=True))


@given(row_graphs())
def test_results_stay_the_same(graph: Graph) -> None:
    result = run_pipeline(graph, PassContext(), "refine_axes")
    assert_same_values(graph, result)


@given(row_graphs())
def test_it_comes_to_rest(graph: Graph) -> None:
    """As the pipeline needs, which repeats it. A second look may find more: axes that the first made finer join rows
    that were apart, in one of fifty of these graphs.
    """
    for _ in range(2):
        graph = run_pipeline(graph, PassContext(), "refine_axes,canonicalise,dce")
    assert str(run_pipeline(graph, PassContext(), "refine_axes,canonicalise,dce")) == str(graph)
