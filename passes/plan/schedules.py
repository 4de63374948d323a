"""Schedules: how the kernel of a group is mapped to thread blocks, threads and steps. Plain data, JSON in and out.

A group of a plan has one, as has each part of a stitched group. Code generation follows it, or raises. `template` names
the kind in JSON. Those of CPUs are in `cpu.schedules`.
"""

from dataclasses import MISSING, dataclass, fields
from types import GenericAlias
from typing import Any, ClassVar, TypeAlias, get_args, get_origin, get_type_hints

from tilestitch.compiler.ir.sizes import Size
from tilestitch.passes.errors import PlanError
from tilestitch.passes.plan.attention.tiles import AttentionMmaTile, AttentionSimtTile
from tilestitch.passes.plan.gemm.tiles import Tile
from tilestitch.passes.plan.sync.edges import Bound, Grouping, TileEdge

from .cpu.schedules import CpuSchedule
from .open_sizes import open_size


@dataclass(frozen=True)
class ElementwiseSchedule:
    """Each of `threads` threads of a block computes `vectors` vectors of `lanes` neighbouring elements.

    cuts: positions along the dimension `cut_axis` of the merged iteration space where one operand of a concat ends and
    another begins; threads branch to separate code there. A space with cuts has one vector per thread.
    """

    template: ClassVar[str] = "elementwise"
    threads: int
    lanes: int
    vectors: int = 1
    cut_axis: int = 0
    cuts: tuple[int, ...] = ()


@dataclass(frozen=True)
class OpenElementwiseSchedule(ElementwiseSchedule):
    """The same over open sizes; `extents` are the merged dimensions of the iteration space."""

    template: ClassVar[str] = "open_elementwise"
    extents: tuple[Size, ...] = ()


@dataclass(frozen=True)
class TransposeSchedule:
    """Tiles of `edge` x `edge` elements of the last dimension and `axis`, in shared memory; `lines` lines at a time.

    A block has edge * lines threads. axis: of the merged iteration space, along which some operands are contiguous.
    """

    template: ClassVar[str] = "transpose"
    axis: int
    edge: int = 32
    lines: int = 8


@dataclass(frozen=True)
class RowSchedule:
    """`team` threads of each of `blocks_per_row` blocks share a row, in vectors of `lanes`; a block has `rows` rows.

    Where neighbouring elements belong to neighbouring rows, a block has as many columns of threads as rows.
    """

    template: ClassVar[str] = "rows"
    lanes: int
    team: int
    rows: int
    blocks_per_row: int = 1

    @property
    def threads(self) -> int:
        return self.team * self.rows


@dataclass(frozen=True)
class OpenRowSchedule(RowSchedule):
    """The same over open sizes; `extents` are the merged dimensions, and those marked in `reduced` make up a row."""

    template: ClassVar[str] = "open_rows"
    extents: tuple[Size, ...] = ()
    reduced: tuple[bool, ...] = ()


@dataclass(frozen=True)
class SplitRowSchedule:
    """Each row is split into `parts`, whose results further launches combine: a schedule for each launch, in order."""

    template: ClassVar[str] = "split_rows"
    parts: int
    pieces: tuple[RowSchedule | ElementwiseSchedule, ...]


@dataclass(frozen=True)
class GemmSchedule:
    """A tiled contraction. split_k: parts into which the reduction is split; the last block of a tile combines them.
    blocks: the number of blocks of a persistent launch, which iterate over tiles (wgmma); else 0, with one block per
    part of each tile.

    tile_rows: tiles of this many neighbouring rows, at most all, are computed together, column by column.
    """

    template: ClassVar[str] = "gemm"
    tile: Tile
    split_k: int = 1
    blocks: int = 0
    tile_rows: int = 1


@dataclass(frozen=True)
class OpenGemmSchedule(GemmSchedule):
    """The same over an open number of rows, with memory for partial sums: `kept_elements` of them, and `counters` of
    tiles, which are the same in all cases of a group. Cases of few rows may have split_k.
    """

    template: ClassVar[str] = "open_gemm"
    kept_elements: int = 1
    counters: int = 1


