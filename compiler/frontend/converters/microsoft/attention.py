"""Attention as ONNX Runtime's transformer optimiser emits it, as matmuls, an additive mask and a softmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import ml_dtypes
import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.claims import may_be_equal
from tilestitch.compiler.ir.sizes import Size
from tilestitch.compiler.ir.types import to_numpy_dtype

from ...builder import dtype_of
from ...context import Context, Converted
from ..attention import attention_scores, joined_heads, split_heads, weighted_values
from ..common import outputs_named, widened
from ..matmul import matmul_any_rank
from ..reductions import softmax
from .integer_matmul import scaled_integer_matmul
from .operator import Operator


@dataclass(frozen=True)
class Operands:
    """Queries [B, heads, S, D], keys [B, heads, T, D] and values [B, heads, T, Dv], the past included."""

    q: Value
    k: Value
    v: Value


def attend(ctx: Context, given: Operands, bias: Value | None) -> tuple[Value, Value]:
    """Return the weighted values [B, S, heads*Dv], and the scores before the softmax; softmax in float32 or wider."""
    scale = ctx.attr("scale", 0.0) or 1.0 / sqrt(max(ctx.dim(given.q, 3), 1))
    scores = attention_scores(ctx, ctx.mul(given.q, scale), given.k)
    scores = scores if bias is None else ctx.add(scores, bias)
    weights = ctx.cast(softmax(ctx, widened(ctx, scores), (3,)), dtype_of(scores))
    return joined_heads(ctx, weighted_values(ctx, weights, given.v)), scores


def mask_bias(ctx: Context, mask: Value | None, given: Operands, past: Size) -> Value | None:
    """Return the additive mask of scores: `mask_filter_value` for keys that the mask hides, the least number for later
    ones.

    A key hidden by its position is so whatever the mask says, as the two are not added up.
    """
    kind = to_numpy_dtype(dtype_of(given.q))
    batch, rows, columns = ctx.dim(given.q, 0), ctx.dim(given.q, 2), ctx.dim(given.k, 2)
    bias = None
    if mask is not None:
        hidden = np.asarray(ctx.attr("mask_filter_value", -10000.0)).astype(kind)
        visible = _visible(ctx, mask, (batch, rows, columns), past)
        bias = ctx.select(visible, ctx.constant(np.zeros((), kind)), ctx.constant(hidden))
    if not ctx.attr("unidirectional", 0):
        return bias
    least = ctx.constant(np.asarray(ml_dtypes.finfo(kind).min, kind))
    return ctx.select(
        _later(ctx, rows, columns, past), least, ctx.constant(np.zeros((), kind)) if bias is None else bias
    )


def _later(ctx: Context, rows: Size, columns: Size, past: Size) -> Value:
    """Return bool [S, T]: keys after the query's own position."""
    position = ctx.add(ctx.reshape(ctx.iota(rows, "int32"), (rows, 1)), ctx.size(past, "int32"))
    return ctx.less(position, ctx.iota(columns, "int32"))


def _visible(ctx: Context, mask: Value, extent: tuple[Size, Size, Size], past: Size) -> Value:
    """Return the keys that a mask of any of its forms leaves visible, broadcast against [B, heads, S, T]."""
    batch, rows, columns = extent
    shape = ctx.shape(mask)
    if len(shape) == 1:
        return _within_lengths(ctx, mask, batch, columns)
    if len(shape) == 4:  # that of the longest sequence: take the part for this one
        mask = ctx.slice_axis(ctx.slice_axis(mask, 2, past, past + rows), 3, 0, columns)
    shown = ctx.less(ctx.like(0, mask), mask)
    if len(shape) == 2 and all(map(may_be_equal, shape, (batch, columns))):
        return ctx.expand_dims(shown, (1, 2))
    if len(shape) == 3 and all(map(may_be_equal, shape, extent)):
        return ctx.expand_dims(shown, (1,))
    if len(shape) == 4 and shape[0] in (1, batch) and shape[1] == 1:
        return shown
    raise ctx.fail(f"a mask of type {mask.type} does not fit {rows} queries and {columns} keys of {batch} sequences")


