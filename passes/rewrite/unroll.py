"""Unrolling of loops and scans with few iterations, so that fusion sees their nodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilestitch.compiler.ir import Graph, Node, Value, kind_of
from tilestitch.compiler.ir.ops import Kind
from tilestitch.passes.contract import PassContext, PassResult

from .driver import emit_like, is_sized, reshaped, splat
from .inlining import Inlining, found_sizes, knows_sizes_of, settle

MOST_NODES = 32
"""Most nodes of all iterations together. Unrolling cuts the time of small recurrences to between a third and three
quarters, as the start of a loop dominates; larger ones gain less, and take seconds more to compile, as
`benchmarks/unrolled.py` finds.
"""


@dataclass(frozen=True)
class Unroll:
    """Rewrite loop(n, body) and scan(…, body) to n copies of a small body of primitives whose states keep their types.

    On CPUs only: on GPUs, a known number of iterations is a sequence of launches within one device step already.
    """

    name: ClassVar[str] = "unroll"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        count = 0
        for node in () if context.target.is_gpu else graph.nodes:
            turns = _turns_of(graph, node)
            if turns is not None:
                settle(graph, {}, node.attrs["body"].claims)
                graph.replace(node, turns.results())
                count += 1
        return PassResult.counted(graph, count, "unrolled")


@dataclass(frozen=True)
class _Turns:
    """A loop or scan with a known number of iterations: its operands and collected results, each with an axis and a
    direction.
    """

    graph: Graph
    node: Node
    count: int
    states: Sequence[Value]
    scanned: Sequence[tuple[Value, int, bool]]
    captured: Sequence[Value]
    collected: Sequence[tuple[int, bool]]

    def results(self) -> list[Value]:
        """Return the last states and what all iterations collect."""
        is_loop, body = self.node.op == "loop", Inlining(self.graph, self.node, self.node.attrs["body"])
        states, rows = list(self.states), list[list[Value]]()
        for turn in range(self.count):
            elements = [self._element(value, axis, turn, back) for value, axis, back in self.scanned]
            head = [self._constant(np.int64(turn), "turn"), self._constant(np.True_, "again")] if is_loop else []
            results = body.turn([*head, *states, *elements, *self.captured])[1 if is_loop else 0 :]
            states = results[: len(states)]
            rows.append(results[len(states) :])
        columns = zip(*rows, strict=True)
        stacks = [self._stack(column, *place) for column, place in zip(columns, self.collected, strict=True)]
        return [*states, *stacks]

    def fits(self) -> bool:
        """Return whether all iterations are alike, few and small, and their results have the types promised to
        readers.
        """
        body, first = self.node.attrs["body"], 1 if self.node.op == "loop" else 0
        results, carried = body.outputs[first:], len(self.states)
        states, rows = results[:carried], results[carried:]
        formal = body.inputs[2 * first : 2 * first + carried]
        same = all(a.type == b.type == c.type for a, b, c in zip(self.states, formal, states, strict=True))
        alike = same and all(is_sized(value) for value in rows) and knows_sizes_of(self.node.inputs, body)
        if not alike or not _is_small(body, self.count):
            return False
        axes = (axis for axis, _ in self.collected)
        stacks = [
            value.tensor_type.with_shape(self._stacked(value, axis)) for value, axis in zip(rows, axes, strict=True)
        ]
        return found_sizes(self.graph, self.node, [*(value.type for value in states), *stacks]) == {}

    def _element(self, value: Value, axis: int, turn: int, backwards: bool) -> Value:
        place, shape = self.count - 1 - turn if backwards else turn, value.shape
        starts = tuple(place if a == axis else 0 for a in range(len(shape)))
        sizes = (*shape[:axis], 1, *shape[axis + 1 :])
        part = emit_like(self.graph, self.node, "slice", value, starts=starts, steps=(1,) * len(shape), sizes=sizes)
        return reshaped(self.graph, self.node, part, (*shape[:axis], *shape[axis + 1 :]))

    def _stack(self, values: Sequence[Value], axis: int, backwards: bool) -> Value:
        shape = (*values[0].shape[:axis], 1, *values[0].shape[axis:])
        rows = [reshaped(self.graph, self.node, value, shape) for value in values]
        return emit_like(self.graph, self.node, "concat", *(rows[::-1] if backwards else rows), axis=axis)

    def _stacked(self, value: Value, axis: int) -> tuple[int, ...]:
        return (*value.shape[:axis], self.count, *value.shape[axis:])

    def _constant(self, number: np.generic, name: str) -> Value:
        return self.graph.constant(np.asarray(number), name=name)


def _is_small(body: Graph, turns: int) -> bool:
    primitives = all(kind_of(node.op) not in (Kind.HOST, Kind.CONTROL) for node in body.nodes)
    return primitives and not body.symbols and turns * len(body) <= MOST_NODES


def _turns_of(graph: Graph, node: Node) -> _Turns | None:
    """Return the iterations of a loop or scan to unroll; None for others."""
    turns = _of_loop(graph, node) if node.op == "loop" else _of_scan(graph, node) if node.op == "scan" else None
    return turns if turns is not None and turns.fits() else None


def _of_loop(graph: Graph, node: Node) -> _Turns | None:
    trips, condition, *operands = node.inputs
    body, carried, most = node.attrs["body"], node.attrs["num_carried"], splat(trips)
    absent = condition.producer is not None and condition.producer.op == "host.none"
    goes_on = body.outputs[0] is body.inputs[1] or splat(body.outputs[0]) is True
    if most is None or most < 2 or not goes_on or not (absent or splat(condition) is True):
        return None
    collected = [(0, False)] * (len(node.outputs) - carried)
    return _Turns(graph, node, int(most), operands[:carried], (), operands[carried:], collected)


def _of_scan(graph: Graph, node: Node) -> _Turns | None:
    attrs, state = node.attrs, node.attrs["num_state"]
    values = node.inputs[state : state + attrs["num_scanned"]]
    scanned = list(zip(values, attrs["input_axes"], attrs["input_reverse"], strict=True))
    counts = {value.shape[axis] if is_sized(value) else None for value, axis, _ in scanned}
    count = counts.pop() if len(counts) == 1 else None
    if not isinstance(count, int) or count < 2:
        return None
    collected = list(zip(attrs["output_axes"], attrs["output_reverse"], strict=True))
    return _Turns(graph, node, count, node.inputs[:state], scanned, node.inputs[state + len(scanned) :], collected)
