"""Hypothesis strategies: small valid graphs over the primitives, with inputs to evaluate them on."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.compiler.ir.types import UNKNOWN, broadcast_shapes

DIMS = st.sampled_from([1, 1, 2, 3, 5, 7, 17])
UNARY = ("neg", "abs", "tanh", "exp", "erf", "floor", "sign")
BINARY = ("add", "sub", "mul", "maximum", "minimum")
REDUCERS = ("reduce_sum", "reduce_max", "reduce_min")


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 8) -> Graph:
    """A graph of float32 values whose magnitudes stay moderate: every large value goes through tanh first."""
    graph = Graph("random")
    values = [
        graph.add_input(f"x{i}", TensorType("float32", tuple(draw(st.lists(DIMS, min_size=1, max_size=3)))))
        for i in range(draw(st.integers(1, 3)))
    ]
    for step in range(draw(st.integers(1, max_nodes))):
        values.append(_grow(draw, graph, values, f"Node_{step}"))
    unused = [v for v in values if not v.uses and v.producer is not None]
    graph.outputs = unused or [values[-1]]
    return graph


def feeds(graph: Graph, seed: int = 0, special: bool = False) -> dict[str, np.ndarray]:
    """Random inputs of the graph: float tensors in [-2, 2], integers in [0, 3], booleans.

    special: about one element in six is a zero, an infinity, NaN, or the largest or smallest integer.
    """
    rng = np.random.default_rng(seed)
    plain = {v.name: _random(rng, v.tensor_type) for v in graph.inputs}
    return {name: _with_specials(rng, array) for name, array in plain.items()} if special else plain


def _with_specials(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "b":
        return array
    limits = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
    numbers = [0, 1, limits.min, limits.max] if limits else [0.0, -0.0, 1.0, np.nan, np.inf, -np.inf]
    chosen = rng.choice(np.array(numbers, array.dtype), array.shape)
    return np.where(rng.random(array.shape) < 1 / 6, chosen, array)


def _random(rng: np.random.Generator, type_: TensorType) -> np.ndarray:
    shape = type_.static_shape
    if type_.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if "int" in type_.dtype:
        return rng.integers(0, 4, shape).astype(type_.dtype)
    return rng.uniform(-2, 2, shape).astype(type_.dtype)


def _grow(draw: st.DrawFn, graph: Graph, values: list[Value], origin: str) -> Value:
    x = draw(st.sampled_from(values))
    choice = draw(st.sampled_from(("unary", "binary", "binary", "scalar", "reduce", "view", "view", "matmul", "move")))
    emit = _GROWERS[choice](draw, values, x)
    op, operands, attrs = emit
    operands = [graph.constant(o) if isinstance(o, np.ndarray) else o for o in operands]
    result = graph.emit(op, *operands, origins=[origin], **attrs)
    if op in ("exp", "mul", "matmul", "reduce_sum"):
        result = graph.emit("tanh", result, origins=[origin])
    return result


Emission = tuple[str, list[Any], dict[str, Any]]


def _unary(draw: st.DrawFn, values: list[Value], x: Value) -> Emission:
    return draw(st.sampled_from(UNARY)), [x], {}


def _broadcasts(a: Value, b: Value) -> bool:
    try:
        return UNKNOWN not in broadcast_shapes(a.shape, b.shape)
    except Exception as error:
        if type(error).__name__ != "IRError":
            raise
        return False


def _binary(draw: st.DrawFn, values: list[Value], x: Value) -> Emission:
    y = draw(st.sampled_from([v for v in values if _broadcasts(x, v)]))
    return draw(st.sampled_from(BINARY)), [x, y], {}


def _scalar(draw: st.DrawFn, values: list[Value], x: Value) -> Emission:
    number = draw(st.sampled_from([0.0, 1.0, -1.5, 0.5]))
    pair: list[Any] = [x, np.full(draw(st.sampled_from([(), (1,)])), number, np.float32)]
    return draw(st.sampled_from(BINARY)), pair[:: draw(st.sampled_from([1, -1]))], {}


def _reduce(draw: st.DrawFn, values: list[Value], x: Value) -> Emission:
    rank = len(x.shape)
    if rank == 0:
        return "neg", [x], {}
    axes = tuple(sorted(draw(st.sets(st.integers(0, rank - 1), min_size=1))))
    return draw(st.sampled_from(REDUCERS)), [x], {"axes": axes, "keepdims": draw(st.booleans())}


def _view(draw: st.DrawFn, values: list[Value], x: Value) -> Emission:
    shape = x.shape
    kind = draw(st.sampled_from(("reshape", "transpose", "slice", "broadcast_to")))
    if kind == "reshape":
        return kind, [x], {"shape": draw(st.sampled_from([(int(np.prod(shape)),), (1, *shape), (*shape, 1)]))}
    if kind == "transpose":
        return kind, [x], {"perm": tuple(draw(st.permutations(range(len(shape)))))}
    if kind == "broadcast_to":
        return kind, [x], {"shape": (draw(DIMS), *shape)} if len(shape) < 4 else {"shape": shape}
    steps = tuple(draw(st.sampled_from([1, 1, 2, -1])) for _ in shape)
    starts = tuple(d - 1 if s < 0 else draw(st.integers(0, d - 1)) for d, s in zip(shape, steps, strict=True))
    sizes = tuple(
        draw(st.integers(1, st_ + 1 if s < 0 else (d - st_ + s - 1) // s))
        for d, st_, s in zip(shape, starts, steps, strict=True)
    )
    return kind, [x], {"starts": starts, "steps": steps, "sizes": sizes}


def _matmul(draw: st.DrawFn, values: list[Value], x: Value) -> Emission:
    if len(x.shape) < 2:
        return "neg", [x], {}
    n = draw(st.sampled_from([1, 3, 16, 33]))
    weight = np.random.default_rng(draw(st.integers(0, 99))).uniform(-1, 1, (x.shape[-1], n)).astype(np.float32)
    return "matmul", [x, weight], {}


def _move(draw: st.DrawFn, values: list[Value], x: Value) -> Emission:
    rank = len(x.shape)
    if rank == 0:
        return "neg", [x], {}
    axis = draw(st.integers(0, rank - 1))
    if draw(st.booleans()):
        return "concat", [x, x], {"axis": axis}
    pads = tuple(draw(st.integers(0, 2)) for _ in range(rank))
    return "pad", [x], {"before": pads, "after": pads[::-1], "mode": "constant"}


_GROWERS = {
    "unary": _unary,
    "binary": _binary,
    "scalar": _scalar,
    "reduce": _reduce,
    "view": _view,
    "matmul": _matmul,
    "move": _move,
}
