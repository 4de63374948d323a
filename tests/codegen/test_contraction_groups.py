"""Contraction groups as whole kernels: prologue, packed or run-time operands, epilogue, views; against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiled import assert_close, run_graph
from tests.strategies import feeds
from tests.tolerances import SUMS
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.compiler.ir.types import to_numpy_dtype


class Sketch:
    """A graph in the making; constants are random."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.random = np.random.default_rng(7)

    def input(self, *shape: int, dtype: str = "float32") -> Value:
        return self.graph.add_input(f"x{len(self.graph.inputs)}", TensorType(dtype, shape))

    def weight(self, *shape: int, dtype: str = "float32") -> Value:
        whole = dtype.startswith(("int", "uint"))
        data = self.random.integers(0, 5, shape) if whole else self.random.uniform(-1, 1, shape)
        return self.graph.constant(data.astype(to_numpy_dtype(dtype)))

    def check(self, *outputs: Value, pipeline: str | None = None, planner: str = "stitch", rules: Any = ()) -> None:
        self.graph.outputs = list(outputs)
        inputs = feeds(self.graph)
        typed = {v.name: inputs[v.name].astype(to_numpy_dtype(v.dtype)) for v in self.graph.inputs}
        for actual, expected in zip(
            run_graph(self.graph, typed, planner, pipeline, rules), evaluate(self.graph, typed), strict=True
        ):
            assert_close(actual, expected, SUMS.get(np.dtype(expected.dtype).name, 0))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("trans", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 13, 5), (33, 70, 19)])
