"""Shared by the tests of the passes: run passes on text, compare graphs by their values."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.strategies import feeds
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.compiler.ir.verify import verify
from tilestitch.passes import PassContext, VerifyListener, run_pipeline


def after(text: str, passes: str) -> Graph:
    """The graph that `text` describes after `passes`, verified after each and shown to compute the same."""
    graph = parse_graph(text)
    result = run_pipeline(graph, PassContext(listeners=[VerifyListener()]), passes)
    assert_same_values(graph, result)
    return result


def body(graph: Graph) -> list[str]:
    """The graph's nodes as `op(operands)`, constants of one element as numbers, larger ones as their shape."""

    def show(value: Any) -> str:
        if value.data is None:
            return str(value.name)
        return f"{value.data.reshape(-1)[0]:g}" if value.data.size == 1 else str(list(value.data.shape))

    return [f"{n.op}({', '.join(map(show, n.inputs))})" for n in graph.nodes]


def ops(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes]


def origins(graph: Graph) -> set[str]:
    return {o for n in graph.nodes for o in n.origins}


def assert_same_values(before: Graph, now: Graph, seed: int = 0, tolerance: float = 1e-5) -> None:
    """Both graphs give the same outputs on random inputs, within `tolerance` of the outputs' magnitude."""
    verify(now)
    inputs = feeds(before, seed)
    with np.errstate(all="ignore"):
        assert_close(evaluate(before, inputs), evaluate(now, inputs), tolerance)


def assert_close(expected: list[Any], actual: list[Any], tolerance: float = 1e-5) -> None:
    assert len(expected) == len(actual)
    for a, b in zip(expected, actual, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        if a.dtype.kind not in "fV":
            np.testing.assert_array_equal(a, b)
            continue
        finite = np.abs(a[np.isfinite(a)].astype(np.float64))
        scale = float(finite.max()) if finite.size else 1.0
        np.testing.assert_allclose(
            b.astype(np.float64), a.astype(np.float64), rtol=tolerance, atol=tolerance * max(scale, 1e-30)
        )
