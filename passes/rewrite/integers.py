"""Contractions of dequantised values become contractions of 8-bit integers with 32-bit sums.

`docs/quantised.md` derives how, and says what becomes of scales, zero points and signs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.compiler.ir.sizes import bounds_of, is_open
from tilestitch.passes.contract import PassContext, PassResult
from tilestitch.passes.plan.target import TargetInfo

from .byte_operands import (
    as_left,
    as_signed,
    is_zero,
    of_columns,
    of_right_columns,
    of_rows,
    padded_shape,
    reduced,
)
from .channels_last import to_ncx, to_nxc, weight_perm
from .driver import computed_like, emit_like, is_sized, produced_by, transposed
from .quantised import BYTES, Quantised, dequantised, integral, replace_contractions

MOST_REDUCED = (1 << 31) // 255**2
"""Most products of two byte differences whose sum always fits int32."""
MOST_COUNTED = (1 << 24) // 255**2
"""Most products of such differences whose sum float32 represents exactly."""
LEAST_ROWS = 8
"""Rows from which a run-time dequantised right operand is packed as bytes: packing takes as long as a few rows."""


@dataclass(frozen=True)
class Integers:
    """Multiply 8-bit integers where a CPU has a group instruction for them, or a GPU tensor cores
    (`TargetInfo.multiplies_bytes`).
    """

    name: ClassVar[str] = "integers"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        if not context.target.multiplies_bytes:
            return PassResult(graph, False)
        replaced, reasons = replace_contractions(
            graph, ("matmul", "conv"), lambda node: _in_integers(graph, node, context.target)
        )
        if replaced:
            graph.sort()
        counted = sum(map(is_depthwise, replaced))
        others = len(replaced) - counted
        notes = [f"{others} contractions multiply 8-bit integers"] if others else []
        notes += [f"{counted} depthwise convolutions multiply integers as float32"] if counted else []
        return PassResult(graph, bool(replaced), (*notes, *reasons))


@dataclass(frozen=True)
class _Weights:
    """Constant weights as int8, and what remains to be subtracted from each; both in the layout of the node's
    operand.
    """

    data: np.ndarray
    zero: np.ndarray

    @staticmethod
    def of(node: Node, plain: np.ndarray) -> _Weights:
        """Return int8 weights from int32 weights minus their zero points, which are bytes of either signedness before
        that.
        """
        info, axes = np.iinfo(np.int8), reduced(node)
        if plain.size == 0:
            return _Weights(plain.astype(np.int8), np.zeros((), np.int32))
        high, low = plain.max(axes, keepdims=True), plain.min(axes, keepdims=True)
        if high.max() - low.min() <= info.max - info.min:  # then one number suffices for all
            high, low = high.max(), low.min()
        above, below = np.maximum(high - info.max, 0), np.minimum(low - info.min, 0)
        shift = np.asarray(above + below, np.int32)
        return _Weights((plain - shift).astype(np.int8), -shift)


def _in_integers(graph: Graph, node: Node, target: TargetInfo) -> Value | str | None:
    """Return a contraction of bytes, or of former bytes, as one of int8 and uint8 (on GPUs also int8 by int8); or why
    it is unchanged; None for other nodes.
    """
    left, right = node.inputs
    if not all(is_sized(v) for v in (left, right, node.output)):
        return None
    if node.output.dtype == "float32":
        return _dequantised(graph, node, target)
    if target.is_gpu or node.output.dtype != "int32":
        return None
    if left.dtype in target.left_bytes and right.dtype == "int8":
        return None
    left, zero = _narrow(left)
    if right.data is None:
        right, of_right = _narrow(right)
        if left.dtype not in BYTES or right.dtype not in BYTES:
            return None
        return _why_not_packed(node, target) or _sums_of_two(graph, node, (left, zero), (right, of_right), target)
    if left.dtype not in BYTES or not _is_of_bytes(node):
        return None
    weights = _Weights.of(node, right.data.astype(np.int32))
    problem = _why_not(node) or _why_not_less(node, weights, target)
    return problem or _sums(graph, node, *as_left(graph, node, left, zero, target.left_bytes), weights)


def _narrow(x: Value) -> tuple[Value, Value | None]:
    """Return the bytes and their zero point, if x is these as int32; else x itself."""
    less = produced_by(x, "sub")
    wide = produced_by(x if less is None else less.inputs[0], "cast")
    if x.dtype != "int32" or wide is None or wide.inputs[0].dtype not in BYTES:
        return x, None
    if less is None:
        return wide.inputs[0], None
    zero = integral(less.inputs[1], wide.inputs[0].dtype)
    return (x, None) if zero is None or set(zero.shape) - {1} else (wide.inputs[0], zero)


def _is_of_bytes(node: Node) -> bool:
    """Return whether the right operand is bytes, or constants that are bytes minus one number per column: the range
    within a column does not exceed that of bytes.
    """
    w = node.inputs[1]
    if w.data is None or w.dtype in BYTES:
        return w.dtype in BYTES
    if w.dtype != "int32" or (np.abs(w.data.astype(np.int64)) > 255).any():
        return False
    return w.data.size == 0 or bool((np.ptp(w.data, axis=reduced(node)) <= 255).all())


def _dequantised(graph: Graph, node: Node, target: TargetInfo) -> Value | str | None:
    x, w = (dequantised(graph, node, v) for v in node.inputs)
    if all(found is None or found.q.dtype not in BYTES for found in (x, w)):
        return None
    if x is None or x.q.dtype not in BYTES:
        return "its left operand is not quantised"
    if w is None or w.q.dtype not in BYTES:
        return "its right operand is not quantised to 8 bits"
    if not x.per_tensor:
        return "its left operand has several scales"
    if w.q.data is None:
        return _dequantised_both(graph, node, x, w, target)
    zero = np.zeros((), np.int32) if w.zero is None else w.zero.data
    if zero is None or not all(by_column(node, shape) for shape in (w.scale.shape, zero.shape)):
        return "the scales or zero points of its weights are not one for each column"
    problem, plain = _why_not_scaled(x, w), w.q.data.astype(np.int32) - zero
    if problem is None and is_depthwise(node) and prod(w.q.shape[axis] for axis in reduced(node)) <= MOST_COUNTED:
        return _scaled(graph, node, _counted(graph, node, x, plain), x, w)
    problem, weights = problem or _why_not(node), _Weights.of(node, plain)
    problem = problem or _why_not_less(node, weights, target)
    if problem is not None:
        return problem
    left = as_left(graph, node, x.q, x.zero, target.left_bytes)
    return _scaled(graph, node, _sums(graph, node, *left, weights), x, w)


def _counted(graph: Graph, node: Node, x: Quantised, plain: np.ndarray) -> Value:
    """Return a depthwise contraction of integers stored as float32, whose sums are exact. So the scales of the weights
    are applied to the sums, too, and weights take no more space in an artifact than bytes do.
    """
    whole = x.q
    if x.zero is not None and not is_zero(x.zero):
        wide = computed_like(graph, node, "cast", x.q, to="int32")
        whole = computed_like(graph, node, "sub", wide, computed_like(graph, node, "reshape", x.zero, shape=()))
    weights = graph.constant(plain.astype(np.float32), name=node.inputs[1].name)
    return computed_like(
        graph, node, "conv", computed_like(graph, node, "cast", whole, to="float32"), weights, **node.attrs
    )


def _dequantised_both(graph: Graph, node: Node, x: Quantised, w: Quantised, target: TargetInfo) -> Value | str:
    """Return the integer contraction of two operands known only at run time; or why it is unchanged."""
    rows = node.output.shape[-2] if node.op == "matmul" and len(node.output.shape) > 1 else 1
    if not w.per_tensor:
        return "its right operand, known at run time only, has several scales"
    if not is_open(rows) and rows < LEAST_ROWS:
        return f"{rows} rows by what is known at run time only are not worth packing that as bytes"
    problem = _why_not_packed(node, target) or _why_not_scaled(x, w)
    if problem is not None:
        return problem
    return _scaled(graph, node, _sums_of_two(graph, node, (x.q, x.zero), (w.q, w.zero), target), x, w)


def _why_not_scaled(x: Quantised, w: Quantised) -> str | None:
    """Return why scales cannot be applied to sums; None if they can."""
    if not all(_keeps_bytes_finite(scale) for scale in (x.scale, w.scale)):
        return "some of its scales are NaN, infinite, or make infinities of bytes"
    return None if _keep_finite(x.scale, w.scale) else "a product of its scales is more than float32 holds"


def _why_not_packed(node: Node, target: TargetInfo) -> str | None:
    """Return why a right operand known only at run time is not packed as bytes; None if it is."""
    if node.op != "matmul" or not target.packs_bytes:
        return "both operands are known at run time only"
    return _why_not(node)


def _sums_of_two(
    graph: Graph, node: Node, left: tuple[Value, Value | None], right: tuple[Value, Value | None], target: TargetInfo
) -> Value:
    """Return the int32 matmul of bytes minus their zero points, neither operand constant."""
    x, of_left = as_left(graph, node, *left, target.left_bytes)
    w, of_right = as_signed(graph, node, *right)
    attrs = {k: v for k, v in node.attrs.items() if k != "precision"} | {"out_dtype": "int32"}
    sums = computed_like(graph, node, "matmul", x, w, **attrs)
    if not is_zero(of_left):
        columns = of_right_columns(graph, node, computed_like(graph, node, "cast", w, to="int32"))
        sums = computed_like(graph, node, "sub", sums, computed_like(graph, node, "mul", columns, of_left))
    if not is_zero(of_right):
        wide = computed_like(graph, node, "cast", x, to="int32")
        wide = wide if is_zero(of_left) else computed_like(graph, node, "sub", wide, of_left)
        rows = of_rows(graph, node, wide)
        sums = computed_like(graph, node, "sub", sums, computed_like(graph, node, "mul", rows, of_right))
    return sums


def _scaled(graph: Graph, node: Node, sums: Value, x: Quantised, w: Quantised) -> Value:
    """Return the sums times both scales, as float32."""
    scale = computed_like(graph, node, "reshape", w.scale, shape=of_columns(node, w.scale.shape))
    factor = computed_like(graph, node, "mul", computed_like(graph, node, "reshape", x.scale, shape=()), scale)
    sums = sums if sums.dtype == "float32" else computed_like(graph, node, "cast", sums, to="float32")
    return computed_like(graph, node, "mul", sums, factor)


def _keeps_bytes_finite(scale: Value) -> bool:
    """Return whether scaling keeps bytes finite; else infinity times a 0 among the bytes would be NaN where the scaled
    sum is infinite. Run-time scales are assumed to.
    """
    with np.errstate(over="ignore"):
        return scale.data is None or bool(np.isfinite(scale.data * np.float32(255)).all())


def _keep_finite(left: Value, right: Value) -> bool:
    """Return whether products of scales are finite; else a sum of 0 times an infinite product would be NaN. Run-time
    scales are assumed to be.
    """
    with np.errstate(over="ignore"):
        return left.data is None or right.data is None or bool(np.isfinite(left.data * right.data).all())


def _why_not(node: Node) -> str | None:
    """Return why a contraction cannot have 32-bit sums; None if it can."""
    if is_depthwise(node):
        return "windows over each channel by itself are no GEMM"
    depth = prod(node.inputs[1].shape[axis] for axis in reduced(node))
    if bounds_of(depth)[1] > MOST_REDUCED:
        return f"sums of {depth} products of bytes may be more than 32 bits hold"
    return None


def is_depthwise(node: Node) -> bool:
    """Return whether a node is a depthwise convolution, which is no GEMM."""
    return node.op == "conv" and node.inputs[1].shape[1] == 1 and node.attrs["groups"] > 1


def by_column(node: Node, shape: tuple[int, ...]) -> bool:
    """Return whether parameters with a shape aligned with the right operand are constant along the reduction."""
    padded = padded_shape(node, shape)
    return all(padded[axis] == 1 for axis in reduced(node))


def _why_not_less(node: Node, w: _Weights, target: TargetInfo) -> str | None:
    """Return why the contribution of the weights' zero points cannot be subtracted from the sums; None if it can."""
    if not w.zero.any() or node.op != "conv" or not (target.is_gpu or node.attrs["groups"] > 1):
        return None
    where = "GPUs" if target.is_gpu else "groups of channels"
    return f"the zero points of its weights do not fit into int8, which convolutions of {where} need"


