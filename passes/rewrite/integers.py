"""Contractions of dequantised values become contractions of 8-bit integers, with sums of 32 bits.

For x = sx * (qx - zx) and constant weights w = sw * (qw - zw), x @ w is sx * sw * (qx - zx) @ (qw - zw): the integers
are multiplied, and what the zero points add comes out of the sums afterwards, mostly as a constant for each column. The
scales follow the sums, so that they are part of the kernel's epilogue, as are bias, activation and requantisation.

CPUs multiply uint8 by int8. So a signed left operand is shifted by 128, and its zero point with it; unsigned weights
are stored less their zero point where that is in the range of int8, and less 128 otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.passes.contract import PassContext, PassResult

from .driver import computed_like, is_sized
from .quantised import Quantised, dequantised

SHIFT = 128
"""From int8 to uint8."""
BYTES = ("int8", "uint8")


@dataclass(frozen=True)
class Integers:
    """Multiply 8-bit integers where a CPU has an instruction for groups of them (`TargetInfo.dot`)."""

    name: ClassVar[str] = "integers"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        if not context.target.dot:
            return PassResult(graph, False)
        count = sum(_rewritten(graph, node) for node in graph.nodes if node.op in ("matmul", "conv"))
        if count:
            graph.sort()
        notes = (f"{count} contractions multiply 8-bit integers",) if count else ()
        return PassResult(graph, count > 0, notes)


@dataclass(frozen=True)
class _Weights:
    """Constant weights as int8, and what is still to be taken from each of them; both as the node's operand lies."""

    data: np.ndarray
    zero: np.ndarray

    @staticmethod
    def of(data: np.ndarray, zero: np.ndarray) -> _Weights:
        plain = data.astype(np.int32) - zero
        if _fits(plain):
            return _Weights(plain.astype(np.int8), np.zeros_like(zero))
        shift = SHIFT if data.dtype == np.uint8 else 0
        return _Weights((data.astype(np.int32) - shift).astype(np.int8), zero - shift)


def _fits(data: np.ndarray) -> bool:
    info = np.iinfo(np.int8)
    return bool(data.size == 0 or (data.min() >= info.min and data.max() <= info.max))


def _rewritten(graph: Graph, node: Node) -> bool:
    """Whether a contraction was replaced by one of uint8 and int8."""
    left, right = node.inputs
    if not all(is_sized(v) for v in (left, right, node.output)) or _is_depthwise(node):
        return False
    if node.output.dtype == "float32":
        return _dequantised(graph, node)
    if (left.dtype, right.dtype) == ("uint8", "int8") or node.output.dtype != "int32":
        return False
    if left.dtype not in BYTES or right.dtype not in BYTES or right.data is None:
        return False
    sums = _sums(graph, node, left, None, _Weights.of(right.data, np.int32(0)))
    if sums is None:
        return False
    graph.replace(node, [sums])
    return True


def _dequantised(graph: Graph, node: Node) -> bool:
    x, w = (dequantised(graph, node, v) for v in node.inputs)
    if x is None or w is None or not x.per_tensor or w.q.data is None:
        return False
    scale, zero = _by_column(graph, node, w.scale), _zero_of(w)
    if scale is None or zero is None:
        return False
    sums = _sums(graph, node, x.q, x.zero, _Weights.of(w.q.data, zero))
    if sums is None:
        return False
    factor = computed_like(graph, node, "mul", x.scale, scale)
    graph.replace(
        node, [computed_like(graph, node, "mul", computed_like(graph, node, "cast", sums, to="float32"), factor)]
    )
    return True


def _is_depthwise(node: Node) -> bool:
    """Windows over each channel by itself are no GEMM."""
    return node.op == "conv" and node.inputs[1].shape[1] == 1 and node.attrs["groups"] > 1


def _reduced(node: Node) -> tuple[int, ...]:
    """Axes of the right operand that are summed over."""
    rank = len(node.inputs[1].shape)
    if node.op == "conv":
        return tuple(range(1, rank)) if node.attrs["layout"] == "NCX" else tuple(range(rank - 1))
    return (rank - 1 if node.attrs.get("trans_b") else rank - 2,)


def _zero_of(w: Quantised) -> np.ndarray | None:
    """The zero point of weights, if it is known."""
    if w.zero is None:
        return np.zeros((1,) * len(w.q.shape), np.int32)
    return w.zero.data


