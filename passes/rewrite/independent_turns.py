"""Loops with independent iterations ("turns") become batches: every operator computes all iterations at once.

Exporters write sums of embeddings in this form: an iteration per row, which reads the rows of a table between two
offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from tilestitch.compiler.ir import Graph, Node, Value, is_elementwise
from tilestitch.compiler.ir.claims import Claim, because, noting
from tilestitch.compiler.ir.errors import TypeRuleError, UndecidedError
from tilestitch.compiler.ir.sizes import Size, at, bounds_of, is_open, symbols_of
from tilestitch.compiler.ir.symbol_uses import symbols_of_values
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.contract import PassContext, PassResult

from .driver import is_tensor, splat
from .found_sizes import found_sizes, settle
from .runs import Run, combined, run_of

MOST_TURN_BYTES = 1 << 20
"""Most bytes of a value per iteration: the values of all iterations exist at the same time."""


@dataclass(frozen=True)
class IndependentTurns:
    """Rewrite loop(n, body) to the body over n rows, where no iteration reads results of another."""

    name: ClassVar[str] = "independent_turns"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        count = 0
        for node in graph.nodes:
            if node.op == "loop" and _is_independent(node):
                count += _Batch(graph, node).put_in_place()
        return PassResult(graph, count > 0, (f"{count} loops",) if count else ())


def _is_independent(node: Node) -> bool:
    body, again = node.attrs["body"], node.attrs["body"].outputs[0]
    condition = node.inputs[1]
    absent = condition.producer is not None and condition.producer.op == "host.none"
    begins, goes_on = absent or splat(condition) is True, again is body.inputs[1] or splat(again) is True
    return begins and goes_on and not node.attrs["num_carried"] and run_of(node.inputs[0]) is not None


class _NoBatch(Exception):
    """Raised where something is not known to be the same in all iterations."""


class _Batch:
    """The batched body of a loop, as nodes before it. Values of the body are represented in up to three ways.

    whole: the value of all iterations, with an additional leading dimension; outside: one value for all; runs: small
    integers that form an arithmetic sequence over the iterations.
    """

    def __init__(self, graph: Graph, loop: Node) -> None:
        self.graph, self.loop, self.body = graph, loop, loop.attrs["body"]
        counted = run_of(loop.inputs[0])
        assert counted is not None
        self.turns = counted.first
        turn, condition, *captured = self.body.inputs
        self.outside: dict[Value, Value] = dict(zip(captured, loop.inputs[2:], strict=True))
        self.outside[condition] = graph.constant(np.ones(condition.shape, np.bool_))  # given or not, it is true
        self.whole: dict[Value, Value] = {}
        self.turn = Run(0, 0 if self.turns == 1 else 1)
        self.runs: dict[Value, Run] = {turn: self.turn}
        self.lines: dict[Value, tuple[Run, int]] = {}
        """Consecutive integers of each iteration: the first ones, and how many."""
        self.sizes: dict[str, Size] = {}
        self.claims = [*self.body.claims]
        self.added: list[Node] = []

    def put_in_place(self) -> bool:
        """Replace the loop and return True; otherwise return False and leave the graph unchanged."""
        try:
            if bounds_of(self.turns)[0] < 1:
                raise _NoBatch
            with noting(self.claims.append), because(", ".join(self.loop.origins)):
                for node in self.body.nodes:
                    self._node(node)
                results = [self._all_turns(value) for value in self.body.outputs[1:]]
            claims = list(self._claims())
            sizes = found_sizes(self.graph, self.loop, [value.type for value in results])
            if sizes is None:
                raise _NoBatch
        except (_NoBatch, TypeRuleError, UndecidedError):
            for node in reversed(self.added):
                self.graph.remove(node)
            return False
        settle(self.graph, sizes, claims)
        self.graph.replace(self.loop, results)
        return True

    def _claims(self) -> Iterator[Claim]:
        """Yield the claims about sizes outside that an iteration, of which there is at least one, assumes."""
        for claim in self.claims:
            outside = replace(claim, size=at(claim.size, self.sizes))
            if symbols_of([outside.size]) & set(self.body.symbols):
                raise _NoBatch
            if is_open(outside.size):
                yield outside
            elif not outside.holds({}):
                raise _NoBatch

    # -- nodes of the body -----------------------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        if node.op == "if":
            self._branch(node)
            return
        if self._same_in_all(node) is not None:
            return  # a branch requests it, or nothing that can be computed for all iterations at once
        if self._is_of_found_size(node):
            return
        run = self._run_after(node)
        if run is not None:
            self.runs[node.output] = run
            self.sizes.update({s.name: 1 for d in node.output.shape for s in _alone(d)})
            return
        rule = _ELEMENTWISE if is_elementwise(node.op) else _RULES.get(node.op)
        if rule is None or not all(is_tensor(v) for v in (*node.inputs, *node.outputs)):
            raise _NoBatch
        if not any(v in self.runs or v in self.whole for v in node.inputs):
            self._shared(node)
            return
        result = rule(self, node)
        self.whole[node.output] = result
        line = self._line(node)
        if line is not None:
            self.lines[node.output] = line
        inner, outer = node.output.shape, result.shape[1:]
        self.sizes.update({s.name: o for d, o in zip(inner, outer, strict=True) for s in _alone(d) if not is_open(o)})
        if is_open(prod(outer)) or prod(outer) * storage_bytes(result.dtype) > MOST_TURN_BYTES:
            raise _NoBatch

    def _is_of_found_size(self, node: Node) -> bool:
        """Return whether a node makes an integer that is the same in all iterations a size, or consecutive integers of
        such a number, and note what it is.
        """
        if node.op == "host.Extent":
            count = self.runs.get(node.inputs[0])
            if count is None or count.slope or not isinstance(count.first, int) or count.first < 1:
                raise _NoBatch
            self.sizes.update({s.name: count.first for d in node.output.shape for s in _alone(d)})
            return True
        if node.op == "iota" and _is_int(node.output):
            shape = tuple(at(size, self.sizes) for size in node.attrs["shape"])
            self.outside[node.output] = self.add("iota", **{**node.attrs, "shape": shape})
            return True
        return False

    def _branch(self, node: Node) -> None:
        """Inline the branch that all iterations take."""
        condition, *captured = node.inputs
        taken = self._same_in_all(condition.producer)
        if taken is None:
            raise _NoBatch
        graph = node.attrs["then_graph" if taken else "else_graph"]
        self.claims += graph.claims
        for inner, outer in zip(graph.inputs, captured, strict=True):
            self._rename(inner, outer)
        for one in graph.nodes:
            self._node(one)
        for result, value in zip(node.outputs, graph.outputs, strict=True):
            self._rename(result, value)

    def _rename(self, name: Value, value: Value) -> None:
        if value in self.runs:
            self.runs[name] = self.runs[value]
        elif value in self.whole:
            self.whole[name] = self.whole[value]
        elif (shared := self.one(value)) is not None:
            self.outside[name] = shared

    def _same_in_all(self, node: Node | None) -> bool | None:
        """Return whether two integers are equal, if that is the same in all iterations; else None."""
        if node is None or node.op != "equal" or not all(_is_int(v) for v in node.inputs):
            return None
        one, other = (self._run(v) for v in node.inputs)
        if one is None or other is None or one.slope != other.slope:
            return None
        apart = other.first - one.first
        return apart == 0 if isinstance(apart, int) else None

    def _shared(self, node: Node) -> None:
        """Compute a node once that is the same in all iterations, unless it could fail in a loop without iterations."""
        operands = [self.one(v) for v in node.inputs]
        if node.op in ("gather", "host.Slice") or None in operands:
            raise _NoBatch
        if symbols_of_values(node.outputs) & set(self.body.symbols):
            raise _NoBatch
        self.outside[node.output] = self.add(node.op, *(v for v in operands if v is not None), **node.attrs)

    def _run_after(self, node: Node) -> Run | None:
        """Return the value of a small integer of the body as a function of the iteration."""
        if not _is_int(node.outputs[0]):
            return None
        if node.op in ("cast", "reshape") and node.inputs[0] in self.runs:
            return self.runs[node.inputs[0]]
        if node.op == "gather":
            return self._element(node.inputs[0], node.inputs[1])
        if node.op == "host.Slice" and len(node.inputs) == 3:
            start, end = (self.runs.get(place) for place in node.inputs[1:])
            single = start is not None and end is not None and start.sum(Run(1)) == end
            return self._element(*node.inputs[:2]) if single else None
        if node.op == "sizes" and len(node.attrs["values"]) == 1:
            size = at(node.attrs["values"][0], self.sizes)
            return None if symbols_of([size]) & set(self.body.symbols) else Run(size)
        if not _is_single(node.outputs[0]) or not any(v in self.runs for v in node.inputs):
            return None
        if node.op in ("minimum", "maximum", "select"):
            return self._chosen(node)
        return combined(node.op, [self._run(v) for v in node.inputs])

    def _chosen(self, node: Node) -> Run | None:
        """Return the operand that a minimum, a maximum, or a selection by order takes in all iterations."""
        one, other = (self._run(v) for v in node.inputs[-2:])
        if one is None or other is None:
            return None
        if node.op != "select":
            first = self._is_at_least(one, other)
            if not first and not self._is_at_least(other, one):
                return None
            return one if first == (node.op == "maximum") else other
        order = node.inputs[0].producer
        if order is None or order.op != "less":
            return None
        low, high = (self._run(v) for v in order.inputs)
        if low is None or high is None:
            return None
        if self._is_at_least(low, high):
            return other
        return one if self._is_at_least(high, low.sum(Run(1))) else None

    def _is_at_least(self, one: Run, other: Run) -> bool:
        """Return whether one sequence is certainly not below another in any iteration."""
        apart = one.sum(other, -1)
        return _is_natural(apart.first) and _is_natural(apart.first + apart.slope * (self.turns - 1))

    def _line(self, node: Node) -> tuple[Run, int] | None:
        """Return the first of the consecutive integers that a node adds to, and how many they are; None for others."""
        if node.op != "add" or len(node.output.shape) != 1:
            return None
        for numbers, first in (node.inputs, reversed(node.inputs)):
            made, run = numbers.producer, self.runs.get(first)
            if made is not None and made.op == "iota" and numbers in self.outside and run is not None:
                (count,) = self.outside[numbers].shape
                return (run, count) if isinstance(count, int) else None
        return None

    def _element(self, numbers: Value, place: Value) -> Run | None:
        """Return an element of a line of integers at a position that advances by one per iteration."""
        line, index = self.one(numbers), self.runs.get(place)
        run = run_of(line) if line is not None and len(line.shape) == 1 else None
        if line is None or run is None or index is None or index.slope != self.turn.slope:
            return None
        first = index.first
        inside = isinstance(first, int) and first >= 0 and _is_natural(line.shape[0] - self.turns - first)
        return run.at(index) if inside else None

    def _run(self, value: Value) -> Run | None:
        if value in self.runs:
            return self.runs[value]
        known = self.one(value)
        return run_of(known) if known is not None and _is_single(known) else None

    # -- values ----------------------------------------------------------------------------------------------------

    def add(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        node = self.graph.add(op, inputs, attrs, origins=self.loop.origins, insert_before=self.loop)
        self.added.append(node)
        return node.output

    def one(self, value: Value) -> Value | None:
        """Return a value shared by all iterations; None for others."""
        if value.data is not None:
            return self.outside.setdefault(value, self.graph.constant(value.data, name=value.name))
        return self.outside.get(value)

    def _all_turns(self, value: Value) -> Value:
        """Return a value of the body for all iterations, which are its first dimension."""
        if value in self.runs:
            return self.numbers(self.runs[value], value)
        if value in self.whole:
            return self.whole[value]
        shared = self.one(value)
        if shared is None:
            raise _NoBatch
        return self.add("broadcast_to", shared, shape=(self.turns, *shared.shape))

    def numbers(self, run: Run, like: Value) -> Value:
        """Return the arithmetic sequence as integers with the dtype and shape of `like` each."""
        place = self.add("iota", shape=(self.turns,), axis=0, dtype=like.dtype)
        factor = self.graph.constant(np.asarray(run.slope), like.dtype)
        scaled = place if run.slope == 1 else self.add("mul", place, factor)
        first = (
            self.add("sizes", values=(run.first,), shape=(), dtype=like.dtype)
            if is_open(run.first)
            else self.graph.constant(np.asarray(run.first), like.dtype)
        )
        moved = scaled if run.first == 0 else self.add("add", scaled, first)
        return self.add("reshape", moved, shape=(self.turns, *like.shape)) if like.shape else moved

    def aligned(self, value: Value, rank: int) -> Value:
        """Return an operand of an element-wise operator whose result has rank `rank` in each iteration."""
        shared = None if value in self.runs or value in self.whole else self.one(value)
        if shared is not None:
            return shared
        batch = self._all_turns(value)
        missing = rank - (len(batch.shape) - 1)
        return self.add("reshape", batch, shape=(self.turns, *(1,) * missing, *batch.shape[1:])) if missing else batch

    def rows(self, value: Value) -> Value:
        """Return an operand that differs between iterations."""
        return self._all_turns(value)

    def sized(self, shape: Sequence[Size]) -> tuple[Size, ...]:
        """Return a shape of the body, with data-dependent sizes of the body substituted."""
        return (self.turns, *(at(size, self.sizes) for size in shape))


def _is_int(value: Value) -> bool:
    return is_tensor(value) and value.dtype in ("int32", "int64")


def _is_single(value: Value) -> bool:
    return all(size == 1 for size in value.shape)


def _is_natural(size: Size) -> bool:
    return bounds_of(size)[0] >= 0


def _alone(size: Size | str) -> list[Any]:
    """Return the symbol that a size consists of, in a list that is empty for other sizes."""
    return list(symbols_of([size])) if is_open(size) and str(size).isidentifier() else []


# -- rules: an operator for all turns --------------------------------------------------------------------------------


def _elementwise(batch: _Batch, node: Node) -> Value:
    rank = len(node.output.shape)
    return batch.add(node.op, *(batch.aligned(v, rank) for v in node.inputs), **node.attrs)


def _reshape(batch: _Batch, node: Node) -> Value:
    return batch.add("reshape", batch.rows(node.inputs[0]), shape=batch.sized(node.attrs["shape"]))


def _broadcast(batch: _Batch, node: Node) -> Value:
    aligned = batch.aligned(node.inputs[0], len(node.output.shape))
    return batch.add("broadcast_to", aligned, shape=batch.sized(node.attrs["shape"]))


def _transpose(batch: _Batch, node: Node) -> Value:
    return batch.add("transpose", batch.rows(node.inputs[0]), perm=(0, *(p + 1 for p in node.attrs["perm"])))


def _reduce(batch: _Batch, node: Node) -> Value:
    attrs = {**node.attrs, "axes": tuple(axis + 1 for axis in node.attrs["axes"])}
    return batch.add(node.op, batch.rows(node.inputs[0]), **attrs)


def _concat(batch: _Batch, node: Node) -> Value:
    return batch.add("concat", *(batch.rows(v) for v in node.inputs), axis=node.attrs["axis"] + 1)


def _slice(batch: _Batch, node: Node) -> Value:
    attrs = node.attrs
    return batch.add(
        "slice", batch.rows(node.inputs[0]), starts=(0, *attrs["starts"]), steps=(1, *attrs["steps"]),
        sizes=batch.sized(attrs["sizes"]),
    )  # fmt: skip


def _gather(batch: _Batch, node: Node) -> Value:
    x, indices = node.inputs
    table, axis = batch.one(x), node.attrs["axis"]
    if table is None:
        places = batch.one(indices)
        if places is None:
            raise _NoBatch
        return batch.add("gather", batch.rows(x), places, axis=axis + 1)
    parts = _parts(batch, table, axis, *batch.lines[indices]) if indices in batch.lines else None
    return (
        parts if parts is not None else _first(batch, batch.add("gather", table, batch.rows(indices), axis=axis), axis)
    )


def _first(batch: _Batch, value: Value, axis: int) -> Value:
    """Return a value with the iterations moved from dimension `axis` to the front."""
    rest = [a for a in range(len(value.shape)) if a != axis]
    return batch.add("transpose", value, perm=(axis, *rest)) if axis else value


def _slice_by_data(batch: _Batch, node: Node) -> Value:
    """Batch a slice with data-dependent bounds, if all iterations take equally many elements."""
    x, starts, ends, *rest = node.inputs
    table, axis = batch.one(x), splat(rest[0]) if rest else 0
    first, last = batch.runs.get(starts), batch.runs.get(ends)
    if table is None or first is None or last is None or not isinstance(axis, int | np.integer) or axis < 0:
        raise _NoBatch
    if any(splat(step) != 1 for step in rest[1:]) or first.slope != last.slope or first.slope < 0:
        raise _NoBatch
    count, extent = last.first - first.first, table.shape[axis]
    inside = _is_natural(first.first) and _is_natural(extent - last.first - last.slope * (batch.turns - 1))
    if not isinstance(count, int) or count < 1 or not inside:
        raise _NoBatch
    parts = _parts(batch, table, int(axis), first, count)
    if parts is not None:
        return parts
    start = batch.add("reshape", batch.numbers(first, starts), shape=(batch.turns, 1))
    places = batch.add("add", start, batch.add("iota", shape=(count,), axis=0, dtype=starts.dtype))
    return _first(batch, batch.add("gather", table, places, axis=int(axis)), int(axis))


def _parts(batch: _Batch, table: Value, axis: int, first: Run, count: int) -> Value | None:
    """Return `count` elements from `first` on for each iteration, if all of them together are the whole table."""
    if first != Run(0, count * batch.turn.slope) or table.shape[axis] != batch.turns * count:
        return None
    head, tail = table.shape[:axis], table.shape[axis + 1 :]
    return _first(batch, batch.add("reshape", table, shape=(*head, batch.turns, count, *tail)), axis)


_Rule = Callable[[_Batch, Node], Value]
_ELEMENTWISE: _Rule = _elementwise
_RULES: Mapping[str, _Rule] = {
    "reshape": _reshape, "broadcast_to": _broadcast, "transpose": _transpose, "concat": _concat, "gather": _gather,
    "slice": _slice, "host.Slice": _slice_by_data,
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and"), _reduce),
}  # fmt: skip
