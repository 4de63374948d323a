"""Control flow whose way is known: `if` with a constant condition, loops that never run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Graph, Node, Value, kind_of
from tilestitch.compiler.ir.ops import Kind
from tilestitch.compiler.ir.types import types_compatible
from tilestitch.passes.contract import PassContext, PassResult

from .driver import splat


@dataclass(frozen=True)
class DeadBranches:
    """Put the taken branch of an `if` with a constant condition in its place; remove loops that run zero times."""

    name: ClassVar[str] = "dead_branches"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        count = 0
        for node in graph.nodes:
            values = _resolved(graph, node)
            if values is not None:
                graph.replace(node, values)
                count += 1
        return PassResult(graph, count > 0, (f"{count} resolved",) if count else ())


def _resolved(graph: Graph, node: Node) -> Sequence[Value] | None:
    if node.op == "if":
        condition = splat(node.inputs[0])
        if condition is None:
            return None
        return inline(graph, node, node.attrs["then_graph" if condition else "else_graph"], node.inputs[1:])
    if node.op == "loop" and len(node.outputs) == node.attrs["num_carried"] and _never_runs(node):
        carried = node.inputs[2 : 2 + node.attrs["num_carried"]]
        if all(v.type == o.type for v, o in zip(carried, node.outputs, strict=True)):
            return carried
    return None


def _never_runs(node: Node) -> bool:
    trips, condition = splat(node.inputs[0]), splat(node.inputs[1])
    return (trips is not None and trips <= 0) or condition is False


def inline(graph: Graph, node: Node, body: Graph, operands: Sequence[Value]) -> list[Value] | None:
    """Copy `body`'s nodes before `node`, reading `operands` for its inputs; returns its outputs' values.

    None, and nothing changed, if a result's type does not fit what readers of `node` were promised.
    """
    if not all(types_compatible(o.type, n.type) for o, n in zip(body.outputs, node.outputs, strict=True)):
        return None
    mapping: dict[Value, Value] = dict(zip(body.inputs, operands, strict=True))

    def mapped(value: Value) -> Value:
        if value not in mapping:
            assert value.data is not None
            mapping[value] = graph.constant(value.data, name=value.name)
        return mapping[value]

    for inner in body.nodes:
        stated = [o.type for o in inner.outputs] if kind_of(inner.op) in (Kind.HOST, Kind.CONTROL) else None
        twin = graph.add(
            inner.op, [mapped(v) for v in inner.inputs], inner.attrs,
            origins=(*inner.origins, *node.origins), types=stated, name=inner.name, insert_before=node,
        )  # fmt: skip
        mapping.update(zip(inner.outputs, twin.outputs, strict=True))
    return [mapped(o) for o in body.outputs]
