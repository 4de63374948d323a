"""Keys that masks hide, as only a run can tell: of open sizes, no band of keys is known when a model is compiled.

A score without its dot product says whether a mask hides it; see `tilestitch.passes.plan.attention.hidden`. Blocks of
queries leave out the panels of keys before the first and after the last one that a query of theirs sees.
"""

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import reducers
from tilestitch.codegen.compute.attention import Between
from tilestitch.codegen.compute.dtypes import Expr, immediate
from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.passes.plan.attention.mask_band import FAR

LEAST_PANELS = 4
"""Of no more panels, looking for hidden ones takes longer than it saves."""


@dataclass(frozen=True)
class ShownKeys:
    """What masks show of the keys of a head. `columns`: keys of a panel; `dtype`: of scores."""

    between: Between
    evaluator: Evaluator
    head: Expr
    lanes: int
    columns: int
    dtype: str

    def none_of(self, row: Expr, first: Expr) -> Expr:
        """Return whether a query sees none of the keys of a vector from `first` on."""
        none = -immediate(float("inf"), self.dtype)
        return tirx.EQ(self._any(row, 1, first, self.lanes, lambda score: tirx.NE(score, none)), 0)

    def of(self, row: Expr, count: Expr, keys: tuple[Expr, Expr]) -> tuple[Expr, Expr]:
        """Return the keys that `count` queries from `row` see, among these from the beginning of a panel to an end: at
        least one of them, from the beginning of a panel on. All of them where a query sees none.
        """
        first, last = (T.bind(mk.as_index(key)) for key in keys)
        begin, end = T.bind(first // self.columns), T.bind((last + (self.columns - 1)) // self.columns)
        span = T.alloc_buffer((2,), "int64", scope="local")
        T.buffer_store(span, begin, [0])
        T.buffer_store(span, end, [1])
        with T.If(end - begin > LEAST_PANELS), T.Then():
            self._shrink(row, count, span, last)
            with T.If(T.Or(span[0] > begin, span[1] < end)), T.Then():
                self._keep_rows(row, count, span, (begin, end), last)
        first = T.bind(span[0] * self.columns)
        return first, T.bind(T.max(T.min(span[1] * self.columns, last), first + 1))

    def _shrink(self, row: Expr, count: Expr, span: Any, last: Expr) -> None:
        """Leave out panels at the beginning, side 0, and at the end, side 1, as long as all of one is hidden."""
        low = immediate(-2 * FAR, self.dtype)
        hidden = T.alloc_buffer((1,), "int32", scope="local")
        with mk.serial(0, 2) as side:
            T.buffer_store(hidden, T.int32(1), [0])
            with T.While(tirx.And(tirx.EQ(hidden[0], 1), span[1] - span[0] > 1)):
                panel = T.bind(span[side] - side)
                seen = self._any_of_panel(row, count, panel, last, lambda score: tirx.Not(score < low))
                T.buffer_store(hidden, T.Select(tirx.EQ(seen, 0), T.int32(1), T.int32(0)), [0])
                with T.If(tirx.EQ(hidden[0], 1)), T.Then():
                    T.buffer_store(span, span[side] + (1 - 2 * side), [side])

    def _keep_rows(self, row: Expr, count: Expr, span: Any, all_: tuple[Expr, Expr], last: Expr) -> None:
        """Take all panels where a query sees no key: it weighs those alike that a number like -3e38 hides."""
        high = immediate(-FAR, self.dtype)
        sees, at = (T.alloc_buffer((1,), dtype, scope="local") for dtype in ("int32", "int64"))
        with mk.serial(0, count) as number:
            T.buffer_store(sees, T.int32(0), [0])
            T.buffer_store(at, span[0], [0])
            with T.While(tirx.And(tirx.EQ(sees[0], 0), at[0] < span[1])):
                found = self._any_of_panel(row + number, 1, at[0], last, lambda score: score > high)
                T.buffer_store(sees, found, [0])
                T.buffer_store(at, at[0] + 1, [0])
            with T.If(tirx.EQ(sees[0], 0)), T.Then():
                for side, panel in enumerate(all_):
                    T.buffer_store(span, panel, [side])

    def _any_of_panel(self, row: Expr, count: Expr, panel: Expr, last: Expr, holds: Any) -> Expr:
        first = T.bind(panel * self.columns)
        return self._any(row, count, first, T.bind(T.min(last - first, T.int64(self.columns))), holds)

    def _any(self, row: Expr, count: Expr, first: Expr, width: Expr, holds: Any) -> Expr:
        """Return 1 if `holds(score)` for any of `width` keys from `first` on and any of the queries, else 0."""
        found = T.alloc_buffer((self.lanes,), "int32", scope="local")
        mk.vector(self.lanes, lambda lane: T.buffer_store(found, T.int32(0), [lane]))
        evaluator = self.evaluator

        def look(row: Expr, start: Expr, size: int) -> None:
            def at(lane: Expr) -> None:
                with evaluator.scope():
                    nothing = immediate(0.0, self.dtype)
                    score = evaluator.bind(self.between.score(evaluator, self.head, row, first + start + lane, nothing))
                    T.buffer_store(found, found[lane] | T.Select(holds(score), T.int32(1), T.int32(0)), [lane])

            mk.vector(size, at)

        with mk.serial(0, count) as number:
            if mk.is_number(width):
                mk.for_each_run(width, self.lanes, lambda start, size: look(row + number, start, size))
            else:
                mk.for_each_open_run(width, self.lanes, lambda start, size: look(row + number, start, size))
        return self.evaluator.bind(reducers.fold_lanes("max", "int32", found, 1, self.lanes, self.evaluator.bind))
