"""What lies between quantised values: fewer steps, the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.helpers import after, body, ops
from tilestitch.compiler.ir import Graph, TensorType, Value, magnitudes
from tilestitch.compiler.ir.magnitudes import magnitude
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.passes import TargetInfo, run_pipeline
from tilestitch.passes.contract import PassContext
from tilestitch.passes.rewrite.requantise import Requantise


def graph_of(*statements: str, inputs: str, result: str) -> str:
    return f"graph @g({inputs}) -> (%{result}) {{\n" + "\n".join(statements) + "\n}"


def numbers(**values: float) -> list[str]:
    return [f"%{name} = constant [{value}] : float32[]" for name, value in values.items()]


def quantised(x: str, name: str, zero: bool, shape: str, scale: str = "r") -> list[str]:
    """`name` is `x` times a scale as uint8, perhaps with the zero point 130."""
    lines = [f"%{name}m = mul(%{x}, %{scale}) : float32{shape}", f"%{name}r = round(%{name}m) : float32{shape}"]
    if zero:
        lines.append(f"%{name}z = add(%{name}r, %z) : float32{shape}")
    return [
        *lines,
        f"%{name}a = maximum(%{name}{'z' if zero else 'r'}, %low) : float32{shape}",
        f"%{name}i = minimum(%{name}a, %high) : float32{shape}",
        f'%{name} = cast(%{name}i) {{to="uint8"}} : uint8{shape}',
    ]


CONSTANTS = numbers(s=0.03, r=25.0, z=130, low=0, high=255, zero=0)


def requantised(*statements: str, inputs: str = "%x: int16[4,6]", result: str = "q") -> list[str]:
    return body(after(graph_of(*CONSTANTS, *statements, inputs=inputs, result=result), "requantise,dce"))


def test_scales_become_one_and_the_conversion_rounds() -> None:
    x = ['%f = cast(%x) {to="float32"} : float32[4,6]', "%m = mul(%f, %s) : float32[4,6]"]
    b = ["%b = add(%m, %z) : float32[4,6]"]
    now = [line.split("(")[0] for line in requantised(*x, *b, *quantised("b", "q", False, "[4,6]"))]
    assert now == ["cast", "mul", "add", "round", "cast", "maximum", "minimum", "cast"]


def test_zero_points_are_added_to_integers() -> None:
    x = ['%f = cast(%x) {to="float32"} : float32[4,6]', "%m = mul(%f, %s) : float32[4,6]"]
    now = [line.split("(")[0] for line in requantised(*x, *quantised("m", "q", True, "[4,6]"))]
    assert now == ["cast", "mul", "mul", "round", "cast", "add", "maximum", "minimum", "cast"]


def test_unknown_floats_keep_their_nan_and_their_zero_point() -> None:
    text = graph_of(*CONSTANTS, *quantised("x", "q", True, "[4,6]"), inputs="%x: float32[4,6]", result="q")
    assert ops(after(text, "requantise,dce")) == ["mul", "round", "add", "maximum", "minimum", "cast"]


def test_unknown_floats_without_a_zero_point_are_kept_in_their_range_first() -> None:
    text = graph_of(*CONSTANTS, *quantised("x", "q", False, "[4,6]"), inputs="%x: float32[4,6]", result="q")
    assert ops(after(text, "requantise,dce")) == ["mul", "maximum", "minimum", "round", "cast"]


def test_a_relu_above_the_zero_point_is_part_of_the_range() -> None:
    x = ['%f = cast(%x) {to="float32"} : float32[4,6]', "%m = maximum(%f, %zero) : float32[4,6]"]
    now = requantised(*x, *quantised("m", "q", False, "[4,6]"))
    assert [line.split("(")[0] for line in now] == ["cast", "mul", "round", "cast", "maximum", "minimum", "cast"]


POOL = 'reducer="max", kernel=[3,3], strides=[2,2], before=[1,1], after=[1,1], dilations=[1,1], layout="NXC"'


@pytest.mark.parametrize("zero", [False, True])
def test_the_largest_of_dequantised_bytes_is_the_largest_byte(zero: bool) -> None:
    shape, small = "[1,7,9,4]", "[1,4,5,4]"
    x = ['%f = cast(%x) {to="float32"} : float32' + shape]
    if zero:
        x = [
            "%zi = constant [130] : int32[]", f'%w = cast(%x) {{to="int32"}} : int32{shape}',
            f"%d = sub(%w, %zi) : int32{shape}", f'%f = cast(%d) {{to="float32"}} : float32{shape}',
        ]  # fmt: skip
    text = graph_of(
        *numbers(s=0.04, r=25.0, z=130, low=0, high=255), *x, f"%m = mul(%f, %s) : float32{shape}",
        f"%p = window_reduce(%m) {{{POOL}}} : float32{small}", *quantised("p", "q", zero, small),
        inputs=f"%x: uint8{shape}", result="q",
    )  # fmt: skip
    now = after(text, "requantise,dce")
    assert ops(now) == ["window_reduce"] and now.outputs[0].dtype == "uint8"


def test_windows_of_padding_only_stay_floats() -> None:
    pool = POOL.replace("before=[1,1]", "before=[3,1]")
    text = graph_of(
        *numbers(s=0.04), '%f = cast(%x) {to="float32"} : float32[1,7,9,4]', "%m = mul(%f, %s) : float32[1,7,9,4]",
        f"%q = window_reduce(%m) {{{pool}}} : float32[1,5,5,4]", inputs="%x: uint8[1,7,9,4]", result="q",
    )  # fmt: skip
    assert ops(after(text, "requantise,dce")) == ["cast", "mul", "window_reduce"]


def test_bytes_of_another_scale_are_not_the_same() -> None:
    x = ['%f = cast(%x) {to="float32"} : float32[5]']
    text = graph_of(*CONSTANTS, *x, *quantised("f", "q", False, "[5]", "s"), inputs="%x: uint8[5]", result="q")
    assert "round" in ops(after(text, "requantise,dce"))


@pytest.mark.parametrize(("first", "second", "same"), [(0.5, 2.0, True), (1e32, 1e-32, False), (1e-36, 1e36, False)])
def test_bytes_are_the_same_where_no_scale_overflows_on_the_way(first: float, second: float, same: bool) -> None:
    x = ['%f = cast(%x) {to="float32"} : float32[5]', "%m = mul(%f, %a) : float32[5]"]
    scales = numbers(a=first, b=second, low=0, high=255)
    text = graph_of(*scales, *x, *quantised("m", "q", False, "[5]", "b"), inputs="%x: uint8[5]", result="q")
    assert (ops(after(text, "requantise,dce")) == []) == same


@pytest.mark.parametrize(("columns", "moved"), [(6, True), (6000, False)])
def test_a_large_constant_is_not_made_anew_for_each_reader(columns: int, moved: bool) -> None:
    graph = Graph("g")
    added = graph.constant(np.ones(columns, np.float32))
    for number in range(2):
        x = graph.emit("cast", graph.add_input(f"x{number}", TensorType("uint8", (columns,))), to="float32")
        total = graph.emit("add", graph.emit("mul", x, graph.constant(np.float32(3))), added)
        graph.outputs = [*graph.outputs, graph.emit("mul", total, graph.constant(np.float32(0.5 + number)))]
    assert Requantise().run(graph, PassContext()).modified == moved


def test_text_has_no_magnitude() -> None:
    assert magnitude(Value("t", TensorType("string", (2,)), np.array(["1.5", "x"], object))) == float("inf")


def test_factors_of_a_sum_of_floats_stay() -> None:
    lines = ["%a = mul(%x, %s) : float32[5]", "%b = add(%a, %z) : float32[5]", "%q = mul(%b, %r) : float32[5]"]
    text = graph_of(*CONSTANTS, *lines, inputs="%x: float32[5]", result="q")
    assert ops(after(text, "requantise,dce")) == ["mul", "add", "mul"]


def test_magnitudes_follow_from_integers() -> None:
    graph = Graph("g")
    x = graph.add_input("x", TensorType("uint8", (3,)))
    floats = graph.emit("cast", x, to="float32")
    scaled = graph.emit("mul", floats, graph.constant(np.float32(-2)))
    assert magnitude(graph.emit("round", graph.emit("add", scaled, floats))) == 2 * 255 + 255 + 1
    assert magnitude(graph.emit("mul", scaled, graph.constant(np.float32("nan")))) == float("inf")
    assert magnitude(graph.emit("exp", scaled)) == float("inf")
    assert magnitude(graph.add_input("y", TensorType("float32", (3,)))) == float("inf")


def test_masks_are_one_where_they_hold() -> None:
    graph = Graph("g")
    mask = graph.add_input("m", TensorType("bool", (3,)))
    floats = graph.emit("cast", mask, to="float32")
    assert magnitude(graph.emit("mul", floats, graph.constant(np.float32(3e10)))) == np.float32(3e10)
    assert magnitude(graph.emit("select", mask, floats, graph.constant(np.float32(0)))) == 1


def test_sums_of_the_same_are_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("g")
    value = graph.emit("cast", graph.add_input("x", TensorType("uint8", (3,))), to="float32")
    for _ in range(30):
        value = graph.emit("add", value, value)
    asked: list[Value] = []
    followed = magnitudes._computed
    monkeypatch.setattr(magnitudes, "_computed", lambda value, *rest: (asked.append(value), followed(value, *rest))[1])
    assert magnitude(value) == 255 * 2.0**30
    assert len(asked) == len(set(asked)) == 32


def biased(bias: str, scale: float = 0.25, target: TargetInfo | None = None) -> list[str]:
    text = graph_of(
        "%w = constant [1, 2, 3, 4, 5, 6] : int8[3,2,1,1]",
        f"%bias = constant {bias} : float32[3,1,1]",
        *numbers(f=scale),
        "%k = constant [7, -8, 9] : int32[3,1,1]",
        "%c = conv(%x, %w) {strides=[1,1], before=[0,0], after=[0,0], dilations=[1,1], groups=1, "
        'layout="NCX", out_dtype="int32"} : int32[1,3,2,2]',
        "%s = sub(%c, %k) : int32[1,3,2,2]",
        '%i = cast(%s) {to="float32"} : float32[1,3,2,2]',
        "%m = mul(%i, %f) : float32[1,3,2,2]",
        "%y = add(%m, %bias) : float32[1,3,2,2]",
        inputs="%x: uint8[1,2,2,2]",
        result="y",
    )
    graph = parse_graph(text)
    context = PassContext() if target is None else PassContext(target=target)
    return body(run_pipeline(graph, context, "requantise,dce"))


def test_a_bias_that_is_a_multiple_of_the_scale_begins_the_sums() -> None:
    now = biased("[0.5, -3.25, 0.0]")
    assert [line.split("(")[0] for line in now] == ["conv", "add", "cast", "mul"]
    graph = after(
        graph_of(
            "%w = constant [1, 2] : int8[1,2,1,1]",
            *numbers(f=0.1, bias=np.float32(1000) * np.float32(0.1)),
            "%c = conv(%x, %w) {strides=[1,1], before=[0,0], after=[0,0], dilations=[1,1], groups=1, "
            'layout="NCX", out_dtype="int32"} : int32[1,1,2,2]',
            '%i = cast(%c) {to="float32"} : float32[1,1,2,2]',
            "%m = mul(%i, %f) : float32[1,1,2,2]",
            "%y = add(%m, %bias) : float32[1,1,2,2]",
            inputs="%x: uint8[1,2,2,2]",
            result="y",
        ),
        "requantise,dce",
    )
    assert body(graph)[1:2] == ["add(c, 1000)"]


@pytest.mark.parametrize("bias", ["[0.5, -3.25, 0.125]", "[5e8, 0.0, 0.0]", "[NaN, 0.0, 0.0]"])
def test_other_biases_stay_floats(bias: str) -> None:
    """What is no multiple, what may make sums that 32 bits do not hold, what is no number."""
    assert [line.split("(")[0] for line in biased(bias)][-3:] == ["cast", "mul", "add"]


def begun(w: str, dtype: str, bias: float, operand: str = "uint8") -> bool:
    """Whether sums of 16,640 products begin with a bias of so many steps."""
    conv = '{strides=[1,1], before=[0,0], after=[0,0], dilations=[1,1], groups=1, layout="NCX", out_dtype="int32"}'
    text = graph_of(
        f"%n = constant [{w}] : {dtype}[]",
        f"%w = broadcast_to(%n) {{shape=[1,16640,1,1]}} : {dtype}[1,16640,1,1]",
        *numbers(f=1.0, bias=bias),
        f"%c = conv(%x, %w) {conv} : int32[1,1,2,2]",
        '%i = cast(%c) {to="float32"} : float32[1,1,2,2]',
        "%m = mul(%i, %f) : float32[1,1,2,2]",
        "%y = add(%m, %bias) : float32[1,1,2,2]",
        inputs=f"%x: {operand}[1,16640,2,2]", result="y",
    )  # fmt: skip
    return ops(after(text, "requantise,dce"))[-1] == "mul"


def test_a_bias_begins_only_sums_that_32_bits_hold_with_it() -> None:
    """Products of unsigned bytes are twice as large as those of bytes of which one has a sign."""
    steps = 1_073_741_760.0
    assert begun("127", "int8", steps) and not begun("255", "uint8", steps)
    assert begun("255", "uint8", 1000.0) and not begun("127", "int16", 1000.0, "int16")


def test_large_constants_of_integers_hold_what_their_dtype_does() -> None:
    graph = Graph("g")
    assert magnitude(graph.constant(np.zeros((1 << 20) + 1, np.int8))) == 128
    assert magnitude(graph.constant(np.zeros((1 << 20) + 1, np.float32))) == float("inf")


def test_gpus_multiply_and_add_floats_at_once() -> None:
    now = biased("[0.5, -3.25, 0.0]", target=TargetInfo("cuda"))
    assert [line.split("(")[0] for line in now][-3:] == ["cast", "mul", "add"]


def test_magnitudes_of_integers_that_do_not_wrap() -> None:
    graph = Graph("g")
    x = graph.add_input("x", TensorType("uint8", (3,)))
    wide = graph.emit("cast", x, to="int32")
    less = graph.emit("sub", wide, graph.constant(np.int32(116)))
    assert magnitude(less) == 255 + 116
    assert magnitude(graph.emit("mul", less, graph.constant(np.int32(1 << 30)))) == 2.0**31
    assert magnitude(graph.emit("sub", x, graph.constant(np.uint8(1)))) == 255
    assert magnitude(graph.emit("cast", less, to="uint8")) == 255
    assert magnitude(graph.emit("cast", graph.emit("neg", wide), to="uint32")) == 2.0**32 - 1
