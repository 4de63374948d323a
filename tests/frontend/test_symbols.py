"""Open dimensions of inputs as symbols, shape arithmetic as expressions, and what operators say of them."""

from __future__ import annotations

import pytest
from onnx import parser

from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.frontend.errors import ConversionError, ModelError
from tilestitch.compiler.frontend.importer import ImportedModel
from tilestitch.compiler.frontend.symbols import Symbols
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.claims import Claim
from tilestitch.compiler.ir.sizes import size_of
from tilestitch.runtime.sizes import is_symbol_name

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '


def imported(text: str, **ranges: tuple[int, int]) -> Graph:
    model: ImportedModel = import_model(parser.parse_model(HEAD + text), ranges=ranges)
    return model.graph


def output_types(graph: Graph) -> list[str]:
    return [str(v.type) for v in graph.outputs]


def test_a_named_dimension_is_one_symbol_with_the_range_that_is_given() -> None:
    graph = imported("(float[n, 4] x, float[n] y) => (float[n, 4] z) { z = Neg(x) }", n=(2, 9))
    assert [str(v.type) for v in graph.inputs] == ["float32[n,4]", "float32[n]"]
    assert [(s.name, s.low, s.high) for s in graph.symbols] == [("n", 2, 9)]


def test_a_dimension_without_a_name_is_called_after_its_place() -> None:
    graph = imported("(float[?, 4] x) => (float[?, 4] z) { z = Neg(x) }")
    assert output_types(graph) == ["float32[x_0,4]"]


def test_names_of_dimensions_may_be_arithmetic() -> None:
    model = parser.parse_model(HEAD + "(float[past, 4] x, float[total] y) => (float[total] z) { z = Neg(y) }")
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "past + 1"
    assert output_types(import_model(model, ranges={}).graph) == ["float32[past + 1]"]


