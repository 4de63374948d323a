"""Canonical forms of what can be written in several ways: operand order, no-ops, chains of views and casts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilestitch.compiler.ir import Graph, Node, TensorType, Value, is_elementwise
from tilestitch.compiler.ir.sizes import Size, is_open
from tilestitch.compiler.ir.types import broadcast_shapes, dtype_kind, is_float
from tilestitch.passes.contract import PassContext, PassResult

from .driver import (
    Pattern,
    Replacement,
    apply_patterns,
    constant_like,
    elements,
    emit_like,
    is_sized,
    is_tensor,
    produced_by,
    result_fits,
    splat,
)
from .views import VIEW_PATTERNS

COMMUTATIVE = frozenset({
    "add", "mul", "maximum", "minimum", "equal", "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "bitwise_xor",
})  # fmt: skip

_ANY_SIZE = frozenset({
    "matmul", "conv", "reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and",
    "reshape", "transpose", "slice", "broadcast_to",
})  # fmt: skip
"""Operators, besides element-wise ones, that may be dropped where their results have no elements."""

_FOLDS = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and")

# Every value of the key is exactly a value of each dtype listed.
_EXACT: dict[str, frozenset[str]] = {
    "float16": frozenset({"float32", "float64"}),
    "bfloat16": frozenset({"float32", "float64"}),
    "float32": frozenset({"float64"}),
    "int8": frozenset({"int16", "int32", "int64", "float16", "float32", "float64", "bfloat16"}),
    "uint8": frozenset(
        {"int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "float32", "float64", "bfloat16"}
    ),
    "int16": frozenset({"int32", "int64", "float32", "float64"}),
    "uint16": frozenset({"int32", "int64", "uint32", "uint64", "float32", "float64"}),
    "int32": frozenset({"int64", "float64"}),
    "uint32": frozenset({"int64", "uint64", "float64"}),
    "bool": frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
    | frozenset({"float16", "bfloat16", "float32", "float64"}),
}


@dataclass(frozen=True)
class Canonicalise:
    """Bring nodes into the canonical form that other passes match. Changes no value."""

    name: ClassVar[str] = "canonicalise"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        return PassResult.counted(graph, apply_patterns(graph, PATTERNS), "rewrites")


def constant_to_the_right(graph: Graph, node: Node) -> Replacement | None:
    a, b = node.inputs
    if a.is_constant and not b.is_constant:
        return [emit_like(graph, node, node.op, b, a, **node.attrs)]
    return None


def drop_cast(graph: Graph, node: Node) -> Replacement | None:
    (x,) = node.inputs
    if is_tensor(x) and x.dtype == node.attrs["to"]:
        return [x]
    inner = produced_by(x, "cast")
    if inner is None or not is_tensor(inner.inputs[0]):
        return None
    source = inner.inputs[0]
    if x.dtype in _EXACT.get(source.dtype, ()) and _plain_cast(node):
        return [emit_like(graph, node, "cast", source, **node.attrs)]
    return None


def _plain_cast(node: Node) -> bool:
    """Return whether a cast is plain: casts to 8-bit floats and below follow source-dependent saturation rules and are
    left alone.
    """
    to = node.attrs["to"]
    return dtype_kind(to) in ("int", "uint", "bool") or (is_float(to) and "float8" not in to and "float4" not in to)


def drop_bit_cast(graph: Graph, node: Node) -> Replacement | None:
    (x,) = node.inputs
    return [x] if is_tensor(x) and x.dtype == node.attrs["to"] else None


def drop_double_not(graph: Graph, node: Node) -> Replacement | None:
    inner = produced_by(node.inputs[0], node.op)
    return [inner.inputs[0]] if inner else None


def select_of_known_condition(graph: Graph, node: Node) -> Replacement | None:
    condition, a, b = node.inputs
    known = splat(condition)
    if known is None and a is not b:
        return None
    chosen = a if known is None or known else b
    if not is_sized(node.output) or not is_sized(chosen):
        return None
    if chosen.type == node.output.type:  # a size of 1 differs from an open size that it may equal
        return [chosen]
    return [emit_like(graph, node, "broadcast_to", chosen, shape=node.output.shape)]


def implicit_broadcast(graph: Graph, node: Node) -> Replacement | None:
    """Remove explicit broadcasts before element-wise operators, which broadcast implicitly: read the operand of a
    broadcast_to, or a smaller constant.
    """
    if not is_elementwise(node.op) or len(node.inputs) < 2 or not all(map(is_tensor, (*node.inputs, *node.outputs))):
        return None
    for i, value in enumerate(node.inputs):
        smaller = _unbroadcast(graph, value)
        operands = [*node.inputs[:i], smaller, *node.inputs[i + 1 :]] if smaller is not None else []
        if smaller is not None and result_fits(operands, node.output.tensor_type.shape):
            if value.data is not None:
                smaller = constant_like(graph, value, _first_elements(value.data))
            return [emit_like(graph, node, node.op, *node.inputs[:i], smaller, *node.inputs[i + 1 :], **node.attrs)]
    return None


def broadcast_late(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite f(broadcast_to(a), b) to broadcast_to(f(a, b)) if that computes fewer elements, as for keys shared by
    several heads.
    """
    if not is_elementwise(node.op) or not all(map(is_sized, (*node.inputs, *node.outputs))):
        return None
    found = [produced_by(v, "broadcast_to") for v in node.inputs]
    operands = [v if b is None else b.inputs[0] for v, b in zip(node.inputs, found, strict=True)]
    if operands == list(node.inputs) or not all(map(is_sized, operands)):
        return None
    shape = node.output.shape
    computed = TensorType(node.output.dtype, broadcast_shapes(*(v.shape for v in operands)))
    if computed.num_elements >= elements(shape):
        return None
    value = emit_like(graph, node, node.op, *operands, **node.attrs)
    return [emit_like(graph, node, "broadcast_to", value, shape=shape)]


