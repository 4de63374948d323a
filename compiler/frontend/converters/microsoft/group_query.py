"""Grouped-query attention with a cache: the form in which exporters of language models write decoders.

A cache has room for a number of tokens; `seqlens_k` gives the number in it at run time. Where that is known at compile
time, as for a prompt, only concatenations and constant masks remain. With open sizes, cached and new tokens are
selected by their positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.claims import may_be_equal
from tilestitch.compiler.ir.sizes import Size, is_open, largest
from tilestitch.compiler.ir.types import to_numpy_dtype

from ...builder import dtype_of
from ...context import Context, Converted
from ...found_sizes import Element, entries_of, sizes_of
from ...symbols import sizes_are_symbols
from ..attention import attention_scores, joined_heads, rotate, weighted_values
from ..common import outputs_named, widened
from ..indexing import is_donated, stored_rows
from ..normalization import inverse_deviation
from ..reductions import softmax
from .caches import CacheCodes, codes_of, window_of
from .operator import Operator
from .positions import by_position


@dataclass(frozen=True)
class Place:
    """Position of this step's tokens among all: token s of sequence b is at position start[b] + s."""

    batch: Size
    rows: Size
    """Number of tokens of this step."""
    total: Size
    """Keys that queries may see, in the longest sequence."""
    room: Size
    """Capacity, in tokens, of the output cache."""
    start: int | Value
    """Tokens that were in the cache before: one number for all sequences, or int32 [B]."""

    def positions(self, ctx: Context, dtype: str = "int32") -> Value:
        """Return the positions, [B, S], or [1, S] where all sequences are equal."""
        step = ctx.expand_dims(ctx.iota(self.rows, dtype), (0,))
        if isinstance(self.start, int):
            return ctx.add(step, self.start)
        return ctx.add(step, ctx.reshape(ctx.cast(self.start, dtype), (self.batch, 1)))


def group_query_attention(ctx: Context) -> Converted:
    q, k, v = _heads(ctx)
    place = _place(ctx, q)
    if ctx.optional(14) is not None or ctx.optional(15) is not None:
        q, k = _normalised(ctx, q, 14, "q_norm_epsilon"), _normalised(ctx, k, 15, "k_norm_epsilon")
    if ctx.attr("do_rotary", 0):
        q, k = _rotated(ctx, place, q, k)
    stored = _stored(ctx, k, v)
    k, v = (new if codes is None else codes.encoded(ctx, new) for codes, new in zip(stored, (k, v), strict=True))
    if ctx.attr("sliding_window_cache", 0):
        return _windowed(ctx, place, q, k, v, stored)
    keys, values = _cache(ctx, place, 3, k), _cache(ctx, place, 4, v)
    seen_keys, seen_values = (ctx.slice_axis(x, 2, 0, place.total) for x in (keys, values))
    bias = ctx.optional(10)
    if bias is not None and ctx.dim(bias, 3) not in (1, place.total):
        bias = ctx.slice_axis(bias, 3, 0, place.total)
    scores = _scores(ctx, q, seen_keys, stored[0], bias, _visible(ctx, place))
    weights = _weights(ctx, scores)
    y = _result(ctx, weights, seen_values, stored[1])
    return outputs_named(ctx, [y, keys, values, [None, scores, weights][_shown(ctx)]])


def _stored(ctx: Context, k: Value, v: Value) -> tuple[CacheCodes | None, CacheCodes | None]:
    """Return how the caches of keys and of values store their tokens; None for as they are."""
    kinds = [ctx.attr(name, "NONE") for name in ("k_quant_type", "v_quant_type")]
    if kinds[0] != kinds[1]:
        raise ctx.fail(f"k_quant_type is {kinds[0]} and v_quant_type {kinds[1]}, which must be the same; correct them")
    return codes_of(ctx, "k_quant_type", 12, k), codes_of(ctx, "v_quant_type", 13, v)


def _windowed(
    ctx: Context, place: Place, q: Value, k: Value, v: Value, stored: tuple[CacheCodes | None, CacheCodes | None]
) -> Converted:
    """Compute attention with a cache that keeps only the last tokens."""
    if ctx.optional(3) is None:
        raise ctx.fail("sliding_window_cache is 1, which needs past_key and past_value; correct the model")
    lengths = ctx.add(ctx.reshape(ctx.input(5), (place.batch,)), 1)
    window = window_of(ctx, place.batch, place.rows, place.start, lengths)
    pasts = [_past(ctx, index, new) for index, new in ((3, k), (4, v))]
    keys, values = (window.rows_of(ctx, past, new) for past, new in zip(pasts, (k, v), strict=True))
    bias = ctx.optional(10)
    if bias is not None:
        bias = window.biases_of(ctx, bias, place.total)
    visible = window.visible(ctx, place.positions(ctx), ctx.attr("local_window_size"))
    weights = _weights(ctx, _scores(ctx, q, keys, stored[0], bias, visible))
    y = _result(ctx, weights, values, stored[1])
    kept = ctx.expand_dims(window.kept, (1, 3))
    presents = [ctx.select(kept, _by_token(ctx, rows, window.sources), ctx.like(0, rows)) for rows in (keys, values)]
    return outputs_named(ctx, [y, *presents])


