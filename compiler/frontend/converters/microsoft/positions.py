"""Positions of tokens: rotary embeddings of given or implied ones, and biases of scores by their differences, as ONNX
Runtime's optimiser emits these for T5.
"""

from collections.abc import Mapping

import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.sizes import bounds_of

from ...builder import Builder
from ...context import Context
from ..attention import joined_heads, rotate
from .operator import Operator


def by_position(b: Builder, table: Value, positions: Value) -> Value:
    """Return the rows of a table [positions, pairs] at positions [B or 1, S], as [B or 1, 1, S, pairs]."""
    return b.expand_dims(b.gather(table, positions, 0), (1,))


def rotary_embedding(ctx: Context) -> Value:
    """Convert RotaryEmbedding. Heads are as wide as the tables, unless `num_heads` gives their number."""
    x, positions, cos, sin = (ctx.input(i) for i in range(4))
    shape, rotated = ctx.shape(x), 2 * ctx.dim(cos, 1)
    stated = ctx.attr("rotary_embedding_dim", 0)
    if stated and stated != rotated:
        raise ctx.fail(f"rotary_embedding_dim is {stated}, but the tables hold {rotated // 2} pairs; correct the model")
    heads = x if len(shape) == 4 else _split(ctx, x, rotated)
    if ctx.rank(positions) == 1:  # position of the first token
        positions = ctx.expand_dims(ctx.add(positions, ctx.iota(ctx.dim(heads, 2))), (0,))
    cos, sin = by_position(ctx, cos, positions), by_position(ctx, sin, positions)
    turned = rotate(ctx, heads, cos, sin, rotated, bool(ctx.attr("interleaved", 0)))
    return turned if len(shape) == 4 else joined_heads(ctx, turned)


