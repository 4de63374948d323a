"""Whether a kernel can be emitted as scheduled: the conditions that templates rely on.

Checked when a plan is read back, and again before code is generated, so that a hand-edited plan is either obeyed or
refused.
"""

import itertools
from collections.abc import Iterator, Sequence
from math import prod

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.accesses import elementwise_walk
from tilestitch.compiler.ir.sizes import divisor_of, is_open
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.access.row_loops import RowLoops, row_loops, scheduled_loops
from tilestitch.passes.plan.access.split_rows import Piece, split_reasons
from tilestitch.passes.plan.access.vectors import accesses_along

from .access.windows import why_not_windows
from .cpu.check import cpu_reasons
from .cpu.schedules import CpuSchedule
from .group import GroupKind
from .parts import Roles
from .schedules import (
    OPERATORS,
    ElementwiseSchedule,
    OpaqueSchedule,
    OpenElementwiseSchedule,
    OpenRowSchedule,
    OperatorSchedule,
    RankSchedule,
    RowSchedule,
    ScanSchedule,
    ScatterSchedule,
    Schedule,
    SortSchedule,
    SplitRowSchedule,
    TransposeSchedule,
    WindowSchedule,
)
from .view import GroupView

WARP = 32
MOST_THREADS = 1024
MOST_VECTORS = 64
"""Most vectors per thread: its code is unrolled over them."""
MOST_STATIC_SHARED_BYTES = 48 * 1024
OPAQUE = {
    "window_reduce": WindowSchedule, "cumulative": ScanSchedule, "top_k": SortSchedule | RankSchedule,
    "scatter_elements": ScatterSchedule, "scatter_nd": ScatterSchedule,
    **dict.fromkeys(OPERATORS, OperatorSchedule),
}  # fmt: skip
"""The schedule class that the template of each operator takes."""


def why_not(view: GroupView, kind: GroupKind, roles: Roles, schedule: Schedule) -> str | None:
    """Return why a non-empty group cannot be computed as scheduled; None if it can."""
    return next(_reasons(view, kind, roles, schedule), None)


def _reasons(view: GroupView, kind: GroupKind, roles: Roles, schedule: Schedule) -> Iterator[str]:
    outputs = view.stored
    if isinstance(schedule, CpuSchedule):
        yield from cpu_reasons(view, kind, roles, schedule)
        return
    if isinstance(schedule, OpaqueSchedule) and kind is GroupKind.OPAQUE:
        yield from _opaque(schedule, view)
        return
    match schedule:
        case ElementwiseSchedule() if kind is GroupKind.INJECTIVE:
            yield from _elementwise(schedule, view.inputs, outputs)
        case TransposeSchedule() if kind is GroupKind.INJECTIVE:
            yield from _transpose(schedule, view.inputs, outputs)
        case RowSchedule() if kind is GroupKind.ROWWISE:
            if isinstance(schedule, OpenRowSchedule):
                yield from _open_rows(schedule, roles)
            yield from row_reasons(schedule, scheduled_loops(view.nodes, roles, view.inputs, outputs, schedule))
        case SplitRowSchedule() if kind is GroupKind.ROWWISE:
            yield from split_reasons(view, roles, schedule, RowSchedule, _piece)
        case _:
            yield f"template {schedule.template} does not compute a group of kind {kind.value}"


def _opaque(schedule: OpaqueSchedule, view: GroupView) -> Iterator[str]:
    """Yield why an operator with a template of its own cannot be computed as scheduled."""
    anchor = view.anchor
    assert anchor is not None
    if not isinstance(schedule, OPAQUE.get(anchor.op, ())):
        yield f"template {schedule.template} does not compute {anchor.op}"
    yield from block_size(schedule.threads)
    if isinstance(schedule, WindowSchedule) and anchor.op == "window_reduce":
        problem = why_not_windows(anchor, view.inputs, schedule)
        if problem is not None:
            yield problem
    if isinstance(schedule, OperatorSchedule) and anchor.attrs.get("block", 0) % schedule.threads:
        yield f"{schedule.threads} threads do not share a block of {anchor.attrs['block']} elements evenly"
    if isinstance(schedule, SortSchedule) and schedule.threads & (schedule.threads - 1):
        yield f"{schedule.threads} threads are no power of two, as sorting needs"


def block_size(threads: int) -> Iterator[str]:
    """Yield a complaint if no block can have so many threads."""
    if not 1 <= threads <= MOST_THREADS:
        yield f"a block has 1 to {MOST_THREADS} threads, not {threads}"


