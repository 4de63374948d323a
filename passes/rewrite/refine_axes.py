"""Reductions and dependent element-wise work are rewritten to one set of axes, fine enough for all their shapes.

GroupNorm as exported normalises [N, G, C/G*H*W] and then scales [N, C, H, W]. In [N, G, C/G, H, W] both have the same
rows: no reshape lies between, and they fuse.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from tilestitch.compiler.ir import Graph, Kind, Node, Value, is_elementwise, kind_of
from tilestitch.compiler.ir.errors import UndecidedError
from tilestitch.compiler.ir.sizes import Size
from tilestitch.passes.contract import PassContext, PassResult

from .driver import elements, emit_like, is_sized, reshaped

REDUCTIONS = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and")
ANCHORS = ("window_reduce", "conv", "conv_transpose", "matmul")


@dataclass(frozen=True)
class RefineAxes:
    """Where a reshape lies between reductions and element-wise work on their rows, move all of it to axes from which
    both shapes are merged. Operands and results used elsewhere are reshaped, which moves no data.
    """

    name: ClassVar[str] = "refine_axes"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        settled: set[Node] = set()
        position = {node: number for number, node in enumerate(graph.nodes)}
        count = 0
        for node in position:
            if node in settled or not _reduces(node):
                continue
            try:
                region = _Region(node, position)
            except UndecidedError:  # its axes divide each other only at some sizes
                continue
            settled.update(region.nodes)
            if region.has_inner_reshape:
                _Refined(graph, region).rebuild()
                count += 1
        return PassResult.counted(graph, count, "rows in common axes")


def _reduces(node: Node) -> bool:
    if node.op not in REDUCTIONS or not is_sized(node.inputs[0]):
        return False
    before, after = elements(node.inputs[0].shape), elements(node.output.shape)
    return before != after and 0 not in (before, after)


def strides_of(shape: Sequence[int]) -> list[int]:
    """Return the row-major strides of each axis, preceded by the number of all elements."""
    strides = [1]
    for size in reversed(shape):
        strides.insert(0, strides[0] * size)
    return strides


def reduced_runs(shape: Sequence[int], axes: Sequence[int]) -> list[tuple[int, int]]:
    """Return what a reduction reduces, independent of the shape: (stride, end) of axes, neighbours merged, beginning
    with the last axis.
    """
    strides = strides_of(shape)
    runs: list[tuple[int, int]] = []
    for axis in sorted(axes, reverse=True):
        run = strides[axis + 1], strides[axis]
        if shape[axis] == 1:
            continue
        if runs and runs[-1][1] == run[0]:
            runs[-1] = runs[-1][0], run[1]
        else:
            runs.append(run)
    return runs


def _chain(sizes: Iterable[Size]) -> list[Size] | None:
    """Return distinct sizes ordered so that each divides the next; None if there is no such order."""
    left, ordered = list(dict.fromkeys(sizes)), list[Size]()
    while left:
        least = next((size for size in left if all(other % size == 0 for other in left)), None)
        if least is None:
            return None
        ordered.append(least)
        left.remove(least)
    return ordered


class _Region:
    """Reductions over the same elements, and the element-wise work that depends on them, in any shapes.

    Each of its values is either full, with all elements, or reduced, with one per row. `marks`: the strides of all
    axes, ascending, and the number of elements; each divides the next.
    """

    def __init__(self, first: Node, position: Mapping[Node, int]) -> None:
        self.position, self.start = position, position[first]
        shape = first.inputs[0].shape
        self.count, self.rows = elements(shape), elements(first.output.shape)
        self.folded = reduced_runs(shape, first.attrs["axes"])
        self.marks = _chain(strides_of(shape)) or []
        # A batch of one stays an axis, so that transposes which keep it in place still do.
        self.lead = next(axis for axis, size in enumerate(shape) if size != 1)
        self.nodes: dict[Node, None] = {}
        self._grow(first)

    def _grow(self, first: Node) -> None:
        stack = [first]
        while stack:
            node = stack.pop()
            if node in self.nodes or not self._takes(node):
                continue
            self.nodes[node] = None
            if node.op not in REDUCTIONS:
                stack += [r for v in node.inputs for r in self._reductions_before(v)]
            stack += node.output.users

    def _reductions_before(self, value: Value) -> list[Node]:
        """Return the reductions that a value depends on through element-wise work on rows."""
        found: list[Node] = []
        stack, seen = [value], set[Value]()
        while stack:
            value = stack.pop()
            node = value.producer
            if node is None or value in seen or not is_sized(value) or elements(value.shape) != self.rows:
                continue
            seen.add(value)
            if _reduces(node):
                found.append(node)
            elif is_elementwise(node.op) or node.op == "reshape":
                stack += node.inputs
        return found

    def _takes(self, node: Node) -> bool:
        """Return whether a node belongs to the region; if so, its shape's strides are added to the marks."""
        if not all(map(is_sized, (*node.inputs, *node.outputs))):
            return False
        if node.op in REDUCTIONS:
            shape = node.inputs[0].shape
            same = elements(shape) == self.count and reduced_runs(shape, node.attrs["axes"]) == self.folded
            return same and self._refine(strides_of(shape))
        if not is_elementwise(node.op) and node.op not in ("reshape", "broadcast_to"):
            return False
        count = elements(node.output.shape)
        if count == self.count:
            return not self._is_epilogue(node) and self._refine(strides_of(node.output.shape))
        if count != self.rows or node.op == "broadcast_to":
            return False
        return set(strides_of(node.output.shape)) <= set(strides_of(self.kept_sizes))

    def _refine(self, strides: Sequence[int]) -> bool:
        marks = _chain((*self.marks, *strides))
        self.marks = marks or self.marks
        return marks is not None

    def _is_epilogue(self, node: Node) -> bool:
        """Return whether `node` can be an epilogue of a contraction or pooling."""
        stack = [v for v in node.inputs if elements(v.shape) == self.count and v.producer not in self.nodes]
        seen: set[Node] = set()
        while stack:
            made = stack.pop().producer
            if made is None or made in seen or self.position.get(made, -1) < self.start:
                continue
            seen.add(made)
            if made.op in ANCHORS:
                return True
            if is_elementwise(made.op) or kind_of(made.op) is Kind.VIEW:
                stack += made.inputs
        return False

    @property
    def sizes(self) -> list[int]:
        """The common axes that all shapes are merged from."""
        return [1] * self.lead + [high // low for low, high in pairwise(self.marks)][::-1]

    @property
    def folds(self) -> list[bool]:
        """Which of these axes are reduced."""
        place = self.marks.index
        runs = [range(place(low), place(high)) for low, high in self.folded]
        return [any(place(stride) in run for run in runs) for stride in strides_of(self.sizes)[1:]]

    @property
    def kept_sizes(self) -> list[int]:
        return [size for size, folded in zip(self.sizes, self.folds, strict=True) if not folded]

    @property
    def has_inner_reshape(self) -> bool:
        """Whether there is work on full values on both sides of a reshape."""
        return any(
            node.op == "reshape" and elements(node.output.shape) == self.count and node.inputs[0].producer in self.nodes
            and any(user in self.nodes and user.op != "reshape" for user in node.output.users)
            for node in self.nodes
        )  # fmt: skip


class _Refined:
    """Rewrites a region to its common axes: full values have their sizes, reduced ones 1 in place of reduced axes."""

    def __init__(self, graph: Graph, region: _Region) -> None:
        self.graph, self.region = graph, region
        self.sizes, self.folds = region.sizes, region.folds
        kept = iter(strides_of(region.kept_sizes)[1:])
        self.strides = strides_of(self.sizes)[1:]
        self.row_strides = [0 if folded else next(kept) for folded in self.folds]
        self.values: dict[Value, Value] = {}
        self.views: dict[tuple[Value, tuple[int, ...]], Value] = {}

    def rebuild(self) -> None:
        members = [n for n in self.graph.nodes if n in self.region.nodes]
        for node in members:
            self.values[node.output] = self._computed(node)
        for node in members:
            old = node.output
            if self.graph.is_output(old) or any(user not in self.region.nodes for user in old.users):
                self.graph.replace_uses(old, reshaped(self.graph, node, self.values[old], old.shape))
        for node in reversed(members):
            self.graph.remove(node)

    def _computed(self, node: Node) -> Value:
        if node.op in REDUCTIONS:
            axes = tuple(axis for axis, folded in enumerate(self.folds) if folded)
            return emit_like(self.graph, node, node.op, self._operand(node, node.inputs[0]), axes=axes, keepdims=True)
        if node.op == "reshape":
            value = self.values[node.inputs[0]]
            assert value.producer is not None
            value.producer.origins = tuple(dict.fromkeys((*value.producer.origins, *node.origins)))
            return value
        operands = [self._operand(node, v) for v in node.inputs]
        attrs = {**node.attrs, "shape": tuple(self.sizes)} if node.op == "broadcast_to" else node.attrs
        return emit_like(self.graph, node, node.op, *operands, **attrs)

    def _operand(self, node: Node, value: Value) -> Value:
        """Return an operand of `node` in the common axes."""
        walked = node.inputs[0].shape if node.op in REDUCTIONS else node.output.shape
        source, shape = self.values.get(value, value), self._shape_of(value.shape, walked)
        if (source, shape) not in self.views:
            self.views[source, shape] = reshaped(self.graph, node, source, shape)
        return self.views[source, shape]

    def _shape_of(self, shape: Sequence[int], walked: Sequence[int]) -> tuple[int, ...]:
        """Return the shape, in the common axes, of a value with `shape` that broadcasts to `walked`, which is full or
        reduced.
        """
        strides = self.strides if elements(walked) == self.region.count else self.row_strides
        padded = (1,) * (len(walked) - len(shape)) + tuple(shape)
        spans = zip(pairwise(strides_of(walked)), padded, strict=True)
        varies = [(low, high) for (high, low), size in spans if size != 1]
        return tuple(
            size if any(_lies_in(stride, low, high) for low, high in varies) else 1
            for size, stride in zip(self.sizes, strides, strict=True)
        )


def _lies_in(stride: Size, low: Size, high: Size) -> bool:
    """Return whether a stride is at least `low` and less than `high`, where each divides the next. For open sizes
    divisibility is known, but often not the order.
    """
    return stride != 0 and stride != high and stride % low == 0 and high % stride == 0