def _within_lengths(ctx: Context, mask: Value, batch: Size, columns: Size) -> Value:
    """Return the keys within lengths given by the ends of sequences; their ends, then their starts; or their ends and
    more, 3 * B + 2 in all.
    """
    (size,) = ctx.shape(mask)
    if size not in (batch, 2 * batch, 3 * batch + 2):
        raise ctx.fail(f"a mask of {size} numbers is none of B, 2 * B and 3 * B + 2 for B = {batch} sequences")
    key = ctx.iota(columns, "int32")
    ends = ctx.reshape(ctx.slice_axis(mask, 0, 0, batch), (batch, 1, 1, 1))
    visible = ctx.less(key, ends)
    if size != 2 * batch:
        return visible
    starts = ctx.reshape(ctx.slice_axis(mask, 0, batch, 2 * batch), (batch, 1, 1, 1))
    return ctx.emit("logical_and", visible, ctx.less_equal(starts, key))


def sum_of_biases(ctx: Context, *biases: Value | None) -> Value | None:
    total = None
    for bias in biases:
        if bias is not None:
            total = bias if total is None else ctx.add(total, bias)
    return total


# -- with the projection of its input ------------------------------------------------------------------------------


def attention(ctx: Context) -> Converted:
    projected = matmul_any_rank(ctx, ctx.input(0), ctx.input(1))
    if ctx.optional(2) is not None:
        projected = ctx.add(projected, ctx.input(2))
    return _projected(ctx, projected, mask=ctx.optional(3), past=ctx.optional(4), bias=ctx.optional(5))


def quantised_attention(ctx: Context) -> Converted:
    """Convert QAttention, `attention` with an integer projection."""
    x, w, bias, x_scale, w_scale = (ctx.input(i) for i in range(5))
    projected = scaled_integer_matmul(ctx, (x, x_scale, ctx.optional(6)), (w, w_scale, ctx.optional(7)))
    return _projected(ctx, ctx.add(projected, bias), mask=ctx.optional(5), past=ctx.optional(8), bias=None)


def _projected(ctx: Context, x: Value, *, mask: Value | None, past: Value | None, bias: Value | None) -> Converted:
    """Compute attention over queries, keys and values side by side in the last axis of x[B, S, ..]."""
    q, k, v = (split_heads(ctx, part, "num_heads") for part in ctx.split(x, 2, _widths(ctx, ctx.dim(x, 2))))
    length = 0
    if past is not None:
        length = ctx.dim(past, 3)
        before = [ctx.squeeze(part, (0,)) for part in ctx.split(past, 0, (1, 1))]
        k, v = ctx.concat([before[0], k], 2), ctx.concat([before[1], v], 2)
    given = Operands(q, k, v)
    y, _ = attend(ctx, given, sum_of_biases(ctx, mask_bias(ctx, mask, given, length), bias))
    present = ctx.concat([ctx.expand_dims(part, (0,)) for part in (k, v)], 0) if ctx.has_output(1) else None
    return outputs_named(ctx, [y, present])