def _elementwise(schedule: ElementwiseSchedule, inputs: Sequence[Value], outputs: Sequence[Value]) -> Iterator[str]:
    if isinstance(schedule, OpenElementwiseSchedule):
        extents = schedule.extents
        if prod(extents) != outputs[0].tensor_type.num_elements:
            yield f"extents {extents} are not those of {outputs[0].tensor_type.num_elements} elements"
    else:
        extents, _ = elementwise_walk(inputs, outputs)
    yield from block_size(schedule.threads)
    if schedule.lanes < 1 or divisor_of(extents[-1]) % schedule.lanes:
        yield f"{schedule.lanes} lanes do not divide the {extents[-1]} elements of the last dimension"
    if schedule.vectors < 1 or (schedule.cuts and schedule.vectors > 1):
        yield f"a thread has {schedule.vectors} vectors; it has at least one, and one only where there are cuts"
    elif schedule.vectors > MOST_VECTORS:
        yield f"a thread has {schedule.vectors} vectors, more than {MOST_VECTORS}"
    if not schedule.cuts:
        if schedule.cut_axis:
            yield f"cut_axis is {schedule.cut_axis}, but nothing is cut"
        return
    if schedule.cut_axis >= len(extents):
        yield f"there is no axis {schedule.cut_axis} to cut among {len(extents)}"
        return
    if is_open(extents[schedule.cut_axis]):
        yield f"cuts are places in a dimension of known size; that of cut_axis {schedule.cut_axis} is open"
        return
    step = schedule.lanes if schedule.cut_axis == len(extents) - 1 else 1
    ends = (0, *schedule.cuts, extents[schedule.cut_axis])
    if any(a >= b for a, b in itertools.pairwise(ends)) or any(cut % step for cut in schedule.cuts):
        yield f"cuts {schedule.cuts} do not rise from 0 to {ends[-1]} in multiples of {step}"


def _transpose(schedule: TransposeSchedule, inputs: Sequence[Value], outputs: Sequence[Value]) -> Iterator[str]:
    extents, walk = elementwise_walk(inputs, outputs)
    edge, lines = schedule.edge, schedule.lines
    along = accesses_along(schedule.axis, extents, walk, inputs) if schedule.axis < len(extents) - 1 else []
    if not along:
        yield f"no operand runs along axis {schedule.axis}, which is to be transposed"
    if not edge or not lines or edge % lines:
        yield f"{lines} lines at a time do not divide a tile of {edge}"
    yield from block_size(edge * lines)
    nbytes = sum(edge * (edge + 1) * storage_bytes(a.value.dtype) for a in along)
    if nbytes > MOST_STATIC_SHARED_BYTES:
        yield f"its tiles take {nbytes} bytes of shared memory, more than {MOST_STATIC_SHARED_BYTES}"


def row_reasons(schedule: RowSchedule, loops: RowLoops) -> Iterator[str]:
    """Yield why rows with these loops cannot be computed as scheduled."""
    yield from block_size(schedule.threads)
    if schedule.blocks_per_row != 1 and not 1 <= schedule.blocks_per_row <= max(1, prod(loops.line_extents)):
        yield f"rows of {prod(loops.line_extents)} elements are not shared by {schedule.blocks_per_row} blocks"
    if loops.columns:
        if schedule.lanes != 1:
            yield f"neighbouring threads have neighbouring rows; {schedule.lanes} lanes would be of several"
        return
    if schedule.lanes < 1 or divisor_of(loops.extents[-1]) % schedule.lanes:
        yield f"{schedule.lanes} lanes do not divide the {loops.extents[-1]} elements that lie together in a row"
    if schedule.team <= WARP and schedule.team & (schedule.team - 1):
        yield f"{schedule.team} lanes of a warp share a row; their number is a power of two"
    if schedule.team > WARP and (schedule.team % WARP or schedule.rows > 1):
        yield f"{schedule.team} threads share a row: more than a warp are whole warps, and the only ones of a block"
    if schedule.blocks_per_row > 1 and schedule.rows > 1:
        yield f"a block that shares a row with others has {schedule.rows} rows, not one"


def _open_rows(schedule: OpenRowSchedule, roles: Roles) -> Iterator[str]:
    """Yield complaints if the extents are not those of the rows."""
    assert roles.rows is not None
    shape, axes = roles.rows.shape, roles.rows.axes
    length = prod(shape[axis] for axis in axes)
    pairs = list(zip(schedule.extents, schedule.reduced, strict=False))
    found = prod(e for e, reduced in pairs if reduced), prod(e for e, reduced in pairs if not reduced)
    if len(schedule.extents) != len(schedule.reduced) or found != (length, roles.rows.count):
        yield f"extents {schedule.extents} are not those of {roles.rows.count} rows of {length}"
    if schedule.blocks_per_row != 1:
        yield "rows of open length are in one block"


def _piece(piece: Piece, roles: Roles, schedule: RowSchedule | ElementwiseSchedule) -> Iterator[str]:
    if isinstance(schedule, RowSchedule):
        return row_reasons(schedule, row_loops(piece.nodes, roles, piece.inputs, piece.outputs))
    return _elementwise(schedule, piece.inputs, piece.outputs)
