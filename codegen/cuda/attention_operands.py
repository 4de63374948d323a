"""An attention group as its kernels see it: rows of queries, keys and values, and the work between the products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, compute_dtype, immediate
from tilestitch.codegen.compute.indexing import unravel
from tilestitch.compiler.ir.graph import Value
from tilestitch.passes.fusion.band import Band, band_of
from tilestitch.passes.fusion.parts import Part, Softmax

from .contraction import operand_of
from .product import Operand
from .surroundings import Anchored, Surroundings

MERGED_ROWS = 64
"""Query heads that share keys are rows of one tile where they have fewer rows than this together."""


@dataclass(frozen=True)
class Attended:
    """`batch` times `rows` queries, each with `keys` keys: what a kernel must know of an attention group.

    query: rows are queries, k the width; key: rows are keys, k the width; value: rows are the columns of the result, k
    the keys. acc_dtype: of sums and statistics. band: which keys a query can see.
    """

    group: Anchored
    softmax: Softmax
    batch: int
    rows: int
    query: Operand
    key: Operand
    value: Operand
    acc_dtype: str
    band: Band | None

    @property
    def keys(self) -> int:
        return self.softmax.keys

    @property
    def width(self) -> int:
        """Elements of a query and a key."""
        shape = self.softmax.product.inputs[0].shape
        return shape[-2 if self.softmax.product.attrs.get("trans_a") else -1]

    @property
    def columns(self) -> int:
        """Elements of a value and a result."""
        return self.group.result.shape[-1]

    @property
    def merged(self) -> bool:
        """Whether the rows are those of several heads."""
        return self.rows != self.softmax.queries

    def index(self, shape: tuple[int, ...], batch: Expr, row: Expr, key: Expr) -> tuple[Expr, ...]:
        """Where a value of `shape`, which holds [heads, queries, keys], has an element."""
        keys, queries = self.keys, self.softmax.queries
        if shape[-1] == keys and not self.merged and len(shape) > 1 and shape[-2] == queries:
            return (*unravel(batch, shape[:-2]), 0 if queries == 1 else row, 0 if keys == 1 else key)
        place = batch * self.rows + row
        if shape[-1] == keys:
            return (*unravel(place, shape[:-1]), 0 if keys == 1 else key)
        if len(shape) > 1 and shape[-2:] == (keys, 1):
            return (*unravel(place, shape[:-2]), key, 0)
        return unravel(place * keys + key, shape)

    def place(self, batch: Expr, row: Expr, column: Expr) -> tuple[Expr, ...]:
        """The index of a result."""
        *lead, queries, _ = self.group.result.shape
        if not self.merged:
            return (*unravel(batch, lead), 0 if queries == 1 else row, column)
        return (*unravel(batch * self.rows + row, (*lead, queries)), column)

    # -- element-wise work between the products --------------------------------------------------------------------

    @property
    def is_scored(self) -> bool:
        """Whether there is work between the first product and the softmax."""
        return self.softmax.scores is not self.softmax.product.output

    @property
    def is_weighed(self) -> bool:
        """Whether a weight depends on more than its score and its row."""
        mends = {*self.softmax.flaws, *self.softmax.dead}
        weighed = [n for n, part in self.group.roles.parts.items() if part is Part.WEIGHED]
        return any(
            n.op not in ("is_nan", "cast", "reshape") and not (n.op == "select" and n.inputs[0] in mends)
            for n in weighed
        )

    def score(self, around: Surroundings, batch: Expr, row: Expr, key: Expr, product: Expr) -> Expr:
        """The score whose product of query and key is given. To be called in a scope of its own."""
        source, scores = self.softmax.product.output, self.softmax.scores
        around.evaluator.sources[source] = lambda _: _as(product, compute_dtype(source.dtype))
        return _as(around.evaluator.value(scores, self.index(scores.shape, batch, row, key)), self.acc_dtype)

    def weight(self, around: Surroundings, batch: Expr, row: Expr, key: Expr, exponential: Expr) -> Expr:
        """What multiplies a value, but for the division by the row's sum. To be called in a scope of its own."""
        return self._weighed(around, batch, row, key, exponential, T.bool(False), T.bool(False))

    def flawed(self, around: Surroundings, batch: Expr, row: Expr, total: Expr) -> Expr:
        """What the weights of a row become whose sum of exponentials is NaN or 0: NaN or, where mended, zero."""
        dead = around.evaluator.bind(tirx.EQ(total, immediate(0.0, self.acc_dtype)))
        nan = immediate(math.nan, self.acc_dtype)
        return self._weighed(around, batch, row, 0, nan, T.bool(True), dead)

    def _weighed(
        self, around: Surroundings, batch: Expr, row: Expr, key: Expr, weight: Expr, flawed: Expr, dead: Expr
    ) -> Expr:  # fmt: skip
        evaluator, weights = around.evaluator, self.softmax.weights
        evaluator.sources[weights] = lambda _: _as(weight, compute_dtype(weights.dtype))
        evaluator.sources.update({value: lambda _: flawed for value in self.softmax.flaws})
        evaluator.sources.update({value: lambda _: dead for value in self.softmax.dead})
        last = self.group.anchor.inputs[0]
        return _as(evaluator.value(last, self.index(last.shape, batch, row, key)), self.acc_dtype)

    def finish(self, around: Surroundings, batch: Expr, row: Expr, column: Expr, total: Expr) -> None:
        """Store what follows from a result."""
        around.finish(self.place(batch, row, column), _as(total, compute_dtype(self.group.result.dtype)))


