"""Random pairs of dependent kernels with tiles of random extents, and which tiles depend on which, by brute force.

What is owned by a tile is said here once more, with numpy's own indexing; what it depends on is found by putting NaN in
the place of what one tile of the producer stores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

from tilestitch.compiler.ir import Graph, Node, TensorType, Value
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.passes.plan.attention.tiles import AttentionSimtTile
from tilestitch.passes.plan.gemm.tiles import SimtTile
from tilestitch.passes.plan.schedules import (
    AttentionSchedule,
    ElementwiseSchedule,
    GemmSchedule,
    RowSchedule,
    Schedule,
)
from tilestitch.passes.plan.sync.grid import Coordinates
from tilestitch.passes.plan.view import GroupView, read_by
from tilestitch.passes.sync.footprints import Relation
from tilestitch.passes.sync.relations import relation_of

Owner = np.ndarray
"""Of the shape of a value: the number of the tile that each element belongs to."""


@dataclass(frozen=True)
class Kernel:
    """A kernel: its result, and which tile owns each element of that; name(coordinates) gives the tile's number."""

    view: GroupView
    schedule: Schedule
    owner: Owner
    name: Callable[[Coordinates], int]

    @property
    def relation(self) -> Relation:
        found = relation_of(self.view, self.schedule)
        assert found is not None
        return found


@dataclass(frozen=True)
class Pair:
    graph: Graph
    between: Value
    producer: Kernel
    consumer: Kernel


