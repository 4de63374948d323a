"""Reductions by several threads: each folds its own elements, then the team combines the results."""

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import reducers
from tilestitch.codegen.compute.dtypes import Expr, dtype_of, named, storage_bits
from tilestitch.codegen.compute.evaluator import Evaluator
from tilestitch.codegen.compute.indexing import Index
from tilestitch.codegen.cuda import functions
from tilestitch.codegen.cuda.abi import barrier, shared_buffer
from tilestitch.compiler.ir.graph import Node
from tilestitch.passes.plan.parts import ARG_REDUCTIONS

WARP = 32
FULL_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Team:
    """The threads that share a row: `size` of them, `rows` teams per block.

    `columns`: neighbouring threads belong to neighbouring rows; otherwise a team is neighbouring threads. `along` is a
    thread's position in its team, `across` its team's position in the block.
    """

    size: int
    rows: int
    columns: bool
    along: Expr
    across: Expr


def shuffle_xor(value: Expr, distance: int) -> Expr:
    """Return the value of the lane whose number differs in the bits of `distance`."""
    dtype = dtype_of(value)
    narrow = storage_bits(dtype) < 32
    wide = T.cast(value, "int32") if narrow else value
    other = T.tvm_warp_shuffle_xor(T.uint32(FULL_MASK), wide, distance, WARP, WARP)
    return T.cast(other, dtype) if narrow else other


Item = tuple[Expr, ...]
"""An accumulator's value, and for arg_max and arg_min its position."""


def accumulator_dtypes(node: Node, index_dtype: str) -> list[str]:
    """Return the dtypes of the parts of an `Item`."""
    place = [index_dtype] if node.op in ARG_REDUCTIONS else []
    return [reducers.accumulator_dtype(node.inputs[0].dtype), *place]


class Accumulator:
    """The running result of one reduction in one thread."""

    def __init__(self, node: Node, evaluator: Evaluator, index_dtype: str) -> None:
        self.node, self.evaluator, self.index_dtype = node, evaluator, index_dtype
        self.dtype = node.inputs[0].dtype
        self.reducer = reducers.reducer_of(node.op)
        self.finds_place = node.op in ARG_REDUCTIONS
        self.dtypes = accumulator_dtypes(node, index_dtype)
        self.buffers = [T.alloc_buffer((1,), dtype, scope="local") for dtype in self.dtypes]
        for buffer, start in zip(self.buffers, self._start(), strict=True):
            T.buffer_store(buffer, start, [0])

    def _start(self) -> Item:
        identity = reducers.identity(self.reducer, self.dtype)
        return (identity, tirx.IntImm(self.index_dtype, 0)) if self.finds_place else (identity,)

    def add(self, value: Expr, index: Index, fresh: Expr | None) -> None:
        """Fold one element in, if `fresh`."""
        element = named(reducers.to_accumulator(value, self.dtype, exact=self.finds_place))
        best = named(self.buffers[0][0])
        if not self.finds_place:
            if fresh is not None:
                element = named(tirx.Select(fresh, element, reducers.identity(self.reducer, self.dtype)))
            T.buffer_store(self.buffers[0], functions.combine(self.reducer, self.dtype, best, element), [0])
            return
        better = reducers.is_better(self.reducer, self.dtype, element, best, bool(self.node.attrs["select_last"]))
        better = self.evaluator.bind(better if fresh is None else tirx.And(fresh, better))
        here = index[self.node.attrs["axis"]]
        here = tirx.IntImm(self.index_dtype, here) if isinstance(here, int) else T.cast(here, self.index_dtype)
        T.buffer_store(self.buffers[1], tirx.Select(better, here, self.buffers[1][0]), [0])
        T.buffer_store(self.buffers[0], tirx.Select(better, element, best), [0])

    def finish(self, team: Team) -> Expr:
        """Return the result of the whole row, in compute form; every thread of the team gets it."""
        return self.result(self.in_block(team))

    def in_block(self, team: Team) -> Item:
        """Return the combined result of the team within one block."""
        item: Item = tuple(named(buffer[0]) for buffer in self.buffers)
        if team.columns:
            return self.join_columns(item, team)
        return self.join_lanes(item, team.size) if team.size <= WARP else self._join_warps(item, team)

    def result(self, item: Item) -> Expr:
        """Return the reduction's result, in compute form."""
        if self.finds_place:
            return named(T.cast(item[1], "int64"))
        return self.evaluator.bind(reducers.from_accumulator(item[0], self.dtype))

    def joined(self, a: Item, b: Item) -> Item:
        if not self.finds_place:
            return (named(functions.combine(self.reducer, self.dtype, a[0], b[0])),)
        last = bool(self.node.attrs["select_last"])
        strictly = reducers.is_better(self.reducer, self.dtype, b[0], a[0], last=False)
        reverse = reducers.is_better(self.reducer, self.dtype, a[0], b[0], last=False)
        tie = tirx.And(tirx.Not(strictly), tirx.Not(reverse))
        closer = b[1] > a[1] if last else b[1] < a[1]
        better = self.evaluator.bind(tirx.Or(strictly, tirx.And(tie, closer)))
        return tuple(named(tirx.Select(better, y, x)) for x, y in zip(a, b, strict=True))

    def join_lanes(self, item: Item, size: int) -> Item:
        """Combine lanes within a warp, for teams of a power of two of lanes."""
        distance = size // 2
        while distance:
            item = self.joined(item, tuple(named(shuffle_xor(x, distance)) for x in item))
            distance //= 2
        return item

    def _join_warps(self, item: Item, team: Team) -> Item:
        """Combine the warps of a block: one result per warp goes through shared memory."""
        item = self.join_lanes(item, WARP)
        warps = team.size // WARP
        shared = [shared_buffer(warps, dtype) for dtype in self.dtypes]
        with T.If(tirx.EQ(team.along % WARP, 0)), T.Then():
            self.put(shared, item, team.along // WARP)
        barrier()
        return self._fold(shared, list(range(warps)))

    def join_columns(self, item: Item, team: Team) -> Item:
        if team.size == 1:
            return item
        shared = [shared_buffer(team.size * team.rows, dtype) for dtype in self.dtypes]
        self.put(shared, item, team.along * team.rows + team.across)
        barrier()
        return self._fold(shared, [part * team.rows + team.across for part in range(team.size)])

    def put(self, buffers: list[Any], item: Item, place: Expr) -> None:
        for buffer, x in zip(buffers, item, strict=True):
            T.buffer_store(buffer, x, [place])

    def _fold(self, shared: list[Any], places: list[Any]) -> Item:
        """Combine all of `places`, in halves, so that the order does not depend on the thread."""
        items: list[Item] = [tuple(named(buffer[place]) for buffer in shared) for place in places]
        while len(items) > 1:
            pairs = [self.joined(a, b) for a, b in zip(items[::2], items[1::2], strict=False)]
            items = pairs + ([items[-1]] if len(items) % 2 else [])
        return items[0]
