"""Explanations (of `explain_plan`): what became of a node of the model, and of an edge between two; and what artifacts
store, without what the accompanying plan contains, which is restored on reading.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]

# A refusal concerns one node, or several: `producer -> consumer`, `a + b`.
_BETWEEN = re.compile(r" -> | \+ ")


def explain_node(explanation: Json, node: str) -> dict[str, Any]:
    """Return the parts of an explanation about one node of the model or the graph: kernels, host steps, refusals that
    name it.
    """
    kernels = [k for k in explanation["kernels"] if node in k["onnx_nodes"] or node in k["nodes"]]
    host_steps = [h for h in explanation["host_steps"] if node in h["onnx_nodes"] or node == h["name"]]
    names = {node, *(n for k in kernels for n in k["nodes"] if node in k["onnx_nodes"])}
    refusals = [r for r in explanation["refusals"] if names & subjects(r)]
    return {"node": node, "kernels": kernels, "host_steps": host_steps, "refusals": refusals}


def explain_edge(explanation: Json, producer: str, consumer: str) -> dict[str, Any]:
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


def knows(explanation: Json, node: str) -> bool:
    """Return whether any kernel or host step computes something of `node`."""
    return bool(_primitives(explanation, node))


def subjects(refusal: Mapping[str, Any]) -> set[str]:
    """Return the nodes or kernels that a refusal is about."""
    return set(_BETWEEN.split(refusal["subject"]))


def with_origins(explanation: Json, subject: str) -> str:
    """Return the subject of a refusal, with each node followed by the model's node from which it stems."""
    origins: Mapping[str, list[str]] = explanation["origins"]

    def named(name: str) -> str:
        first, *more = origins.get(name) or [name]  # results of rewriting constants stem from no node
        return name if first == name else f"{name} ({first}{', …' if more else ''})"

    parts = _BETWEEN.split(subject)
    between = [*_BETWEEN.findall(subject), ""]
    return "".join(named(part) + mark for part, mark in zip(parts, between, strict=True))


def _primitives(explanation: Json, node: str) -> set[str]:
    return {name for name, origins in explanation["origins"].items() if node == name or node in origins}


def _between(explanation: Json, first: set[str], second: set[str]) -> list[Mapping[str, Any]]:
    return [r for r in explanation["refusals"] if first & subjects(r) and second & subjects(r)]


def _neighbours(explanation: Json, nodes: set[str]) -> set[str]:
    """Return all nodes of the kernels that compute `nodes`, and the names of these kernels."""
    kernels = [k for k in explanation["kernels"] if nodes & set(k["nodes"])]
    return nodes.union(*({k["name"], *k["nodes"]} for k in kernels))


def _unrelated(explanation: Json, first: set[str], second: set[str]) -> str:
    host = [s["name"] for s in explanation["host_steps"] if s["name"] in first | second]
    if host:
        return f"{host[0]} runs with numpy between the kernels"
    return "nothing that one of the first stores is read by a kernel of the second"


def _stitches(group: Json) -> list[dict[str, Any]]:
    return [dict(zip(("producer", "consumer", "scheme", "rule"), stitch, strict=True)) for stitch in group["stitches"]]


OF_GROUPS: Mapping[str, Callable[[Json], Any]] = {
    "kind": lambda group: group["kind"],
    "onnx_nodes": lambda group: group["origins"],
    "nodes": lambda group: group["nodes"],
    "inputs": lambda group: group["inputs"],
    "outputs": lambda group: group["outputs"],
    "composition": lambda group: list(dict.fromkeys(scheme for _, _, scheme, _ in group["stitches"])),
    "stitches": _stitches,
    "floats": lambda group: group.get("floats", []),
}
"""Fields of a kernel that can be derived from its group in the plan."""


def without_plans(explained: Json, plans: Sequence[Json]) -> dict[str, Any]:
    """Return the result of `explain_plan` (several specialisations are under `specialisations`) without what their
    plans contain.
    """
    first, *others = plans
    short = _without_plan(explained, first)
    if "specialisations" in explained:
        told = zip(explained["specialisations"], others, strict=True)
        short["specialisations"] = [_without_plan(each, plan) for each, plan in told]
    return short


def with_plans(short: Json, plans: Sequence[Json]) -> dict[str, Any]:
    """Return the explanation that `without_plans` reduced to `short`, given the same plans."""
    first, *others = plans
    explained = _with_plan(short, first)
    if "specialisations" in short:
        told = zip(short["specialisations"], others, strict=True)
        explained["specialisations"] = [_with_plan(each, plan) for each, plan in told]
    return explained


def _without_plan(explained: Json, plan: Json) -> dict[str, Any]:
    fields = _PlanFields(plan)
    short = {**explained, "kernels": [fields.cut_from(kernel) for kernel in explained["kernels"]]}
    if short["refusals"] == _refusals(explained, plan):
        del short["refusals"]
    short["bodies"] = {key: _without_plan(body, plan["bodies"][key]) for key, body in explained["bodies"].items()}
    return short


def _with_plan(short: Json, plan: Json) -> dict[str, Any]:
    fields = _PlanFields(plan)
    kernels = [fields.filled_into(kernel) for kernel in short["kernels"]]
    bodies = {key: _with_plan(body, plan["bodies"][key]) for key, body in short["bodies"].items()}
    return {"refusals": _refusals(short, plan), **short, "kernels": kernels, "bodies": bodies}


def _refusals(explained: Json, plan: Json) -> list[Any]:
    """Return the refusals of a plan and of the plans that it calls."""
    called = explained["calls"].items()
    return [*plan["refusals"], *(r for key, one in called for r in _refusals(one, plan["bodies"][key]))]


class _PlanFields:
    """What a plan contains about kernels: its own, and those of what it calls. Calls within calls are left
    unchanged.
    """

    def __init__(self, plan: Json) -> None:
        plans = {None: plan, **plan["bodies"]}
        self._groups = {(key, group["name"]): group for key, each in plans.items() for group in each["groups"]}

    def _of(self, kernel: Json) -> dict[str, Any]:
        group = self._groups.get((kernel.get("body"), kernel["name"]))
        return {} if group is None else {field: of(group) for field, of in OF_GROUPS.items()}

    def cut_from(self, kernel: Json) -> dict[str, Any]:
        kept = self._of(kernel)
        return {field: value for field, value in kernel.items() if field not in kept or kept[field] != value}

    def filled_into(self, kernel: Json) -> dict[str, Any]:
        first = {field: kernel[field] for field in ("number", "body", "name") if field in kernel}
        return {**first, **self._of(kernel), **kernel}
