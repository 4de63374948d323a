"""Registers of a thread, estimated from a group and its schedule, before there is code.

Values that certainly occupy registers are counted: sums, operand fragments, elements in flight, simultaneously live
values of an expression. Added to these is what a compiler needs for addresses, conditions and loops: a few constants
per template, fitted to machine code of some models for sm_80 and sm_90a, which hold for others (`python -m
benchmarks.cuda_registers` compares).
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from tilestitch.compiler.ir import Node, Value, op_spec
from tilestitch.compiler.ir.accesses import elementwise_walk
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.access.row_loops import row_loops
from tilestitch.passes.plan.access.split_rows import pieces_of
from tilestitch.passes.plan.attention.tiles import ACROSS, COLUMNS, QUAD, STEP, AttentionMmaTile, AttentionSimtTile
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.codes import LUMP_BYTES
from tilestitch.passes.plan.gemm.contractions import conv_shape, gemm_of
from tilestitch.passes.plan.gemm.gemm import Gemm, OperandLayout
from tilestitch.passes.plan.gemm.gemv import WARPS, load_width, rows_of, seen_by, warp_columns
from tilestitch.passes.plan.gemm.kernels import sums_twice
from tilestitch.passes.plan.gemm.tiles import GemvTile, MmaTile, SimtTile, Tile, WgmmaTile
from tilestitch.passes.plan.roles import legal_roles

from .group import Group, GroupKind
from .parts import Roles
from .roles import roles_of
from .schedules import (
    AttentionSchedule,
    DirectSchedule,
    ElementwiseSchedule,
    GemmSchedule,
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
from .view import GroupView, look_up

WARP = 32
SM_REGISTERS, STEPS, MOST = 65536, 8, 255
"""Registers of an SM, their allocation granularity, and the most per thread."""
CHUNK_BYTES = 16
MOST_WAITING = 16
"""Most elements of one tensor-core operand that may wait in a thread's registers; beyond that, only four at a time
do.
"""


def registers_of(view: GroupView, kind: GroupKind, schedule: Schedule) -> int:
    """Return the registers per thread of a group's kernel on a GPU; for several launches, the maximum."""
    match schedule:
        case GemmSchedule():
            return _gemm(view, schedule.tile)
        case DirectSchedule():
            return _bounded(_direct(view, schedule), schedule.threads)
        case AttentionSchedule():
            return _bounded(_attention(view, schedule.tile), schedule.tile.threads)
        case ElementwiseSchedule() | RowSchedule():
            return _launch(view.nodes, view.inputs, view.stored, view.name, schedule)
        case SplitRowSchedule():
            return _split_rows(view, schedule)
        case TransposeSchedule():
            alive = most_alive(view.nodes, view.outputs)
            return _bounded(TRANSPOSE + 2 * alive, schedule.edge * schedule.lines)
        case WindowSchedule():
            return _bounded(_window(view, schedule), schedule.threads)
        case ScanSchedule() | SortSchedule() | RankSchedule() | ScatterSchedule() | OperatorSchedule():
            assert view.anchor is not None
            needed = OPERATOR[view.anchor.op] if isinstance(schedule, OperatorSchedule) else OPAQUE[type(schedule)]
            return _bounded(needed + most_alive(view.nodes, view.outputs), schedule.threads)
    raise AssertionError(f"{schedule} is for no GPU")


def registers_of_group(by_name: Mapping[str, Node], group: Group) -> int:
    """Return the registers per thread of a scheduled group; for a stitched one, the maximum over its parts. `by_name`:
    the graph's nodes.
    """
    if group.stages:
        return max(registers_of_group(by_name, part) for part in group.parts)
    assert group.schedule is not None, group.name
    return registers_of(look_up(by_name, group), group.kind, group.schedule)


