"""RNN, LSTM and GRU.

The inputs of all time steps are multiplied by their weights in one matmul before all steps. The rest of a step is
unrolled for short sequences; longer ones become a `scan`, whose body is one step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.compiler.ir.claims import may_be_equal
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.compiler.ir.types import to_numpy_dtype

from ..builder import Builder, dtype_of
from ..context import Context, Converted, Versioned
from .activations import recurrent_activation
from .common import outputs_named
from .indexing import along_axis, reverse_sequence

MAX_UNROLLED_STEPS = 128

States: TypeAlias = "tuple[Value, ...]"
Weights: TypeAlias = "Mapping[str, Value]"
Step: TypeAlias = "Callable[[Builder, Value, States, Weights], States]"
"""One time step: from the projected input [B, gates*H] and the states [B, H] to the new states, hidden state first."""
Multiply: TypeAlias = "Callable[[Builder, Value, Weights, str], Value]"
"""Return x @ w^T for the weights w of this name: W those of inputs, R those of states."""


@dataclass(frozen=True)
class Layer:
    """The attributes of a recurrent node; `activations`: (name, alpha, beta) of each function of each direction."""

    directions: tuple[bool, ...]
    """For each direction, whether it runs backwards."""
    hidden: int
    activations: tuple[tuple[str, float | None, float | None], ...]
    clip: float | None
    batch_first: bool
    input_forget: bool
    linear_before_reset: bool

    def functions(self, b: Builder, direction: int) -> list[Callable[[Value], Value]]:
        """Return the activation functions of one direction, emitting through `b`."""
        count = len(self.activations) // len(self.directions)
        chosen = self.activations[direction * count : (direction + 1) * count]
        functions = [recurrent_activation(b, name.lower(), alpha, beta) for name, alpha, beta in chosen]
        return [f for f in functions if f is not None]

    def clipped(self, b: Builder, x: Value) -> Value:
        return x if self.clip is None else b.clamp(x, -self.clip, self.clip)


_NEEDS_ALPHA = ("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu")
_NEEDS_BETA = ("affine", "scaledtanh", "hardsigmoid")
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _layer(ctx: Context, defaults: Sequence[str], gates: int) -> Layer:
    direction = ctx.attr("direction", "forward").lower()
    if direction not in _DIRECTIONS:
        raise ctx.fail(f"direction is {direction!r}, none of {', '.join(_DIRECTIONS)}")
    directions = _DIRECTIONS[direction]
    found = ctx.dim(ctx.input(2), 2)
    hidden = ctx.attr("hidden_size", found)
    if not may_be_equal(hidden, found):
        raise ctx.fail(f"hidden_size is {hidden}, but the recurrence weights are for {found}")
    for weights in (ctx.input(1), ctx.input(2)):
        if not all(map(may_be_equal, ctx.shape(weights)[:2], (len(directions), gates * hidden))):
            raise ctx.fail(
                f"weights of type {weights.type} do not fit {len(directions)} directions of {gates} gates "
                f"with {hidden} states each"
            )
    names = ctx.attr("activations", tuple(defaults) * len(directions))
    if len(names) != len(defaults) * len(directions):
        raise ctx.fail(f"{len(names)} activations are given, {len(defaults) * len(directions)} are needed")
    alphas, betas = iter(ctx.attr("activation_alpha", ())), iter(ctx.attr("activation_beta", ()))
    activations = []
    for name in names:
        if recurrent_activation(ctx, name.lower(), None, None) is None:
            raise ctx.fail(f"activation {name!r} is unknown")
        alpha = next(alphas, None) if name.lower() in _NEEDS_ALPHA else None
        beta = next(betas, None) if name.lower() in _NEEDS_BETA else None
        activations.append((name, alpha, beta))
    clip = ctx.attr("clip", 0.0)
    return Layer(
        directions=directions,
        hidden=hidden,
        activations=tuple(activations),
        clip=clip if clip > 0 else None,
        batch_first=bool(ctx.attr("layout", 0)),
        input_forget=bool(ctx.attr("input_forget", 0)),
        linear_before_reset=bool(ctx.attr("linear_before_reset", 0)),
    )


NOT_QUANTISED: Weights = {}


def multiply_floats(b: Builder, x: Value, weights: Weights, name: str) -> Value:
    return b.matmul(x, weights[name], trans_b=True)


# -- the three cells -------------------------------------------------------------------------------------------------


def _rnn_step(layer: Layer, direction: int) -> Step:
    def step(b: Builder, x: Value, states: States, weights: Weights) -> States:
        (f,) = layer.functions(b, direction)
        (h,) = states
        return (f(layer.clipped(b, b.add(x, b.matmul(h, weights["R"], trans_b=True)))),)

    return step


def _lstm_step(layer: Layer, direction: int, multiply: Multiply) -> Step:
    def step(b: Builder, x: Value, states: States, weights: Weights) -> States:
        f, g, h = layer.functions(b, direction)
        hidden, cell = states
        gates = b.add(x, multiply(b, hidden, weights, "R"))
        i, o, forget, c = b.split(gates, 1, [layer.hidden] * 4)
        peepholes = b.split(weights["P"], 0, [layer.hidden] * 3) if "P" in weights else None
        if peepholes is not None:
            i = b.add(i, b.mul(peepholes[0], cell))
            forget = b.add(forget, b.mul(peepholes[2], cell))
        i = f(layer.clipped(b, i))
        forget = b.sub(1.0, i) if layer.input_forget else f(layer.clipped(b, forget))
        cell = b.add(b.mul(forget, cell), b.mul(i, g(layer.clipped(b, c))))
        if peepholes is not None:
            o = b.add(o, b.mul(peepholes[1], cell))
        return b.mul(f(layer.clipped(b, o)), h(cell)), cell

    return step


def _gru_step(layer: Layer, direction: int) -> Step:
    def step(b: Builder, x: Value, states: States, weights: Weights) -> States:
        f, g = layer.functions(b, direction)
        (h,) = states
        size = layer.hidden
        x_z, x_r, x_hidden = b.split(x, 1, [size] * 3)
        if layer.linear_before_reset:
            h_z, h_r, inner = b.split(b.matmul(h, weights["R"], trans_b=True), 1, [size] * 3)
            inner = b.add(inner, weights["Rb"]) if "Rb" in weights else inner
        else:
            r_gates, r_hidden = b.split(weights["R"], 0, [2 * size, size])
            h_z, h_r = b.split(b.matmul(h, r_gates, trans_b=True), 1, [size] * 2)
        z, r = (f(layer.clipped(b, b.add(a, c))) for a, c in ((x_z, h_z), (x_r, h_r)))
        if layer.linear_before_reset:
            inner = b.mul(r, inner)
        else:
            inner = b.matmul(b.mul(r, h), r_hidden, trans_b=True)
        candidate = g(layer.clipped(b, b.add(x_hidden, inner)))
        return (b.add(b.mul(b.sub(1.0, z), candidate), b.mul(z, h)),)

    return step


# -- over time -------------------------------------------------------------------------------------------------------


def _masked(b: Builder, mask: Value | None, new: States, old: States) -> tuple[States, Value]:
    """Return the new states, frozen beyond the end of a sequence, and the output, which is zero there."""
    if mask is None:
        return new, new[0]
    return tuple(b.select(mask, n, o) for n, o in zip(new, old, strict=True)), b.select(mask, new[0], 0.0)


def _unrolled(
    ctx: Context, step: Step, x: Value, states: States, weights: Weights, mask: Value | None, backwards: bool
) -> tuple[Value, States]:
    steps, batch, width = ctx.shape(x)
    outputs: list[Value] = []
    for t in reversed(range(steps)) if backwards else range(steps):
        x_t = ctx.reshape(ctx.slice_axis(x, 0, t, t + 1), (batch, width))
        mask_t = None if mask is None else ctx.reshape(ctx.slice_axis(mask, 0, t, t + 1), (batch, 1))
        states, y = _masked(ctx, mask_t, step(ctx, x_t, states, weights), states)
        outputs.append(ctx.expand_dims(y, (0,)))
    return ctx.concat(outputs[::-1] if backwards else outputs, 0), states


def _scanned(
    ctx: Context, step: Step, x: Value, states: States, weights: Weights, mask: Value | None, backwards: bool
) -> tuple[Value, States]:
    steps, batch, width = ctx.shape(x)
    body = Graph(f"{ctx.name}.step")
    inner = Builder(body, ctx.origins)
    inner_states = tuple(body.add_input("state", s.type) for s in states)
    inner_x = body.add_input("x", TensorType(dtype_of(x), (batch, width)))
    inner_mask = None if mask is None else body.add_input("mask", TensorType("bool", (batch, 1)))
    captured = [v for v in weights.values() if not v.is_constant]
    inner_weights = {
        n: inner.constant(v.data, name=n) if v.is_constant else body.add_input(n, v.type) for n, v in weights.items()
    }
    new_states, y = _masked(inner, inner_mask, step(inner, inner_x, inner_states, inner_weights), inner_states)
    body.outputs = [*new_states, y]
    scanned = [x] if mask is None else [x, mask]
    types = [*(s.type for s in states), TensorType(dtype_of(y), (steps, batch, ctx.dim(y, 1)))]
    attrs = {
        "body": body, "num_state": len(states), "num_scanned": len(scanned), "input_axes": (0,) * len(scanned),
        "input_reverse": (backwards,) * len(scanned), "output_axes": (0,), "output_reverse": (backwards,),
    }  # fmt: skip
    *final, outputs = ctx.emit_many("scan", [*states, *scanned, *captured], attrs, types)
    return outputs, tuple(final)


# -- the operators ---------------------------------------------------------------------------------------------------


def _optional_part(ctx: Context, value: Value | None, direction: int) -> Value | None:
    return None if value is None else _part(ctx, value, direction)


def _part(ctx: Context, value: Value, direction: int) -> Value:
    """Return one direction's slice of an operand [directions, ...]."""
    return ctx.squeeze(ctx.slice_axis(value, 0, direction, direction + 1), (0,))