def _sums(graph: Graph, node: Node, x: Value, zero: Value, w: _Weights) -> Value:
    """Return the int32 contraction of x - zero and w.data - w.zero, in the place of `node`."""
    if w.zero.any() and node.op == "conv" and node.attrs["layout"] == "NCX":
        return _sums_of_channels_last(graph, node, x, zero, w)
    taken = _taken_by_weights(graph, node, x, zero, w.zero) if w.zero.any() else None
    attrs = {k: v for k, v in node.attrs.items() if k != "precision"} | {"out_dtype": "int32"}
    if node.op == "conv" and not is_zero(zero) and any(p != 0 for p in (*attrs["before"], *attrs["after"])):
        x, attrs = _padded(graph, node, x, zero, attrs)
    weights = graph.constant(w.data, name=node.inputs[1].name)
    sums = computed_like(graph, node, node.op, x, weights, **attrs)
    if not is_zero(zero):
        columns = w.data.sum(reduced(node), dtype=np.int32, keepdims=True)
        columns = columns.reshape(of_columns(node, columns.shape))
        of_columns_taken = computed_like(graph, node, "mul", graph.constant(columns, name="columns"), zero)
        sums = computed_like(graph, node, "sub", sums, of_columns_taken)
    return sums if taken is None else computed_like(graph, node, "sub", sums, taken)


