"""Causal depthwise convolution with a state: the last elements of one step are the padding of the next."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.sizes import Size, is_open

from ...builder import dtype_of
from ...context import Context, Converted
from ..activations import swish
from ..common import outputs_named
from ..convolution import Window, with_bias
from .linear_attention import state_window
from .operator import Operator


def causal_convolution(ctx: Context) -> Converted:
    x, weight, last = ctx.input(0), ctx.input(1), bool(ctx.attr("channels_last", 0))
    dilation, count = ctx.attr("dilation", 1), state_window(ctx)
    if ctx.rank(weight) != 3 or (not last and ctx.rank(x) != 3) or dilation < 1:
        raise ctx.fail(f"dilation {dilation}, weight {weight.type} and input {x.type} do not fit; correct the model")
    past = ctx.optional(3)
    if past is not None and count:
        past = ctx.squeeze(ctx.slice_axis(past, 0, count - 1, count), (0,))
    shape = ctx.shape(x)
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


OPERATORS: Mapping[str, Operator] = {
    "CausalConvWithState": Operator(
        causal_convolution, "input weight bias? past_state?",
        "activation channels_last dilation state_window", "output present_state state_update?",
        only={
            "ndim": 1, "state_update_capacity": 0, "state_channels_last": -1, "state_length": 0,
            "input_channel_offset": 0, "input_channels": 0,
        },
        refused={"state_update": "transitions that a speculative decoder replays are not captured"},
    ),
}  # fmt: skip
