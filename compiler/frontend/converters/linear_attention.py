"""Linear attention of many tokens in chunks: products of matrices in place of a step for each token.

S is the state before a chunk of C tokens, and D[t, j] the sum of the decays after token j up to token t, of which
G[t] are those from the start of the chunk. In each head:

    (I + M) U = rate * (V - exp(G) K S),  M[t, j] = rate[t] exp(D[t, j]) K[t].K[j] for j < t
    Y = scale * (exp(G) Q S + P U),       P[t, j] = exp(D[t, j]) Q[t].K[j] for j <= t
    S' = exp(G[C]) S + (exp(D[C, j]) K)^T U

Without rates, U is V. All but the products with S and U is computed for all chunks together. (Yang et al.,
"Parallelizing Linear Transformers with the Delta Rule over Sequence Length", 2024, section 3; "Gated Delta Networks",
2025, section 3.3.) I + M is inverted by halves: the inverse of [[A, 0], [B, D]] is [[A', 0], [-D' B A', D']], which
unlike a series of powers of M does not cancel where keys are alike. As where attention is masked, what later tokens of
a chunk bring is taken to be finite: 0 times NaN would be NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.compiler.ir.sizes import Size, ceil_div, is_open

from ..builder import Builder, dtype_of
from ..context import Context, Converted, Versioned
from ..functions import standard_operator
from ..symbols import is_few
from .common import widened

SINCE = 27
CHUNK = 32
EVEN = 8
"""What the length of a chunk is a multiple of."""
SMALL = 16
"""Most rows of a matrix that is inverted without being cut in halves."""
UNROLLED = 16
"""Most chunks that are written out one after the other."""
FEW = 15
"""Most tokens that are computed one by one."""


@dataclass(frozen=True)
class Heads:
    """Numbers of heads, and the scale of results. Several heads of queries share one of keys and values."""

    queries: int
    keys: int
    rule: str
    scale: float


@dataclass(frozen=True)
class Tokens:
    """Queries, keys and values of a step, [B, T, heads * D]; decays [B, T, heads], or [B, T, heads * D] for each
    element of a key; rates [B, T, heads or 1].
    """

    query: Value
    key: Value
    value: Value
    decay: Value | None
    rate: Value | None

    def between(self, ctx: Context, start: Size, stop: Size) -> Tokens:
        def part(x: Value) -> Value:
            return ctx.slice_axis(x, 1, start, stop)

        decay, rate = (None if x is None else part(x) for x in (self.decay, self.rate))
        return Tokens(part(self.query), part(self.key), part(self.value), decay, rate)


def convert_linear_attention(ctx: Context) -> Converted:
    queries, keys = ctx.attr("q_num_heads"), ctx.attr("kv_num_heads")
    operands = [ctx.optional(index) for index in range(6)]
    if any(x is None for x in operands[:3]):
        raise ctx.fail("query, key and value are required")
    scale = ctx.attr("scale", 0.0) or 1 / sqrt(max(ctx.dim(ctx.input(0), 2) // max(queries, 1), 1))
    heads = Heads(queries, keys, ctx.attr("update_rule", "gated_delta"), scale)
    tokens = Tokens(ctx.input(0), ctx.input(1), ctx.input(2), operands[4], operands[5])
    return linear_attention(ctx, heads, tokens, operands[3])


def linear_attention(ctx: Context, heads: Heads, tokens: Tokens, past: Value | None) -> tuple[Value, Value]:
    """Return results [B, T, heads * Dv] and the state [B, heads, Dk, Dv] after the last token, of the dtypes of the
    queries and of the past state.
    """
    if 0 in ctx.shape(tokens.query)[:2]:
        return _of_no_tokens(ctx, heads, tokens, past)
    if not _in_chunks(ctx, heads, tokens):
        operands = [tokens.query, tokens.key, tokens.value, past, tokens.decay, tokens.rate]
        y, after = standard_operator(
            ctx, "LinearAttention", SINCE, operands, 2, q_num_heads=heads.queries, kv_num_heads=heads.keys,
            update_rule=heads.rule, scale=heads.scale,
        )  # fmt: skip
        assert y is not None and after is not None
        return y, after
    y, after = _chunked(ctx, heads, tokens, past)
    return ctx.cast(y, dtype_of(tokens.query)), ctx.cast(after, dtype_of(tokens.query if past is None else past))


def _of_no_tokens(ctx: Context, heads: Heads, tokens: Tokens, past: Value | None) -> tuple[Value, Value]:
    """Return no results, and the state as it was: ONNX's definition cannot tell the widths of no elements. There are
    none, either, where there are no sequences.
    """
    (batch, length), dtype = ctx.shape(tokens.query)[:2], dtype_of(tokens.query)
    depth, width = (ctx.dim(x, 2) // heads.keys for x in (tokens.key, tokens.value))
    state = ctx.full((batch, heads.keys, depth, width), 0.0, dtype) if past is None else past
    return ctx.full((batch, length, heads.queries * width), 0.0, dtype), state


def _in_chunks(ctx: Context, heads: Heads, tokens: Tokens) -> bool:
    """Return whether there are tokens enough, and what their decays and rates are has no other form."""
    query, decay = tokens.query, tokens.decay
    if is_few(ctx.dim(query, 1), FEW) or dtype_of(query) == "float64":
        return False
    gated, delta = "gated" in heads.rule, "delta" in heads.rule
    if gated != (decay is not None) or delta != (tokens.rate is not None) or heads.queries % max(heads.keys, 1):
        return False
    return decay is None or ctx.dim(decay, 2) == heads.keys


@dataclass(frozen=True)
class _Chunks:
    """What a chunk brings to a step from state to state; of all chunks, [N, B, heads, ..]."""

    reads: Value
    """exp(G) Q, scaled, [.., C, Dk], with the rows of heads that share keys one after the other."""
    scores: Value
    """P, scaled, [.., C, C]."""
    writes: Value
    """exp(D[C, j]) K, [.., C, Dk]."""
    values: Value
    """[.., C, Dv]: U, as far as the state before does not count."""
    kept: Value | None
    """exp(G[C]), [.., 1, 1]."""
    corrections: Value | None
    """[.., C, Dk]: U is `values` minus the product of these with the state."""

    def operands(self) -> list[Value]:
        parts = (self.reads, self.scores, self.writes, self.values, self.kept, self.corrections)
        return [x for x in parts if x is not None]

    def replaced(self, parts: Sequence[Value]) -> _Chunks:
        """Return the same with other operands, in their order."""
        reads, scores, writes, values, *left = parts
        kept, corrections = (None if x is None else left.pop(0) for x in (self.kept, self.corrections))
        return _Chunks(reads, scores, writes, values, kept, corrections)

    def step(self, b: Builder, state: Value) -> tuple[Value, Value]:
        """Return the state after the chunk, and its results."""
        values = self.values
        if self.corrections is not None:
            values = b.sub(values, b.matmul(self.corrections, state))
        y = b.add(b.matmul(self.reads, state), b.matmul(self.scores, values))
        rank = b.rank(self.writes)
        written = b.matmul(b.swap_axes(self.writes, rank - 2, rank - 1), values)
        return b.add(state if self.kept is None else b.mul(state, self.kept), written), y


def _chunked(ctx: Context, heads: Heads, tokens: Tokens, past: Value | None) -> tuple[Value, Value]:
    batch, length = ctx.shape(tokens.query)[:2]
    size = CHUNK if is_open(length) else min(CHUNK, ceil_div(length, EVEN) * EVEN)
    count, sharing = ceil_div(length, size), heads.queries // heads.keys
    chunks = _chunks_of(ctx, heads, tokens, count, size)
    depth, width = ctx.dim(chunks.writes, -1), ctx.dim(chunks.values, -1)
    if past is None:
        state = ctx.full((batch, heads.keys, depth, width), 0.0, "float32")
    else:
        state = widened(ctx, past)
    run = _scanned if is_open(count) or count > UNROLLED else _unrolled
    after, y = run(ctx, chunks, state, count)
    rows = ctx.reshape(y, (count, batch, heads.keys, sharing, size, width))
    joined = ctx.reshape(ctx.transpose(rows, (1, 0, 4, 2, 3, 5)), (batch, count * size, heads.queries * width))
    return ctx.slice_axis(joined, 1, 0, length), after


def _chunks_of(ctx: Context, heads: Heads, tokens: Tokens, count: Size, size: int) -> _Chunks:
    sharing = heads.queries // heads.keys
    query = _cut(ctx, tokens.query, count, size, heads.keys, sharing)
    key, value = (_cut(ctx, x, count, size, heads.keys, 1) for x in (tokens.key, tokens.value))
    earlier, upto = (np.tril(np.ones((size, size), bool), k) for k in (-1, 0))
    between = cumulated = None
    if tokens.decay is not None:
        decay = _cut(ctx, tokens.decay, count, size, heads.keys, 1)  # [N, B, heads, C, 1]
        between = _sums(ctx, ctx.select(ctx.constant(earlier), decay, 0.0))
        between, cumulated = ctx.emit("exp", between), ctx.emit("exp", _sums(ctx, decay))
    scores = ctx.matmul(ctx.mul(query, heads.scale), key, trans_b=True)
    scores = _masked(ctx, scores, between, np.tile(upto, (sharing, 1)), sharing)
    reads, writes, kept = ctx.mul(query, heads.scale), key, None
    if cumulated is not None and between is not None:
        reads = ctx.mul(reads, _repeated(ctx, cumulated, sharing))
        last = ctx.slice_axis(between, 3, size - 1, size)
        writes = ctx.mul(key, ctx.swap_axes(last, 3, 4))
        kept = ctx.slice_axis(cumulated, 3, size - 1, size)
    if tokens.rate is None:
        return _Chunks(reads, scores, writes, value, kept, None)
    rate = tokens.rate
    if ctx.dim(rate, 2) != heads.keys:
        rate = ctx.broadcast_to(rate, (*ctx.shape(rate)[:2], heads.keys))
    rate = _cut(ctx, rate, count, size, heads.keys, 1)
    alike = _masked(ctx, ctx.mul(rate, ctx.matmul(key, key, trans_b=True)), between, earlier, 1)
    inverse = _inverse(ctx, alike, size)
    known = key if cumulated is None else ctx.mul(key, cumulated)
    return _Chunks(
        reads, scores, writes, ctx.matmul(inverse, ctx.mul(rate, value)), kept,
        ctx.matmul(inverse, ctx.mul(rate, known)),
    )  # fmt: skip


def _cut(ctx: Context, x: Value, count: Size, size: int, heads: int, sharing: int) -> Value:
    """Return x [B, T, heads * sharing * D] in chunks, float32 [N, B, heads, sharing * C, D]; zeros after the last
    token, which change no state.
    """
    batch, length, width = ctx.shape(x)
    padded = ctx.pad(widened(ctx, x), (0, 0, 0), (0, count * size - length, 0))
    depth = width // (heads * sharing)
    parts = ctx.reshape(padded, (batch, count, size, heads, sharing, depth))
    return ctx.reshape(ctx.transpose(parts, (1, 0, 3, 4, 2, 5)), (count, batch, heads, sharing * size, depth))


def _sums(ctx: Context, x: Value) -> Value:
    """Return the running sums along the tokens of a chunk."""
    return ctx.emit("cumulative", x, axis=3, reducer="sum", exclusive=False, reverse=False)


def _masked(ctx: Context, x: Value, between: Value | None, mask: np.ndarray, sharing: int) -> Value:
    """Return x [.., sharing * C, C], decayed, where the mask is set, and zero elsewhere."""
    if between is not None:
        x = ctx.mul(x, _repeated(ctx, between, sharing))
    return ctx.select(ctx.constant(mask), x, 0.0)


def _repeated(ctx: Context, x: Value, sharing: int) -> Value:
    """Return [.., sharing * C, n]: the rows once for each of the heads that share keys."""
    if sharing == 1:
        return x
    *front, rows, columns = ctx.shape(x)
    spread = ctx.broadcast_to(ctx.expand_dims(x, (3,)), (*front, sharing, rows, columns))
    return ctx.reshape(spread, (*front, sharing * rows, columns))


def _inverse(ctx: Context, lower: Value, size: int) -> Value:
    """Return the inverse of I + lower, of matrices [.., size, size] that are zero but below their diagonals."""
    if size <= SMALL or size % 2:
        return _small_inverse(ctx, lower, size)
    half, first = size // 2, ctx.rank(lower) - 2

    def block(row: int, column: int) -> Value:
        rows = ctx.slice_axis(lower, first, row * half, (row + 1) * half)
        return ctx.slice_axis(rows, first + 1, column * half, (column + 1) * half)

    both = ctx.concat([ctx.expand_dims(block(i, i), (first,)) for i in (0, 1)], first)
    upper, other = (ctx.squeeze(part, (first,)) for part in ctx.split(_inverse(ctx, both, half), first, [1, 1]))
    corner = ctx.emit("neg", ctx.matmul(ctx.matmul(other, block(1, 0)), upper))
    zeros = ctx.mul(corner, 0.0)
    rows = [ctx.concat(pair, first + 1) for pair in ((upper, zeros), (corner, other))]
    return ctx.concat(rows, first)


def _small_inverse(ctx: Context, lower: Value, size: int) -> Value:
    """Return the same, by the blocks of two, four, ... rows on the diagonal."""
    at = np.arange(size)
    rows, columns = at[:, None], at
    inverse, half = ctx.constant(np.eye(size, dtype=np.float32)), 1
    while half < size:
        same = rows // (2 * half) == columns // (2 * half)
        below = same & (rows // half % 2 == 1) & (columns // half % 2 == 0)
        block = ctx.select(ctx.constant(below), lower, 0.0)
        if half > 1:
            block = ctx.matmul(ctx.matmul(inverse, block), inverse)
        inverse = ctx.sub(inverse, block)
        half *= 2
    return inverse


def _unrolled(ctx: Context, chunks: _Chunks, state: Value, count: int) -> tuple[Value, Value]:
    """Return the state after the last chunk, and the results of all, [N, ..]."""
    results = []
    for at in range(count):
        parts = [ctx.squeeze(ctx.slice_axis(x, 0, at, at + 1), (0,)) for x in chunks.operands()]
        state, y = chunks.replaced(parts).step(ctx, state)
        results.append(ctx.expand_dims(y, (0,)))
    return state, ctx.concat(results, 0)


def _scanned(ctx: Context, chunks: _Chunks, state: Value, count: Size) -> tuple[Value, Value]:
    """Return the same, by a loop."""
    body = Graph(f"{ctx.name}.chunk")
    inner = Builder(body, ctx.origins)
    before, operands = body.add_input("state", state.type), chunks.operands()
    parts = [body.add_input("part", TensorType(dtype_of(x), ctx.shape(x)[1:])) for x in operands]
    after, y = chunks.replaced(parts).step(inner, before)
    body.outputs = [after, y]
    attrs = {
        "body": body, "num_state": 1, "num_scanned": len(parts), "input_axes": (0,) * len(parts),
        "input_reverse": (False,) * len(parts), "output_axes": (0,), "output_reverse": (False,),
    }  # fmt: skip
    types = [state.type, TensorType("float32", (count, *inner.shape(y)))]
    last, results = ctx.emit_many("scan", [state, *operands], attrs, types)
    return last, results


CONVERTERS: Mapping[str, Sequence[Versioned]] = {"LinearAttention": [(SINCE, convert_linear_attention)]}
