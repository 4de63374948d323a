"""Relative position biases of scores, as ONNX Runtime's optimiser emits them for T5."""

from collections.abc import Mapping

import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.sizes import bounds_of

from ...context import Context
from .operator import Operator

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
    "RelativePositionBias": Operator(
        relative_position_bias, "bias_table query_length key_length", "is_bidirectional max_distance", "output"
    ),
}
