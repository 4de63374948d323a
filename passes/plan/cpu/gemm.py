"""Matrix multiplication on a CPU: ``result[b, m, n] = sum over k of left(b, m, k) * right(b, k, n)``, as scheduled.

The right operand is read as panels [k, columns]: packed at compile time when it is constant, else packed by each task
into its workspace.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tilestitch.compiler.ir.blocks import BlockFormat
from tilestitch.compiler.ir.sizes import Size, bounds_of, ceil_div, is_open
from tilestitch.compiler.ir.types import HALVES, storage_bytes

from .dots import dot_reasons
from .isa import ALL_DOTS, DOTS, TILE_BYTES, TILE_ROWS, Dot
from .limits import LARGEST, right_reasons, task_reasons
from .packing import BlockPacking, DotPacking, Packing
from .schedules import (
    CpuBlockDotGemmSchedule,
    CpuBlockGemmSchedule,
    CpuDotGemmSchedule,
    CpuGemmSchedule,
    CpuTileGemmSchedule,
)
from .tiling import LINE_BYTES, RegisterTile, Split, align, meet_in_a_set, split_at_most

LOOKED_UP = 16
"""Floats in a table of codes."""
FEW_ROWS = 4
"""Most rows of a tile whose blockwise-quantised weights are dequantised in registers, where the number of rows is
open.
"""
ROUNDED = "int8"
"""The dtype to which a left operand is rounded, symmetrically."""
ROUNDED_LARGEST = 127
PLANES = 4
"""Signed 8-bit digits into which a row of float32 is split, instead of being rounded."""
EXACT_SUM = 1 << 24
"""The range of integers that float32 represents exactly."""
SHAPES_BYTES = 64
"""Bytes that `ldtilecfg` reads."""

WIDE_STEP_BYTES, NEAR_BYTES, FAR_BYTES = 320, 2048, 8192
"""Prefetch distances for a stream that is read once: the hardware prefetcher follows panels with wide steps, and
requests from further away disturb it; for narrow steps it fetches too little.
"""


def sums_fit(form: BlockFormat) -> bool:
    """Return whether 32 bits hold the sum over a block of any codes times rounded row elements."""
    return form.block * ROUNDED_LARGEST * ((1 << form.bits) - 1) <= LARGEST


def planes_fit(form: BlockFormat) -> bool:
    """Return whether sums over a block of any codes times digits are also exact in float32."""
    return form.integers and form.block * (ROUNDED_LARGEST + 1) * ((1 << form.bits) - 1) <= EXACT_SUM


@dataclass(frozen=True)
class GemmShape:
    """`batch` GEMMs of [m, k] by [k, n]; elements are widened to `acc_dtype`, in which the sum is kept.

    `acc_dtype` is float32 for half floats and int32 for small integers. gates: the number of constant right operands
    [k, n] stored side by side as packing groups; the epilogue gets element (m, n) of all their results together.
    packed: the right operand is a constant. plain: an element of the left one is just a load, without a prologue;
    left_runs: the index ("m" or "k") that runs along its memory. long_epilogue: its code is too long to be repeated for
    every register. blocks: the format of a blockwise-quantised right operand, whose elements are dequantised to
    float32. rounds: the left operand is rounded to 8 bits by block, as `block_matmul` says. left_stride: elements
    between rows of a left operand stored in whole tiles, as instructions read them; else 0. small_pairs: see `pairs`.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    a_dtype: str = "float32"
    b_dtype: str = "float32"
    acc_dtype: str = "float32"
    gates: int = 1
    packed: bool = True
    plain: bool = True
    left_runs: str = "k"
    long_epilogue: bool = False
    blocks: BlockFormat | None = None
    rounds: bool = False
    left_stride: Size = 0
    small_pairs: bool = False

    @property
    def right_bytes(self) -> int:
        if self.blocks is not None:
            return self.n * self.blocks.blocks * self.blocks.block_bytes
        return self.gates * self.k * self.n * storage_bytes(self.b_dtype)

    def multiplied_by(self, dot: Dot) -> bool:
        """Return whether an instruction for groups of 8-bit integers or half floats computes it."""
        fits = (self.a_dtype, self.b_dtype, self.acc_dtype) == (*dot.operands, dot.sums)
        return fits and (self.packed or dot.packs_at_run_time) and (self.small_pairs or not dot.pairs)

    @property
    def reads_floats(self) -> bool:
        """Whether rows of the left operand are contiguous and read in place."""
        return self.plain and self.left_runs == "k" and self.a_dtype == self.acc_dtype

    def reads_blocks(self, form: BlockFormat) -> bool:
        """Return whether the left operand's rows are read in place and consist of whole blocks."""
        return self.reads_floats and self.k % form.block == 0

    def reads_in_place(self, dot: Dot) -> bool:
        """Return whether the left operand is read in place, in whole groups of elements."""
        lies = self.plain and self.left_runs == "k" and self.a_dtype == dot.left
        return lies and self.k % dot.group == 0