def _as(value: Expr, dtype: str) -> Expr:
    return value if str(value.ty.dtype) == dtype else T.cast(value, dtype)


# -- from a group to its description ---------------------------------------------------------------------------------


def attended(group: Anchored) -> Attended:
    """An attention group with its operands as rows and columns."""
    softmax = group.roles.softmax
    assert softmax is not None
    product, anchor = softmax.product, group.anchor
    trans_a, trans_b = bool(product.attrs.get("trans_a")), bool(product.attrs.get("trans_b"))
    along = {False: ("k" if not trans_a else "row"), True: ("row" if not trans_b else "k")}
    key_source = _Source(group, softmax.key, product.output.shape[:-2])
    value_source = _Source(group, anchor.inputs[1], group.result.shape[:-2])
    shared = math.gcd(key_source.repeated, value_source.repeated)
    merged = shared if shared * softmax.queries <= MERGED_ROWS else 1
    query_source = _Source(group, softmax.query, product.output.shape[:-2])
    rows = merged * softmax.queries
    queries = softmax.queries

    def head(batch: Expr) -> Expr:
        return batch if merged == 1 else batch * merged

    def index_query(batch: Expr, row: Expr, k: Expr) -> tuple[Expr, ...]:
        if merged > 1 and queries > 1:
            batch, row = batch * merged + row // queries, row % queries
        elif merged > 1:
            batch, row = batch * merged + row, 0
        return query_source.index(batch, row, k, along[softmax.swapped] == "row")

    return Attended(
        group, softmax, softmax.heads // merged, rows,
        operand_of(group, query_source.value, rows, index_query, along[softmax.swapped]),
        operand_of(
            group, key_source.value, softmax.keys,
            lambda b, row, k: key_source.index(head(b), row, k, along[not softmax.swapped] == "row"),
            along[not softmax.swapped],
        ),
        operand_of(
            group, value_source.value, group.result.shape[-1],
            lambda b, row, k: value_source.index(head(b), row, k, not anchor.attrs.get("trans_b")),
            "k" if anchor.attrs.get("trans_b") else "row",
        ),
        _acc_dtype(group, softmax),
        band_of(softmax) if merged == 1 else None,
    )  # fmt: skip


def _acc_dtype(group: Anchored, softmax: Softmax) -> str:
    values = (softmax.product.output, softmax.scores, softmax.weights, group.result)
    return "float64" if any(v.dtype == "float64" for v in values) else "float32"


class _Source:
    """An operand in front of the reshapes and broadcasts that make a matrix for each of `lead` of it."""

    def __init__(self, group: Anchored, value: Value, lead: Sequence[int]) -> None:
        self.lead = tuple(lead)
        rank = len(value.shape)
        self.value, self.sizes = value, (1,) * (len(lead) - rank + 2) + value.shape[:-2]
        node = value.producer
        members = set(group.nodes)
        while (
            node is not None and node in members and node.op == "reshape" and self.sizes == self.lead
            and node.inputs[0].shape[-2:] == self.value.shape[-2:] and len(node.inputs[0].shape) >= 2
        ):  # fmt: skip
            self.value = node.inputs[0]
            self.lead = self.sizes = self.value.shape[:-2]
            node = self.value.producer
        if node is not None and node in members and node.op == "broadcast_to" and self.sizes == self.lead:
            inner = node.inputs[0]
            if inner.shape[-2:] == self.value.shape[-2:]:
                self.value = inner
                self.sizes = (1,) * (len(self.lead) - len(inner.shape) + 2) + inner.shape[:-2]

    @property
    def repeated(self) -> int:
        """So many neighbouring heads read the same matrix."""
        count = 1
        for size, extent in zip(reversed(self.sizes), reversed(self.lead), strict=True):
            if size != 1:
                break
            count *= extent
        return count

    def index(self, head: Expr, row: Expr, column: Expr, transposed: bool) -> tuple[Expr, ...]:
        """Where the tensor has the element (row, column) of the matrix of a head; if `transposed`, column by row."""
        lead = [0 if d == 1 else i for i, d in zip(unravel(head, self.lead), self.sizes, strict=True)]
        own = lead[len(lead) - len(self.value.shape) + 2 :]
        return (*own, *((column, row) if transposed else (row, column)))
