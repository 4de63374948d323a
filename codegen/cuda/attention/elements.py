"""Element-wise processing of a thread's scores and sums: the same on tensor cores and ordinary units."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.cuda.attention.operands import Attended
from tilestitch.codegen.cuda.attention.walk import Sink, Walk, below_or_last, divided, infinity, inverse
from tilestitch.codegen.cuda.pieces import named, registers, when, zero
from tilestitch.codegen.cuda.positions import below, both
from tilestitch.codegen.cuda.surroundings import Surroundings
from tilestitch.compiler.ir.sizes import surely


@dataclass(frozen=True)
class Elements:
    """The scores of one batch element in a block's code. `dtype`: of scores and sums."""

    what: Attended
    walk: Walk
    around: Surroundings
    batch: Expr
    dtype: str

    @property
    def masked(self) -> bool:
        """Whether scores are more than dot products."""
        return self.what.between.is_scored or self._ends_early

    @property
    def _ends_early(self) -> bool:
        return not surely(lambda: self.what.keys >= self.walk.steps * self.walk.bn)

    def score(self, scores: Any, place: Expr, row: Expr, key: Expr) -> None:
        """Replace the dot product of a row and a key by its score; -inf after the last key."""
        row, at = self._row(row), named(key)
        key = self._key(at)
        with self.around.evaluator.scope():
            score = self.around.evaluator.bind(scores[place])
            if self.what.between.is_scored:
                score = self.what.between.score(self.around.evaluator, self.batch, row, key, score)
            if self._ends_early:
                score = tirx.Select(at < self.what.keys, score, -infinity(self.dtype))
            T.buffer_store(scores, score, [place])

    def weight(self, weight: Expr, row: Expr, key: Expr) -> Expr:
        """Return the factor of a key's value, from an exponential."""
        row, key = self._row(row), self._key(key)
        return self.what.between.weight(self.around.evaluator, self.batch, row, key, weight)

    def _row(self, row: Expr) -> Expr:
        """Return the row, clamped to the last one."""
        return named(below_or_last(row, self.what.rows, self.walk.tiles * self.walk.bm))

    def _key(self, key: Expr) -> Expr:
        return named(below_or_last(key, self.what.keys, self.walk.steps * self.walk.bn))

    def finish(self, sink: Sink, row: Expr, is_first: Expr, largest: Expr, total: Expr) -> Callable[[Expr], Expr]:
        """Pass the statistics of a row to the sink; returns the function from its sums to results.

        `is_first`: whether the thread is the first of those that share the row.
        """
        exists = below(row, self.what.rows, self.walk.tiles * self.walk.bm)
        with when(both(is_first, exists)):
            sink.keep_statistics(self.around, self.batch, row, largest, total)
        if sink.several is True:
            return lambda sums: sums
        flaw = registers(1, self.dtype)
        T.buffer_store(flaw, zero(self.dtype), [0])
        with when(exists), self.around.evaluator.scope():
            mended = self.what.between.flawed(self.around.evaluator, self.batch, row, total)
            T.buffer_store(flaw, mended, [0])
        over = inverse(total)

        def result(sums: Expr) -> Expr:
            alone = divided(sums, total, over, flaw[0])
            return alone if sink.several is False else tirx.Select(sink.several, sums, alone)

        return result
