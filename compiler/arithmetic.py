"""Precision of the arithmetic that leads to a value, which determines the tolerance of accuracy checks.

Computed from the graph, node by node: what rounds, to which data type, and where floats become narrow integers at run
time (quantisation), so that the last bit of a sum can decide between two neighbouring steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilestitch.compiler.ir import Graph, Kind, Node, Value, kind_of
from tilestitch.compiler.ir.types import TensorType

COARSENESS = (
    "exact", "float64", "complex128", "float32", "complex64", "tf32", "float16", "bfloat16", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn",
)  # fmt: skip
"""Precisions from the finest to the coarsest."""

NARROW_BITS = {"int16": 16, "uint16": 16, "int8": 8, "uint8": 8, "int4": 4, "uint4": 4, "int2": 2, "uint2": 2}
"""Bits of the integers to which tensors are quantised."""

_CHOOSING = frozenset((
    "gather", "gather_elements", "gather_nd", "concat", "slice", "pad", "select", "maximum", "minimum", "neg", "abs",
    "sign", "floor", "ceil", "round", "trunc", "top_k", "reduce_max", "reduce_min", "scatter_elements", "scatter_nd",
    *(f"host.{name}" for name in (
        "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather", "Concat", "Split",
        "Expand", "Tile", "Pad", "Compress", "TopK", "Where",
    )),
))  # fmt: skip
"""Operators whose results are exact: elements of the operands, or integral values."""


@dataclass(frozen=True)
class Arithmetic:
    """Arithmetic that leads to a value. `precision`: the coarsest on the way; `node`: an ONNX node that rounds to it.
    `bits`: of the narrowest integers to which floats are quantised on the way (0: none). `step`: of a quantised value,
    the largest distance of neighbouring numbers.
    """

    precision: str = "exact"
    node: str = ""
    bits: int = 0
    step: float | None = None

    def joined(self, other: Arithmetic) -> Arithmetic:
        """Return the arithmetic of a value that depends on two values; it is not quantised itself."""
        coarser = max(self, other, key=lambda one: COARSENESS.index(one.precision))
        bits = min((one.bits for one in (self, other) if one.bits), default=0)
        return Arithmetic(coarser.precision, coarser.node, bits)

    def to_json(self) -> dict[str, Any]:
        return {"precision": self.precision, "node": self.node, "bits": self.bits, "step": self.step}


EXACT = Arithmetic()


def arithmetic_of_outputs(written: Graph, compiled: Graph, shown: Sequence[str] = ()) -> tuple[Arithmetic, ...]:
    """Return, for each output, the coarser arithmetic of the model as written, which a reference computes, and as
    compiled.

    `shown`: names of values that `compiled` has as further outputs. `written` has some of them, not as outputs.
    """
    before, after = _of_values(written), _of_values(compiled)
    named = {value.name: value for node in written.nodes for value in node.outputs}
    counterparts = [*written.outputs, *(named.get(name) for name in shown)]
    return tuple(
        after.get(here, EXACT) if there is None else _coarser(before.get(there, EXACT), after.get(here, EXACT))
        for there, here in zip(counterparts, compiled.outputs, strict=True)
    )


def _coarser(written: Arithmetic, compiled: Arithmetic) -> Arithmetic:
    return replace(written.joined(compiled), step=written.step)


def _of_values(graph: Graph) -> dict[Value, Arithmetic]:
    known: dict[Value, Arithmetic] = {}
    for node in graph.nodes:
        result = _of_node(node, [known.get(value, EXACT) for value in node.inputs])
        known.update((output, result) for output in node.outputs)
    return known


def _of_node(node: Node, operands: Sequence[Arithmetic]) -> Arithmetic:
    joined = EXACT
    for operand in operands:
        joined = joined.joined(operand)
    for inner in (a for a in node.attrs.values() if isinstance(a, Graph)):
        for nested in inner.nodes:
            joined = joined.joined(_of_node(nested, [EXACT]))
    joined = joined.joined(_rounding(node))
    return replace(joined, step=_step(node, operands))


def _rounding(node: Node) -> Arithmetic:
    """Return the rounding of the node itself."""
    if all(value.is_constant for value in node.inputs):
        return EXACT
    name = node.origins[0] if node.origins else node.name
    bits = NARROW_BITS.get(_quantised_to(node), 0)
    if bits:
        return Arithmetic("exact", name, bits)
    if node.op == "block_matmul" and node.attrs.get("rounds"):
        return Arithmetic(_inexact(node.output), name, 8)
    if node.attrs.get("precision") == "tf32":
        return Arithmetic("tf32", name)
    if kind_of(node.op) is Kind.VIEW or node.op in _CHOOSING or _widens(node):
        return EXACT
    coarsest = max((_inexact(value) for value in node.outputs), key=COARSENESS.index, default="exact")
    return Arithmetic(coarsest, name)


def _quantised_to(node: Node) -> str:
    """Return the integer data type to which the node quantises floats, "" for other nodes."""
    if node.op != "cast" or _inexact(node.inputs[0]) == "exact":
        return ""
    return str(node.attrs["to"])


def _widens(node: Node) -> bool:
    """Return whether it is a lossless cast."""
    if node.op != "cast":
        return False
    before, after = _inexact(node.inputs[0]), _inexact(node.outputs[0])
    if before == "exact":
        return isinstance(node.inputs[0].type, TensorType) and node.inputs[0].type.dtype in ("bool", *NARROW_BITS)
    return COARSENESS.index(after) <= COARSENESS.index(before)


def _inexact(value: Value) -> str:
    """Return the data type of a floating-point tensor, else `exact`."""
    dtype = getattr(value.type, "dtype", "")
    return dtype if dtype in COARSENESS else "exact"


def _step(node: Node, operands: Sequence[Arithmetic]) -> float | None:
    """Return the step of the result of a node that quantises, or moves, shifts or scales quantised values."""
    if NARROW_BITS.get(_quantised_to(node)):
        return 1.0
    steps = [operand.step for operand, value in zip(operands, node.inputs) if not value.is_constant]
    if not steps or None in steps:
        return None
    largest = max(step for step in steps if step is not None)
    if kind_of(node.op) is Kind.VIEW or node.op in _MOVING or node.op == "cast":
        return largest
    if node.op in ("add", "sub") and len(steps) == 1:
        return largest
    factor = _CONSTANT_FACTOR.get(node.op, lambda node: None)(node)
    return None if factor is None else largest * factor


_MOVING = frozenset(("gather", "gather_elements", "gather_nd", "concat", "slice", "pad"))


def _multiplier(node: Node) -> float | None:
    return next((_largest(v) for v in node.inputs if v.is_constant), None)


def _divisor(node: Node) -> float | None:
    smallest = _smallest(node.inputs[1]) if node.inputs[1].is_constant else 0.0
    return 1 / smallest if smallest else None


def _largest(value: Value) -> float:
    return float(np.abs(np.asarray(value.data, np.float64)).max(initial=0.0))


def _smallest(value: Value) -> float:
    return float(np.abs(np.asarray(value.data, np.float64)).min(initial=np.inf))


_CONSTANT_FACTOR: Mapping[str, Any] = {"mul": _multiplier, "div": _divisor}
