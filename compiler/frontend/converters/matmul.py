"""Matmuls: MatMul, Gemm and Einsum. Determinants: written out for small matrices, on the host for larger ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.claims import may_be_equal
from tilestitch.compiler.ir.sizes import as_size
from tilestitch.compiler.ir.types import broadcast_shapes, is_float

from ..builder import Builder, dtype_of
from ..context import Context, Versioned


def matmul_any_rank(b: Builder, x: Value, y: Value, out_dtype: str | None = None) -> Value:
    """Multiply as numpy.matmul does: vectors become a row or a column, and their axis is dropped from the result."""
    row, column = b.rank(x) == 1, b.rank(y) == 1
    left = b.expand_dims(x, (0,)) if row else x
    right = b.expand_dims(y, (1,)) if column else y
    result = b.matmul(left, right, out_dtype=out_dtype)
    rank = b.rank(result)
    dropped = ([rank - 2] if row else []) + ([rank - 1] if column else [])
    return b.squeeze(result, dropped) if dropped else result


def convert_matmul(ctx: Context) -> Value:
    return matmul_any_rank(ctx, ctx.input(0), ctx.input(1))


def convert_gemm(ctx: Context) -> Value:
    a, b, c = ctx.input(0), ctx.input(1), ctx.optional(2)
    if ctx.rank(a) != 2 or ctx.rank(b) != 2:
        raise ctx.fail(f"its operands are matrices, not of type {a.type} and {b.type}; use MatMul for others")
    alpha, beta = ctx.attr("alpha", 1.0), ctx.attr("beta", 1.0)
    scale_b = alpha != 1.0 and b.is_constant
    y = ctx.matmul(
        a,
        _scaled(ctx, b, alpha) if scale_b else b,
        trans_a=bool(ctx.attr("transA", 0)),
        trans_b=bool(ctx.attr("transB", 0)),
    )
    if not scale_b:
        y = _scaled(ctx, y, alpha)
    if c is None or beta == 0.0:
        return y
    return ctx.add(y, _scaled(ctx, c, beta))


def _scaled(ctx: Context, x: Value, factor: float) -> Value:
    if factor == 1.0:
        return x
    if is_float(dtype_of(x)):
        return ctx.mul(x, factor)
    if factor != int(factor):
        raise ctx.fail(f"alpha and beta must be whole numbers for {dtype_of(x)} operands, got {factor}")
    return ctx.mul(x, int(factor))


# -- einsum --------------------------------------------------------------------------------------------------------


def convert_einsum(ctx: Context) -> Value:
    operands = [ctx.input(i) for i in range(len(ctx.inputs))]
    terms, output = _parse(ctx, ctx.attr("equation"), operands)
    pending = [_diagonal(ctx, x, term) for x, term in zip(operands, terms, strict=True)]
    while len(pending) > 1:
        left, right = pending[0], pending[1]
        kept = set(output).union(*(term for _, term in pending[2:]))
        pending[:2] = [_contract(ctx, left, right, kept)]
    x, term = pending[0]
    x, term = _sum_out(ctx, x, term, set(output))
    return ctx.transpose(x, [term.index(label) for label in output])


Labels = tuple[str, ...]
"""One label per axis. The axes of an ellipsis are labelled `.0`, `.1`, ... from the last one on."""


def _parse(ctx: Context, equation: str, operands: Sequence[Value]) -> tuple[list[Labels], Labels]:
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(operands):
        raise ctx.fail(f"equation {equation!r} has {len(parts)} terms, but the node has {len(operands)} operands")
    terms = [_labels(ctx, part, ctx.rank(x)) for part, x in zip(parts, operands, strict=True)]
    broadcast = max((sum(label.startswith(".") for label in term) for term in terms), default=0)
    dots = tuple(f".{i}" for i in reversed(range(broadcast)))
    if arrow:
        head, ellipsis, tail = right.partition("...")
        output = (*head, *(dots if ellipsis else ()), *tail)
    else:
        letters = [label for term in terms for label in term if not label.startswith(".")]
        output = (*dots, *sorted(label for label in set(letters) if letters.count(label) == 1))
    known = {label for term in terms for label in term}
    if len(set(output)) != len(output) or not set(output) <= known:
        raise ctx.fail(f"equation {equation!r}: the output {right!r} repeats a label or uses one that no operand has")
    return terms, output


def _labels(ctx: Context, term: str, rank: int) -> Labels:
    head, ellipsis, tail = term.partition("...")
    count = rank - len(head) - len(tail)
    if (count < 0) if ellipsis else (count != 0):
        raise ctx.fail(f"term {term!r} of the equation does not fit an operand of rank {rank}")
    return (*head, *(f".{i}" for i in reversed(range(count))), *tail)


def _diagonal(ctx: Context, x: Value, labels: Labels) -> tuple[Value, Labels]:
    """Merge axes with equal labels: the diagonal is the view of step n+1 over the flattened pair of axes."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            others = [i for i in range(len(labels)) if i not in (first, second)]
            moved = ctx.transpose(x, (*others, first, second))
            shape = ctx.shape(moved)
            size = shape[-1]
            if shape[-2] != size:
                raise ctx.fail(f"label {label!r} of the equation stands for sizes {shape[-2]} and {size}")
            flat = ctx.reshape(moved, (*shape[:-2], size * size))
            x = (
                ctx.slice_axis(flat, len(others), 0, size * size, size + 1)
                if size
                else ctx.reshape(moved, (*shape[:-2], 0))
            )
            labels = (*(labels[i] for i in others), label)
    return x, labels


