"""GEMMs that share their left operand become one where nothing has to be copied of what was a GEMM of its own."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.helpers import assert_same_values, body, ops, origins
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.passes import PassContext, VerifyListener, make_plan, run_pipeline
from tilestitch.passes.plan.target import TargetInfo

GPU, CPU = TargetInfo("cuda:sm_90a"), TargetInfo("cpu", 2)


def merged(graph: Graph | str, target: TargetInfo = GPU, passes: str = "merge_gemms") -> Graph:
    """The graph after the pass, verified and shown to compute the same."""
    graph = parse_graph(graph) if isinstance(graph, str) else graph
    result = run_pipeline(graph, PassContext(target, listeners=[VerifyListener()]), passes)
    assert_same_values(graph, result)
    return result


class Projections:
    """GEMMs of one input, and what is put after each."""

    def __init__(self, rows: int = 6, depth: int = 8, dtype: str = "float32") -> None:
        self.graph, self.random, self.dtype = Graph("g"), np.random.default_rng(0), dtype
        self.x = self.graph.add_input("x", TensorType(dtype, (2, rows, depth)))

    def numbers(self, *shape: int) -> Value:
        return self.graph.constant(self.random.uniform(-1, 1, shape).astype(self.dtype))

    def gemm(self, width: int, trans_b: bool = False, weight: Value | None = None, origin: str = "") -> Value:
        depth = self.x.shape[-1]
        weight = weight or self.numbers(*((width, depth) if trans_b else (depth, width)))
        attrs = {"trans_b": True} if trans_b else {}
        return self.graph.emit("matmul", self.x, weight, origins=[origin] if origin else (), **attrs)

    def linear(self, width: int, **gemm: bool) -> Value:
        return self.graph.emit("add", self.gemm(width, **gemm), self.numbers(width))

    def heads(self, value: Value, heads: int = 2) -> Value:
        batch, rows, width = value.shape
        split = self.graph.emit("reshape", value, shape=(batch, rows, heads, width // heads))
        return self.graph.emit("transpose", split, perm=(0, 2, 1, 3))

    def attention(self, query: Value, key: Value, value: Value) -> None:
        g = self.graph
        scores = g.emit("matmul", self.heads(query), self.heads(key), trans_b=True)
        g.outputs = [g.emit("matmul", g.emit("tanh", scores), self.heads(value))]


def weights(graph: Graph) -> list[tuple[int, ...]]:
    return [n.inputs[1].shape for n in graph.nodes if n.op == "matmul" and n.inputs[1].is_constant]


def test_queries_keys_and_values_are_ranges_of_one_gemm_on_gpus() -> None:
    p = Projections()
    p.attention(*(p.linear(8) for _ in range(3)))
    graph = merged(p.graph)
    heads = ["reshape", "transpose"]
    assert ops(graph) == ["matmul", "add", *["slice"] * 3, *heads, *heads, "matmul", "tanh", *heads, "matmul"]
    assert weights(graph) == [(8, 24)]
    assert [n.attrs["starts"] for n in graph.nodes if n.op == "slice"] == [(0, 0, 0), (0, 0, 8), (0, 0, 16)]
    assert sum(v.tensor_type.nbytes for v in graph.constants) == sum(v.tensor_type.nbytes for v in p.graph.constants)


def test_on_cpus_where_packed_gemms_are_one_launch_they_stay() -> None:
    p = Projections()
    p.attention(*(p.linear(8) for _ in range(3)))
    assert ops(merged(p.graph, CPU)) == ops(p.graph)


def test_matrices_that_lie_transposed_and_of_several_widths_lie_side_by_side() -> None:
    p = Projections()
    p.attention(p.linear(8, trans_b=True), p.linear(8), p.linear(16, trans_b=True))
    graph = merged(p.graph)
    assert weights(graph) == [(32, 8)]
    assert graph.nodes[0].attrs == {"trans_b": True}


def test_a_lane_without_a_bias_gets_one_that_changes_nothing_not_even_the_sign_of_zero() -> None:
    p = Projections()
    p.attention(p.linear(8), p.gemm(8), p.linear(8))
    graph = merged(p.graph)
    assert ops(graph)[:2] == ["matmul", "add"]
    bias = graph.nodes[1].inputs[1].data
    assert bias is not None and (bias[8:16] == 0).all() and np.signbit(bias[8:16]).all()


def test_what_all_lanes_have_after_them_is_done_once() -> None:
    """GELU by erf: a diamond of element-wise operators with numbers, biases of one number and of one a column."""
    p = Projections()
    lanes = []
    for shape in ((8,), (1,), (1, 1, 8)):
        g, y = p.graph, p.graph.emit("add", p.gemm(8), p.numbers(*shape))
        erf = g.emit("add", g.emit("erf", g.emit("mul", y, g.constant(np.float32(0.5)))), g.constant(np.float32(1)))
        lanes.append(g.emit("mul", y, erf))
    p.attention(*lanes)
    graph = merged(p.graph)
    assert ops(graph)[:10] == ["matmul", "add", "mul", "erf", "add", "mul", "slice", "slice", "slice", "reshape"]
    numbers = [v.shape for n in graph.nodes[1:5] for v in n.inputs if v.is_constant]
    assert numbers == [(1, 1, 24), (), ()]


def test_casts_and_scales_of_quantised_gemms_move_as_well() -> None:
    p = Projections(dtype="int8")
    lanes = []
    for _ in range(3):
        gemm = p.graph.emit("matmul", p.x, p.numbers(8, 8), out_dtype="int32")
        scale = p.graph.constant(p.random.uniform(0.1, 1, 8).astype(np.float32))
        lanes.append(p.graph.emit("mul", p.graph.emit("cast", gemm, to="float32"), scale))
    p.attention(*lanes)
    assert ops(merged(p.graph))[:4] == ["matmul", "cast", "mul", "slice"]


def test_a_lane_that_needs_a_kernel_of_its_own_stays_a_gemm() -> None:
    """The gate's sigmoid is its GEMM's epilogue; after a range it would be one more kernel."""
    p = Projections()
    query, key, value, gate = (p.linear(8) for _ in range(4))
    p.attention(query, key, value)
    p.graph.outputs = [*p.graph.outputs, p.graph.emit("tanh", gate)]
    assert sorted(weights(merged(p.graph))) == [(8, 8), (8, 24)]


def test_outputs_of_the_graph_are_not_cut_out_of_a_larger_gemm() -> None:
    p = Projections()
    query, key, value = (p.linear(8) for _ in range(3))
    p.attention(query, key, value)
    p.graph.outputs = [*p.graph.outputs, p.heads(key)]
    assert sorted(weights(merged(p.graph))) == [(8, 8), (8, 16)]


def test_ranges_that_begin_at_odd_places_are_not_made() -> None:
    p = Projections()
    p.attention(p.linear(6), p.linear(6), p.linear(6))
    assert ops(merged(p.graph)) == ops(p.graph)


def test_a_matrix_that_somebody_else_reads_is_not_put_into_memory_twice() -> None:
    p = Projections()
    shared = p.numbers(8, 8)
    p.attention(p.gemm(8, weight=shared), p.gemm(8), p.gemm(8))
    other = p.graph.add_input("z", TensorType("float32", (3, 8)))
    p.graph.outputs = [*p.graph.outputs, p.graph.emit("matmul", other, shared)]
    assert ops(merged(p.graph)) == ops(p.graph)


def test_layers_that_share_their_matrices_share_the_joined_one() -> None:
    p = Projections()
    kept = [p.numbers(8, 8) for _ in range(3)]
    outputs = []
    for layer in range(2):
        if layer:
            p.x = p.graph.add_input("z", TensorType("float32", (2, 4, 8)))
        p.attention(*(p.gemm(8, weight=w) for w in kept))
        outputs += p.graph.outputs
    p.graph.outputs = outputs
    graph = merged(p.graph, passes="merge_gemms,cse")
    assert weights(graph) == [(8, 24)] * 2
    assert len(graph.constants) == 1


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
def test_gate_and_projection_of_a_gated_unit_become_one_kernel(target: TargetInfo) -> None:
    p = Projections()
    g, gate, up = p.graph, p.linear(16), p.linear(16)
    sigmoid = g.emit("div", g.constant(np.float32(1)), g.emit("add", g.emit("exp", g.emit("neg", gate)), p.numbers(1)))
    g.outputs = [g.emit("matmul", g.emit("mul", g.emit("mul", gate, sigmoid), up), p.numbers(16, 8))]
    graph = merged(g, target)
    assert weights(graph) == [(8, 32), (16, 8)]
    plan = make_plan(graph, PassContext(target))
    assert [len(group.nodes) for group in plan.groups] == [len(graph) - 1, 1]


def test_more_lanes_than_gpus_have_gates_stay_gemms() -> None:
    p = Projections()
    lanes = [p.linear(4) for _ in range(9)]
    p.graph.outputs = [reduce(lambda a, b: p.graph.emit("mul", a, b), lanes)]
    assert weights(merged(p.graph, CPU)) == [(8, 36)]
    assert weights(merged(p.graph, GPU)) == [(8, 4)] * 9


def test_gemms_whose_columns_were_one_matrix_stay_one_where_they_are_read_in_place() -> None:
    p = Projections(rows=64, depth=64)
    whole = p.linear(192)
    cuts = [{"starts": (0, 0, i), "steps": (1, 1, 1), "sizes": (2, 64, 64)} for i in (0, 64, 128)]
    p.attention(*(p.graph.emit("slice", whole, **cut) for cut in cuts))
    split = "split_columns{least_multiplications=1}"
    assert ops(merged(p.graph, GPU, split)) == ops(p.graph)
    assert weights(merged(p.graph, CPU, split)) == [(64, 64)] * 3


def test_what_takes_the_place_of_several_nodes_stems_from_all() -> None:
    p = Projections()
    p.attention(*(p.gemm(8, origin=name) for name in ("Q", "K", "V")))
    graph = merged(p.graph)
    assert graph.nodes[0].origins == ("Q", "K", "V")
    assert origins(graph) == {"Q", "K", "V"}


def test_steps_of_a_sequence_are_cut_out_of_the_gemm_for_both_directions() -> None:
    graph = merged(
        f"""graph @g(%x: float32[3,1,4], %h: float32[1,8]) -> (%y, %z) {{
          %v = constant [{", ".join(str(i / 32) for i in range(32))}] : float32[4,8]
          %w = constant [{", ".join(str(i / -32) for i in range(32))}] : float32[4,8]
          %a = matmul(%x, %v) : float32[3,1,8]
          %b = matmul(%x, %w) : float32[3,1,8]
          %c = slice(%a) {{starts=[1,0,0], steps=[1,1,1], sizes=[1,1,8]}} : float32[1,1,8]
          %d = slice(%b) {{starts=[2,0,0], steps=[1,1,1], sizes=[1,1,8]}} : float32[1,1,8]
          %y = add(%c, %h) : float32[1,1,8]
          %z = add(%d, %h) : float32[1,1,8]
        }}""",
        passes="merge_gemms,canonicalise,dce",
    )
    assert body(graph)[0] == "matmul(x, [4, 16])"
    assert ops(graph) == ["matmul", "slice", "slice", "add", "add"]


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
@given(
    widths=st.lists(st.sampled_from([4, 8, 12]), min_size=2, max_size=4),
    chains=st.lists(st.lists(st.sampled_from(["bias", "scale", "tanh", "neg", "square"]), max_size=3), min_size=4,
                    max_size=4),
    ends=st.lists(st.sampled_from(["heads", "gemm", "output", "next", "nothing"]), min_size=4, max_size=4),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_whatever_follows_the_gemms_is_computed_as_before(
    target: TargetInfo, widths: list[int], chains: list[list[str]], ends: list[str]
) -> None:
    p = Projections(rows=3, depth=5)
    g, results, previous = p.graph, list[Value](), None
    for width, chain, end in zip(widths, chains, ends, strict=False):
        value = p.gemm(width)
        for step in chain:
            if step in ("bias", "scale"):
                value = g.emit("add" if step == "bias" else "mul", value, p.numbers(width))
            else:
                value = g.emit("mul", value, value) if step == "square" else g.emit(step, value)
        if end == "next" and previous is not None and previous.shape == value.shape:
            results.append(g.emit("mul", value, previous))
        elif end == "gemm":
            results.append(g.emit("matmul", value, p.numbers(width, 2)))
        elif end == "heads":
            results.append(g.emit("neg", p.heads(value)))
        elif end == "output":
            results += [value, g.emit("neg", value)]
        previous = value
    g.outputs = list(dict.fromkeys(results)) or [previous]
    merged(g, target, "merge_gemms,dce")
