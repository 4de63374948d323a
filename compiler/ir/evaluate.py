"""Evaluation of a graph with numpy: the reference against which passes and code generation are tested."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .errors import IRError
from .graph import Graph, Node, Value
from .ops import Kind, kind_of, reference
from .sizes import Size
from .substitute import data_at, graph_at, sizes_given


def evaluate(
    graph: Graph, feeds: Mapping[str, Any] | Sequence[Any], given: Mapping[str, Any] | None = None
) -> list[Any]:
    """Return the graph's outputs for `feeds` (by input name, or in order), by the numpy reference of each operator.

    `given`: results by name that replace computed ones for their readers; outputs are computed nevertheless. Tensors
    are ndarrays, sequences lists, absent optionals None. Raises IRError for a missing feed.
    """
    if isinstance(feeds, Mapping):
        missing = [v.name for v in graph.inputs if v.name not in feeds]
        if missing:
            raise IRError(f"graph {graph.name}: no value given for inputs {missing}")
        feeds = [feeds[v.name] for v in graph.inputs]
    if len(feeds) != len(graph.inputs):
        raise IRError(f"graph {graph.name} takes {len(graph.inputs)} inputs, got {len(feeds)}")
    values: dict[Value, Any] = dict(zip(graph.inputs, feeds, strict=True))
    computed = dict(values)
    given = given or {}
    shown = frozenset(graph.outputs)
    sizes: dict[str, Size] = {}  # that the data decides

    def read(value: Value) -> Any:
        return value.data if value.is_constant else values[value]

    for node in graph.nodes:
        operands = [read(v) for v in node.inputs]
        results = (
            _CONTROL[node.op](node, operands)
            if kind_of(node.op) is Kind.CONTROL
            else reference(node.op)(operands, data_at(node.attrs, sizes) if sizes else node.attrs)
        )
        if node.op == "host.Extent":
            sizes.update({str(node.output.tensor_type.shape[0]): len(results[0])})
        for output, result in zip(node.outputs, results, strict=True):
            values[output] = given.get(output.name, result)
            if output in shown:
                computed[output] = result
    return [v.data if v.is_constant else computed[v] for v in graph.outputs]


def _run_if(node: Node, operands: list[Any]) -> list[Any]:
    branch = "then_graph" if bool(np.asarray(operands[0]).reshape(())) else "else_graph"
    return evaluate(node.attrs[branch], operands[1:])


def _run_loop(node: Node, operands: list[Any]) -> list[Any]:
    max_trip, cond, *rest = operands
    count = node.attrs["num_carried"]
    carried, captures = list(rest[:count]), rest[count:]
    limit = None if max_trip is None else int(np.asarray(max_trip).reshape(()))
    alive = True if cond is None else bool(np.asarray(cond).reshape(()))
    scans: list[list[Any]] = [[] for _ in node.outputs[count:]]
    trip = 0
    while alive and (limit is None or trip < limit):
        results = evaluate(
            node.attrs["body"], [np.int64(trip).reshape(()), np.bool_(True).reshape(()), *carried, *captures]
        )
        alive = bool(np.asarray(results[0]).reshape(()))
        carried = list(results[1 : 1 + count])
        for scan, item in zip(scans, results[1 + count :], strict=True):
            scan.append(item)
        trip += 1
    return [*carried, *(_stack(s, out, 0) for s, out in zip(scans, node.outputs[count:], strict=True))]


def _stack(items: list[Any], output: Value, axis: int) -> Any:
    from .types import TensorType, to_numpy_dtype

    if items:
        return np.stack(items, axis)
    type_ = output.type
    assert not isinstance(type_, TensorType) or type_.rank > 0
    shape = [0 if isinstance(d, str) else d for d in type_.shape] if isinstance(type_, TensorType) else [0]
    shape[axis] = 0
    return np.empty(shape, to_numpy_dtype(getattr(type_, "dtype", "float32")))


def _run_scan(node: Node, operands: list[Any]) -> list[Any]:
    attrs = node.attrs
    num_state, num_scanned = attrs["num_state"], attrs["num_scanned"]
    state = list(operands[:num_state])
    scanned = operands[num_state : num_state + num_scanned]
    captures = operands[num_state + num_scanned :]
    length = scanned[0].shape[attrs["input_axes"][0]] if scanned else 0
    outputs = node.outputs[num_state:]
    scans: list[list[Any]] = [[] for _ in outputs]
    for step in range(length):
        elements = [
            np.take(x, length - 1 - step if reverse else step, axis)
            for x, axis, reverse in zip(scanned, attrs["input_axes"], attrs["input_reverse"], strict=True)
        ]
        results = evaluate(attrs["body"], [*state, *elements, *captures])
        state = list(results[:num_state])
        for scan, item in zip(scans, results[num_state:], strict=True):
            scan.append(item)
    stacked = [
        _stack(scan[::-1] if reverse else scan, out, axis)
        for scan, out, axis, reverse in zip(scans, outputs, attrs["output_axes"], attrs["output_reverse"], strict=True)
    ]
    return [*state, *stacked]


def _run_sequence_map(node: Node, operands: list[Any]) -> list[Any]:
    count = node.attrs["num_inputs"]
    sequence, others, captures = operands[0], operands[1:count], operands[count:]
    results = [
        evaluate(node.attrs["body"], [item, *(o[i] if isinstance(o, list) else o for o in others), *captures])
        for i, item in enumerate(sequence)
    ]
    return [[r[i] for r in results] for i in range(len(node.outputs))]


def _run_call(node: Node, operands: list[Any]) -> list[Any]:
    body = node.attrs["body"]
    sizes = sizes_given(body, [x.shape if isinstance(x, np.ndarray) else None for x in operands])
    return evaluate(graph_at(body, sizes) if sizes else body, operands)


_CONTROL = {"call": _run_call, "if": _run_if, "loop": _run_loop, "scan": _run_scan, "sequence_map": _run_sequence_map}
