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


def attention(tokens: int, heads: int, width: int, dtype: str = "float32", features: int = 24) -> Graph:
    """A projection to queries, keys and values in one matrix, attention of its slices, and a projection of that.
    features: of a token before and after.
    """
    graph = Graph("attention")
    columns = heads * width
    x = operand(graph, "x", tokens, features, dtype=dtype)
    first = graph.emit("matmul", x, operand(graph, "qkv", features, 3 * columns, dtype=dtype))
    query, key, value = (_heads(graph, first, number, heads, width) for number in range(3))
    scores = graph.emit("matmul", query, key, trans_b=True)
    largest = graph.emit("reduce_max", scores, axes=(2,), keepdims=True)
    weights = graph.emit("exp", graph.emit("sub", scores, largest))
    weights = graph.emit("div", weights, graph.emit("reduce_sum", weights, axes=(2,), keepdims=True))
    merged = graph.emit("transpose", graph.emit("matmul", weights, value), perm=(1, 0, 2))
    flat = graph.emit("reshape", merged, shape=(tokens, columns))
    graph.outputs = [graph.emit("matmul", flat, operand(graph, "out", columns, features, dtype=dtype))]
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


def narrow_mlp(rows: int, hidden: int, columns: int) -> Graph:
    """Two GEMMs whose results have so many elements; the first one sums up little."""
    graph = Graph("narrow_mlp")
    x, up, down = (operand(graph, *given) for given in (("x", rows, 8), ("up", 8, hidden), ("down", hidden, columns)))
    inner = graph.emit("tanh", graph.emit("matmul", x, up))
    graph.outputs = [graph.emit("matmul", inner, down)]
    return graph


def gated_mlp(rows: int, width: int, hidden: int, columns: int, dtype: str = "float32") -> Graph:
    """Llama's: two GEMMs of the same rows, their elements multiplied, and a GEMM of that."""
    graph = Graph("gated_mlp")
    x, gate, up, down = (
        operand(graph, name, *shape, dtype=dtype)
        for name, shape in (
            ("x", (rows, width)), ("gate", (width, hidden)), ("up", (width, hidden)), ("down", (hidden, columns))
        )
    )  # fmt: skip
    inner = graph.emit("mul", graph.emit("tanh", graph.emit("matmul", x, gate)), graph.emit("matmul", x, up))
    graph.outputs = [graph.emit("matmul", inner, down)]
    return graph


def halved_mlp(rows: int, width: int, hidden: int, dtype: str = "float32") -> Graph:
    """A GEMM of twice the hidden width, and one of the first half of its columns."""
    graph = Graph("halved_mlp")
    x, up, down = (
        operand(graph, name, *shape, dtype=dtype)
        for name, shape in (("x", (rows, width)), ("up", (width, 2 * hidden)), ("down", (hidden, width)))
    )
    inner = graph.emit("tanh", graph.emit("matmul", x, up))
    half = graph.emit("slice", inner, starts=(0, 0), sizes=(rows, hidden), steps=(1, 1))
    graph.outputs = [graph.emit("matmul", half, down)]
    return graph


def layer(
    tokens: int, heads: int, width: int, hidden: int, *, gated: bool, dtype: str = "float32", features: int = 24
) -> Graph:
    """A layer of a transformer: attention and an MLP, each added to what it reads. gated: as Llama has it."""
    graph = attention(tokens, heads, width, dtype, features)
    (merged,) = graph.outputs
    x = graph.emit("add", merged, graph.inputs[0])
    graph.name, columns = "layer", x.shape[1]
    up = graph.emit("matmul", _normalised(graph, x), operand(graph, "up", columns, hidden, dtype=dtype))
    inner = graph.emit("tanh", up)
    if gated:
        inner = graph.emit("mul", inner, graph.emit("matmul", x, operand(graph, "gate", columns, hidden, dtype=dtype)))
    down = operand(graph, "down", hidden, columns, dtype=dtype)
    graph.outputs = [graph.emit("add", graph.emit("matmul", inner, down), x)]
    return graph


def _normalised(graph: Graph, x: Value) -> Value:
    total = graph.emit("reduce_sum", graph.emit("abs", x), axes=(1,), keepdims=True)
    return graph.emit("div", x, total)
