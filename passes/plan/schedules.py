"""Schedules: how the kernel of a group is cut into thread blocks, threads and steps. Plain data, JSON in and out.

A group of a plan has one, each part of a stitched group one of its own. Code generation emits what it says, or raises.
`template` names the kind in JSON. Those of CPUs are in `cpu.schedules`.
"""

from __future__ import annotations

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

    cuts: places along the dimension `cut_axis` of the merged iteration space where one operand of a concat ends and
    another begins; threads branch to code of their own there. A space with cuts has one vector a thread.
    """

    template: ClassVar[str] = "elementwise"
    threads: int
    lanes: int
    vectors: int = 1
    cut_axis: int = 0
    cuts: tuple[int, ...] = ()


@dataclass(frozen=True)
class OpenElementwiseSchedule(ElementwiseSchedule):
    """The same over open sizes: the dimensions of the iteration space, joined, are `extents`."""

    template: ClassVar[str] = "open_elementwise"
    extents: tuple[Size, ...] = ()


@dataclass(frozen=True)
class TransposeSchedule:
    """Tiles of `edge` x `edge` elements of the last dimension and `axis`, in shared memory; `lines` lines at a time.

    A block has edge * lines threads. axis: of the merged iteration space, along which some operands run.
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
    """The same over open sizes: the dimensions, joined, are `extents`; those that `reduced` says make up a row."""

    template: ClassVar[str] = "open_rows"
    extents: tuple[Size, ...] = ()
    reduced: tuple[bool, ...] = ()


@dataclass(frozen=True)
class SplitRowSchedule:
    """Each row is cut into `parts`, whose results further launches join: a schedule for each launch, in order."""

    template: ClassVar[str] = "split_rows"
    parts: int
    pieces: tuple[RowSchedule | ElementwiseSchedule, ...]


@dataclass(frozen=True)
class GemmSchedule:
    """A contraction in tiles. split_k: parts into which the reduction is cut; the last block of a tile joins them.
    blocks: of a launch whose blocks walk over tiles (wgmma), else one for each part of each tile, and 0.

    tile_rows: tiles of so many neighbouring rows, all rows at most, are computed together, column after column.
    """

    template: ClassVar[str] = "gemm"
    tile: Tile
    split_k: int = 1
    blocks: int = 0
    tile_rows: int = 1


@dataclass(frozen=True)
class AttentionSchedule:
    """Attention in tiles of queries by keys. split_keys: parts of the keys, which a second launch joins."""

    template: ClassVar[str] = "attention"
    tile: AttentionMmaTile | AttentionSimtTile
    split_keys: int = 1


@dataclass(frozen=True)
class DirectSchedule:
    """A convolution of narrow groups: a thread computes `lanes` channels of `pixels` pixels, neighbours all of them."""

    template: ClassVar[str] = "direct"
    threads: int
    lanes: int = 1
    pixels: int = 1


@dataclass(frozen=True)
class BandSchedule:
    """Row-wise work after a GEMM in its launch: the blocks (or warps) that store a band of rows share it.

    share_rows: rows of the GEMM of one share. polls: how often one that came early looks whether the last has come.
    resident_blocks: blocks that the device surely holds at a time; only those of the last such wave look.
    """

    template: ClassVar[str] = "band"
    share_rows: int
    polls: int
    resident_blocks: int


@dataclass(frozen=True)
class TicketSchedule:
    """Stages in one launch of so many blocks, which draw tiles from a counter, stage after stage.

    edges: what tiles of one part wait for of another. A tile that waits needs earlier ones only, which running blocks
    hold: the launch ends however few of its blocks are resident. blocks_per_sm: that a multiprocessor shall hold at a
    time, which bounds the registers of a thread; 1: they are not bound. queues: every block has a queue of its own,
    the tiles that lie as many apart as there are blocks, and draws nothing; all blocks are resident together then.
    """

    template: ClassVar[str] = "tickets"
    blocks: int
    edges: tuple[TileEdge, ...]
    blocks_per_sm: int = 1
    queues: bool = False


@dataclass(frozen=True)
class LaunchesSchedule:
    """Parts in launches of their own, each of which begins when all blocks of those before it have begun.

    edges: what tiles of one part wait for of another. Blocks that wait need what other resident blocks compute: so all
    launches end, however few blocks are resident.
    """

    template: ClassVar[str] = "launches"
    edges: tuple[TileEdge, ...]


