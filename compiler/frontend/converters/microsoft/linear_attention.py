"""Linear attention: a state of each head that every token decays, corrects and reads.

The recurrence is that of ONNX's own LinearAttention, in float32; here are the layouts, gates and windows of states of
ONNX Runtime's operators; and a causal depthwise convolution with a state: the last elements of one step are the padding
of the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod, sqrt

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.sizes import Size, is_open

from ...builder import dtype_of
from ...context import Context, Converted
from ..activations import softplus, swish
from ..common import outputs_named, widened
from ..convolution import Window, with_bias
from ..linear_attention import Heads, Tokens, linear_attention
from ..normalization import inverse_deviation
from .operator import Operator

RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
"""Whether an update rule has a decay, and whether it has a rate."""
MOST_STATES = 8


def of_tokens(ctx: Context) -> Converted:
    q_heads, kv_heads, rule = ctx.attr("q_num_heads"), ctx.attr("kv_num_heads"), _rule(ctx)
    if min(q_heads, kv_heads) <= 0 or (q_heads % kv_heads and kv_heads % q_heads):
        raise ctx.fail(f"neither of q_num_heads={q_heads} and kv_num_heads={kv_heads} is a multiple of the other")
    query, key, value = (widened(ctx, ctx.input(i)) for i in range(3))
    depth = _per_head(ctx, query, q_heads)
    key_heads = _key_heads(ctx, key, depth, kv_heads)
    if key_heads < kv_heads:
        key = _repeated(ctx, key, key_heads, kv_heads)
    tokens = Tokens(query, key, value, *_gates(ctx, rule))
    if kv_heads > q_heads:
        tokens = replace(tokens, query=_repeated(ctx, query, q_heads, kv_heads))
    heads = Heads(max(q_heads, kv_heads), kv_heads, rule, ctx.attr("scale", 0.0) or 1 / sqrt(max(depth, 1)))
    count = state_window(ctx)
    past = _past_state(ctx, count)
    y, states = _stepped(ctx, heads, tokens, None if past is None else widened(ctx, past), count)
    dtype = "float32" if ctx.optional(3) is None else dtype_of(ctx.input(3))
    return outputs_named(ctx, [ctx.cast(y, dtype_of(ctx.input(0))), ctx.cast(states, dtype)])


def _stepped(ctx: Context, heads: Heads, tokens: Tokens, state: Value | None, count: int) -> tuple[Value, Value]:
    """Return results and the state after the last token; or, with a window of `count` states, those after the last
    tokens, [count, B, ...], zeros for those that there are not.
    """
    if not count:
        return linear_attention(ctx, heads, tokens, state)
    length = ctx.dim(tokens.query, 1)
    if is_open(length):
        raise ctx.fail(f"state_window is {count}, but the number of tokens is open; give it with --shape")
    single = min(count, length)
    results, states = [], []
    if length > single:
        y, state = linear_attention(ctx, heads, tokens.between(ctx, 0, length - single), state)
        results.append(y)
    for at in range(length - single, length):
        y, state = linear_attention(ctx, heads, tokens.between(ctx, at, at + 1), state)
        results.append(y)
        states.append(ctx.expand_dims(state, (0,)))
    missing = [ctx.mul(states[0], 0.0)] * (count - single)
    return ctx.concat(results, 1), ctx.concat([*missing, *states], 0)


def _rule(ctx: Context) -> str:
    rule: str = ctx.attr("update_rule", "gated_delta")
    if rule not in RULES:
        raise ctx.fail(f"update_rule is {rule!r}, none of {', '.join(RULES)}; correct the model")
    return rule


def state_window(ctx: Context) -> int:
    """Return the number of states that inputs and outputs have, of the last tokens; 0 for one, without an axis."""
    count: int = ctx.attr("state_window", 0)
    if not 0 <= count <= MOST_STATES:
        raise ctx.fail(f"state_window is {count}, not from 0 to {MOST_STATES}; correct the model")
    return count


def _past_state(ctx: Context, count: int) -> Value | None:
    """Return the state before the first token, the last one of a window of `count` states; None for zeros."""
    past = ctx.optional(3)
    return ctx.squeeze(ctx.slice_axis(past, 0, count - 1, count), (0,)) if past is not None and count else past


def _gates(ctx: Context, rule: str) -> tuple[Value | None, Value | None]:
    """Return the operands for decay and rate that the rule asks for."""
    gates = []
    for index, name, needed in zip((4, 5), ("decay", "beta"), RULES[rule], strict=True):
        given = ctx.optional(index)
        if needed and given is None:
            raise ctx.fail(f"update_rule {rule!r} needs operand {name!r}; correct the model")
        gates.append(widened(ctx, given) if needed and given is not None else None)
    return gates[0], gates[1]


def _per_head(ctx: Context, x: Value, heads: int) -> Size:
    depth, left = divmod(ctx.dim(x, 2), heads)
    if left:
        raise ctx.fail(f"the width of {x.type} is no multiple of {heads} heads; correct the model")
    return depth


def _key_heads(ctx: Context, key: Value, depth: Size, values: int) -> int:
    """Return the number of heads of keys, each of which several heads of values may share."""
    count, left = divmod(ctx.dim(key, 2), depth) if depth else (values, 0)
    if left or count < 1 or values % count:
        raise ctx.fail(f"keys {key.type} are no heads of {depth} for kv_num_heads={values}; correct the model")
    return int(count)


def _repeated(ctx: Context, x: Value, heads: int, wanted: int) -> Value:
    """Return x [B, T, heads * D] with each head repeated until there are as many as wanted."""
    batch, length, width = ctx.shape(x)
    depth = width // heads
    parts = ctx.reshape(x, (batch, length, heads, 1, depth))
    spread = ctx.broadcast_to(parts, (batch, length, heads, wanted // heads, depth))
    return ctx.reshape(spread, (batch, length, wanted * depth))


# -- GatedDeltaNet -------------------------------------------------------------------------------------------------


def gated_delta_net(ctx: Context) -> Converted:
    """Convert GatedDeltaNet: sequences of equal length, one after the other, and states [B, heads, Dv, Dk]."""
    rule, given = _rule(ctx), ctx.input(0)
    state = ctx.optional(6)
    query, key, value = _packed(ctx, state) if ctx.optional(1) is None else tuple(ctx.input(i) for i in range(3))
    *front, q_heads, depth = ctx.shape(query)
    v_heads, width = ctx.shape(value)[-2:]
    if ctx.dim(key, -2) != q_heads or not q_heads or v_heads % q_heads:
        raise ctx.fail(
            f"{v_heads} heads of values are no multiple of {q_heads} of queries and {ctx.dim(key, -2)} of keys"
        )
    batch = front[0] if len(front) == 2 else None if state is None else ctx.dim(state, 0)
    if batch is None:
        raise ctx.fail("without cu_seqlens the number of sequences is that of initial_state, which is missing")
    rows = front[1] if len(front) == 2 else front[0] // max(batch, 1)

    def joined(x: Value, heads: int) -> Value:
        flat = ctx.reshape(widened(ctx, x), (batch, rows, heads * ctx.dim(x, -1)))
        return flat if heads == v_heads else _repeated(ctx, flat, heads, v_heads)

    if ctx.attr("qk_l2_norm", 0):
        query, key = _unit(ctx, query), _unit(ctx, key)
    decay, rate = _gates(ctx, rule)
    if decay is not None:
        decay = ctx.reshape(_decay(ctx, decay, len(front), v_heads, depth), (batch, rows, -1))
    if rate is not None:
        rate = ctx.reshape(_rate(ctx, rate), (batch, rows, v_heads))
    tokens = Tokens(joined(query, q_heads), joined(key, q_heads), joined(value, v_heads), decay, rate)
    heads_of = Heads(v_heads, v_heads, rule, ctx.attr("scale", 0.0) or 1 / sqrt(max(depth, 1)))
    y, after = linear_attention(
        ctx, heads_of, tokens, None if state is None else ctx.swap_axes(widened(ctx, state), 2, 3)
    )
    y = ctx.reshape(y, (*front, v_heads, width))
    return outputs_named(ctx, [ctx.cast(y, dtype_of(given)), ctx.swap_axes(after, 2, 3)])


def _packed(ctx: Context, state: Value | None) -> tuple[Value, Value, Value]:
    """Return queries, keys and values that lie side by side in one operand, whose heads the state tells."""
    if state is None:
        raise ctx.fail("queries, keys and values in one operand need initial_state; correct the model")
    _, v_heads, width, depth = ctx.shape(state)
    *front, whole = ctx.shape(ctx.input(0))
    q_heads, left = divmod(whole - v_heads * width, 2 * depth)
    if left or q_heads <= 0:
        raise ctx.fail(f"query {ctx.input(0).type} does not hold queries, keys and values for a state {state.type}")
    q, k, v = ctx.split(ctx.input(0), len(front), [q_heads * depth, q_heads * depth, v_heads * width])
    return (
        ctx.reshape(q, (*front, q_heads, depth)), ctx.reshape(k, (*front, q_heads, depth)),
        ctx.reshape(v, (*front, v_heads, width)),
    )  # fmt: skip


def _unit(ctx: Context, x: Value) -> Value:
    wide = widened(ctx, x)
    square = ctx.reduce("sum", ctx.mul(wide, wide), (ctx.rank(x) - 1,))
    return ctx.mul(wide, inverse_deviation(ctx, square, L2_EPSILON))


L2_EPSILON = 1e-6


def _decay(ctx: Context, decay: Value, rank: int, heads: Size, depth: Size) -> Value:
    """Return the logarithm of the decay, by `gate_activation`; one for each head, or for each element of a key."""
    kind = {"qwen": "softplus", "kda": "sigmoid"}.get(found := ctx.attr("gate_activation", "none"), found)
    if kind == "none":
        return decay
    if kind not in ("softplus", "sigmoid"):
        raise ctx.fail(f"gate_activation is {found!r}, none of none, softplus and sigmoid; correct the model")
    by_element = ctx.rank(decay) > rank + 1
    level = ctx.emit("exp", ctx.reshape(ctx.input(7), (heads, 1) if by_element else (heads,)))
    bias = ctx.input(8)
    if ctx.rank(bias) == 1 and by_element:
        bias = ctx.reshape(bias, (heads, bias.tensor_type.num_elements // heads))
    shifted = ctx.add(decay, bias)
    if kind == "softplus":
        return ctx.emit("neg", ctx.mul(level, softplus(ctx, shifted)))
    return ctx.mul(ctx.sigmoid(ctx.mul(level, shifted)), ctx.attr("gate_lower_bound", -5.0))


def _rate(ctx: Context, rate: Value) -> Value:
    kind = ctx.attr("beta_activation", "none")
    if kind not in ("none", "sigmoid"):
        raise ctx.fail(f"beta_activation is {kind!r}, neither none nor sigmoid; correct the model")
    return ctx.sigmoid(rate) if kind == "sigmoid" else rate


def linear_attention_gate(ctx: Context) -> Converted:
    a, b = widened(ctx, ctx.input(0)), ctx.optional(3)
    decay = ctx.mul(softplus(ctx, ctx.add(a, ctx.input(1))), ctx.input(2))
    if b is None and ctx.has_output(1):
        raise ctx.fail("output beta needs operand 'b'; correct the model")
    beta = None if b is None else ctx.cast(ctx.sigmoid(widened(ctx, b)), dtype_of(b))
    return outputs_named(ctx, [ctx.cast(decay, dtype_of(ctx.input(0))), beta])


def causal_convolution(ctx: Context) -> Converted:
    x, weight, last = ctx.input(0), ctx.input(1), bool(ctx.attr("channels_last", 0))
    dilation, count = ctx.attr("dilation", 1), state_window(ctx)
    if ctx.rank(weight) != 3 or (not last and ctx.rank(x) != 3) or dilation < 1:
        raise ctx.fail(f"dilation {dilation}, weight {weight.type} and input {x.type} do not fit; correct the model")
    past, shape = _past_state(ctx, count), ctx.shape(x)
    if last:
        x, past = _channels_first(ctx, x), None if past is None else _channels_first(ctx, past)
    taps = ctx.dim(weight, 2)
    reach = (taps - 1) * dilation
    if past is None:
        past = ctx.full((*ctx.shape(x)[:2], reach), 0.0, dtype_of(x))
    whole = ctx.concat([past, x], 2)
    window = Window((taps,), (1,), (0,), (0,), (dilation,), ctx.dim(weight, 0))
    if ctx.dim(x, 2) == 0:
        y = x
    else:
        y = _activated(ctx, with_bias(ctx, window.conv(ctx, whole, weight), ctx.optional(2)))
    states = _states(ctx, whole, reach, count)
    if last:
        y = ctx.reshape(ctx.swap_axes(y, 1, 2), shape)
        rank = ctx.rank(states)
        states = ctx.swap_axes(states, rank - 2, rank - 1)
        states = ctx.reshape(states, (*ctx.shape(states)[:-1], *shape[2:]))
    return outputs_named(ctx, [y, states])


def _channels_first(ctx: Context, x: Value) -> Value:
    batch, length, *channels = ctx.shape(x)
    return ctx.swap_axes(ctx.reshape(x, (batch, length, prod(channels))), 1, 2)


def _activated(ctx: Context, y: Value) -> Value:
    activation = ctx.attr("activation", "none")
    if activation not in ("none", "silu", "swish"):
        raise ctx.fail(f"activation is {activation!r}, none of none, silu and swish; correct the model")
    return y if activation == "none" else swish(ctx, y, 1.0)


def _states(ctx: Context, whole: Value, reach: Size, count: int) -> Value:
    """Return the last `reach` elements; or, with a window of `count` states, those up to each of the last positions,
    [count, B, ...], zeros for those that there are not.
    """
    end = ctx.dim(whole, 2)
    if not count:
        return ctx.slice_axis(whole, 2, end - reach, end)
    length = end - reach
    if is_open(length):
        raise ctx.fail(f"state_window is {count}, but the number of positions is open; give it with --shape")
    states = []
    for stop in range(end - count + 1, end + 1):
        if stop <= reach:
            states.append(ctx.full((*ctx.shape(whole)[:2], reach), 0.0, dtype_of(whole)))
        else:
            states.append(ctx.slice_axis(whole, 2, stop - reach, stop))
    return ctx.concat([ctx.expand_dims(state, (0,)) for state in states], 0)


CAPTURES = "transitions that a speculative decoder replays are not captured"

OPERATORS: Mapping[str, Operator] = {
    "LinearAttention": Operator(
        of_tokens, "query key value past_state? decay? beta?",
        "chunk_size kv_num_heads q_num_heads scale state_window update_rule", "output present_state",
    ),
    "GatedDeltaNet": Operator(
        gated_delta_net,
        "query key? value? cu_seqlens? decay? beta? initial_state? a_log? dt_bias? capture_count? state_update_active?",
        "beta_activation chunk_size gate_activation gate_lower_bound qk_l2_norm scale update_rule",
        "output final_state? state_update?", only={"state_update_capacity": 0},
        refused={
            "cu_seqlens": "sequences of lengths that only a run can tell are not supported",
            "capture_count": CAPTURES, "state_update": CAPTURES,
        },
    ),
    "LinearAttentionGate": Operator(linear_attention_gate, "a dt_bias decay_scale b?", "", "decay beta?"),
    "CausalConvWithState": Operator(
        causal_convolution, "input weight bias? past_state?",
        "activation channels_last dilation state_window", "output present_state state_update?",
        only={
            "ndim": 1, "state_update_capacity": 0, "state_channels_last": -1, "state_length": 0,
            "input_channel_offset": 0, "input_channels": 0,
        },
        refused={"state_update": CAPTURES},
    ),
}  # fmt: skip
