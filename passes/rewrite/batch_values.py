"""Values of a loop's body for all iterations at once, and the emission of nodes that compute them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.compiler.ir.sizes import Size, at, is_open

from .runs import Run


class NotBatchable(Exception):
    """Raised where a node of a body cannot be computed for all iterations at once."""


class BatchValues:
    """Values of the body of a loop over ``count`` iterations, each in one of these forms:

    * shared: one value for all iterations;
    * batched: the values of all iterations, along an additional leading dimension;
    * sequences: a small integer that is a linear function of the iteration's number.
    """

    def __init__(self, graph: Graph, loop: Node, count: Size) -> None:
        self.graph, self.loop, self.count = graph, loop, count
        number, condition, *captured = loop.attrs["body"].inputs
        self.shared: dict[Value, Value] = dict(zip(captured, loop.inputs[2:], strict=True))
        self.shared[condition] = graph.constant(np.ones(condition.shape, np.bool_))  # given or not, it is true
        self.batched: dict[Value, Value] = {}
        self.number = Run(0, 0 if count == 1 else 1)
        self.sequences: dict[Value, Run] = {number: self.number}
        self.ranges: dict[Value, tuple[Run, int]] = {}
        """Consecutive integers in each iteration: the first ones, and how many. Their values are among `batched`."""
        self.sizes: dict[str, Size] = {}
        """Sizes that the body finds in its data, by the names of their symbols."""
        self.added: list[Node] = []

    def add(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        """Emit a node before the loop."""
        node = self.graph.add(op, inputs, attrs, origins=self.loop.origins, insert_before=self.loop)
        self.added.append(node)
        return node.output

    def remove_added(self) -> None:
        for node in reversed(self.added):
            self.graph.remove(node)

    def is_shared(self, value: Value) -> bool:
        return value not in self.sequences and value not in self.batched

    def shared_of(self, value: Value) -> Value | None:
        """Return a value shared by all iterations; None for others."""
        if value.data is not None:
            return self.shared.setdefault(value, self.graph.constant(value.data, name=value.name))
        return self.shared.get(value)

    def batch_of(self, value: Value) -> Value:
        """Return a value of the body for all iterations, which are its first dimension."""
        if value in self.sequences:
            return self.integers(self.sequences[value], value)
        if value in self.batched:
            return self.batched[value]
        shared = self.shared_of(value)
        if shared is None:
            raise NotBatchable
        return self.add("broadcast_to", shared, shape=(self.count, *shared.shape))

    def aligned(self, value: Value, rank: int) -> Value:
        """Return an operand of an element-wise operator whose result has rank `rank` in each iteration."""
        shared = self.shared_of(value) if self.is_shared(value) else None
        if shared is not None:
            return shared
        batch = self.batch_of(value)
        missing = rank - (len(batch.shape) - 1)
        return self.add("reshape", batch, shape=(self.count, *(1,) * missing, *batch.shape[1:])) if missing else batch

    def integers(self, sequence: Run, like: Value) -> Value:
        """Return a sequence as integers with the dtype and shape of `like` each."""
        numbers = self.add("iota", shape=(self.count,), axis=0, dtype=like.dtype)
        factor = self.graph.constant(np.asarray(sequence.slope), like.dtype)
        scaled = numbers if sequence.slope == 1 else self.add("mul", numbers, factor)
        first = (
            self.add("sizes", values=(sequence.first,), shape=(), dtype=like.dtype)
            if is_open(sequence.first)
            else self.graph.constant(np.asarray(sequence.first), like.dtype)
        )
        moved = scaled if sequence.first == 0 else self.add("add", scaled, first)
        return self.add("reshape", moved, shape=(self.count, *like.shape)) if like.shape else moved

    def batched_shape(self, shape: Sequence[Size]) -> tuple[Size, ...]:
        """Return a shape of the body for all iterations, with the sizes that the body finds."""
        return (self.count, *(at(size, self.sizes) for size in shape))

    def rename(self, name: Value, value: Value) -> None:
        """Give a value another name, as inputs and outputs of a branch have."""
        if value in self.sequences:
            self.sequences[name] = self.sequences[value]
        elif value in self.batched:
            self.batched[name] = self.batched[value]
        elif (shared := self.shared_of(value)) is not None:
            self.shared[name] = shared