def _by_column(graph: Graph, node: Node, parameter: Value) -> Value | None:
    """A scale of weights shaped to broadcast against the result; None if it differs along the reduction."""
    shape, reduced = parameter.shape, _reduced(node)
    rank = len(node.inputs[1].shape)
    padded = (1,) * (rank - len(shape)) + tuple(shape)
    if any(padded[axis] != 1 for axis in reduced):
        return None
    return computed_like(graph, node, "reshape", parameter, shape=_columns(node, padded))


def _columns(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape against the result of what has `shape` against the right operand, with 1 along the reduction."""
    if node.op == "matmul":
        return (*shape[:-2], 1, shape[-2]) if node.attrs.get("trans_b") else shape
    rank = len(node.output.shape)
    return (1, shape[0], *(1,) * (rank - 2)) if node.attrs["layout"] == "NCX" else (*(1,) * (rank - 1), shape[-1])


def _sums(graph: Graph, node: Node, x: Value, zero: Value | None, w: _Weights) -> Value | None:
    """The contraction of x - zero and w.data - w.zero in int32, where `node` is; None if no kernel is good at it."""
    if x.dtype not in BYTES or (w.zero.any() and node.op == "conv"):
        return None
    x, zero = _unsigned(graph, node, x, zero)
    attrs = {k: v for k, v in node.attrs.items() if k != "precision"} | {"out_dtype": "int32"}
    if node.op == "conv" and not _is_zero(zero) and any(p != 0 for p in (*attrs["before"], *attrs["after"])):
        x, attrs = _padded(graph, node, x, zero, attrs)
    weights = graph.constant(w.data, name=node.inputs[1].name)
    sums = computed_like(graph, node, node.op, x, weights, **attrs)
    if not _is_zero(zero):
        columns = w.data.sum(_reduced(node), dtype=np.int32, keepdims=True)
        columns = columns.reshape(_columns(node, columns.shape))
        taken = computed_like(graph, node, "mul", graph.constant(columns, name="columns"), zero)
        sums = computed_like(graph, node, "sub", sums, taken)
    return _without_weights_zero(graph, node, sums, x, zero, w.zero)


def _without_weights_zero(
    graph: Graph, node: Node, sums: Value, x: Value, zero: Value, of_weights: np.ndarray
) -> Value:
    """sums less zero point of the weights times sum of the row of x - zero. Of matmuls only."""
    if not of_weights.any():
        return sums
    axis = len(x.shape) - (2 if node.attrs.get("trans_a") else 1)
    wide = computed_like(graph, node, "cast", x, to="int32")
    wide = wide if _is_zero(zero) else computed_like(graph, node, "sub", wide, zero)
    rows = computed_like(graph, node, "reduce_sum", wide, axes=(axis,), keepdims=True)
    if node.attrs.get("trans_a"):
        perm = (*range(axis), axis + 1, axis)
        rows = computed_like(graph, node, "transpose", rows, perm=perm)
    rank = len(node.inputs[1].shape)
    padded = of_weights.reshape((1,) * (rank - of_weights.ndim) + of_weights.shape)
    factor = graph.constant(padded.reshape(_columns(node, padded.shape)), name="zero")
    return computed_like(graph, node, "sub", sums, computed_like(graph, node, "mul", rows, factor))


def _unsigned(graph: Graph, node: Node, x: Value, zero: Value | None) -> tuple[Value, Value]:
    """x as uint8, and its zero point as a scalar of int32."""
    plain = graph.constant(np.int32(0), name="zero") if zero is None else zero
    plain = computed_like(graph, node, "reshape", plain, shape=())
    if x.dtype == "uint8":
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
    fill = computed_like(graph, node, "cast", zero, to="uint8")
    spatial = len(node.attrs["before"])
    around = {side: _around(node, node.attrs[side]) for side in ("before", "after")}
    padded = computed_like(graph, node, "pad", x, fill, mode="constant", **around)
    return padded, attrs | {"before": (0,) * spatial, "after": (0,) * spatial}


def _around(node: Node, pads: tuple[int, ...]) -> tuple[int, ...]:
    return (0, 0, *pads) if node.attrs["layout"] == "NCX" else (0, *pads, 0)
