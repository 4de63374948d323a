"""Constant operands in a layout of their own.

8-bit weights lie along the reduction, as the tensor cores read them: half floats and TF32 are transposed on their way
into registers, but there is no instruction that does so with bytes. Columns of products with gates are units' columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilestitch.codegen.compute.dtypes import storage_bits
from tilestitch.codegen.launch import PackedArg
from tilestitch.compiler.ir.graph import Node, Value

from .strides import Strided, row_major
from .surroundings import Anchored
from .units import Units, units_of


def packed_weights(group: Anchored) -> dict[Value, tuple[PackedArg, Strided]]:
    """The anchor's weights as an argument and where their elements lie then; nothing if they stay as they are."""
    units = units_of(group)
    if units is not None:
        return {group.anchor.inputs[1]: _packed_units(group, units)}
    weights, place = group.anchor.inputs[1], _axis_of_rows(group.anchor)
    readers = [node for node in group.nodes if weights in node.inputs]
    if weights.data is None or storage_bits(weights.dtype) != 8 or place is None or readers != [group.anchor]:
        return {}

    def arrange(data: Any) -> Any:
        return np.ascontiguousarray(np.moveaxis(data, -1, place))

    shape = list(weights.shape)
    rows = shape.pop()
    shape.insert(place % len(weights.shape), rows)
    strides = list(row_major(tuple(shape)))
    strides.append(strides.pop(place % len(weights.shape)))
    memory = Strided(weights, weights.shape, tuple(strides))
    return {weights: (PackedArg(weights.name, f"rows_at:{place}", arrange), memory)}


def _axis_of_rows(node: Node) -> int | None:
    """Where the last axis of the second operand goes for the reduction to come last; None if it does already."""
    if node.op == "matmul":
        return None if node.attrs.get("trans_b") else -2
    return 0 if node.attrs["layout"] == "NXC" else None


def _packed_units(group: Anchored, units: Units) -> tuple[PackedArg, Strided]:
    """The matrix of a product with gates: it runs along k as it did, or where whole units of few rows can be had so."""
    weights, trans_b = group.anchor.inputs[1], bool(group.anchor.attrs.get("trans_b"))
    depth, columns = weights.shape[1 if trans_b else 0], units.columns
    uneven = bool(units.gates & (units.gates - 1))
    along_k = trans_b or storage_bits(weights.dtype) == 8 or (uneven and units.period == units.gates)

    def arrange(data: Any) -> Any:
        matrix = units.arrange(data.T if trans_b else data)
        return np.ascontiguousarray(matrix.T if along_k else matrix)

    strides = (depth, 1) if trans_b else (1, depth) if along_k else (columns, 1)
    memory = Strided(weights, (columns, depth) if trans_b else (depth, columns), strides)
    layout = f"units:{units.gates}x{units.width}:{units.period}:{'k' if along_k else 'row'}"
    return PackedArg(weights.name, layout, arrange), memory
