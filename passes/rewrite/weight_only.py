"""Blockwise-quantised weights of 4 or 8 bits are kept: matmuls with them become `block_matmul`.

Converters emit `host.dequantise_blocks` of constant weights. Remaining ones, read by other operators or for a target
without such kernels, are folded here. 8-bit weights with a scale per column, multiplied by floats, are treated as one
block per column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilestitch.compiler.ir import Graph, Node, Value, reference
from tilestitch.compiler.ir.blocks import BlockFormat
from tilestitch.compiler.ir.symbol_uses import remove_dead
from tilestitch.compiler.ir.types import from_numpy_dtype, is_float
from tilestitch.passes.contract import PassContext, PassResult
from tilestitch.passes.plan.cpu.gemm import ROUNDED, sums_fit
from tilestitch.passes.plan.cpu.isa import DOTS, isa_named
from tilestitch.passes.plan.gemm.codes import why_not_codes
from tilestitch.runtime.host.blocks import scale_values

from .driver import emit_like, is_sized, produced_by
from .quantised import BYTES, Quantised, dequantised, replace_contractions

DEQUANTISE = "host.dequantise_blocks"


@dataclass(frozen=True)
class WeightOnly:
    """Keep blockwise-quantised weights."""

    name: ClassVar[str] = "weight_only"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        kept, reasons = replace_contractions(graph, ("matmul",), lambda node: _kept(graph, node, context), "floats")
        if kept:
            remove_dead(graph)  # unused transposes of weights that are kept
        folded = _fold(graph)
        if kept or folded:
            graph.sort()
        notes = [f"{len(kept)} matmuls keep their weights in blocks"] if kept else []
        return PassResult(graph, bool(kept or folded), (*notes, *reasons))


def _kept(graph: Graph, node: Node, context: PassContext) -> Value | str | None:
    """Return the matmul with blockwise-quantised weights; why it stays a plain one; None for other nodes."""
    left, right = node.inputs
    if not is_float(node.output.dtype) or node.attrs.get("out_dtype") or not is_sized(node.output):
        return None
    chosen = _chosen(node)
    blocks = _of_chosen(graph, *chosen) if chosen else _of_blocks(node, right) or _of_columns(graph, node)
    if blocks is None or isinstance(blocks, str):
        return blocks
    form, weights = blocks
    if not _is_finite(form, weights):
        return "some of its weights, or of its scales, are NaN or infinite"
    problem = why_not_codes(form, left.dtype) if context.target.is_gpu else _why_not_on_cpu(form, context)
    if problem is not None:
        return problem
    if node.attrs.get("trans_a"):
        rank = len(left.shape)
        left = emit_like(graph, node, "transpose", left, perm=(*range(rank - 2), rank - 1, rank - 2))
    attrs = {**form.attrs, "rounds": True} if _rounds(node, form, context) else form.attrs
    return emit_like(graph, node, "block_matmul", left, weights, *chosen[2:], **attrs)


def _why_not_on_cpu(form: BlockFormat, context: PassContext) -> str | None:
    if form.integers or isa_named(context.target.isa).looks_up:
        return None
    return f"{form.codes} needs an instruction that looks up 16 floats, which {context.target} has not"


def _rounds(node: Node, form: BlockFormat, context: PassContext) -> bool:
    """Return whether the model allows rounding the left operand to 8 bits, and an instruction multiplies that by
    codes.
    """
    source = _source(node.inputs[1])[0]
    allowed = source is not None and bool(source.attrs.get("rounds"))
    dot = DOTS.get(context.target.dot)
    return allowed and form.integers and sums_fit(form) and dot is not None and dot.right == ROUNDED


def _is_finite(form: BlockFormat, weights: Value) -> bool:
    """Return whether all weights are finite: sums of codes are scaled afterwards, and 0 times infinity would be NaN."""
    assert weights.data is not None
    return bool(np.isfinite(bounds(form, weights.data)).all())


def bounds(form: BlockFormat, weights: np.ndarray) -> np.ndarray:
    """Return float32 [columns, blocks]: upper bounds on the magnitudes of a block's weights."""
    raw = weights[..., form.code_bytes : form.code_bytes + form.scale_bytes]
    with np.errstate(over="ignore", invalid="ignore"):
        return np.abs(scale_values(raw, form.scales)) * np.float32(1 << form.bits if form.integers else 2)


