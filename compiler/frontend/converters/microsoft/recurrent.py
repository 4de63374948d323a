"""The LSTM that ONNX Runtime's dynamic quantisation emits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilestitch.compiler.ir import Value

from ...builder import Builder
from ...context import Context, Converted
from ..indexing import along_axis
from ..quantization import dynamic_quantize
from ..recurrent import Weights, convert_lstm
from .integer_matmul import scaled_integer_matmul
from .operator import Operator

_PARAMETERS = {"W.scale": 8, "W.zero": 9, "R.scale": 10, "R.zero": 11}


def dynamic_quantize_lstm(ctx: Context) -> Converted:
    """Convert DynamicQuantizeLSTM: inputs are rounded to 8 bits by the range of all steps, states by that of each, as
    ONNX Runtime's kernel does with one thread.
    """
    weights = [ctx.swap_axes(ctx.input(i), 1, 2) for i in (1, 2)]
    operands = [_within_sequences(ctx), *weights, *(ctx.optional(i) for i in range(3, 8))]
    quantisation = {name: ctx.input(index) for name, index in _PARAMETERS.items()}
    return convert_lstm(Context(ctx.scope, ctx.node, ctx.name, operands, opset=14), multiply_quantised, quantisation)


def multiply_quantised(b: Builder, x: Value, weights: Weights, name: str) -> Value:
    """Return x @ w^T of integer weights, whose scale and zero point are one number or one a column."""
    codes = (b.swap_axes(weights[name], 0, 1), weights[f"{name}.scale"], weights[f"{name}.zero"])
    return scaled_integer_matmul(b, dynamic_quantize(b, x), codes)


def _within_sequences(ctx: Context) -> Value:
    """Return x with zeros after the end of the longest sequence, which take no part in the range of the inputs."""
    x, lengths = ctx.input(0), ctx.optional(4)
    steps = ctx.shape(x)[0]
    if lengths is None or (lengths.data is not None and np.any(lengths.data >= steps)):
        return x
    longest = ctx.reduce("max", ctx.cast(lengths, "int64"), (0,), keepdims=False)
    return ctx.select(ctx.less(along_axis(ctx, ctx.iota(steps), 0, 3), longest), x, 0.0)


OPERATORS: Mapping[str, Operator] = {
    "DynamicQuantizeLSTM": Operator(
        dynamic_quantize_lstm,
        "X W R B? sequence_lens? initial_h? initial_c? P? W_scale W_zero_point R_scale R_zero_point",
        "activation_alpha activation_beta activations clip direction hidden_size input_forget", "Y? Y_h? Y_c?",
    ),
}  # fmt: skip