@dataclass(frozen=True)
class AttentionSchedule:
    """Attention in tiles of queries by keys. split_keys: parts of the keys, which a second launch combines."""

    template: ClassVar[str] = "attention"
    tile: AttentionMmaTile | AttentionSimtTile
    split_keys: int = 1


@dataclass(frozen=True)
class OpenAttentionSchedule(AttentionSchedule):
    """The same over open sizes. The keys are split at run time, into as many parts of at least `least_steps` tiles of
    keys as memory for the sums of `kept_rows` rows of tiles allows; the last block of a tile of queries combines its
    parts. kept_rows: 0 if keys are never split. split_keys: 1.
    """

    template: ClassVar[str] = "open_attention"
    kept_rows: int = 0
    least_steps: int = 1


@dataclass(frozen=True)
class DirectSchedule:
    """A convolution of narrow groups: one thread per `lanes` neighbouring channels of `pixels` neighbouring pixels."""

    template: ClassVar[str] = "direct"
    threads: int
    lanes: int = 1
    pixels: int = 1


@dataclass(frozen=True)
class BandSchedule:
    """Row-wise work after a GEMM in its launch: the blocks (or warps) that store a band of rows share it.

    share_rows: rows of the GEMM per share. polls: how often an early arrival polls for the last one. resident_blocks:
    blocks that the device is certain to hold at a time; only those of the last such wave poll.
    """

    template: ClassVar[str] = "band"
    share_rows: int
    polls: int
    resident_blocks: int


@dataclass(frozen=True)
class TicketSchedule:
    """Stages in one launch of `blocks` blocks, which draw tiles from a counter, stage by stage.

    edges: which tiles of a part wait for which tiles of another. A waiting tile needs only earlier ones, which running
    blocks hold: the launch terminates however few of its blocks are resident. blocks_per_sm: blocks that a
    multiprocessor shall hold at a time, which bounds the registers per thread; 1: no bound. queues: every block has its
    own queue, the tiles at a stride of the number of blocks, and draws nothing; all blocks must then be resident
    together.
    """

    template: ClassVar[str] = "tickets"
    blocks: int
    edges: tuple[TileEdge, ...]
    blocks_per_sm: int = 1
    queues: bool = False


@dataclass(frozen=True)
class LaunchesSchedule:
    """Parts in launches of their own, each of which begins when all blocks of those before it have begun.

    edges: which tiles of a part wait for which tiles of another. Waiting blocks need results of other resident blocks
    only, so all launches terminate, however few blocks are resident.
    """

    template: ClassVar[str] = "launches"
    edges: tuple[TileEdge, ...]


@dataclass(frozen=True)
class SharedPlace:
    """The shared-memory location of a value's slab; `value` is its number among those that the parts store."""

    template: ClassVar[str] = "shared_place"
    value: int
    offset_bytes: int


@dataclass(frozen=True)
class BlockSchedule:
    """Stages in one launch, each block of which computes a slab of all of them: one position along `axes` of the first
    value that the first stage stores, and along the same axes of other values.

    places: of values in shared memory; all others go through global memory.
    """

    template: ClassVar[str] = "blocks"
    axes: tuple[int, ...]
    places: tuple[SharedPlace, ...]


@dataclass(frozen=True)
class WindowSchedule:
    """One thread per `lanes` neighbouring channels of `pixels` neighbouring windows."""

    template: ClassVar[str] = "window"
    threads: int
    lanes: int = 1
    pixels: int = 1


@dataclass(frozen=True)
class ScanSchedule:
    """Cumulative operators: one thread per line, or one block (`by_block`), whose threads share the line."""

    template: ClassVar[str] = "scan"
    threads: int
    by_block: bool


@dataclass(frozen=True)
class SortSchedule:
    """One block per sorted line, in shared memory or in global memory."""

    template: ClassVar[str] = "sort"
    threads: int
    in_shared: bool


