"""The LSTM that ONNX Runtime's dynamic quantisation emits."""

from __future__ import annotations

from collections.abc import Mapping

from tilestitch.compiler.ir import Value

from ...context import Context, Converted
from ..recurrent import convert_lstm
from .operator import Operator


def dynamic_quantize_lstm(ctx: Context) -> Converted:
    """Convert DynamicQuantizeLSTM with dequantised weights. Inputs and states, which ONNX Runtime rounds to 8 bits in
    each step, are not rounded.
    """
    weights = [_dequantised(ctx, 1, 8), _dequantised(ctx, 2, 10)]
    operands = [ctx.input(0), *weights, *(ctx.optional(i) for i in range(3, 8))]
    return convert_lstm(Context(ctx.scope, ctx.node, ctx.name, operands, opset=14))


def _dequantised(ctx: Context, index: int, scale: int) -> Value:
    """Return W[directions, width, 4 * hidden] as floats with the last axes swapped; parameters are per direction or per
    column.
    """
    w = ctx.cast(ctx.input(index), "float32")
    factor, zero = ctx.input(scale), ctx.cast(ctx.input(scale + 1), "float32")
    directions = ctx.dim(w, 0)
    spread = [ctx.reshape(p, (directions, 1, -1)) for p in (factor, zero)]
    return ctx.swap_axes(ctx.mul(ctx.sub(w, spread[1]), spread[0]), 1, 2)


OPERATORS: Mapping[str, Operator] = {
    "DynamicQuantizeLSTM": Operator(
        dynamic_quantize_lstm,
        "X W R B? sequence_lens? initial_h? initial_c? P? W_scale W_zero_point R_scale R_zero_point",
        "activation_alpha activation_beta activations clip direction hidden_size input_forget", "Y? Y_h? Y_c?",
    ),
}  # fmt: skip