def most_registers(threads: int, blocks_per_sm: int = 1) -> int:
    """Return the most registers per thread at which an SM holds `blocks_per_sm` blocks of `threads` threads."""
    return min(MOST, SM_REGISTERS // (ceil(threads / WARP) * WARP * blocks_per_sm) // STEPS * STEPS)


def _bounded(wanted: float, threads: int) -> int:
    return min(round(wanted), most_registers(threads))


# -- GEMMs -------------------------------------------------------------------------------------------------------------

SIMT, MMA, WGMMA, GEMV, DIRECT = 8, 12, 28, 20, 11


def _direct(view: GroupView, schedule: DirectSchedule) -> float:
    """Return the registers of a direct convolution: with several results, also for their sums, a column of the
    image, and half of the weights of a row.
    """
    single = DIRECT + 7 * most_alive(view.nodes, view.outputs)
    if schedule.lanes * schedule.pixels == 1:
        return single
    kernel = conv_shape(AnchoredGroup.of(view).anchor).kernel
    return single + schedule.lanes * (schedule.pixels + 1 + kernel[-1] / 2)


def _gemm(view: GroupView, tile: Tile) -> int:
    gemm = gemm_of(AnchoredGroup.of(view))
    assert gemm is not None, f"group {view.name} has tiles and is no GEMM"
    return gemm_registers(gemm, tile)


def gemm_registers(gemm: Gemm, tile: Tile) -> int:
    """Return the registers of a thread that computes a GEMM in such tiles."""
    match tile:
        case SimtTile():
            wanted: float = _simt(gemm, tile)
        case MmaTile():
            wanted = _mma(gemm, tile)
        case WgmmaTile():
            # Where warpgroups move registers, all begin with the same number.
            held = (1 + sums_twice(gemm)) * tile.rows * tile.bn // 2
            wanted = MOST if tile.moves_registers else WGMMA + held
        case GemvTile():
            wanted = _gemv(seen_by(gemm, tile), tile)
    return _bounded(wanted, tile.threads)


def _simt(gemm: Gemm, tile: SimtTile) -> float:
    """Return the registers for sums, the next tile of both operands, and two steps of operands."""
    waiting = (tile.bm + tile.bn) * tile.bk // tile.threads
    return SIMT + words(gemm.acc_dtype) * (tile.tm * tile.tn + waiting + 2 * (tile.tm + tile.tn))


def _mma(gemm: Gemm, tile: MmaTile) -> float:
    """Return the registers for sums, fragments of both operands (half of them twice), and elements in flight of
    operands not loaded by asynchronous copies.
    """
    fragments = 4 * tile.rows + 2 * tile.columns
    waiting = sum(
        _waiting(operand, rows * tile.bk // tile.threads) for operand, rows in ((gemm.a, tile.bm), (gemm.b, tile.bn))
    )
    return MMA + 4 * tile.rows * tile.columns + 1.5 * fragments + waiting


def _waiting(operand: OperandLayout, elements: int) -> int:
    chunk = CHUNK_BYTES // storage_bytes(operand.dtype)
    if operand.codes is not None:
        return elements // chunk * (max(1, chunk // operand.codes.word) + 1 + operand.codes.form.zeros)
    along_k = operand.contiguous == "k" or chunk == CHUNK_BYTES
    if operand.vector() == chunk and along_k == (operand.contiguous == "k"):
        return 0
    return elements if operand.memory is not None and elements <= MOST_WAITING else QUAD


def _gemv(gemm: Gemm, tile: GemvTile) -> float:
    """Return the registers for the sums of all rows of a thread's columns, and for loads from the large operand."""
    codes, rows = gemm.b.codes, rows_of(gemm, tile)
    if codes is not None:
        parameters = (1 + codes.form.zeros) * codes.lump // codes.group
        return GEMV + 5 * rows + tile.bk // (WARPS * codes.lump) * (LUMP_BYTES // 4 + parameters) + codes.word
    vector = gemm.b.vector()
    columns, loaded = vector, vector
    if tile.along_k:
        columns = warp_columns(gemm)
        loaded = columns * load_width(gemm.b)
    return GEMV + words(gemm.acc_dtype) * (rows * columns + loaded / 2)


# -- attention ---------------------------------------------------------------------------------------------------------

ATTENTION = 10


def _attention(view: GroupView, tile: AttentionMmaTile | AttentionSimtTile) -> float:
    """Return the registers for scores, sums, and the queries of a thread or step."""
    if isinstance(tile, AttentionMmaTile):
        scores, sums = tile.bn // COLUMNS * 4, tile.columns // COLUMNS * 4
        queries = tile.width // STEP * 4
        return ATTENTION + tile.fragments * (1.4 * (scores + sums) + min(queries, 16) / 2)
    keys, columns = tile.bn // ACROSS, ceil(tile.columns / ACROSS)
    each = words("float64" if tile.itemsize == 8 else "float32")
    return each * (tile.rows * (1.5 * keys + 2 * columns) + 1.1 * QUAD * (tile.rows + keys))


# -- rows and elements -------------------------------------------------------------------------------------------------

ELEMENTWISE, ROWS, TRANSPOSE, WINDOW = 6, 13, 13, 6
AXIS = 10
"""Registers per window axis: bounds, counter, and positions."""
CALL = 7
"""Registers for a function computed in many steps."""
EXCHANGE = 8
"""Registers for blocks that share a row."""
OPAQUE: Mapping[type, int] = {ScanSchedule: 28, SortSchedule: 20, RankSchedule: 28, ScatterSchedule: 16}
OPERATOR = {
    "suppress": 48,
    "roi_align": 40,
    "append": 16,
    "tally": 28,
    "compact": 28,
    "order_rows": 28,
}


def _launch(
    nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], name: str,
    schedule: ElementwiseSchedule | RowSchedule,
) -> int:  # fmt: skip
    if isinstance(schedule, ElementwiseSchedule):
        return _bounded(_elementwise(nodes, inputs, outputs, schedule), schedule.threads)
    return _bounded(_rows(nodes, inputs, outputs, name, schedule), schedule.threads)


def _elementwise(
    nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], schedule: ElementwiseSchedule
) -> float:
    _, walk = elementwise_walk(inputs, outputs)
    each = schedule.lanes * schedule.vectors
    calls = sum(op_spec(node.op).expensive for node in nodes)
    return ELEMENTWISE + len(walk.accesses) + 0.75 * each * most_alive(nodes, outputs) + CALL * min(calls, 2)


