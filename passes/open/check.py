"""Further requirements on kernels of groups of open size, which must hold for all sizes of the ranges."""

from collections.abc import Mapping, Sequence

from tilestitch.compiler.ir import Node
from tilestitch.compiler.ir.sizes import is_empty_without, is_open, symbols_of
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.cpu.operands import layout_of
from tilestitch.passes.plan.cpu.schedules import (
    CpuAppendSchedule,
    CpuAttentionSchedule,
    CpuConvSchedule,
    CpuConvTransposeSchedule,
    CpuFoundSchedule,
    CpuGemmSchedule,
    CpuGemvSchedule,
    CpuLoopSchedule,
    CpuOrderSchedule,
    CpuRegionSchedule,
    CpuRowSchedule,
    CpuScanSchedule,
    CpuScatterSchedule,
    CpuSortSchedule,
    CpuSuppressSchedule,
    CpuWindowSchedule,
)
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.tiles import MmaTile, OpenGemvTile, SimtTile
from tilestitch.passes.plan.parts import Roles
from tilestitch.passes.plan.schedules import (
    AttentionSchedule,
    DirectSchedule,
    GemmSchedule,
    OpenElementwiseSchedule,
    OpenGemmSchedule,
    OpenRowSchedule,
    OperatorSchedule,
    RankSchedule,
    ScanSchedule,
    ScatterSchedule,
    Schedule,
    WindowSchedule,
)
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.plan.view import GroupView
from tilestitch.passes.schedule.cases import launches_on

_IMAGES = CpuConvSchedule | CpuWindowSchedule | CpuConvTransposeSchedule
_ON_CPUS = (
    CpuLoopSchedule | CpuRowSchedule | CpuGemmSchedule | CpuGemvSchedule | CpuAttentionSchedule | CpuSortSchedule
    | CpuScanSchedule | CpuScatterSchedule | CpuSuppressSchedule | CpuRegionSchedule | CpuAppendSchedule
    | CpuFoundSchedule | CpuOrderSchedule | _IMAGES
)  # fmt: skip
_ON_GPUS = (
    OpenElementwiseSchedule | OpenRowSchedule | GemmSchedule | AttentionSchedule | ScatterSchedule | RankSchedule
    | DirectSchedule | WindowSchedule | ScanSchedule | OperatorSchedule
)  # fmt: skip


def why_not_template(schedule: Schedule | None) -> str | None:
    """Return why a schedule does not support open sizes, whatever the group computes."""
    match schedule:
        case None:
            return None
        case GemmSchedule(tile=MmaTile() | SimtTile() | OpenGemvTile()):
            if isinstance(schedule, OpenGemmSchedule) and schedule.tile_rows == 1:
                return None  # `passes.schedule.cases` checks that partial sums fit
            if (schedule.split_k, schedule.tile_rows) != (1, 1):
                return (
                    f"split_k is {schedule.split_k} and tile_rows {schedule.tile_rows}; over open sizes the reduction "
                    "is whole and tiles follow each other, so both are 1"
                )
        case GemmSchedule():
            return f"a tile of template {schedule.tile.template} is for known sizes only; give simt, mma or open_gemv"
        case AttentionSchedule() if schedule.split_keys != 1:
            return f"split_keys is {schedule.split_keys}; keys of open number are not split, so it is 1"
        case ScatterSchedule() if schedule.by_claims:
            return "by_claims is true, but claims would be memory of open size; put false"
        case _ if not isinstance(schedule, _ON_CPUS | _ON_GPUS):
            return f"kernels of template {schedule.template} are for known sizes only; favour sizes to have them there"
    return None


def why_not_open(view: GroupView, schedule: Schedule | None) -> str | None:
    """Return why a group of open size is not a kernel for all sizes with a schedule; requirements on all kernels, and
    on their launches, are not checked. Raises UndecidedError if that depends on sizes.
    """
    problem = why_not_template(schedule) or _uneven(view.nodes) or _made_of_nothing(view.nodes, schedule)
    if problem is None and isinstance(schedule, _IMAGES):
        problem = why_not_images(view)
    return problem


def why_not_launched(
    nodes: Mapping[str, Node], group: Group, target: TargetInfo, roles: Roles | None = None
) -> str | None:
    """Return why the launches of a group of open size, which is a kernel otherwise, are not possible. `nodes`: of the
    graph, by name. `roles`: of a single-part group, if already known.
    """
    launches = launches_on(nodes, group, target, roles)
    if any(is_open(temporary.nbytes) for launch in launches for temporary in launch.temporaries):
        return "its launches exchange memory of open size"
    return None


def why_not_images(view: GroupView) -> str | None:
    """Return why an image kernel of a CPU is not possible: the batch may be open, which adds tasks, and height and
    width, which are split at run time, but nothing else.
    """
    group = AnchoredGroup.of(view)
    layout = layout_of(group.anchor)
    *_, channels = layout.split(group.anchor.inputs[0].shape)
    *_, results = layout.split(group.result.shape)
    fixed = (channels, results, *(d for weights in group.anchor.inputs[1:] for d in weights.shape))
    odd = next(filter(is_open, fixed), None)
    return None if odd is None else f"its channels or weights are of open size: {odd}"


def _uneven(nodes: Sequence[Node]) -> str | None:
    """Return why a group's indices cannot be computed: a reshape between sizes that are equal only by a claim."""
    for node in (node for node in nodes if node.op == "reshape"):
        before, after = node.inputs[0].tensor_type.num_elements, node.output.tensor_type.num_elements
        if before != after:
            return f"{before} elements become {after}, which is the same number at some sizes only"
    return None


_OF_NOTHING = frozenset(
    {
        "concat",
        "gather",
        "gather_elements",
        "gather_nd",
        "scatter_elements",
        "scatter_nd",
        "reduce_sum",
        "reduce_prod",
        "reduce_max",
        "reduce_min",
        "reduce_and",
        "suppress",
        "compact",
    }
)
"""Operators whose kernels handle an empty operand with a non-empty result: loads check for it."""
_ASKING = (
    CpuLoopSchedule
    | CpuRowSchedule
    | CpuScatterSchedule
    | CpuSuppressSchedule
    | CpuFoundSchedule
    | OpenElementwiseSchedule
    | OpenRowSchedule
    | ScatterSchedule
    | OperatorSchedule
)


def _made_of_nothing(nodes: Sequence[Node], schedule: Schedule | None) -> str | None:
    """Return why a group cannot handle a size that may be 0, which proofs ignore as there is then nothing to compute.
    So either all is empty, or only operators that handle it are affected.
    """
    for node in nodes:
        if node.op == "top_k":
            continue  # it claims that there are as many elements as it returns
        counts = [v.tensor_type.num_elements for v in node.inputs]
        results = [v.tensor_type.num_elements for v in node.outputs]
        known = isinstance(schedule, _ASKING) and (node.op in _OF_NOTHING or node.attrs.get("mode") == "constant")
        for symbol in symbols_of(counts):
            empty = symbol.or_empty and any(is_empty_without(count, symbol.name) for count in counts)
            if empty and not known and not all(is_empty_without(count, symbol.name) for count in results):
                return f"{node.op} has a result where {symbol} is 0, and no kernel for that"
    return None
