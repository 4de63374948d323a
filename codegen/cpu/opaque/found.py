"""The templates of tally and compact: count the true elements of a mask, block by block, and store their positions; and
of append: new rows of a cache, stored after the existing ones.

Tasks find the start of their results from running totals of the counts, and so are independent.
"""

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.opaque import fault_message, in_range, wrapped
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cpu.abi import KernelLaunch, Parameter, StatusArg, kernel_function
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.passes.plan.cpu.opaque import AppendPlan, FoundPlan

LANES = 16
"""Elements that are counted together."""
WORD = 8
"""Elements that are tested together."""


def lower_tally(plan: FoundPlan) -> KernelLaunch:
    """Return the launch of a tally: one task counts in some blocks."""

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        mask, counts = buffers
        with _blocks(plan, task) as block:
            low, high = _range_of(plan, block)
            T.buffer_store(counts, _count(mask, low, high), [block])

    return _launch(plan, body)


def lower_compact(plan: FoundPlan) -> KernelLaunch:
    """Return the launch of a compact: one task collects the positions of some blocks."""
    node = plan.node
    shape, count = node.inputs[0].shape, node.attrs["count"]

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        mask, ends, places = buffers
        rows = T.bind(integer(count, "int64"))
        with _blocks(plan, task) as block:
            low, high = _range_of(plan, block)
            before = tirx.if_then_else(block > 0, ends[T.max(block - 1, T.int64(0))], T.int64(0))
            first, last = T.bind(before), T.bind(ends[block])
            _store_places(mask, places, (low, high), (first, last))
            if len(shape) > 1:
                _store_coordinates(places, [integer(d, "int64") for d in shape], rows, (first, last))

    return _launch(plan, body)


def _launch(plan: FoundPlan, body: Any) -> KernelLaunch:
    node = plan.node
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (*node.inputs, *node.outputs)]
    func = kernel_function(parameters, body)
    return KernelLaunch(node.op, func, plan.tasks, tuple(p.arg for p in parameters), node.origins)


def _blocks(plan: FoundPlan, task: Expr) -> Any:
    first = T.bind(mk.as_index(task) * plan.schedule.blocks)
    return mk.serial(first, T.min(first + plan.schedule.blocks, integer(plan.blocks, "int64")))


def _range_of(plan: FoundPlan, block: Expr) -> tuple[Expr, Expr]:
    """Return the first element of a block, and its end."""
    size = plan.node.attrs["block"]
    low = T.bind(block * size)
    return low, T.bind(T.min(low + size, integer(plan.elements, "int64")))


def _is_true(mask: Any, place: Expr) -> Expr:
    """Return 1 or 0. A caller's mask may have any nonzero byte for true."""
    return T.min(mask[place], T.uint8(1))


