"""Schedules of kernels for CPUs: register tiles, vectors, and what of the work one task has.

Sizes of tiles and tasks are the most that they have: extents are cut as evenly as these allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from tilestitch.compiler.ir.sizes import Size


@dataclass(frozen=True)
class CpuGemmSchedule:
    """A GEMM in register tiles of `rows` rows by a panel of columns: `vectors` vectors of `lanes`.

    A task computes `block_tiles` tiles of rows by `block_panels` panels. k_block: steps of the reduction, after which
    sums wait in the workspace for the next ones; all of them: nothing waits. stage_left: the task first copies its rows
    of the left operand into the workspace, converted and with their prologue. widen_right: it converts each packed
    panel of half floats once, for all its tiles. spill: results go through the workspace before the epilogue.
    rows_outer: the task walks tile after tile, through all panels; else panel after panel, each through all tiles.
    k_outer: it walks the reduction, `k_block` steps through all its tiles and panels at a time, and copies rows of so
    many steps; else each panel goes through the whole reduction. prefetch_next: tiles ask for the next panel;
    prefetch_ahead: each step of the reduction asks for later ones.
    """

    template: ClassVar[str] = "cpu_gemm"
    rows: int
    vectors: int
    lanes: int
    block_tiles: int
    block_panels: int
    k_block: int
    stage_left: bool = False
    widen_right: bool = False
    spill: bool = False
    rows_outer: bool = False
    prefetch_next: bool = False
    prefetch_ahead: bool = False
    k_outer: bool = False


@dataclass(frozen=True)
class CpuDotGemmSchedule(CpuGemmSchedule):
    """A GEMM of 8-bit integers or bfloat16, by the instruction `dot`, which multiplies a group of neighbours along the
    reduction: a step is such a group. stage_left: as above, in the dtype that the instruction multiplies.
    """

    template: ClassVar[str] = "cpu_dot_gemm"
    dot: str = "vpdpbusd"


@dataclass(frozen=True)
class CpuTileGemmSchedule(CpuDotGemmSchedule):
    """The same by an instruction that multiplies tiles of up to 16 rows by 64 bytes: `rows` are those of one or two
    tiles, and `vectors` are one or two tiles of 16 columns. Results go through the workspace. stage_left: else whole
    tiles are read where they lie.
    """

    template: ClassVar[str] = "cpu_tile_gemm"
    dot: str = "tdpbusd"


@dataclass(frozen=True)
class CpuBlockGemmSchedule(CpuGemmSchedule):
    """A GEMM by constant weights in blocks that share a scale. widen_right: a task dequantises each panel into its
    workspace, for all its tiles; else each tile does so in registers. stage_left: as above, with zeros up to whole
    blocks. look_up: codes of 4 bits are looked up in a table of 16 floats, by an instruction of AVX-512; else integers
    are converted. few: where panels are widened, a task that finds at most so many rows when it runs widens none: it
    takes them as many at a time as `FEW_ROWS`, in registers, of rows copied as if that were done always.
    """

    template: ClassVar[str] = "cpu_block_gemm"
    look_up: bool = False
    few: int = 0


@dataclass(frozen=True)
class CpuBlockDotGemmSchedule(CpuBlockGemmSchedule):
    """The same where the left operand is rounded to 8 bits, by the instruction `dot`. stage_left: it always is, with a
    scale and a sum for each block. No panel is widened: codes become bytes in registers. planes: 1, or `PLANES` where
    the operand is one row that is not to be rounded: it becomes so many rows of 8 bits, which are its digits.
    """

    template: ClassVar[str] = "cpu_block_dot_gemm"
    dot: str = "vpdpbusd"
    planes: int = 1


@dataclass(frozen=True)
class CpuGemvSchedule:
    """A matrix that is known at run time only, times a vector: it is read once, as it lies, in vectors of `lanes`.

    A task computes `block` results. streams: rows, or columns, of the matrix that are read at the same time.
    """

    template: ClassVar[str] = "cpu_gemv"
    block: int
    lanes: int
    streams: int = 8


@dataclass(frozen=True)
class CpuConvSchedule:
    """A convolution in register tiles of `rows` x `columns` output pixels by a panel of output channels: `vectors`
    vectors of `lanes`.

    A task computes all columns of `block_tiles` tiles of rows, by `block_panels` panels. stage: it first copies the
    input rows that it needs, with zeros for padding; else taps that meet padding are left out, by code of their own at
    the borders. The others are as in `CpuGemmSchedule`.
    """

    template: ClassVar[str] = "cpu_conv"
    rows: int
    columns: int
    vectors: int
    lanes: int
    block_tiles: Size
    block_panels: int
    stage: bool = False
    widen_right: bool = False
    spill: bool = False
    rows_outer: bool = False
    prefetch_next: bool = False


@dataclass(frozen=True)
class CpuDotConvSchedule(CpuConvSchedule):
    """A convolution of 8-bit integers or bfloat16, by the instruction `dot`: groups of neighbouring channels.

    stage: as above, in the dtype that the instruction multiplies, with room for whole groups. interleave: what is
    spilled is finished among the steps of the next tile, a pixel with each.
    """

    template: ClassVar[str] = "cpu_dot_conv"
    dot: str = "vpdpbusd"
    interleave: bool = False


@dataclass(frozen=True)
class CpuTileConvSchedule(CpuDotConvSchedule):
    """The same by an instruction that multiplies tiles, as in `CpuTileGemmSchedule`: the pixels of one or two tiles are
    neighbours in one row of the output, or in two. Its rows are always copied, and results go through the workspace.
    """

    template: ClassVar[str] = "cpu_tile_conv"
    dot: str = "tdpbusd"


@dataclass(frozen=True)
class CpuWinogradSchedule(CpuConvSchedule):
    """A convolution of 3 x 3 taps by Winograd's F(2x2, 3x3): 16 GEMMs over tiles of 2 x 2 pixels, in register tiles of
    `tiles` of these by a panel. A task has `block_tiles` rows of them, all columns, which it copies and transforms; its
    GEMMs wait in the workspace until all 16 are done. rows, columns: 2.
    """

    template: ClassVar[str] = "cpu_winograd"
    tiles: int = 8


@dataclass(frozen=True)
class CpuConvTransposeSchedule:
    """A transposed convolution: a task computes a row of `block_panels` panels of channels.

    Register tiles are `rows` output columns of one phase by a panel: `vectors` vectors of `lanes`.
    """

    template: ClassVar[str] = "cpu_conv_transpose"
    rows: int
    vectors: int
    lanes: int
    block_panels: int


@dataclass(frozen=True)
class CpuWindowSchedule:
    """Windows over each channel by itself: a task computes `block_rows` output rows of `block_channels` channels.

    form: `columns`: `columns` output columns by `vectors` vectors of `lanes` channels at a time, taps written out;
    `channels`: so, taps in loops; `across`: vectors run over the output columns of one channel;
    `line`: so, once the rows of a window are folded into a line in the workspace (pooling only).
    """

    template: ClassVar[str] = "cpu_window"
    form: str
    lanes: int
    vectors: int
    columns: int
    block_rows: Size
    block_channels: int


@dataclass(frozen=True)
class CpuAttentionSchedule:
    """A task of attention has at most `queries` queries of one head, in blocks of at most `block`.

    scores, weighed: the GEMMs of a block, queries by keys and weights by values; each is computed by one task.
    """

    template: ClassVar[str] = "cpu_attention"
    queries: int
    block: int
    scores: CpuGemmSchedule
    weighed: CpuGemmSchedule


@dataclass(frozen=True)
class CpuLoopSchedule:
    """Element-wise work, data movement and views: loops over `extents`, the last of them in vectors of `lanes`.

    extents: dimensions of the first output, some joined. A task computes `rows` rows of `chunk` elements of the last
    dimension. edge: if not 0, rows are walked in tiles of so many along the dimension `tiled`, and a task has `rows`
    rows of tiles. cuts: places along the last dimension between which runs have code of their own, as operands differ;
    branches: places, from 0 to its end, along the dimension `branch`, between which rows branch to code of their own.
    order: the dimensions in the order in which `extents` has them, and loops walk them; empty: as they are.
    """

    template: ClassVar[str] = "cpu_loops"
    extents: tuple[Size, ...]
    lanes: int
    chunk: Size
    rows: int
    tiled: int = 0
    edge: int = 0
    cuts: tuple[int, ...] = ()
    branch: int = 0
    branches: tuple[int, ...] = ()
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class CpuRowSchedule:
    """Reductions and the work on their rows: loops over `extents`, of which some are `reduced`.

    extents: dimensions of the rows, some joined. A step computes `vectors` vectors of `lanes` elements of the last
    dimension: of one row, or, where that is not reduced, of as many rows. A task has `rows` rows (steps of rows).
    kept: places among the group's nodes, from 0, of those whose values stay in the workspace for later passes over the
    row; all others are computed again.
    """

    template: ClassVar[str] = "cpu_rows"
    extents: tuple[Size, ...]
    reduced: tuple[bool, ...]
    lanes: int
    vectors: int
    rows: int
    kept: tuple[int, ...] = ()


@dataclass(frozen=True)
class CpuSplitRowSchedule:
    """Each row is cut into `parts`, whose results further launches join: a schedule for each launch, in order."""

    template: ClassVar[str] = "cpu_split_rows"
    parts: int
    pieces: tuple[CpuRowSchedule | CpuLoopSchedule, ...]


@dataclass(frozen=True)
class CpuSortSchedule:
    """A task sorts `lines` lines. inserts: elements go into a list of the best; else whole lines are sorted."""

    template: ClassVar[str] = "cpu_sort"
    lines: int
    inserts: bool


@dataclass(frozen=True)
class CpuScanSchedule:
    """Running sums: `lanes` neighbouring lines are computed together, `lines` times in a task."""

    template: ClassVar[str] = "cpu_scan"
    lanes: int
    lines: int


@dataclass(frozen=True)
class CpuScatterSchedule:
    """A launch copies `copy_vectors` vectors of `copy_lanes` elements a task; another one applies the updates.

    Its tasks have `part` lines of scatter_elements, or `part` elements of every slice of scatter_nd, in vectors of
    `lanes`.
    """

    template: ClassVar[str] = "cpu_scatter"
    copy_lanes: int
    copy_vectors: int
    part: int
    lanes: int = 1


@dataclass(frozen=True)
class CpuSuppressSchedule:
    """A task has one class of one image."""

    template: ClassVar[str] = "cpu_suppress"


@dataclass(frozen=True)
class CpuRegionSchedule:
    """A task has `channels` channels of one region, and computes `lanes` of them at a time."""

    template: ClassVar[str] = "cpu_regions"
    channels: int
    lanes: int = 1


@dataclass(frozen=True)
class CpuAppendSchedule:
    """A task has `parts` of what lies before the axis, each with all places along it and what lies after it."""

    template: ClassVar[str] = "cpu_append"
    parts: int


@dataclass(frozen=True)
class CpuFoundSchedule:
    """What is true in a mask, counted or put together: a task has `blocks` blocks of elements."""

    template: ClassVar[str] = "cpu_found"
    blocks: int


@dataclass(frozen=True)
class CpuOrderSchedule:
    """Rows in the order of dictionaries: one task sorts their numbers."""

    template: ClassVar[str] = "cpu_order"


DotSchedule: TypeAlias = CpuDotGemmSchedule | CpuDotConvSchedule | CpuBlockDotGemmSchedule
"""Of kernels that need an instruction for integers."""

CpuSchedule: TypeAlias = (
    CpuGemmSchedule | CpuDotGemmSchedule | CpuTileGemmSchedule | CpuBlockGemmSchedule | CpuBlockDotGemmSchedule
    | CpuGemvSchedule
    | CpuConvSchedule | CpuDotConvSchedule | CpuTileConvSchedule | CpuWinogradSchedule
    | CpuConvTransposeSchedule | CpuWindowSchedule | CpuAttentionSchedule | CpuLoopSchedule | CpuRowSchedule
    | CpuSplitRowSchedule | CpuSortSchedule | CpuScanSchedule | CpuScatterSchedule | CpuSuppressSchedule
    | CpuRegionSchedule | CpuAppendSchedule | CpuFoundSchedule | CpuOrderSchedule
)  # fmt: skip