def _rows(
    nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], name: str, schedule: RowSchedule
) -> float:
    roles = roles_of(nodes, outputs, name)
    assert isinstance(roles, Roles), roles
    loops = row_loops(nodes, roles, inputs, outputs).scheduled(schedule)
    each = loops.lanes * (loops.steps if loops.unrolled else 1)
    return ROWS + len(inputs) + len(outputs) + each + EXCHANGE * (schedule.blocks_per_row > 1)


def _window(view: GroupView, schedule: WindowSchedule) -> int:
    assert view.anchor is not None
    attrs, lanes, pixels = view.anchor.attrs, schedule.lanes, schedule.pixels
    single = WINDOW + AXIS * sum(taps > 1 for taps in attrs["kernel"]) + most_alive(view.nodes, view.outputs)
    if lanes * pixels == 1:
        return single
    # Columns that several windows have wait for the last of them.
    reach, stride = (attrs["kernel"][-1] - 1) * attrs["dilations"][-1] + 1, attrs["strides"][-1]
    return single + lanes * ((pixels - 1) * stride + reach if reach > stride else 1)


def _split_rows(view: GroupView, schedule: SplitRowSchedule) -> int:
    roles = legal_roles(view)
    assert roles.rows is not None, roles
    pieces, _ = pieces_of(view, view.stored, roles.rows, schedule.parts)
    return max(
        _launch(piece.nodes, piece.inputs, piece.outputs, view.name, each)
        for (piece, _), each in zip(pieces, schedule.pieces, strict=True)
    )


# -- values ------------------------------------------------------------------------------------------------------------


def words(dtype: str) -> int:
    """Return the registers of one value."""
    return ceil(storage_bytes(dtype) / 4)


def most_alive(nodes: Iterable[Node], stored: Iterable[Value] = ()) -> int:
    """Return the registers of the values that are needed at the same time for one element, if nodes are computed in
    order.
    """
    order, kept = list(nodes), set(stored)
    number = {node: i for i, node in enumerate(order)}
    change = [0] * (len(order) + 2)
    for i, node in enumerate(order):
        for value in node.outputs:
            end = max((number[user] for user in value.users if user in number), default=i)
            change[i] += words(value.dtype)
            change[(len(order) if value in kept else end) + 1] -= words(value.dtype)
    alive = most = 0
    for step in change:
        alive += step
        most = max(most, alive)
    return most