def _sums_of_channels_last(graph: Graph, node: Node, x: Value, zero: Value, w: _Weights) -> Value:
    """Return the same for channels-last images, as all convolutions will have (`channels_last`). Then no part of the
    correction is channels first, which the following transpose could not be moved past.
    """
    rank = len(x.shape)
    perm = weight_perm(node.op, rank)
    turned = _Weights(w.data.transpose(perm), w.zero.transpose(perm) if w.zero.ndim else w.zero)
    pixels = transposed(graph, node, x, to_nxc(rank))
    attrs = {**node.attrs, "layout": "NXC", "out_dtype": "int32"}
    place = emit_like(graph, node, "conv", pixels, graph.constant(turned.data), **attrs)
    assert place.producer is not None
    sums = _sums(graph, place.producer, pixels, zero, turned)
    graph.remove(place.producer)
    return transposed(graph, node, sums, to_ncx(rank))


def _taken_by_weights(graph: Graph, node: Node, x: Value, zero: Value, of_weights: np.ndarray) -> Value:
    """Return the zero point of the weights times the sum over the row or window of x - zero."""
    wide = computed_like(graph, node, "cast", x, to="int32")
    wide = wide if is_zero(zero) else computed_like(graph, node, "sub", wide, zero)
    rows = _of_windows(graph, node, wide) if node.op == "conv" else of_rows(graph, node, wide)
    factor = of_weights.reshape(of_columns(node, of_weights.shape)) if of_weights.ndim else of_weights
    return computed_like(graph, node, "mul", rows, graph.constant(factor, name="zero"))


