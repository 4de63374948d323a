"""Views and data movement, alone and between element-wise operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx.parser
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.codegen.kernel_harness import Fault, check, run_graph, target
from tilestitch.compiler import compile_model
from tilestitch.compiler.ir.graph import Graph, Value
from tilestitch.compiler.ir.types import TensorType, to_numpy_dtype
from tilestitch.passes.schedule.cpu.loops import choose_loops

RNG = np.random.default_rng(1)


def number(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    return RNG.integers(0, 100, shape).astype(dtype)


def one(op: str, shapes: list[tuple[int, ...]], dtype: str = "float32", **attrs: object) -> None:
    graph = Graph(op)
    inputs = [graph.add_input(f"x{i}", TensorType(dtype, s)) for i, s in enumerate(shapes)]
    graph.outputs = [graph.emit(op, *inputs, **attrs)]
    check(graph, {f"x{i}": number(s, dtype) for i, s in enumerate(shapes)})


@pytest.mark.parametrize(
    "shape, perm",
    [
        ((3, 70, 90), (0, 2, 1)),
        ((5, 7), (1, 0)),
        ((2, 3, 4, 5), (3, 1, 0, 2)),
        ((100, 100), (1, 0)),
        ((1, 9), (1, 0)),
        ((), ()),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "bool"])
def test_transpose(shape: tuple[int, ...], perm: tuple[int, ...], dtype: str) -> None:
    one("transpose", [shape], dtype, perm=perm)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats_are_moved_bit_by_bit(dtype: str) -> None:
    """All bits, also those of NaNs, which a conversion there and back would quieten."""
    shapes = {"x": (65, 40), "y": (65, 3), "one": (1,), "index": (7,), "mask": (65, 1)}
    kinds = {"index": "int64", "mask": "bool"}
    width = to_numpy_dtype(dtype).itemsize
    unsigned = np.dtype(f"u{width}")
    bits = {name: RNG.integers(0, 1 << 8 * width, shapes[name], unsigned) for name in ("x", "y")}
    signalling = {"float16": 0x7D01, "bfloat16": 0xFF82, "float8_e4m3fn": 0xFF, "float8_e5m2": 0x7D}[dtype]
    bits["one"] = np.array([signalling], unsigned)
    rows, mask = np.array([0, 64, 3, 3, 10, 63, 1]), RNG.random((65, 1)) < 0.5
    feeds = {**{name: value.view(to_numpy_dtype(dtype)) for name, value in bits.items()}, "index": rows, "mask": mask}

    def moved(build: Callable[..., Value], *names: str) -> np.ndarray:
        graph = Graph("bits")
        inputs = [graph.add_input(name, TensorType(kinds.get(name, dtype), shapes[name])) for name in names]
        graph.outputs = [build(graph, *inputs)]
        (result,) = run_graph(graph, {name: feeds[name] for name in names}).values()
        return result.view(unsigned)

    beside = np.concatenate([bits["x"], bits["y"]], 1)
    turned = moved(lambda g, x, y: g.emit("transpose", g.emit("concat", x, y, axis=1), perm=(1, 0)), "x", "y")
    np.testing.assert_array_equal(turned, beside.T)
    picked = moved(lambda g, x, index: g.emit("gather", x, index, axis=0), "x", "index")
    np.testing.assert_array_equal(picked, bits["x"][rows])
    around = {"before": (1, 2), "after": (0, 3), "mode": "constant"}
    padded = moved(lambda g, x: g.emit("pad", x, **around), "x")
    np.testing.assert_array_equal(padded, np.pad(bits["x"], ((1, 0), (2, 3))))
    one = Value("c", TensorType(dtype, (1,)), feeds["one"])
    chosen = moved(lambda g, mask, x: g.emit("select", mask, x, one), "mask", "x")
    np.testing.assert_array_equal(chosen, np.where(mask, bits["x"], bits["one"]))


def test_where_nothing_can_be_gathered_no_other_dtype_is_stored(capfd: pytest.CaptureFixture[str]) -> None:
    """TVM warns of that, for each kernel."""
    head = '<ir_version: 10, opset_import: ["": 21]> g '
    text = "(float16[n, 4] x) => (float16[4] y) <int64 i = {3}> { y = Gather(x, i) }"
    compile_model(onnx.parser.parse_model(head + text), dims={"n": (0, 9)})
    assert "Warning" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "source, target", [((2, 12), (4, 6)), ((6,), (2, 3)), ((), (1, 1)), ((2, 0, 3), (0, 7)), ((4, 1, 6), (3, 8))]
)
def test_reshape_between_arithmetic(source: tuple[int, ...], target: tuple[int, ...]) -> None:
    graph = Graph("reshape")
    x = graph.add_input("x", TensorType("float32", source))
    y = graph.emit("reshape", graph.emit("add", x, x), shape=target)
    turned = graph.emit("transpose", y, perm=tuple(reversed(range(len(target)))))
    graph.outputs = [turned, y]
    check(graph, {"x": number(source)})


def test_broadcast_and_slice() -> None:
    one("broadcast_to", [(3, 1)], shape=(2, 3, 5))
    one("slice", [(9, 20)], starts=(8, 1), steps=(-3, 2), sizes=(3, 9))
    one("slice", [(9, 20)], starts=(0, 0), steps=(1, 1), sizes=(0, 20))


@pytest.mark.parametrize(("parts", "inner"), [(3, 16), (4, 16), (31, 40), (9, 1), (140, 8)])
def test_concat_of_many_operands(parts: int, inner: int) -> None:
    """Along a dimension before the last: rows branch to the operand that they are read from."""
    one("concat", [(2, 1 + number % 3, inner) for number in range(parts)], axis=1)


def test_rows_of_a_concat_branch_to_their_operand() -> None:
    """Selecting among operands reads them all: the states of 31 steps of an LSTM took 15 times as long."""
    graph = Graph("g")
    parts = [graph.add_input(f"x{number}", TensorType("float32", (2, 1, 64))) for number in range(31)]
    output = graph.emit("concat", *parts, axis=1)
    assert output.producer is not None
    loops = choose_loops([output.producer], parts, [output], target().isa)
    assert (loops.branch, loops.branches) == (1, tuple(range(32)))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concat_with_empty_parts(axis: int) -> None:
    shapes = []
    for n in (2, 0, 5, 1, 17):
        shape = [3, 4, 6]
        shape[axis] = n
        shapes.append(tuple(shape))
    one("concat", shapes, axis=axis)
    one("concat", shapes, "bool", axis=axis)


def test_rotation_of_halves() -> None:
    graph = Graph("rope")
    x, sine = (graph.add_input(n, TensorType("float32", (2, 5, 64))) for n in ("x", "sine"))

    def half(start: int) -> Value:
        return graph.emit("slice", x, starts=(0, 0, start), steps=(1, 1, 1), sizes=(2, 5, 32))

    turned = graph.emit("concat", graph.emit("neg", half(32)), half(0), axis=2)
    graph.outputs = [graph.emit("add", x, graph.emit("mul", turned, sine))]
    check(graph, {"x": number((2, 5, 64)), "sine": number((2, 5, 64))})


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize(
    "shape, before, after",
    [((5, 7), (1, 0), (0, 3)), ((1, 4), (2, 2), (3, 9)), ((6,), (0,), (2,)), ((2, 3, 40), (0, 1, 1), (0, 1, 1))],
)
def test_pad(mode: str, shape: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...]) -> None:
    one("pad", [shape], before=before, after=after, mode=mode)


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_pads_of_windows_of_pads(mode: str) -> None:
    """40 of them in one kernel, whose index grows by each, and does not double."""
    graph = Graph("pads")
    y = graph.add_input("x", TensorType("float32", (3, 24)))
    for _ in range(40):
        y = graph.emit("pad", graph.emit("neg", y), before=(0, 2), after=(0, 3), mode=mode)
        y = graph.emit("slice", y, starts=(0, 1), steps=(1, 1), sizes=(3, 24))
    graph.outputs = [y]
    check(graph, {"x": number((3, 24))})


def test_pad_with_a_value_and_of_nothing() -> None:
    graph = Graph("pad")
    x = graph.add_input("x", TensorType("float32", (2, 0)))
    graph.outputs = [graph.emit("pad", x, graph.constant(np.float32(7)), before=(1, 2), after=(0, 3), mode="constant")]
    check(graph, {"x": number((2, 0))})


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bfloat16"])
def test_iota(dtype: str) -> None:
    graph = Graph("iota")
    graph.outputs = [graph.emit("iota", shape=(3, 40), axis=1, dtype=dtype)]
    check(graph, {})


def gather_graph(op: str, shape: tuple[int, ...], indices: tuple[int, ...], **attrs: object) -> Graph:
    graph = Graph(op)
    x, i = graph.add_input("x", TensorType("float32", shape)), graph.add_input("i", TensorType("int64", indices))
    graph.outputs = [graph.emit(op, x, i, **attrs)]
    return graph


@pytest.mark.parametrize("axis", [0, 1])
def test_gather(axis: int) -> None:
    graph = gather_graph("gather", (5, 7), (3, 4), axis=axis)
    check(graph, {"x": number((5, 7)), "i": RNG.integers(-5, 5, (3, 4))})


def test_gather_elements_and_nd() -> None:
    check(
        gather_graph("gather_elements", (5, 7), (4, 3), axis=1), {"x": number((5, 7)), "i": RNG.integers(-7, 7, (4, 3))}
    )
    check(
        gather_graph("gather_nd", (2, 5, 7), (2, 3, 1), batch_dims=1),
        {"x": number((2, 5, 7)), "i": RNG.integers(-5, 5, (2, 3, 1))},
    )
    check(
        gather_graph("gather_nd", (5, 6, 7), (4, 2), batch_dims=0),
        {"x": number((5, 6, 7)), "i": RNG.integers(-5, 5, (4, 2))},
    )


@pytest.mark.parametrize("bad", [5, -6])
def test_an_index_out_of_range_is_reported_and_reads_nothing_outside(bad: int) -> None:
    graph = gather_graph("gather", (5, 7), (3,), axis=0)
    with pytest.raises(Fault, match="out of range"):
        run_graph(graph, {"x": number((5, 7)), "i": np.array([0, bad, 1])})


def test_an_index_into_nothing_is_reported() -> None:
    graph = gather_graph("gather", (0, 7), (3,), axis=0)
    with pytest.raises(Fault, match="out of range"):
        run_graph(graph, {"x": number((0, 7)), "i": np.array([0, 0, 0])})


SHAPES = st.lists(st.sampled_from([1, 2, 3, 5, 16, 33]), min_size=1, max_size=4).map(tuple)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(shape=SHAPES, data=st.data())
def test_chains_of_views(shape: tuple[int, ...], data: st.DataObject) -> None:
    graph = Graph("views")
    value = graph.emit("neg", graph.add_input("x", TensorType("float32", shape)))
    for _ in range(data.draw(st.integers(1, 4))):
        dims = value.shape
        kind = data.draw(st.sampled_from(["transpose", "merge", "split", "reverse"]))
        if kind == "transpose":
            value = graph.emit("transpose", value, perm=tuple(data.draw(st.permutations(range(len(dims))))))
        elif kind == "merge" and len(dims) > 1:
            value = graph.emit("reshape", value, shape=(dims[0] * dims[1], *dims[2:]))
        elif kind == "split" and dims[0] % 2 == 0:
            value = graph.emit("reshape", value, shape=(dims[0] // 2, 2, *dims[1:]))
        elif kind == "reverse":
            value = graph.emit("slice", value, starts=tuple(d - 1 for d in dims), steps=(-1,) * len(dims), sizes=dims)
    graph.outputs = [graph.emit("add", value, value)]
    check(graph, {"x": number(shape)})
