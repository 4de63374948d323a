"""Attention on a CPU as scheduled: a task computes some queries of one head, from scores to results."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tilestitch.compiler.ir.sizes import Size, bounds_of, ceil_div, is_open, largest
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.attention.operands import sum_dtype
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.parts import Softmax

from .gemm import GemmPlan, GemmShape
from .isa import TILE_ROWS
from .limits import task_reasons
from .operands import has_long_epilogue, is_plain
from .schedules import CpuAttentionSchedule, CpuDotGemmSchedule, CpuTileGemmSchedule
from .tiling import LINE_BYTES, OverlappingSplit, Split, align, split_at_most

FEW_QUERIES = 4
"""Queries of a head whose keys and values a task reads where they lie; of more it packs them."""
PAIR = 2
"""Neighbours along the reduction that one half-float instruction multiplies."""


@dataclass(frozen=True)
class AttentionShape:
    """`heads` times `queries` rows of `keys` scores. width: elements of a query, and of a key; columns: of a value.

    The dtypes are those of operands in memory, and of weights as the values are multiplied by them.
    plain: an element of a query is just a load, without a prologue; transposed: whether queries, keys and values are
    transposed relative to [queries, width], [keys, width], [keys, columns].
    """

    heads: int
    queries: int
    keys: int
    width: int
    columns: int
    query_dtype: str
    key_dtype: str
    value_dtype: str
    weights_dtype: str
    acc_dtype: str
    plain: bool
    transposed: tuple[bool, bool, bool]
    long_epilogue: bool

    @property
    def item(self) -> int:
        """Bytes of a score."""
        return storage_bytes(self.acc_dtype)

    def scores(self, rows: int, narrow: bool) -> GemmShape:
        """Return the GEMM of `rows` queries by the keys. narrow: operands are packed in their own dtype, else in that
        of the sums.
        """
        acc = self.acc_dtype
        return GemmShape(
            rows, self.keys, self.width, 1, self.query_dtype, self.key_dtype if narrow else acc, acc, plain=self.plain,
            left_runs="m" if self.transposed[0] else "k",
        )  # fmt: skip

    def weighed(self, rows: int, narrow: bool, stride: Size = 0) -> GemmShape:
        """Return the GEMM of weights by values. narrow: both have the model's dtypes, and keys come in pairs, padded by
        weights of zero; else they have that of the sums. stride: elements between rows of weights stored in whole
        tiles.
        """
        acc, left, right = self.acc_dtype, self.weights_dtype, self.value_dtype
        if not narrow:
            return GemmShape(rows, self.columns, self.keys, 1, acc, acc, acc, long_epilogue=self.long_epilogue)
        paired = ceil_div(self.keys, PAIR) * PAIR
        long = self.long_epilogue
        return GemmShape(rows, self.columns, paired, 1, left, right, acc, long_epilogue=long, left_stride=stride)


def attention_of(group: AnchoredGroup) -> AttentionShape:
    """Return the shape of an attention group."""
    softmax = group.roles.softmax
    assert softmax is not None
    node = softmax.matmul
    return AttentionShape(
        softmax.heads, softmax.queries, softmax.keys, node.inputs[0].shape[-2 if node.attrs.get("trans_a") else -1],
        group.result.shape[-1], softmax.query.dtype, softmax.key.dtype, group.anchor.inputs[1].dtype,
        group.anchor.inputs[0].dtype, sum_dtype(group.roles), is_plain(group, softmax.query),
        _transposed(softmax, bool(group.anchor.attrs.get("trans_b"))), has_long_epilogue(group),
    )  # fmt: skip


def _transposed(softmax: Softmax, values: bool) -> tuple[bool, bool, bool]:
    trans_a, trans_b = (bool(softmax.matmul.attrs.get(name)) for name in ("trans_a", "trans_b"))
    first, second = (not trans_b, trans_a) if softmax.swapped else (trans_a, not trans_b)
    return first, second, values


@dataclass(frozen=True)
class AttentionPlan:
    """Attention and its schedule, and what follows from both: blocks of queries, tasks and workspace.

    Scores are computed by whole panels of keys. Queries of open size are split into blocks of the scheduled size; the
    last ones of a task overlap, as each size costs much code.
    """

    shape: AttentionShape
    schedule: CpuAttentionSchedule

    @property
    def blocks(self) -> Split:
        """The split of a head's queries."""
        if is_open(self.shape.queries):
            block = self.schedule.block
            return OverlappingSplit(self.shape.queries, ceil_div(self.shape.queries, block), block)
        return Split(self.shape.queries, min(self.shape.queries, self._cuts * self.per_task))

    @property
    def _cuts(self) -> int:
        return -(-self.shape.queries // self.schedule.queries)

    @property
    def per_task(self) -> int:
        """Blocks per task."""
        if is_open(self.shape.queries):
            return max(1, self.schedule.queries // self.schedule.block)
        return split_at_most(-(-self.shape.queries // self._cuts), self.schedule.block).parts

    @property
    def in_place(self) -> int:
        """Queries of a head up to which keys and values are read where they lie: both lie along their elements, and
        the staged queries fit in the place of a panel of keys.
        """
        shape, panel = self.shape, self.columns * storage_bytes(self.first.shape.b_dtype)
        if is_open(shape.width) or is_open(shape.columns) or any(shape.transposed[1:]):
            return 0
        few = min(FEW_QUERIES, self.blocks.largest, panel // shape.item)
        return few if bounds_of(shape.queries)[0] <= few else 0

    @property
    def first(self) -> GemmPlan:
        """The GEMM that computes the scores of the largest block."""
        return self.gemms(self.blocks.largest)[0]

    @property
    def second(self) -> GemmPlan:
        """The GEMM of weights by values, for the largest block."""
        return self.gemms(self.blocks.largest)[1]

    def gemms(self, rows: int) -> tuple[GemmPlan, GemmPlan]:
        """Return both GEMMs of a block of `rows` queries; with a half-float instruction, on narrow operands."""
        scores, weighed = self.schedule.scores, self.schedule.weighed
        first = GemmPlan(self.shape.scores(rows, isinstance(scores, CpuDotGemmSchedule)), scores)
        tiles = isinstance(weighed, CpuTileGemmSchedule)
        stride = _stride(first.panels * first.tile.columns, self.shape.weights_dtype) if tiles else 0
        return first, GemmPlan(self.shape.weighed(rows, isinstance(weighed, CpuDotGemmSchedule), stride), weighed)

    @property
    def parts(self) -> int:
        """Tasks per head."""
        return ceil_div(self.blocks.parts, self.per_task)

    @property
    def tasks(self) -> int:
        return self.shape.heads * self.parts

    @property
    def columns(self) -> int:
        """Keys per panel."""
        return self.first.tile.columns

    @property
    def padded_keys(self) -> int:
        return self.first.panels * self.columns

    @property
    def stride(self) -> int:
        """Elements between rows of scores: an odd number of vectors, so that rows avoid cache-set conflicts."""
        lanes = self.schedule.scores.lanes
        lines = -(-self.padded_keys // lanes)
        return (lines + 1 - lines % 2) * lanes

    @property
    def weights_shape(self) -> tuple[int, Size]:
        """Rows of weights that are narrower than scores, and the elements between them: whole tiles, if an instruction
        reads tiles.
        """
        second = [self.gemms(size)[1] for size, _ in self.blocks.sizes()]
        stride = self.second.shape.left_stride
        return max(plan.shape.m + plan.rows_beyond for plan in second), stride if stride != 0 else self.stride

    @property
    def pieces_bytes(self) -> tuple[int, int, int, int, int, int]:
        """Bytes of the parts of the workspace: scores, factors of the rows, packed keys and values, the GEMMs'
        workspace, and weights if they are narrower than scores.
        """
        rows = self.blocks.largest
        scores, factors = (align(number * self.shape.item) for number in (rows * self.stride, rows))
        keys, values = (
            align(math.prod(plan.packing().shape) * storage_bytes(plan.shape.b_dtype))
            for plan in (self.first, self.second)
        )
        gemms = (plan.scratch_bytes for size, _ in self.blocks.sizes() for plan in self.gemms(size))
        narrow = 0
        if self.narrow_weights:
            narrow = align(math.prod(self.weights_shape) * storage_bytes(self.shape.weights_dtype))
        return scores, factors, keys, values, largest(*gemms), narrow

    @property
    def narrow_weights(self) -> bool:
        """Whether weights are rounded to half floats before they are multiplied."""
        return self.second.dot is not None

    @property
    def shapes_bytes(self) -> int:
        """Bytes of the tile configuration at the end of the workspace."""
        return max(plan.shapes_bytes for plan in self.gemms(self.blocks.largest))

    @property
    def scratch_bytes(self) -> int:
        return sum(self.pieces_bytes) + self.shapes_bytes

    def reasons(self) -> Iterator[str]:
        """Yield why no kernel computes attention as scheduled."""
        if not self.schedule.queries or not self.schedule.block:
            yield f"a task has {self.schedule.queries} queries in blocks of {self.schedule.block}; it has at least one"
            return
        gemms = ("scores", self.schedule.scores), ("weighed", self.schedule.weighed)
        odd = [f"{name}: {reason}" for name, schedule in gemms for reason in task_reasons(schedule)]
        if odd:
            yield from odd
            return
        for name, plan in zip(("scores", "weighed"), self.gemms(self.blocks.largest), strict=True):
            yield from (f"{name}: {reason}" for reason in _gemm_reasons(plan))
        if self.second.multiplies_tiles and self.columns % (TILE_ROWS * PAIR):
            yield f"tiles are of weights of {TILE_ROWS * PAIR} keys; panels of {self.columns} are none of them"


def _stride(elements: Size, dtype: str) -> Size:
    """Return the stride of rows with at least `elements`: an odd number of cache lines, to avoid cache-set
    conflicts.
    """
    line = LINE_BYTES // storage_bytes(dtype)
    lines = ceil_div(elements, line)
    return (lines + 1 - lines % 2) * line


def _gemm_reasons(plan: GemmPlan) -> Iterator[str]:
    yield from plan.reasons()
    if plan.tasks > 1:
        yield f"a block is computed by one task, not by {plan.tasks}"
    if plan.schedule.widen_right:
        yield "packed keys and values are as wide as sums already"
    if plan.schedule.k_outer:
        yield "a block goes through the keys that it sees panel by panel: no reduction is outermost"
