"""The template of suppress: one kernel sorts the boxes of each class by score, a second one walks through them, a block
for each class of each image.

The sorted order is stored where the numbers of the kept boxes go: these overwrite what has been walked through, so that
no further memory is needed, however many boxes there are. Results do not depend on the order of threads.
"""

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, named
from tilestitch.codegen.compute.opaque import SIDES, corners, share_too_much
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cuda.abi import CudaLaunch, Parameter, Thread, barrier, kernel_function, shared_buffer
from tilestitch.codegen.cuda.positions import places_dtype
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.compiler.ir.sizes import bounds_of, ceil_div
from tilestitch.passes.plan.schedules import OperatorSchedule

PLACES = "int64"


def lower_suppress(node: Node, schedule: OperatorSchedule) -> tuple[CudaLaunch, ...]:
    """Return the launches: enough blocks per line for a thread per box, if there are boxes; then one block per line."""
    boxes, scores, most, overlap, least = node.inputs
    places, counts = node.outputs
    threads, lines = schedule.threads, scores.shape[0] * scores.shape[1]

    def order(buffers: list[Any], thread: Thread) -> None:
        _order(node, buffers, T.bind(T.cast(thread.block[0], places_dtype())), thread.thread[0], threads)

    def walk(buffers: list[Any], thread: Thread) -> None:
        _Walk(node, buffers, T.bind(T.cast(thread.block[0], places_dtype())), thread.thread[0], threads).run()

    pieces = ceil_div(boxes.shape[1], threads)
    walked = _launch(node, "suppress", (boxes, scores, most, overlap, least, places, counts), lines, threads, walk)
    if not bounds_of(pieces)[1]:
        return (walked,)
    return _launch(node, "suppress_order", (scores, least, places), lines * pieces, threads, order), walked


def _launch(node: Node, kind: str, values: tuple[Value, ...], blocks: Any, threads: int, body: Any) -> CudaLaunch:
    parameters = [Parameter.of(v.name, v.tensor_type) for v in values]
    grid, block = (blocks, 1, 1), (threads, 1, 1)
    func = kernel_function(parameters, grid, block, body)
    return CudaLaunch(kind, func, grid, block, tuple(p.arg for p in parameters), node.origins)


