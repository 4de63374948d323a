"""Mixtures of experts: the best ones of each token are computed where kernels choose matrices by index, else all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.sizes import Size, bounds_of, is_open, smallest

from ...builder import Builder, dtype_of
from ...context import Context, Converted
from ...scope import PER_MATRIX
from ...symbols import is_few
from ..activations import relu, tanh_gelu
from ..common import outputs_named, widened
from ..quantization import DEQUANTISE, Blocks, dequantised
from ..reductions import softmax
from .activations import clamped_swiglu, halves
from .low_bit import checked_bits, encoded, parts_of, spread, unpacked
from .operator import Operator


def mixture(ctx: Context) -> Value:
    weights = [ctx.optional(i) for i in (2, 4, 6)]
    return _mixed(ctx, weights, [ctx.optional(i) for i in (3, 5, 7)], _best(ctx, _normalised(ctx)))


def quantised_mixture(ctx: Context) -> Value:
    """Convert QMoE, whose weights are integers of 2, 4 or 8 bits; constant ones of 4 and 8 stay packed."""
    if ctx.attr("weights_prepacked", -1) not in (-1, 0):
        raise ctx.fail("weights_prepacked is 1, a layout of ONNX Runtime's kernels; export the weights as they are")
    if not _normalised(ctx) and ctx.optional(14) is None:
        raise ctx.fail(
            "normalize_routing_weights is 0, which ONNX Runtime's documentation and its CPU kernel take differently "
            "(the kernel normalises all the same); set it to 1 or give router_weights"
        )
    operands = ((1, 2, 3, 11), (2, 5, 6, 12), (3, 8, 9, 13))
    weights = [_dequantised(ctx, *places) for places in operands]
    return _mixed(ctx, weights, [ctx.optional(i) for i in (4, 7, 10)], _best(ctx, normalised=True))


def _normalised(ctx: Context) -> bool:
    return bool(ctx.attr("normalize_routing_weights", 0))


def _dequantised(ctx: Context, layer: int, weights: int, scales: int, zeros: int) -> Value | None:
    """Return [E, N, K] in the dtype of the input; scales and zero points are per column, or per block of columns."""
    packed = ctx.optional(weights)
    if packed is None:
        return None
    bits = checked_bits(ctx, f"fc{layer}_expert_weight_bits", ctx.attr("expert_weight_bits", 4))
    codes, scale, zero = unpacked(ctx, packed, bits), ctx.input(scales), ctx.optional(zeros)
    width, depth = ctx.shape(codes)[1:]
    block = _block(ctx, layer, scale, depth)
    kept = _kept(ctx, packed, scale, zero, block, depth)
    if kept is not None:
        return kept
    if ctx.rank(scale) == 2:
        scale = ctx.expand_dims(scale, (2,))
        zero = None if zero is None else ctx.expand_dims(ctx.slice_axis(unpacked(ctx, zero, bits), 1, 0, width), (2,))
    elif zero is not None:
        zero = ctx.slice_axis(unpacked(ctx, zero, bits), 2, 0, ctx.dim(scale, 2))
    offset = 2.0 ** (bits - 1) if zero is None else spread(ctx, ctx.cast(zero, "float32"), 2, block, depth)
    w = ctx.mul(ctx.sub(ctx.cast(codes, "float32"), offset), spread(ctx, widened(ctx, scale), 2, block, depth))
    return ctx.cast(w, dtype_of(ctx.input(0)))


def _kept(ctx: Context, packed: Value, scale: Value, zero: Value | None, block: int, depth: int) -> Value | None:
    """Return constant weights [E, N, K] that are kept as blocks, unless no format represents them."""
    if packed.data is None or scale.data is None or (zero is not None and zero.data is None):
        return None
    count, width, size = packed.data.shape
    bits = size * 8 // depth
    data = (packed.data, scale.data, None if zero is None else zero.data)
    found = ctx.scope.module.once(("QMoE", bits, block, depth), data, lambda: _encoded(*data, bits, block, depth))
    w = dequantised(ctx, found, dtype_of(ctx.input(0)), name=packed.name)
    return None if w is None else ctx.reshape(w, (count, width, depth))


def _encoded(
    packed: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, bits: int, block: int, depth: int
) -> Blocks | None:  # fmt: skip
    count, width, _ = packed.shape
    columns, blocks = count * width, -(-depth // block)
    whole = np.zeros((columns, blocks * block * bits // 8), np.uint8)
    whole[:, : packed.shape[2]] = packed.reshape(columns, -1)
    points = None
    if zeros is not None:
        rows = parts_of(zeros.reshape(-1, zeros.shape[-1]), bits)
        points = rows[:, : width if scales.ndim == 2 else blocks].reshape(columns, blocks)
    return encoded(whole, scales.reshape(columns, blocks), points, bits, block, np.arange(depth))


def _block(ctx: Context, layer: int, scale: Value, depth: int) -> int:
    """Return how many weights of a column share a scale. As in ONNX Runtime's kernel, the last block may be partial."""
    size = ctx.attr("block_size", 0)
    if ctx.rank(scale) != (3 if size else 2):
        raise ctx.fail(
            f"fc{layer}_scales has {ctx.rank(scale)} axes and block_size is {size}; scales of blocks have three axes, "
            "those of columns two; correct the model"
        )
    if not size:
        return depth
    if ctx.dim(scale, 2) != -(-depth // size):
        raise ctx.fail(
            f"fc{layer}_scales has {ctx.dim(scale, 2)} scales for a column of {depth} weights, but block_size {size} "
            f"makes {-(-depth // size)} blocks of it; correct the model"
        )
    return int(size)


def _best(ctx: Context, normalised: bool) -> tuple[Value, Value]:
    """Return [tokens, k]: the best experts, and their probabilities or `router_weights`."""
    router, best = widened(ctx, ctx.input(1)), ctx.attr("k", 1)
    experts = ctx.dim(router, 1)
    if not 1 <= best <= experts:
        raise ctx.fail(f"k is {best}, but there are {experts} experts; correct the model")
    values, indices = ctx.emit_many(
        "top_k", (softmax(ctx, router, (1,)),), {"k": best, "axis": 1, "largest": True}
    )  # fmt: skip
    mixing = ctx.optional(14)
    if mixing is not None:
        values = ctx.emit("gather_elements", widened(ctx, mixing), indices, axis=1)
    if normalised and (mixing is None or _normalised(ctx)):
        values = ctx.div(values, ctx.reduce("sum", values, (1,)))
    return indices, values


def group_router(ctx: Context) -> Converted:
    """Convert MoEGroupRouter: the best experts of the best groups, by sigmoid and bias (DeepSeek-V3); logarithms of
    their sigmoids, and `router_sentinel` for the others. Or, where they are asked for, all scores.
    """
    logits, bias = ctx.input(0), ctx.input(1)
    experts = ctx.dim(logits, -1)
    chances = ctx.sigmoid(widened(ctx, ctx.reshape(logits, (-1, experts))))
    biased = ctx.add(chances, bias)
    if ctx.has_output(1) or ctx.has_output(2):
        if ctx.has_output(0) or ctx.attr("n_group", 1) != 1:
            raise ctx.fail("selection_scores and router_weights come without router_probs, of one group; correct it")
        return outputs_named(ctx, [None, biased, chances])
    groups, best = ctx.attr("n_group", 1), ctx.attr("top_k")
    size, left = divmod(experts, max(groups, 1))
    active = ctx.attr("topk_group", 1)
    if left or groups < 1 or not 1 <= active <= groups or not 1 <= best <= active * size:
        raise ctx.fail(
            f"{best} experts cannot be chosen of {active} of n_group={groups} of {experts}; correct the model"
        )
    by_group = ctx.reshape(biased, (-1, groups, size))
    several = min(ctx.attr("group_topk", 2), size)
    sums = ctx.reduce("sum", _largest(ctx, by_group, several)[0], (2,), keepdims=False)
    is_active = _marked(ctx, _largest(ctx, sums, active)[1], groups)
    open_ = ctx.reshape(ctx.select(ctx.expand_dims(is_active, (2,)), by_group, float("-inf")), (-1, experts))
    chosen = _marked(ctx, _largest(ctx, open_, best)[1], experts)
    level = ctx.emit("log", ctx.maximum(chances, LEAST_CHANCE))
    return ctx.cast(ctx.select(chosen, level, ctx.attr("router_sentinel", -1e4)), dtype_of(logits))


LEAST_CHANCE = 1e-20


def _largest(ctx: Context, x: Value, count: int) -> tuple[Value, ...]:
    """Return the largest values along the last axis, and their indices."""
    return ctx.emit_many("top_k", (x,), {"k": count, "axis": ctx.rank(x) - 1, "largest": True})


def _marked(ctx: Context, indices: Value, size: int) -> Value:
    """Return bool [rows, size]: whether each number is among the indices [rows, k]."""
    equal = ctx.equal(ctx.expand_dims(indices, (2,)), ctx.iota(size))
    return ctx.less(0, ctx.reduce("max", ctx.cast(equal, "int32"), (1,), keepdims=False))


def _mixed(
    ctx: Context, weights: list[Value | None], biases: list[Value | None], best: tuple[Value, Value]
) -> Value:  # fmt: skip
    """Return the weighted sum of the best experts of two layers each, or three with separate weights of gate and
    linear part.
    """
    x, (first, second, third), (indices, shares) = ctx.input(0), weights, best
    if first is None or second is None:
        raise ctx.fail("the weights of the first or the second layer are missing; correct the model")
    shape = ctx.shape(x)
    work = _work(ctx, [w for w in weights if w is not None], indices)
    rows = work.rows(ctx, ctx.reshape(x, (ctx.dim(shares, 0), shape[-1])))
    gate = work.layer(ctx, rows, first, biases[0])
    hidden = _activated(ctx, gate, None if third is None else work.layer(ctx, rows, third, biases[2]))
    y = widened(ctx, work.layer(ctx, hidden, second, biases[1]))
    return ctx.cast(ctx.reshape(work.mixed(ctx, y, shares), shape), dtype_of(x))


def _work(ctx: Context, weights: Sequence[Value], indices: Value) -> _OfAll | _OfBest:
    """Return which experts are computed for which rows. indices: int64 [tokens, k]."""
    count, (tokens, each) = ctx.dim(weights[0], 0), ctx.shape(indices)
    how, pairs = ctx.scope.module.choosing, bounds_of(tokens * each)[1]
    if how is None:
        return _OfAll(indices, count)
    most = how.few * count // each
    if not all(map(_are_blocks, weights)):  # stored as they are for few tokens, packed for many: not both
        return _OfBest.singly(ctx, indices) if pairs <= how.few_floats * count else _OfAll(indices, count)
    # Of several sequences of open lengths, each is short.
    if is_few(tokens, most) or (is_open(tokens) and is_few(ctx.dim(ctx.input(0), -2), most)):
        return _OfBest.singly(ctx, indices)
    few, many = how.rows if dtype_of(ctx.input(0)) == "float32" else how.rows_of_halves
    return _OfBest.sorted(ctx, indices, count, few if pairs <= PER_MATRIX * count else many)


def _are_blocks(weights: Value) -> bool:
    """Return whether weights are kept as blocks, which a kernel dequantises itself."""
    view = weights.producer
    source = None if view is None or view.op != "reshape" else view.inputs[0].producer
    return source is not None and source.op == DEQUANTISE


@dataclass(frozen=True)
class _OfAll:
    """All experts for all tokens."""

    indices: Value
    count: int

    def rows(self, b: Builder, x: Value) -> Value:
        """Return [1, tokens, K] from [tokens, K]."""
        return b.expand_dims(x, (0,))

    def layer(self, b: Builder, x: Value, w: Value, bias: Value | None) -> Value:
        """Return x[1 or E, tokens, K] @ w[E, N, K]^T + bias[E, N]."""
        y = b.matmul(x, w, trans_b=True)
        return y if bias is None else b.add(y, b.expand_dims(bias, (1,)))

    def mixed(self, b: Builder, y: Value, shares: Value) -> Value:
        """Return [tokens, N] from [E, tokens, N], and the shares [tokens, k] of the best experts."""
        chosen = b.equal(b.expand_dims(self.indices, (2,)), b.iota(self.count))
        share = b.reduce("sum", b.select(chosen, b.expand_dims(shares, (2,)), 0.0), (1,), keepdims=False)
        return _sum_of_shares(b, y, b.transpose(share, (1, 0)), 0)


@dataclass(frozen=True)
class _OfBest:
    """Pairs of a token and an expert in tiles of a few rows, each of one expert."""

    experts: Value
    """int64 [tiles]"""
    tokens: Value
    """int64 [tiles, rows]: 0 in rows of no pair."""
    places: Value
    """int64 [tokens, k]: the row of each pair, all tiles together."""

    @staticmethod
    def singly(b: Builder, indices: Value) -> _OfBest:
        """Return a tile for each pair."""
        tokens, each = b.shape(indices)
        numbers = b.iota(tokens * each)
        places = b.reshape(numbers, (tokens, each))
        return _OfBest(b.reshape(indices, (tokens * each,)), b.expand_dims(b.div(numbers, each), (1,)), places)

    @staticmethod
    def sorted(b: Builder, indices: Value, count: int, height: int) -> _OfBest:
        """Return tiles of `height` pairs of each of `count` experts; as many as may be needed."""
        tokens, each = b.shape(indices)
        pairs = tokens * each
        experts = b.reshape(indices, (pairs,))
        is_of = b.cast(b.equal(b.expand_dims(experts, (1,)), b.iota(count)), "int64")
        before = b.emit("cumulative", is_of, axis=0, reducer="sum", exclusive=True, reverse=False)
        place = b.reshape(b.emit("gather_elements", before, b.expand_dims(experts, (1,)), axis=1), (pairs,))
        tiles = b.div(b.add(b.reduce("sum", is_of, (0,), keepdims=False), height - 1), height)
        ends = b.emit("cumulative", tiles, axis=0, reducer="sum", exclusive=False, reverse=False)
        most = pairs // height + smallest(pairs, count)
        places = b.add(b.mul(b.gather(b.sub(ends, tiles), experts, 0), height), place)
        places = _within(b, places, most * height)
        has_ended = b.less_equal(ends, b.expand_dims(b.iota(most), (1,)))
        of_tile = _within(b, b.reduce("sum", b.cast(has_ended, "int64"), (1,), keepdims=False), count)
        nothing, own = b.full((most * height,), 0, "int64"), b.div(b.iota(pairs), each)
        rows = _within(b, b.emit("scatter_elements", nothing, places, own, axis=0, reduction="none"), tokens)
        return _OfBest(of_tile, b.reshape(rows, (most, height)), b.reshape(places, (tokens, each)))

    def rows(self, b: Builder, x: Value) -> Value:
        """Return [tiles, rows, K] from [tokens, K]."""
        return b.gather(x, self.tokens, 0)

    def layer(self, b: Builder, x: Value, w: Value, bias: Value | None) -> Value:
        """Return x[tiles, rows, K] @ w[E, N, K]^T + bias[E, N] by each tile's expert."""
        y = b.matmul(x, b.gather(w, self.experts, 0), trans_b=True)
        return y if bias is None else b.add(y, b.expand_dims(b.gather(bias, self.experts, 0), (1,)))

    def mixed(self, b: Builder, y: Value, shares: Value) -> Value:
        """Return [tokens, N] from [tiles, rows, N], and the shares [tokens, k] of the best experts."""
        return _sum_of_shares(b, b.gather(b.reshape(y, (-1, b.dim(y, 2))), self.places, 0), shares, 1)


def _within(b: Builder, indices: Value, size: Size) -> Value:
    """Return indices in [0, size) as they are, but such that nothing needs to check them if the size is known."""
    return indices if is_open(size) else b.minimum(b.maximum(indices, 0), size - 1)


def _sum_of_shares(b: Builder, y: Value, shares: Value, axis: int) -> Value:
    share = b.expand_dims(shares, (2,))
    # Multiplication by zero is not enough: excluded results may be infinite.
    return b.reduce("sum", b.select(b.equal(share, 0.0), 0.0, b.mul(y, share)), (axis,), keepdims=False)


def _activated(ctx: Context, gate: Value, linear: Value | None) -> Value:
    kind, fusion = ctx.attr("activation_type", "relu"), ctx.attr("swiglu_fusion", 0)
    if kind == "swiglu":
        return _swiglu(ctx, gate, linear, fusion)
    if linear is not None:
        raise ctx.fail(f"a third layer is given, which activation_type {kind!r} does not take; correct the model")
    if kind == "identity":
        return gate
    if kind == "silu":
        return ctx.mul(gate, ctx.sigmoid(gate))
    if kind == "gelu":
        return tanh_gelu(ctx, gate)
    if kind == "relu":
        return relu(ctx, gate)
    raise ctx.fail(f"activation_type {kind!r} is not supported; relu, gelu, silu, swiglu and identity are")


def _swiglu(ctx: Context, gate: Value, linear: Value | None, fusion: int) -> Value:
    """Apply SwiGLU to gate and linear part from two layers (fusion 0), interleaved in one (1), or in two halves of one
    (2).
    """
    if fusion not in (0, 1, 2) or (fusion == 0) != (linear is not None):
        raise ctx.fail(f"swiglu_fusion is {fusion}, which does not fit the layers that are given; correct the model")
    if fusion == 1:
        if ctx.dim(gate, 2) % 2:
            raise ctx.fail(f"{ctx.dim(gate, 2)} columns of the first layer are no pairs; correct the model")
        gate, linear = (ctx.slice_axis(gate, 2, i, ctx.dim(gate, 2), 2) for i in (0, 1))
    elif linear is None:
        gate, linear = halves(ctx, gate)
    return clamped_swiglu(
        ctx, gate, linear, alpha=ctx.attr("activation_alpha", 1.0), beta=ctx.attr("activation_beta", 0.0),
        limit=ctx.attr("swiglu_limit", None),
    )  # fmt: skip


ACTIVATION = "activation_alpha activation_beta activation_type"
SWIGLU = "swiglu_fusion swiglu_limit"
OTHER_FORMATS = "weights of small floats and their scales are not supported"

OPERATORS: Mapping[str, Operator] = {
    "MoE": Operator(
        mixture,
        "input router_probs fc1_experts_weights fc1_experts_bias? fc2_experts_weights fc2_experts_bias? "
        "fc3_experts_weights? fc3_experts_bias?",
        f"{ACTIVATION} k normalize_routing_weights {SWIGLU}", "output",
        only={"swiglu_limit_after_activation": 0, "use_sparse_mixer": 0},
    ),
    "QMoE": Operator(
        quantised_mixture,
        "input router_probs fc1_experts_weights fc1_scales fc1_experts_bias? fc2_experts_weights fc2_scales "
        "fc2_experts_bias? fc3_experts_weights? fc3_scales? fc3_experts_bias? fc1_zero_points? fc2_zero_points? "
        "fc3_zero_points? router_weights? fc1_global_scale? fc2_global_scale? fc1_act_scale? fc2_act_scale? "
        "fc1_act_block_scale? fc2_act_block_scale?",
        f"accuracy_level {ACTIVATION} block_size expert_weight_bits fc1_expert_weight_bits fc2_expert_weight_bits "
        f"fc3_expert_weight_bits k normalize_routing_weights {SWIGLU} weights_prepacked", "output",
        only={"quant_type": "int", "swiglu_limit_after_activation": 0, "use_sparse_mixer": 0},
        refused=dict.fromkeys(
            ("fc1_global_scale", "fc2_global_scale", "fc1_act_scale", "fc2_act_scale", "fc1_act_block_scale",
             "fc2_act_block_scale"), OTHER_FORMATS,
        ),
    ),
    "MoEGroupRouter": Operator(
        group_router, "logits expert_bias projection_weight?", "group_topk n_group router_sentinel top_k topk_group",
        "router_probs? selection_scores? router_weights?",
        refused={"projection_weight": "ONNX Runtime has a kernel for it on GPUs only"},
    ),
}  # fmt: skip
