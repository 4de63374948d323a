"""Each rewrite does what its name says, and computes the same afterwards (`after` compares values)."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.passes.helpers import after, assert_same_values, body, ops, origins
from tests.strategies import graphs
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.sizes import Symbol, size_of
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.passes import PassContext, VerifyListener, run_pipeline
from tilestitch.passes.rewrite import REWRITES
from tilestitch.passes.rewrite.reshape_motion import axis_groups, permuted_reshape


def chain(*statements: str, x: str = "float32[2,3]", result: str = "y") -> str:
    return f"graph @g(%x: {x}) -> (%{result}) {{\n" + "\n".join(statements) + "\n}"


ALGEBRA = {
    "x * 1": (["%c = constant [1.0] : float32[]", "%a = mul(%x, %c) : float32[2,3]"], []),
    "x + 0": (["%c = constant [0.0] : float32[1]", "%a = add(%x, %c) : float32[2,3]"], []),
    "x ** 2": (["%c = constant [2.0] : float32[]", "%a = pow(%x, %c) : float32[2,3]"], ["mul(x, x)"]),
    "x ** 0.5": (["%c = constant [0.5] : float32[]", "%a = pow(%x, %c) : float32[2,3]"], ["pow(x, 0.5)"]),
    "|x| ** 0.5": (
        ["%c = constant [0.5] : float32[]", "%b = abs(%x) : float32[2,3]", "%a = pow(%b, %c) : float32[2,3]"],
        ["abs(x)", "sqrt(b)"],
    ),
    "x ** -1": (["%c = constant [-1.0] : float32[]", "%a = pow(%x, %c) : float32[2,3]"], ["div(1, x)"]),
    "x * -1": (["%c = constant [-1.0] : float32[]", "%a = mul(%x, %c) : float32[2,3]"], ["neg(x)"]),
    "x / 8": (["%c = constant [8.0] : float32[]", "%a = div(%x, %c) : float32[2,3]"], ["mul(x, 0.125)"]),
    "- - x": (["%b = neg(%x) : float32[2,3]", "%a = neg(%b) : float32[2,3]"], []),
    "|-x|": (["%b = neg(%x) : float32[2,3]", "%a = abs(%b) : float32[2,3]"], ["abs(x)"]),
    "x + -x": (["%b = neg(%x) : float32[2,3]", "%a = add(%x, %b) : float32[2,3]"], ["sub(x, x)"]),
    "max(max(x, 0), 0)": (
        [
            "%c = constant [0.0] : float32[]",
            "%b = maximum(%x, %c) : float32[2,3]",
            "%a = maximum(%b, %c) : float32[2,3]",
        ],
        ["maximum(x, 0)"],
    ),
    "(x * 2) * 3": (
        [
            "%c = constant [2.0] : float32[]",
            "%d = constant [3.0] : float32[]",
            "%b = mul(%x, %c) : float32[2,3]",
            "%a = mul(%b, %d) : float32[2,3]",
        ],
        ["mul(x, 6)"],
    ),
}


OUTER = [
    "%a = matmul(%x, %z) : float32[2,5,3,4]",
    "%a = matmul(%t, %z) {trans_a = true} : float32[2,5,3,4]",
    "%a = matmul(%x, %u) {trans_b = true} : float32[2,5,3,4]",
]


@pytest.mark.parametrize("product", OUTER)
def test_a_column_times_a_row_is_no_gemm(product: str) -> None:
    inputs = {"x": "5,3,1", "z": "2,1,1,4", "t": "5,1,3", "u": "2,5,4,1"}
    operands = ", ".join(f"%{name}: float32[{shape}]" for name, shape in inputs.items())
    text = f"graph @g({operands}) -> (%a) {{\n{product}\n}}"
    graph = after(text, "algebra,canonicalise,dce")
    assert ops(graph)[-1] == "mul" and "matmul" not in ops(graph)
    assert_same_values(parse_graph(text), graph)


@pytest.mark.parametrize("name", ALGEBRA)
def test_algebra(name: str) -> None:
    statements, expected = ALGEBRA[name]
    graph = after(chain(*statements, result="a"), "algebra,dce")
    assert [line.rsplit(" ", 0)[0] for line in body(graph)] == expected


def test_a_mask_that_hides_nothing_is_gone_though_it_broadcasts() -> None:
    statements = (
        "%true = constant [true, true, true] : bool[3,1]",
        "%y = logical_and(%x, %true) : bool[3,4]",
    )
    graph = after(chain(*statements, x="bool[1,4]"), "algebra,dce")
    assert [line.rsplit(" ", 0)[0] for line in body(graph)] == ["broadcast_to(x)"]


SCALED_KEYS = """graph @g(%q: float32[2,3,ROWS,4], %k: float32[2,KEYS,4]) -> (%y) {
  %f = constant [0.5] : float32[]
  %p = mul(%q, %f) : float32[2,3,ROWS,4]
  %t = reshape(%k) {shape = [2,1,KEYS,4]} : float32[2,1,KEYS,4]
  %m = mul(%t, %f) : float32[2,1,KEYS,4]
  %a = matmul(%p, %m) {trans_b = true} : float32[2,3,ROWS,KEYS]
  %y = tanh(%a) : float32[2,3,ROWS,KEYS]
}"""


def scaled_keys(rows: int, keys: int) -> str:
    return SCALED_KEYS.replace("ROWS", str(rows)).replace("KEYS", str(keys))


def test_the_scale_of_keys_in_memory_is_that_of_queries() -> None:
    """With their own it is one factor."""
    assert body(after(scaled_keys(2, 9), "fixpoint{limit=8}(algebra,dce)")) == [
        "reshape(k)", "mul(q, 0.25)", "matmul(mul_1, reshape)", "tanh(matmul)",
    ]  # fmt: skip


@pytest.mark.parametrize("product", ["%k, %f", "%f, %k"])
def test_a_product_of_constants_is_folded_and_scales_no_queries(product: str) -> None:
    """Before it was folded, the search for what is scaled there ended in a StopIteration."""
    text = f"""graph @g(%q: float32[1,2]) -> (%y) {{
      %k = constant [1.0, 2.0, 3.0, 4.0] : float32[2,2]
      %f = constant [0.5] : float32[]
      %m = mul({product}) : float32[2,2]
      %y = matmul(%q, %m) : float32[1,2]
    }}"""
    assert ops(after(text, "fixpoint{limit=8}(algebra,fold_constants,dce)")) == ["matmul"]


def test_the_scale_of_few_keys_or_of_keys_that_are_computed_stays() -> None:
    computed = scaled_keys(2, 9).replace("reshape(%k)", "reshape(%e)")
    computed = computed.replace("  %t =", "  %e = exp(%k) : float32[2,9,4]\n  %t =")
    for text in (scaled_keys(9, 2), computed):
        assert ops(after(text, "algebra")).count("mul") == 2


def test_division_keeps_its_rounding_unless_reassociation_is_allowed() -> None:
    text = chain("%c = constant [3.0] : float32[]", "%y = div(%x, %c) : float32[2,3]")
    assert ops(after(text, "algebra")) == ["mul"]
    assert ops(after(text, "algebra{reassociate=false}")) == ["div"]


def test_division_by_a_number_whose_reciprocal_is_not_normal_stays() -> None:
    assert ops(after(chain("%c = constant [1e38] : float32[]", "%y = div(%x, %c) : float32[2,3]"), "algebra")) == [
        "div"
    ]


def test_integers_keep_integer_division() -> None:
    text = chain("%c = constant [2] : int32[]", "%y = div(%x, %c) : int32[4]", x="int32[4]")
    assert ops(after(text, "algebra")) == ["div"]


@pytest.mark.parametrize(
    ("dtype", "expected"), [("int32", ["add(x, [2, 3])"]), ("float32", ["sub(x, [2, 3])", "add(b, [2, 3])"])]
)
def test_constants_taken_and_added_are_one_for_integers(dtype: str, expected: list[str]) -> None:
    """As of the sums of a quantised convolution: what zero points add, and the bias. Their sum may wrap around."""
    ends = (
        ["2147483647, 2, 3, 4, 5, 6", "-2147483648, 5, 5, 5, 5, 5"]
        if dtype == "int32"
        else ["1.0, 2.0, 3.0, 4.0, 5.0, 6.0"] * 2
    )
    graph = after(
        chain(
            *(f"%{name} = constant [{data}] : {dtype}[2,3]" for name, data in zip("cd", ends, strict=True)),
            f"%b = sub(%x, %c) : {dtype}[2,3]",
            f"%y = add(%b, %d) : {dtype}[2,3]",
            x=f"{dtype}[2,3]",
        ),
        "algebra,dce",
    )
    assert [line.rsplit(" ", 0)[0] for line in body(graph)] == expected


def test_constants_are_folded_by_the_reference() -> None:
    graph = after(
        chain(
            "%c = constant [1.0, 2.0, 3.0] : float32[3]",
            "%e = exp(%c) : float32[3]",
            "%t = reshape(%e) {shape=[1,3]} : float32[1,3]",
            "%y = add(%x, %t) : float32[2,3]",
        ),
        "fold_constants",
    )
    assert body(graph) == ["add(x, [1, 3])"]
    np.testing.assert_allclose(graph.constants[0].data, np.exp([[1, 2, 3]]), rtol=1e-6)


def test_folding_does_not_make_large_constants_of_small_ones() -> None:
    text = chain("%c = constant [1.0] : float32[]", "%y = broadcast_to(%c) {shape=[1000,1000]} : float32[1000,1000]")
    assert ops(after(text, "fold_constants")) == ["broadcast_to"]
    assert ops(after(text, "fold_constants{max_growth_bytes=10000000}")) == []


def test_folding_makes_the_weights_of_a_contraction_whatever_their_size() -> None:
    weights = (
        "%c = constant [1.0] : float32[]",
        "%b = broadcast_to(%c) {shape=[300,300]} : float32[300,300]",
        "%w = transpose(%b) {perm=[1,0]} : float32[300,300]",
    )
    gemm = "%y = matmul(%x, %w) {trans_a=false,trans_b=false} : float32[4,300]"
    assert ops(after(chain(*weights, gemm, x="float32[4,300]"), "fold_constants")) == ["matmul"]
    square = "%y = matmul(%w, %w) {trans_a=false,trans_b=false} : float32[300,300]"
    assert "broadcast_to" in ops(after(chain(*weights, square), "fold_constants"))


def test_folding_dequantises_the_weights_of_a_contraction_whatever_their_size() -> None:
    weights = (
        "%q = constant [7] : int8[]",
        "%b = broadcast_to(%q) {shape=[300,300]} : int8[300,300]",
        '%f = cast(%b) {to="float32"} : float32[300,300]',
        "%s = constant [0.5] : float32[]",
        "%m = mul(%f, %s) : float32[300,300]",
        "%w = transpose(%m) {perm=[1,0]} : float32[300,300]",
    )
    gemm = "%y = matmul(%x, %w) {trans_a=false,trans_b=false} : float32[4,300]"
    assert ops(after(chain(*weights, gemm, x="float32[4,300]"), "fold_constants")) == ["matmul"]
    scaled = ("%v = reshape(%x) {shape=[300,4]} : float32[300,4]", "%y = matmul(%m, %v) : float32[300,4]")
    assert "broadcast_to" in ops(after(chain(*weights, *scaled, x="float32[4,300]"), "fold_constants"))
    varying = ("%v = mul(%m, %x) : float32[300,300]", "%y = matmul(%v, %v) : float32[300,300]")
    assert "broadcast_to" in ops(after(chain(*weights, *varying, x="float32[300,300]"), "fold_constants"))


def test_folding_leaves_what_fails_to_the_run() -> None:
    text = chain(
        "%c = constant [1.0, 2.0] : float32[2]",
        "%i = constant [7] : int64[1]",
        "%g = gather(%c, %i) {axis=0} : float32[1]",
        "%y = neg(%x) : float32[2,3]",
    )
    assert ops(run_pipeline(parse_graph(text), PassContext(), "fold_constants")) == ["gather", "neg"]


def test_equal_nodes_and_equal_constants_are_one() -> None:
    graph = after(
        chain(
            "%c = constant [1.5] : float32[]",
            "%d = constant [1.5] : float32[]",
            '%a = add(%x, %c) : float32[2,3] from "A"',
            '%b = add(%x, %d) : float32[2,3] from "B"',
            "%y = mul(%a, %b) : float32[2,3]",
        ),
        "cse,dce",
    )
    assert body(graph) == ["add(x, 1.5)", "mul(a, a)"]
    assert graph.nodes[0].origins == ("A", "B")


def test_attributes_keep_nodes_apart() -> None:
    text = chain(
        "%a = reduce_sum(%x) {axes=[0], keepdims=true} : float32[1,3]",
        "%b = reduce_sum(%x) {axes=[0], keepdims=false} : float32[3]",
        "%y = add(%a, %b) : float32[1,3]",
    )
    assert ops(after(text, "cse")) == ["reduce_sum", "reduce_sum", "add"]


def test_what_nothing_reads_goes_away() -> None:
    text = chain("%a = exp(%x) : float32[2,3]", "%b = exp(%a) : float32[2,3]", "%y = neg(%x) : float32[2,3]")
    assert ops(after(text, "dce")) == ["neg"]


def test_the_branch_of_a_known_condition_is_put_in_its_place() -> None:
    text = """graph @g(%x: float32[2]) -> (%y) {
      %t = constant [true] : bool[]
      %y = if(%t, %x) {else_graph=graph @e(%m: float32[2]) -> (%q) {
        %q = neg(%m) : float32[2]
      }, then_graph=graph @f(%m: float32[2]) -> (%q) {
        %q = exp(%m) : float32[2]  from "Exp"
      }} : float32[2]  from "If"
    }"""
    graph = after(text, "dead_branches,dce")
    assert body(graph) == ["exp(x)"]
    assert origins(graph) == {"Exp", "If"}


TURNS = {
    "scan": """%s, %r = scan(%x, %e, %c) {body=graph @b(%p: float32[2], %q: float32[3,2], %k: float32[2]) -> (%n, %o) {
        %t = reduce_sum(%q) {axes=[0], keepdims=false} : float32[2]
        %n = add(%p, %t) : float32[2]
        %o = mul(%n, %k) : float32[2]
      }, num_state=1, num_scanned=1, input_axes=[1], input_reverse=[true], output_axes=[1], output_reverse=[false]
      } : float32[2], float32[2,1]""",
    "loop": """%m = constant [1] : int64[]
      %g = constant [true] : bool[]
      %s, %r = loop(%m, %g, %x) {body=graph @b(%i: int64[], %w: bool[], %p: float32[2]) -> (%v, %n, %o) {
        %v = logical_not(%w) : bool[]
        %d = cast(%i) {to="float32"} : float32[]
        %n = add(%p, %d) : float32[2]
        %o = exp(%n) : float32[2]
      }, num_carried=1} : float32[2], float32[1,2]""",
}


@pytest.mark.parametrize("kind", TURNS)
def test_what_turns_once_is_its_body(kind: str) -> None:
    text = f"""graph @g(%x: float32[2], %e: float32[3,1,2], %c: float32[2]) -> (%s, %r) {{
      {TURNS[kind]}
    }}"""
    graph = after(text, "dead_branches,dce")
    assert kind not in ops(graph)
    assert_same_values(parse_graph(text), graph)


def test_what_turns_twice_stays_what_it_is() -> None:
    text = f"""graph @g(%x: float32[2], %e: float32[3,2,2], %c: float32[2]) -> (%s, %r) {{
      {TURNS["scan"].replace("float32[2,1]", "float32[2,2]")}
    }}"""
    assert ops(after(text, "dead_branches,dce")) == ["scan"]


def test_passes_also_run_inside_branches() -> None:
    text = """graph @g(%x: float32[2], %c: bool[]) -> (%y) {
      %y = if(%c, %x) {else_graph=graph @e(%m: float32[2]) -> (%q) {
        %a = neg(%m) : float32[2]
        %q = neg(%a) : float32[2]
      }, then_graph=graph @f(%m: float32[2]) -> (%q) {
        %q = exp(%m) : float32[2]
      }} : float32[2]
    }"""
    graph = after(text, "algebra")
    assert [len(g) for g in graph.subgraphs()] == [0, 1]


# -- weights ---------------------------------------------------------------------------------------------------------

CONV = '{strides=[1,1], before=[1,1], after=[1,1], dilations=[1,1], groups=%d, layout="NCX"}'


def conv_graph(groups: int = 1, arithmetic: tuple[str, ...] = ("sub", "mul", "add")) -> Graph:
    rng = np.random.default_rng(0)
    graph = Graph("conv")
    value = graph.add_input("x", TensorType("float32", (2, 4, 5, 5)))
    weight = graph.constant(rng.standard_normal((6, 4 // groups, 3, 3)).astype(np.float32), name="w")
    value = graph.emit(
        "conv", value, weight, strides=(1, 1), before=(1, 1), after=(1, 1), dilations=(1, 1), groups=groups,
        layout="NCX", origins=["Conv"],
    )  # fmt: skip
    for op in arithmetic:
        constant = graph.constant(rng.uniform(0.5, 2, (6, 1, 1)).astype(np.float32))
        value = graph.emit(op, value, constant, origins=["BatchNorm"])
    graph.outputs = [graph.emit("tanh", value)]
    return graph


@pytest.mark.parametrize("groups", [1, 2])
def test_batch_normalisation_goes_into_the_weights(groups: int) -> None:
    graph = conv_graph(groups)
    result = run_pipeline(graph, PassContext(listeners=[VerifyListener()]), "fold_scale_shift")
    assert ops(result) == ["conv", "add", "tanh"]
    assert result.nodes[0].origins == ("Conv", "BatchNorm")
    assert_same_values(graph, result)


def test_a_bias_alone_is_left_for_the_epilogue() -> None:
    assert ops(run_pipeline(conv_graph(1, ("add",)), PassContext(), "fold_scale_shift")) == ["conv", "add", "tanh"]


def test_a_scale_is_not_folded_where_the_unscaled_value_is_needed_too() -> None:
    graph = conv_graph(1, ("mul",))
    graph.outputs = [*graph.outputs, graph.nodes[0].output]
    assert ops(run_pipeline(graph, PassContext(), "fold_scale_shift")) == ["conv", "mul", "tanh"]


def test_a_scale_of_a_matmul_goes_into_its_columns_whichever_way_they_lie() -> None:
    for flag, shape in (("", "[3,2]"), ("{trans_b=true}", "[2,3]")):
        graph = after(
            chain(
                f"%w = constant [1.0, 2.0, 3.0, 4.0, 5.0, 6.0] : float32{shape}",
                f"%m = matmul(%x, %w) {flag} : float32[2,2]",
                "%s = constant [2.0, 3.0] : float32[2]",
                "%y = mul(%m, %s) : float32[2,2]",
            ),
            "fold_scale_shift",
        )
        assert ops(graph) == ["matmul"]


def test_transposes_become_flags_of_matmul() -> None:
    graph = after(
        """graph @g(%a: float32[2,5,3], %b: float32[4,2,5]) -> (%y) {
          %s = transpose(%a) {perm=[0,2,1]} : float32[2,3,5] from "S"
          %t = transpose(%b) {perm=[1,2,0]} : float32[2,5,4] from "T"
          %y = matmul(%s, %t) : float32[2,3,4]
        }""",
        "fold_transposes",
    )
    # of %t's permutation only the part that leaves the innermost axis in place remains
    assert ops(graph) == ["transpose", "matmul"]
    assert graph.nodes[0].attrs["perm"] == (1, 0, 2)
    assert (graph.nodes[1].attrs["trans_a"], graph.nodes[1].attrs["trans_b"]) == (True, True)
    assert origins(graph) == {"S", "T"}


CHOSEN = {
    "gather": "%g = gather(%w, %i) {axis=0} : float32[3,5,7]",
    "gather_nd": "%g = gather_nd(%w, %j) {batch_dims=0} : float32[3,5,7]",
}


@pytest.mark.parametrize("op", CHOSEN)
@pytest.mark.parametrize(("row", "flags"), [("3,1,5", ""), ("3,5,1", " {trans_a=true}"), ("1,1,5", "")])
def test_a_row_by_gathered_matrices_is_the_matrices_by_a_column(op: str, row: str, flags: str) -> None:
    graph = after(
        f"""graph @g(%a: float32[{row}], %w: float32[11,5,7], %i: int64[3], %j: int64[3,1]) -> (%y) {{
          {CHOSEN[op]}
          %y = matmul(%a, %g){flags} : float32[3,1,7] from "M"
        }}""",
        "fold_transposes",
    )
    assert ops(graph) == [op, "matmul", "reshape"]
    assert [value.name for value in graph.nodes[1].inputs] == ["g", "a"]
    assert "M" in origins(graph)


@pytest.mark.parametrize(
    ("gathered", "rows"), [("%g = gather(%w, %i) {axis=1} : float32[2,3,7]", 1), (CHOSEN["gather"], 2)]
)
def test_other_products_of_gathered_matrices_stay(gathered: str, rows: int) -> None:
    """Of rows that are gathered, and of several rows."""
    batch, depth, count = (3, 5, 11) if rows == 2 else (2, 3, 2)
    graph = after(
        f"""graph @g(%a: float32[{batch},{rows},{depth}], %w: float32[{count},5,7], %i: int64[3]) -> (%y) {{
          {gathered}
          %y = matmul(%a, %g) : float32[{batch},{rows},7]
        }}""",
        "fold_transposes",
    )
    assert ops(graph) == ["gather", "matmul"]


def test_gemms_whose_columns_are_sliced_apart_are_split() -> None:
    rng = np.random.default_rng(0)
    graph = Graph("qkv")
    x = graph.add_input("x", TensorType("float32", (1, 4, 8)))
    weight = graph.constant(rng.standard_normal((8, 12)).astype(np.float32))
    bias = graph.constant(rng.standard_normal(12).astype(np.float32))
    y = graph.emit("add", graph.emit("matmul", x, weight), bias)
    slices = [{"starts": (0, 0, i), "steps": (1, 1, 1), "sizes": (1, 4, 4)} for i in (0, 4, 8)]
    graph.outputs = [graph.emit("slice", y, **s) for s in slices]
    result = run_pipeline(graph, PassContext(), "split_columns{least_columns=1,least_multiplications=1}")
    assert ops(result) == ["matmul", "add"] * 3
    assert_same_values(graph, result)
    assert ops(run_pipeline(graph, PassContext(), "split_columns")) == ops(graph)


# -- motion ------------------------------------------------------------------------------------------------------------


def test_transposes_sink_through_element_wise_operators_and_cancel() -> None:
    graph = after(
        """graph @g(%a: float32[2,3,4], %b: float32[2,3,4]) -> (%y) {
          %c = constant [1.0, 2.0, 3.0] : float32[3,1]
          %s = transpose(%a) {perm=[0,2,1]} : float32[2,4,3]
          %t = transpose(%b) {perm=[0,2,1]} : float32[2,4,3]
          %d = add(%s, %t) : float32[2,4,3]
          %e = transpose(%d) {perm=[0,2,1]} : float32[2,3,4]
          %y = mul(%e, %c) : float32[2,3,4]
        }""",
        "fixpoint(transpose_motion,canonicalise,dce)",
    )
    assert ops(graph) == ["add", "mul"]


@pytest.mark.parametrize("perms", [("0,2,1", "0,2,1"), ("2,0,1", "1,2,0")])
def test_a_transpose_sinks_where_the_other_operand_is_read_transposed_the_other_way_anyhow(
    perms: tuple[str, str],
) -> None:
    """As before a residual of channels-first images between convolutions of channels-last ones."""
    down, up = perms
    graph = after(
        f"""graph @g(%x: float32[4,4,4], %z: float32[4,4,4]) -> (%y) {{
          %t = transpose(%x) {{perm=[{up}]}} : float32[4,4,4]
          %a = mul(%t, %z) : float32[4,4,4]
          %b = transpose(%a) {{perm=[{down}]}} : float32[4,4,4]
          %c = add(%b, %x) : float32[4,4,4]
          %y = transpose(%c) {{perm=[{up}]}} : float32[4,4,4]
        }}""",
        "fixpoint(transpose_motion,canonicalise,cse,dce)",
    )
    assert ops(graph) == ["transpose", "mul", "add"]


def test_no_transpose_is_added_for_an_operand_that_is_read_as_it_is() -> None:
    text = """graph @g(%x: float32[4,4,4], %a: float32[4,4,4]) -> (%y, %z) {
          %b = transpose(%a) {perm=[0,2,1]} : float32[4,4,4]
          %y = add(%b, %x) : float32[4,4,4]
          %z = exp(%x) : float32[4,4,4]
        }"""
    assert ops(after(text, "fixpoint(transpose_motion,canonicalise,cse,dce)")) == ["transpose", "add", "exp"]


@pytest.mark.parametrize("parts", [2, 4, 7])
def test_transposes_of_all_parts_of_a_concat_become_one_after_it(parts: int) -> None:
    inputs = ", ".join(f"%x{i}: float32[2,3,5]" for i in range(parts))
    moved = "\n".join(f"%t{i} = transpose(%x{i}) {{perm=[0,2,1]}} : float32[2,5,3]" for i in range(parts))
    joined = ", ".join(f"%t{i}" for i in range(parts))
    graph = after(
        f"""graph @g({inputs}) -> (%y) {{
          {moved}
          %y = concat({joined}) {{axis=2}} : float32[2,5,{3 * parts}]
        }}""",
        "transpose_motion,dce",
    )
    assert ops(graph) == ["concat", "transpose"]


def test_a_concat_is_not_turned_for_one_part_of_many() -> None:
    text = """graph @g(%x: float32[2,3,5], %z: float32[2,5,9]) -> (%y) {
          %t = transpose(%x) {perm=[0,2,1]} : float32[2,5,3]
          %y = concat(%t, %z) {axis=2} : float32[2,5,12]
        }"""
    assert ops(after(text, "transpose_motion,dce")) == ["transpose", "concat"]


def test_a_small_transpose_does_not_become_a_large_one() -> None:
    text = """graph @g(%x: float32[1,4,8]) -> (%y) {
          %b = transpose(%x) {perm=[0,2,1]} : float32[1,8,4]
          %c = constant [2.0] : float32[]
          %w = broadcast_to(%c) {shape=[16,1,1]} : float32[16,1,1]
          %y = mul(%b, %w) : float32[16,8,4]
        }"""
    assert ops(after(text, "fold_constants,fixpoint(transpose_motion,cse,dce)")) == ["transpose", "mul"]


def test_no_transpose_is_added_for_one_that_others_read_too() -> None:
    """It would be moved back next time."""
    text = """graph @g(%x: float32[4,4,4], %z: float32[4,4,4]) -> (%y, %a, %b) {
          %a = transpose(%x) {perm=[0,2,1]} : float32[4,4,4]
          %b = transpose(%z) {perm=[0,2,1]} : float32[4,4,4]
          %y = add(%a, %z) : float32[4,4,4]
        }"""
    assert ops(after(text, "transpose_motion,canonicalise,cse,dce")) == ["transpose", "transpose", "add"]


def test_a_small_operand_that_was_transposed_for_a_large_one_stays_so() -> None:
    """Though the large one is read transposed by others, too."""
    graph = after(
        """graph @g(%x: float32[4,4,4], %z: float32[1,4,4]) -> (%y, %a) {
          %a = transpose(%x) {perm=[0,2,1]} : float32[4,4,4]
          %c = concat(%z, %a) {axis=0} : float32[5,4,4]
          %y = sin(%c) : float32[5,4,4]
        }""",
        "fixpoint(transpose_motion,canonicalise,cse,dce)",
    )
    assert sorted(ops(graph)) == ["concat", "sin", "transpose", "transpose", "transpose"]


MOVES = {
    "reduction": "%y = reduce_sum(%t) {axes=[1], keepdims=false} : float32[2,5,3]",
    "reduction that keeps axes": "%y = reduce_max(%t) {axes=[0,3], keepdims=true} : float32[1,4,5,1]",
    "arg_max": "%y = arg_max(%t) {axis=2, keepdims=false, select_last=false} : int64[2,4,3]",
    "pad": '%y = pad(%t) {before=[0,1,0,2], after=[1,0,0,0], mode="constant"} : float32[3,5,5,5]',
    "slice": "%y = slice(%t) {starts=[0,3,0,1], steps=[1,-1,1,1], sizes=[2,2,5,2]} : float32[2,2,5,2]",
    "concat": "%y = concat(%t, %t) {axis=1} : float32[2,8,5,3]",
    "gather": "%i = constant [0, 0, 2] : int64[3]\n%y = gather(%t, %i) {axis=1} : float32[2,3,5,3]",
    "cumulative": '%y = cumulative(%t) {axis=3, reducer="sum", exclusive=false, reverse=true} : float32[2,4,5,3]',
    "broadcast_to": "%y = broadcast_to(%t) {shape=[2,4,5,3]} : float32[2,4,5,3]",
    "reshape that splits an axis": "%y = reshape(%t) {shape=[2,2,2,5,3]} : float32[2,2,2,5,3]",
    "reshape that merges kept neighbours": "%y = reshape(%t) {shape=[2,20,3]} : float32[2,20,3]",
}


@pytest.mark.parametrize("name", MOVES)
def test_a_transpose_sinks_through(name: str) -> None:
    graph = after(
        f"""graph @g(%x: float32[2,3,4,5]) -> (%y) {{
          %t = transpose(%x) {{perm=[0,2,3,1]}} : float32[2,4,5,3] from "T"
          {MOVES[name]}
        }}""",
        "transpose_motion",
    )
    assert graph.nodes[0].op != "transpose"


def test_pooling_follows_its_operand_to_channels_last() -> None:
    graph = after(
        """graph @g(%x: float32[2,5,6,3]) -> (%y) {
          %t = transpose(%x) {perm=[0,3,1,2]} : float32[2,3,5,6]
          %y = window_reduce(%t) {reducer="max", kernel=[2,3], strides=[1,2], before=[0,1], after=[1,0],
            dilations=[1,1], layout="NCX"} : float32[2,3,5,3]
        }""",
        "transpose_motion",
    )
    assert ops(graph) == ["window_reduce", "transpose"]
    assert graph.nodes[0].attrs["layout"] == "NXC"


def test_reshapes_sink_so_that_arithmetic_follows_the_gemm() -> None:
    graph = after(
        """graph @g(%x: float32[2,6]) -> (%y) {
          %w = constant [1.0, 2.0, 3.0, 4.0, 5.0, 6.0] : float32[6,1]
          %r = reshape(%x) {shape=[1,2,6]} : float32[1,2,6]
          %m = matmul(%r, %w) : float32[1,2,1]
          %q = reshape(%m) {shape=[2]} : float32[2]
          %c = constant [1.0, 2.0] : float32[2]
          %y = add(%q, %c) : float32[2]
        }""",
        "fixpoint(reshape_motion,canonicalise,dce)",
    )
    assert ops(graph) == ["matmul", "add", "reshape"]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_axis_groups_pair_equal_sizes(shape: list[int], random: object) -> None:
    target = _regrouped(shape, random)
    groups = axis_groups(shape, target)
    assert groups is not None
    assert [i for s, _ in groups for i in s] == list(range(len(shape)))
    assert [j for _, t in groups for j in t] == list(range(len(target)))
    for sources, targets in groups:
        assert np.prod([shape[i] for i in sources]) == np.prod([target[j] for j in targets])


def _regrouped(shape: list[int], random: object) -> list[int]:
    """Another shape of as many elements: neighbours merged, axes of size 1 put in."""
    target: list[int] = []
    for d in shape:
        if target and random.random() < 0.5:  # type: ignore[attr-defined]
            target[-1] *= d
        else:
            target.append(d)
        if random.random() < 0.3:  # type: ignore[attr-defined]
            target.append(1)
    return target


def test_a_size_of_0_or_1_is_in_no_pair_that_is_certain() -> None:
    size = size_of(Symbol("n", 1, 1, or_empty=True))
    assert permuted_reshape((size, 3), (1, 0), (size, 3)) is None


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_a_permuted_reshape_is_the_same_data(shape: list[int], random: object) -> None:
    perm = list(range(len(shape)))
    random.shuffle(perm)  # type: ignore[attr-defined]
    target = _regrouped([shape[p] for p in perm], random)
    found = permuted_reshape(shape, perm, target)
    if found is None:
        return
    x = np.arange(np.prod(shape)).reshape(shape)
    np.testing.assert_array_equal(x.transpose(perm).reshape(target), x.reshape(found[0]).transpose(found[1]))


# -- all of them -------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(graphs(max_nodes=10))
def test_the_default_pipeline_keeps_values_of_random_graphs(graph: Graph) -> None:
    result = run_pipeline(graph, PassContext(listeners=[VerifyListener()]))
    assert_same_values(graph, result, tolerance=1e-4)
    assert origins(result) <= origins(graph)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@pytest.mark.parametrize("name", sorted(REWRITES))
@given(graph=graphs(max_nodes=8))
def test_each_rewrite_keeps_values_of_random_graphs(name: str, graph: Graph) -> None:
    result = run_pipeline(graph, PassContext(listeners=[VerifyListener()]), name)
    assert_same_values(graph, result, tolerance=1e-4)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(graphs(max_nodes=8))
def test_running_the_pipeline_again_changes_nothing_of_note(graph: Graph) -> None:
    once = run_pipeline(graph, PassContext())
    twice = run_pipeline(once, PassContext())
    assert len(twice) <= len(once)


def test_only_products_that_are_added_to_before_a_jump_are_rounded() -> None:
    graph = Graph("g")
    x, y = (graph.add_input(name, TensorType("float32", (7,))) for name in "xy")
    place = graph.emit("add", graph.emit("neg", graph.emit("mul", x, y)), y)
    scaled = graph.emit("div", graph.emit("reshape", place, shape=(1, 7)), graph.emit("exp", graph.emit("mul", x, x)))
    graph.outputs = [graph.emit("floor", scaled), graph.emit("add", graph.emit("mul", y, y), x)]
    prepared = run_pipeline(graph, PassContext(), "rounded_products")
    assert [node.attrs.get("rounded", False) for node in prepared.nodes if node.op == "mul"] == [True, False, False]