def _sum_out(ctx: Context, x: Value, labels: Labels, kept: set[str]) -> tuple[Value, Labels]:
    gone = [i for i, label in enumerate(labels) if label not in kept]
    return (ctx.reduce("sum", x, gone, keepdims=False) if gone else x), tuple(
        label for label in labels if label in kept
    )


def _contract(
    ctx: Context, left: tuple[Value, Labels], right: tuple[Value, Labels], kept: set[str]
) -> tuple[Value, Labels]:
    """Contract two operands: labels of both sides that are not kept are summed by a matmul."""
    a, a_labels = _sum_out(ctx, *left, kept.union(right[1]))
    b, b_labels = _sum_out(ctx, *right, kept.union(left[1]))
    shared = [label for label in a_labels if label in b_labels]
    batch = [label for label in shared if label in kept]
    inner = [label for label in shared if label not in kept]
    rows = [label for label in a_labels if label not in shared]
    columns = [label for label in b_labels if label not in shared]
    if not inner:
        return _product(ctx, (a, a_labels), (b, b_labels), (*batch, *rows, *columns))
    a = ctx.transpose(a, [a_labels.index(label) for label in (*batch, *rows, *inner)])
    b = ctx.transpose(b, [b_labels.index(label) for label in (*batch, *columns, *inner)])
    a, b = _equal_inner(ctx, a, b, len(inner))
    a_shape, b_shape = ctx.shape(a), ctx.shape(b)
    count = len(batch)
    row_shape, column_shape = a_shape[count : count + len(rows)], b_shape[count : count + len(columns)]
    depth = prod(a_shape[len(a_shape) - len(inner) :])
    result = ctx.matmul(
        ctx.reshape(a, (*a_shape[:count], prod(row_shape), depth)),
        ctx.reshape(b, (*b_shape[:count], prod(column_shape), depth)),
        trans_b=True,
    )
    batch_shape = ctx.shape(result)[:count]
    return ctx.reshape(result, (*batch_shape, *row_shape, *column_shape)), (*batch, *rows, *columns)


def _equal_inner(ctx: Context, a: Value, b: Value, inner: int) -> tuple[Value, Value]:
    """Broadcast summed axes (of size one on one side only) to a common size."""
    a_shape, b_shape = ctx.shape(a), ctx.shape(b)
    a_head, b_head = len(a_shape) - inner, len(b_shape) - inner
    common = [as_size(d) for d in broadcast_shapes(a_shape[a_head:], b_shape[b_head:])]
    return ctx.broadcast_to(a, (*a_shape[:a_head], *common)), ctx.broadcast_to(b, (*b_shape[:b_head], *common))


def _product(
    ctx: Context, left: tuple[Value, Labels], right: tuple[Value, Labels], labels: Labels
) -> tuple[Value, Labels]:
    """Multiply operands aligned to `labels` element by element: nothing is summed."""

    def aligned(x: Value, own: Labels) -> Value:
        x = ctx.transpose(x, [own.index(label) for label in labels if label in own])
        return ctx.expand_dims(x, [i for i, label in enumerate(labels) if label not in own])

    return ctx.mul(aligned(*left), aligned(*right)), labels


# -- determinants ----------------------------------------------------------------------------------------------------

MAX_WRITTEN_OUT = 3


def convert_det(ctx: Context) -> Value:
    x = ctx.input(0)
    shape = ctx.symbolic_shape(x)
    size = ctx.dim(x, -1)
    if len(shape) < 2 or not may_be_equal(ctx.dim(x, -2), size):
        raise ctx.fail(f"operand 0 ({x.type}) holds no square matrices")
    if not x.tensor_type.is_static or not 1 <= size <= MAX_WRITTEN_OUT:
        return ctx.host("Det", [x], [x.tensor_type.with_shape(shape[:-2])])[0]
    rank = len(shape)
    rows = [ctx.squeeze(ctx.slice_axis(x, rank - 2, i, i + 1), (rank - 2,)) for i in range(size)]
    entries = [[ctx.squeeze(ctx.slice_axis(r, rank - 2, j, j + 1), (rank - 2,)) for j in range(size)] for r in rows]
    return _expanded(ctx, entries)


def _expanded(b: Builder, entries: Sequence[Sequence[Value]]) -> Value:
    """Return Laplace's expansion along the first row."""
    if len(entries) == 1:
        return entries[0][0]
    total: Value | None = None
    for j, factor in enumerate(entries[0]):
        minor = _expanded(b, [[*row[:j], *row[j + 1 :]] for row in entries[1:]])
        term = b.mul(factor, minor)
        if total is None:
            total = term
        else:
            total = b.sub(total, term) if j % 2 else b.add(total, term)
    assert total is not None
    return total


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "MatMul": [(1, convert_matmul)],
    "Gemm": [(1, convert_gemm)],
    "Einsum": [(12, convert_einsum)],
    "Det": [(11, convert_det)],
}
