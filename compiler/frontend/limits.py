"""Lower limits of the standard operators' attributes: sizes, steps and counts.

ONNX gives an attribute of one name one meaning in all operators, and its checker tests none of these.
"""

from __future__ import annotations

from collections.abc import Mapping

from .context import Context

AT_LEAST: Mapping[str, int] = {
    "blocksize": 1, "dilations": 1, "group": 1, "hidden_size": 1, "kernel_shape": 1, "num_groups": 1, "num_outputs": 1,
    "output_height": 1, "output_width": 1, "p": 1, "pooled_shape": 1, "size": 1, "strides": 1,
    "block_size": 0, "clip": 0, "kv_num_heads": 0, "num_heads": 0, "output_padding": 0, "q_num_heads": 0,
    "sampling_ratio": 0,
}  # fmt: skip
"""The least value, or least entry, of an attribute."""

_PADDED_BY_OPERAND = frozenset({"Pad"})
"""Operators whose pads may be negative: they remove elements."""


def check_limits(ctx: Context) -> None:
    """Raise ConversionError if an attribute of the node is below the least value that its operator supports."""
    for attribute in ctx.node.attribute:
        least = 0 if attribute.name == "pads" and ctx.node.op_type not in _PADDED_BY_OPERAND else None
        least = AT_LEAST.get(attribute.name, least)
        if least is None:
            continue
        value = ctx.attr(attribute.name)
        entries = value if isinstance(value, (tuple, list)) else (value,)
        if any(isinstance(entry, (int, float)) and not entry >= least for entry in entries):
            raise ctx.fail(f"{attribute.name} is {value}, but must not be below {least}; correct the model")
