"""The template of top_k for lines of any length: a thread counts the elements that precede its own, and stores it at
that position if it is among the best.

A block's threads have neighbours of one line, and read the line piece by piece through shared memory. Blocks exchange
nothing, and no memory is needed, however long a line is.
"""

from math import prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import reducers
from tilestitch.codegen.compute.dtypes import Expr, from_storage, is_nan, named, to_storage
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cuda.abi import CudaLaunch, Emission, Parameter, Thread, barrier, kernel_function, shared_buffer
from tilestitch.codegen.cuda.positions import places_dtype
from tilestitch.compiler.ir.graph import Node
from tilestitch.compiler.ir.in_kernel import in_kernel
from tilestitch.compiler.ir.sizes import as_size, ceil_div, is_open
from tilestitch.compiler.ir.types import is_float
from tilestitch.passes.plan.schedules import RankSchedule


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
