"""An attention group as a kernel sees it: rows of queries, keys and values, and their memory layouts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.indexing import unravel
from tilestitch.compiler.ir.sizes import Size, ceil_div, divisor_of, largest, positive, smallest, surely
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.plan.access.vectors import VECTOR_BYTES, lanes_of, lie_together
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import memory_of, operand_layout
from tilestitch.passes.plan.gemm.gemm import OperandLayout
from tilestitch.passes.plan.parts import Part, Roles, Softmax
from tilestitch.passes.plan.schedules import AttentionSchedule, OpenAttentionSchedule

MERGED_ROWS = 64
"""Query heads that share keys become rows of one tile where they have fewer rows than this in total."""


@dataclass(frozen=True)
class AttentionShape:
    """`batch` times `rows` queries, each with `keys` keys; the rows come from `merged` heads that share keys.

    query: rows are queries, k the width; key: rows are keys, k the width; value: rows are the columns of the result, k
    the keys. weights: the dtype of the weights when values are multiplied by them. acc_dtype: of sums and statistics.
    sources: where queries, keys and values come from.
    """

    softmax: Softmax
    batch: int
    merged: int
    columns: int
    query: OperandLayout
    key: OperandLayout
    value: OperandLayout
    result: Value
    weights: str
    acc_dtype: str
    tf32: bool
    sources: tuple[Source, Source, Source]

    @property
    def rows(self) -> int:
        return self.merged * self.softmax.queries

    @property
    def keys(self) -> int:
        return self.softmax.keys

    @property
    def width(self) -> int:
        """Elements of a query and a key."""
        matmul = self.softmax.matmul
        return matmul.inputs[0].shape[-2 if matmul.attrs.get("trans_a") else -1]

    def tiles(self, schedule: AttentionSchedule) -> Size:
        """Return the number of tiles of queries."""
        return self.batch * ceil_div(self.rows, schedule.tile.bm)

    def parts(self, schedule: AttentionSchedule) -> Size:
        """Return the number of equal parts that the keys are split into (the last ones may be shorter): of known sizes
        at most the scheduled number.
        """
        steps = ceil_div(self.keys, schedule.tile.bn)
        if isinstance(schedule, OpenAttentionSchedule) and schedule.kept_rows:
            kept = schedule.kept_rows // schedule.tile.bm // positive(self.tiles(schedule))
            return largest(1, smallest(kept, steps // schedule.least_steps))
        return 1 if schedule.split_keys == 1 else ceil_div(steps, ceil_div(steps, schedule.split_keys))

    def place(self, batch: Any, row: Any, column: Any) -> tuple[Any, ...]:
        """Return the index of a result."""
        *lead, queries, _ = self.result.shape
        if self.merged == 1:
            return (*unravel(batch, lead), 0 if queries == 1 else row, column)
        return (*unravel(batch * self.rows + row, (*lead, queries)), column)


def attention_of(group: AnchoredGroup) -> AttentionShape:
    """Return the attention shape of a group on a GPU."""
    softmax = group.roles.softmax
    assert softmax is not None
    matmul, anchor = softmax.matmul, group.anchor
    query = Source(group.nodes, softmax.query, matmul.output.shape[:-2])
    key = Source(group.nodes, softmax.key, matmul.output.shape[:-2])
    value = Source(group.nodes, anchor.inputs[1], group.result.shape[:-2])
    shared = math.gcd(divisor_of(key.repeated), divisor_of(value.repeated))
    merged = shared if surely(lambda: shared * softmax.queries <= MERGED_ROWS) else 1

    def layout(source: Source, rows: int, last: str) -> OperandLayout:
        return operand_layout(source.value, memory_of(group, {}, source.value), rows, last)

    columns = group.result.shape[-1]
    return AttentionShape(
        softmax, softmax.heads // merged, merged, columns,
        layout(query, merged * softmax.queries, along(softmax, softmax.swapped)),
        layout(key, softmax.keys, along(softmax, not softmax.swapped)),
        layout(value, columns, "k" if anchor.attrs.get("trans_b") else "row"),
        group.result, anchor.inputs[0].dtype, sum_dtype(group.roles),
        all(n.attrs.get("precision") == "tf32" for n in (matmul, anchor)), (query, key, value),
    )  # fmt: skip


def result_lanes(group: AnchoredGroup, shape: AttentionShape) -> int:
    """Neighbouring results that a thread can store at a time."""
    lanes = lanes_of([*group.read_after(), *group.outputs])
    extents = (shape.batch, shape.rows, shape.columns)

    def together(lanes: int) -> bool:
        return shape.columns % lanes == 0 and lie_together(group.roles, group.outputs, shape.place, extents, lanes)

    while lanes > 1 and not together(lanes):
        lanes //= 2
    return lanes


def lanes_of_sums(shape: AttentionShape) -> int:
    """Return how many sums in temporary memory a 16-byte vector holds."""
    lanes = VECTOR_BYTES // storage_bytes(shape.acc_dtype)
    while shape.columns % lanes:
        lanes //= 2
    return lanes


def along(softmax: Softmax, second: bool) -> str:
    """Return which of "row" and "k" is the last axis of the first matmul's first or second operand."""
    attrs = softmax.matmul.attrs
    if second:
        return "k" if attrs.get("trans_b") else "row"
    return "row" if attrs.get("trans_a") else "k"


