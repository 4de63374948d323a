"""Explanations as stored in artifacts: without what the accompanying plan contains, which is restored on reading."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]


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
