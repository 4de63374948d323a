"""Graphs of attention as exporters and converters spell it, and random inputs for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.codegen.kernel_harness import interpret
from tests.tolerances import DEVICE_KERNELS
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.compiler.ir.types import to_numpy_dtype


@dataclass(frozen=True)
class Case:
    """One attention: [batch, heads, queries, width] by [batch, kv_heads, keys, width], values of width `columns`.

    mask: none, additive ("float"), "bool", "causal" as a constant, "positions" (causal by comparing positions, and a
    mask of padding), or "window". grouped: query heads that share keys are an axis of their own; else keys are
    repeated by a broadcast and a reshape. mended: weights that are NaN become zero. softcap: of the scores. low: what
    masks by position put in the place of hidden scores, or add to them.
    """

    heads: int = 2
    queries: int = 5
    keys: int = 7
    width: int = 8
    columns: int = 8
    dtype: str = "float32"
    batch: int = 1
    kv_heads: int | None = None
    grouped: bool = True
    mask: str = ""
    mended: bool = False
    softcap: float = 0.0
    merge_heads: bool = False
    tf32: bool = False
    low: float = -np.inf

    @property
    def shared(self) -> int:
        """Query heads for each key head."""
        return self.heads // (self.kv_heads or self.heads)

    @property
    def offset(self) -> int:
        """The last query sees all keys."""
        return self.keys - self.queries

    @property
    def visible(self) -> np.ndarray:
        """Which keys a query sees by position."""
        query, key = np.arange(self.queries)[:, None], np.arange(self.keys)[None]
        seen = key <= query + self.offset
        return seen & (key >= query + self.offset - 3) if self.mask == "window" else seen


def attention(case: Case) -> Graph:
    """The graph of a case."""
    graph = Graph("attention")
    kv = case.kv_heads or case.heads
    q = graph.add_input("q", TensorType(case.dtype, (case.batch, case.heads, case.queries, case.width)))
    k = graph.add_input("k", TensorType(case.dtype, (case.batch, kv, case.keys, case.width)))
    v = graph.add_input("v", TensorType(case.dtype, (case.batch, kv, case.keys, case.columns)))
    scores = _masked(graph, case, _capped(graph, case, _gemm(graph, case, q, k, transposed=True)))
    weights = softmax(graph, scores)
    if case.mended:
        weights = graph.emit("select", graph.emit("is_nan", weights), _number(graph, case, 0.0), weights)
    y = _gemm(graph, case, weights, v, transposed=False)
    if case.merge_heads:
        moved = graph.emit("transpose", y, perm=(0, 2, 1, 3))
        y = graph.emit("reshape", moved, shape=(case.batch, case.queries, case.heads * case.columns))
    graph.outputs = [y]
    return graph


def softmax(graph: Graph, scores: Value) -> Value:
    """Softmax over the last axis in primitives."""
    last = (len(scores.shape) - 1,)
    e = graph.emit("exp", graph.emit("sub", scores, graph.emit("reduce_max", scores, axes=last, keepdims=True)))
    return graph.emit("div", e, graph.emit("reduce_sum", e, axes=last, keepdims=True))


def _gemm(graph: Graph, case: Case, left: Value, right: Value, *, transposed: bool) -> Value:
    """left @ right, or left @ right^T, with heads of `right` shared."""
    kv = case.kv_heads or case.heads
    attrs: dict[str, Any] = {"trans_b": transposed, **({"precision": "tf32"} if case.tf32 else {})}
    if kv == case.heads:
        return graph.emit("matmul", left, right, **attrs)
    one = graph.emit("reshape", right, shape=(case.batch, kv, 1, *right.shape[-2:]))
    if case.grouped:
        grouped = graph.emit("reshape", left, shape=(case.batch, kv, case.shared, *left.shape[-2:]))
        result = graph.emit("matmul", grouped, one, **attrs)
        return graph.emit("reshape", result, shape=(case.batch, case.heads, *result.shape[-2:]))
    wide = graph.emit("broadcast_to", one, shape=(case.batch, kv, case.shared, *right.shape[-2:]))
    repeated = graph.emit("reshape", wide, shape=(case.batch, case.heads, *right.shape[-2:]))
    return graph.emit("matmul", left, repeated, **attrs)


def _number(graph: Graph, case: Case, number: float) -> Value:
    return graph.constant(np.asarray(number).astype(to_numpy_dtype(case.dtype)))


def _capped(graph: Graph, case: Case, scores: Value) -> Value:
    if not case.softcap:
        return scores
    cap = _number(graph, case, case.softcap)
    return graph.emit("mul", graph.emit("tanh", graph.emit("div", scores, cap)), cap)


def _masked(graph: Graph, case: Case, scores: Value) -> Value:
    low, shape = _number(graph, case, case.low), (case.queries, case.keys)
    if case.mask == "float":
        return graph.emit("add", scores, graph.add_input("mask", TensorType(case.dtype, (case.batch, 1, *shape))))
    if case.mask == "bool":
        keep = graph.add_input("keep", TensorType("bool", (case.batch, 1, 1, case.keys)))
        return graph.emit("select", keep, scores, low)
    if case.mask in ("causal", "window"):
        bias = np.where(case.visible, 0.0, case.low).astype(to_numpy_dtype(case.dtype))
        return graph.emit("add", scores, graph.constant(bias))
    if case.mask == "positions":
        keep = graph.add_input("keep", TensorType("bool", (case.batch, 1, 1, case.keys)))
        position = graph.constant(np.arange(case.queries)[:, None] + case.offset)
        seen = graph.emit("less_equal", graph.constant(np.arange(case.keys)[None]), position)
        zero = _number(graph, case, 0.0)
        return graph.emit("add", scores, graph.emit("select", graph.emit("logical_and", seen, keep), zero, low))
    return scores


def inputs_of(case: Case, seed: int = 0, *, dead_rows: bool = False) -> dict[str, np.ndarray]:
    """Random inputs. A float mask hides some keys; `dead_rows`: and all keys of the first query."""
    random = np.random.default_rng(seed)
    feeds = {}
    for value in attention(case).inputs:
        if value.dtype == "bool":
            keep = random.random(value.shape) < 0.7
            keep[..., 0] = True
            feeds[value.name] = keep
            continue
        data = random.uniform(-2, 2, value.shape)
        if value.name == "q":
            data /= np.sqrt(case.width)
        if value.name == "mask":
            data[random.random(value.shape) < 0.3] = -np.inf
            data[..., 0] = 0.0
            if dead_rows:
                data[..., 0, :] = -np.inf
        feeds[value.name] = data.astype(to_numpy_dtype(value.dtype))
    return feeds


def reference(case: Case, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """The result in float64."""
    wide = attention(replace(case, dtype="float64", tf32=False))
    data = {name: array if array.dtype == bool else array.astype(np.float64) for name, array in feeds.items()}
    with np.errstate(all="ignore"):
        return interpret(wide, data)[wide.outputs[0]]


TF32_TOLERANCE = 3e-3


def assert_close(actual: np.ndarray, case: Case, feeds: dict[str, np.ndarray]) -> None:
    """The result is the reference's, NaN where that is NaN, to the dtype's tolerance scaled to the largest value."""
    expected = reference(case, feeds)
    wide = actual.astype(np.float64)
    assert wide.shape == expected.shape
    np.testing.assert_array_equal(np.isnan(wide), np.isnan(expected))
    finite = np.abs(expected[np.isfinite(expected)])
    tolerance = (TF32_TOLERANCE if case.tf32 else DEVICE_KERNELS[case.dtype]) * max(1.0, float(finite.max(initial=0.0)))
    np.testing.assert_allclose(wide, expected, rtol=0, atol=tolerance)
