"""Contractions of dequantised values become contractions of 8-bit integers, with sums of 32 bits.

For x = sx * (qx - zx) and constant weights w = sw * (qw - zw), x @ w is sx * sw * (qx - zx) @ (qw - zw): the integers
are multiplied, and what the zero points add comes out of the sums afterwards, mostly as a constant for each column. The
scales follow the sums, so that they are part of the kernel's epilogue, as are bias, activation and requantisation.

CPUs multiply uint8 by int8. So a signed left operand is shifted by 128, and its zero point with it; weights are
stored less their zero point, and where a column is not in the range of int8 then, less what is missing, too: what that
takes from the sums follows from the sum of each row, or of each window. GPUs multiply bytes of
either sign: a left operand is shifted there only where that makes its zero point 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.passes.contract import PassContext, PassResult

from .driver import computed_like, is_sized, produced_by
from .quantised import BYTES, dequantised, integral

SHIFT = 128
"""From int8 to uint8."""
MOST_REDUCED = (1 << 31) // 255**2
"""Products of two differences of bytes whose sum is in the range of int32, whatever they are."""


@dataclass(frozen=True)
class Integers:
    """Multiply 8-bit integers where a CPU has an instruction for groups of them, or a GPU tensor cores for them
    (`TargetInfo.multiplies_bytes`).
    """

    name: ClassVar[str] = "integers"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        if not context.target.multiplies_bytes:
            return PassResult(graph, False)
        count, reasons, signed = 0, list[str](), context.target.is_gpu
        for node in [node for node in graph.nodes if node.op in ("matmul", "conv")]:
            found = _in_integers(graph, node, signed)
            if isinstance(found, Value):
                graph.replace(node, [found])
                count += 1
            elif found is not None:
                reasons.append(f"{', '.join(node.origins) or node.name} multiplies {node.inputs[0].dtype}: {found}")
        if count:
            graph.sort()
        notes = [f"{count} contractions multiply 8-bit integers"] if count else []
        return PassResult(graph, count > 0, (*notes, *reasons))


@dataclass(frozen=True)
class _Weights:
    """Constant weights as int8, and what is still to be taken from each of them; both as the node's operand lies."""

    data: np.ndarray
    zero: np.ndarray

    @staticmethod
    def of(node: Node, plain: np.ndarray) -> _Weights:
        """Of weights less their zero points, int32, which are bytes of either sign but for that."""
        info, axes = np.iinfo(np.int8), _reduced(node)
        if plain.size == 0:
            return _Weights(plain.astype(np.int8), np.zeros((), np.int32))
        high, low = plain.max(axes, keepdims=True), plain.min(axes, keepdims=True)
        if high.max() - low.min() <= info.max - info.min:  # then one number will do for all
            high, low = high.max(), low.min()
        above, below = np.maximum(high - info.max, 0), np.minimum(low - info.min, 0)
        shift = np.asarray(above + below, np.int32)
        return _Weights((plain - shift).astype(np.int8), -shift)


def _in_integers(graph: Graph, node: Node, signed: bool) -> Value | str | None:
    """A contraction of bytes, or of what was bytes, by int8 and uint8, or int8 too where the left operand may be
    `signed`; or why it stays; None of any other.
    """
    left, right = node.inputs
    if not all(is_sized(v) for v in (left, right, node.output)):
        return None
    if node.output.dtype == "float32":
        return _dequantised(graph, node, signed)
    if signed or (left.dtype, right.dtype) == ("uint8", "int8") or node.output.dtype != "int32":
        return None
    left, zero = _narrow(left)
    if left.dtype not in BYTES or not _is_of_bytes(node):
        return None
    if right.data is None:
        return "both operands are known at run time only"
    weights = _Weights.of(node, right.data.astype(np.int32))
    return _why_not(node) or _sums(graph, node, *_left(graph, node, left, zero, signed), weights)


def _narrow(x: Value) -> tuple[Value, Value | None]:
    """Bytes and their zero point, if x is these as int32; else x."""
    less = produced_by(x, "sub")
    wide = produced_by(x if less is None else less.inputs[0], "cast")
    if x.dtype != "int32" or wide is None or wide.inputs[0].dtype not in BYTES:
        return x, None
    if less is None:
        return wide.inputs[0], None
    zero = integral(less.inputs[1], wide.inputs[0].dtype)
    return (x, None) if zero is None or set(zero.shape) - {1} else (wide.inputs[0], zero)


