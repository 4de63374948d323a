"""A recommender with open batch, whose sums of embeddings are loops, and a tagger of sentences of open length."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, TensorProto, helper

from tests.open_models.fixture import OpenFixture
from tests.open_models.sizes import Feeds, Sizes
from tests.open_models.styles import INT64, Script, Style

FIELDS, ITEMS, BAG, WIDTH, WORDS, HIDDEN, TAGS = 3, 20, 4, 8, 50, 6, 5
FLOAT, INTEGER, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
info, node = helper.make_tensor_value_info, helper.make_node


# --- DLRM -------------------------------------------------------------------------------------------------------------


def recommender(style: type[Style]) -> OpenFixture:
    """DLRM: sums of BAG embeddings in each of FIELDS, an MLP of the numbers, dot products of pairs, an MLP."""
    b = style(seed=8)
    dense = b.op("Relu", _gemm(b, "numbers", 13, WIDTH))
    offsets = None if style is Script else _offsets_for_all(b)
    vectors = [b.op("Unsqueeze", dense, b.ints(1))]
    for field in range(FIELDS):
        table = b.weight(ITEMS, WIDTH, scale=0.5)
        items = b.op("Gather", "items", b.constant(np.array(field, np.int64)), axis=1)
        sums = _bags_by_scan(b, items, table) if offsets is None else _bags_by_sequence(b, items, table, offsets)
        vectors.append(b.op("Unsqueeze", sums, b.ints(1)))
    stacked = b.op("Concat", *vectors, axis=1)
    dots = b.op("MatMul", stacked, b.op("Transpose", stacked, perm=[0, 2, 1]))
    pairs = _pairs_by_rows(b, dots) if offsets is None else _pairs(b, dots)
    count = (FIELDS + 1) * FIELDS // 2
    hidden = b.op("Relu", _gemm(b, b.op("Concat", dense, pairs, axis=1), WIDTH + count, 16))
    b.nodes.append(node("Sigmoid", [_gemm(b, hidden, 16, 1)], ["click"], name="/click"))
    inputs = [info("numbers", FLOAT, ["batch", 13]), info("items", INTEGER, ["batch", FIELDS, BAG])]
    model = b.model(f"dlrm_{b.name}", inputs, [info("click", FLOAT, ["batch", 1])], b.opset)
    return OpenFixture(model, {"batch": (1, 40)}, _clicks)


def _gemm(b: Style, x: str, cin: int, cout: int) -> str:
    return b.op("Gemm", x, b.weight(cout, cin, scale=cin**-0.5), b.weight(cout, scale=0.1), transB=1)


def _bags_by_scan(b: Style, items: str, table: str) -> str:
    """One turn of the loop for each row: a slice between two offsets, its embeddings, their sum."""
    end = b.op("ReduceProd", b.op("Shape", items), keepdims=0)
    end, step = (b.op("Cast", size, to=INTEGER) for size in (end, b.size(items, 1)))
    starts = b.op("Range", b.constant(np.int64(0)), end, step)
    flat = b.op("Reshape", items, b.ints(-1))
    bounds = b.op("Concat", starts, b.op("Unsqueeze", b.size(flat, 0), b.ints(0)), axis=0)
    ends = b.op("Slice", bounds, b.ints(1), b.ints(INT64.max), b.ints(0), b.ints(1))
    zero = b.ints(0)
    n = f"{flat}_"
    body = helper.make_graph(
        [
            node("Gather", [bounds, n + "turn"], [n + "first"], axis=0),
            node("Gather", [ends, n + "turn"], [n + "last"], axis=0),
            node("Unsqueeze", [n + "first", zero], [n + "start"]), node("Unsqueeze", [n + "last", zero], [n + "end"]),
            node("Slice", [flat, n + "start", n + "end", zero], [n + "bag"]),
            node("Gather", [table, n + "bag"], [n + "embedded"], axis=0),
            node("ReduceSum", [n + "embedded", zero], [n + "sum"], keepdims=0),
            node("Cast", [n + "go"], [n + "on"], to=BOOL),
        ],
        "bag", [info(n + "turn", INTEGER, []), info(n + "go", BOOL, [])],
        [info(n + "on", BOOL, []), info(n + "sum", FLOAT, [WIDTH])],
    )  # fmt: skip
    return b.op("Loop", b.size(ends, 0), b.constant(np.array(True)), body=body)


def _offsets_for_all(b: Style) -> str:
    end = b.op("Mul", b.constant(np.int64(BAG)), b.op("Squeeze", b.size("numbers", 0)))
    return b.op("Range", b.constant(np.int64(0)), end, b.constant(np.int64(BAG)))


def _bags_by_sequence(b: Style, items: str, table: str, offsets: str) -> str:
    """A loop without a number of turns, which appends the sum of each bag to a sequence; empty bags are zeros."""
    flat = b.op("Reshape", items, b.ints(-1))
    ones = b.op("Expand", b.constant(np.ones(1, np.float32)), b.op("Shape", flat, start=0))
    rows = b.op("Mul", b.op("Gather", table, flat), b.op("Unsqueeze", ones, b.ints(1)))
    bounds = b.op("Concat", offsets, b.op("Shape", flat), axis=0)
    count = b.op("Size", offsets)
    empty, zero = b.op("SequenceEmpty"), b.constant(np.int64(0))
    body = _sequence_body(b, bounds, rows, count)
    turns = b.op("Loop", "", b.op("Less", zero, count), zero, empty, outputs=2, body=body)
    return b.op("ConcatFromSequence", turns[1], axis=0)


def _sequence_body(b: Style, bounds: str, rows: str, count: str) -> GraphProto:
    n = f"{rows}_"
    zeros, one, flat, axis = b.constant(np.zeros((1, WIDTH), np.float32)), b.ints(1), b.ints(-1), b.ints(0)
    nodes = [
        node("Reshape", [n + "index", flat], [n + "at"]), node("Add", [n + "at", one], [n + "next"]),
        node("Slice", [bounds, n + "at", n + "next"], [n + "start"]), node("Add", [n + "next", one], [n + "beyond"]),
        node("Slice", [bounds, n + "next", n + "beyond"], [n + "end"]),
        node("Equal", [n + "start", n + "end"], [n + "empty"]),
    ]  # fmt: skip
    nothing = helper.make_graph([node("Identity", [zeros], [n + "none"])], "empty", [], [info(n + "none", FLOAT, None)])
    part = [
        node("Slice", [rows, n + "start", n + "end"], [n + "bag"]),
        node("ReduceSum", [n + "bag", axis], [n + "sum"], keepdims=1),
    ]
    something = helper.make_graph(part, "bag", [], [info(n + "sum", FLOAT, None)])
    nodes += [
        node("If", [n + "empty"], [n + "row"], then_branch=nothing, else_branch=something),
        node("SequenceInsert", [n + "sums", n + "row"], [n + "more"]),
        node("Squeeze", [one], [n + "one"]), node("Add", [n + "index", n + "one"], [n + "following"]),
        node("Less", [n + "following", count], [n + "on"]),
    ]  # fmt: skip
    before, after = (helper.make_tensor_sequence_value_info(n + name, FLOAT, None) for name in ("sums", "more"))
    return helper.make_graph(
        nodes, "bags",
        [info(n + "turn", INTEGER, []), info(n + "go", BOOL, []), info(n + "index", INTEGER, []), before],
        [info(n + "on", BOOL, []), info(n + "following", INTEGER, []), after],
    )  # fmt: skip


def _pairs(b: Style, dots: str) -> str:
    """The part below the diagonal, as one row."""
    places = b.constant(np.stack(np.tril_indices(FIELDS + 1, -1), -1).astype(np.int64))
    found = b.op("GatherND", b.op("Transpose", dots, perm=[1, 2, 0]), places, batch_dims=0)
    return b.op("Transpose", found, perm=[1, 0])


def _pairs_by_rows(b: Style, dots: str) -> str:
    rows, columns = (b.constant(part.astype(np.int64)) for part in np.tril_indices(FIELDS + 1, -1))
    shape = b.op("Shape", dots)
    batch, width = (b.op("Gather", shape, b.ints(axis), axis=0) for axis in (0, 2))
    flat = b.op("Flatten", b.op("Transpose", dots, perm=[1, 2, 0]), axis=2)
    places = b.op("Add", columns, b.op("Mul", rows, width))
    found = b.op("Reshape", b.op("Gather", flat, places, axis=0), b.op("Concat", b.ints(-1), batch, axis=0))
    whole = b.op("Concat", batch, b.op("Shape", places), axis=0)
    return b.op("Reshape", b.op("Transpose", found, perm=[1, 0]), whole)


def _clicks(sizes: Sizes, random: np.random.Generator) -> Feeds:
    batch = sizes["batch"]
    return {
        "numbers": random.standard_normal((batch, 13), np.float32),
        "items": random.integers(0, ITEMS, (batch, FIELDS, BAG)),
    }


# --- LSTM -------------------------------------------------------------------------------------------------------------


def tagger(style: type[Style]) -> OpenFixture:
    """Two bidirectional layers, whose first states are zeros of the batch's size, and scores of tags."""
    b = style(seed=9)
    x = b.op("Gather", b.weight(WORDS, WIDTH, scale=0.5), "words", axis=0)
    batch = b.size(x, 0) if style is Script else b.size("words", 0)
    if style is Script:
        zeros = b.op("ConstantOfShape", b.vector(4, batch, HIDDEN))
    else:
        zeros = b.op("Expand", b.constant(np.float32(0)), b.vector(4, batch, HIDDEN))
    x = b.op("Transpose", x, perm=[1, 0, 2])
    for layer, cin in enumerate((WIDTH, 2 * HIDDEN)):
        first = b.op("Slice", zeros, b.ints(2 * layer), b.ints(2 * layer + 2), b.ints(0))
        shapes = ((2, 4 * HIDDEN, cin), (2, 4 * HIDDEN, HIDDEN), (2, 8 * HIDDEN))
        weights = [b.weight(*shape, scale=0.4) for shape in shapes]
        y = b.op("LSTM", x, *weights, "", first, first, hidden_size=HIDDEN, direction="bidirectional")
        x = _both_directions(b, b.op("Transpose", y, perm=[0, 2, 1, 3]))
    scores = b.op(
        "Add", b.op("MatMul", b.op("Transpose", x, perm=[1, 0, 2]), b.weight(2 * HIDDEN, TAGS)), b.weight(TAGS)
    )
    b.nodes.append(node("LogSoftmax", [scores], ["scores"], name="/scores", axis=-1))
    words, tags = info("words", INTEGER, ["batch", "length"]), info("scores", FLOAT, ["batch", "length", TAGS])
    ranges = {"batch": (1, 6), "length": (1, 40)}
    return OpenFixture(b.model(f"tagger_{b.name}", [words], [tags], b.opset), ranges, _words)


def _both_directions(b: Style, x: str) -> str:
    """[T, B, 2, HIDDEN] as [T, B, 2 * HIDDEN]."""
    if isinstance(b, Script):
        return b.op("Reshape", x, b.ints(0, 0, -1))
    shape = b.op("Shape", x, start=0)
    sizes = [b.op("Slice", shape, b.ints(axis), b.ints(axis + 1)) for axis in range(4)]
    last = b.op("Reshape", b.op("Mul", sizes[2], sizes[3]), b.ints(-1))
    return b.op("Reshape", x, b.op("Concat", sizes[0], sizes[1], last, axis=0))


def _words(sizes: Sizes, random: np.random.Generator) -> Feeds:
    return {"words": random.integers(0, WORDS, (sizes["batch"], sizes["length"]))}
