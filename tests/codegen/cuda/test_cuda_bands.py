"""Row-wise work behind a product, in its launch: the last block of a band of rows computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.codegen.cuda.contraction_harness import check, target
from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.cuda.group import lower_group
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.passes import PassContext, TargetInfo, check_plan, make_plan
from tilestitch.passes.fusion.band_rule import Bands
from tilestitch.passes.plan import Group
from tilestitch.runtime.emulator import EmulatorOptions

ORDERS = [
    EmulatorOptions(),
    EmulatorOptions(block_order="reversed", thread_order="reversed"),
    EmulatorOptions(block_order="adversarial", thread_order="random", seed=7),
]
Rows = Callable[[Graph, Value], Value]


def total(graph: Graph, x: Value, op: str = "reduce_sum") -> Value:
    return graph.emit(op, x, axes=(len(x.shape) - 1,), keepdims=True)


def layer_norm(graph: Graph, x: Value) -> Value:
    scale = graph.add_input("scale", TensorType(x.dtype, x.shape[-1:]))
    share, epsilon = graph.constant(1 / x.shape[-1], x.dtype), graph.constant(0.1, x.dtype)
    centred = graph.emit("sub", x, graph.emit("mul", total(graph, x), share))
    variance = graph.emit("mul", total(graph, graph.emit("mul", centred, centred)), share)
    return graph.emit(
        "mul", graph.emit("div", centred, graph.emit("sqrt", graph.emit("add", variance, epsilon))), scale
    )


def softmax(graph: Graph, x: Value) -> Value:
    weights = graph.emit("exp", graph.emit("sub", x, total(graph, x, "reduce_max")))
    return graph.emit("div", weights, total(graph, weights))


def log_softmax(graph: Graph, x: Value) -> Value:
    centred = graph.emit("sub", x, total(graph, x, "reduce_max"))
    return graph.emit("sub", centred, graph.emit("log", total(graph, graph.emit("exp", centred))))


def rms_norm(graph: Graph, x: Value) -> Value:
    squares = graph.emit("add", total(graph, graph.emit("mul", x, x)), graph.constant(0.5, x.dtype))
    return graph.emit("div", x, graph.emit("sqrt", squares))


def dense(
    m: int, n: int, k: int, dtype: str = "float32", *, behind: Rows = layer_norm, batch: tuple[int, ...] = (),
    residual: bool = True, stored: bool = False,
) -> Graph:  # fmt: skip
    """behind(x @ w + bias + residual); `stored`: what the rows are computed from is an output, too."""
    graph = Graph("dense")
    x = graph.add_input("x", TensorType(dtype, (*batch, m, k)))
    w = graph.add_input("w", TensorType(dtype, (*batch, k, n)))
    y = graph.emit("add", graph.emit("matmul", x, w), graph.add_input("bias", TensorType(dtype, (n,))))
    if residual:
        y = graph.emit("add", y, graph.add_input("r", y.tensor_type))
    graph.outputs = [behind(graph, y), *([y] if stored else [])]
    return graph


def banded(graph: Graph, **context: Any) -> Group:
    """The one group that the whole graph becomes."""
    plan = make_plan(graph, PassContext(TargetInfo("cuda", 2), {"planner": "stitch"}, rules=(Bands(forced=True),)))
    check_plan(plan, graph)
    (group,) = plan.groups
    assert group.tie == "band", plan.refusals
    return group


def lower(graph: Graph, name: str = "cuda:sm_80") -> tuple[CudaLaunch, ...]:
    return lower_group(graph, banded(graph), target(name))


@pytest.mark.parametrize("options", ORDERS, ids=lambda o: o.block_order)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((67, 131, 24), "float32"), ((37, 64, 96), "float16"), ((96, 144, 64), "bfloat16"), ((1, 97, 40), "float32")],
)
def test_rows_behind_a_product_are_one_launch(
    shape: tuple[int, int, int], dtype: str, options: EmulatorOptions
) -> None:
    (launch,) = check(dense(*shape, dtype), lower, options, runs=3)
    assert not launch.cooperative