def _of_windows(graph: Graph, node: Node, wide: Value) -> Value:
    """Return the sums over channels and pixels of each window, with one channel."""
    weights, layout = node.inputs[1].shape, node.attrs["layout"]
    kernel = weights[2:] if layout == "NCX" else weights[:-2]
    axis = 1 if layout == "NCX" else len(wide.shape) - 1
    pixels = computed_like(graph, node, "reduce_sum", wide, axes=(axis,), keepdims=True)
    kept = ("strides", "before", "after", "dilations", "layout")
    window = {"reducer": "sum", "kernel": tuple(kernel), **{key: node.attrs[key] for key in kept}}
    alone = all(k == s == 1 for k, s in zip(kernel, node.attrs["strides"], strict=True))
    if alone and not any((*node.attrs["before"], *node.attrs["after"])):
        return pixels
    return computed_like(graph, node, "window_reduce", pixels, **window)


def _padded(
    graph: Graph, node: Node, x: Value, zero: Value, attrs: dict[str, object]
) -> tuple[Value, dict[str, object]]:
    """Return x padded with its zero point, and the window without padding."""
    fill = computed_like(graph, node, "cast", zero, to=x.dtype)
    spatial = len(node.attrs["before"])
    around = {side: _around(node, node.attrs[side]) for side in ("before", "after")}
    padded = computed_like(graph, node, "pad", x, fill, mode="constant", **around)
    return padded, attrs | {"before": (0,) * spatial, "after": (0,) * spatial}


def _around(node: Node, pads: tuple[int, ...]) -> tuple[int, ...]:
    return (0, 0, *pads) if node.attrs["layout"] == "NCX" else (0, *pads, 0)
