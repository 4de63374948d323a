"""Operands that are views of an input: transposed, sliced or reshaped tensors are read where they lie."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilestitch.compiler.ir import Kind, Node, Value, kind_of


@dataclass(frozen=True)
class Strided:
    """A tensor of `shape` within the memory of `root`, an input: `strides` and `offset` count elements."""

    root: Value
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def position(self, index: tuple[Any, ...]) -> Any:
        """Where in the root's flat buffer an element lies."""
        position: Any = self.offset
        for i, size, stride in zip(index, self.shape, self.strides, strict=True):
            if size != 1 and stride:
                term = i if stride == 1 else i * stride
                position = term if isinstance(position, int) and position == 0 else position + term
        return position

    def runs_along(self, axis: int) -> bool:
        """Whether neighbours along an axis are neighbours in memory."""
        return self.strides[axis] == 1 and self.shape[axis] > 1

    def run(self, axis: int, extent: int) -> int:
        """So many elements along an axis, from a multiple of that number on, lie together, at a multiple of it.

        extent: how much of the axis belongs together (the channels of a group, say).
        """
        if not self.runs_along(axis):
            return 1
        axis %= len(self.shape)
        others = [s for i, (d, s) in enumerate(zip(self.shape, self.strides, strict=True)) if i != axis and d != 1]
        return math.gcd(extent, self.offset, *others)

    @property
    def is_whole(self) -> bool:
        """Whether the tensor is its root as it lies."""
        return self.offset == 0 and self.strides == row_major(self.shape)


def strided(nodes: Iterable[Node], inputs: Collection[Value], value: Value) -> Strided | None:
    """How an operand lies in an input of its group; None if a prologue computes it, or strides cannot express it."""
    views: list[Node] = []
    members = {v: node for node in nodes for v in node.outputs}
    while value not in inputs:
        node = members.get(value)
        if node is None or kind_of(node.op) is not Kind.VIEW:
            return None
        views.append(node)
        value = node.inputs[0]
    # numpy keeps the books: one byte stands for an element, and no memory is ever read.
    base = np.zeros(1, np.int8)
    array = np.lib.stride_tricks.as_strided(base, value.shape, row_major(value.shape))
    for view in reversed(views):
        seen = _seen(array, view)
        if seen is None:
            return None
        array = seen
    offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0] if array.size else 0
    return Strided(value, array.shape, array.strides, offset)


def _seen(array: np.ndarray, view: Node) -> np.ndarray | None:
    attrs = view.attrs
    if view.op == "transpose":
        return array.transpose(attrs["perm"])
    if view.op == "broadcast_to":
        return np.broadcast_to(array, view.output.shape)
    if view.op == "slice":
        if not view.output.tensor_type.num_elements:
            return None
        # A step may be negative; an axis of one element may name any step.
        lead = array[tuple(slice(start, start + 1) for start in attrs["starts"])]
        strides = tuple(s * step for s, step in zip(array.strides, attrs["steps"], strict=True))
        return np.lib.stride_tricks.as_strided(lead, view.output.shape, strides)
    if view.op == "reshape":
        result = array.view()
        try:
            result.shape = view.output.shape
        except AttributeError:
            return None
        return result
    return None


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements from one index to the next along each axis."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
