"""The template of cumulative sums and products along an axis."""

from math import prod
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute import reducers
from tilestitch.codegen.compute.dtypes import Expr, from_storage, named, to_storage
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cuda.abi import CudaLaunch, Emission, Parameter, Thread, barrier, kernel_function, shared_buffer
from tilestitch.codegen.cuda.positions import index_dtype
from tilestitch.compiler.ir.graph import Node
from tilestitch.compiler.ir.sizes import is_open
from tilestitch.passes.plan.schedules import ScanSchedule


def lower_cumulative(node: Node, schedule: ScanSchedule) -> CudaLaunch:
    """Return the launch. Lines along the axis are independent. A block splits its line into a part per thread, and adds
    the total of earlier parts in a second pass.
    """
    x, out = node.inputs[0], node.outputs[0]
    axis = node.attrs["axis"]
    size, inner = x.shape[axis], prod(x.shape[axis + 1 :])
    lines = prod(x.shape[:axis]) * inner
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (x, out)]
    dtype = index_dtype([x])
    shared, threads = schedule.by_block, schedule.threads
    blocks = lines if shared else -(-lines // threads)
    grid, block = (blocks, 1, 1), (threads, 1, 1)
    scan = _Scan(node, size, inner, dtype, threads)

    def body(buffers: list[Any], thread: Thread) -> None:
        if shared:
            scan.by_block(buffers, T.bind(T.cast(thread.block[0], dtype)), thread.thread[0])
            return
        line = T.bind(T.cast(thread.block[0], dtype) * threads + thread.thread[0])
        with T.If(line < lines), T.Then():
            scan.walk(buffers, line, 0, scan.end, scan.identity(), store=True)

    func = kernel_function(parameters, grid, block, body)
    args, emission = tuple(p.arg for p in parameters), Emission(tuple(parameters), body)
    return CudaLaunch("cumulative", func, grid, block, args, node.origins, emission=emission)


class _Scan:
    def __init__(self, node: Node, size: int, inner: int, dtype: str, threads: int) -> None:
        self.threads = threads
        self.dtype, self.size, self.inner, self.index_dtype = node.inputs[0].dtype, size, inner, dtype
        self.reducer, self.exclusive, self.reverse = (node.attrs[n] for n in ("reducer", "exclusive", "reverse"))

    @property
    def end(self) -> Expr:
        """The size of a line, in a kernel."""
        return integer(self.size, self.index_dtype) if is_open(self.size) else self.size

    def identity(self) -> Expr:
        return reducers.identity(self.reducer, self.dtype)

    def combine(self, a: Expr, b: Expr) -> Expr:
        return reducers.combine(self.reducer, self.dtype, a, b)

    def by_block(self, buffers: list[Any], line: Expr, lane: Expr) -> None:
        length = -(-self.size // self.threads)
        totals = shared_buffer(self.threads, reducers.accumulator_dtype(self.dtype))
        first = T.bind(T.min(T.cast(lane, self.index_dtype) * length, self.end))
        end = T.bind(T.min(first + length, self.end))
        total = self.walk(buffers, line, first, end, self.identity(), store=False)
        T.buffer_store(totals, total, [lane])
        barrier()
        before = T.alloc_buffer((1,), reducers.accumulator_dtype(self.dtype), scope="local")
        T.buffer_store(before, self.identity(), [0])
        with T.serial(0, lane) as other:
            T.buffer_store(before, self.combine(named(before[0]), named(totals[other])), [0])
        self.walk(buffers, line, first, end, named(before[0]), store=True)

    def walk(self, buffers: list[Any], line: Expr, first: Expr, end: Expr, start: Expr, store: bool) -> Expr:
        """Scan positions [first, end) of a line; returns the total, including `start`."""
        source, target = buffers
        base = T.bind((line // self.inner) * (self.size * self.inner) + line % self.inner)
        running = T.alloc_buffer((1,), reducers.accumulator_dtype(self.dtype), scope="local")
        T.buffer_store(running, start, [0])
        with T.serial(first, end) as i:
            position = T.bind(base + (self.size - 1 - i if self.reverse else i) * self.inner)
            element = named(from_storage(source[position], self.dtype))
            before = named(running[0])
            after = named(self.combine(before, element))
            T.buffer_store(running, after, [0])
            if store:
                T.buffer_store(target, to_storage(before if self.exclusive else after, self.dtype), [position])
        return named(running[0])
