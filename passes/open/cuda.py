"""GPU schedules chosen at typical sizes, lifted to all sizes of a range.

Grids are expressions; threads, tiles and shared memory are numbers. Accesses beyond an edge are masked, so that tiles
need not fit. Vectors are as wide as sizes certainly allow.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from tilestitch.compiler.ir import Node
from tilestitch.compiler.ir.accesses import elementwise_walk
from tilestitch.compiler.ir.sizes import Size, bounds_of, divisor_of, is_open
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.fusion.stitcher import Stitched
from tilestitch.passes.plan import Group, WhyNot
from tilestitch.passes.plan.access.row_loops import row_loops
from tilestitch.passes.plan.access.windows import ResultSchedule, why_not_direct, why_not_windows
from tilestitch.passes.plan.attention.operands import attention_of
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.gemm.gemm import Gemm
from tilestitch.passes.plan.gemm.gemv import ROWS_AT_A_TIME, open_gemv_tile
from tilestitch.passes.plan.gemm.tiles import GemvTile, MmaTile, SimtTile, WgmmaTile
from tilestitch.passes.plan.roles import legal_roles
from tilestitch.passes.plan.schedules import (
    AttentionSchedule,
    DirectSchedule,
    ElementwiseSchedule,
    GemmSchedule,
    OpenAttentionSchedule,
    OpenElementwiseSchedule,
    OpenGemmSchedule,
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
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.plan.view import GroupView
from tilestitch.passes.schedule.cuda.attention import SPLIT_KEYS
from tilestitch.passes.schedule.cuda.elementwise import choose_vectors
from tilestitch.passes.schedule.cuda.gemm import choose_among, tiled_schedules
from tilestitch.passes.schedule.cuda.gpu import Gpu
from tilestitch.passes.schedule.cuda.rows import row_schedules

from .extents import is_of_open_size, joined

RANK_THREADS = 256
OPEN_LAUNCH = "launch.open"
"""Rule by which parts that would be one launch for known sizes are launches of their own."""


def launched_apart(stitched: Stitched, nodes: Mapping[str, Node]) -> Stitched:
    """Return the groups, with multi-part launches over open sizes split. `nodes`: the open ones."""
    reason = "kernels of several parts are for known sizes only; favour sizes (--favour) to have them there"

    def several(group: Group) -> bool:
        return bool(group.stages) and is_of_open_size(group, nodes)

    told = tuple(WhyNot(group.name, OPEN_LAUNCH, reason) for group in stitched.groups if several(group))
    apart = tuple(part for group in stitched.groups for part in (group.parts if several(group) else (group,)))
    return replace(stitched, groups=apart, refusals=(*stitched.refusals, *told))


def lifted_schedule(
    schedule: Schedule, before: GroupView, view: GroupView, target: TargetInfo, model: LatencyModel
) -> Schedule | str:
    """Return the schedule of a group at typical sizes, `before`, lifted to the same group at all sizes; or why that is
    not possible.
    """
    gpu = Gpu.of(target)
    match schedule:
        case TransposeSchedule():
            usual = choose_vectors(before.nodes, before.inputs, before.stored, gpu.device.sm_count)
            return _elementwise(usual, before, view)
        case ElementwiseSchedule():
            return _elementwise(schedule, before, view)
        case RowSchedule() | SplitRowSchedule():
            return _rows(schedule, before, view, gpu)
        case GemmSchedule():
            return _gemm(schedule, before, view, gpu, model)
        case AttentionSchedule():
            return _attention(schedule, view, gpu)
        case ScatterSchedule():
            return replace(schedule, by_claims=False)  # claims are memory of open size
        case SortSchedule():
            return RankSchedule(RANK_THREADS)
        case DirectSchedule():
            return _direct(schedule, view)
        case WindowSchedule():
            return _windows(schedule, view)
        case ScanSchedule() | OperatorSchedule():
            return schedule
    return f"kernels of template {schedule.template} are for known sizes only"


def _elementwise(schedule: ElementwiseSchedule, before: GroupView, view: GroupView) -> Schedule | str:
    """Lift an element-wise schedule. Cuts, where operands of a concat meet, stay along a dimension of known size."""
    known, _ = elementwise_walk(before.inputs, before.stored)
    extents = joined(known, before.stored[0].shape, view.stored[0].shape)
    if extents is None:
        return f"loops over {known} are no dimensions of {before.stored[0].shape}, joined"
    lanes = _lanes(schedule.lanes, extents[-1])
    lifted = OpenElementwiseSchedule(schedule.threads, lanes, schedule.vectors, extents=extents)
    axis = schedule.cut_axis
    if not schedule.cuts or is_open(extents[axis]):
        return lifted
    return replace(lifted, cut_axis=axis, cuts=schedule.cuts)


def _direct(schedule: DirectSchedule, view: GroupView) -> DirectSchedule:
    group = AnchoredGroup.of(view)
    return _with_certain(schedule, lambda each: why_not_direct(group, each) is None)


def _windows(schedule: WindowSchedule, view: GroupView) -> WindowSchedule:
    anchor = view.anchor
    assert anchor is not None
    return _with_certain(schedule, lambda each: why_not_windows(anchor, view.inputs, each) is None)


def _with_certain(schedule: ResultSchedule, is_possible: Callable[[ResultSchedule], bool]) -> ResultSchedule:
    """Keep as many of the results of a thread as there certainly are."""
    fewer = (replace(schedule, pixels=schedule.pixels >> halvings) for halvings in range(schedule.pixels.bit_length()))
    return next(filter(is_possible, fewer), type(schedule)(schedule.threads))


KEPT_BLOCKS = 2
"""Blocks of 64 rows per multiprocessor for whose sums there is memory: one reads while another computes."""
LEAST_STEPS = 2
"""Least tiles of keys of a part: fewer take less time than combining it."""


def _attention(schedule: AttentionSchedule, view: GroupView, gpu: Gpu) -> OpenAttentionSchedule:
    """Let keys be split unless they are few, or there are always blocks enough without that."""
    what = attention_of(AnchoredGroup.of(view))
    split = OpenAttentionSchedule(schedule.tile, least_steps=LEAST_STEPS)
    few = bounds_of(what.keys)[1] < SPLIT_KEYS or bounds_of(what.tiles(split))[0] >= gpu.device.sm_count
    return split if few else replace(split, kept_rows=KEPT_BLOCKS * 64 * gpu.device.sm_count)


def _lanes(lanes: int, extent: Size) -> int:
    """Return the largest number of lanes, up to `lanes`, that certainly divides an extent."""
    while divisor_of(extent) % lanes:
        lanes //= 2
    return lanes


def _rows(schedule: RowSchedule | SplitRowSchedule, before: GroupView, view: GroupView, gpu: Gpu) -> Schedule | str:
    """Lift a row schedule; rows of open length have at most one block."""
    roles, known = legal_roles(view), legal_roles(before)
    assert roles.rows is not None and known.rows is not None
    if isinstance(schedule, SplitRowSchedule) or schedule.blocks_per_row > 1:
        usual = row_schedules(before, known, gpu)[0]
        assert isinstance(usual, RowSchedule)
        schedule = usual
    loops = row_loops(before.nodes, known, before.inputs, before.stored)
    extents = joined(loops.extents, known.rows.shape, roles.rows.shape)
    if extents is None:
        return f"loops over {loops.extents} are no dimensions of {known.rows.shape}, joined"
    lanes = 1 if loops.columns else _lanes(schedule.lanes, extents[-1])
    return OpenRowSchedule(lanes, schedule.team, schedule.rows, extents=extents, reduced=loops.reduced)


def _few_rows(before: Gemm, view: GroupView) -> GemmSchedule | None:
    """Return a tile for GEMMs of few rows with as few rows as there are; None if it would exchange the operands, or has
    no known reduction, or if columns are left between its gates.
    """
    gemm = gemm_of(AnchoredGroup.of(view))
    rows = next((rows for rows in ROWS_AT_A_TIME if before.m <= rows), None)
    if gemm is None or rows is None or before.m > before.n or is_open(gemm.k):
        return None
    tile = open_gemv_tile(gemm, rows)
    return None if tile.along_k and not gemm.units.dense else GemmSchedule(tile)


def split_gemm(
    schedule: Schedule | None, before: GroupView, view: GroupView, gpu: Gpu, model: LatencyModel
) -> OpenGemmSchedule | None:
    """Return the best schedule that splits the reduction of a GEMM which has few rows in `before`; None if nothing is
    split there, or if more than its rows are open. `schedule`: what was chosen there.
    """
    gemm, opened = (gemm_of(AnchoredGroup.of(each)) for each in (before, view))
    if gemm is None or opened is None or any(map(is_open, (opened.n, opened.k, opened.batch))):
        return None
    if not isinstance(schedule, GemmSchedule):
        return None
    found: GemmSchedule | None = schedule
    if isinstance(schedule.tile, GemvTile):
        few = _few_rows(gemm, view)
        found = None if few is None else replace(few, split_k=schedule.split_k)
    elif isinstance(schedule.tile, WgmmaTile):
        found = choose_among(gemm, tiled_schedules(gemm, gpu), gpu.device, model)
    return None if found is None or found.split_k == 1 else OpenGemmSchedule(found.tile, found.split_k)


def _gemm(schedule: GemmSchedule, before: GroupView, view: GroupView, gpu: Gpu, model: LatencyModel) -> GemmSchedule:
    """Lift a GEMM schedule: the last tiles are masked, in row order, each with the whole reduction."""
    gemm = gemm_of(AnchoredGroup.of(before))
    assert gemm is not None
    if isinstance(schedule.tile, GemvTile) and (few := _few_rows(gemm, view)) is not None:
        return few
    if not isinstance(schedule.tile, MmaTile | SimtTile) or schedule.split_k > 1:
        whole = [each for each in tiled_schedules(gemm, gpu) if each.split_k == 1]
        schedule = choose_among(gemm, whole, gpu.device, model)
    return replace(schedule, split_k=1, tile_rows=1)