@dataclass(frozen=True)
class RankSchedule:
    """Sorted lines of any length: the thread of each element counts the elements before it."""

    template: ClassVar[str] = "rank"
    threads: int


@dataclass(frozen=True)
class ScatterSchedule:
    """One thread per copied element, and per update that conflicts with no other.

    by_claims: updates first claim their positions, and then each position's owner stores; else one thread applies all
    updates that may conflict, in order.
    """

    template: ClassVar[str] = "scatter"
    threads: int
    by_claims: bool


OPERATORS = ("suppress", "roi_align", "append", "tally", "compact", "order_rows")


@dataclass(frozen=True)
class OperatorSchedule:
    """One of `OPERATORS`, whose only choice is the number of threads of a block."""

    template: ClassVar[str] = "operator"
    threads: int


OpaqueSchedule: TypeAlias = (
    WindowSchedule | ScanSchedule | SortSchedule | RankSchedule | ScatterSchedule | OperatorSchedule
)
"""Schedules of operators that have a template of their own: groups of kind OPAQUE on a GPU."""
Schedule: TypeAlias = (
    ElementwiseSchedule | OpenElementwiseSchedule | TransposeSchedule | RowSchedule | OpenRowSchedule
    | SplitRowSchedule | OpaqueSchedule | GemmSchedule | OpenGemmSchedule | DirectSchedule | BandSchedule
    | TicketSchedule | LaunchesSchedule | BlockSchedule | AttentionSchedule | OpenAttentionSchedule | CpuSchedule
)  # fmt: skip

_INSIDE = (*get_args(Tile), AttentionMmaTile, AttentionSimtTile, TileEdge, Grouping, Bound, SharedPlace)
TEMPLATES: dict[str, type] = {kind.template: kind for kind in (*get_args(Schedule), *_INSIDE)}
"""All classes of schedules, and of tiles and edges inside them, by their JSON names."""


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    """Return the schedule as JSON data: `template` and all fields."""
    data: dict[str, Any] = {"template": schedule.template}
    for field in fields(schedule):
        data[field.name] = _to_json(getattr(schedule, field.name))
    return data


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return schedule_to_json(value) if hasattr(value, "template") else value


def schedule_from_json(data: Any, where: str = "schedule") -> Schedule:
    """Return the schedule that JSON data describe; missing fields have their defaults, as in plans made before they
    were added.

    Raises PlanError, naming the field, unless `data` is otherwise as `schedule_to_json` writes it.
    """
    name = data.get("template") if isinstance(data, dict) else None
    kind = TEMPLATES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise PlanError(f"{where} is of none of the templates {', '.join(sorted(TEMPLATES))}; write the plan again")
    wanted = get_type_hints(kind)
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    odd = sorted((needed - set(data)) | (set(data) - {"template", *(field.name for field in fields(kind))}))
    if odd:
        raise PlanError(f"{where} ({kind.__name__}) lacks or does not know {', '.join(odd)}; write the plan again")
    given = [name for name in data if name != "template"]
    result: Schedule = kind(**{name: _from_json(data[name], wanted[name], f"{where}.{name}") for name in given})
    return result


def _from_json(data: Any, wanted: Any, where: str) -> Any:
    if isinstance(wanted, GenericAlias) and get_origin(wanted) is tuple:
        item = get_args(wanted)[0]
        if not isinstance(data, list):
            raise PlanError(f"{where} is no list; write the plan again")
        return tuple(_from_json(entry, item, f"{where}[{i}]") for i, entry in enumerate(data))
    if wanted == Size:
        return open_size(data, where)
    if wanted in (int, bool, str):
        if type(data) is not wanted or (wanted is int and data < 0):
            kind = "natural number" if wanted is int else wanted.__name__
            raise PlanError(f"{where} is {data!r}, no {kind}; put one there, or write the plan again")
        return data
    result = schedule_from_json(data, where)
    if not isinstance(result, wanted):
        raise PlanError(f"{where} is of template {result.template}, which has no place there; write the plan again")
    return result
