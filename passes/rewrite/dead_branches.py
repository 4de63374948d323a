"""Control flow whose way is known: `if` with a constant condition, loops that never run, loops of one turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilestitch.compiler.ir import Graph, Node, Value, kind_of
from tilestitch.compiler.ir.ops import Kind
from tilestitch.compiler.ir.types import types_compatible
from tilestitch.passes.contract import PassContext, PassResult

from .driver import is_sized, reshaped, splat


@dataclass(frozen=True)
class DeadBranches:
    """Put the taken branch of an `if` with a constant condition in its place, and the body of what turns once; remove
    loops that run zero times.
    """

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
    match node.op:
        case "if":
            condition = splat(node.inputs[0])
            if condition is None:
                return None
            return inline(graph, node, node.attrs["then_graph" if condition else "else_graph"], node.inputs[1:])
        case "loop":
            return _loop(graph, node)
        case "scan":
            return _scan_of_one(graph, node)
    return None


def _loop(graph: Graph, node: Node) -> Sequence[Value] | None:
    """What is carried by a loop without turns, or the body of one turn of a loop that carries something:
    `independent_turns` makes more of others.
    """
    trips, condition, *operands = node.inputs
    count, most, first = node.attrs["num_carried"], splat(trips), splat(condition)
    if (most is not None and most <= 0) or first is False:
        carried = operands[:count]
        fits = len(node.outputs) == count and _fit(carried, node.outputs)
        return carried if fits else None
    begins = first is True or (condition.producer is not None and condition.producer.op == "host.none")
    if most != 1 or not begins or not count or not _can_be_put_in_place(node, count, first_result=1):
        return None
    turn, again = graph.constant(np.int64(0), name="turn"), graph.constant(np.True_, name="again")
    return _turn(graph, node, [turn, again, *operands], (0,) * (len(node.outputs) - count), count, first_result=1)


def _scan_of_one(graph: Graph, node: Node) -> Sequence[Value] | None:
    """The body of a scan over operands of one element each."""
    attrs, state = node.attrs, node.attrs["num_state"]
    scanned = list(zip(node.inputs[state : state + attrs["num_scanned"]], attrs["input_axes"], strict=True))
    once = bool(scanned) and all(is_sized(value) and value.shape[axis] == 1 for value, axis in scanned)
    if not once or not _can_be_put_in_place(node, state):
        return None
    elements = [
        reshaped(graph, node, value, (*value.shape[:axis], *value.shape[axis + 1 :])) for value, axis in scanned
    ]
    operands = [*node.inputs[:state], *elements, *node.inputs[state + len(scanned) :]]
    return _turn(graph, node, operands, attrs["output_axes"], state)


def _can_be_put_in_place(node: Node, carried: int, first_result: int = 0) -> bool:
    """Whether the results of a body are of the types that were promised, but for the axis of what is collected."""
    outputs = node.attrs["body"].outputs[first_result:]
    return _fit(outputs[:carried], node.outputs[:carried]) and all(is_sized(v) for v in outputs[carried:])


def _turn(
    graph: Graph, node: Node, operands: Sequence[Value], axes: Sequence[int], carried: int, first_result: int = 0
) -> list[Value]:
    """The results of one turn of the body: what is carried, then what is collected along `axes`."""
    values = _copied(graph, node, node.attrs["body"], operands)[first_result:]
    collected = [
        reshaped(graph, node, value, (*value.shape[:axis], 1, *value.shape[axis:]))
        for value, axis in zip(values[carried:], axes, strict=True)
    ]
    return [*values[:carried], *collected]


def _fit(values: Sequence[Value], promised: Sequence[Value]) -> bool:
    """Whether values are of the types that readers of `promised` know."""
    return all(types_compatible(v.type, p.type) for v, p in zip(values, promised, strict=True))


def inline(graph: Graph, node: Node, body: Graph, operands: Sequence[Value]) -> list[Value] | None:
    """Copy `body`'s nodes before `node`, reading `operands` for its inputs; returns its outputs' values.

    None, and nothing changed, if a result's type does not fit what readers of `node` were promised.
    """
    return _copied(graph, node, body, operands) if _fit(body.outputs, node.outputs) else None


def _copied(graph: Graph, node: Node, body: Graph, operands: Sequence[Value]) -> list[Value]:
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
