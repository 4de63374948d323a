"""Pooling after a convolution becomes strided convolutions: the same bits, and nothing large is stored."""

from __future__ import annotations

import numpy as np
import pytest

from tests.strategies import feeds
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.compiler.ir.verify import verify
from tilestitch.passes import PassContext, TargetInfo, make_plan, run_pipeline


def pooled(
    size: tuple[int, int] = (32, 100), channels: int = 1, window: tuple[int, int] = (2, 2), layout: str = "NXC",
    pad: int = 1, stride: int = 1, spread: tuple[int, int] | None = None, reducer: str = "max",
) -> Graph:  # fmt: skip
    """Weights and bias are small whole numbers, as what `given` gives: sums are exact, in whatever order."""
    rng = np.random.default_rng(0)
    graph = Graph("pooled")
    last = layout == "NXC"
    x = graph.add_input("x", TensorType("float32", (2, *size, channels) if last else (2, channels, *size)))
    shape = (3, 3, channels, 64) if last else (64, channels, 3, 3)
    attrs = {"strides": (stride, stride), "before": (pad, pad), "after": (pad, pad), "dilations": (1, 1), "groups": 1}
    weight = graph.constant(rng.integers(-8, 9, shape).astype(np.float32))
    bias = graph.constant(rng.integers(-8, 9, (64,) if last else (64, 1, 1)).astype(np.float32))
    conv = graph.emit("conv", x, weight, layout=layout, origins=("conv",), **attrs)
    relu = graph.emit("maximum", graph.emit("add", conv, bias, origins=("bias",)), graph.constant(0.0, "float32"))
    graph.outputs = [
        graph.emit("window_reduce", relu, reducer=reducer, kernel=window, strides=spread or window, before=(0, 0),
                   after=(0, 0), dilations=(1, 1), layout=layout, origins=("pool",))
    ]  # fmt: skip
    return graph


def given(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    return {name: np.round(8 * array) for name, array in feeds(graph, seed).items()}


def after(graph: Graph, target: str = "cpu") -> Graph:
    result = run_pipeline(graph, PassContext(TargetInfo(target)), "split_pools,dce")
    verify(result)
    return result


@pytest.mark.parametrize("layout", ["NXC", "NCX"])
@pytest.mark.parametrize("size", [(32, 100), (25, 41)])
@pytest.mark.parametrize("window", [(2, 2), (2, 1), (1, 2)])
def test_the_same_bits_without_pooling(layout: str, size: tuple[int, int], window: tuple[int, int]) -> None:
    graph = pooled(size, window=window, layout=layout)
    result = after(graph)
    ops = [n.op for n in result.nodes]
    assert "window_reduce" not in ops and ops.count("conv") == window[0] * window[1]
    x = given(graph, 0)
    for want, got in zip(evaluate(graph, x), evaluate(result, x), strict=True):
        np.testing.assert_array_equal(got, want)
    assert {o for n in result.nodes for o in n.origins} == {"conv", "bias", "pool"}


def test_every_maximum_is_in_a_convolutions_kernel() -> None:
    result = after(pooled())
    plan = make_plan(result, PassContext())
    kinds = [part.kind.value for g in plan.groups for part in g.parts or (g,)]
    assert kinds == ["contraction"] * 4


@pytest.mark.parametrize(
    ("why", "graph", "target"),
    [
        ("the image is as large as what is saved", pooled(channels=64), "cpu"),
        ("windows overlap", pooled(window=(2, 2), spread=(1, 1)), "cpu"),
        ("a mean is no maximum", pooled(reducer="sum"), "cpu"),
        ("the border would have to be cut off", pooled(pad=0), "cpu"),
        ("windows are large", pooled(window=(3, 3)), "cpu"),
        ("on a GPU launches cost more than these bytes", pooled(), "cuda"),
    ],
)
def test_what_stays(why: str, graph: Graph, target: str) -> None:
    assert [n.op for n in after(graph, target).nodes].count("window_reduce") == 1, why


def test_strided_convolutions_are_split_too() -> None:
    graph = pooled((65, 61), stride=2, window=(1, 2), pad=2)
    result = after(graph)
    x = given(graph, 2)
    assert [n.op for n in result.nodes].count("window_reduce") == 0
    np.testing.assert_array_equal(evaluate(result, x)[0], evaluate(graph, x)[0])