def _shown(ctx: Context) -> int:
    shown: int = ctx.attr("qk_output", 0)
    if shown not in (0, 1, 2):
        raise ctx.fail(f"qk_output is {shown}, none of 0, 1 and 2; correct the model")
    return shown


def _heads(ctx: Context) -> tuple[Value, Value, Value]:
    """Return queries [B, heads, S, D], keys and values [B, kv_heads, S, D], from three operands or one."""
    q, k, v = ctx.input(0), ctx.optional(1), ctx.optional(2)
    q_heads, kv_heads = ctx.attr("num_heads"), ctx.attr("kv_num_heads")
    if min(q_heads, kv_heads) <= 0 or q_heads % kv_heads:
        raise ctx.fail(f"num_heads={q_heads} is no multiple of kv_num_heads={kv_heads}; correct the model")
    if k is None or v is None:
        depth, left = divmod(ctx.dim(q, 2), q_heads + 2 * kv_heads)
        if left or k is not None or v is not None:
            raise ctx.fail(f"query {q.type} does not hold {q_heads} + 2 * {kv_heads} heads; correct the model")
        q, k, v = ctx.split(q, 2, [heads * depth for heads in (q_heads, kv_heads, kv_heads)])
    if ctx.dim(k, 1) != ctx.dim(q, 1):
        raise ctx.fail(f"there are {ctx.dim(k, 1)} new keys for {ctx.dim(q, 1)} queries, which must be as many")
    return _split(ctx, q, q_heads), _split(ctx, k, kv_heads), _split(ctx, v, kv_heads)


