"""Queries on an explanation (of `explain_plan`): what became of a node of the model, and of an edge between two."""

import re
from collections.abc import Mapping
from typing import Any

# A refusal concerns one node, or several: `producer -> consumer`, `a + b`.
_BETWEEN = re.compile(r" -> | \+ ")


def explain_node(explanation: Mapping[str, Any], node: str) -> dict[str, Any]:
    """Return the parts of an explanation about one node of the model or the graph: kernels, host steps, refusals that
    name it.
    """
    kernels = [k for k in explanation["kernels"] if node in k["onnx_nodes"] or node in k["nodes"]]
    host_steps = [h for h in explanation["host_steps"] if node in h["onnx_nodes"] or node == h["name"]]
    names = {node, *(n for k in kernels for n in k["nodes"] if node in k["onnx_nodes"])}
    refusals = [r for r in explanation["refusals"] if names & subjects(r)]
    return {"node": node, "kernels": kernels, "host_steps": host_steps, "refusals": refusals}


def explain_edge(explanation: Mapping[str, Any], producer: str, consumer: str) -> dict[str, Any]:
    """Return why two nodes of the model or the graph are, or are not, in one kernel.

    `kernels`: those that compute both. `stitches`: the scheme by which they pass values from the first to the second,
    and the rule. `refusals`: those between the two, or between their kernels. `remark`: any further remark.
    """
    first, second = (_primitives(explanation, node) for node in (producer, consumer))
    kernels = [k for k in explanation["kernels"] if first & set(k["nodes"]) and second & set(k["nodes"])]
    stitches = [s for k in kernels for s in k["stitches"] if s["producer"] in first and s["consumer"] in second]
    refusals = _between(explanation, first, second)
    if not kernels and not refusals:
        refusals = _between(explanation, *(_neighbours(explanation, nodes) for nodes in (first, second)))
    remark = "" if kernels or refusals else _unrelated(explanation, first, second)
    return {
        "producer": producer, "consumer": consumer, "kernels": kernels, "stitches": stitches, "refusals": refusals,
        "remark": remark,
    }  # fmt: skip


def knows(explanation: Mapping[str, Any], node: str) -> bool:
    """Return whether any kernel or host step computes something of `node`."""
    return bool(_primitives(explanation, node))


def subjects(refusal: Mapping[str, Any]) -> set[str]:
    """Return the nodes or kernels that a refusal is about."""
    return set(_BETWEEN.split(refusal["subject"]))


def with_origins(explanation: Mapping[str, Any], subject: str) -> str:
    """Return the subject of a refusal, with each node followed by the model's node from which it stems."""
    origins: Mapping[str, list[str]] = explanation["origins"]

    def named(name: str) -> str:
        first, *more = origins.get(name) or [name]  # results of rewriting constants stem from no node
        return name if first == name else f"{name} ({first}{', …' if more else ''})"

    parts = _BETWEEN.split(subject)
    between = [*_BETWEEN.findall(subject), ""]
    return "".join(named(part) + mark for part, mark in zip(parts, between, strict=True))


def _primitives(explanation: Mapping[str, Any], node: str) -> set[str]:
    return {name for name, origins in explanation["origins"].items() if node == name or node in origins}


def _between(explanation: Mapping[str, Any], first: set[str], second: set[str]) -> list[Mapping[str, Any]]:
    return [r for r in explanation["refusals"] if first & subjects(r) and second & subjects(r)]


def _neighbours(explanation: Mapping[str, Any], nodes: set[str]) -> set[str]:
    """Return all nodes of the kernels that compute `nodes`, and the names of these kernels."""
    kernels = [k for k in explanation["kernels"] if nodes & set(k["nodes"])]
    return nodes.union(*({k["name"], *k["nodes"]} for k in kernels))


def _unrelated(explanation: Mapping[str, Any], first: set[str], second: set[str]) -> str:
    host = [s["name"] for s in explanation["host_steps"] if s["name"] in first | second]
    if host:
        return f"{host[0]} runs with numpy between the kernels"
    return "nothing that one of the first stores is read by a kernel of the second"