def _of_blocks(node: Node, right: Value) -> tuple[BlockFormat, Value] | str | None:
    """Return format and weights of a right operand that is dequantised, and perhaps transposed."""
    source, transposed = _source(right)
    if source is None:
        return None
    if transposed == bool(node.attrs.get("trans_b")):
        return "its blocks do not run along the reduction"
    form = BlockFormat.of(source.attrs)
    return form.problem or (form, source.inputs[0])


def _chosen(node: Node) -> tuple[Node, Value, Value] | tuple[()]:
    """Return the dequantising node of matrices of which each of a list of matrices is multiplied by one; what they are
    as [E, N, K]; and the indices. Nothing for other nodes.
    """
    left, right = node.inputs
    picked = produced_by(right, "gather")
    if picked is None or picked.attrs["axis"] != 0 or not node.attrs.get("trans_b") or node.attrs.get("trans_a"):
        return ()
    matrices, indices = picked.inputs
    view = produced_by(matrices, "reshape")
    source = None if view is None else produced_by(view.inputs[0], DEQUANTISE)
    if source is None or len(matrices.shape) != 3 or len(indices.shape) != 1 or len(left.shape) != 3:
        return ()
    return source, matrices, indices


def _of_chosen(graph: Graph, source: Node, matrices: Value, indices: Value) -> tuple[BlockFormat, Value] | str:
    """Return format and weights [E, N, blocks, bytes] of matrices of which some are chosen."""
    form, data = BlockFormat.of(source.attrs), source.inputs[0].data
    assert data is not None
    count, width, depth = matrices.shape
    if form.problem or depth != form.depth:
        return form.problem or "its blocks do not run along the reduction"
    weights = data.reshape(count, width, form.blocks, form.block_bytes)
    return form, graph.constant(weights, name=source.inputs[0].name)


def _source(right: Value) -> tuple[Node | None, bool]:
    """Return the dequantising node of an operand, if there is one, and whether a transpose follows it."""
    view = produced_by(right, "transpose")
    transposed = view is not None and tuple(view.attrs["perm"]) == (1, 0)
    return produced_by(view.inputs[0] if view is not None and transposed else right, DEQUANTISE), transposed


def _of_columns(graph: Graph, node: Node) -> tuple[BlockFormat, Value] | str | None:
    """Return constant 8-bit weights with one scale and zero point per column as blocks of whole columns."""
    found = dequantised(graph, node, node.inputs[1])
    if found is None or found.q.dtype not in BYTES or found.q.data is None or len(found.q.shape) != 2:
        return None
    data = _by_column(found, bool(node.attrs.get("trans_b")))
    if data is None:
        return "scales or zero points of its weights are not constants, one for each column"
    codes, scales, zeros = data
    width, depth = codes.shape
    if not codes.size:
        return None
    shift = 128 if codes.dtype == np.uint8 else 0
    centred = (codes.astype(np.int32) - shift).astype(np.uint8)
    points = (zeros.astype(np.int32) - shift).astype(np.uint8).reshape(width, 1)
    form = BlockFormat("int8", -(-depth // 4) * 4, from_numpy_dtype(scales.dtype), bool(points.any()), depth)
    encoded = form.encode(centred, scales.reshape(width, 1), points if form.zeros else None)
    return form.problem or (form, graph.constant(encoded, name=node.inputs[1].name))


def _by_column(found: Quantised, transposed: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return codes [columns, depth], and scales and zero points [columns]; None if they vary within a column."""
    codes = found.q.data
    scale, zero = found.scale.data, np.zeros((), np.int32) if found.zero is None else found.zero.data
    if codes is None or scale is None or zero is None:
        return None
    spread = []
    for parameter in (scale, zero):
        wide = np.atleast_2d(parameter)
        wide = wide if transposed else wide.T
        if wide.shape[1:] != (1,):
            return None
        spread.append(np.broadcast_to(wide[:, 0], (codes.shape[0] if transposed else codes.shape[1],)))
    return (codes if transposed else codes.T), np.ascontiguousarray(spread[0]), spread[1]


def _fold(graph: Graph) -> int:
    """Fold the remaining dequantisations; return their number."""
    count = 0
    for node in [node for node in graph.nodes if node.op == DEQUANTISE]:
        if node.output.uses or graph.is_output(node.output):
            (values,) = reference(node.op)([node.inputs[0].data], node.attrs)
            graph.replace(node, [graph.constant(values, name=node.output.name)])
        else:
            graph.remove(node)
        count += 1
    return count
