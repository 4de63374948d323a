"""Operands that are views of an input: transposed, sliced or reshaped tensors are read in place."""

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilestitch.compiler.ir import Kind, Node, Value, kind_of
from tilestitch.compiler.ir.sizes import divisor_of, surely


@dataclass(frozen=True)
class Strided:
    """A tensor of `shape` within the memory of `root`, an input: `strides` and `offset` count elements."""

    root: Value
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def position(self, index: tuple[Any, ...]) -> Any:
        """Return the position of an element in the root's flat buffer."""
        position: Any = self.offset
        for i, size, stride in zip(index, self.shape, self.strides, strict=True):
            if size != 1 and stride:
                term = i if stride == 1 else i * stride
                position = term if isinstance(position, int) and position == 0 else position + term
        return position

    def runs_along(self, axis: int) -> bool:
        """Return whether neighbours along an axis are contiguous in memory."""
        return self.strides[axis] == 1 and not surely(lambda: self.shape[axis] <= 1)

    def run(self, axis: int, extent: int) -> int:
        """Return the length of contiguous, aligned runs of elements along an axis.

        extent: how much of the axis belongs together (the channels of a group, say).
        """
        if not self.runs_along(axis):
            return 1
        axis %= len(self.shape)
        others = [s for i, (d, s) in enumerate(zip(self.shape, self.strides, strict=True)) if i != axis and d != 1]
        return math.gcd(*map(divisor_of, (extent, self.offset, *others)))

    @property
    def is_whole(self) -> bool:
        """Whether the tensor is its whole root in row-major order."""
        return self.offset == 0 and self.strides == row_major(self.shape)


def strided(nodes: Iterable[Node], inputs: Collection[Value], value: Value) -> Strided | None:
    """Return the strided layout of an operand within an input of its group; None if a prologue computes it, or it has
    no strides.
    """
    views: list[Node] = []
    members = {v: node for node in nodes for v in node.outputs}
    while value not in inputs:
        node = members.get(value)
        if node is None or kind_of(node.op) is not Kind.VIEW:
            return None
        views.append(node)
        value = node.inputs[0]
    layout = Strided(value, value.shape, row_major(value.shape))
    for view in reversed(views):
        seen = _seen(layout, view)
        if seen is None:
            return None
        layout = seen
    return replace(layout, offset=0) if value.tensor_type.always_empty else layout


def _seen(layout: Strided, view: Node) -> Strided | None:
    """Return the layout of a view of a tensor with `layout`."""
    attrs, shape, strides = view.attrs, layout.shape, layout.strides
    if view.op == "transpose":
        turned = [(shape[d], strides[d]) for d in attrs["perm"]]
        return replace(layout, shape=tuple(d for d, _ in turned), strides=tuple(s for _, s in turned))
    if view.op == "broadcast_to":
        wide = view.output.shape
        own = zip((1,) * (len(wide) - len(shape)) + shape, (0,) * (len(wide) - len(shape)) + strides, wide, strict=True)
        return replace(layout, shape=wide, strides=tuple(s if d == w else 0 for d, s, w in own))
    if view.op == "slice":
        if view.output.tensor_type.always_empty:
            return None
        # A step may be negative; an axis of one element may name any step.
        offset = sum((start * s for start, s in zip(attrs["starts"], strides, strict=True)), layout.offset)
        stepped = tuple(s * step for s, step in zip(strides, attrs["steps"], strict=True))
        return replace(layout, shape=view.output.shape, strides=stepped, offset=offset)
    if view.op == "reshape":
        reshaped = _reshaped(shape, strides, view.output.shape)
        return None if reshaped is None else replace(layout, shape=view.output.shape, strides=reshaped)
    return None


def _reshaped(shape: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> tuple[int, ...] | None:
    """Return the strides of a tensor in another shape; None if it would have to be copied.

    Runs of dimensions map to runs with as many elements, each of which must be evenly strided.
    """
    if math.prod(shape) == 0:
        return row_major(target)
    left = [(d, s) for d, s in zip(shape, strides, strict=True) if d != 1]
    wanted = [d for d in target if d != 1]
    found: list[int] = []
    while wanted:
        pair = next(
            (
                (a, b)
                for a, b in itertools.product(range(1, len(left) + 1), range(1, len(wanted) + 1))
                if math.prod(d for d, _ in left[:a]) == math.prod(wanted[:b])
            ),
            None,
        )
        if pair is None or any(s != inner * d for (_, s), (d, inner) in itertools.pairwise(left[: pair[0]])):
            return None
        last = left[pair[0] - 1][1]
        found += (last * each for each in row_major(wanted[: pair[1]]))
        left, wanted = left[pair[0] :], wanted[pair[1] :]
    result: list[int] = []
    for i in reversed(range(len(target))):
        if target[i] != 1:
            result.insert(0, found.pop())
        else:  # as numpy has it
            result.insert(0, result[0] * target[i + 1] if result else found[-1] if found else 1)
    return tuple(result)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the row-major strides of `shape`, in elements."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