@dataclass(frozen=True)
class GemmPlan:
    """A GEMM and its schedule, and what follows from both: parts, tasks and workspace."""

    shape: GemmShape
    schedule: CpuGemmSchedule

    @property
    def dot(self) -> Dot | None:
        """The instruction that multiplies groups of integers; None if there is none."""
        return ALL_DOTS.get(self.schedule.dot) if isinstance(self.schedule, CpuDotGemmSchedule) else None

    @property
    def multiplies_tiles(self) -> bool:
        """Whether an instruction multiplies whole tiles."""
        return isinstance(self.schedule, CpuTileGemmSchedule)

    @property
    def rounds(self) -> bool:
        """Whether rows of the left operand are rounded to 8 bits, or split into 8-bit digits, as they are copied."""
        return isinstance(self.schedule, CpuBlockDotGemmSchedule)

    @property
    def planes(self) -> int:
        """Rows copied per row of the left operand."""
        return self.schedule.planes if isinstance(self.schedule, CpuBlockDotGemmSchedule) else 1

    @property
    def neighbours(self) -> int:
        """Elements along the reduction per step."""
        return 1 if self.dot is None else self.dot.group

    @property
    def steps(self) -> int:
        if self.dot is None:
            return self.shape.k
        steps = ceil_div(self.shape.k, self.dot.group)
        return ceil_div(steps, TILE_ROWS) * TILE_ROWS if self.multiplies_tiles else steps

    @property
    def staged_dtype(self) -> str:
        """The dtype of the rows that a task copies."""
        if self.rounds:
            return ROUNDED
        return self.shape.acc_dtype if self.dot is None else self.dot.left

    @property
    def rows(self) -> Split:
        return split_at_most(self.shape.m, self.schedule.rows)

    @property
    def rows_meet(self) -> bool:
        """Whether the rows that a register tile reads in place conflict in the first-level cache."""
        return meet_in_a_set(self.rows.largest, self.shape.k * storage_bytes(self.shape.a_dtype))

    @property
    def tile(self) -> RegisterTile:
        return RegisterTile(self.rows.largest, self.schedule.vectors, self.schedule.lanes)

    @property
    def panels(self) -> int:
        return -(-self.shape.n // self.tile.columns)

    @property
    def m_blocks(self) -> int:
        return -(-self.rows.parts // self.schedule.block_tiles)

    @property
    def n_blocks(self) -> int:
        return 1 if self.takes_all_panels else -(-self.panels // self.schedule.block_panels)

    @property
    def takes_all_panels(self) -> bool:
        """Whether a task computes all columns, however many there are."""
        return self.schedule.block_panels >= min(bounds_of(self.panels)[1], LARGEST)

    @property
    def tasks(self) -> int:
        return self.shape.batch * self.m_blocks * self.n_blocks

    @property
    def block_rows(self) -> int:
        """Most rows per task."""
        most = self.schedule.block_tiles * self.rows.largest
        return most if is_open(self.shape.m) else min(self.shape.m, most)

    @property
    def splits_k(self) -> bool:
        """Whether, for some size of the reduction, sums wait in the workspace for the rest of it."""
        return self.schedule.k_block < min(bounds_of(self.steps)[1], LARGEST)

    @property
    def staged_steps(self) -> Size:
        """Elements of a copied row: whole groups and whole blocks of weights, padded with zeros."""
        form = self.shape.blocks
        if self.schedule.k_outer:
            return min(self.steps, self.schedule.k_block)
        if form is None:
            return self.steps * self.neighbours
        return self.shape.k if self.schedule.widen_right and not self.few else form.blocks * form.block

    @property
    def few(self) -> int:
        """Most rows of a task for which it does not widen panels of blockwise-quantised weights, if it does so for
        more; else 0.
        """
        return self.schedule.few if isinstance(self.schedule, CpuBlockGemmSchedule) else 0

    @property
    def staged_stride(self) -> int:
        """Elements between staged rows: an odd number of cache lines, to avoid cache-set conflicts."""
        lanes = LINE_BYTES // storage_bytes(self.staged_dtype)
        lines = -(-self.staged_steps // lanes)
        return (lines + 1 - lines % 2) * lanes

    @property
    def staged_bytes(self) -> int:
        rows = (self.block_rows + self.rows_beyond) * self.planes
        size = rows * self.staged_stride * storage_bytes(self.staged_dtype)
        return align(size) if self.schedule.stage_left else 0

    @property
    def rows_beyond(self) -> int:
        """Rows past those of a task that are read too, because tiles are whole."""
        if not self.multiplies_tiles:
            return 0
        return self.tile_rows - (0 if is_open(self.shape.m) else self.rows.small)

    @property
    def tile_rows(self) -> int:
        """Rows of sums in registers."""
        return ceil_div(self.rows.largest, TILE_ROWS) * TILE_ROWS if self.multiplies_tiles else self.rows.largest

    @property
    def panel_bytes(self) -> int:
        kept = not self.shape.packed or self.schedule.widen_right
        return self.packing().panel_bytes if kept else 0

    @property
    def ahead_bytes(self) -> int:
        """Distance of `prefetch_ahead`, by the bytes of a step of the reduction or of a block of weights."""
        form, columns = self.shape.blocks, self.tile.columns
        element = self.neighbours * storage_bytes(self.shape.b_dtype)
        step = columns * (element if form is None else form.code_bytes)
        return NEAR_BYTES if step >= WIDE_STEP_BYTES else FAR_BYTES

    @property
    def sums_rows(self) -> int:
        """Rows of sums that wait in the workspace: the whole block when the reduction is split, of every panel where it
        is outermost.

        A last panel with an open number of columns is stored from there.
        """
        if self.schedule.k_outer:
            return self.block_rows * min(self.panels, self.schedule.block_panels)
        if self.splits_k:
            return self.block_rows
        waits = self.schedule.spill or is_open(self.shape.n)
        return self.shape.gates * self.tile_rows if waits else 0

    @property
    def scratch_bytes(self) -> int:
        sums = self.sums_rows * self.tile.columns * storage_bytes(self.shape.acc_dtype)
        return self.staged_bytes + self.panel_bytes + align(sums) + self.rounding_bytes + self.shapes_bytes

    @property
    def shapes_bytes(self) -> int:
        """Bytes of the tile configuration."""
        return SHAPES_BYTES if self.multiplies_tiles else 0

    @property
    def rounding_bytes(self) -> int:
        """Workspace for rounded rows: per block a scale and a sum (for digits, one sum per plane); the floats of one
        row; and, for digits, whether the row cannot be split.
        """
        form = self.shape.blocks
        if form is None or not self.rounds:
            return 0
        each = [align(count * self.block_rows * form.blocks * storage_bytes("float32")) for count in (1, self.planes)]
        odd = align(storage_bytes("int32")) if self.planes > 1 else 0
        return sum(each) + align(form.blocks * form.block * storage_bytes("float32")) + odd

    def packing(self, groups: int = 1) -> Packing:
        """Layout of a constant right operand."""
        if self.shape.blocks is not None:
            at = groups, self.shape.k, self.shape.n, self.tile.columns, "uint8"
            halved = self.rounds and self.shape.blocks.bits == 4
            return BlockPacking(*at, form=self.shape.blocks, lanes=self.schedule.lanes, halved=halved)
        matrix = groups, self.shape.k, self.shape.n, self.tile.columns, self.shape.b_dtype
        if self.dot is None:
            return Packing(*matrix)
        return DotPacking(*matrix, self.dot.group, TILE_ROWS if self.multiplies_tiles else 1)

    def reasons(self) -> Iterator[str]:
        """Yield why no kernel computes the GEMM as scheduled."""
        schedule, shape = self.schedule, self.shape
        odd = next(task_reasons(schedule), None)
        if odd is not None:
            yield odd
            return
        if isinstance(schedule, CpuDotGemmSchedule):
            yield from dot_reasons(shape, schedule, schedule.stage_left)
        if self.multiplies_tiles:
            yield from self._tile_reasons()
        if isinstance(schedule, CpuBlockGemmSchedule) != (shape.blocks is not None):
            yield "weights in blocks, and no others, are for the template of blocks"
        elif shape.blocks is not None:
            yield from self._block_reasons(shape.blocks)
        if shape.k != 0 and schedule.k_block == 0:
            yield "a pass has 0 steps of the reduction; it has at least one"
        if schedule.k_outer:
            yield from self._outer_reasons()
        if self.splits_k and (schedule.rows_outer or shape.gates > 1):
            yield "sums that wait for the rest of the reduction are of one panel at a time, without gates"
        if shape.gates > 1 and not schedule.spill:
            yield "the gates of a cell meet in the workspace; their results are spilled"
        yield from right_reasons(
            shape.packed, schedule.widen_right, schedule.rows_outer,
            schedule.prefetch_next or schedule.prefetch_ahead,
        )  # fmt: skip
        if schedule.widen_right and shape.gates > 1:
            yield "panels of several gates are not widened: one has the place of the other"

    def _outer_reasons(self) -> Iterator[str]:
        """Yield why the reduction cannot be the outermost loop."""
        schedule, shape = self.schedule, self.shape
        if self.dot is not None or shape.blocks is not None or schedule.widen_right or not shape.packed:
            yield "a reduction is outermost over packed panels of floats that are read as they lie"
        if not self.splits_k:
            yield f"a reduction of {shape.k} steps is one pass of {schedule.k_block}: there is no other to be outermost"

    def _tile_reasons(self) -> Iterator[str]:
        schedule, shape, dot = self.schedule, self.shape, self.dot
        if not 1 <= schedule.rows <= 2 * TILE_ROWS or schedule.vectors > 2:
            yield f"sums are in one or two tiles of {TILE_ROWS} rows by one or two of {TILE_ROWS} columns"
        if self.splits_k or not schedule.spill:
            yield "tiles are summed in one pass, and their results spilled"
        if schedule.prefetch_ahead or schedule.prefetch_next:
            yield "tiles are loaded whole, and ask for no other"
        if shape.left_stride != 0:
            if schedule.stage_left:
                yield "a left operand that lies in whole tiles is read there, not copied"
            return
        whole = dot is not None and not is_open(shape.k) and shape.k * storage_bytes(dot.left) % TILE_BYTES == 0
        if not schedule.stage_left and not (whole and not is_open(shape.m) and self.rows_beyond == 0):
            yield "rows are read where they lie in whole tiles, as many for each; others are copied"
        if not schedule.stage_left and shape.a_dtype in HALVES:
            yield f"rows of {shape.a_dtype} are copied"

    def _block_reasons(self, form: BlockFormat) -> Iterator[str]:
        schedule, shape = self.schedule, self.shape
        looks_up = isinstance(schedule, CpuBlockGemmSchedule) and schedule.look_up
        if looks_up and (form.bits != 4 or schedule.lanes != LOOKED_UP):
            yield f"tables are of {LOOKED_UP} floats, for codes of 4 bits, in vectors of {LOOKED_UP} lanes"
        if not looks_up and not form.integers:
            yield f"{form.codes} are looked up: they cannot be converted"
        if not shape.packed or shape.gates > 1:
            yield "weights in blocks are constant, without gates"
        if shape.rounds != (self.rounds and self.planes == 1):
            yield "rows are rounded to 8 bits where the operator says so, by the template of blocks that does"
        if self.rounds:
            yield from self._rounding_reasons(form)
        if schedule.rows_outer or schedule.prefetch_next:
            yield "panels of blocks are dequantised one at a time, and ask for no other"
        if self.few and (not schedule.widen_right or self.rounds):
            yield "few rows are dequantised in registers where panels are widened for more, else always"
        if schedule.widen_right and not self.few:
            return
        if self.splits_k and not schedule.widen_right:
            yield "blocks that are dequantised in registers are summed in one pass"
        if not schedule.stage_left and not shape.reads_blocks(form):
            yield f"rows of floats are read where they lie if they are whole blocks of {form.block}; others are copied"

    def _rounding_reasons(self, form: BlockFormat) -> Iterator[str]:
        schedule, dot = self.schedule, DOTS.get(getattr(self.schedule, "dot", ""))
        if dot is None or dot.right != ROUNDED:
            yield f"no instruction {getattr(schedule, 'dot', '')!r} multiplies codes by {ROUNDED}"
        elif schedule.lanes not in dot.lanes:
            yield f"{dot.name} has {', '.join(map(str, dot.lanes))} sums, not {schedule.lanes}"
        if not form.integers:
            yield f"{form.codes} are no integers to multiply"
        if not sums_fit(form):
            yield f"sums of {form.block} codes may not fit into 32 bits"
        if self.planes not in (1, PLANES):
            yield f"a row is rounded, or split into {PLANES} planes, not {self.planes}"
        if self.planes > 1 and (self.shape.m != 1 or not planes_fit(form)):
            yield f"planes are of one row, by blocks whose sums are at most {EXACT_SUM}"
        if not schedule.stage_left or schedule.widen_right:
            yield "rows are rounded as they are copied, and panels are not widened"