def _unbroadcast(graph: Graph, value: Value) -> Value | None:
    node = produced_by(value, "broadcast_to")
    if node is not None:
        return node.inputs[0]
    if value.data is not None and value.data.ndim > 0 and splat(value) is not None:
        return Value(value.name, TensorType(value.dtype, ()))  # stands in for the scalar until it is known to fit
    return None


def _first_elements(data: np.ndarray) -> np.ndarray:
    return np.asarray(data.reshape(-1)[:1].reshape(()))


def reduce_of_nothing(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite a reduction over no axes, or over axes of size 1, to a reshape of the operand."""
    (x,) = node.inputs
    if not is_sized(x) or any(x.shape[a] != 1 for a in node.attrs["axes"]):
        return None
    if x.shape == node.output.shape:
        return [x]
    return [emit_like(graph, node, "reshape", x, shape=node.output.shape)]


def keepdims_by_reshape(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite a reshape of a reduction that only adds or drops the reduced axes to the reduction with other
    keepdims.
    """
    inner = produced_by(node.inputs[0], *_FOLDS, "arg_max", "arg_min")
    if inner is None or not is_sized(inner.inputs[0]) or len(inner.output.uses) != 1 or graph.is_output(inner.output):
        return None
    axes = inner.attrs["axes"] if "axes" in inner.attrs else (inner.attrs["axis"],)
    shape = inner.inputs[0].shape
    kept = tuple(1 if i in axes else d for i, d in enumerate(shape))
    dropped = tuple(d for i, d in enumerate(shape) if i not in axes)
    if node.output.shape not in (kept, dropped) or not axes:
        return None
    attrs = {**inner.attrs, "keepdims": node.output.shape == kept}
    return [graph.emit(inner.op, inner.inputs[0], origins=inner.origins, insert_before=node, **attrs)]


def gather_of_constant_range(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite a gather with one constant index, or a constant arithmetic sequence of indices, to a slice."""
    x, indices = node.inputs
    axis = node.attrs["axis"]
    if indices.data is None or indices.data.ndim > 1 or indices.data.size == 0 or not is_sized(x):
        return None
    size = x.shape[axis]
    wanted = indices.data.reshape(-1).astype(np.int64)
    wanted = np.where(wanted < 0, wanted + size, wanted)
    if wanted.min() < 0 or wanted.max() >= size:
        return None
    step = int(wanted[1] - wanted[0]) if wanted.size > 1 else 1
    if step == 0 or (wanted.size > 1 and (np.diff(wanted) != step).any()):
        return None
    rank = len(x.shape)
    sliced = emit_like(
        graph, node, "slice", x,
        starts=tuple(int(wanted[0]) if i == axis else 0 for i in range(rank)),
        steps=tuple(step if i == axis else 1 for i in range(rank)),
        sizes=tuple(wanted.size if i == axis else d for i, d in enumerate(x.shape)),
    )  # fmt: skip
    if sliced.shape == node.output.shape:
        return [sliced]
    return [emit_like(graph, node, "reshape", sliced, shape=node.output.shape)]


def empty_result(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite a result without elements to an empty tensor, which needs no computation."""
    if len(node.outputs) != 1 or not (is_elementwise(node.op) or node.op in _ANY_SIZE) or not is_sized(node.output):
        return None
    shape = node.output.shape
    if not _has_none(shape) or not all(map(is_tensor, node.inputs)):
        return None
    if not any(map(is_open, shape)):
        return [graph.constant(np.empty(shape), dtype=node.output.dtype, name=node.output.name)]
    if node.op == "broadcast_to" and node.inputs[0].is_constant:
        return None
    nothing = graph.constant(np.empty([0 if d == 0 else 1 for d in shape]), dtype=node.output.dtype)
    return [emit_like(graph, node, "broadcast_to", nothing, shape=shape)]


def sum_of_no_products(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite a matmul over an empty reduction to zeros."""
    x = node.inputs[0]
    if not is_sized(x) or not is_sized(node.output) or x.shape[-2 if node.attrs.get("trans_a") else -1] != 0:
        return None
    return [_zeros(graph, node)]


def windows_of_nothing(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite a convolution of an empty image, or with empty filters, to zeros."""
    if not all(map(is_sized, (*node.inputs, node.output))) or not any(_has_none(v.shape) for v in node.inputs):
        return None
    return [_zeros(graph, node)]


def sum_of_nothing(graph: Graph, node: Node) -> Replacement | None:
    (x,) = node.inputs
    if not is_sized(x) or not is_sized(node.output) or not _has_none([x.shape[axis] for axis in node.attrs["axes"]]):
        return None
    return [_zeros(graph, node)]


def _zeros(graph: Graph, node: Node) -> Value:
    zero = graph.constant(np.zeros(()), dtype=node.output.dtype)
    return emit_like(graph, node, "broadcast_to", zero, shape=node.output.shape)


def _has_none(shape: Sequence[Size]) -> bool:
    """Return whether an extent is 0, whatever the open ones are."""
    return any(not is_open(extent) and extent == 0 for extent in shape)


PATTERNS: dict[str, list[Pattern]] = {
    **{op: [constant_to_the_right] for op in COMMUTATIVE},
    "cast": [drop_cast],
    "bit_cast": [drop_bit_cast],
    "logical_not": [drop_double_not],
    "bitwise_not": [drop_double_not],
    "select": [select_of_known_condition],
    "gather": [gather_of_constant_range],
    "matmul": [sum_of_no_products],
    "conv": [windows_of_nothing],
    "conv_transpose": [windows_of_nothing],
    **{op: [reduce_of_nothing] for op in _FOLDS},
    "reduce_sum": [sum_of_nothing, reduce_of_nothing],
    **VIEW_PATTERNS,
    "reshape": [*VIEW_PATTERNS["reshape"], keepdims_by_reshape],
    "*": [implicit_broadcast, broadcast_late, empty_result],
}
