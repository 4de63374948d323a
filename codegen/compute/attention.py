"""What lies between the two products of attention, element by element, for kernels of any target.

Values there hold [heads, queries, keys] in row-major order; kernels count them as [batch, rows, keys], where the rows
of a batch element may be those of several heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.passes.plan.parts import Part, Roles, Softmax

from .dtypes import Expr, compute_dtype, dtype_of, immediate
from .evaluator import Evaluator
from .indexing import unravel


@dataclass(frozen=True)
class Between:
    """Scores and weights of an attention group. rows: of a batch element; acc_dtype: of sums and statistics."""

    roles: Roles
    rows: int
    acc_dtype: str

    @property
    def softmax(self) -> Softmax:
        assert self.roles.softmax is not None
        return self.roles.softmax

    @property
    def last(self) -> Value:
        """The weights as the second product reads them."""
        assert self.roles.anchor is not None
        return self.roles.anchor.inputs[0]

    def index(self, shape: tuple[int, ...], batch: Expr, row: Expr, key: Expr) -> tuple[Expr, ...]:
        """Where a value of `shape`, which holds [heads, queries, keys], has an element."""
        keys, queries = self.softmax.keys, self.softmax.queries
        if shape[-1] == keys and self.rows == queries and len(shape) > 1 and shape[-2] == queries:
            return (*unravel(batch, shape[:-2]), 0 if queries == 1 else row, 0 if keys == 1 else key)
        place = batch * self.rows + row
        if shape[-1] == keys:
            return (*unravel(place, shape[:-1]), 0 if keys == 1 else key)
        if len(shape) > 1 and shape[-2:] == (keys, 1):
            return (*unravel(place, shape[:-2]), key, 0)
        return unravel(place * keys + key, shape)

    @property
    def is_scored(self) -> bool:
        """Whether there is work between the first product and the softmax."""
        return self.softmax.scores is not self.softmax.product.output

    @property
    def is_weighed(self) -> bool:
        """Whether a weight depends on more than its score and its row."""
        mends = {*self.softmax.flaws, *self.softmax.dead}
        weighed = [n for n, part in self.roles.parts.items() if part is Part.WEIGHED]
        return any(
            n.op not in ("is_nan", "cast", "reshape") and not (n.op == "select" and n.inputs[0] in mends)
            for n in weighed
        )

    def score(self, evaluator: Evaluator, batch: Expr, row: Expr, key: Expr, product: Expr) -> Expr:
        """The score whose product of query and key is given. To be called in a scope of its own."""
        source, scores = self.softmax.product.output, self.softmax.scores
        evaluator.sources[source] = lambda _: as_dtype(product, compute_dtype(source.dtype))
        return as_dtype(evaluator.value(scores, self.index(scores.shape, batch, row, key)), self.acc_dtype)

    def weight(self, evaluator: Evaluator, batch: Expr, row: Expr, key: Expr, exponential: Expr) -> Expr:
        """What multiplies a value, but for the division by the row's sum. To be called in a scope of its own."""
        return self._weighed(evaluator, batch, row, key, exponential, T.bool(False), T.bool(False))

    def flawed(self, evaluator: Evaluator, batch: Expr, row: Expr, total: Expr) -> Expr:
        """What the weights of a row become whose sum of exponentials is NaN or 0: NaN or, where mended, zero."""
        dead = evaluator.bind(tirx.EQ(total, immediate(0.0, self.acc_dtype)))
        nan = immediate(math.nan, self.acc_dtype)
        return self._weighed(evaluator, batch, row, 0, nan, T.bool(True), dead)

    def _weighed(
        self, evaluator: Evaluator, batch: Expr, row: Expr, key: Expr, weight: Expr, flawed: Expr, dead: Expr
    ) -> Expr:  # fmt: skip
        weights = self.softmax.weights
        evaluator.sources[weights] = lambda _: as_dtype(weight, compute_dtype(weights.dtype))
        evaluator.sources.update({value: lambda _: flawed for value in self.softmax.flaws})
        evaluator.sources.update({value: lambda _: dead for value in self.softmax.dead})
        last = self.last
        return as_dtype(evaluator.value(last, self.index(last.shape, batch, row, key)), self.acc_dtype)


def sum_dtype(roles: Roles) -> str:
    """The dtype of sums and statistics: float64 where a value of the group is, else float32."""
    assert roles.softmax is not None and roles.anchor is not None
    values = (roles.softmax.product.output, roles.softmax.scores, roles.softmax.weights, roles.anchor.output)
    return "float64" if any(v.dtype == "float64" for v in values) else "float32"


def as_dtype(value: Expr, dtype: str) -> Expr:
    """`value` cast to `dtype` if it is of another."""
    return value if dtype_of(value) == dtype else T.cast(value, dtype)


class Source:
    """An operand in front of the reshapes and broadcasts that make a matrix for each of `lead` of it."""

    def __init__(self, nodes: Iterable[Node], value: Value, lead: Sequence[int]) -> None:
        self.lead = tuple(lead)
        rank = len(value.shape)
        self.value, self.sizes = value, (1,) * (len(lead) - rank + 2) + value.shape[:-2]
        node = value.producer
        members = set(nodes)
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
