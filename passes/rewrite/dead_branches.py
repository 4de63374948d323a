"""Control flow that is statically known: `if` with a constant condition, loops that never run, loops of one
iteration.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.compiler.ir.sizes import Size
from tilestitch.passes.contract import PassContext, PassResult

from .driver import is_sized, reshaped, splat
from .inlining import Inlining, found_sizes, knows_sizes_of, settle


@dataclass(frozen=True)
class DeadBranches:
    """Inline the taken branch of an `if` with a constant condition and the bodies of single-iteration loops; remove
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
        return PassResult.counted(graph, count, "resolved")


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
    """Return the carried values of a loop without iterations, or the inlined body of a single-iteration loop with
    carried values: `batch_loops` handles others better.
    """
    trips, condition, *operands = node.inputs
    count, most, first = node.attrs["num_carried"], splat(trips), splat(condition)
    if (most is not None and most <= 0) or first is False:
        carried = operands[:count]
        sizes = None if len(node.outputs) > count else found_sizes(graph, node, [value.type for value in carried])
        if sizes is None:
            return None
        settle(graph, sizes, ())
        return carried
    begins = first is True or (condition.producer is not None and condition.producer.op == "host.none")
    if most != 1 or not begins or not count:
        return None

    def given() -> list[Value]:
        return [graph.constant(np.int64(0), name="turn"), graph.constant(np.True_, name="again"), *operands]

    return _turn(graph, node, given, (0,) * (len(node.outputs) - count), count, first_result=1)


def _scan_of_one(graph: Graph, node: Node) -> Sequence[Value] | None:
    """Return the inlined body of a scan over one-element operands."""
    attrs, state = node.attrs, node.attrs["num_state"]
    scanned = list(zip(node.inputs[state : state + attrs["num_scanned"]], attrs["input_axes"], strict=True))
    once = bool(scanned) and all(is_sized(value) and value.shape[axis] == 1 for value, axis in scanned)
    if not once:
        return None

    def given() -> list[Value]:
        elements = [
            reshaped(graph, node, value, (*value.shape[:axis], *value.shape[axis + 1 :])) for value, axis in scanned
        ]
        return [*node.inputs[:state], *elements, *node.inputs[state + len(scanned) :]]

    return _turn(graph, node, given, attrs["output_axes"], state)


def _turn(
    graph: Graph, node: Node, given: Callable[[], Sequence[Value]], axes: Sequence[int], carried: int,
    first_result: int = 0,
) -> list[Value] | None:  # fmt: skip
    """Return the results of one inlined iteration with inputs `given`: the carried values, then those collected along
    `axes`. None, with nothing changed, if they do not have the types promised to readers of `node`.
    """
    body = node.attrs["body"]
    results = body.outputs[first_result:]
    if not knows_sizes_of(node.inputs, body) or not all(is_sized(value) for value in results[carried:]):
        return None
    shapes = [(*v.shape[:axis], 1, *v.shape[axis:]) for v, axis in zip(results[carried:], axes, strict=True)]
    types = [v.tensor_type.with_shape(shape) for v, shape in zip(results[carried:], shapes, strict=True)]
    sizes = found_sizes(graph, node, [*(value.type for value in results[:carried]), *types])
    if sizes is None:
        return None
    values = _copied(graph, node, body, given(), sizes)[first_result:]
    collected = [reshaped(graph, node, value, shape) for value, shape in zip(values[carried:], shapes, strict=True)]
    return [*values[:carried], *collected]


def inline(graph: Graph, node: Node, body: Graph, operands: Sequence[Value]) -> list[Value] | None:
    """Copy `body`'s nodes before `node`, reading `operands` for its inputs; returns its outputs' values.

    None, with nothing changed, if a result's type does not fit that promised to readers of `node`, or the body has its
    own sizes.
    """
    sizes = found_sizes(graph, node, [v.type for v in body.outputs]) if knows_sizes_of(operands, body) else None
    return None if sizes is None else _copied(graph, node, body, operands, sizes)


def _copied(graph: Graph, node: Node, body: Graph, operands: Sequence[Value], sizes: Mapping[str, Size]) -> list[Value]:
    settle(graph, sizes, body.claims, body.symbols)
    return Inlining(graph, node, body).turn(operands)