def _is_of_bytes(node: Node) -> bool:
    """Whether the right operand is bytes, or constants that are bytes of either sign less one number for each column:
    those of a column are no further apart than bytes are.
    """
    w = node.inputs[1]
    if w.data is None or w.dtype in BYTES:
        return w.dtype in BYTES
    if w.dtype != "int32" or (np.abs(w.data.astype(np.int64)) > 255).any():
        return False
    return w.data.size == 0 or bool((np.ptp(w.data, axis=_reduced(node)) <= 255).all())


def _dequantised(graph: Graph, node: Node, signed: bool) -> Value | str | None:
    x, w = (dequantised(graph, node, v) for v in node.inputs)
    if all(found is None or found.q.dtype not in BYTES for found in (x, w)):
        return None
    if x is None or x.q.dtype not in BYTES:
        return "its left operand is not quantised"
    if w is None or w.q.data is None or w.q.dtype not in BYTES:
        return "its right operand is no constant of 8-bit integers"
    if not x.per_tensor:
        return "its left operand has several scales"
    zero = np.zeros((), np.int32) if w.zero is None else w.zero.data
    if zero is None or not all(by_column(node, shape) for shape in (w.scale.shape, zero.shape)):
        return "the scales or zero points of its weights are not one for each column"
    if not all(_keeps_bytes_finite(scale) for scale in (x.scale, w.scale)):
        return "some of its scales are NaN, infinite, or make infinities of bytes"
    if not _keep_finite(x.scale, w.scale):
        return "a product of its scales is more than float32 holds"
    problem = _why_not(node)
    if problem is not None:
        return problem
    weights = _Weights.of(node, w.q.data.astype(np.int32) - zero)
    sums = _sums(graph, node, *_left(graph, node, x.q, x.zero, signed), weights, signed)
    if isinstance(sums, str):
        return sums
    scale = computed_like(graph, node, "reshape", w.scale, shape=of_columns(node, w.scale.shape))
    factor = computed_like(graph, node, "mul", computed_like(graph, node, "reshape", x.scale, shape=()), scale)
    return computed_like(graph, node, "mul", computed_like(graph, node, "cast", sums, to="float32"), factor)


def _keeps_bytes_finite(scale: Value) -> bool:
    """Else an infinity times the 0 among bytes is NaN, where a sum that is scaled would be infinite. Scales that are
    known at run time only are taken to.
    """
    with np.errstate(over="ignore"):
        return scale.data is None or bool(np.isfinite(scale.data * np.float32(255)).all())


def _keep_finite(left: Value, right: Value) -> bool:
    """Else a sum of 0 times an infinite product of scales is NaN. Scales known at run time only are taken to do so."""
    with np.errstate(over="ignore"):
        return left.data is None or right.data is None or bool(np.isfinite(left.data * right.data).all())


def _why_not(node: Node) -> str | None:
    """Why the sums of a contraction are not of 32 bits."""
    if is_depthwise(node):
        return "windows over each channel by itself are no GEMM"
    depth = prod(node.inputs[1].shape[axis] for axis in _reduced(node))
    if depth > MOST_REDUCED:
        return f"sums of {depth} products of bytes may be more than 32 bits hold"
    return None


def is_depthwise(node: Node) -> bool:
    """Windows over each channel by itself are no GEMM."""
    return node.op == "conv" and node.inputs[1].shape[1] == 1 and node.attrs["groups"] > 1


def _reduced(node: Node) -> tuple[int, ...]:
    """Axes of the right operand that are summed over."""
    rank = len(node.inputs[1].shape)
    if node.op == "conv":
        return tuple(range(1, rank)) if node.attrs["layout"] == "NCX" else tuple(range(rank - 1))
    return (rank - 1 if node.attrs.get("trans_b") else rank - 2,)


def by_column(node: Node, shape: tuple[int, ...]) -> bool:
    """Whether parameters of a shape against the right operand do not differ along the reduction."""
    padded = _padded_shape(node, shape)
    return all(padded[axis] == 1 for axis in _reduced(node))


