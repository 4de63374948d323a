"""Launches of element-wise work, of transposes through shared memory, and of row-wise work: whole rows, rows shared by
blocks, and split rows.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.accesses import elementwise_walk
from tilestitch.compiler.ir.sizes import ceil_div
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.access.positions import gpu_index_dtype_of
from tilestitch.passes.plan.access.row_loops import RowLoops, scheduled_loops
from tilestitch.passes.plan.access.split_rows import pieces_of
from tilestitch.passes.plan.access.vectors import accesses_along
from tilestitch.passes.plan.launches.cuda.emitted import (
    COUNTER_BYTES,
    Argument,
    Emitted,
    accumulator_bytes,
    shared_array,
)
from tilestitch.passes.plan.own_kernels import Temporary
from tilestitch.passes.plan.parts import ARG_REDUCTIONS, Part, Roles
from tilestitch.passes.plan.schedules import ElementwiseSchedule, RowSchedule, SplitRowSchedule, TransposeSchedule
from tilestitch.passes.plan.view import GroupView

WARP = 32


def elementwise(inputs: Sequence[Value], outputs: Sequence[Value], schedule: ElementwiseSchedule) -> Emitted:
    count = outputs[0].tensor_type.num_elements // schedule.lanes
    blocks = ceil_div(count, schedule.threads * schedule.vectors)
    return Emitted.of("injective", blocks, schedule.threads, (*inputs, *outputs), part=True)


def transpose(inputs: Sequence[Value], outputs: Sequence[Value], schedule: TransposeSchedule) -> Emitted:
    extents, walk = elementwise_walk(inputs, outputs)
    edge, axis = schedule.edge, schedule.axis
    outer = prod(d for i, d in enumerate(extents[:-1]) if i != axis)
    blocks = outer * ceil_div(extents[axis], edge) * ceil_div(extents[-1], edge)
    tiles = [storage_bytes(a.value.dtype) for a in accesses_along(axis, extents, walk, inputs)]
    launch = Emitted.of("transpose", blocks, edge * schedule.lines, (*inputs, *outputs), part=True)
    return replace(launch, static_shared_bytes=sum(shared_array(edge * (edge + 1), size) for size in tiles))


def rowwise(
    nodes: Sequence[Node], roles: Roles, inputs: Sequence[Value], outputs: Sequence[Value],
    arguments: Sequence[Argument], schedule: RowSchedule,
) -> Emitted:  # fmt: skip
    """Return the launch of row-wise work. arguments: substitutes for the inputs and outputs."""
    loops = scheduled_loops(nodes, roles, inputs, outputs, schedule)
    spread = loops.parts > 1
    partials = _partials(nodes, roles, loops.parts * loops.row_blocks * loops.rows) if spread else []
    return Emitted(
        "rowwise", (loops.blocks, 1, 1), loops.block, (*arguments, *partials),
        counter_bytes=COUNTER_BYTES if spread else 0, cooperative=spread, part=True,
        static_shared_bytes=rows_shared_bytes(nodes, roles, loops),
    )  # fmt: skip


def rows_shared_bytes(nodes: Sequence[Node], roles: Roles, loops: RowLoops) -> int:
    """Return the static shared memory through which the threads of a row combine their results."""
    if loops.columns:
        places = loops.team * loops.rows if loops.team > 1 else 0
        places_of_grid = places if loops.parts > 1 else 0
    else:
        places, places_of_grid = loops.team // WARP if loops.team > WARP else 0, 0
    return sum(
        shared_array(count, size)
        for sizes in _accumulators(nodes, roles)
        for size in sizes
        for count in (places, places_of_grid)
    )


def _accumulators(nodes: Sequence[Node], roles: Roles) -> list[list[int]]:
    """Return the bytes of each reduction's accumulators: a result and, for arg reductions, a position."""
    place = storage_bytes(gpu_index_dtype_of(nodes))
    reductions = [n for n, part in roles.parts.items() if part is Part.REDUCTION]
    return [[accumulator_bytes(n.inputs[0].dtype), *([place] if n.op in ARG_REDUCTIONS else [])] for n in reductions]


def _partials(nodes: Sequence[Node], roles: Roles, count: int) -> list[Temporary]:
    return [
        Temporary(f"partial.{number}.{place}", count * size)
        for number, sizes in enumerate(_accumulators(nodes, roles))
        for place, size in enumerate(sizes)
    ]


def split_rows(
    view: GroupView, roles: Roles, outputs: Sequence[Value], schedule: SplitRowSchedule
) -> tuple[Emitted, ...]:
    """Return a launch for each piece, in order."""
    assert roles.rows is not None
    pieces, own = pieces_of(view, outputs, roles.rows, schedule.parts)

    def argument(value: Value) -> Argument:
        return own.get(value) or Temporary(f"{view.name}.{value.name}", value.tensor_type.nbytes)

    launches = []
    for (piece, found), each in zip(pieces, schedule.pieces, strict=True):
        arguments = [argument(v) for v in (*piece.inputs, *piece.outputs)]
        if isinstance(each, RowSchedule):
            launches.append(rowwise(piece.nodes, found, piece.inputs, piece.outputs, arguments, each))
            continue
        launch = elementwise(piece.inputs, piece.outputs, each)
        launches.append(Emitted(launch.kind, launch.grid, launch.block, tuple(arguments), part=True))
    return tuple(launches)
