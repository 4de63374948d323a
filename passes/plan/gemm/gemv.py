"""GEMMs with at most eight rows on GPUs: which operand is the large one, how its kernel reads it, and how much shared
memory a block takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.sizes import bounds_of
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.gemm.gemm import AnyGemm, Gemm, OperandLayout
from tilestitch.passes.plan.gemm.tiles import QUAD, GemvTile, OpenGemvTile
from tilestitch.passes.plan.gemm.units import FEW_ROWS
from tilestitch.passes.plan.group import GroupKind
from tilestitch.passes.plan.parts import Roles

WARP, WARPS = 32, 8
"""Threads of a warp, and warps of a block."""
SEGMENT = 8
"""Neighbouring lanes that read one step of the reduction, where the large operand is contiguous along its rows."""
MOST_CHUNK = 512
"""Most steps of the reduction for which the small operand is in shared memory."""
LOAD_BYTES = 16
MOST_LUMPS = 4
"""Most lumps of blockwise-quantised weights that a thread loads concurrently."""
ROWS_AT_A_TIME = (1, 2, 4, FEW_ROWS)
"""Rows at a time, where the number of rows is open."""
COLUMNS = 2
"""Rows of the large operand that a warp reads concurrently, where it is contiguous along k; with gates, a whole
unit.
"""


def has_few_rows(gemm: Gemm) -> bool:
    """Return whether one operand has few enough rows for this kernel. Gates must be columns of the large operand."""
    return (gemm.m if gemm.gated else min(gemm.m, gemm.n)) <= FEW_ROWS


def with_large_right(gemm: AnyGemm) -> AnyGemm:
    """Return the same GEMM with the large operand as b."""
    return _packed_along_k(gemm.swapped() if gemm.m > gemm.n and not gemm.gated else gemm)


def seen_by(gemm: AnyGemm, tile: GemvTile) -> AnyGemm:
    """Return the GEMM as seen by the kernel of a tile."""
    return _packed_along_k(gemm) if isinstance(tile, OpenGemvTile) else with_large_right(gemm)


def rows_of(gemm: Gemm, tile: GemvTile) -> int:
    """Return the rows that a block computes of a GEMM whose large operand is b."""
    return tile.bm if isinstance(tile, OpenGemvTile) else gemm.m


def open_gemv_tile(gemm: Gemm, rows: int) -> OpenGemvTile:
    """Return the tile for an open number of rows, `rows` at a time, of a GEMM whose right operand is the large one."""
    tile = gemv_tile(_packed_along_k(gemm))
    return OpenGemvTile(rows, tile.bn, tile.bk, tile.along_k, tile.threads)


def _packed_along_k(gemm: AnyGemm) -> AnyGemm:
    if gemm.b.codes is None and gemm.b.contiguous == "row" and SEGMENT * gemm.b.vector() % gemm.units.period:
        # It counts as packed along k within its units, although there is only one step.
        gemm = replace(gemm, b=replace(gemm.b, contiguous="k", run=1))
    return gemm


def load_width(operand: OperandLayout) -> int:
    """Return the elements of one load along k: 16 bytes, or one element."""
    width = operand.vector()
    return width if width * storage_bytes(operand.dtype) == LOAD_BYTES else 1


def warp_columns(gemm: Gemm) -> int:
    """Return the rows of the large operand that a warp takes, where it is contiguous along k."""
    return COLUMNS if gemm.gated is None else gemm.gated.gates


def sharing_lanes(gemm: Gemm, tile: GemvTile) -> int:
    """Return the lanes that share the steps of a row of the large operand, where it is contiguous along k."""
    return WARP * WARPS * warp_columns(gemm) // tile.bn


@dataclass(frozen=True)
class SmallRows:
    """The layout of `chunk` steps of each row of the small operand in shared memory, of which a lane reads `width`
    together, and `lanes` lanes those of one round.

    A lane that reads more than a quad does so quad by quad. All first quads of the lanes form one plane, all second
    ones the next, `planes` in all: lanes read neighbouring quads without bank conflicts. Planes are padded, so that
    writes of neighbours do not conflict either. With one plane elements lie in order. gap: words between rows, which
    avoid conflicts of neighbouring rows that are written together where the operand is contiguous along them.
    """

    chunk: int
    width: int = 1
    planes: int = 1
    gap: int = 0
    lanes: int = WARP

    @staticmethod
    def of(gemm: Gemm, tile: GemvTile) -> SmallRows:
        """Return the layout for a GEMM whose large operand is b."""
        words = storage_bytes(gemm.acc_dtype) == 4
        gap = QUAD if words and gemm.a.contiguous == "row" else 0
        if not tile.along_k:
            return SmallRows(tile.bk, gap=gap)
        width, lanes = load_width(gemm.b), sharing_lanes(gemm, tile)
        planes = max(1, width // QUAD) if words and lanes * QUAD >= WARP else 1
        return SmallRows(tile.bk, width, planes, gap, lanes)

    @property
    def row(self) -> int:
        """Elements from one row to the next."""
        planes = self.chunk // (self.lanes * QUAD) * (WARP // self.planes) if self.planes > 1 else 0
        return self.chunk + planes + self.gap

    def at(self, row: Any, k: Any) -> Any:
        """Return the position of an element."""
        if self.planes == 1:
            return row * self.row + k
        return self.of_lane(row, k // (self.lanes * self.width), k // self.width % self.lanes, k % self.width)

    def of_lane(self, row: Any, round_: Any, lane: Any, neighbour: Any) -> Any:
        """Return the position of the element that a lane reads as its `neighbour`-th in a round."""
        if self.planes == 1:
            return row * self.row + (round_ * self.lanes + lane) * self.width + neighbour
        plane = self.lanes * QUAD + WARP // self.planes
        within = (round_ * self.planes + neighbour // QUAD) * plane + lane * QUAD + neighbour % QUAD
        return row * self.row + within


def gemv_tile(gemm: Gemm) -> GemvTile:
    """Return the tile of a GEMM whose large operand is b."""
    large = gemm.b
    if large.codes is not None:
        steps = WARPS * large.codes.lump
        return GemvTile(FEW_ROWS, WARP, min(MOST_LUMPS * steps, -(-max(1, gemm.k) // steps) * steps), False)
    along_k = large.contiguous == "k"
    lanes = _lanes(gemm) if along_k else WARP
    columns = WARP // lanes * WARPS * warp_columns(gemm) if along_k else SEGMENT * large.vector()
    steps = lanes * load_width(large) if along_k else WARP * WARPS // SEGMENT
    chunk = min(MOST_CHUNK, -(-max(1, gemm.k) // steps) * steps)
    return GemvTile(FEW_ROWS, columns, chunk, along_k, WARP * WARPS)


def _lanes(gemm: Gemm) -> int:
    """Return the fewest lanes of a warp that read a row of the large operand in one round, if rows are so short: the
    others read further rows. A block has no more rows than there are.
    """
    lanes, columns = WARP, WARPS * warp_columns(gemm)
    while lanes > 1 and gemm.k <= lanes // 2 * load_width(gemm.b) and 2 * columns <= bounds_of(gemm.n)[0]:
        lanes, columns = lanes // 2, columns * 2
    return lanes


def few_rows_of(roles: Roles) -> int | None:
    """Return the rows of a GEMM that is computed column by column, or the columns of one computed row by row."""
    anchor = roles.anchor
    if roles.kind is not GroupKind.CONTRACTION or anchor is None or anchor.op != "matmul":
        return None
    *batch, rows, columns = anchor.output.shape
    if prod(anchor.inputs[1].shape[:-2]) == 1:
        rows *= prod(batch)
    fewest = rows if roles.gate_width is not None else min(rows, columns)
    return fewest if fewest <= FEW_ROWS else None


def most_shared_bytes(roles: Roles, rows: int) -> int:
    """Return an upper bound of the shared memory of such a GEMM's block: a chunk of the small operand, or the sums of
    all warps if larger.

    A chunk is whole rounds of loads, whose width depends on the layout of the large operand.
    """
    assert roles.anchor is not None
    left, right = roles.anchor.inputs
    steps = left.shape[-2 if roles.anchor.attrs.get("trans_a") else -1]
    lanes = LOAD_BYTES // min(_itemsize(left), _itemsize(right))
    least, most = (min(MOST_CHUNK, -(-max(1, steps) // unit) * unit) for unit in (WARP, WARP * lanes))
    sums = WARPS * SEGMENT * lanes
    return rows * (most + (sums if sums > least else 0)) * max(4, _itemsize(roles.anchor.output))


def _itemsize(value: Value) -> int:
    return max(1, value.tensor_type.nbytes // max(1, value.tensor_type.num_elements))