def test_a_dimension_that_is_named_by_a_number_has_that_size() -> None:
    """As PyTorch's exporter names the fixed dimensions of programs with open ones."""
    model = parser.parse_model(HEAD + "(float[n, c] x) => (float[n, 4] y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "4"
    assert output_types(import_model(model, ranges={}).graph) == ["float32[n,4]"]
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "0"  # of no elements there is nothing to run
    assert [str(v.type) for v in import_model(model, ranges={}).graph.inputs] == ["float32[n,_0]"]


def test_names_that_no_expression_can_have_stay_apart() -> None:
    model = parser.parse_model(HEAD + "(float[p, q] x, float[r, s] y) => (float[p, q] z) { z = Neg(x) }")
    names = ["a b", "a_b", "\u65e5", "\u672c"]
    dims = [dim for value in model.graph.input for dim in value.type.tensor_type.shape.dim]
    for dim, name in zip(dims, names, strict=True):
        dim.dim_param = name
    ranges = {name: (2, high) for high, name in enumerate(names, 3)}
    symbols = import_model(model, ranges=ranges).graph.symbols
    assert [symbol.high for symbol in symbols] == [3, 4, 5, 6]
    assert len({symbol.name for symbol in symbols}) == 4 and all(symbol.name.isascii() for symbol in symbols)


def named(names: list[str], **ranges: tuple[int, int]) -> list[tuple[str, int]]:
    """Symbols and their highest sizes, where the first dimensions of inputs x, y have these names."""
    model = parser.parse_model(HEAD + "(float[p] x, float[q] y) => (float[r] z) { z = Concat<axis=0>(x, y) }")
    for value, name in zip(model.graph.input, names, strict=True):
        value.type.tensor_type.shape.dim[0].dim_param = name
    return [(symbol.name, symbol.high) for symbol in import_model(model, ranges=ranges).graph.symbols]


def test_ranges_by_names_of_symbols_are_of_those_that_have_them() -> None:
    names = [name for name, _ in named(["a b", "a_b"])]
    assert named(["a b", "a_b"], **{names[0]: (2, 8), names[1]: (2, 9)}) == [(names[0], 8), (names[1], 9)]
    assert dict(named(["", "x_0"], x_0=(2, 9)))["x_0"] == 9 and len(named(["", "x_0"])) == 2


def test_a_dimension_may_be_called_like_a_function_of_sizes() -> None:
    assert [is_symbol_name(name) for name, _ in named(["min", "max"], min=(2, 9))] == [True, True]
    assert [high for _, high in named(["min", "max"], min=(2, 9), max=(2, 8))] == [9, 8]


def test_shape_arithmetic_leaves_nothing_to_compute() -> None:
    graph = imported("""(float[b, s, 64] x) => (float[b, s, 4, 16] z) {
        shape = Shape(x)
        zero = Constant<value_ints=[0]>()
        two = Constant<value_ints=[2]>()
        head = Slice(shape, zero, two)
        tail = Constant<value_ints=[4, -1]>()
        target = Concat<axis=0>(head, tail)
        z = Reshape(x, target)
    }""")
    assert [n.op for n in graph.nodes] == ["reshape"]
    assert output_types(graph) == ["float32[b,s,4,16]"]


@pytest.mark.parametrize(("less", "wanted"), [(0, "(n // 14,)"), (1, "((n + 13) // 14 - 1,)")])
def test_a_quotient_that_is_rounded_down_whatever_its_signs(less: int, wanted: str) -> None:
    """As the exporter of `transformers` writes every `//` of sizes: less by one if signs differ and a rest is left."""
    graph = imported(f"""(float[n] x) => (int64[1] y) {{
        n = Shape(x)
        less = Constant<value_ints=[{less}]>()
        fourteen = Constant<value_ints=[14]>()
        size = Sub(n, less)
        of_size = Sign(size)
        of_14 = Sign(fourteen)
        equal = Equal(of_size, of_14)
        differ = Not(equal)
        rest = Mod(size, fourteen)
        inexact = Cast<to=9>(rest)
        both = And(differ, inexact)
        one = Cast<to=7>(both)
        towards_zero = Div(size, fourteen)
        y = Sub(towards_zero, one)
    }}""")
    (node,) = graph.nodes
    assert node.op == "sizes" and str(node.attrs["values"]) == wanted


def test_conditions_on_sizes_that_may_hold_together_are_left() -> None:
    graph = imported("""(float[n] x) => (bool[1] y) {
        n = Shape(x)
        one = Constant<value_ints=[1]>()
        seven = Constant<value_ints=[7]>()
        size = Sub(n, one)
        of_size = Sign(size)
        equal = Equal(of_size, one)
        rest = Mod(size, seven)
        inexact = Cast<to=9>(rest)
        y = And(equal, inexact)
    }""")
    assert "logical_and" in [node.op for node in graph.nodes]


def test_whether_a_size_is_zero_and_its_sign_as_far_as_its_range_says() -> None:
    graph = imported(
        """(float[n] x) => (int64[1] y, int64[1] z) {
            n = Shape(x)
            two = Constant<value_ints=[2]>()
            less = Sub(n, two)
            is_any = Cast<to=9>(n)
            y = Cast<to=7>(is_any)
            z = Sign(less)
        }""",
        n=(2, 9),
    )
    (node,) = graph.nodes
    assert graph.outputs[0].data == 1 and str(node.attrs["values"]) == "(min(1, n - 2),)"


def test_sizes_come_back_from_floats_as_far_as_these_have_every_integer() -> None:
    """As converters of Keras models write a Flatten."""
    graph = imported("""(float[b, 4, 16] x) => (float[b, 64] z) {
        shape = Shape(x)
        floats = Cast<to=1>(shape)
        zero = Constant<value_ints=[0]>()
        one = Constant<value_ints=[1]>()
        first = Slice(floats, zero, one)
        batch = Cast<to=6>(first)
        wide = Cast<to=7>(batch)
        tail = Constant<value_ints=[-1]>()
        target = Concat<axis=0>(wide, tail)
        z = Reshape(x, target)
    }""")
    assert [n.op for n in graph.nodes] == ["reshape"]
    assert output_types(graph) == ["float32[b,64]"]
    assert [(s.low, s.high) for s in graph.symbols] == [(1, 1 << 24)]


def test_arithmetic_of_floats_is_none_of_sizes() -> None:
    graph = imported("""(float[b] x) => (float[1] z) {
        shape = Shape(x)
        floats = Cast<to=1>(shape)
        z = Add(floats, floats)
    }""")
    assert [n.op for n in graph.nodes] == ["sizes", "add"]


@pytest.mark.parametrize("through", ["", "floats = Cast<to=1>(shape)  shape1 = Identity(floats)"])
def test_sizes_that_small_integers_may_not_have_are_computed_as_data(through: str) -> None:
    last = "shape1" if through else "shape"
    text = (
        f"(float[b] x) => (int64[1] z) {{ shape = Shape(x)  {through}\n"
        f"small = Cast<to=2>({last})  z = Cast<to=7>(small) }}"
    )
    assert "cast" in [n.op for n in imported(text).nodes]
    assert [n.op for n in imported(text, b=(1, 255)).nodes] == ["sizes"]


def test_an_expansion_that_keeps_minus_one_is_decided() -> None:
    """The idiom of exporters: Where(target == -1, 1, target)."""
    graph = imported("""(float[1, 1, s] x, float[b] y) => (float[b, 1, s] z) {
        n = Shape(y)
        rest = Constant<value_ints=[-1, -1]>()
        target = Concat<axis=0>(n, rest)
        minus = Constant<value_ints=[-1]>()
        one = Constant<value_ints=[1]>()
        keeps = Equal(target, minus)
        sizes = Where(keeps, one, target)
        z = Expand(x, sizes)
    }""")
    assert output_types(graph) == ["float32[b,1,s]"]


def test_a_range_up_to_a_size_is_as_long() -> None:
    graph = imported("""(float[p] x, float[n] y) => (int64[m] z) {
        axis = Constant<value_int=0>()
        a = Shape(x)
        b = Shape(y)
        p = Squeeze(a)
        n = Squeeze(b)
        total = Add(p, n)
        one = Constant<value_int=1>()
        z = Range(p, total, one)
    }""")
    assert output_types(graph) == ["int64[n]"]


def test_dimensions_that_must_be_equal_become_one_symbol() -> None:
    graph = imported("(float[a, 8] x, float[b, 8] y) => (float[c, 8] z) { z = Add(x, y) }")
    assert [str(v.type) for v in graph.inputs] == ["float32[a,8]", "float32[a,8]"]
    assert [s.name for s in graph.symbols] == ["a"]


def test_a_symbol_that_must_be_a_sum_becomes_it() -> None:
    graph = imported("""(float[past, 8] x, float[new, 8] y, float[total, 8] m) => (float[total, 8] z) {
        both = Concat<axis=0>(x, y)
        z = Add(both, m)
    }""")
    assert str(graph.inputs[2].type) == "float32[new + past,8]"
    assert not graph.claims


def test_a_total_is_known_from_what_is_left_of_it() -> None:
    """Positions behind those of a cache, one for each new token, counted in a mask of both."""
    graph = imported("""(float[new] x, float[past, 4] cache, float[total] mask) => (float[new] z)
        <int64[1] zero = {0}, int64[1] end = {9223372036854775807}> {
        before = Shape<end=1>(cache)
        places = Slice(mask, before, end)
        z = Add(x, places)
    }""")
    assert [str(v.type) for v in graph.inputs] == ["float32[new]", "float32[past,4]", "float32[new + past]"]
    assert output_types(graph) == ["float32[new]"]


def test_the_end_of_a_table_narrows_a_range() -> None:
    graph = imported("""(int64[n] ids) => (float[n, 2] z) <float[16, 2] table = {
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}> {
        first = Constant<value_ints=[0]>()
        end = Shape(ids)
        z = Slice(table, first, end)
    }""")
    assert [(s.low, s.high) for s in graph.symbols] == [(1, 16)]
    assert output_types(graph) == ["float32[n,2]"]


def test_sums_of_products_along_what_was_found() -> None:
    graph = imported("""(bool[n] m, float[n] x) => (float z) <int64[1] all = {-1}> {
        places = NonZero(m)
        flat = Reshape(places, all)
        some = Gather(x, flat)
        z = Einsum<equation="i,i->">(some, some)
    }""")
    assert output_types(graph) == ["float32[]"]


def test_constant_indices_narrow_a_range() -> None:
    graph = imported("(float[n, 4] x) => (float[2, 4] z) <int64[2] places = {5, -7}> { z = Gather(x, places) }")
    assert [(s.low, s.high) for s in graph.symbols] == [(7, 2**31 - 1)]


def test_a_symbol_that_must_be_a_product_becomes_it() -> None:
    graph = imported("""(float[a, b] x, float[c] y) => (float[c] z) {
        flat = Constant<value_ints=[-1]>()
        line = Reshape(x, flat)
        z = Add(line, y)
    }""")
    assert output_types(graph) == ["float32[a * b]"]
    assert str(graph.inputs[1].type) == "float32[a * b]"


IN_PARTS = """(float[a, 64] x, float[b, 64] p) => (float[a, 8, k] z)
    <int64[1] others = {-1}, int64[1] eight = {8}, int64[2] few = {0, 1}, int64 last = {LAST}> {
        rows = Shape <start = 0, end = 1> (x)
        parts = Concat <axis = 0> (rows, others, eight)
        u = Reshape (x, parts)
        v = Reshape (p, parts)
        one = Gather <axis = 1> (v, last)
        apart = Unsqueeze (one, few)
        w = JOIN
        z = Identity (w)
    }"""
"""The number of parts of p is a quotient."""


@pytest.mark.parametrize("join", ["Concat <axis = 2> (u, v)", "Add (u, v)"])
def test_a_quotient_without_remainder_whose_value_is_known_tells_a_symbol(join: str) -> None:
    """Eight parts of p are added to those of x, or stand beside them: there are at least eight of them, not one."""
    graph = imported(IN_PARTS.replace("LAST", "7").replace("JOIN", join), a=(1, 99), b=(1, 99))
    assert [str(v.type) for v in graph.inputs] == ["float32[a,64]", "float32[a,64]"]


def test_a_quotient_that_may_be_1_in_a_broadcast_tells_none() -> None:
    graph = imported(IN_PARTS.replace("LAST", "0").replace("JOIN", "Add (u, v)"), a=(1, 99), b=(1, 99))
    assert [str(v.type) for v in graph.inputs] == ["float32[a,64]", "float32[b,64]"]


def test_the_least_sizes_that_break_a_claim_are_left_out() -> None:
    graph = imported("""(float[b, 1, h] x, float[1, 1, 5] k) => (float[b, 1, q] z) {
        a = MaxPool<kernel_shape=[2], strides=[2]>(x)
        z = Conv(a, k)
    }""")
    assert {s.name: s.low for s in graph.symbols} == {"b": 1, "h": 10}


def test_a_claim_that_no_symbol_follows_from_is_kept() -> None:
    graph = imported("""(float[a, b] x, float[c, d] y) => (float[n] z) {
        flat = Constant<value_ints=[-1]>()
        one = Reshape(x, flat)
        other = Reshape(y, flat)
        z = Add(one, other)
    }""")
    assert [str(claim) for claim in graph.claims] == ["a * b - c * d = 0"]
    assert graph.claims[0].reason == "ONNX node Add_0 (Add)"


def test_sizes_that_contradict_a_range_are_refused() -> None:
    with pytest.raises(ConversionError, match=r"shapes \(n,\), \(8,\) do not broadcast"):
        imported("(float[n] x, float[8] y) => (float[8] z) { z = Add(x, y) }", n=(2, 4))


def test_a_range_of_a_dimension_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelError, match=r"no input .* open dimension m; name one of n"):
        imported("(float[n] x) => (float[n] z) { z = Neg(x) }", m=(1, 4))