def mrope(ctx: Context) -> Value:
    """Convert MRotaryEmbedding: three positions a token, of which each pair of channels takes one."""
    x, positions, cos, sin = (ctx.input(i) for i in range(4))
    rotated = 2 * ctx.dim(cos, 1)
    stated = ctx.attr("rotary_embedding_dim", 0)
    if stated and stated != rotated:
        raise ctx.fail(f"rotary_embedding_dim is {stated}, but the tables hold {rotated // 2} pairs; correct the model")
    heads = x if ctx.rank(x) == 4 else _split(ctx, x, rotated)
    streams = ctx.constant(_streams(ctx, rotated // 2), "int32")
    cos, sin = (_of_streams(ctx, table, positions, streams) for table in (cos, sin))
    turned = rotate(ctx, heads, cos, sin, rotated, bool(ctx.attr("interleaved", 0)))
    return turned if ctx.rank(x) == 4 else joined_heads(ctx, turned)


def _streams(ctx: Context, pairs: int) -> np.ndarray:
    """Return which of the three positions each pair takes, by `mrope_section` and `mrope_layout`."""
    sections, layout = ctx.attr("mrope_section"), ctx.attr("mrope_layout", 0)
    if len(sections) != 3 or min(sections) < 0 or sum(sections) != pairs or layout not in (0, 1):
        raise ctx.fail(
            f"mrope_section {list(sections)} does not divide {pairs} pairs into three, or mrope_layout {layout} is "
            "neither 0 nor 1; correct the model"
        )
    if layout == 0:
        return np.repeat(np.arange(3), sections)
    streams = np.zeros(pairs, int)
    for stream in (1, 2):
        streams[stream : sections[stream] * 3 : 3] = stream
    return streams


def _of_streams(ctx: Context, table: Value, positions: Value, streams: Value) -> Value:
    """Return the entries of a table [positions, pairs] at positions [3, B, S], as [B, 1, S, pairs]."""
    temporal, height, width = (
        ctx.squeeze(part, (0,)) for part in ctx.split(ctx.gather(table, positions, 0), 0, [1, 1, 1])
    )
    chosen = ctx.select(ctx.equal(streams, 1), height, ctx.select(ctx.equal(streams, 2), width, temporal))
    return ctx.expand_dims(chosen, (1,))


def _split(ctx: Context, x: Value, rotated: int) -> Value:
    batch, length, width = ctx.shape(x)
    heads = ctx.attr("num_heads", 0) or width // max(rotated, 1)
    if heads <= 0 or width % heads or width // heads < rotated:
        raise ctx.fail(f"{heads} heads of at least {rotated} elements do not make up the width {width}; set num_heads")
    return ctx.transpose(ctx.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


FARTHEST = 1 << 16
"""Largest distance for which biases are tabulated; T5 has 128."""


def relative_position_bias(ctx: Context) -> Value:
    """Return the scores' bias [1, heads, S, T] from a table that is declared [buckets, heads] and holds [heads,
    buckets].

    Beyond `max_distance` all keys share the last bucket, so biases up to that distance, or up to the largest one that
    occurs, suffice.
    """
    table, ((rows,), (columns,)) = ctx.input(0), (ctx.sizes_of(1), ctx.sizes_of(2))
    most, buckets, heads = ctx.attr("max_distance"), ctx.dim(table, 0), ctx.dim(table, 1)
    two_sided = bool(ctx.attr("is_bidirectional", 0))
    exact = buckets // (4 if two_sided else 2)
    if exact < 1 or most <= exact:
        raise ctx.fail(
            f"max_distance is {most}, and {buckets} buckets have one for each of {exact} near keys; correct it"
        )
    far = min(most, max(bounds_of(rows)[1], bounds_of(columns)[1]))
    if far > FARTHEST:
        raise ctx.fail(
            f"max_distance is {most} and the lengths may be as large, but biases are made of {FARTHEST} distances at "
            "most; correct it, or give the lengths smaller ranges (--dim NAME=LOW..HIGH)"
        )
    known = bucket_of(np.arange(-far, far + 1), buckets, most, two_sided)
    by_distance = ctx.gather(ctx.reshape(table, (heads, buckets)), ctx.constant(known, "int64"), 1)
    distance = ctx.sub(ctx.iota(columns), ctx.reshape(ctx.iota(rows), (rows, 1)))
    bias = ctx.gather(by_distance, ctx.add(ctx.clamp(distance, -far, far), far), 1)
    return ctx.expand_dims(bias, (0,))


def bucket_of(distance: np.ndarray, buckets: int, most: int, two_sided: bool) -> np.ndarray:
    """Return the bucket of each distance: one per distance for near keys, then ones that grow logarithmically; in
    float32, as in ONNX Runtime. Later keys have half of the buckets, or the first one.
    """
    first = np.zeros_like(distance)
    if two_sided:
        buckets //= 2
        first = np.where(distance > 0, buckets, 0)
        distance = np.abs(distance)
    else:
        distance = np.maximum(-distance, 0)
    exact = buckets // 2
    share = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact)) / np.log(np.float32(most / exact))
    far = exact + (share * np.float32(buckets - exact)).astype(np.int64)
    return first + np.where(distance < exact, distance, np.minimum(far, buckets - 1))


OPERATORS: Mapping[str, Operator] = {
    "RotaryEmbedding": Operator(
        rotary_embedding, "input position_ids cos_cache sin_cache", "interleaved num_heads rotary_embedding_dim",
        "output", only={"is_packed_batching": 0, "scale": 1.0},
    ),
    "MRotaryEmbedding": Operator(
        mrope, "input position_ids cos_cache sin_cache",
        "interleaved mrope_layout mrope_section num_heads rotary_embedding_dim", "output",
        only={"is_packed_batching": 0, "scale": 1.0},
    ),
    "RelativePositionBias": Operator(
        relative_position_bias, "bias_table query_length key_length", "is_bidirectional max_distance", "output"
    ),
}  # fmt: skip
