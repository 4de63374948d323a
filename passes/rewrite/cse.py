"""Elimination of common subexpressions, equal constants among them, and of dead code."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilestitch.compiler.ir import Graph, Kind, Node, Value, kind_of
from tilestitch.compiler.ir.symbol_uses import remove_dead
from tilestitch.compiler.ir.text import digest
from tilestitch.passes.contract import PassContext, PassResult


@dataclass(frozen=True)
class CommonSubexpressions:
    """Merge equal nodes (operator, operands, attributes). Host and control nodes are left: they may be random."""

    name: ClassVar[str] = "cse"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        count = _merge_constants(graph)
        seen: dict[Hashable, Node] = {}
        for node in graph.nodes:
            if kind_of(node.op) in (Kind.HOST, Kind.CONTROL):
                continue
            key = (node.op, tuple(map(id, node.inputs)), _frozen(node.attrs))
            twin = seen.setdefault(key, node)
            if twin is not node:
                graph.replace(node, twin.outputs)
                count += 1
        return PassResult.counted(graph, count, "merged")


def _merge_constants(graph: Graph) -> int:
    """Merge equal constants; digests are compared only where another of the same type exists."""
    by_type: dict[str, list[Value]] = {}
    for value in graph.constants:
        by_type.setdefault(str(value.type), []).append(value)
    count = 0
    for values in by_type.values():
        if len(values) < 2:
            continue
        starts = Counter(map(_start, values))
        first: dict[Hashable, Value] = {}
        for value in values:
            start = _start(value)
            twin = first.setdefault((start, _rest(value) if starts[start] > 1 else ""), value)
            if twin is not value:
                graph.replace_uses(value, twin)
                count += 1
    return count


def _start(value: Value) -> Hashable:
    """Return the first elements of a constant."""
    assert value.data is not None
    sample = value.data.flat[:16]  # reshaping would copy a transposed array
    return sample.tobytes() if value.data.dtype != object else repr(sample)


def _rest(value: Value) -> str:
    """Return a digest that distinguishes constants with equal beginnings; hashing all large weights would take
    seconds.
    """
    assert value.data is not None
    return repr(value.data.tolist()) if value.data.dtype == object else digest(value.data)


def _frozen(value: Any) -> Hashable:
    """Return a hashable stand-in; True and 1 remain distinct."""
    if isinstance(value, dict):
        return tuple(sorted((k, _frozen(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    if isinstance(value, np.ndarray):
        return (value.dtype.name, value.shape, value.tobytes())
    return (type(value).__name__, repr(value))


@dataclass(frozen=True)
class DeadCode:
    """Remove nodes whose outputs, and sizes they define, no node uses and that are no graph outputs."""

    name: ClassVar[str] = "dce"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        count = remove_dead(graph)
        return PassResult.counted(graph, count, "nodes removed")
