"""The data that roles consist of: parts of nodes, the rows of a row-wise group, the softmax of an attention group."""

from dataclasses import dataclass
from enum import Enum
from math import prod

from tilestitch.compiler.ir import Node, Value

from .group import GroupKind

MATMULS = ("matmul", "block_matmul")
"""Anchors whose results are rows of the left operand by columns of the right one."""
ARG_REDUCTIONS = frozenset({"arg_max", "arg_min"})
"""Reductions whose results are places."""
MOST_GATES = 8
"""Most gates of a GEMM on GPUs, where a thread holds the sums of all gates of a column."""


class Part(str, Enum):
    """The role of a node in its group; see `tilestitch.passes.plan`."""

    PULLED = "pulled"
    ANCHOR = "anchor"
    EPILOGUE = "epilogue"
    GATE = "gate"
    GATED = "gated"
    VIEW = "view"
    REDUCTION = "reduction"
    REDUCED = "reduced"
    FULL = "full"
    SCORES = "scores"
    SCORED = "scored"
    SOFTMAX = "softmax"
    WEIGHED = "weighed"


@dataclass(frozen=True)
class RowSpace:
    """The iteration shape of a row-wise group and the axes it reduces (ascending)."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """The reduced shape with size 1 in place of reduced axes."""
        return tuple(1 if i in self.axes else d for i, d in enumerate(self.shape))

    @property
    def dropped(self) -> tuple[int, ...]:
        """The reduced shape without the reduced axes."""
        return tuple(d for i, d in enumerate(self.shape) if i not in self.axes)

    @property
    def count(self) -> int:
        """Number of rows."""
        return prod(self.dropped)

    @property
    def length(self) -> int:
        """Elements per row."""
        return prod(self.shape[a] for a in self.axes)

    @property
    def trailing(self) -> bool:
        """Whether rows extend along the last dimensions."""
        return self.axes == tuple(range(len(self.shape) - len(self.axes), len(self.shape)))

    @property
    def across(self) -> bool:
        """Whether neighbouring elements in memory belong to neighbouring rows."""
        wide = [d for d, size in enumerate(self.shape) if size != 1]
        return bool(wide) and wide[-1] not in self.axes

    @property
    def axes_lead(self) -> bool:
        """Whether a value without the reduced axes broadcasts to `shape` under numpy's rules."""
        return self.axes == tuple(range(len(self.axes)))


@dataclass(frozen=True)
class Softmax:
    """The softmax of an attention group: `weights = softmax(scores)`, rows of `keys`, for `heads` times `queries` rows.

    Values that depend on the scores hold [heads, queries, keys] in row-major order, whatever their shapes. matmul: the
    node that multiplies queries and keys; swapped: its first operand holds the keys (of one query). flaws: values that
    tell where a weight is NaN, which affects whole rows only. dead: values that tell in which rows all scores are -inf.
    """

    matmul: Node
    swapped: bool
    heads: int
    queries: int
    keys: int
    scores: Value
    weights: Value
    flaws: tuple[Value, ...]
    dead: tuple[Value, ...]

    @property
    def query(self) -> Value:
        return self.matmul.inputs[1 if self.swapped else 0]

    @property
    def key(self) -> Value:
        return self.matmul.inputs[0 if self.swapped else 1]


@dataclass(frozen=True)
class Roles:
    """A legal group: its kind, its anchor, the part of every node (in order), and data specific to some kinds.

    rows: of a row-wise group; softmax: of an attention group.
    """

    kind: GroupKind
    anchor: Node | None
    parts: dict[Node, Part]
    rows: RowSpace | None = None
    softmax: Softmax | None = None

    @property
    def gate_width(self) -> int | None:
        """Columns of a gate in a contraction group with gates; None without gates."""
        return next((n.output.shape[-1] for n, part in self.parts.items() if part is Part.GATE), None)

    @property
    def looks_again(self) -> bool:
        """Whether elements of a row are needed again, or stored, beyond their reductions."""
        return Part.FULL in self.parts.values()

    @property
    def viewed(self) -> dict[Value, Value]:
        """Maps each view of a result to the value whose elements it has."""
        found: dict[Value, Value] = {}
        for node, part in self.parts.items():
            if part is Part.VIEW:
                found[node.output] = found.get(node.inputs[0], node.inputs[0])
        return found


class Illegal(Exception):
    def __init__(self, rule: str, reason: str, **numbers: int) -> None:
        super().__init__(reason)
        self.rule, self.reason, self.numbers = rule, reason, numbers