@dataclass(frozen=True)
class SharedPlace:
    """Where a block keeps what it has of a value: of value number `value` among those that the parts store."""

    template: ClassVar[str] = "shared_place"
    value: int
    offset_bytes: int


@dataclass(frozen=True)
class BlockSchedule:
    """Stages in one launch each of whose blocks computes a slab of all of them: one place along `axes` of the first
    value that the first stage stores, and along what is the same axis of others.

    places: of values that lie in shared memory; all others go through global memory.
    """

    template: ClassVar[str] = "blocks"
    axes: tuple[int, ...]
    places: tuple[SharedPlace, ...]


@dataclass(frozen=True)
class WindowSchedule:
    """A thread for each window."""

    template: ClassVar[str] = "window"
    threads: int


@dataclass(frozen=True)
class ScanSchedule:
    """Running sums: a thread for each line, or a block (`by_block`), whose threads share the line."""

    template: ClassVar[str] = "scan"
    threads: int
    by_block: bool


@dataclass(frozen=True)
class SortSchedule:
    """A block for each line that is sorted, in shared memory or in global memory."""

    template: ClassVar[str] = "sort"
    threads: int
    in_shared: bool


@dataclass(frozen=True)
class RankSchedule:
    """Sorted lines of any length: a thread for each element counts those before it."""

    template: ClassVar[str] = "rank"
    threads: int


@dataclass(frozen=True)
class ScatterSchedule:
    """A thread for each element that is copied, and for each update that meets no other.

    by_claims: updates claim their places first, and then each place's owner stores; else a thread applies all updates
    that may meet, one after the other.
    """

    template: ClassVar[str] = "scatter"
    threads: int
    by_claims: bool


@dataclass(frozen=True)
class SuppressSchedule:
    """Overlapping boxes of a class: first a thread for each box, which finds its place in the order of the scores; then
    a block for each class of each image.
    """

    template: ClassVar[str] = "suppress"
    threads: int


@dataclass(frozen=True)
class RegionSchedule:
    """Regions of images: a thread for each bin of each channel."""

    template: ClassVar[str] = "regions"
    threads: int


@dataclass(frozen=True)
class AppendSchedule:
    """Rows of a cache: a thread for each new element."""

    template: ClassVar[str] = "append"
    threads: int


@dataclass(frozen=True)
class FoundSchedule:
    """What is true in a mask, counted or put together: a block of threads for each block of elements."""

    template: ClassVar[str] = "found"
    threads: int


@dataclass(frozen=True)
class OrderSchedule:
    """Rows in the order of dictionaries: a thread for each row counts those before it."""

    template: ClassVar[str] = "order"
    threads: int


Schedule: TypeAlias = (
    ElementwiseSchedule | OpenElementwiseSchedule | TransposeSchedule | RowSchedule | OpenRowSchedule
    | SplitRowSchedule | WindowSchedule | ScanSchedule
    | SortSchedule | RankSchedule | ScatterSchedule | SuppressSchedule | RegionSchedule | AppendSchedule
    | FoundSchedule | OrderSchedule
    | GemmSchedule | DirectSchedule | BandSchedule
    | TicketSchedule | LaunchesSchedule | BlockSchedule | AttentionSchedule | CpuSchedule
)  # fmt: skip

_INSIDE = (*get_args(Tile), AttentionMmaTile, AttentionSimtTile, TileEdge, Grouping, Bound, SharedPlace)
TEMPLATES: dict[str, type] = {kind.template: kind for kind in (*get_args(Schedule), *_INSIDE)}
"""Every kind of schedule, and of tile and edge inside one, by its name in JSON."""


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    """Return `template` and all fields."""
    data: dict[str, Any] = {"template": schedule.template}
    for field in fields(schedule):
        data[field.name] = _to_json(getattr(schedule, field.name))
    return data


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return schedule_to_json(value) if hasattr(value, "template") else value


def schedule_from_json(data: Any, where: str = "schedule") -> Schedule:
    """Return a field that is not there has its default: plans that were made before it was added mean that.

    Raises PlanError, naming the field, unless `data` is else what `schedule_to_json` writes.
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
