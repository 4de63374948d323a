"""An attention group as its kernels see it: rows of queries, keys and values, and the work between the GEMMs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tilestitch.codegen.compute.attention import Between, as_dtype
from tilestitch.codegen.compute.dtypes import Expr, compute_dtype
from tilestitch.codegen.cuda.gemm.indexed import Operand
from tilestitch.codegen.cuda.surroundings import Anchored, Surroundings
from tilestitch.compiler.ir.sizes import surely
from tilestitch.passes.plan.attention.bounds import Bound, bounds_of
from tilestitch.passes.plan.attention.mask_band import Band, band_of
from tilestitch.passes.plan.attention.operands import AttentionShape, along, attention_of, result_lanes
from tilestitch.passes.plan.parts import Softmax


@dataclass(frozen=True)
class Attended:
    """`batch` times `rows` queries, each with `keys` keys: the parameters of an attention group's kernel.

    `between`: the work between the GEMMs. `query`: rows are queries, k the width; `key`: rows are keys, k the width;
    `value`: rows are the columns of the result, k the keys. `band`, or where that is not known `bounds`: which
    keys a query can attend to.
    """

    group: Anchored
    shape: AttentionShape
    between: Between
    batch: int
    query: Operand
    key: Operand
    value: Operand
    band: Band | None
    bounds: tuple[Bound, ...] = ()

    @property
    def softmax(self) -> Softmax:
        return self.between.softmax

    @property
    def rows(self) -> int:
        return self.between.rows

    @property
    def acc_dtype(self) -> str:
        return self.between.acc_dtype

    @property
    def keys(self) -> int:
        return self.softmax.keys

    @property
    def width(self) -> int:
        """Elements of a query and a key."""
        shape = self.softmax.matmul.inputs[0].shape
        return shape[-2 if self.softmax.matmul.attrs.get("trans_a") else -1]

    @property
    def columns(self) -> int:
        """Elements of a value and a result."""
        return self.group.result.shape[-1]

    @property
    def tf32(self) -> bool:
        """Whether the operands of both GEMMs may be rounded to TF32."""
        return all(n.attrs.get("precision") == "tf32" for n in (self.softmax.matmul, self.group.anchor))

    @property
    def merged(self) -> bool:
        """Whether the rows are those of several heads."""
        return self.rows != self.softmax.queries

    def place(self, batch: Expr, row: Expr, column: Expr) -> tuple[Expr, ...]:
        """Return the index of a result."""
        return self.shape.place(batch, row, column)

    @cached_property
    def lanes(self) -> int:
        """Number of neighbouring results that a thread can store at a time."""
        return result_lanes(self.group, self.shape)

    def finish(self, around: Surroundings, batch: Expr, row: Expr, column: Expr, totals: Sequence[Expr]) -> None:
        """Apply the epilogue to neighbouring results, up to `lanes`, and store them."""
        results = [as_dtype(total, compute_dtype(self.group.result.dtype)) for total in totals]
        if len(results) == 1:
            around.finish(self.place(batch, row, column), *results)
            return
        around.finish_vector([self.place(batch, row, column + i) for i in range(len(results))], results)


def attended(group: Anchored) -> Attended:
    """Return an attention group with its operands as rows and columns."""
    shape = attention_of(group)
    softmax, merged = shape.softmax, shape.merged
    query, key, value = shape.sources
    queries = softmax.queries

    def head(batch: Expr) -> Expr:
        return batch if merged == 1 else batch * merged

    def index_query(batch: Expr, row: Expr, k: Expr) -> tuple[Expr, ...]:
        if merged > 1 and not surely(lambda: queries <= 1):
            batch, row = batch * merged + row // queries, row % queries
        elif merged > 1:
            batch, row = batch * merged + row, 0
        return query.index(batch, row, k, along(softmax, softmax.swapped) == "row")

    keys_transposed, values_transposed = (
        along(softmax, not softmax.swapped) == "row",
        not group.anchor.attrs.get("trans_b"),
    )
    band = band_of(softmax) if merged == 1 else None
    return Attended(
        group, shape, Between(group.roles, shape.rows, shape.acc_dtype), shape.batch,
        Operand.of(shape.query, index_query),
        Operand.of(shape.key, lambda b, row, k: key.index(head(b), row, k, keys_transposed)),
        Operand.of(shape.value, lambda b, row, k: value.index(head(b), row, k, values_transposed)),
        band, () if band is not None else bounds_of(group.roles, merged),
    )  # fmt: skip
