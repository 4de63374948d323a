"""Chains of dependent kernels, small enough for the emulated device."""

from __future__ import annotations

from tilestitch.compiler.ir import Graph, TensorType, Value


def operand(graph: Graph, name: str, *shape: int, dtype: str = "float32") -> Value:
    return graph.add_input(name, TensorType(dtype, shape))


def mlp(rows: int, width: int, hidden: int, dtype: str = "float32") -> Graph:
    """Two GEMMs, the second one of what the first one stores."""
    graph = Graph("mlp")
    x, up, down = (
        operand(graph, name, *shape, dtype=dtype)
        for name, shape in (("x", (rows, width)), ("up", (width, hidden)), ("down", (hidden, width)))
    )
    graph.outputs = [graph.emit("matmul", graph.emit("tanh", graph.emit("matmul", x, up)), down)]
    return graph


def normalised_mlp(rows: int, width: int, hidden: int, dtype: str = "float32") -> Graph:
    """A GEMM, rows that are normalised, and a GEMM of these."""
    graph = Graph("normalised_mlp")
    x, up, down = (
        operand(graph, name, *shape, dtype=dtype)
        for name, shape in (("x", (rows, width)), ("up", (width, hidden)), ("down", (hidden, width)))
    )
    inner = graph.emit("matmul", x, up)
    total = graph.emit("reduce_sum", graph.emit("abs", inner), axes=(1,), keepdims=True)
    graph.outputs = [graph.emit("matmul", graph.emit("div", inner, total), down)]
    return graph


def attention(tokens: int, heads: int, width: int, dtype: str = "float32") -> Graph:
    """A projection to queries, keys and values in one matrix, attention of its slices, and a projection of that."""
    graph = Graph("attention")
    columns = heads * width
    x = operand(graph, "x", tokens, 24, dtype=dtype)
    first = graph.emit("matmul", x, operand(graph, "qkv", 24, 3 * columns, dtype=dtype))
    query, key, value = (_heads(graph, first, number, heads, width) for number in range(3))
    scores = graph.emit("matmul", query, key, trans_b=True)
    largest = graph.emit("reduce_max", scores, axes=(2,), keepdims=True)
    weights = graph.emit("exp", graph.emit("sub", scores, largest))
    weights = graph.emit("div", weights, graph.emit("reduce_sum", weights, axes=(2,), keepdims=True))
    merged = graph.emit("transpose", graph.emit("matmul", weights, value), perm=(1, 0, 2))
    flat = graph.emit("reshape", merged, shape=(tokens, columns))
    graph.outputs = [graph.emit("matmul", flat, operand(graph, "out", columns, 24, dtype=dtype))]
    return graph


def _heads(graph: Graph, x: Value, number: int, heads: int, width: int) -> Value:
    """A third of the columns, head by head."""
    tokens, columns = x.shape[0], heads * width
    part = graph.emit("slice", x, starts=(0, number * columns), sizes=(tokens, columns), steps=(1, 1))
    return graph.emit("transpose", graph.emit("reshape", part, shape=(tokens, heads, width)), perm=(1, 0, 2))


def convolutions(count: int, channels: int, edge: int, dtype: str = "float32") -> Graph:
    """3x3 convolutions one after the other, each reading a pixel beyond its tiles."""
    graph = Graph("convolutions")
    x = operand(graph, "x", 1, edge, edge, channels, dtype=dtype)
    for number in range(count):
        w = operand(graph, f"w{number}", 3, 3, channels, channels, dtype=dtype)
        x = graph.emit("conv", x, w, strides=(1, 1), before=(1, 1), after=(1, 1), dilations=(1, 1), groups=1,
                       layout="NXC")  # fmt: skip
        x = graph.emit("tanh", x)
    graph.outputs = [x]
    return graph
