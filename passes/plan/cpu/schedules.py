"""Schedules of CPU kernels: register tiles, vectors, and the share of the work per task.

Sizes of tiles and tasks are upper bounds: extents are split as evenly as these allow.
"""

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from tilestitch.compiler.ir.sizes import Size


@dataclass(frozen=True)
class CpuGemmSchedule:
    """A GEMM in register tiles of `rows` rows by a panel of columns: `vectors` vectors of `lanes`.

    A task computes `block_tiles` tiles of rows by `block_panels` panels. k_block: steps of the reduction after which
    partial sums are kept in the workspace; if it covers all steps, none are. stage_left: the task first copies its rows
    of the left operand into the workspace, converted and with the prologue applied. widen_right: it converts each
    packed panel of half floats once, for all its tiles. spill: results go through the workspace before the epilogue.
    rows_outer: the task walks tile after tile, through all panels; else panel after panel, each through all tiles.
    k_outer: the reduction is the outermost loop: the task takes `k_block` steps through all its tiles and panels at a
    time, and copies that many steps of its rows; else each panel goes through the whole reduction. prefetch_next: tiles
    prefetch the next panel; prefetch_ahead: each step of the reduction prefetches later ones.
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
    """A GEMM of 8-bit integers or bfloat16 by the instruction `dot`, which multiplies a group of neighbours along the
    reduction; such a group is one step. stage_left: as in `CpuGemmSchedule`, in the dtype that the instruction
    multiplies.
    """

    template: ClassVar[str] = "cpu_dot_gemm"
    dot: str = "vpdpbusd"


@dataclass(frozen=True)
class CpuTileGemmSchedule(CpuDotGemmSchedule):
    """A GEMM by an instruction that multiplies tiles of up to 16 rows by 64 bytes: `rows` cover one or two tiles, and
    `vectors` are one or two tiles of 16 columns. Results go through the workspace. stage_left: if not set, whole tiles
    are read in place.
    """

    template: ClassVar[str] = "cpu_tile_gemm"
    dot: str = "tdpbusd"


@dataclass(frozen=True)
class CpuBlockGemmSchedule(CpuGemmSchedule):
    """A GEMM by constant, blockwise-quantised weights. widen_right: a task dequantises each panel into its workspace,
    for all its tiles; else each tile does so in registers. stage_left: as in `CpuGemmSchedule`, zero-padded to whole
    blocks. look_up: 4-bit codes are looked up in a table of 16 floats by an AVX-512 instruction; else integers are
    converted. few: where panels are widened, a task that finds at most this many rows at run time widens none: it
    computes up to `FEW_ROWS` at a time, dequantising in registers, on rows copied as if that were always done.
    """

    template: ClassVar[str] = "cpu_block_gemm"
    look_up: bool = False
    few: int = 0


@dataclass(frozen=True)
class CpuBlockDotGemmSchedule(CpuBlockGemmSchedule):
    """A blockwise-quantised GEMM whose left operand is rounded to 8 bits, by the instruction `dot`. stage_left: always
    set; each block gets a scale and a sum. No panel is widened: codes become bytes in registers. planes: 1, or `PLANES`
    where the operand is one row that must not be rounded: it is split into that many rows of 8-bit digits.
    """

    template: ClassVar[str] = "cpu_block_dot_gemm"
    dot: str = "vpdpbusd"
    planes: int = 1


@dataclass(frozen=True)
class CpuGemvSchedule:
    """A matrix known only at run time, times a vector: it is read once, in place, in vectors of `lanes`.

    A task computes `block` results. streams: rows or columns of the matrix that are read concurrently.
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
    input rows that it needs, with zeros for padding; else taps that meet padding are skipped by separate code for the
    borders. The other fields are as in `CpuGemmSchedule`.
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

    stage: as in `CpuConvSchedule`, in the dtype that the instruction multiplies, padded to whole groups. interleave:
    the epilogue of spilled sums is interleaved with the steps of the next tile, one pixel per step.
    """

    template: ClassVar[str] = "cpu_dot_conv"
    dot: str = "vpdpbusd"
    interleave: bool = False


@dataclass(frozen=True)
class CpuTileConvSchedule(CpuDotConvSchedule):
    """A convolution by an instruction that multiplies tiles, as in `CpuTileGemmSchedule`: the pixels of one or two
    tiles are neighbours in one or two rows of the output. Its input rows are always copied, and results go through the
    workspace.
    """

    template: ClassVar[str] = "cpu_tile_conv"
    dot: str = "tdpbusd"


@dataclass(frozen=True)
class CpuWinogradSchedule(CpuConvSchedule):
    """A convolution of 3 x 3 taps by Winograd's F(2x2, 3x3): 16 GEMMs over tiles of 2 x 2 pixels, in register tiles of
    `tiles` of these by a panel. A task has `block_tiles` rows of them, all columns, which it copies and transforms;
    results of its GEMMs wait in the workspace until all 16 are done. rows, columns: 2.
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
    """Windows over single channels: a task computes `block_rows` output rows of `block_channels` channels.

    form: `columns`: `columns` output columns by `vectors` vectors of `lanes` channels at a time, taps written out;
    `channels`: the same with taps in loops; `across`: vectors run over the output columns of one channel;
    `line`: the same, after the rows of a window have been reduced to one line in the workspace (pooling only).
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
    """A task of attention covers at most `queries` queries of one head, in blocks of at most `block`.

    scores, weighed: the GEMMs of a block, queries by keys and weights by values; one task computes each.
    """

    template: ClassVar[str] = "cpu_attention"
    queries: int
    block: int
    scores: CpuGemmSchedule
    weighed: CpuGemmSchedule


@dataclass(frozen=True)
class CpuLoopSchedule:
    """Element-wise work, data movement and views: loops over `extents`, the last of them in vectors of `lanes`.

    extents: dimensions of the first output, some merged. A task computes `rows` rows of `chunk` elements of the last
    dimension. edge: if not 0, rows are traversed in tiles of `edge` along the dimension `tiled`, and a task has `rows`
    rows of tiles. cuts: positions along the last dimension between which operands differ, so that each interval has its
    own code; branches: positions, from 0 to its end, along the dimension `branch`, between which rows branch to
    separate code. order: the output's dimensions in the order of `extents` and the loops; empty: unchanged. A task that
    has all of a few rows may read or store them in turn, where they lie so (`LoopPlan.interleaved`, `alternating`);
    registers transpose the operands of tiles that lie across (`lying_across`).
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

    extents: dimensions of the rows, some merged. A step computes `vectors` vectors of `lanes` elements of the last
    dimension: of one row if it is reduced, else of as many rows. A task has `rows` rows (or steps of rows). kept:
    indices of the group's nodes whose values stay in the workspace for later passes over the row; all others are
    recomputed.
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
    """Each row is split into `parts`, whose results further launches combine: a schedule for each launch, in order."""

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
    """Cumulative operators: `lanes` neighbouring lines are computed together, `lines` times per task."""

    template: ClassVar[str] = "cpu_scan"
    lanes: int
    lines: int


