"""The templates of tally and compact: count the true elements of a mask, block by block, and store their positions; and
of append: new rows of a cache, stored after the existing ones.

A thread block has one block of elements, a thread some neighbours of it. Running totals of the counts give the start of
each block's results, so that blocks are independent.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.opaque import fault_message, in_range, wrapped
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cuda.abi import (
    CudaLaunch,
    Parameter,
    StatusArg,
    Thread,
    barrier,
    fault,
    kernel_function,
    shared_buffer,
)
from tilestitch.codegen.cuda.positions import places_dtype
from tilestitch.compiler.ir.graph import Node
from tilestitch.compiler.ir.sizes import ceil_div, largest
from tilestitch.passes.plan.schedules import OperatorSchedule


def lower_tally(node: Node, schedule: OperatorSchedule) -> CudaLaunch:
    """Return the launch of a tally, in which the last thread of a block stores its count."""

    def body(buffers: list[Any], block: Expr, lane: Expr) -> None:
        mask, counts = buffers
        share = _Share(node, schedule, mask, block, lane)
        total = share.running_total()
        with T.If(tirx.EQ(lane, schedule.threads - 1)), T.Then():
            T.buffer_store(counts, T.cast(total, "int64"), [block])

    return _launch(node, schedule, body)


def lower_compact(node: Node, schedule: OperatorSchedule) -> CudaLaunch:
    """Return the launch of a compact, in which a thread stores the positions of its true elements."""
    shape, count = node.inputs[0].shape, node.attrs["count"]

    def body(buffers: list[Any], block: Expr, lane: Expr) -> None:
        mask, ends, places = buffers
        dtype = places_dtype()
        share = _Share(node, schedule, mask, block, lane)
        total = share.running_total()
        rows = T.bind(integer(count, dtype))
        end = T.bind(T.cast(ends[block], dtype))
        at = T.alloc_buffer((1,), dtype, scope="local")
        before = T.cast(tirx.if_then_else(block > 0, ends[T.max(block - 1, 0)], T.int64(0)), dtype)
        T.buffer_store(at, before + T.cast(total - share.own, dtype), [0])
        with T.serial(0, share.length) as step:
            place = T.bind(share.first + step)
            with T.If(tirx.And(share.is_true(place), at[0] < end)), T.Then():
                rest = place
                for axis in reversed(range(len(shape))):
                    size = integer(shape[axis], dtype)
                    along = rest % size if axis else rest
                    T.buffer_store(places, T.cast(along, "int64"), [at[0] + axis * rows])
                    rest = T.bind(rest // size) if axis else rest
                T.buffer_store(at, at[0] + 1, [0])

    return _launch(node, schedule, body)


class _Share:
    """The neighbouring elements of a thread."""

    def __init__(self, node: Node, schedule: OperatorSchedule, mask: Any, block: Expr, lane: Expr) -> None:
        self.mask, self.lane, self.threads = mask, lane, schedule.threads
        self.length = node.attrs["block"] // schedule.threads
        self.count = integer(node.inputs[0].tensor_type.num_elements, places_dtype())
        self.first = T.bind(block * node.attrs["block"] + T.cast(lane, places_dtype()) * self.length)
        own = T.alloc_buffer((1,), "int32", scope="local")
        T.buffer_store(own, T.int32(0), [0])
        with T.serial(0, self.length) as step:
            T.buffer_store(own, own[0] + T.cast(self.is_true(self.first + step), "int32"), [0])
        self.own = T.bind(own[0])

    def is_true(self, place: Expr) -> Expr:
        element = tirx.if_then_else(place < self.count, self.mask[T.min(place, self.count - 1)], T.uint8(0))
        return tirx.NE(element, T.uint8(0))

    def running_total(self) -> Expr:
        """Return the true elements of this thread and earlier ones, by a scan over distances 1, 2, 4 and so on."""
        totals = shared_buffer(self.threads, "int32")
        T.buffer_store(totals, self.own, [self.lane])
        distance = 1
        while distance < self.threads:
            barrier()
            other = totals[T.max(self.lane - distance, 0)]
            added = T.bind(tirx.Select(self.lane >= distance, other, T.int32(0)))
            barrier()
            T.buffer_store(totals, totals[self.lane] + added, [self.lane])
            distance *= 2
        return T.bind(totals[self.lane])


def _launch(node: Node, schedule: OperatorSchedule, body: Body) -> CudaLaunch:
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (*node.inputs, *node.outputs)]
    blocks = ceil_div(node.inputs[0].tensor_type.num_elements, node.attrs["block"])
    grid, block = (blocks, 1, 1), (schedule.threads, 1, 1)

    def emit(buffers: list[Any], thread: Thread) -> None:
        body(buffers, T.bind(T.cast(thread.block[0], places_dtype())), thread.thread[0])

    func = kernel_function(parameters, grid, block, emit)
    return CudaLaunch(node.op, func, grid, block, tuple(p.arg for p in parameters), node.origins)


def lower_append(node: Node, schedule: OperatorSchedule) -> CudaLaunch:
    """Return the launch. A thread copies an element as it is stored; all else in the result's memory is untouched."""
    x, *given, out = (*node.inputs, node.output)
    attrs, threads, axis, count = node.attrs, schedule.threads, node.attrs["axis"], x.tensor_type.num_elements
    inner = prod(x.shape[axis + 1 :])
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (x, *given, out)]
    parameters += [Parameter(StatusArg(), "int32", 1)] if given else []
    grid, block = (largest(1, ceil_div(count, threads)), 1, 1), (threads, 1, 1)

    def body(buffers: list[Any], thread: Thread) -> None:
        source, target = buffers[0], buffers[len(given) + 1]
        dtype = places_dtype()
        room = integer(attrs["capacity"] * inner, dtype)
        new = integer(largest(1, x.shape[axis] * inner), dtype)
        place = T.bind(T.cast(thread.block[0], dtype) * threads + thread.thread[0])
        with T.If(place < integer(count, dtype)), T.Then():
            part = T.bind(place // new)
            if given:
                store_row(buffers, place, part, T.bind(place % new))
            else:
                before = integer(attrs["at"] * inner, dtype)
                T.buffer_store(target, source[place], [part * room + before + place % new])

    def store_row(buffers: list[Any], place: Expr, part: Expr, within: Expr) -> None:
        """Store an element where the list of places says, and the last row's thread zeros after it."""
        source, places, *ends, target, status = buffers
        dtype, width, rows = places_dtype(), max(1, inner), x.shape[axis]
        alike = prod(x.shape[(0 if given[0].shape[0] == 1 else 1) : axis])
        row, column = T.bind(within // integer(width, dtype)), T.bind(within % integer(width, dtype))
        at = wrapped(places[part // integer(largest(1, alike), dtype) * integer(rows, dtype) + row], attrs["until"])
        line = T.bind(part * integer(attrs["capacity"], dtype))
        with T.If(in_range(at, attrs["until"])):
            with T.Then():
                start = T.bind(T.cast(at, dtype))
                T.buffer_store(target, source[place], [(line + start) * integer(width, dtype) + column])
                if attrs.get("clears"):
                    until = integer(attrs["until"], dtype)
                    end = T.cast(T.max(T.min(ends[0][0], T.cast(until, "int64")), T.int64(0)), dtype) if ends else until
                    until = tirx.Select(tirx.EQ(row, integer(rows, dtype) - 1), end, start)
                    with T.serial(start + 1, T.max(until, start + 1)) as after:
                        index = (line + after) * integer(width, dtype) + column
                        T.buffer_store(target, tirx.const(0, target.dtype), [index])
            with T.Else():
                fault(status)

    func = kernel_function(parameters, grid, block, body)
    faults = (fault_message(node),) if given else ()
    return CudaLaunch("append", func, grid, block, tuple(p.arg for p in parameters), node.origins, faults=faults)


Body = Callable[[list[Any], Expr, Expr], None]
