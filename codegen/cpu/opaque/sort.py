"""The templates of top_k, by insertion for small k and otherwise by radix sorts of the candidates, and of order_rows, a
merge sort of row numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, dtype_of, from_storage, is_nan, named, to_storage
from tilestitch.codegen.compute.indexing import index_dtype
from tilestitch.codegen.compute.opaque import comes_first
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cpu.abi import KernelLaunch, Parameter, kernel_function
from tilestitch.codegen.cpu.contraction.microkernel import scratch_buffer
from tilestitch.compiler.ir.sizes import Size, is_open, largest
from tilestitch.compiler.ir.types import compute_dtype, is_float
from tilestitch.passes.plan.cpu.opaque import OrderPlan, SortPlan

from . import radix


@dataclass(frozen=True)
class _Line:
    """A line along the axis: its start in the operand and in the results, and the stride of its elements."""

    source: Any
    start: Expr
    step: Size


def merged(keys: Any, positions: Any, count: Expr, half: Expr, before: Callable[[Expr, Expr], Expr]) -> Expr:
    """Sort the first `count` keys, with their positions, and return the offset of the result. The two halves of the
    workspace, the second from `half` on, alternate. `before(new, old)`: whether the later one comes first.
    """
    levels = _levels(count)
    left = T.alloc_buffer((1,), "int32", scope="local")
    right = T.alloc_buffer((1,), "int32", scope="local")
    with T.serial(0, levels) as level:
        width = T.bind(T.shift_left(T.int32(1), level))
        source = T.bind(level % 2 * half)
        target = T.bind(half - source)
        with T.serial(0, (count + 2 * width - 1) // (2 * width)) as pair:
            low = T.bind(pair * 2 * width)
            middle = T.bind(T.min(low + width, count))
            high = T.bind(T.min(low + 2 * width, count))
            T.buffer_store(left, low, [0])
            T.buffer_store(right, middle, [0])
            with T.serial(low, high) as out:
                a = named(keys[source + T.min(left[0], count - 1)])
                b = named(keys[source + T.min(right[0], count - 1)])
                from_right = tirx.Or(left[0] >= middle, tirx.And(right[0] < high, before(b, a)))
                take = named(T.cast(from_right, "int32"))
                chosen = named(tirx.Select(tirx.NE(take, 0), right[0], left[0]))
                T.buffer_store(keys, keys[source + chosen], [target + out])
                T.buffer_store(positions, positions[source + chosen], [target + out])
                T.buffer_store(left, left[0] + 1 - take, [0])
                T.buffer_store(right, right[0] + take, [0])
    return levels % 2 * half


def _levels(count: Expr) -> Expr:
    """Return the number of pairwise merge levels until `count` are sorted."""
    if isinstance(count, int):
        return (count - 1).bit_length()
    levels = T.alloc_buffer((1,), "int32", scope="local")
    T.buffer_store(levels, T.int32(0), [0])
    with T.While(T.shift_left(T.int32(1), levels[0]) < count):
        T.buffer_store(levels, levels[0] + 1, [0])
    return T.bind(levels[0])


def counter() -> Any:
    """Return a variable of 32 bits that begins at 0."""
    buffer = T.alloc_buffer((1,), "int32", scope="local")
    T.buffer_store(buffer, T.int32(0), [0])
    return buffer


class _TopK:
    """One top_k node: keys, which are values in compute dtype where these are inserted, and positions lie in the
    workspace.
    """

    def __init__(self, plan: SortPlan) -> None:
        self.dtype = plan.node.inputs[0].dtype
        self.largest = bool(plan.node.attrs["largest"])
        self.plan, self.inner = plan, plan.inner
        self.k: Expr = plan.k
        self.size: Expr = plan.size
        self.capacity: Expr = plan.capacity
        self.inserts = plan.schedule.inserts

    def begin(self) -> None:
        """Bind open sizes to variables, once per task."""
        sizes = (self.plan.k, self.plan.size, self.plan.capacity)
        self.k, self.size, self.capacity = (T.bind(integer(s, "int32")) if is_open(s) else s for s in sizes)

    def before(self, new: Expr, old: Expr) -> Expr:
        """Return whether `new`, later in the line, precedes `old`; NaN counts as the largest number."""
        beats = new > old if self.largest else new < old
        if not is_float(self.dtype):
            return beats
        new_nan, old_nan = is_nan(new), is_nan(old)
        special = tirx.And(new_nan, tirx.Not(old_nan)) if self.largest else tirx.And(old_nan, tirx.Not(new_nan))
        return tirx.Or(beats, special)

    def may_precede(self, new: Expr, old: Expr) -> Expr:
        """Return what `before` implies, by one comparison, which is also true where one of both is NaN."""
        return tirx.Not(new <= old if self.largest else new >= old)

    def element(self, line: _Line, i: Expr) -> Expr:
        at = line.start + T.cast(i, dtype_of(line.start)) * line.step
        return named(from_storage(line.source[at], self.dtype))

    def insert(self, line: _Line, keys: Any, positions: Any) -> None:
        """Keep the k best so far, in order."""
        slot = T.alloc_buffer((1,), "int32", scope="local")

        def put(i: Expr, value: Expr, count: Expr) -> None:
            T.buffer_store(slot, T.min(count, self.k - 1), [0])
            with T.While(tirx.And(slot[0] > 0, self.before(value, keys[T.max(slot[0] - 1, 0)]))):
                T.buffer_store(keys, keys[slot[0] - 1], [slot[0]])
                T.buffer_store(positions, positions[slot[0] - 1], [slot[0]])
                T.buffer_store(slot, slot[0] - 1, [0])
            T.buffer_store(keys, value, [slot[0]])
            T.buffer_store(positions, T.cast(i, "int32"), [slot[0]])

        first = T.min(self.k, self.size)
        with T.serial(0, first) as i:
            put(i, self.element(line, i), T.cast(i, "int32"))
        with T.serial(first, self.size if isinstance(self.k, int) else tirx.Select(self.k > 0, self.size, 0)) as i:
            value, last = self.element(line, i), named(keys[self.k - 1])
            with T.If(self.may_precede(value, last)), T.Then(), T.If(self.before(value, last)), T.Then():
                put(i, value, self.k)

    def select(self, line: _Line, keys: Any, positions: Any) -> None:
        """Sort the first elements that the room has place for, and replace the last of the k best by better ones."""
        with T.serial(0, self.capacity) as i:
            self.collect(self.element(line, i), i, i, keys, positions)
        radix.sort(keys, positions, self.capacity, self.capacity, self.dtype)
        if not (isinstance(self.size, int) and isinstance(self.capacity, int)):
            with T.If(self.size > self.capacity), T.Then():
                self.replace(line, keys, positions)
        elif self.size > self.capacity:
            self.replace(line, keys, positions)

    def replace(self, line: _Line, keys: Any, positions: Any) -> None:
        """Collect the other elements that precede the last of the k best, and sort them among these whenever the room
        is full: the k best remain.
        """
        room = self.capacity
        count, last = counter(), T.alloc_buffer((1,), compute_dtype(self.dtype), scope="local")

        def keep() -> None:
            T.buffer_store(count, T.cast(self.k, "int32"), [0])
            T.buffer_store(last, self.element(line, positions[T.max(self.k - 1, 0)]), [0])

        keep()
        with T.serial(room, self.size) as i:
            value = self.element(line, i)
            with T.If(self.may_precede(value, last[0])), T.Then(), T.If(self.before(value, last[0])), T.Then():
                with T.If(tirx.EQ(count[0], room)), T.Then():
                    radix.sort(keys, positions, room, room, self.dtype)
                    keep()
                self.collect(value, i, count[0], keys, positions)
                T.buffer_store(count, count[0] + 1, [0])
        radix.sort(keys, positions, T.bind(count[0]), room, self.dtype)

    def collect(self, value: Expr, i: Expr, at: Expr, keys: Any, positions: Any) -> None:
        T.buffer_store(keys, radix.code(value, self.dtype, self.plan.key_dtype, self.largest), [at])
        T.buffer_store(positions, T.cast(i, "int32"), [at])

    def line_body(self, buffers: list[Any], number: Expr, keys: Any, positions: Any) -> None:
        source, *results = buffers
        outer, within = number // self.inner, number % self.inner
        line = _Line(source, T.bind(outer * (self.plan.size * self.inner) + within), self.inner)
        (self.insert if self.inserts else self.select)(line, keys, positions)
        start = T.bind(outer * (self.plan.k * self.inner) + within)
        values, indices = results
        with T.serial(0, self.k) as i:
            position, to = named(positions[i]), start + T.cast(i, dtype_of(start)) * self.inner
            T.buffer_store(values, to_storage(self.element(line, position), self.dtype), [to])
            T.buffer_store(indices, T.cast(position, "int64"), [to])


def lower_top_k(plan: SortPlan) -> KernelLaunch:
    """Return the launch; one task handles a few lines along the axis."""
    node, per_task, room = plan.node, plan.schedule.lines, largest(1, plan.room)
    top = _TopK(plan)
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (*node.inputs, *node.outputs)]
    at_dtype = index_dtype([node.inputs[0]])

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        keys = scratch_buffer(scratch, 0, (room,), plan.key_dtype, "keys")
        positions = scratch_buffer(scratch, plan.key_bytes, (room,), "int32", "positions")
        first = T.bind(T.cast(task, at_dtype) * per_task)
        top.begin()
        with T.serial(first, T.min(first + per_task, integer(plan.lines, at_dtype))) as line:
            top.line_body(buffers, line, keys, positions)

    func = kernel_function(parameters, body)
    return KernelLaunch("top_k", func, plan.tasks, tuple(p.arg for p in parameters), node.origins, plan.scratch_bytes)


def lower_order_rows(plan: OrderPlan) -> KernelLaunch:
    """Return the launch, whose only task sorts all rows."""
    node = plan.node
    dtype = node.inputs[0].dtype
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (*node.inputs, *node.outputs)]

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        rows, order = buffers
        numbers = scratch_buffer(scratch, 0, (largest(1, plan.room),), "int32", "numbers")
        count, length = T.bind(integer(plan.rows, "int32")), T.bind(integer(plan.length, "int64"))

        def before(new: Expr, old: Expr) -> Expr:
            starts = (T.bind(T.cast(new, "int64") * length), T.bind(T.cast(old, "int64") * length))
            return comes_first(rows, dtype, starts, length)[0]

        with T.serial(0, count) as row:
            T.buffer_store(numbers, row, [row])
        offset = T.bind(merged(numbers, numbers, count, count, before))
        with T.serial(0, count) as row:
            T.buffer_store(order, T.cast(numbers[offset + row], "int64"), [row])

    func = kernel_function(parameters, body)
    args = tuple(p.arg for p in parameters)
    return KernelLaunch("order_rows", func, plan.tasks, args, node.origins, plan.scratch_bytes)
