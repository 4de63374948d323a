"""GEMMs with gates as kernels: the columns j, H + j, 2H + j... of a row come together; against numpy."""

import pytest

from tests.codegen.test_contraction_groups import Sketch
from tilestitch.compiler.ir import Value
from tilestitch.passes import PassContext, make_plan


def check(s: Sketch, *outputs: Value) -> None:
    """The graph is one kernel and computes what numpy does."""
    s.check(*outputs, pipeline="")
    assert len(make_plan(s.graph, PassContext()).groups) == 1


def gate(s: Sketch, value: Value, number: int, width: int) -> Value:
    starts = (0,) * (len(value.shape) - 1) + (number * width,)
    sizes = (*value.shape[:-1], width)
    return s.graph.emit("slice", value, starts=starts, sizes=sizes, steps=(1,) * len(sizes))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "depth", "width"), [(1, 1, 1), (1, 37, 33), (19, 16, 64), (3, 5, 7), (70, 3, 16)])
@pytest.mark.parametrize("trans_b", [False, True])
def test_lstm_cell(dtype: str, rows: int, depth: int, width: int, trans_b: bool) -> None:
    s = Sketch()
    h, c = s.input(rows, depth, dtype=dtype), s.input(rows, width, dtype=dtype)
    w = s.weight(*((4 * width, depth) if trans_b else (depth, 4 * width)), dtype=dtype)
    a = s.graph.emit("matmul", h, w, trans_b=trans_b)
    a = s.graph.emit("add", a, s.weight(4 * width, dtype=dtype))
    i, f, o, g = (s.graph.emit("tanh", gate(s, a, n, width)) for n in range(4))
    cell = s.graph.emit("add", s.graph.emit("mul", f, c), s.graph.emit("mul", i, g))
    check(s, s.graph.emit("mul", o, s.graph.emit("tanh", cell)), cell)


@pytest.mark.parametrize(("gates", "order"), [(2, (1, 0)), (3, (2, 0)), (5, (4, 4, 1))])
def test_gates_in_any_order_some_unread_some_read_twice(gates: int, order: tuple[int, ...]) -> None:
    s = Sketch()
    m = s.graph.emit("matmul", s.input(2, 3, 6), s.weight(6, gates * 11))
    value = gate(s, m, order[0], 11)
    for number in order[1:]:
        value = s.graph.emit("sub", s.graph.emit("tanh", value), gate(s, m, number, 11))
    check(s, value)


def test_whole_number_gates() -> None:
    s = Sketch()
    m = s.graph.emit("matmul", s.input(9, 5, dtype="int32"), s.weight(5, 34, dtype="int32"))
    check(s, s.graph.emit("maximum", gate(s, m, 0, 17), gate(s, m, 1, 17)))