class Maker:
    """Makes kernels one after the other in a graph."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.graph = Graph("pair")
        self.count = 0

    def pick(self, *choices: int) -> int:
        return int(self.random.choice(choices))

    def operand(self, *shape: int) -> Value:
        self.count += 1
        return self.graph.add_input(f"x{self.count}", TensorType("float32", shape))

    def kernel(self, first: int, out: Value, schedule: Schedule, owner: Owner, anchor: Node | None = None,
               name: Callable[[Coordinates], int] = lambda place: place[0]) -> Kernel:  # fmt: skip
        nodes = tuple(self.graph.nodes[first:])
        view = GroupView("k", nodes, read_by(nodes), (out,), anchor)
        return Kernel(view, schedule, np.asarray(owner), name)

    # -- GEMMs -------------------------------------------------------------------------------------------------------

    def gemm(self, x: Value | None = None) -> Kernel:
        """A matmul of `x`, as the left or the right operand, maybe of a slice, and maybe with a view after it."""
        graph, first = self.graph, len(self.graph.nodes)
        lead = (self.pick(1, 2, 3),) if x is None or len(x.shape) > 2 else ()
        if x is None:
            m, n, k = self.pick(5, 16, 24), self.pick(8, 12, 24), self.pick(4, 9)
            shared = self.random.random() < 0.5
            left, right = self.operand(*lead, m, k), self.operand(*(() if shared else lead), k, n)
        else:
            left, right, lead = self._operands(x)
        if self.random.random() < 0.3:
            left = graph.emit("abs", left)
        result = graph.emit("matmul", left, right)
        anchor = result.producer
        assert anchor is not None
        *lead_sizes, m, n = result.shape
        shared = prod(right.shape[:-2]) == 1
        split = self.pick(1, 1, 2)
        tile = SimtTile(self.pick(4, 8, 16), self.pick(4, 8, 16), self.pick(2, 4), 4, 4)
        batch, rows = (1, prod(lead_sizes) * m) if shared else (prod(lead_sizes), m)
        cells = np.arange(batch * rows * n).reshape(batch, rows, n)
        columns = -(-n // tile.bn)
        row_tiles = -(-rows // tile.bm)
        number = (cells // n // rows * row_tiles + cells // n % rows // tile.bm) * columns + cells % n // tile.bn
        owner, out = number.reshape(result.shape), result
        if self.random.random() < 0.5:
            out = graph.emit("tanh", out)
        if self.random.random() < 0.4 and x is None:
            out, owner = self._turned(out, owner)
        schedule = GemmSchedule(tile, split, 0, self.pick(1, 2, 8))

        def name(place: Coordinates) -> int:
            _, b, row, column = place
            return (b * row_tiles + row) * columns + column

        return self.kernel(first, out, schedule, owner, anchor, name)

    def projection(self) -> Kernel:
        """A GEMM of 24 columns in one matrix."""
        first = len(self.graph.nodes)
        result = self.graph.emit("matmul", self.operand(self.pick(6, 12), 5), self.operand(5, 24))
        tile = SimtTile(self.pick(4, 8), self.pick(4, 8, 16), 2, 4, 4)
        columns = -(-24 // tile.bn)
        row, column = np.indices(result.shape)
        owner = row // tile.bm * columns + column // tile.bn
        schedule = GemmSchedule(tile, 1, 0, self.pick(1, 2))
        return self.kernel(first, result, schedule, owner, result.producer, lambda p: p[2] * columns + p[3])

    def _operands(self, x: Value) -> tuple[Value, Value, tuple[int, ...]]:
        graph = self.graph
        if len(x.shape) == 1 or x.shape[-1] == 1:
            x = graph.emit("reshape", x, shape=(1, prod(x.shape)))
        if len(x.shape) > 3:
            x = graph.emit("reshape", x, shape=(prod(x.shape[:-2]), *x.shape[-2:]))
        if self.random.random() < 0.4:
            axis = self.pick(*range(len(x.shape)))
            x = self._sliced(x, axis)
        lead = x.shape[:-2]
        if self.random.random() < 0.7:
            return x, self.operand(*(lead if self.random.random() < 0.5 else ()), x.shape[-1], self.pick(6, 16)), lead
        return self.operand(*lead, self.pick(5, 12), x.shape[-2]), x, lead

    def _sliced(self, x: Value, axis: int) -> Value:
        size = x.shape[axis]
        step = self.pick(1, 1, 2)
        start, stop = self.pick(0, size // 3), size - self.pick(0, size // 4)
        if start >= stop:
            return x
        starts = tuple(start if a == axis else 0 for a in range(len(x.shape)))
        sizes = tuple(-(-(stop - start) // step) if a == axis else d for a, d in enumerate(x.shape))
        steps = tuple(step if a == axis else 1 for a in range(len(x.shape)))
        return self.graph.emit("slice", x, starts=starts, sizes=sizes, steps=steps)

    def _turned(self, out: Value, owner: Owner) -> tuple[Value, Owner]:
        """Columns as heads, which come before the rows."""
        heads = next(h for h in (4, 3, 2, 1) if out.shape[-1] % h == 0)
        split = (*out.shape[:-1], heads, out.shape[-1] // heads)
        perm = (*range(len(split) - 3), len(split) - 2, len(split) - 3, len(split) - 1)
        turned = self.graph.emit("transpose", self.graph.emit("reshape", out, shape=split), perm=perm)
        return turned, owner.reshape(split).transpose(perm)

    # -- convolutions ------------------------------------------------------------------------------------------------

    def conv(self, x: Value | None = None) -> Kernel:
        graph, first = self.graph, len(self.graph.nodes)
        if x is None:
            x = self.operand(self.pick(1, 2), self.pick(5, 9), self.pick(6, 8), self.pick(2, 4))
        kernel, stride, dilation = self.pick(1, 3), self.pick(1, 2), self.pick(1, 1, 2)
        pad = self.pick(0, 1) if kernel == 3 else 0
        if min(x.shape[1:3]) + 2 * pad < (kernel - 1) * dilation + 1:
            kernel, pad = 1, 0
        w = self.operand(kernel, kernel, x.shape[3], self.pick(3, 6))
        result = graph.emit("conv", x, w, strides=(stride, stride), before=(pad, pad), after=(pad, pad),
                            dilations=(dilation, dilation), groups=1, layout="NXC")  # fmt: skip
        tile = SimtTile(self.pick(4, 8, 16), self.pick(4, 8), 4, 4, 4)
        channels = result.shape[-1]
        cells = np.arange(prod(result.shape)).reshape(result.shape)
        columns = -(-channels // tile.bn)
        owner = cells // channels // tile.bm * columns + cells % channels // tile.bn
        out = graph.emit("abs", result) if self.random.random() < 0.5 else result
        schedule = GemmSchedule(tile, self.pick(1, 1, 2), 0, self.pick(1, 2))
        return self.kernel(first, out, schedule, owner, result.producer, lambda p: p[2] * columns + p[3])

    # -- rows, element-wise work, attention --------------------------------------------------------------------------

    def rows(self, x: Value) -> Kernel:
        """Softmax along the last axis, or a mean."""
        graph, first = self.graph, len(self.graph.nodes)
        axis = self.pick(*range(len(x.shape))) if self.random.random() < 0.3 else len(x.shape) - 1
        each = self.pick(1, 2, 4)
        rows = np.arange(prod(x.shape) // x.shape[axis]) // each
        kept = x.shape[:axis] + (1,) + x.shape[axis + 1 :]
        if self.random.random() < 0.3:
            out = graph.emit("reduce_sum", x, axes=(axis,), keepdims=True)
            owner = rows.reshape(kept)
        else:
            largest = graph.emit("reduce_max", x, axes=(axis,), keepdims=True)
            weights = graph.emit("exp", graph.emit("sub", x, largest))
            out = graph.emit("div", weights, graph.emit("reduce_sum", weights, axes=(axis,), keepdims=True))
            owner = np.broadcast_to(rows.reshape(kept), x.shape)
        anchor = next(n for n in graph.nodes[first:] if n.op.startswith("reduce"))
        return self.kernel(first, out, RowSchedule(1, 1, each), owner, anchor)

    def elementwise(self, x: Value) -> Kernel:
        graph, first = self.graph, len(self.graph.nodes)
        choice = self.pick(0, 1, 2, 3)
        if choice == 1:
            x = graph.emit("transpose", x, perm=tuple(reversed(range(len(x.shape)))))
        elif choice == 2:
            x = self._sliced(x, self.pick(*range(len(x.shape))))
        elif choice == 3:
            axis = self.pick(*range(len(x.shape)))
            other = self.operand(*(2 if a == axis else d for a, d in enumerate(x.shape)))
            x = graph.emit("concat", other, x, axis=axis)
        out = graph.emit("tanh", x)
        each = self.pick(4, 8, 32)
        owner = (np.arange(prod(out.shape)) // each).reshape(out.shape)
        return self.kernel(first, out, ElementwiseSchedule(each, 1), owner)

    def attention(self, x: Value) -> Kernel:
        """Queries, keys and values are thirds of the columns of `x`, one for each head."""
        graph, first = self.graph, len(self.graph.nodes)
        tokens, columns = x.shape
        heads = 2
        width = columns // 3 // heads

        def third(number: int) -> Value:
            starts, sizes = (0, number * heads * width), (tokens, heads * width)
            part = graph.emit("slice", x, starts=starts, sizes=sizes, steps=(1, 1))
            return graph.emit("transpose", graph.emit("reshape", part, shape=(tokens, heads, width)), perm=(1, 0, 2))

        query, key, value = (third(i) for i in range(3))
        scores = graph.emit("matmul", query, key, trans_b=True)
        largest = graph.emit("reduce_max", scores, axes=(2,), keepdims=True)
        weights = graph.emit("exp", graph.emit("sub", scores, largest))
        weights = graph.emit("div", weights, graph.emit("reduce_sum", weights, axes=(2,), keepdims=True))
        out = graph.emit("matmul", weights, value)
        bm = self.pick(4, 8)
        tiles = -(-tokens // bm)
        head, row, _ = np.indices(out.shape)
        schedule = AttentionSchedule(AttentionSimtTile(bm, 16, width, width, 4))
        return self.kernel(first, out, schedule, head * tiles + row // bm, out.producer, lambda p: p[0] * tiles + p[1])


def random_pair(seed: int) -> Pair:
    maker = Maker(seed)
    kind = seed % 8
    if kind == 0:
        producer = maker.conv()
        consumer = maker.conv(producer.view.outputs[0])
    elif kind == 1:
        producer = maker.projection()
        consumer = maker.attention(producer.view.outputs[0])
    elif kind == 2:
        producer = maker.attention(maker.operand(maker.pick(6, 12), 24))
        consumer = maker.gemm(producer.view.outputs[0])
    elif kind == 3:
        producer = maker.gemm()
        consumer = maker.rows(producer.view.outputs[0])
    elif kind == 4:
        producer = maker.rows(maker.operand(*([7, 12] if maker.pick(0, 1) else [2, 5, 8])))
        consumer = maker.gemm(producer.view.outputs[0])
    elif kind == 5:
        producer = maker.elementwise(maker.operand(6, 8))
        consumer = maker.gemm(producer.view.outputs[0])
    elif kind == 6:
        producer = maker.gemm()
        consumer = maker.elementwise(producer.view.outputs[0])
    else:
        producer = maker.gemm()
        consumer = maker.gemm(producer.view.outputs[0])
    maker.graph.outputs = [consumer.view.outputs[0]]
    return Pair(maker.graph, producer.view.outputs[0], producer, consumer)


def brute_force(pair: Pair) -> dict[int, set[int]]:
    """By the number of each tile of the consumer, the numbers of the producer's tiles that it depends on."""
    random = np.random.default_rng(0)
    feeds = {v.name: random.uniform(0.5, 1.5, v.shape).astype(np.float32) for v in pair.graph.inputs}
    found: dict[int, set[int]] = {int(n): set() for n in np.unique(pair.consumer.owner)}
    for tile in np.unique(pair.producer.owner):
        stored = random.uniform(0.5, 1.5, pair.between.shape).astype(np.float32)
        stored[pair.producer.owner == tile] = np.nan
        with np.errstate(all="ignore"):
            (result,) = evaluate(pair.graph, feeds, {pair.between.name: stored})
        for number in np.unique(pair.consumer.owner[np.isnan(result)]):
            found[int(number)].add(int(tile))
    return found