@dataclass(frozen=True)
class CpuScatterSchedule:
    """One launch copies, in tasks of `copy_vectors` vectors of `copy_lanes` elements; another applies the updates.

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
    """A task handles one class of one image."""

    template: ClassVar[str] = "cpu_suppress"


@dataclass(frozen=True)
class CpuRegionSchedule:
    """A task has `channels` channels of one region, and computes `lanes` of them at a time."""

    template: ClassVar[str] = "cpu_regions"
    channels: int
    lanes: int = 1


@dataclass(frozen=True)
class CpuAppendSchedule:
    """A task handles `parts` indices of the axes before `axis`, each with all positions along it and after it."""

    template: ClassVar[str] = "cpu_append"
    parts: int


@dataclass(frozen=True)
class CpuFoundSchedule:
    """Counting or compacting the true elements of a mask: a task has `blocks` blocks of elements."""

    template: ClassVar[str] = "cpu_found"
    blocks: int


@dataclass(frozen=True)
class CpuOrderSchedule:
    """Rows in lexicographic order: one task sorts their numbers."""

    template: ClassVar[str] = "cpu_order"


DotSchedule: TypeAlias = CpuDotGemmSchedule | CpuDotConvSchedule | CpuBlockDotGemmSchedule
"""Schedules of kernels that need an instruction for integers."""

CpuSchedule: TypeAlias = (
    CpuGemmSchedule | CpuDotGemmSchedule | CpuTileGemmSchedule | CpuBlockGemmSchedule | CpuBlockDotGemmSchedule
    | CpuGemvSchedule
    | CpuConvSchedule | CpuDotConvSchedule | CpuTileConvSchedule | CpuWinogradSchedule
    | CpuConvTransposeSchedule | CpuWindowSchedule | CpuAttentionSchedule | CpuLoopSchedule | CpuRowSchedule
    | CpuSplitRowSchedule | CpuSortSchedule | CpuScanSchedule | CpuScatterSchedule | CpuSuppressSchedule
    | CpuRegionSchedule | CpuAppendSchedule | CpuFoundSchedule | CpuOrderSchedule
)  # fmt: skip