def _projected(ctx: Context, y: Value, bias: Value | None, layer: Layer, gates: int) -> tuple[Value, Value | None]:
    """Return y, the inputs times their weights, plus all biases that can be added in advance; and the one that cannot
    (GRU's, inside the reset gate).
    """
    if bias is None:
        return y, None
    size = gates * layer.hidden
    w_bias, r_bias = ctx.split(bias, 0, [size, size])
    if not layer.linear_before_reset or gates != 3:
        return ctx.add(y, ctx.add(w_bias, r_bias)), None
    gate_bias, hidden_bias = ctx.split(r_bias, 0, [2 * layer.hidden, layer.hidden])
    zero = ctx.constant(np.zeros(layer.hidden, to_numpy_dtype(dtype_of(y))))
    return ctx.add(y, ctx.add(w_bias, ctx.concat([gate_bias, zero], 0))), hidden_bias


def _initial(ctx: Context, index: int, layer: Layer, batch: int, direction: int) -> Value:
    given = ctx.optional(index)
    if given is None:
        return ctx.full((batch, layer.hidden), 0.0, dtype_of(ctx.input(0)))
    if layer.batch_first:
        given = ctx.transpose(given, (1, 0, 2))
    return _part(ctx, given, direction)


def _recurrent(
    ctx: Context,
    cell: Callable[[Layer, int], Step],
    defaults: Sequence[str],
    gates: int,
    num_states: int,
    multiply: Multiply = multiply_floats,
    quantisation: Weights = NOT_QUANTISED,
) -> Converted:
    """Convert a layer; `quantisation` are the parameters [directions, ...] that `multiply` finds beside the weights."""
    layer = _layer(ctx, defaults, gates)
    x = ctx.input(0)
    x = ctx.transpose(x, (1, 0, 2)) if layer.batch_first else x
    steps, batch, _ = ctx.shape(x)
    lengths = ctx.optional(4)
    mask = None
    if lengths is not None and not (lengths.data is not None and np.all(lengths.data >= steps)):
        time = along_axis(ctx, ctx.iota(steps), 0, 3)
        mask = ctx.less(time, ctx.reshape(ctx.cast(lengths, "int64"), (1, batch, 1)))
    outputs, finals = [], []
    for direction, backwards in enumerate(layer.directions):
        weights = {name: _part(ctx, value, direction) for name, value in quantisation.items()}
        step = cell(layer, direction)
        y, states = _direction(ctx, layer, step, multiply, weights, x, direction, backwards, mask, gates, num_states)
        outputs.append(ctx.expand_dims(y, (1,)))
        finals.append([ctx.expand_dims(s, (0,)) for s in states])
    y = ctx.concat(outputs, 1)
    last = [ctx.concat([f[i] for f in finals], 0) for i in range(num_states)]
    if layer.batch_first:
        y = ctx.transpose(y, (2, 0, 1, 3))
        last = [ctx.transpose(s, (1, 0, 2)) for s in last]
    return outputs_named(ctx, [y, *last])


