"""Classification losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilestitch.compiler.ir import Value

from ..builder import dtype_of
from ..context import Context, Converted, Versioned
from .common import outputs_named
from .reductions import log_softmax


def _nll(ctx: Context, log_probabilities: Value, target: Value, weight: Value | None) -> Value:
    """Return the weighted negative log probability of each target class, reduced as the node says.

    Log probabilities are [N, C, ...], targets [N, ...]; entries equal to `ignore_index` are ignored.
    """
    reduction = ctx.attr("reduction", "mean")
    if reduction not in ("none", "sum", "mean"):
        raise ctx.fail(f"reduction is {reduction!r}, none of none, sum, mean")
    classes, factor = target, None
    if ctx.has_attr("ignore_index"):
        ignored = ctx.equal(target, ctx.attr("ignore_index"))
        classes = ctx.select(ignored, 0, target)
        factor = ctx.select(ignored, ctx.like(0.0, log_probabilities), ctx.like(1.0, log_probabilities))
    if weight is not None:
        chosen = ctx.gather(weight, classes, 0)
        factor = chosen if factor is None else ctx.mul(chosen, factor)
    picked = ctx.emit("gather_elements", log_probabilities, ctx.expand_dims(classes, (1,)), axis=1)
    loss = ctx.emit("neg", ctx.squeeze(picked, (1,)))
    if factor is not None:
        loss = ctx.mul(loss, factor)
    axes = range(ctx.rank(loss))
    if reduction == "none":
        return loss
    if reduction == "sum":
        return ctx.reduce("sum", loss, axes, keepdims=False)
    if factor is None:
        return ctx.mean(loss, axes, keepdims=False)
    return ctx.div(ctx.reduce("sum", loss, axes, keepdims=False), ctx.reduce("sum", factor, axes, keepdims=False))


def convert_negative_log_likelihood(ctx: Context) -> Value:
    return _nll(ctx, ctx.input(0), ctx.input(1), ctx.optional(2))


def convert_softmax_cross_entropy(ctx: Context) -> Converted:
    scores, weight = ctx.input(0), ctx.optional(2)
    log_probabilities = log_softmax(ctx, scores, (1,))
    if weight is not None:
        weight = ctx.cast(weight, dtype_of(scores))
    return outputs_named(ctx, [_nll(ctx, log_probabilities, ctx.input(1), weight), log_probabilities])


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "NegativeLogLikelihoodLoss": [(12, convert_negative_log_likelihood)],
    "SoftmaxCrossEntropyLoss": [(12, convert_softmax_cross_entropy)],
}
