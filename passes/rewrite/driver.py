"""Greedy application of local patterns until none matches, and common queries of patterns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from tilestitch.compiler.ir import Graph, Node, TensorType, Value, reference
from tilestitch.compiler.ir.errors import UndecidedError
from tilestitch.compiler.ir.symbol_uses import NO_SYMBOLS, REQUIRED, made_by
from tilestitch.compiler.ir.types import Shape, broadcast_shapes
from tilestitch.passes.errors import PassContractError

Replacement = Sequence[Value]
Pattern = Callable[[Graph, Node], "Replacement | None"]
"""A function of a node that returns values for its outputs (new nodes are inserted before it), or None if it does not
match.
"""


def apply_patterns(graph: Graph, patterns: Mapping[str, Sequence[Pattern]]) -> int:
    """Apply the patterns listed for each operator (`*`: for all) until none matches. Returns the number of
    applications.

    A node that a replacement leaves without readers is removed at once, so that patterns see true numbers of readers;
    the replacement inherits its origins. Patterns give new nodes the origins of what they compute; an existing value
    that replaces a node inherits the node's origins.
    """
    everywhere = patterns.get("*", ())
    work = OrderedDict.fromkeys(graph.nodes)  # removing the first item of a dict skips over all removed before it
    alive = set(work)
    count, limit = 0, 1000 + 100 * len(work)
    while work:
        node, _ = work.popitem(last=False)
        if node not in alive:
            continue
        for pattern in (*patterns.get(node.op, ()), *everywhere):
            known = len(graph)
            try:
                values = pattern(graph, node)
            except UndecidedError:  # it fits only for some sizes
                values = None
                _remove_all(graph, [n for n in graph.nodes if n not in alive] if len(graph) != known else ())
            if values is None:
                if len(graph) != known:
                    raise AssertionError(f"pattern {pattern} changed the graph and then did not fit {node}")
                continue
            count += 1
            if count > limit:
                raise PassContractError(f"{pattern.__name__} and others undo each other without end, lately at {node}")
            touched = [*node.inputs, *values]
            readers = [user for out in node.outputs for user in out.users]
            new_nodes = _new_nodes(values, alive)
            for old, new in zip(node.outputs, values, strict=True):
                graph.replace_uses(old, new)
            graph.remove(node)
            alive.discard(node)
            alive.update(new_nodes)
            work.update(dict.fromkeys(new_nodes))
            lost = [origin for value in touched for origin in remove_dead(graph, value, alive)]
            _inherit(values, lost, [] if new_nodes else node.origins)
            work.update(dict.fromkeys(readers))
            for value in (*values, *(v for r in readers for v in r.inputs)):
                if value.producer in alive:
                    work[value.producer] = None
            break
    return count


def _remove_all(graph: Graph, nodes: Sequence[Node]) -> None:
    for node in reversed(nodes):
        graph.remove(node)


def _new_nodes(values: Sequence[Value], alive: set[Node]) -> list[Node]:
    found: dict[Node, None] = {}
    stack = [v.producer for v in values]
    while stack:
        node = stack.pop()
        if node is None or node in alive or node in found:
            continue
        found[node] = None
        stack.extend(v.producer for v in node.inputs)
    return list(found)


def remove_dead(graph: Graph, value: Value, alive: set[Node]) -> list[str]:
    """Remove the producer of `value`, and what only it needed, if nothing reads the value; return their origins."""
    origins: list[str] = []
    stack = [value.producer]
    while stack:
        node = stack.pop()
        if node is None or node not in alive or node.op == REQUIRED:
            continue
        if any(o.uses or graph.is_output(o) for o in node.outputs) or _makes_sizes(node):
            continue
        graph.remove(node)
        alive.discard(node)
        origins.extend(node.origins)
        stack.extend(v.producer for v in node.inputs)
    return origins


def _makes_sizes(node: Node) -> bool:
    """Return whether the node may define sizes, which others need although they read none of its results: `dce` handles
    these.
    """
    return bool(made_by(node, NO_SYMBOLS))


def _inherit(values: Sequence[Value], lost: Sequence[str], replaced: Sequence[str]) -> None:
    """Add the origins of removed ONNX nodes to the producers of `values`."""
    for producer in {v.producer: None for v in values}:
        if producer is not None:
            producer.origins = tuple(dict.fromkeys((*producer.origins, *replaced, *lost)))


# -- questions ---------------------------------------------------------------------------------------------------------


def is_tensor(value: Value) -> bool:
    return isinstance(value.type, TensorType)


def is_sized(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.is_sized


def splat(value: Value) -> float | int | bool | None:
    """Return the number that all elements of a constant share; None if they differ, there are none, or it is not a
    number.
    """
    data = value.data
    if data is None or data.size == 0 or data.dtype == object or data.dtype.kind == "c":
        return None
    first = data.reshape(-1)[0]
    if data.size > 1 and not _all_equal(data, first):
        return None
    number: float | int | bool = first.item() if data.dtype.kind in "biuf" else float(first)
    return number


def _all_equal(data: np.ndarray, number: np.ndarray) -> bool:
    """Return whether all elements equal `number`, including its sign if it is zero."""
    if not bool((data == number).all()):
        return False
    return number != 0 or data.dtype.kind in "biu" or len(np.unique(np.signbit(data.astype(np.float64)))) == 1


def is_splat(value: Value, number: float) -> bool:
    found = splat(value)
    return found is not None and not isinstance(found, bool) and found == number


def produced_by(value: Value, *ops: str) -> Node | None:
    """Return the producer of `value` if its operator is one of `ops`."""
    node = value.producer
    return node if node is not None and node.op in ops else None


def single_reader(graph: Graph, value: Value) -> bool:
    """Return whether exactly one operand position reads `value`, and it is no graph output."""
    return len(value.uses) == 1 and not graph.is_output(value)


def emit_like(graph: Graph, node: Node, op: str, *inputs: Value, **attrs: object) -> Value:
    """Return the result of a new node before `node` with its origins."""
    return graph.emit(op, *inputs, origins=node.origins, insert_before=node, **attrs)


def computed_like(graph: Graph, node: Node, op: str, *inputs: Value, **attrs: object) -> Value:
    """Return the result of `emit_like`, or a constant where all operands are constants."""
    if not all(v.is_constant for v in inputs):
        return emit_like(graph, node, op, *inputs, **attrs)
    with np.errstate(all="ignore"):
        (result,) = reference(op)([v.data for v in inputs], attrs)
    return graph.constant(np.asarray(result), name=inputs[0].name)


def reshaped(graph: Graph, node: Node, value: Value, shape: Sequence[int]) -> Value:
    """Return `value` in another static shape: itself, a reshaped constant, or a reshape before `node`."""
    if value.data is not None:
        return value if value.shape == tuple(shape) else constant_like(graph, value, value.data.reshape(tuple(shape)))
    if is_sized(value) and value.shape == tuple(shape):
        return value
    return emit_like(graph, node, "reshape", value, shape=tuple(shape))


def transposed(graph: Graph, node: Node, value: Value, perm: Sequence[int], origins: Sequence[str] = ()) -> Value:
    """Return `value` with permuted axes: itself, a transposed constant, or a transpose before `node`.

    Transposes that only serve a layout stem from no ONNX node, hence have no `origins` unless given.
    """
    if tuple(perm) == tuple(range(len(perm))):
        return value
    if value.data is not None:
        return constant_like(graph, value, np.transpose(value.data, tuple(perm)))
    return graph.emit("transpose", value, origins=origins, insert_before=node, perm=tuple(perm))


def constant_like(graph: Graph, value: Value, data: np.ndarray) -> Value:
    """Return a constant with the given data, named after `value`."""
    return graph.constant(data, name=value.name)


def result_fits(values: Sequence[Value], shape: Shape) -> bool:
    """Return whether element-wise operation on `values` has exactly the shape `shape`."""
    return all(is_tensor(v) for v in values) and broadcast_shapes(*(v.tensor_type.shape for v in values)) == tuple(
        shape
    )


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    result = [0] * len(perm)
    for i, p in enumerate(perm):
        result[p] = i
    return tuple(result)


def elements(shape: Sequence[int]) -> int:
    return prod(shape)