def _direction(
    ctx: Context,
    layer: Layer,
    step: Step,
    multiply: Multiply,
    quantisation: Weights,
    x: Value,
    direction: int,
    backwards: bool,
    mask: Value | None,
    gates: int,
    num_states: int,
) -> tuple[Value, States]:
    w, r = (_part(ctx, ctx.input(i), direction) for i in (1, 2))
    bias = _optional_part(ctx, ctx.optional(3), direction)
    # Backwards over sequences of different lengths: each is reversed within its own length.
    flipped = backwards and mask is not None
    source = reverse_sequence(ctx, x, ctx.input(4), 1, 0) if flipped else x
    product = multiply(ctx, source, {"W": w, **quantisation}, "W")
    projected, reset_bias = _projected(ctx, product, bias, layer, gates)
    weights = {"R": r, **{name: value for name, value in quantisation.items() if name.startswith("R")}}
    if reset_bias is not None:
        weights["Rb"] = reset_bias
    peepholes = _optional_part(ctx, ctx.optional(7), direction) if num_states == 2 else None
    if peepholes is not None:
        weights["P"] = peepholes
    states = tuple(_initial(ctx, 5 + i, layer, ctx.dim(x, 1), direction) for i in range(num_states))
    steps = ctx.dim(x, 0)
    run = _unrolled if not is_open(steps) and 0 < steps <= MAX_UNROLLED_STEPS else _scanned
    y, final = run(ctx, step, projected, states, weights, mask, backwards and not flipped)
    return (reverse_sequence(ctx, y, ctx.input(4), 1, 0) if flipped else y), final


def convert_rnn(ctx: Context) -> Converted:
    return _recurrent(ctx, _rnn_step, ("Tanh",), 1, 1)


def convert_lstm(
    ctx: Context, multiply: Multiply = multiply_floats, quantisation: Weights = NOT_QUANTISED
) -> Converted:
    step = partial(_lstm_step, multiply=multiply)
    return _recurrent(ctx, step, ("Sigmoid", "Tanh", "Tanh"), 4, 2, multiply, quantisation)


def convert_gru(ctx: Context) -> Converted:
    return _recurrent(ctx, _gru_step, ("Sigmoid", "Tanh"), 3, 1)


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "RNN": [(1, convert_rnn)],
    "LSTM": [(1, convert_lstm)],
    "GRU": [(1, convert_gru)],
}