def _order(node: Node, buffers: list[Any], number: Expr, lane: Expr, threads: int) -> None:
    """Count, in each thread, the boxes before its own: those of higher score, and earlier ones of equal score. Boxes
    whose score is not above the least one, or NaN, come last.
    """
    scores, least, places = buffers
    size = integer(node.inputs[0].shape[1], places_dtype())
    pieces = integer(ceil_div(node.inputs[0].shape[1], threads), places_dtype())
    line, piece = T.bind(number // pieces), T.bind(number % pieces)
    start, limit = T.bind(line * size), named(least[0])

    def key(place: Expr) -> Expr:
        """Return the score of a box of the line; past its end that of the last one, which does not count there."""
        return scores[start + T.min(place, size - 1)]

    at = T.bind(piece * threads + T.cast(lane, PLACES))
    own = named(key(at))
    keys = shared_buffer(threads, "float32")
    before = _counter()
    with T.serial(0, pieces) as step:
        barrier()
        T.buffer_store(keys, key(step * threads + T.cast(lane, PLACES)), [lane])
        barrier()
        with T.serial(0, threads) as other:
            score, place = named(keys[other]), T.bind(step * threads + T.cast(other, PLACES))
            better = tirx.Or(score > own, tirx.And(tirx.EQ(score, own), place < at))
            ahead = tirx.And(score > limit, tirx.Or(tirx.Not(own > limit), better))
            both_last = tirx.all(tirx.Not(score > limit), tirx.Not(own > limit), place < at)
            counts = tirx.And(place < size, tirx.Or(ahead, both_last))
            T.buffer_store(before, before[0] + T.cast(counts, PLACES), [0])
    with T.If(at < size), T.Then():
        T.buffer_store(places, at, [start + before[0]])


class _Walk:
    """A block takes as many boxes as it has threads at a time, by score. A thread drops its box if a kept one overlaps
    it; then the remaining ones are kept one after the other, and drop later ones.
    """

    def __init__(self, node: Node, buffers: list[Any], line: Expr, lane: Expr, threads: int) -> None:
        self.boxes, self.scores, self.most, self.overlap, self.least, self.places, self.counts = buffers
        self.size = integer(node.inputs[0].shape[1], places_dtype())
        self.line, self.lane, self.threads = line, lane, threads
        self.start = T.bind(line * self.size)
        self.first = T.bind(line // integer(node.inputs[1].shape[1], places_dtype()) * self.size)
        self.centers = node.attrs["centers"]
        self.alive, self.sides = shared_buffer(threads, "int32"), shared_buffer(threads * (SIDES + 1), "float32")

    def run(self) -> None:
        limit = T.bind(T.min(T.max(self.most[0], T.int64(0)), self.size))
        overlap, least = named(self.overlap[0]), named(self.least[0])
        at, kept = _counter(), _counter()
        with T.While(tirx.And(at[0] < self.size, kept[0] < limit)):
            place = T.bind(self.places[self.start + T.min(at[0] + T.cast(self.lane, PLACES), self.size - 1)])
            is_real = tirx.all(at[0] + T.cast(self.lane, PLACES) < self.size, self.scores[self.start + place] > least)
            box = corners(self.boxes, self.first + place, self.centers)
            for side, value in enumerate(box):
                T.buffer_store(self.sides, value, [self.lane * (SIDES + 1) + side])
            T.buffer_store(self.alive, T.cast(is_real, "int32"), [self.lane])
            self.drop_by_kept(box, kept[0], overlap)
            barrier()  # all have read their numbers: kept ones may replace them
            self.keep(place, box, kept, limit, overlap)
            barrier()
            T.buffer_store(at, at[0] + self.threads, [0])
        with T.If(tirx.EQ(self.lane, 0)), T.Then():
            T.buffer_store(self.counts, kept[0], [self.line])

    def drop_by_kept(self, box: list[Expr], kept: Expr, overlap: Expr) -> None:
        """Drop the thread's own box if it overlaps one kept in an earlier iteration."""
        j = _counter()
        with T.While(tirx.And(j[0] < kept, tirx.EQ(self.alive[self.lane], 1))):
            other = corners(self.boxes, self.first + T.bind(self.places[self.start + j[0]]), self.centers)
            with T.If(share_too_much(box, other, overlap)), T.Then():
                T.buffer_store(self.alive, T.int32(0), [self.lane])
            T.buffer_store(j, j[0] + 1, [0])

    def keep(self, place: Expr, box: list[Expr], kept: Any, limit: Expr, overlap: Expr) -> None:
        """Keep the remaining boxes; all threads count them alike."""
        with T.serial(0, self.threads) as candidate, self.is_kept(candidate, kept[0] < limit), T.Then():
            with T.If(tirx.EQ(self.lane, candidate)), T.Then():
                T.buffer_store(self.places, place, [self.start + kept[0]])
            other = [named(self.sides[candidate * (SIDES + 1) + side]) for side in range(SIDES + 1)]
            with T.If(tirx.And(self.lane > candidate, share_too_much(box, other, overlap))), T.Then():
                T.buffer_store(self.alive, T.int32(0), [self.lane])
            T.buffer_store(kept, kept[0] + 1, [0])
            barrier()

    def is_kept(self, candidate: Expr, has_room: Expr) -> Any:
        """Return whether a box is kept, the same for all threads: no box is dropped in its own iteration."""
        return T.If(tirx.And(tirx.EQ(self.alive[candidate], 1), has_room))


def _counter() -> Any:
    buffer = T.alloc_buffer((1,), PLACES, scope="local")
    T.buffer_store(buffer, T.int64(0), [0])
    return buffer
