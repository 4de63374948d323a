"""Nodes that a plan leaves to the host, with reasons and remedies as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tilestitch.compiler.ir import Graph, Kind, MapType, Node, SequenceType, TensorType, Type, Value, kind_of
from tilestitch.compiler.ir.symbol_uses import REQUIRED
from tilestitch.compiler.ir.types import SMALL_FLOATS, is_static_tensor

from .open.plan import OPEN_KERNEL
from .open.regions import CALL
from .plan import StitchPlan, WhyNot
from .plan.roles import NATIVE_DTYPES, is_native
from .schedule.launches import nested_graphs

_NONE: Mapping[str, WhyNot] = {}
STEP_US = 10.0
"""Least time of a host step, without its computation: see docs/cpu_runtime.md."""
BYTES_PER_US = 20_000
"""Upper bound of numpy's throughput, 20 GB/s: it reads every operand and writes every result to separate memory."""

REMEDIES = {
    "host.open_dimension": "name sizes for them: {shapes}",
    "host.open_kernel": "name a size for this dimension: {shapes}",
    "host.data_dependent": "give these values as inputs, or cut the model there",
    "host.map": "convert the model without maps, in skl2onnx by options={{'zipmap': False}}: scores are one array then",
    "host.control_flow": "export the model with its loops unrolled or its branch chosen",
    "host.data_type": "use a data type that kernels have",
    "host.check": "leave the check to the host, or give what is found there as inputs",
    "host.no_kernel": "compute it outside of the model, or in operators that have kernels",
}


def refused_kernels(plan: StitchPlan) -> dict[str, WhyNot]:
    """Return the nodes that are left to the host because their kernels do not hold for all sizes, by name."""
    return {refusal.subject: refusal for refusal in plan.refusals if refusal.rule == OPEN_KERNEL}


def why_on_host(graph: Graph, refused: Mapping[str, WhyNot] = _NONE, *, is_body: bool = False) -> dict[Node, WhyNot]:
    """Return why each node outside of kernels is there, in order. `is_body`: of a loop or branch, whose inputs are not
    the model's. `refused`: nodes whose kernels do not hold for all sizes, by name.
    """
    sources: dict[Value, WhyNot] = {v: _IN_BODY if is_body else _open_input(v) for v in graph.inputs if _is_open(v)}
    reasons: dict[Node, WhyNot] = {}
    for node in graph.nodes:
        inherited = _coarsest(sources[v] for v in node.inputs if v in sources)
        for output in node.outputs:
            if _is_open(output):
                sources[output] = inherited or _data_dependent(node)
        if node.name in refused:
            reasons[node] = refused[node.name]
        elif node.op != CALL and not is_native(node):
            found = _why(node, inherited)
            reasons[node] = WhyNot(node.name, found.rule, found.reason, found.numbers)
    return reasons


def _is_open(value: Value) -> bool:
    return not isinstance(value.type, TensorType) or not value.type.is_sized


_IN_BODY = WhyNot("", "host.control_flow", "sizes inside of a loop or branch are known only when it runs")


def _open_input(value: Value) -> WhyNot:
    return WhyNot("", "host.open_dimension", f"input {value.name} has dimensions without a size")


def _data_dependent(node: Node) -> WhyNot:
    name = _named(node)
    return WhyNot("", "host.data_dependent", f"the shape of what {name} gives depends on the data")


def _coarsest(reasons: Iterable[WhyNot]) -> WhyNot | None:
    """Return the reason to report: an open dimension before all else, as the user can change that."""
    return min(reasons, key=lambda why: why.rule != "host.open_dimension", default=None)


def _why(node: Node, inherited: WhyNot | None) -> WhyNot:
    if any(_has_maps(v.type) for v in (*node.inputs, *node.outputs)):
        return WhyNot("", "host.map", f"{_named(node)} has maps to do with, which are dicts of Python")
    if inherited is not None:
        return inherited
    dtypes = [v.type.dtype for v in (*node.inputs, *node.outputs) if isinstance(v.type, TensorType)]
    foreign = [dtype for dtype in dtypes if dtype not in NATIVE_DTYPES and dtype not in SMALL_FLOATS]
    if node.op == REQUIRED:
        return WhyNot(
            "", "host.check", "whether a size that is found in the data is the one that it meets is known only in a run"
        )
    if kind_of(node.op) is Kind.CONTROL:
        return WhyNot("", "host.control_flow", f"{node.op} decides while the model runs what is computed next")
    if foreign:
        return WhyNot("", "host.data_type", f"there are no kernels for {foreign[0]}")
    if any(_is_open(v) for v in node.outputs):
        return _data_dependent(node)
    return WhyNot("", "host.no_kernel", f"there is no kernel for {node.op.removeprefix('host.')}")


def _has_maps(type_: Type) -> bool:
    return isinstance(type_, MapType) or (isinstance(type_, SequenceType) and _has_maps(type_.element))


def _named(node: Node) -> str:
    return f"ONNX node {node.origins[0]}" if node.origins else node.op


def open_inputs(graph: Graph) -> list[str]:
    """Return the inputs with unsized dimensions, as `--shape` options to be completed."""
    return [
        f"--shape {v.name}={'x'.join(str(d) if isinstance(d, int) else f'<{d}>' for d in v.type.shape)}"
        for v in graph.inputs
        if isinstance(v.type, TensorType) and not v.type.is_static
    ]


