"""Element-wise work between the two GEMMs of attention, for kernels of any target.

Values there hold [heads, queries, keys] in row-major order; kernels count them as [batch, rows, keys], where the rows
of a batch element may be those of several heads.
"""

import math
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.compiler.ir import Kind, Value, kind_of
from tilestitch.compiler.ir.indexing import broadcast_index
from tilestitch.passes.plan.attention.bounds import Path
from tilestitch.passes.plan.attention.operands import is_weighed
from tilestitch.passes.plan.parts import Roles, Softmax

from .dtypes import Expr, compute_dtype, dtype_of, immediate
from .evaluator import Evaluator
from .indexing import pull_view, unravel


@dataclass(frozen=True)
class Between:
    """Scores and weights of an attention group. `rows`: of a batch element; `acc_dtype`: of sums and statistics."""

    roles: Roles
    rows: int
    acc_dtype: str

    @property
    def softmax(self) -> Softmax:
        assert self.roles.softmax is not None
        return self.roles.softmax

    @property
    def last(self) -> Value:
        """The weights as the second GEMM reads them."""
        assert self.roles.anchor is not None
        return self.roles.anchor.inputs[0]

    def index(self, shape: tuple[int, ...], batch: Expr, row: Expr, key: Expr) -> tuple[Expr, ...]:
        """Return the index of an element in a value of `shape`, which holds [heads, queries, keys]."""
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
        """Whether there is work between the first GEMM and the softmax."""
        return self.softmax.scores is not self.softmax.matmul.output

    @property
    def is_weighed(self) -> bool:
        """Whether a weight depends on more than its score and its row."""
        return is_weighed(self.roles)

    def score(self, evaluator: Evaluator, batch: Expr, row: Expr, key: Expr, dot: Expr) -> Expr:
        """Return the score for the dot product of query and key. To be called in a scope of its own."""
        source, scores = self.softmax.matmul.output, self.softmax.scores
        evaluator.sources[source] = lambda _: as_dtype(dot, compute_dtype(source.dtype))
        return as_dtype(evaluator.value(scores, self.index(scores.shape, batch, row, key)), self.acc_dtype)

    def operand(self, evaluator: Evaluator, path: Path, batch: Expr, row: Expr) -> Expr:
        """Return the integer at the end of a path from the scores on, for a row and its first key."""
        value = self.softmax.scores
        index = self.index(value.shape, batch, row, 0)
        for node, number in path:
            value = node.inputs[number]
            is_view = kind_of(node.op) is Kind.VIEW
            index = pull_view(node, index, evaluator.simplify) if is_view else broadcast_index(index, value.shape)
        return evaluator.value(value, index)

    def weight(self, evaluator: Evaluator, batch: Expr, row: Expr, key: Expr, exponential: Expr) -> Expr:
        """Return the factor of a value, before the division by the row's sum. To be called in a scope of its own."""
        return self._weighed(evaluator, batch, row, key, exponential, T.bool(False), T.bool(False))

    def flawed(self, evaluator: Evaluator, batch: Expr, row: Expr, total: Expr) -> Expr:
        """Return the weights of a row whose sum of exponentials is NaN or 0: NaN, or zero if the graph masks it so."""
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


def as_dtype(value: Expr, dtype: str) -> Expr:
    """Return `value`, cast to `dtype` if it has another."""
    return value if dtype_of(value) == dtype else T.cast(value, dtype)
