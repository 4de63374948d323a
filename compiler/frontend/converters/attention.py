"""Attention and rotary position embeddings, as matmuls, masks and a softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.sizes import Size, is_open
from tilestitch.compiler.ir.types import to_numpy_dtype

from ..builder import Builder, dtype_of
from ..context import Context, Converted, Versioned
from ..errors import NotStatic
from ..onnx_types import dtype_of as elem_dtype
from .common import outputs_named
from .reductions import softmax


def _heads_of(ctx: Context, x: Value, attribute: str) -> Value:
    """Return [B, S, heads*D] as [B, heads, S, D]; operands of rank 4 are so already."""
    return x if ctx.rank(x) == 4 else split_heads(ctx, x, attribute)


def split_heads(ctx: Context, x: Value, attribute: str) -> Value:
    """Return [B, S, heads*D] as [B, heads, S, D]; the attribute gives the number of heads."""
    batch, length, width = ctx.shape(x)
    heads = ctx.attr(attribute)
    if heads <= 0 or width % heads:
        raise ctx.fail(f"{attribute}={heads} does not divide the width {width} of {x.type}")
    return ctx.transpose(ctx.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def joined_heads(b: Builder, x: Value) -> Value:
    """Return [B, heads, S, D] as [B, S, heads*D]."""
    batch, heads, length, depth = b.shape(x)
    return b.reshape(b.transpose(x, (0, 2, 1, 3)), (batch, length, heads * depth))


def convert_attention(ctx: Context) -> Converted:
    q, k, v = (
        _heads_of(ctx, ctx.input(0), "q_num_heads"),
        _heads_of(ctx, ctx.input(1), "kv_num_heads"),
        _heads_of(ctx, ctx.input(2), "kv_num_heads"),
    )
    past_key, past_value = ctx.optional(4), ctx.optional(5)
    present_key = k if past_key is None else ctx.concat([past_key, k], 2)
    present_value = v if past_value is None else ctx.concat([past_value, v], 2)
    batch, q_heads, rows, depth = ctx.shape(q)
    kv_heads, columns = ctx.shape(present_key)[1:3]
    if q_heads % kv_heads:
        raise ctx.fail(f"{q_heads} query heads are no multiple of {kv_heads} key heads")
    scores = attention_scores(ctx, ctx.mul(q, ctx.attr("scale", 1.0 / sqrt(depth))), present_key)
    raw = scores
    softcap = ctx.attr("softcap", 0.0)
    if softcap > 0:
        scores = ctx.mul(ctx.emit("tanh", ctx.div(scores, softcap)), softcap)
    capped = scores
    bias, may_mask_rows = _bias(
        ctx, dtype_of(q), (batch, rows, columns), 0 if past_key is None else ctx.dim(past_key, 2)
    )
    if bias is not None:
        scores = ctx.add(scores, bias)
    weights = _weights(ctx, scores, may_mask_rows)
    y = weighted_values(ctx, weights, present_value)
    if ctx.rank(ctx.input(0)) == 3:
        y = joined_heads(ctx, y)
    shown = [raw, capped, scores, weights][ctx.attr("qk_matmul_output_mode", 0)]
    return outputs_named(ctx, [y, present_key, present_value, shown])


def attention_scores(ctx: Context, q: Value, k: Value) -> Value:
    """Return q @ k^T; query heads that share a key head are grouped, and keys are broadcast, never copied."""
    batch, q_heads, rows, depth = ctx.shape(q)
    kv_heads, columns = ctx.shape(k)[1:3]
    if q_heads == kv_heads:
        return ctx.matmul(q, k, trans_b=True)
    grouped = ctx.reshape(q, (batch, kv_heads, q_heads // kv_heads, rows, depth))
    return ctx.reshape(ctx.matmul(grouped, ctx.expand_dims(k, (2,)), trans_b=True), (batch, q_heads, rows, columns))


def weighted_values(ctx: Context, weights: Value, v: Value) -> Value:
    batch, q_heads, rows, columns = ctx.shape(weights)
    kv_heads, depth = ctx.shape(v)[1], ctx.shape(v)[3]
    if q_heads == kv_heads:
        return ctx.matmul(weights, v)
    grouped = ctx.reshape(weights, (batch, kv_heads, q_heads // kv_heads, rows, columns))
    return ctx.reshape(ctx.matmul(grouped, ctx.expand_dims(v, (2,))), (batch, q_heads, rows, depth))


def _weights(ctx: Context, scores: Value, may_mask_rows: bool) -> Value:
    """Return the softmax over the keys; a fully masked row is zero instead of NaN."""
    precision = ctx.attr("softmax_precision", 0)
    dtype = dtype_of(scores)
    precise = ctx.cast(scores, elem_dtype(precision) if precision else dtype)
    weights = ctx.cast(softmax(ctx, precise, (3,)), dtype)
    if not may_mask_rows:
        return weights
    dead = ctx.emit("is_inf", ctx.reduce("max", precise, (3,)), positive=False, negative=True)
    return ctx.select(dead, 0.0, weights)


def _bias(ctx: Context, dtype: str, extent: tuple[int, int, int], past: int) -> tuple[Value | None, bool]:
    """Return the sum of all masks as an additive bias, and whether a row may be fully masked."""
    _, rows, columns = extent
    lengths = ctx.optional(6)
    parts = []
    mask = ctx.optional(3)
    if mask is not None:
        parts.append(_additive(ctx, _padded_mask(ctx, mask, columns), dtype))
    offset: Value | int = ctx.size(past) if is_open(past) else past
    if lengths is not None:
        valid = ctx.reshape(lengths, (-1, 1, 1, 1))
        parts.append(_additive(ctx, ctx.less(_places(ctx, columns), valid), dtype))
        offset = ctx.sub(valid, ctx.size(rows) if is_open(rows) else rows)
    allowed = _window(ctx, offset, rows, columns)
    if allowed is not None:
        parts.append(_additive(ctx, allowed, dtype))
    if not parts:
        return None, False
    bias = parts[0]
    for part in parts[1:]:
        bias = ctx.add(bias, part)
    if bias.data is not None:
        return bias, bool(np.isneginf(bias.data.astype(np.float64).max(-1)).any())
    windowed = any(ctx.attr(f"{side}_window_size", -1) >= 0 for side in ("left", "right"))
    return bias, mask is not None or lengths is not None or windowed  # a query sees the first key at least


def _additive(ctx: Context, mask: Value, dtype: str) -> Value:
    """Return a bool mask as 0 and -inf; other masks are additive already."""
    if dtype_of(mask) != "bool":
        return ctx.cast(mask, dtype)
    kind = to_numpy_dtype(dtype)
    return ctx.select(mask, ctx.constant(np.zeros((), kind)), ctx.constant(np.asarray(-np.inf).astype(kind)))


def _padded_mask(ctx: Context, mask: Value, columns: int) -> Value:
    """Return the mask, extended to hide the keys beyond it. Before opset 24 it is not, and one of width one is
    broadcast, as ONNX's function says.
    """
    rank = ctx.rank(mask)
    missing = columns - ctx.dim(mask, rank - 1)
    if missing == 0 or (ctx.opset < 24 and missing == columns - 1):
        return mask
    if is_open(missing):
        raise NotStatic(f"the mask of {mask.type} lacks {missing} of the keys")
    if missing < 0:
        return mask
    hidden = False if dtype_of(mask) == "bool" else -np.inf
    after = [0] * rank
    after[-1] = missing
    return ctx.pad(
        mask, (0,) * rank, after, value=ctx.constant(np.asarray(hidden).astype(to_numpy_dtype(dtype_of(mask))))
    )


def _places(ctx: Context, count: Size) -> Value:
    """Return the numbers from 0 to `count`."""
    return ctx.iota(count) if is_open(count) else ctx.constant(np.arange(count), "int64")


def _window(ctx: Context, offset: Value | int, rows: int, columns: int) -> Value | None:
    """Return the mask of the keys that a query may see by position: none after it (causal), and none outside the
    window.
    """
    causal = bool(ctx.attr("is_causal", 0))
    left, right = ctx.attr("left_window_size", -1), ctx.attr("right_window_size", -1)
    if not causal and left < 0 and right < 0:
        return None
    position = ctx.add(ctx.reshape(_places(ctx, rows), (rows, 1)), offset)
    key = ctx.reshape(_places(ctx, columns), (1, columns))
    rules = []
    if causal:
        rules.append(ctx.less_equal(key, position))
    if left >= 0:
        rules.append(ctx.less_equal(ctx.sub(position, left), key))
    if right >= 0:
        rules.append(ctx.less_equal(key, ctx.add(position, right)))
    allowed = rules[0]
    for rule in rules[1:]:
        allowed = ctx.emit("logical_and", allowed, rule)
    return allowed


def convert_rotary_embedding(ctx: Context) -> Value:
    x, cos, sin, positions = ctx.input(0), ctx.input(1), ctx.input(2), ctx.optional(3)
    shape = ctx.shape(x)
    if len(shape) == 3:
        heads = ctx.attr("num_heads")
        if heads <= 0 or shape[2] % heads:
            raise ctx.fail(f"num_heads={heads} does not divide the width {shape[2]}")
        split = ctx.reshape(x, (*shape[:2], heads, shape[2] // heads))
        head_axis = 2
    else:
        split, head_axis = x, 1
    width = ctx.shape(split)[3]
    rotated = ctx.attr("rotary_embedding_dim", 0) or width
    if positions is not None:
        cos, sin = ctx.gather(cos, positions, 0), ctx.gather(sin, positions, 0)
    cos, sin = (ctx.expand_dims(v, (head_axis,)) for v in (cos, sin))
    return ctx.reshape(rotate(ctx, split, cos, sin, rotated, bool(ctx.attr("interleaved", 0))), shape)


def rotate(b: Builder, x: Value, cos: Value, sin: Value, rotated: int, interleaved: bool) -> Value:
    """Rotate the first `rotated` elements of the last of four axes pair by pair; cos and sin broadcast against pairs.

    A pair is an element of the first and one of the second half, or two neighbours if `interleaved`.
    """
    width = b.dim(x, 3)
    turning, rest = b.slice_axis(x, 3, 0, rotated), b.slice_axis(x, 3, rotated, width)
    half = rotated // 2
    if interleaved:
        first, second = (b.slice_axis(turning, 3, i, rotated, 2) for i in (0, 1))
    else:
        first, second = b.slice_axis(turning, 3, 0, half), b.slice_axis(turning, 3, half, rotated)
    real, imaginary = b.sub(b.mul(cos, first), b.mul(sin, second)), b.add(b.mul(sin, first), b.mul(cos, second))
    if interleaved:
        pair = b.concat([b.expand_dims(v, (4,)) for v in (real, imaginary)], 4)
        turned = b.reshape(pair, b.shape(turning))
    else:
        turned = b.concat([real, imaginary], 3)
    return b.concat([turned, rest], 3) if rotated < width else turned


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "Attention": [(23, convert_attention)],
    "RotaryEmbedding": [(23, convert_rotary_embedding)],
}