def test_without_ranges_dimensions_are_names_that_only_a_run_can_tell() -> None:
    model = parser.parse_model(HEAD + "(float[n] x) => (float[n] z) { z = Neg(x) }")
    graph = import_model(model).graph
    assert not graph.symbols and not graph.inputs[0].tensor_type.is_sized


def test_a_model_may_call_one_dimension_by_any_number_of_names() -> None:
    """As exporters do that give each cache of a decoder symbols of its own."""
    inputs = ", ".join(f"float[n{i}, d{i}] x{i}" for i in range(40))
    graph = imported(f"({inputs}) => (float[n, d] z) {{ z = Concat<axis=0>({', '.join(f'x{i}' for i in range(40))}) }}")
    assert {v.tensor_type.shape[1] for v in (*graph.inputs, *graph.outputs)} == {graph.inputs[0].tensor_type.shape[1]}
    assert len(graph.symbols) == 41


def test_a_size_that_equals_a_narrowed_one_has_its_range() -> None:
    """A symbol with the range of before was another one, and which of both came first differed from run to run."""
    symbols = Symbols()
    a, b = (symbols.size(name, "x", 0) for name in "ab")
    assert symbols.learned([Claim(3 - a, exact=False), Claim(a - b, exact=True)])
    assert symbols.by_name["a"].high == 3
    assert symbols.known["b"] == size_of(symbols.by_name["a"])