def _widths(ctx: Context, width: int) -> tuple[int, ...]:
    sizes = tuple(ctx.attr("qkv_hidden_sizes", ()))
    if sizes:
        if len(sizes) != 3 or sum(sizes) != width:
            raise ctx.fail(f"qkv_hidden_sizes is {sizes}, but the weights have {width} columns; correct the model")
        return sizes
    if width % 3:
        raise ctx.fail(f"the weights' {width} columns are not three equal parts, and qkv_hidden_sizes is not given")
    return (width // 3,) * 3


# -- after the projection ------------------------------------------------------------------------------------------


def multi_head_attention(ctx: Context) -> Converted:
    bias = ctx.optional(3)
    q, k, v = _unpacked(ctx, *_split_bias(ctx, bias))
    return _cached(ctx, Operands(q, k, v), mask=4, bias=5, past=6)


def _split_bias(ctx: Context, bias: Value | None) -> tuple[Value | None, ...]:
    """Return the bias of queries, keys and values; the values' takes what the other two leave."""
    if bias is None:
        return None, None, None
    query = ctx.input(0)
    shape = ctx.shape(query)
    packed_row = ctx.node.op_type == "DecoderMaskedMultiHeadAttention" and ctx.optional(1) is None
    width = shape[2] * shape[4] if len(shape) == 5 else shape[2] // 3 if packed_row else shape[2]
    return ctx.split(bias, 0, (width, width, ctx.dim(bias, 0) - 2 * width))


def _unpacked(ctx: Context, *biases: Value | None) -> tuple[Value, Value, Value]:
    """Return queries, keys and values with their biases, [B, heads, length, D], from separate, head-packed or cached
    operands.
    """
    q, k, v = ctx.input(0), ctx.optional(1), ctx.optional(2)
    if ctx.rank(q) == 5:
        q, k, v = (ctx.squeeze(part, (3,)) for part in ctx.split(q, 3, (1, 1, 1)))
    elif k is not None and ctx.rank(k) == 5:
        k, v = (ctx.squeeze(part, (3,)) for part in ctx.split(k, 3, (1, 1)))
    if k is None or v is None:
        raise ctx.fail("key and value are missing, and query holds none; correct the model")
    if ctx.rank(k) == 4 and ctx.optional(1) is not None and ctx.optional(2) is not None:
        return _headed(ctx, q, biases[0]), k, v
    return _headed(ctx, q, biases[0]), _headed(ctx, k, biases[1]), _headed(ctx, v, biases[2])


def _headed(ctx: Context, x: Value, bias: Value | None) -> Value:
    """Return [B, length, width] or [B, length, heads, D] as [B, heads, length, D], plus a bias."""
    if ctx.rank(x) == 4:
        batch, length, heads, depth = ctx.shape(x)
        if heads != ctx.attr("num_heads"):
            raise ctx.fail(f"num_heads is {ctx.attr('num_heads')}, but {x.type} has {heads}; correct the model")
        x = ctx.reshape(x, (batch, length, heads * depth))
    return split_heads(ctx, x if bias is None else ctx.add(x, bias), "num_heads")


def _cached(ctx: Context, given: Operands, *, mask: int, bias: int, past: int) -> Converted:
    """Compute attention over keys and values after those of the past; `mask`, `bias` and `past` are indices of
    operands.
    """
    past_key, past_value = ctx.optional(past), ctx.optional(past + 1)
    if (past_key is None) != (past_value is None):
        raise ctx.fail("past_key and past_value are given together or not at all; correct the model")
    length = 0
    if past_key is not None and past_value is not None:
        length = ctx.dim(past_key, 2)
        given = Operands(given.q, ctx.concat([past_key, given.k], 2), ctx.concat([past_value, given.v], 2))
    added = sum_of_biases(ctx, mask_bias(ctx, ctx.optional(mask), given, length), ctx.optional(bias))
    y, scores = attend(ctx, given, added)
    return outputs_named(ctx, [y, given.k, given.v, scores])


def decoder_masked_attention(ctx: Context) -> Converted:
    """Convert attention with one query per sequence, which attends to all keys that the mask leaves visible."""
    biases = _split_bias(ctx, ctx.optional(10))
    if ctx.optional(1) is None:
        parts = ctx.split(ctx.input(0), 2, _widths(ctx, ctx.dim(ctx.input(0), 2)))
        q, k, v = (_headed(ctx, part, bias) for part, bias in zip(parts, biases, strict=True))
    else:
        q, k, v = _unpacked(ctx, *biases)
    return _cached(ctx, Operands(q, k, v), mask=3, bias=4, past=5)


# -- of sequences without padding ----------------------------------------------------------------------------------


def packed_attention(ctx: Context) -> Value:
    x = ctx.add(matmul_any_rank(ctx, ctx.input(0), ctx.input(1)), ctx.input(2))
    return _packed(ctx, list(ctx.split(x, 1, _widths(ctx, ctx.dim(x, 1)))), ctx.input(4))


def packed_multi_head_attention(ctx: Context) -> Value:
    q, bias = ctx.input(0), ctx.optional(3)
    if ctx.rank(q) == 4:
        tokens, heads, _, depth = ctx.shape(q)
        parts = [ctx.reshape(part, (tokens, heads * depth)) for part in ctx.split(q, 2, (1, 1, 1))]
    else:
        parts = [q, ctx.input(1), ctx.input(2)]
    if bias is not None:
        widths = [ctx.dim(part, 1) for part in parts]
        parts = [ctx.add(p, b) for p, b in zip(parts, ctx.split(bias, 0, widths), strict=True)]
    return _packed(ctx, parts, ctx.input(5))


def _packed(ctx: Context, parts: list[Value], cumulative: Value) -> Value:
    """Compute attention over queries, keys and values [tokens, heads*D] of all sequences, concatenated; each attends
    only to itself.
    """
    q, k, v = (split_heads(ctx, ctx.expand_dims(part, (0,)), "num_heads") for part in parts)
    tokens, sequences = ctx.dim(q, 2), ctx.dim(cumulative, 0) - 1
    ends = ctx.reshape(ctx.slice_axis(cumulative, 0, 1, sequences + 1), (1, sequences))
    passed = ctx.less_equal(ends, ctx.constant(np.arange(tokens)[:, None], dtype_of(cumulative)))
    sequence = ctx.reduce("sum", ctx.cast(passed, "int32"), (1,), keepdims=False)
    same = ctx.equal(ctx.expand_dims(sequence, (1,)), ctx.expand_dims(sequence, (0,)))
    kind = to_numpy_dtype(dtype_of(q))
    bias = ctx.select(same, ctx.constant(np.zeros((), kind)), ctx.constant(np.asarray(-np.inf).astype(kind)))
    y, _ = attend(ctx, Operands(q, k, v), bias)
    return ctx.squeeze(y, (0,))


SHARED = "past and present in one buffer are ONNX Runtime's means to save a copy"
BEAMS = "beam search is left to the program that runs the model"
ROWS = "it is laid out by sequences and padding, which the packed form has not"
NO_ROTARY = {"do_rotary": 0, "past_present_share_buffer": 0}

OPERATORS: Mapping[str, Operator] = {
    "Attention": Operator(
        attention, "input weights bias? mask_index? past? attention_bias? past_sequence_length?",
        "mask_filter_value num_heads qkv_hidden_sizes scale unidirectional", "output present?",
        only=NO_ROTARY | {"rotary_embedding_dim": 0}, refused={"past_sequence_length": SHARED},
    ),
    "QAttention": Operator(
        quantised_attention, "input weight bias input_scale weight_scale mask_index? input_zero_point? "
        "weight_zero_point? past?",
        "mask_filter_value num_heads scale unidirectional", "output present?", only=NO_ROTARY,
    ),
    "MultiHeadAttention": Operator(
        multi_head_attention, "query key? value? bias? key_padding_mask? attention_bias? past_key? past_value? "
        "past_sequence_length? cache_indirection?",
        "mask_filter_value num_heads scale unidirectional", "output present_key? present_value? qk?",
        refused={"past_sequence_length": SHARED, "cache_indirection": BEAMS},
    ),
    "DecoderMaskedMultiHeadAttention": Operator(
        decoder_masked_attention, "query key? value? mask_index? attention_bias? past_key? past_value? "
        "past_sequence_length? beam_width? cache_indirection? bias?",
        "mask_filter_value num_heads output_qk scale", "output present_key? present_value? qk?",
        only={"past_present_share_buffer": 0},
        refused={"past_sequence_length": SHARED, "beam_width": BEAMS, "cache_indirection": BEAMS},
    ),
    "PackedAttention": Operator(
        packed_attention, "input weights bias token_offset cumulative_sequence_length attention_bias?",
        "num_heads qkv_hidden_sizes scale", "output", refused={"attention_bias": ROWS},
    ),
    "PackedMultiHeadAttention": Operator(
        packed_multi_head_attention, "query key? value? bias? token_offset cumulative_sequence_length attention_bias?",
        "mask_filter_value num_heads scale", "output", refused={"attention_bias": ROWS},
    ),
}  # fmt: skip
