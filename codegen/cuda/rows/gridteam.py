"""Reductions by teams of several blocks: partial results go through global memory, after a barrier of the grid.

Every block stores the result of its part of a row; after the barrier every block combines all parts of its row itself,
in a fixed order, so that all blocks of a row get the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import reducers
from tilestitch.codegen.compute.dtypes import Expr, named
from tilestitch.codegen.cuda.abi import CountersArg, Parameter, TemporaryArg
from tilestitch.codegen.cuda.rows.team import WARP, Accumulator, Item, Team
from tilestitch.compiler.ir.graph import Node

ITEMSIZE = {"float64": 8, "int64": 8, "uint64": 8, "int16": 2, "uint16": 2, "int8": 1, "uint8": 1}
"""Bytes of an accumulator; every other dtype has four."""
COUNTER_BYTES = 4


def grid_barrier(counter: Any) -> None:
    """Synchronise all threads of the grid; `counter` is memory of the launch's own (`CountersArg`)."""
    T.evaluate(T.call_extern("void", "ts_grid_barrier", T.address_of(counter[0])))


def counter_parameter() -> Parameter:
    return Parameter(CountersArg(COUNTER_BYTES), "uint32", 1)


@dataclass(frozen=True)
class GridTeam:
    """The blocks of a launch, `parts` of which share a row; `part` is the number of this one.

    There are `slots` positions for rows per part; `slot` is that of this thread's row. `counter` and `partials` are
    global memory: one buffer for each dtype of a reduction's accumulator, `[part, slot]`.
    """

    team: Team
    parts: int
    part: Expr
    slots: int
    slot: Expr
    counter: Any
    partials: dict[Node, list[Any]]

    def finish(self, accumulators: Sequence[Accumulator]) -> list[Expr]:
        """Return the results of the whole rows, in compute form; one barrier serves all of them."""
        for accumulator in accumulators:
            item = accumulator.in_block(self.team)
            buffers, place = self.partials[accumulator.node], self.part * self.slots + self.slot
            if isinstance(self.team.along, int):
                accumulator.put(buffers, item, place)
                continue
            with T.If(tirx.EQ(self.team.along, 0)), T.Then():
                accumulator.put(buffers, item, place)
        grid_barrier(self.counter)
        return [accumulator.result(self._joined(accumulator)) for accumulator in accumulators]

    def _joined(self, accumulator: Accumulator) -> Item:
        """Combine the parts: every lane of a row's team, or every thread of its column, folds some; then these are
        combined.
        """
        team, buffers = self.team, self.partials[accumulator.node]
        step = team.size if team.columns else WARP
        first = team.along if team.columns else team.along % WARP
        item: Item | None = None
        for number in range(-(-self.parts // step)):
            part = first + number * step
            inside = (number + 1) * step <= self.parts
            clamped = part if inside else T.min(part, self.parts - 1)
            found = tuple(named(buffer[clamped * self.slots + self.slot]) for buffer in buffers)
            if not inside and not accumulator.finds_place:
                nothing = reducers.identity(accumulator.reducer, accumulator.dtype)
                found = (named(tirx.Select(part < self.parts, found[0], nothing)),)
            item = found if item is None else accumulator.joined(item, found)
        assert item is not None
        return accumulator.join_columns(item, team) if team.columns else accumulator.join_lanes(item, WARP)


def partial_parameters(reductions: Sequence[Node], dtypes: Sequence[Sequence[str]], size: int) -> list[Parameter]:
    """Return the memory for `size` partial results of each reduction, by the dtypes of its accumulator."""
    return [
        Parameter(TemporaryArg(f"partial.{number}.{place}", size * ITEMSIZE.get(dtype, 4)), dtype, size)
        for number, (_, kinds) in enumerate(zip(reductions, dtypes, strict=True))
        for place, dtype in enumerate(kinds)
    ]
