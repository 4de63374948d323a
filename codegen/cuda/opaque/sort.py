"""The template of top_k: each block sorts a line by a bitonic network, in shared memory if it fits, else in global.

Keys are compared together with their positions, so that the order is total and the result does not depend on threads.
In order_rows a thread counts the rows that precede its own, which gives the position for its number.

For lines of any length a thread counts the elements that precede its own, and stores it at that position if it is among
the best. A block's threads have neighbours of one line, and read the line piece by piece through shared memory. Blocks
exchange nothing, and no memory is needed, however long a line is.
"""

from math import prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import reducers
from tilestitch.codegen.compute.dtypes import Expr, from_storage, is_nan, named, storage_bits, to_storage
from tilestitch.codegen.compute.opaque import comes_first
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cuda.abi import (
    CudaLaunch,
    Emission,
    Parameter,
    TemporaryArg,
    Thread,
    barrier,
    kernel_function,
    shared_buffer,
)
from tilestitch.codegen.cuda.positions import places_dtype
from tilestitch.compiler.ir.graph import Node
from tilestitch.compiler.ir.in_kernel import in_kernel
from tilestitch.compiler.ir.sizes import as_size, ceil_div, is_open
from tilestitch.compiler.ir.types import is_float
from tilestitch.passes.plan.schedules import OperatorSchedule, RankSchedule, SortSchedule


class TopK:
    """Lines along the axis: their length, their number, and the stride of their elements."""

    def __init__(self, node: Node) -> None:
        x = node.inputs[0]
        axis = node.attrs["axis"]
        self.dtype = x.dtype
        self.key = reducers.accumulator_dtype(x.dtype)
        self.largest = bool(node.attrs["largest"])
        self.k = as_size(node.attrs["k"])
        self.size, self.inner = x.shape[axis], prod(x.shape[axis + 1 :])
        self.lines = prod(x.shape[:axis]) * self.inner

    def before(self, a: Expr, at_a: Expr, b: Expr, at_b: Expr) -> Expr:
        """Return whether `a` precedes `b`: positions past the line last, NaN as the largest number, ties by
        position.
        """
        better, worse = (a > b, b > a) if self.largest else (a < b, b < a)
        if is_float(self.dtype):
            nan_a, nan_b = is_nan(a), is_nan(b)
            above, below = tirx.And(nan_a, tirx.Not(nan_b)), tirx.And(nan_b, tirx.Not(nan_a))
            better = tirx.Or(better, above if self.largest else below)
            worse = tirx.Or(worse, below if self.largest else above)
        size = in_kernel(self.size) if is_open(self.size) else self.size
        real_a, real_b = at_a < size, at_b < size
        ordered = tirx.Or(better, tirx.And(tirx.Not(worse), at_a < at_b))
        return tirx.And(real_a, tirx.Or(tirx.Not(real_b), ordered))