def _count(mask: Any, low: Expr, high: Expr) -> Expr:
    """Return the number of true elements among [low, high), by vectors, and the remainder one by one."""
    sums, total = T.alloc_buffer((LANES,), "int32", scope="local"), _counter(T.int64(0))
    with T.vectorized(0, LANES) as lane:
        T.buffer_store(sums, T.int32(0), [lane])
    vectors = T.bind((high - low) // LANES)
    with mk.serial(0, vectors) as step, T.vectorized(0, LANES) as lane:
        T.buffer_store(sums, sums[lane] + T.cast(_is_true(mask, low + step * LANES + lane), "int32"), [lane])
    with mk.serial(low + vectors * LANES, high) as place:
        T.buffer_store(total, total[0] + T.cast(_is_true(mask, place), "int64"), [0])
    with T.serial(0, LANES) as lane:
        T.buffer_store(total, total[0] + T.cast(sums[lane], "int64"), [0])
    return total[0]


def _store_places(mask: Any, places: Any, elements: tuple[Expr, Expr], results: tuple[Expr, Expr]) -> None:
    """Store the numbers of true elements in the first row. Each element's number is stored where the next true one
    belongs, so that a false one is overwritten, and the loop ends with the last true one: there are no unpredictable
    branches. Where true elements are rare, words without any are skipped.
    """
    (low, high), (first, last) = elements, results
    at, place = _counter(first), _counter(low)

    def until(stop: Expr) -> None:
        with T.While(tirx.And(at[0] < last, place[0] < stop)):
            T.buffer_store(places, place[0], [at[0]])
            T.buffer_store(at, at[0] + T.cast(_is_true(mask, place[0]), "int64"), [0])
            T.buffer_store(place, place[0] + 1, [0])

    with T.If((last - first) * WORD < high - low), T.Then():
        whole = T.bind(high - WORD)
        with T.While(tirx.And(at[0] < last, place[0] <= whole)):
            word = T.bind(T.reinterpret("uint64", mask.vload([place[0]], f"uint8x{WORD}")))
            with T.If(tirx.EQ(word, T.uint64(0))):
                with T.Then():
                    T.buffer_store(place, place[0] + WORD, [0])
                with T.Else():
                    until(T.bind(place[0] + WORD))
    until(high)


def _store_coordinates(places: Any, shape: list[Expr], count: Expr, results: tuple[Expr, Expr]) -> None:
    """Convert ascending element numbers to positions along the axes, incrementally from the previous element's.

    Divisions are marked as non-negative: LLVM takes minutes for five nested floor quotients.
    """
    sizes = [T.bind(size) for size in shape]
    along = [_counter(T.int64(0)) for _ in sizes]
    before = _counter(T.int64(0))
    with mk.serial(*results) as result:
        number = T.bind(places[result])
        with T.If(tirx.EQ(result, results[0])):
            with T.Then():
                rest = number
                for axis in reversed(range(1, len(sizes))):
                    T.buffer_store(along[axis], tirx.truncmod(rest, sizes[axis]), [0])
                    rest = T.bind(tirx.truncdiv(rest, sizes[axis]))
                T.buffer_store(along[0], rest, [0])
            with T.Else():
                T.buffer_store(along[-1], along[-1][0] + (number - before[0]), [0])
                for axis in reversed(range(1, len(sizes))):
                    with T.While(along[axis][0] >= sizes[axis]):
                        T.buffer_store(along[axis], along[axis][0] - sizes[axis], [0])
                        T.buffer_store(along[axis - 1], along[axis - 1][0] + 1, [0])
        T.buffer_store(before, number, [0])
        for axis, place in enumerate(along):
            T.buffer_store(places, place[0], [result + axis * count])


def _counter(start: Expr) -> Any:
    buffer = T.alloc_buffer((1,), "int64", scope="local")
    T.buffer_store(buffer, start, [0])
    return buffer


def lower_append(plan: AppendPlan) -> KernelLaunch:
    """Return the launch. Elements are copied as they are stored; all else in the result's memory is untouched."""
    node = plan.node
    x, *places, out = (*node.inputs, node.output)
    parameters = [Parameter.of(v.name, v.tensor_type) for v in (x, *places, out)]
    parameters += [Parameter(StatusArg(), "int32", 1)] if places else []

    def body(buffers: list[Any], task: Expr, scratch: Expr) -> None:
        outer = T.bind(integer(plan.outer, "int64"))
        first = T.bind(T.cast(task, "int64") * plan.schedule.parts)
        with mk.serial(first, T.min(first + plan.schedule.parts, outer)) as part:
            if places:
                _store_rows(plan, buffers, part)
            else:
                start, width = (integer(size, "int64") for size in (node.attrs["at"], plan.size * plan.inner))
                _copy_rows(plan, buffers, part, T.bind(part * width), start, width)

    func = kernel_function(parameters, body)
    faults = (fault_message(node),) if places else ()
    return KernelLaunch("append", func, plan.tasks, tuple(p.arg for p in parameters), node.origins, faults=faults)


def _copy_rows(plan: AppendPlan, buffers: list[Any], part: Expr, begin: Expr, place: Expr, width: Expr) -> None:
    """Emit a copy of `width` elements from `begin` on to the rows of `part` from `place` on."""
    source, target = buffers[:2]
    end = T.bind((part * integer(plan.node.attrs["capacity"], "int64") + place) * integer(plan.inner, "int64"))
    mk.for_each_column(width, LANES, lambda column: T.buffer_store(target, source[begin + column], [end + column]))


def _store_rows(plan: AppendPlan, buffers: list[Any], part: Expr) -> None:
    """Emit the stores of the rows of `part`, each at its place, and of zeros after them."""
    source, places, *ends, target, status = buffers
    attrs, rows, inner = plan.node.attrs, integer(plan.size, "int64"), T.bind(integer(plan.inner, "int64"))
    line = T.bind(part // integer(plan.parts_alike, "int64") * rows)
    with mk.serial(T.int64(0), rows) as row:
        place = wrapped(places[line + row], attrs["until"])
        with T.If(in_range(place, attrs["until"])):
            with T.Then():
                _copy_rows(plan, [source, target], part, T.bind((part * rows + row) * inner), place, inner)
            with T.Else():
                T.buffer_store(status, T.int32(1), [0])
    if not attrs.get("clears"):
        return
    with T.If(rows > 0), T.Then():
        room = integer(attrs["capacity"], "int64")
        after = T.bind(T.max(places[line + rows - 1] + 1, T.int64(0)))
        begin = T.bind((part * room + after) * inner)
        until = integer(attrs["until"], "int64")
        end = T.min(ends[0][0], until) if ends else until
        width = T.bind(T.max(end - after, T.int64(0)) * inner)
        zero = tirx.const(0, target.dtype)
        mk.for_each_column(width, LANES, lambda column: T.buffer_store(target, zero, [begin + column]))
