"""Run-time forms of reductions, sorts, gathers, scatters and matmuls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilestitch.compiler.frontend.builder import dtype_of
from tilestitch.compiler.frontend.context import Context, Versioned
from tilestitch.compiler.frontend.errors import NotStatic
from tilestitch.compiler.ir import AnyRankTensor, TensorType, Type, Value

from .host_types import constant_ints, ints_operand, length_of, present, tensor_step, unknown_tensor, with_unknown


def _reduction(name: str) -> Callable[[Context], Sequence[Value]]:
    def convert(ctx: Context) -> Sequence[Value]:
        x, axes = ctx.input(0), ints_operand(ctx, 1, "axes")
        keepdims, noop = bool(ctx.attr("keepdims", 1)), bool(ctx.attr("noop_with_empty_axes", 0))
        type_ = _reduced_type(x, axes, keepdims, noop)
        return tensor_step(ctx, name, (x, axes), [type_], keepdims=int(keepdims), noop_with_empty_axes=int(noop))

    return convert


def _reduced_type(x: Value, axes: Value | None, keepdims: bool, noop: bool) -> Type:
    dtype = dtype_of(x)
    count = 0 if axes is None else length_of(axes)
    if count == 0 and noop:
        return x.type
    if count == 0 and not keepdims:
        return TensorType(dtype, ())
    if not isinstance(x.type, TensorType):
        return AnyRankTensor(dtype)
    folded = tuple(range(x.type.rank)) if count == 0 else constant_ints(axes)
    if folded is None:
        rank = x.type.rank if keepdims else None if count is None else x.type.rank - count
        return unknown_tensor(dtype, rank)
    gone = {a % x.type.rank for a in folded} if x.type.rank else set()
    if keepdims:
        return x.type.with_shape(tuple(1 if i in gone else d for i, d in enumerate(x.type.shape)))
    return x.type.with_shape(tuple(d for i, d in enumerate(x.type.shape) if i not in gone))


def _arg_extreme(name: str) -> Callable[[Context], Sequence[Value]]:
    def convert(ctx: Context) -> Sequence[Value]:
        x, axis = ctx.input(0), ctx.constant([ctx.attr("axis", 0)], "int64")
        type_ = _reduced_type(x, axis, bool(ctx.attr("keepdims", 1)), False)
        indices = type_.with_dtype("int64") if isinstance(type_, TensorType) else AnyRankTensor("int64")
        return tensor_step(ctx, name, (x,), [indices], **present(ctx, "axis", "keepdims", "select_last_index"))

    return convert


def _cumulative(name: str) -> Callable[[Context], Sequence[Value]]:
    def convert(ctx: Context) -> Sequence[Value]:
        x, axis = ctx.input(0), ctx.input(1)
        return tensor_step(ctx, name, (x, axis), [x.type], **present(ctx, "exclusive", "reverse"))

    return convert


def _softmax(name: str) -> Callable[[Context], Sequence[Value]]:
    def convert(ctx: Context) -> Sequence[Value]:
        if ctx.opset < 13:
            raise NotStatic(f"{name} before opset 13 flattens its operand, whose shape is known only at run time")
        x = ctx.input(0)
        return tensor_step(ctx, name, (x,), [x.type], **present(ctx, "axis"))

    return convert


def top_k(ctx: Context) -> Sequence[Value]:
    x, k, axis = ctx.input(0), ints_operand(ctx, 1, "k"), ctx.attr("axis", -1)
    if k is None:
        raise ctx.fail("k is required")
    values, count = with_unknown(x, (axis,)), constant_ints(k)
    if isinstance(values, TensorType) and count is not None:
        place = axis % values.rank
        values = values.with_shape((*values.shape[:place], count[0], *values.shape[place + 1 :]))
    indices = values.with_dtype("int64") if isinstance(values, TensorType) else AnyRankTensor("int64")
    return tensor_step(ctx, "TopK", (x, k), [values, indices], **present(ctx, "axis", "largest"))


def mat_mul(ctx: Context) -> Sequence[Value]:
    a, b = ctx.input(0), ctx.input(1)
    return tensor_step(ctx, "MatMul", (a, b), [AnyRankTensor(dtype_of(a))])


def gather(ctx: Context) -> Sequence[Value]:
    x, indices = ctx.input(0), ctx.input(1)
    type_: Type = AnyRankTensor(dtype_of(x))
    if isinstance(x.type, TensorType) and isinstance(indices.type, TensorType):
        axis = ctx.axis(x, ctx.attr("axis", 0))
        type_ = x.type.with_shape((*x.type.shape[:axis], *indices.type.shape, *x.type.shape[axis + 1 :]))
    return tensor_step(ctx, "Gather", (x, indices), [type_], **present(ctx, "axis"))


def gather_elements(ctx: Context) -> Sequence[Value]:
    x, indices = ctx.input(0), ctx.input(1)
    type_ = indices.type.with_dtype(dtype_of(x)) if isinstance(indices.type, TensorType) else AnyRankTensor(dtype_of(x))
    return tensor_step(ctx, "GatherElements", (x, indices), [type_], **present(ctx, "axis"))


def gather_nd(ctx: Context) -> Sequence[Value]:
    x, indices = ctx.input(0), ctx.input(1)
    return tensor_step(ctx, "GatherND", (x, indices), [AnyRankTensor(dtype_of(x))], **present(ctx, "batch_dims"))


def scatter_elements(ctx: Context) -> Sequence[Value]:
    x, indices, updates = (ctx.input(i) for i in range(3))
    return tensor_step(ctx, "ScatterElements", (x, indices, updates), [x.type], **present(ctx, "axis", "reduction"))


def scatter_nd(ctx: Context) -> Sequence[Value]:
    x, indices, updates = (ctx.input(i) for i in range(3))
    return tensor_step(ctx, "ScatterND", (x, indices, updates), [x.type], **present(ctx, "reduction"))


def reverse_sequence(ctx: Context) -> Sequence[Value]:
    x, lengths = ctx.input(0), ctx.input(1)
    return tensor_step(ctx, "ReverseSequence", (x, lengths), [x.type], **present(ctx, "batch_axis", "time_axis"))


_REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip

DYNAMIC: Mapping[str, Sequence[Versioned]] = {
    **{name: [(1, _reduction(name))] for name in _REDUCTIONS},
    "ArgMax": [(1, _arg_extreme("ArgMax"))],
    "ArgMin": [(1, _arg_extreme("ArgMin"))],
    "CumSum": [(11, _cumulative("CumSum"))],
    "CumProd": [(26, _cumulative("CumProd"))],
    "Softmax": [(1, _softmax("Softmax"))],
    "LogSoftmax": [(1, _softmax("LogSoftmax"))],
    "TopK": [(1, top_k)],
    "MatMul": [(1, mat_mul)],
    "Gather": [(1, gather)],
    "GatherElements": [(11, gather_elements)],
    "GatherND": [(11, gather_nd)],
    "ScatterElements": [(11, scatter_elements)],
    "ScatterND": [(11, scatter_nd)],
    "ReverseSequence": [(10, reverse_sequence)],
}