def _padded_shape(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (len(node.inputs[1].shape) - len(shape)) + tuple(shape)


def of_columns(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape against the result of what has `shape` against the right operand, with 1 along the reduction."""
    shape = _padded_shape(node, shape)
    if node.op == "matmul":
        return (*shape[:-2], 1, shape[-2]) if node.attrs.get("trans_b") else shape
    rank = len(node.output.shape)
    return (1, shape[0], *(1,) * (rank - 2)) if node.attrs["layout"] == "NCX" else (*(1,) * (rank - 1), shape[-1])


def _sums(graph: Graph, node: Node, x: Value, zero: Value, w: _Weights, signed: bool = False) -> Value | str:
    """The contraction of x - zero and w.data - w.zero in int32, where `node` is; or why no kernel is good at it."""
    if w.zero.any() and node.op == "conv" and (signed or node.attrs["groups"] > 1):
        where = "GPUs" if signed else "groups of channels"
        return f"the zero points of its weights do not fit into int8, which convolutions of {where} need"
    taken = _taken_by_weights(graph, node, x, zero, w.zero) if w.zero.any() else None
    attrs = {k: v for k, v in node.attrs.items() if k != "precision"} | {"out_dtype": "int32"}
    if node.op == "conv" and not _is_zero(zero) and any(p != 0 for p in (*attrs["before"], *attrs["after"])):
        x, attrs = _padded(graph, node, x, zero, attrs)
    weights = graph.constant(w.data, name=node.inputs[1].name)
    sums = computed_like(graph, node, node.op, x, weights, **attrs)
    if not _is_zero(zero):
        columns = w.data.sum(_reduced(node), dtype=np.int32, keepdims=True)
        columns = columns.reshape(of_columns(node, columns.shape))
        of_columns_taken = computed_like(graph, node, "mul", graph.constant(columns, name="columns"), zero)
        sums = computed_like(graph, node, "sub", sums, of_columns_taken)
    return sums if taken is None else computed_like(graph, node, "sub", sums, taken)


def _taken_by_weights(graph: Graph, node: Node, x: Value, zero: Value, of_weights: np.ndarray) -> Value:
    """Zero point of the weights times the sum of the row, or of the window, of x - zero."""
    wide = computed_like(graph, node, "cast", x, to="int32")
    wide = wide if _is_zero(zero) else computed_like(graph, node, "sub", wide, zero)
    rows = _of_windows(graph, node, wide) if node.op == "conv" else _of_rows(graph, node, wide)
    factor = of_weights.reshape(of_columns(node, of_weights.shape)) if of_weights.ndim else of_weights
    return computed_like(graph, node, "mul", rows, graph.constant(factor, name="zero"))


def _of_rows(graph: Graph, node: Node, wide: Value) -> Value:
    axis = len(wide.shape) - (2 if node.attrs.get("trans_a") else 1)
    rows = computed_like(graph, node, "reduce_sum", wide, axes=(axis,), keepdims=True)
    if not node.attrs.get("trans_a"):
        return rows
    return computed_like(graph, node, "transpose", rows, perm=(*range(axis), axis + 1, axis))


def _of_windows(graph: Graph, node: Node, wide: Value) -> Value:
    """Sums over the channels of the pixels of each window: of one channel."""
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


def _left(graph: Graph, node: Node, x: Value, zero: Value | None, signed: bool) -> tuple[Value, Value]:
    """x as uint8, or perhaps int8 where it may be `signed`, and its zero point as a scalar of int32."""
    plain = graph.constant(np.int32(0), name="zero") if zero is None else zero
    plain = computed_like(graph, node, "reshape", plain, shape=())
    if x.dtype == "uint8" or (signed and (plain.data is None or plain.data.item() != -SHIFT)):
        return x, plain
    sign = graph.constant(np.int8(-SHIFT), name="sign")
    turned = computed_like(graph, node, "bitwise_xor", x, sign)
    shift = graph.constant(np.int32(SHIFT), name="shift")
    if plain.data is not None:
        return computed_like(graph, node, "bit_cast", turned, to="uint8"), graph.constant(plain.data + np.int32(SHIFT))
    return computed_like(graph, node, "bit_cast", turned, to="uint8"), computed_like(graph, node, "add", plain, shift)


def _is_zero(value: Value) -> bool:
    return value.data is not None and not value.data.any()


def _padded(
    graph: Graph, node: Node, x: Value, zero: Value, attrs: dict[str, object]
) -> tuple[Value, dict[str, object]]:
    """x with its zero point around it, and the window without padding."""
    fill = computed_like(graph, node, "cast", zero, to=x.dtype)
    spatial = len(node.attrs["before"])
    around = {side: _around(node, node.attrs[side]) for side in ("before", "after")}
    padded = computed_like(graph, node, "pad", x, fill, mode="constant", **around)
    return padded, attrs | {"before": (0,) * spatial, "after": (0,) * spatial}


def _around(node: Node, pads: tuple[int, ...]) -> tuple[int, ...]:
    return (0, 0, *pads) if node.attrs["layout"] == "NCX" else (0, *pads, 0)