def _split(ctx: Context, x: Value, heads: int) -> Value:
    batch, length, width = ctx.shape(x)
    if width % heads:
        raise ctx.fail(f"the width of {x.type} is no multiple of {heads} heads; correct the model")
    return ctx.transpose(ctx.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


# -- the cache -----------------------------------------------------------------------------------------------------


def _place(ctx: Context, q: Value) -> Place:
    batch, rows = ctx.dim(q, 0), ctx.dim(q, 2)
    past = ctx.optional(3)
    if (past is None) != (ctx.optional(4) is None):
        raise ctx.fail("past_key and past_value are given together or not at all; correct the model")
    total = _total(ctx, rows)
    room = total if past is None else largest(total, ctx.dim(past, 2))
    if not is_open(total) and not is_open(rows) and total < rows:
        raise ctx.fail(f"total_sequence_length is {total}, less than the {rows} tokens of this step; correct it")
    return Place(batch, rows, total, room, _start(ctx, batch, rows, total))


def _total(ctx: Context, rows: Size) -> Size:
    """Return total_sequence_length. Where only a run can tell it, that is done for the tokens before this step: with
    its own there is at least one key then, as kernels need.
    """
    if not _total_is_found(ctx):
        return ctx.sizes_of(6)[0]
    before = ctx.sub(ctx.cast(ctx.reshape(ctx.input(6), (1,)), "int64"), ctx.size(rows))
    (size,) = sizes_of(ctx, [Element(before, 0)])
    return rows + size


def _total_is_found(ctx: Context) -> bool:
    entries = entries_of(ctx.input(6))
    found = sizes_are_symbols() and entries is not None and isinstance(entries[0], Element)
    return found and ctx.optional(16) is None


def _start(ctx: Context, batch: Size, rows: Size, total: Size) -> int | Value:
    """Return the number of cached tokens; 0 for a first prompt, which is as long as the total."""
    valid = ctx.optional(16)
    if total == rows and valid is None:
        return 0
    length = ctx.add(ctx.reshape(ctx.input(5), (batch,)), 1)
    start = ctx.maximum(ctx.sub(length, ctx.size(rows, "int32") if valid is None else valid), 0)
    if start.data is not None and np.all(start.data == start.data[:1]) and batch:
        return int(start.data[0])
    # Whether ONNX Runtime would refuse this at run time is unknown with open sizes.
    if not is_open(rows) and rows > 1 and not is_open(batch) and batch > 1 and valid is None:
        raise ctx.fail(
            f"{rows} tokens of each of {batch} sequences follow a cache; without query_seqlens there may be one "
            "sequence, or one token of each"
        )
    return start


def _cache(ctx: Context, place: Place, index: int, new: Value) -> Value:
    """Return the cache with this step's tokens at their positions, and zeros after them, in donated memory as far as
    keys are seen: what is there may not be finite, which a weight of zero does not hide.
    """
    past = _past(ctx, index, new)
    if is_donated(ctx, past) and ctx.optional(16) is None:
        places, room, until = [place.positions(ctx, "int64")], place.room, place.total
        if _total_is_found(ctx):
            room = until = ctx.dim(past, 2)
            places.append(ctx.reshape(ctx.cast(ctx.input(6), "int64"), (1,)))
        return stored_rows(ctx, past, new, *places, axis=2, room=room, until=until, clears=True)
    batch, _, rows, _ = ctx.shape(new)
    stated = ctx.shape(past)
    if isinstance(place.start, int):
        if place.start + rows > place.room or place.start > stated[2]:
            raise ctx.fail(f"the cache holds {stated[2]} tokens, not the {place.start} before this step; correct it")
        before = ctx.slice_axis(past, 2, 0, place.start)
        return _padded(ctx, ctx.concat([before, new], 2) if place.start else new, place.room)
    if any(map(is_open, (batch, rows, stated[2], place.room))):
        return _placed(ctx, place, past, new, place.start)
    start = ctx.reshape(place.start, (-1, 1))
    position = ctx.constant(np.arange(place.room), "int32")
    offset = ctx.sub(position, start)
    moved = new if rows == 1 else _moved(ctx, new, ctx.clamp(offset, 0, rows - 1))
    kept, filled = (
        ctx.reshape(reached, (-1, 1, place.room, 1)) for reached in (ctx.less(position, start), ctx.less(offset, rows))
    )
    return ctx.select(kept, _padded(ctx, past, place.room), ctx.select(filled, moved, ctx.like(0, moved)))


def _past(ctx: Context, index: int, new: Value) -> Value:
    """Return the input cache, checked against new keys or values; an empty one if there is none."""
    past = ctx.optional(index)
    batch, heads, _, depth = ctx.shape(new)
    if past is None:
        return ctx.full((batch, heads, 0, depth), 0, dtype_of(new))
    stated = ctx.shape(past)
    fits = all(map(may_be_equal, (*stated[:2], stated[3]), (batch, heads, depth)))
    if not fits or dtype_of(past) != dtype_of(new):
        raise ctx.fail(f"a cache of type {past.type} does not fit new keys or values of type {new.type}")
    return past


def _placed(ctx: Context, place: Place, past: Value, new: Value, start: Value) -> Value:
    """Return the cache for open sizes: its old tokens followed by the new ones."""
    position = ctx.iota(place.room, "int32")
    offset = ctx.sub(position, ctx.reshape(start, (place.batch, 1)))
    shape, empty = (place.batch, 1, place.room, 1), ctx.like(0, new)
    kept, before = ctx.reshape(ctx.less(offset, 0), shape), _padded(ctx, past, place.room)
    if place.rows == 0:
        return ctx.select(kept, before, empty)
    moved = _by_token(ctx, new, ctx.clamp(offset, 0, ctx.size(place.rows - 1, "int32")))
    filled = ctx.reshape(ctx.less(offset, ctx.size(place.rows, "int32")), shape)
    return ctx.select(kept, before, ctx.select(filled, moved, empty))


def _moved(ctx: Context, new: Value, source: Value) -> Value:
    """Return tokens source[B, room] of new[B, heads, S, D]."""
    if ctx.dim(new, 0) == 1:
        return ctx.gather(new, ctx.squeeze(source, (0,)), 2)
    return _by_token(ctx, new, source)


def _by_token(ctx: Context, x: Value, source: Value) -> Value:
    """Return tokens source[B, room] of x[B, heads, S, D]."""
    places = ctx.expand_dims(ctx.cast(source, "int64"), (2,))
    return ctx.swap_axes(ctx.emit("gather_nd", ctx.swap_axes(x, 1, 2), places, batch_dims=1), 1, 2)


def _padded(ctx: Context, x: Value, room: int) -> Value:
    return ctx.pad(x, (0, 0, 0, 0), (0, 0, room - ctx.dim(x, 2), 0))


# -- queries and keys ----------------------------------------------------------------------------------------------


def _normalised(ctx: Context, x: Value, index: int, epsilon: str) -> Value:
    """Return each head divided by its root mean square, times a weight."""
    weight, wide = ctx.input(index), widened(ctx, x)
    square = ctx.mean(ctx.mul(wide, wide), (3,))
    least = ctx.attr(epsilon, ctx.attr("qk_norm_epsilon", 1e-6))
    normal = ctx.mul(wide, inverse_deviation(ctx, square, least))
    return ctx.cast(ctx.mul(normal, widened(ctx, weight)), dtype_of(x))


def _rotated(ctx: Context, place: Place, q: Value, k: Value) -> tuple[Value, Value]:
    cos, sin, positions = ctx.input(7), ctx.input(8), ctx.optional(9)
    rotated, interleaved = 2 * ctx.dim(cos, 1), bool(ctx.attr("rotary_interleaved", 0))
    if positions is None:
        positions = place.positions(ctx)
    cos, sin = by_position(ctx, cos, positions), by_position(ctx, sin, positions)
    return rotate(ctx, q, cos, sin, rotated, interleaved), rotate(ctx, k, cos, sin, rotated, interleaved)


# -- scores --------------------------------------------------------------------------------------------------------


def _scores(
    ctx: Context, q: Value, keys: Value, stored: CacheCodes | None, bias: Value | None, visible: Value
) -> Value:  # fmt: skip
    """Return scores, scaled, capped, biased and masked."""
    scale = ctx.attr("scale", 0.0) or 1.0 / sqrt(max(ctx.dim(q, 3), 1))
    if stored is not None:
        q, keys = stored.queries(ctx, q), stored.numbers(ctx, keys, dtype_of(q))
    scores = attention_scores(ctx, ctx.mul(q, scale), keys)
    cap = ctx.attr("softcap", 0.0)
    if cap > 0:
        scores = ctx.mul(ctx.emit("tanh", ctx.div(scores, cap)), cap)
    if bias is not None:
        scores = ctx.add(scores, bias)
    kind = to_numpy_dtype(dtype_of(scores))
    hidden = ctx.constant(np.asarray(-np.inf).astype(kind))
    return ctx.add(scores, ctx.select(visible, ctx.constant(np.zeros((), kind)), hidden))


def _visible(ctx: Context, place: Place) -> Value:
    """Return bool [B or 1, 1, S or 1, T]: keys up to the query's own position, and within the window."""
    key = ctx.iota(place.total, "int32")
    window = ctx.attr("local_window_size", -1)
    if not ctx.attr("causal", 1):
        if window > 0:
            raise ctx.fail(f"local_window_size is {window}, which needs causal to be 1; correct the model")
        length = ctx.add(ctx.reshape(ctx.input(5), (place.batch, 1, 1, 1)), 1)
        return ctx.less(key, length)
    positions = place.positions(ctx)
    positions = ctx.reshape(positions, (ctx.dim(positions, 0), 1, place.rows, 1))
    visible = ctx.less_equal(key, positions)
    if window > 0:
        visible = ctx.emit("logical_and", visible, ctx.less(ctx.sub(positions, window), key))
    return visible


def _weights(ctx: Context, scores: Value) -> Value:
    """Return the softmax over the keys, in float32; a sink per head (zero with smooth softmax alone) takes a share for
    no key.
    """
    wide, sink = widened(ctx, scores), ctx.optional(11)
    if sink is None and ctx.attr("smooth_softmax", -1) != 1:
        return ctx.cast(softmax(ctx, wide, (3,)), dtype_of(scores))
    level = ctx.like(0.0, wide) if sink is None else ctx.reshape(widened(ctx, sink), (-1, 1, 1))
    peak = ctx.maximum(ctx.reduce("max", wide, (3,)), level)
    powers = ctx.emit("exp", ctx.sub(wide, peak))
    total = ctx.add(ctx.reduce("sum", powers, (3,)), ctx.emit("exp", ctx.sub(level, peak)))
    return ctx.cast(ctx.div(powers, total), dtype_of(scores))


def _result(ctx: Context, weights: Value, values: Value, stored: CacheCodes | None) -> Value:
    """Return the weighted sums of the values, [B, S, heads * D]."""
    if stored is None:
        return joined_heads(ctx, weighted_values(ctx, weights, values))
    sums = weighted_values(ctx, weights, stored.numbers(ctx, values, dtype_of(weights)))
    return joined_heads(ctx, stored.sums(ctx, sums))


OPERATORS: Mapping[str, Operator] = {
    "GroupQueryAttention": Operator(
        group_query_attention,
        "query key? value? past_key? past_value? seqlens_k total_sequence_length cos_cache? sin_cache? position_ids? "
        "attention_bias? head_sink? k_scale? v_scale? q_norm_weight? k_norm_weight? query_seqlens?",
        "causal do_rotary k_norm_epsilon kv_num_heads local_window_size num_heads q_norm_epsilon qk_norm_epsilon "
        "qk_output rotary_interleaved scale sliding_window_cache smooth_softmax softcap k_quant_type v_quant_type "
        "kv_cache_bit_width",
        "output present_key? present_value? output_qk?",
    ),
}  # fmt: skip
