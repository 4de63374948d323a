"""The embeddings at the beginning of BERT: words, positions and segments, summed and normalised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilestitch.compiler.ir import Value

from ...builder import dtype_of
from ...context import Context, Converted
from ..common import outputs_named, widened
from ..normalization import centred, inverse_deviation
from .normalization import scaled
from .operator import Operator


@dataclass(frozen=True)
class Tables:
    """The embedding tables and the scale and shift of the normalisation, as floats."""

    word: Value
    position: Value
    segment: Value | None
    gamma: Value
    beta: Value


def embed_layer_norm(ctx: Context) -> Converted:
    tables = Tables(ctx.input(2), ctx.input(3), ctx.optional(4), ctx.input(5), ctx.input(6))
    return _embedded(ctx, tables, ctx.optional(8))


def quantised_embed_layer_norm(ctx: Context) -> Converted:
    """Convert QEmbedLayerNormalization. Only gathered rows are dequantised unless tables are constant, which are at
    compile time.
    """

    def table(index: int, scale: int, zero: int) -> Value:
        x = ctx.sub(ctx.cast(ctx.input(index), "float32"), ctx.cast(ctx.input(zero), "float32"))
        return ctx.mul(x, ctx.reshape(ctx.input(scale), ()))

    segment = None if ctx.optional(4) is None else table(4, 10, 15)
    return _embedded(ctx, Tables(table(2, 8, 13), table(3, 9, 14), segment, table(5, 11, 16), table(6, 12, 17)), None)


def _embedded(ctx: Context, tables: Tables, positions: Value | None) -> Converted:
    ids, segments, mask = ctx.input(0), ctx.optional(1), ctx.optional(7)
    batch, length = ctx.shape(ids)
    if (segments is None) != (tables.segment is None):
        raise ctx.fail("segment_ids and segment_embedding are given together or not at all; correct the model")
    total = widened(ctx, ctx.gather(tables.word, ids, 0))
    total = ctx.add(total, widened(ctx, ctx.gather(tables.position, _positions(ctx, positions, length), 0)))
    if segments is not None and tables.segment is not None:
        total = ctx.add(total, widened(ctx, ctx.gather(tables.segment, segments, 0)))
    _, deviation, variance = centred(ctx, total, (2,))
    normal = ctx.mul(deviation, inverse_deviation(ctx, variance, ctx.attr("epsilon", 1e-12)))
    dtype = dtype_of(tables.word)
    y = ctx.cast(scaled(ctx, normal, tables.gamma, tables.beta), dtype)
    lengths = ctx.full((batch,), 0, "int32") if mask is None else ctx.reduce("sum", _ones(ctx, mask), (1,), False)
    return outputs_named(ctx, [y, lengths, ctx.cast(total, dtype)])


def _positions(ctx: Context, positions: Value | None, length: int) -> Value:
    return ctx.iota(length) if positions is None else positions


def _ones(ctx: Context, mask: Value) -> Value:
    """Return 1 where the mask is 1, to count the words."""
    return ctx.cast(ctx.equal(mask, 1), "int32")


OPERATORS: Mapping[str, Operator] = {
    "EmbedLayerNormalization": Operator(
        embed_layer_norm,
        "input_ids segment_ids? word_embedding position_embedding segment_embedding? gamma beta mask? position_ids?",
        "epsilon mask_index_type", "output mask_index? embedding_sum?",
    ),
    "QEmbedLayerNormalization": Operator(
        quantised_embed_layer_norm,
        "input_ids segment_ids? word_embedding_quant position_embedding_quant segment_embedding? gamma_quant "
        "beta_quant mask? word_embedding_scale position_embedding_scale segment_embedding_scale? gamma_scale "
        "beta_scale word_embedding_zero_point position_embedding_zero_point segment_embedding_zero_point? "
        "gamma_zero_point beta_zero_point",
        "epsilon", "layernorm_out mask_index_out",
    ),
}  # fmt: skip