def test_gemms(dtype: str, constant: bool, trans: tuple[bool, bool], shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    s = Sketch()
    a = s.input(*((k, m) if trans[0] else (m, k)), dtype=dtype)
    make = s.weight if constant else s.input
    b = make(*((n, k) if trans[1] else (k, n)), dtype=dtype)
    s.check(s.graph.emit("matmul", a, b, trans_a=trans[0], trans_b=trans[1]), pipeline="")


@pytest.mark.parametrize(
    ("left", "right", "constant"),
    [
        ((2, 3, 5, 7), (7, 4), True),
        ((2, 3, 5, 7), (2, 3, 7, 4), True),
        ((2, 3, 5, 7), (2, 3, 7, 4), False),
        ((2, 1, 5, 7), (3, 7, 4), False),
        ((5, 7), (3, 7, 4), True),
        ((2, 3, 5, 7), (1, 1, 7, 4), False),
    ],
)
def test_batches_broadcast(left: tuple[int, ...], right: tuple[int, ...], constant: bool) -> None:
    s = Sketch()
    b = (s.weight if constant else s.input)(*right)
    s.check(s.graph.emit("matmul", s.input(*left), b), pipeline="")


@pytest.mark.parametrize("planner", ["stitch", "xla"])
@pytest.mark.parametrize("rows", [1, 5, 17])
@pytest.mark.parametrize("side", [0, 1])
def test_heads_that_share_an_operand_read_it_through_a_transpose(side: int, rows: int, planner: str) -> None:
    """Batches [2, 3, 2] by [2, 3, 1], whose own axes lie in memory as [2, rows, 3, columns]."""
    s, columns = Sketch(), 7 if side else 11
    shared = s.graph.emit("transpose", s.input(2, rows, 3, columns), perm=(0, 2, 1, 3))
    shared = s.graph.emit("reshape", shared, shape=(2, 3, 1, rows, columns))
    own = s.input(2, 3, 2, 13, rows) if side else s.input(2, 3, 2, columns, 13)
    s.check(s.graph.emit("matmul", *((own, shared) if side else (shared, own))), planner=planner)


@pytest.mark.parametrize("dtypes", [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")])
def test_integer_gemms_widen(dtypes: tuple[str, str]) -> None:
    s = Sketch()
    a, b = s.input(9, 21, dtype=dtypes[0]), s.weight(21, 17, dtype=dtypes[1])
    s.check(s.graph.emit("matmul", a, b, out_dtype="int32"))


def test_bias_activation_residual_and_views_are_one_kernel() -> None:
    s = Sketch()
    g = s.graph
    gemm = g.emit("matmul", s.input(2, 6, 8), s.weight(8, 12))
    biased = g.emit("add", gemm, s.weight(12))
    active = g.emit("tanh", g.emit("add", biased, s.input(2, 6, 12)))
    heads = g.emit("transpose", g.emit("reshape", active, shape=(2, 6, 3, 4)), perm=(0, 2, 1, 3))
    s.check(heads, active)


def test_a_prologue_is_evaluated_before_the_gemm() -> None:
    s = Sketch()
    g = s.graph
    x = g.emit("transpose", s.input(4, 6, 5), perm=(1, 0, 2))
    s.check(g.emit("matmul", g.emit("reshape", x, shape=(24, 5)), s.weight(5, 9)))


def test_a_gemm_over_nothing_is_zero() -> None:
    s = Sketch()
    s.check(s.graph.emit("matmul", s.input(3, 0), s.input(0, 4)), pipeline="")


def conv(s: Sketch, x: Value, w: Value, op: str = "conv", **attrs: Any) -> Value:
    rank = len(x.shape) - 2
    defaults: dict[str, Any] = {"strides": 1, "before": 0, "after": 0, "dilations": 1}
    given = {k: attrs.pop(k, v) for k, v in defaults.items()}
    spread = {k: v if isinstance(v, tuple) else (v,) * rank for k, v in given.items()}
    return s.graph.add(op, [x, w], {**spread, "groups": 1, "layout": "NCX", **attrs}).output


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    ("spatial", "kernel", "groups", "attrs"),
    [
        ((11,), (3,), 1, {"before": 1, "after": 2}),
        ((9, 7), (1, 1), 1, {"strides": 2}),
        ((9, 7), (3, 3), 1, {"before": 1, "after": 1}),
        ((9, 7), (3, 2), 2, {"strides": (2, 1), "dilations": (1, 2), "before": (0, 3), "after": (2, 1)}),
        ((5, 6, 4), (2, 3, 1), 1, {"before": 1, "after": 0}),
    ],
)
def test_convolutions(
    layout: str, constant: bool, spatial: tuple[int, ...], kernel: tuple[int, ...], groups: int, attrs: dict[str, Any]
) -> None:
    s = Sketch()
    channels, out = 6, 10
    last = layout == "NXC"
    x = s.input(2, *spatial, channels) if last else s.input(2, channels, *spatial)
    weights = (*kernel, channels // groups, out) if last else (out, channels // groups, *kernel)
    w = (s.weight if constant else s.input)(*weights)
    y = conv(s, x, w, groups=groups, layout=layout, **attrs)
    bias = s.weight(out) if last else s.weight(out, *(1 for _ in spatial))
    s.check(s.graph.emit("maximum", s.graph.emit("add", y, bias), s.graph.constant(np.float32(0))), pipeline="")


@pytest.mark.parametrize("perm", [(0, 2, 3, 1), (0, 3, 2, 1)])
def test_image_read_through_a_transpose(perm: tuple[int, ...]) -> None:
    s = Sketch()
    x = s.graph.emit("transpose", s.input(2, 3, 37, 19), perm=perm)
    y = conv(s, x, s.weight(3, 5, 3, 10), strides=2, before=(1, 3), after=(2, 1), layout="NXC")
    s.check(y, pipeline="")


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise_convolution(layout: str, multiplier: int) -> None:
    s = Sketch()
    channels, last = 19, layout == "NXC"
    x = s.input(1, 8, 7, channels) if last else s.input(1, channels, 8, 7)
    out = channels * multiplier
    w = s.weight(3, 3, 1, out) if last else s.weight(out, 1, 3, 3)
    s.check(conv(s, x, w, groups=channels, layout=layout, before=1, after=1, strides=2), pipeline="")


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolution(layout: str, groups: int) -> None:
    s = Sketch()
    channels, out, last = 4, 6, layout == "NXC"
    x = s.input(2, 5, 4, channels) if last else s.input(2, channels, 5, 4)
    w = s.weight(3, 2, channels, out // groups) if last else s.weight(channels, out // groups, 3, 2)
    attrs = {"strides": (2, 3), "before": (1, 0), "after": (0, 1), "dilations": (1, 2), "output_padding": (1, 0)}
    s.check(conv(s, x, w, "conv_transpose", groups=groups, layout=layout, **attrs), pipeline="")


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("reducer", ["sum", "max"])
def test_pooling_with_an_epilogue(layout: str, reducer: str) -> None:
    s = Sketch()
    x = s.input(1, 9, 7, 5) if layout == "NXC" else s.input(1, 5, 9, 7)
    attrs = {"kernel": (3, 2), "strides": (2, 1), "before": (1, 0), "after": (0, 1), "dilations": (1, 2)}
    y = s.graph.add("window_reduce", [x], {"reducer": reducer, "layout": layout, **attrs}).output
    s.check(s.graph.emit("mul", y, s.graph.constant(np.float32(0.25))), pipeline="")
