"""The determinant: written out for small matrices, on the host for larger ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.claims import may_be_equal

from ..builder import Builder
from ..context import Context, Versioned

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


CONVERTERS: Mapping[str, Sequence[Versioned]] = {"Det": [(11, convert_det)]}