def sum_dtype(roles: Roles) -> str:
    """Return the dtype of sums and statistics: float64 where a value of the group is, else float32."""
    assert roles.softmax is not None and roles.anchor is not None
    values = (roles.softmax.matmul.output, roles.softmax.scores, roles.softmax.weights, roles.anchor.output)
    return "float64" if any(v.dtype == "float64" for v in values) else "float32"


class Source:
    """An operand before the reshapes and broadcasts that make a batch of matrices of it."""

    def __init__(self, nodes: Iterable[Node], value: Value, lead: Sequence[int]) -> None:
        self.lead = tuple(lead)
        rank = len(value.shape)
        self.value, self.sizes = value, (1,) * (len(lead) - rank + 2) + value.shape[:-2]
        node = value.producer
        members = set(nodes)
        while (
            node is not None and node in members and node.op == "reshape" and self.sizes == self.lead
            and node.inputs[0].shape[-2:] == self.value.shape[-2:] and len(node.inputs[0].shape) >= 2
        ):  # fmt: skip
            self.value = node.inputs[0]
            self.lead = self.sizes = self.value.shape[:-2]
            node = self.value.producer
        if node is not None and node in members and node.op == "broadcast_to" and self.sizes == self.lead:
            inner = node.inputs[0]
            if inner.shape[-2:] == self.value.shape[-2:]:
                self.value = inner
                self.sizes = (1,) * (len(self.lead) - len(inner.shape) + 2) + inner.shape[:-2]

    @property
    def repeated(self) -> int:
        """Number of neighbouring heads that read the same matrix."""
        count = 1
        for size, extent in zip(reversed(self.sizes), reversed(self.lead), strict=True):
            if size != 1:
                break
            count *= extent
        return count

    def index(self, head: Any, row: Any, column: Any, transposed: bool) -> tuple[Any, ...]:
        """Return the tensor index of the element (row, column) of a head's matrix; if `transposed`, of (column,
        row).
        """
        lead = [0 if d == 1 else i for i, d in zip(unravel(head, self.lead), self.sizes, strict=True)]
        own = lead[len(lead) - len(self.value.shape) + 2 :]
        return (*own, *((column, row) if transposed else (row, column)))


def is_weighed(roles: Roles) -> bool:
    """Return whether a weight depends on more than its score and its row."""
    return any(n.op not in ("cast", "reshape") for n in _weighing(roles))


def of_each_key(roles: Roles) -> list[Node]:
    """Return the nodes that a kernel computes once per key, rather than once per row or result: results are divided by
    the sum of their row, and fully masked rows are repaired as a whole, unless weights differ otherwise.
    """
    softmax, weighing = roles.softmax, _weighing(roles)
    assert softmax is not None
    whole = is_weighed(roles)

    def computed(node: Node) -> bool:
        mends = roles.parts[node] is Part.WEIGHED and node not in weighing
        return node is not softmax.weights.producer and (whole or not mends)

    return [node for node in roles.parts if computed(node)]


def _weighing(roles: Roles) -> list[Node]:
    """Return the nodes applied to weights, except those that repair fully masked rows."""
    assert roles.softmax is not None
    mends = {*roles.softmax.flaws, *roles.softmax.dead}
    weighed = [n for n, part in roles.parts.items() if part is Part.WEIGHED]
    return [n for n in weighed if n.op != "is_nan" and not (n.op == "select" and n.inputs[0] in mends)]
