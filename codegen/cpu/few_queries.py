"""Attention of few queries on CPUs: keys and values are read where they lie, which takes less than to pack them.

A vector of keys at a time is multiplied with a query, each key by a vector of sums of its own, which are then added up
all together. Values are scaled by their weights and added to the results, which stay in registers. Keys that a mask
hides from all queries are not read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, named
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.passes.plan.cpu.attention import AttentionPlan

MOST_UNROLLED = 16
"""Vectors of a key whose products are written out one by one."""
MOST_VECTORS = 8
"""Vectors of results that are computed together."""


@dataclass(frozen=True)
class Head:
    """What a head's attention reads and stores. `query`, `key`, `value`: elements, in the dtype of the sums.

    `keep(row, key, dot)` stores a score, `softmax(row)` turns the scores of a row into weights,
    `finish(row, column, total)` stores a result. `hidden(row, first)`: whether a mask hides a vector of keys;
    None if none can. `scores` and `queries` are memory for [queries, keys] and [queries, width].
    """

    plan: AttentionPlan
    lanes: int
    query: Callable[[Expr, Expr], Expr]
    key: Callable[[Expr, Expr], Expr]
    value: Callable[[Expr, Expr], Expr]
    keep: Callable[[Expr, Expr, Expr], None]
    softmax: Callable[[Expr], None]
    finish: Callable[[Expr, Expr, Expr], None]
    hidden: Callable[[Expr, Expr], Expr] | None
    scores: Any
    queries: Any


def emit_few_queries(head: Head) -> None:
    """Emit attention of all queries of a head, one after the other.

    Several queries that share a loop over keys would be no faster: what they read of a key is moved out of the loop
    over queries then, to more registers than there are.
    """
    shape, lanes = head.plan.shape, head.lanes
    keys = T.bind(integer(shape.keys, "int64"))
    whole = T.bind(keys // lanes)
    with mk.serial(0, integer(shape.queries, "int64")) as row:
        mk.for_each_column(shape.width, lanes, lambda k: T.buffer_store(head.queries, head.query(row, k), [row, k]))
        with mk.serial(0, whole) as tile:
            first = T.bind(tile * lanes)
            _unless_hidden(head, row, first, lambda: _scores(head, row, first, lanes), lambda: _hide(head, row, first))
        with T.If(keys > whole * lanes), T.Then():
            first = T.bind(whole * lanes)
            _scores(head, row, first, T.bind(keys - first))
        head.softmax(row)
        _results(head, row, whole, keys)


def _unless_hidden(
    head: Head, row: Expr, first: Expr, seen: Callable[[], None], hidden: Callable[[], None] | None = None
) -> None:
    """Emit `hidden`, nothing if None, for a vector of keys that a mask hides, and `seen` for others. Nothing is left
    out of a row that sees no key: its weights are NaN.
    """
    if head.hidden is None:
        seen()
        return
    condition = head.hidden(row, first)
    if hidden is None:
        condition = tirx.And(condition, tirx.EQ(head.scores[row, first], mk.constant(0, head.plan.shape.acc_dtype)))
    with T.If(condition):
        with T.Then():
            if hidden is None:
                T.evaluate(0)
            else:
                hidden()
        with T.Else():
            seen()


def _hide(head: Head, row: Expr, first: Expr) -> None:
    none = mk.constant(float("-inf"), head.plan.shape.acc_dtype)
    mk.vector(head.lanes, lambda lane: T.buffer_store(head.scores, none, [row, first + lane]))


# -- scores ------------------------------------------------------------------------------------------------------------


def _scores(head: Head, row: Expr, first: Expr, number: Expr) -> None:
    """Store the scores of `number` keys from `first` on, at most a vector of them."""
    dots = T.alloc_buffer((head.lanes,), head.plan.shape.acc_dtype, scope="local")
    T.buffer_store(dots, _dots(head, row, first, number), [mk.run_of(0, head.lanes)])
    mk.for_each_column(number, head.lanes, lambda key: head.keep(row, first + key, dots[key]))


def _dots(head: Head, row: Expr, first: Expr, number: Expr) -> Expr:
    """Return the dot products of a query with a vector of keys; those after `number` repeat the last."""
    lanes, width, dtype = head.lanes, head.plan.shape.width, head.plan.shape.acc_dtype
    keys = [first + (i if mk.is_number(number) else T.min(T.int64(i), number - 1)) for i in range(lanes)]
    sums = T.alloc_buffer((lanes * lanes,), dtype, scope="local")
    for i in range(lanes):
        mk.vector(lanes, lambda lane, i=i: T.buffer_store(sums, mk.constant(0, dtype), [i * lanes + lane]))  # type: ignore[misc]

    def add(i: int, step: Expr, size: int) -> None:
        def at(lane: Expr) -> None:
            dot = head.key(keys[i], step + lane) * head.queries[row, step + lane]
            T.buffer_store(sums, sums[i * lanes + lane] + dot, [i * lanes + lane])

        mk.vector(size, at)

    runs = mk.chunks(width, lanes)
    if len(runs) > MOST_UNROLLED:
        with mk.serial(0, width // lanes) as number_:
            step = T.bind(number_ * lanes)
            for i in range(lanes):
                add(i, step, lanes)
        runs = [(start, size) for start, size in runs if size < lanes]
    for i in range(lanes):  # each key's elements together, as they lie
        for start, size in runs:
            add(i, start, size)
    return sums_of_each([named(sums[mk.run_of(i * lanes, lanes)]) for i in range(lanes)])


def sums_of_each(vectors: list[Expr]) -> Expr:
    """Return the vector of the sums of the elements of as many vectors as each has elements, a power of two.

    Each step adds halves of blocks of two vectors: two shuffles and an addition for each pair.
    """
    lanes = len(vectors)
    block = lanes // 2
    while block:
        low = [(i // block % 2) * lanes + i // (2 * block) * 2 * block + i % block for i in range(lanes)]
        high = [place + block for place in low]
        pairs = [[vectors[i], vectors[i + len(vectors) // 2]] for i in range(len(vectors) // 2)]
        vectors = [named(named(tirx.Shuffle(p, low)) + named(tirx.Shuffle(p, high))) for p in pairs]
        block //= 2
    return vectors[0]


# -- results -----------------------------------------------------------------------------------------------------------


def _results(head: Head, row: Expr, whole: Expr, keys: Expr) -> None:
    runs = mk.chunks(head.plan.shape.columns, head.lanes)
    for begin in range(0, len(runs), MOST_VECTORS):
        _some_results(head, row, whole, keys, runs[begin : begin + MOST_VECTORS])


def _some_results(head: Head, row: Expr, whole: Expr, keys: Expr, runs: list[tuple[int, int]]) -> None:
    """Add up the weighted values of some columns. Neighbouring keys are added to sums of their own, so that few wait
    for each other.
    """
    lanes, dtype = head.lanes, head.plan.shape.acc_dtype
    chains = max(1, min(lanes, mk.BUSY // len(runs)))
    sums = T.alloc_buffer((chains * len(runs) * lanes,), dtype, scope="local")

    def each(number: int, emit: Callable[[int, Expr, Expr], None]) -> None:
        """Emit `emit(place in the sums, lane, column)` for the vectors of a chain."""
        for i, (start, size) in enumerate(runs):
            place = (number * len(runs) + i) * lanes
            mk.vector(size, lambda lane, place=place, start=start: emit(place, lane, start + lane))  # type: ignore[misc]

    def add(number: int, key: Expr) -> None:
        weight = T.bind(head.scores[row, key])
        each(
            number, lambda place, lane, column: T.buffer_store(
                sums, sums[place + lane] + weight * head.value(key, column), [place + lane]
            ),
        )  # fmt: skip

    for number in range(chains):
        each(number, lambda place, lane, column: T.buffer_store(sums, mk.constant(0, dtype), [place + lane]))
    with mk.serial(0, whole) as tile:
        first = T.bind(tile * lanes)

        def add_all() -> None:
            with mk.serial(0, lanes // chains) as some:
                for number in range(chains):
                    add(number, first + some * chains + number)

        _unless_hidden(head, row, first, add_all)
    with mk.serial(whole * lanes, keys) as key:
        add(0, key)
    ahead = len(runs) * lanes
    for number in range(1, chains):
        each(
            0, lambda place, lane, column, number=number: T.buffer_store(  # type: ignore[misc]
                sums, sums[place + lane] + sums[number * ahead + place + lane], [place + lane]
            ),
        )  # fmt: skip
    each(0, lambda place, lane, column: head.finish(row, column, sums[place + lane]))
