"""Contractions of dequantised 8-bit floats multiply these directly, where tensor cores can; sums are float32.

For x = sx * qx and w = sw * qw, x @ w is sx * sw * (qx @ qw): the scales are applied to the sums, in the kernel's
epilogue. There are no zero points, and right operands computed at run time (attention) are treated in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.compiler.ir.types import HALVES, SMALL_FLOATS
from tilestitch.passes.contract import PassContext, PassResult

from .byte_operands import of_columns
from .driver import computed_like, is_sized, produced_by
from .integers import by_column, is_depthwise
from .quantised import Quantised, dequantised, replace_contractions

LARGEST = np.float32(57344)
"""The largest finite value of any 8-bit float."""


@dataclass(frozen=True)
class Float8:
    """Multiply 8-bit floats where tensor cores can (`TargetInfo.multiplies_small_floats`); else record that 32-bit or
    half floats are multiplied.
    """

    name: ClassVar[str] = "float8"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        replaced, reasons = replace_contractions(graph, ("matmul", "conv"), lambda n: _multiplied(graph, n, context))
        if replaced:
            graph.sort()
        notes = [f"{len(replaced)} contractions multiply floats of 8 bits"] if replaced else []
        return PassResult(graph, bool(replaced), (*notes, *reasons))


def _multiplied(graph: Graph, node: Node, context: PassContext) -> Value | str | None:
    """Return the contraction of 8-bit floats; the reason why a candidate is unchanged; None for other nodes."""
    if not all(is_sized(v) for v in (*node.inputs, node.output)):
        return None
    operands = [_of_small(graph, node, value) for value in node.inputs]
    x, w = operands
    if x is None and w is None:
        return None
    if not context.target.multiplies_small_floats:
        return f"{context.target} multiplies no floats of 8 bits; GPUs do from sm_89 on"
    if x is None or w is None:
        return f"its {'left' if x is None else 'right'} operand has more than 8 bits"
    if not x.per_tensor or not by_column(node, w.scale.shape):
        return "its scales are not one for the left operand, and one for each column of the right one"
    if is_depthwise(node):
        return "windows over each channel by itself are no GEMM"
    if not all(_keeps_finite(scale) for scale in (x.scale, w.scale)):
        return "some of its scales are NaN, infinite, or make infinities of finite numbers"
    # Half-float results need no more accurate sums than these.
    coarse = node.output.dtype in HALVES or context.options.get("precision", "fp32") != "fp32"
    attrs = node.attrs | ({"precision": "tf32"} if coarse else {}) | {"out_dtype": "float32"}
    sums = computed_like(graph, node, node.op, x.q, w.q, **attrs)
    by_columns = computed_like(graph, node, "reshape", w.scale, shape=of_columns(node, w.scale.shape))
    factor = computed_like(graph, node, "mul", computed_like(graph, node, "reshape", x.scale, shape=()), by_columns)
    result = computed_like(graph, node, "mul", sums, factor)
    return (
        result if node.output.dtype == "float32" else computed_like(graph, node, "cast", result, to=node.output.dtype)
    )


def _of_small(graph: Graph, node: Node, value: Value) -> Quantised | None:
    """Return the 8-bit floats that an operand was dequantised from; None if there are none. Half floats were converted
    from float32.
    """
    if value.dtype in HALVES:
        cast = produced_by(value, "cast")
        value = value if cast is None else cast.inputs[0]
    found = dequantised(graph, node, value)
    return found if found is not None and found.q.dtype in SMALL_FLOATS else None


def _keeps_finite(scale: Value) -> bool:
    """Return whether scaling keeps 8-bit floats finite; else infinity times 0 would be NaN where the scaled sum is
    infinite. Run-time scales are assumed to.
    """
    with np.errstate(over="ignore"):
        return scale.data is None or bool(np.isfinite(scale.data * LARGEST).all())
