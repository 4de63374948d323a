"""Launches of pooling, cumulative operators, sorting, scatters and run-time index checks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.sizes import bounds_of, ceil_div, largest
from tilestitch.passes.plan.access.windows import window_extents
from tilestitch.passes.plan.index_checks import checked_together, read_for
from tilestitch.passes.plan.launches.cuda.emitted import Emitted, accumulator_bytes, shared_array
from tilestitch.passes.plan.own_kernels import Temporary
from tilestitch.passes.plan.schedules import (
    OperatorSchedule,
    RankSchedule,
    ScanSchedule,
    ScatterSchedule,
    SortSchedule,
    WindowSchedule,
)
from tilestitch.passes.plan.view import GroupView

CHECK_THREADS = 256
SIDES_AND_AREA = 5
"""Numbers that a block keeps per box."""


def checks(nodes: Sequence[Node], inputs: Sequence[Value]) -> Iterator[Emitted]:
    """Yield the launches that check the indices of gathers which are not known to be in range."""
    for together in checked_together(nodes):
        pending = [check for checks in together.values() for check in checks]
        count = largest(1, *(check.count for check in pending))
        yield Emitted.of("check", ceil_div(count, CHECK_THREADS), CHECK_THREADS, read_for(pending, inputs), part=True)


def window(view: GroupView, schedule: WindowSchedule) -> Emitted:
    assert view.anchor is not None
    blocks = ceil_div(prod(window_extents(view.anchor, schedule)), schedule.threads)
    return Emitted.of("window", blocks, schedule.threads, (*view.inputs, *view.stored), part=True)


def scan(node: Node, schedule: ScanSchedule) -> Emitted:
    x, out = node.inputs[0], node.outputs[0]
    lines = x.tensor_type.num_elements // x.shape[node.attrs["axis"]]
    blocks = lines if schedule.by_block else ceil_div(lines, schedule.threads)
    launch = Emitted.of("cumulative", blocks, schedule.threads, (x, out), part=True)
    if not schedule.by_block:
        return launch
    return replace(launch, static_shared_bytes=shared_array(schedule.threads, accumulator_bytes(x.dtype)))


def sort(node: Node, schedule: SortSchedule) -> Emitted:
    x = node.inputs[0]
    size = x.shape[node.attrs["axis"]]
    lines, room = x.tensor_type.num_elements // size, max(2, 1 << (size - 1).bit_length())
    key = accumulator_bytes(x.dtype)
    launch = Emitted.of("top_k", lines, schedule.threads, (*node.inputs, *node.outputs), part=True)
    if schedule.in_shared:
        return replace(launch, static_shared_bytes=shared_array(room, key) + shared_array(room, 4))
    memory = [
        Temporary(f"{node.name}.{name}", lines * room * nbytes) for name, nbytes in (("keys", key), ("positions", 4))
    ]
    return replace(launch, arguments=(*launch.arguments, *memory))


def ranks(node: Node, schedule: RankSchedule) -> Emitted:
    x, threads = node.inputs[0], schedule.threads
    size = x.shape[node.attrs["axis"]]
    blocks = x.tensor_type.num_elements // size * ceil_div(size, threads)
    launch = Emitted.of("top_k", blocks, threads, (*node.inputs, *node.outputs), part=True)
    return replace(launch, static_shared_bytes=shared_array(threads, accumulator_bytes(x.dtype)))


def suppress(node: Node, schedule: OperatorSchedule) -> tuple[Emitted, ...]:
    """Return a launch that sorts the boxes, if there are any, and one that walks through them."""
    boxes, scores, most, overlap, least = node.inputs
    places, counts = node.outputs
    threads, lines = schedule.threads, scores.shape[0] * scores.shape[1]
    blocks = lines * ceil_div(boxes.shape[1], threads)
    order = Emitted.of("suppress_order", blocks, threads, (scores, least, places))
    walk = Emitted.of("suppress", lines, threads, (boxes, scores, most, overlap, least, places, counts))
    alive, sides = shared_array(threads, 4), shared_array(threads * SIDES_AND_AREA, 4)
    walked = replace(walk, static_shared_bytes=alive + sides)
    return (replace(order, static_shared_bytes=alive), walked) if bounds_of(blocks)[1] else (walked,)


def operator(node: Node, schedule: OperatorSchedule) -> tuple[Emitted, ...]:
    """Return the launches of an operator that has one template."""
    if node.op == "suppress":
        return suppress(node, schedule)
    counts = node.op in ("tally", "compact")
    share = node.attrs["block"] if counts else schedule.threads
    over = node.output if node.op == "roi_align" else node.inputs[0]
    blocks = ceil_div(over.shape[0] if node.op == "order_rows" else over.tensor_type.num_elements, share)
    least = largest(1, blocks) if node.op == "append" else blocks
    launch = Emitted.of(node.op, least, schedule.threads, (*node.inputs, *node.outputs))
    return (replace(launch, static_shared_bytes=shared_array(schedule.threads, 4)) if counts else launch,)


def scatter(node: Node, schedule: ScatterSchedule) -> tuple[Emitted, ...]:
    """Return a launch that copies and, if there are updates, one that applies them."""
    (x, indices, updates), out, threads = node.inputs, node.outputs[0], schedule.threads
    blocks = ceil_div(x.tensor_type.num_elements, threads)
    copy = Emitted.of("copy", blocks, threads, (x, out), part=True)
    if updates.tensor_type.always_empty:
        return (copy,)
    if schedule.by_claims:
        return _claims(node, threads, blocks)
    if node.op == "scatter_elements":
        count = indices.tensor_type.num_elements // indices.shape[node.attrs["axis"]]
    else:
        count = prod(x.shape[indices.shape[-1] :])
    return copy, Emitted.of(node.op, ceil_div(count, threads), threads, (indices, updates, out), part=True)


def _claims(node: Node, threads: int, copy_blocks: int) -> tuple[Emitted, ...]:
    (x, indices, updates), out = node.inputs, node.outputs[0]
    if node.op == "scatter_elements":
        count, width, places = indices.tensor_type.num_elements, 1, x.tensor_type.num_elements
    else:
        depth = indices.shape[-1]
        count, width, places = prod(indices.shape[:-1]), prod(x.shape[depth:]), prod(x.shape[:depth])
    owners = Temporary("owners", 4 * places)
    return (
        Emitted.of("copy", copy_blocks, threads, (x, out, owners), part=True),
        Emitted.of(f"{node.op}_claim", ceil_div(count, threads), threads, (indices, owners), part=True),
        Emitted.of(node.op, ceil_div(count * width, threads), threads, (indices, updates, out, owners), part=True),
    )