def _everywhere(graph: Graph, plan: StitchPlan, is_body: bool) -> Iterator[tuple[Node, WhyNot]]:
    """Yield the nodes outside of kernels and why, including nested graphs; loops that native code iterates do not
    count.
    """
    for node, why in why_on_host(graph, refused_kernels(plan), is_body=is_body).items():
        if not takes_native_turns(node, plan):
            yield node, why
    for key, body in nested_graphs(graph).items():
        yield from _everywhere(body, plan.bodies[key], True)


def takes_native_turns(node: Node, plan: StitchPlan) -> bool:
    """Return whether native code iterates a loop: its body is one segment of kernels, and carried values keep their
    type and are computed by them (`runtime/iterations.py` has the same conditions for programs).
    """
    if node.op not in ("scan", "loop") or plan.target.is_gpu:
        return False
    body, inner = node.attrs["body"], plan.bodies[f"{node.name}.body"]
    if inner.host_groups or len(inner.segments) != 1:
        return False
    leading = 2 if node.op == "loop" else 0
    count = node.attrs["num_carried" if node.op == "loop" else "num_state"]
    states = list(zip(body.inputs[leading : leading + count], body.outputs[leading // 2 :], strict=False))
    results = body.outputs[leading // 2 + count :]
    written = [after for before, after in states if after is not before]
    if node.op == "loop" and body.outputs[0].producer is not None:
        written.append(body.outputs[0])
    distinct = len(set(written)) == len(written) and len(set(results)) == len(results)
    computed = all(value.producer is not None for value in (*written, *results))
    return distinct and computed and all(before.type == after.type for before, after in states)


def _nodes(graph: Graph) -> Iterator[Node]:
    yield from graph.nodes
    for body in graph.subgraphs():
        yield from _nodes(body)


def host_summary(
    graph: Graph,
    plan: StitchPlan,
    kernels: Sequence[Mapping[str, Any]],
    *,
    given: Graph | None = None,
    is_body: bool = False,
) -> dict[str, Any]:
    """Return how much of a planned model runs on the host, bodies of loops and branches included.

    `steps`; `onnx_nodes` involved, `of_onnx_nodes` in total; `predicted_us_at_least`, and its share of the total with
    the kernels' prediction; `reasons`, each with `rule`, `reason`, `steps`, `operators`, `remedy`. `given`: the
    original graph, where `graph` is at typical sizes.
    """
    shapes = " ".join(open_inputs(given or graph))
    found = list(_everywhere(graph, plan, is_body))
    by_reason: dict[tuple[str, str], list[Node]] = {}
    for node, why in found:
        by_reason.setdefault((why.rule, why.reason), []).append(node)
    everything = {origin for node in _nodes(graph) for origin in node.origins}
    least_us = round(sum(_least_us(node) for node, _ in found), 3)
    total_us = least_us + sum(kernel["predicted_us"] or 0.0 for kernel in kernels)
    return {
        "steps": len(found),
        "onnx_nodes": len({origin for node, _ in found for origin in node.origins}),
        "of_onnx_nodes": len(everything),
        "predicted_us_at_least": least_us,
        "predicted_share_at_least": round(least_us / total_us, 4) if found else 0.0,
        "reasons": [_reason(rule, reason, nodes, shapes) for (rule, reason), nodes in by_reason.items()],
    }


def _least_us(node: Node) -> float:
    """Return a lower bound of a host step's microseconds. Views are free, whatever their size."""
    if kind_of(node.op) is Kind.VIEW:
        return STEP_US
    types = [v.type for v in (*node.inputs, *node.outputs)]
    return STEP_US + sum(t.nbytes for t in types if is_static_tensor(t) and isinstance(t, TensorType)) / BYTES_PER_US


def _reason(rule: str, reason: str, nodes: Sequence[Node], shapes: str) -> dict[str, Any]:
    return {
        "rule": rule,
        "reason": reason,
        "steps": len(nodes),
        "operators": sorted({node.op.removeprefix("host.") for node in nodes}),
        "remedy": REMEDIES[rule].format(shapes=shapes),
    }


MOST_OPERATORS = 5
MOST_REASONS = 8
TRACE = 0.01
"""Share of the predicted time up to which host steps merit a note rather than a warning."""


def describe_host(host: Mapping[str, Any]) -> str:
    """Return `host_summary` as text; "" if everything is in kernels."""
    if not host["steps"]:
        return ""
    steps = "1 step runs" if host["steps"] == 1 else f"{host['steps']} steps run"
    lines = [
        f"{steps} on the host with numpy, slower than kernels, for {host['onnx_nodes']} of {host['of_onnx_nodes']} "
        "ONNX nodes"
    ]
    for reason in host["reasons"][:MOST_REASONS]:
        operators = reason["operators"]
        more = ", …" if len(operators) > MOST_OPERATORS else ""
        named = ", ".join(operators[:MOST_OPERATORS])
        lines.append(f"  {reason['steps']} ({named}{more}): {reason['reason']}; {reason['remedy']}")
    left_out = len(host["reasons"]) - MOST_REASONS
    if left_out > 0:
        lines.append(f"  and {left_out} more reasons: `tilestitch explain --json` has all")
    return "\n".join(lines)


def describe_share(host: Mapping[str, Any]) -> str:
    """Return the host steps' share of the predicted time as text."""
    least_us, share = host["predicted_us_at_least"], host["predicted_share_at_least"]
    return f"predicted of these: at least {least_us:.0f} µs, {100 * share:.0f} % of all"
