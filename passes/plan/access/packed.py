"""Constant operands in a packed layout: where their elements lie.

8-bit weights lie along the reduction, as tensor cores read them: half floats and TF32 are transposed on their way into
registers, but no instruction transposes bytes. The columns of GEMMs with gates are grouped by unit. The layout of
blockwise-quantised weights is given by `codes`.
"""

from dataclasses import dataclass

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.access.strided import Strided, row_major
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.codes import Codes
from tilestitch.passes.plan.gemm.units import Units, units_of


@dataclass(frozen=True)
class PackedLayout:
    """`memory` says where an element of the constant lies. key: identifies the layout. rows_at: the axis to which its
    last one moves; or `units`: how its columns are reordered, which then lie along k (`along_k`) or not. codes: the
    layout of blockwise-quantised weights, which `memory` describes as bytes.
    """

    memory: Strided
    key: str
    rows_at: int = 0
    units: Units | None = None
    along_k: bool = False
    codes: Codes | None = None


def codes_of(group: AnchoredGroup) -> Codes | None:
    """Return the layout of a matmul's weights if they are blockwise quantised. Tensor cores compute in the dtype of the
    left operand.
    """
    form, (left, right, *chosen) = group.blocks, group.anchor.inputs
    return None if form is None else Codes(form, right.shape[-3], left.dtype, right.shape[0] if chosen else 1)


def packed_layouts(group: AnchoredGroup) -> dict[Value, PackedLayout]:
    """Return the layout of the anchor's weights if only the anchor reads them; nothing if they stay as they are."""
    units = units_of(group.roles)
    weights, codes = group.anchor.inputs[1], codes_of(group)
    if codes is not None:
        return {weights: PackedLayout(Strided(weights, (codes.nbytes,), (1,)), "codes", codes=codes)}
    if units is not None:
        return {weights: _of_units(group.anchor, units)}
    place = _axis_of_rows(group.anchor)
    readers = [node for node in group.nodes if weights in node.inputs]
    if weights.data is None or storage_bytes(weights.dtype) != 1 or place is None or readers != [group.anchor]:
        return {}
    if weights not in group.inputs:  # a single element, which is written into the text
        return {}
    shape = list(weights.shape)
    rows = shape.pop()
    shape.insert(place % len(weights.shape), rows)
    strides = list(row_major(tuple(shape)))
    strides.append(strides.pop(place % len(weights.shape)))
    return {weights: PackedLayout(Strided(weights, weights.shape, tuple(strides)), f"rows_at:{place}", place)}


def _axis_of_rows(node: Node) -> int | None:
    """Return the axis to which the second operand's last axis moves so that the reduction is last; None if it is
    already.
    """
    if node.op == "matmul":
        return None if node.attrs.get("trans_b") else -2
    return 0 if node.attrs["layout"] == "NXC" else None


def _of_units(anchor: Node, units: Units) -> PackedLayout:
    """Return the layout of the matrix of a GEMM with gates: along k if it was so, or if whole units of few rows require
    it.
    """
    weights, trans_b = anchor.inputs[1], bool(anchor.attrs.get("trans_b"))
    depth, columns = weights.shape[1 if trans_b else 0], units.columns
    uneven = bool(units.gates & (units.gates - 1))
    along_k = trans_b or storage_bytes(weights.dtype) == 1 or (uneven and units.period == units.gates)
    strides = (depth, 1) if trans_b else (1, depth) if along_k else (columns, 1)
    memory = Strided(weights, (columns, depth) if trans_b else (depth, columns), strides)
    key = f"units:{units.gates}x{units.width}:{units.period}:{'k' if along_k else 'row'}"
    return PackedLayout(memory, key, units=units, along_k=along_k)