def lower_top_k(node: Node, schedule: SortSchedule) -> CudaLaunch:
    """Return the launch, with one block per line along the axis."""
    top = _Sorting(node, schedule.in_shared)
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (*node.inputs, *node.outputs)]
    if not top.in_shared:
        count = top.lines * top.room
        sizes = (("keys", top.key), ("positions", "int32"))
        parameters += [
            Parameter(TemporaryArg(f"{node.name}.{name}", count * (storage_bits(dtype) // 8)), dtype, count)
            for name, dtype in sizes
        ]
    threads = schedule.threads
    grid, block = (top.lines, 1, 1), (threads, 1, 1)

    def body(buffers: list[Any], thread: Thread) -> None:
        line = T.bind(T.cast(thread.block[0], "int64"))
        top.emit(buffers, line, thread.thread[0], threads)

    func = kernel_function(parameters, grid, block, body)
    args, emission = tuple(p.arg for p in parameters), Emission(tuple(parameters), body)
    return CudaLaunch("top_k", func, grid, block, args, node.origins, emission=emission)


class _Sorting(TopK):
    """A sort by a bitonic network. `room`: elements that are sorted, a power of two; those past the line have position
    >= size.
    """

    def __init__(self, node: Node, in_shared: bool) -> None:
        super().__init__(node)
        self.room = max(2, 1 << (self.size - 1).bit_length())
        self.in_shared = in_shared

    def emit(self, buffers: list[Any], line: Expr, lane: Expr, threads: int) -> None:
        source, values, indices, *memory = buffers
        base: Expr = 0
        if self.in_shared:
            memory = [shared_buffer(self.room, self.key), shared_buffer(self.room, "int32")]
        else:
            base = T.bind(line * self.room)
        keys, positions = memory
        outer, within = T.bind(line // self.inner), T.bind(line % self.inner)
        start = T.bind(outer * (self.size * self.inner) + within)
        with T.serial(0, -(-self.room // threads)) as step:
            i = T.bind(step * threads + lane)
            with T.If(i < self.room), T.Then():
                element = from_storage(source[start + T.min(i, self.size - 1) * self.inner], self.dtype)
                T.buffer_store(keys, reducers.to_accumulator(element, self.dtype), [base + i])
                T.buffer_store(positions, i, [base + i])
        barrier()
        self._sort(keys, positions, base, lane, threads)
        first = T.bind(outer * (self.k * self.inner) + within)
        with T.serial(0, -(-self.k // threads)) as step:
            i = T.bind(step * threads + lane)
            with T.If(i < self.k), T.Then():
                value = reducers.from_accumulator(keys[base + i], self.dtype)
                T.buffer_store(values, to_storage(value, self.dtype), [first + i * self.inner])
                T.buffer_store(indices, T.cast(positions[base + i], "int64"), [first + i * self.inner])

    def _sort(self, keys: Any, positions: Any, base: Expr, lane: Expr, threads: int) -> None:
        """Emit Batcher's bitonic sort: runs of doubling length, merged with halving distance."""
        levels = self.room.bit_length() - 1
        pairs = self.room // 2
        with T.serial(0, levels) as level, T.serial(0, level + 1) as sub:
            distance = T.bind(T.shift_left(T.int32(1), level - sub))
            with T.serial(0, -(-pairs // threads)) as step:
                pair = T.bind(step * threads + lane)
                with T.If(pair < pairs), T.Then():
                    low = T.bind((pair // distance) * (distance * 2) + pair % distance)
                    self._exchange(keys, positions, base, low, low + distance, level)
            barrier()

    def _exchange(self, keys: Any, positions: Any, base: Expr, low: Expr, high: Expr, level: Expr) -> None:
        a, b = named(keys[base + low]), named(keys[base + high])
        at_a, at_b = named(positions[base + low]), named(positions[base + high])
        run = T.shift_right(low, level + 1)
        upwards = tirx.EQ(T.bitwise_and(run, T.int32(1)), 0)
        wrong = tirx.Select(upwards, self.before(b, at_b, a, at_a), self.before(a, at_a, b, at_b))
        with T.If(wrong), T.Then():
            for buffer, lower, upper in ((keys, b, a), (positions, at_b, at_a)):
                T.buffer_store(buffer, lower, [base + low])
                T.buffer_store(buffer, upper, [base + high])


def lower_order_rows(node: Node, schedule: OperatorSchedule) -> CudaLaunch:
    """Return the launch, which needs no further memory and no exchange between threads."""
    x, threads = node.inputs[0], schedule.threads
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (*node.inputs, *node.outputs)]
    grid, block = (ceil_div(x.shape[0], threads), 1, 1), (threads, 1, 1)

    def body(buffers: list[Any], thread: Thread) -> None:
        rows, order = buffers
        dtype = places_dtype()
        count, length = (T.bind(integer(size, dtype)) for size in x.shape)
        own = T.bind(T.cast(thread.block[0], dtype) * threads + T.cast(thread.thread[0], dtype))
        before = T.alloc_buffer((1,), dtype, scope="local")
        T.buffer_store(before, tirx.const(0, dtype), [0])
        with T.If(own < count), T.Then():
            with T.serial(tirx.const(0, dtype), count) as other:
                first, equal = comes_first(rows, x.dtype, (other * length, own * length), length)
                counts = tirx.Or(first, tirx.And(equal, other < own))
                T.buffer_store(before, before[0] + T.cast(counts, dtype), [0])
            T.buffer_store(order, T.cast(own, "int64"), [before[0]])

    func = kernel_function(parameters, grid, block, body)
    return CudaLaunch("order_rows", func, grid, block, tuple(p.arg for p in parameters), node.origins)


def lower_ranks(node: Node, schedule: RankSchedule) -> CudaLaunch:
    """Return the launch, with enough blocks per line for a thread per element."""
    top, threads = TopK(node), schedule.threads
    pieces = ceil_div(top.size, threads)
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (*node.inputs, *node.outputs)]
    grid, block = (top.lines * pieces, 1, 1), (threads, 1, 1)

    def body(buffers: list[Any], thread: Thread) -> None:
        _emit(top, buffers, T.bind(T.cast(thread.block[0], places_dtype())), thread.thread[0], threads)

    func = kernel_function(parameters, grid, block, body)
    args, emission = tuple(p.arg for p in parameters), Emission(tuple(parameters), body)
    return CudaLaunch("top_k", func, grid, block, args, node.origins, emission=emission)


def _emit(top: TopK, buffers: list[Any], number: Expr, lane: Expr, threads: int) -> None:
    source, values, indices = buffers
    dtype = places_dtype()
    size, inner, k = (integer(each, dtype) for each in (top.size, top.inner, top.k))
    pieces = integer(ceil_div(top.size, threads), dtype)
    line, piece = T.bind(number // pieces), T.bind(number % pieces)
    outer, within = T.bind(line // inner), T.bind(line % inner)
    start = T.bind(outer * (size * inner) + within)

    def key(place: Expr) -> Expr:
        """Return an element of the line; past its end the last one, which does not count there."""
        element = from_storage(source[start + T.min(place, size - 1) * inner], top.dtype)
        return reducers.to_accumulator(element, top.dtype)

    at = T.bind(piece * threads + lane)
    own = named(key(at))
    keys = shared_buffer(threads, top.key)
    before = T.alloc_buffer((1,), dtype, scope="local")
    T.buffer_store(before, tirx.IntImm(dtype, 0), [0])
    with T.serial(0, pieces) as step:
        barrier()
        T.buffer_store(keys, key(step * threads + lane), [lane])
        barrier()
        with T.serial(0, threads) as other:
            comes_before = top.before(keys[other], step * threads + other, own, at)
            T.buffer_store(before, before[0] + T.cast(comes_before, dtype), [0])
    place = T.bind(before[0])
    with T.If(tirx.And(at < size, place < k)), T.Then():
        target = T.bind(outer * (k * inner) + within + place * inner)
        T.buffer_store(values, to_storage(reducers.from_accumulator(own, top.dtype), top.dtype), [target])
        T.buffer_store(indices, T.cast(at, "int64"), [target])
