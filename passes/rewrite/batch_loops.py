"""Loops with independent iterations become batches: every operator of the body computes all iterations at once.

Exporters write sums of embeddings in this form: an iteration per row, which reads the rows of a table between two
offsets. The transformation is that of JAX's `vmap`: a rule per operator (batch_rules.py) over values that are shared by
all iterations or batched (batch_values.py); integers that are linear in the iteration's number stay formulas
(batch_integers.py), since only then are sizes and bounds of slices known.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

from tilestitch.compiler.ir import Graph, Node
from tilestitch.compiler.ir.claims import Claim, because, noting
from tilestitch.compiler.ir.errors import TypeRuleError, UndecidedError
from tilestitch.compiler.ir.sizes import Size, at, bounds_of, is_open, symbols_of
from tilestitch.compiler.ir.symbol_uses import symbols_of_values
from tilestitch.compiler.ir.types import storage_bytes
from tilestitch.passes.contract import PassContext, PassResult

from .batch_integers import are_equal, is_integer, range_of, sequence_of
from .batch_rules import rule_of
from .batch_values import BatchValues, NotBatchable
from .driver import is_tensor, splat
from .inlining import found_sizes, settle
from .runs import run_of

MOST_ITERATION_BYTES = 1 << 20
"""Most bytes of a value per iteration: the values of all iterations exist at the same time."""


@dataclass(frozen=True)
class BatchLoops:
    """Rewrite loop(n, body) to the body over n rows, where no iteration reads results of another."""

    name: ClassVar[str] = "batch_loops"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        count = 0
        for node in graph.nodes:
            if node.op == "loop" and _is_independent(node):
                count += _LoopBatch(graph, node).put_in_place()
        return PassResult.counted(graph, count, "loops")


def _is_independent(node: Node) -> bool:
    body, again = node.attrs["body"], node.attrs["body"].outputs[0]
    condition = node.inputs[1]
    absent = condition.producer is not None and condition.producer.op == "host.none"
    begins, goes_on = absent or splat(condition) is True, again is body.inputs[1] or splat(again) is True
    return begins and goes_on and not node.attrs["num_carried"] and run_of(node.inputs[0]) is not None


class _LoopBatch:
    """The batched body of a loop, as nodes before it."""

    def __init__(self, graph: Graph, loop: Node) -> None:
        self.graph, self.loop, self.body = graph, loop, loop.attrs["body"]
        count = run_of(loop.inputs[0])
        assert count is not None
        self.values = BatchValues(graph, loop, count.first)
        self.claims = [*self.body.claims]

    def put_in_place(self) -> bool:
        """Replace the loop and return True; otherwise return False and leave the graph unchanged."""
        try:
            if bounds_of(self.values.count)[0] < 1:
                raise NotBatchable
            with noting(self.claims.append), because(", ".join(self.loop.origins)):
                for node in self.body.nodes:
                    self._node(node)
                results = [self.values.batch_of(value) for value in self.body.outputs[1:]]
            claims = list(self._claims())
            sizes = found_sizes(self.graph, self.loop, [value.type for value in results])
            if sizes is None:
                raise NotBatchable
        except (NotBatchable, TypeRuleError, UndecidedError):
            self.values.remove_added()
            return False
        settle(self.graph, sizes, claims)
        self.graph.replace(self.loop, results)
        return True

    def _claims(self) -> Iterator[Claim]:
        """Yield the claims about sizes outside that an iteration, of which there is at least one, assumes."""
        for claim in self.claims:
            outside = replace(claim, size=at(claim.size, self.values.sizes))
            if symbols_of([outside.size]) & set(self.body.symbols):
                raise NotBatchable
            if is_open(outside.size):
                yield outside
            elif not outside.holds({}):
                raise NotBatchable

    def _node(self, node: Node) -> None:
        if node.op == "if":
            self._branch(node)
            return
        if are_equal(self.values, node) is not None:
            return  # a branch requests it, or nothing that can be computed for all iterations at once
        if self._is_of_found_size(node):
            return
        sequence = sequence_of(self.values, node)
        if sequence is not None:
            self.values.sequences[node.output] = sequence
            self.values.sizes.update({s.name: 1 for d in node.output.shape for s in _alone(d)})
            return
        if all(self.values.is_shared(v) for v in node.inputs):
            self._share(node)
            return
        self._batch(node)

    def _batch(self, node: Node) -> None:
        """Compute a node by the rule of its operator."""
        rule = rule_of(node)
        if rule is None or not _is_of_tensors(node):
            raise NotBatchable
        result = rule(self.values, node)
        self.values.batched[node.output] = result
        integers = range_of(self.values, node)
        if integers is not None:
            self.values.ranges[node.output] = integers
        inner, outer = node.output.shape, result.shape[1:]
        found = {s.name: o for d, o in zip(inner, outer, strict=True) for s in _alone(d) if not is_open(o)}
        self.values.sizes.update(found)
        if is_open(prod(outer)) or prod(outer) * storage_bytes(result.dtype) > MOST_ITERATION_BYTES:
            raise NotBatchable

    def _share(self, node: Node) -> None:
        """Compute a node once that is the same in all iterations, unless it could fail in a loop without iterations."""
        operands = [self.values.shared_of(v) for v in node.inputs]
        if rule_of(node) is None or not _is_of_tensors(node):
            raise NotBatchable
        if node.op in ("gather", "host.Slice") or None in operands:
            raise NotBatchable
        if symbols_of_values(node.outputs) & set(self.body.symbols):
            raise NotBatchable
        given = (v for v in operands if v is not None)
        self.values.shared[node.output] = self.values.add(node.op, *given, **node.attrs)

    def _is_of_found_size(self, node: Node) -> bool:
        """Return whether a node makes an integer that is the same in all iterations a size, or consecutive integers of
        such a number, and note what it is.
        """
        if node.op == "host.Extent":
            count = self.values.sequences.get(node.inputs[0])
            if count is None or count.slope or not isinstance(count.first, int) or count.first < 1:
                raise NotBatchable
            self.values.sizes.update({s.name: count.first for d in node.output.shape for s in _alone(d)})
            return True
        if node.op == "iota" and is_integer(node.output):
            shape = tuple(at(size, self.values.sizes) for size in node.attrs["shape"])
            self.values.shared[node.output] = self.values.add("iota", **{**node.attrs, "shape": shape})
            return True
        return False

    def _branch(self, node: Node) -> None:
        """Inline the branch that all iterations take."""
        condition, *captured = node.inputs
        taken = are_equal(self.values, condition.producer)
        if taken is None:
            raise NotBatchable
        graph = node.attrs["then_graph" if taken else "else_graph"]
        self.claims += graph.claims
        for inner, outer in zip(graph.inputs, captured, strict=True):
            self.values.rename(inner, outer)
        for one in graph.nodes:
            self._node(one)
        for result, value in zip(node.outputs, graph.outputs, strict=True):
            self.values.rename(result, value)


def _is_of_tensors(node: Node) -> bool:
    return all(is_tensor(v) for v in (*node.inputs, *node.outputs))


def _alone(size: Size | str) -> list[Any]:
    """Return the symbol that a size consists of, in a list that is empty for other sizes."""
    return list(symbols_of([size])) if is_open(size) and str(size).isidentifier() else []
