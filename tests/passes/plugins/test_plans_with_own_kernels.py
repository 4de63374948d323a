"""Plans of groups whose kernels a plug-in brings: shown without a schedule, replayed with the plug-in, else refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.passes import PassContext, PlanError, StitchPlan, TargetInfo, check_plan, explain_plan, make_plan
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.launches.own import OwnKernels
from tilestitch.passes.plan.own_kernels import CKernel, CudaKernel, OwnKernel, Temporary
from tilestitch.passes.plan.stitch_plan import PluginRecord

TEXT = """graph @g(%x: float32[6,40]) -> (%y) {
  %m = matmul(%x, %x) {trans_b=true} : float32[6,6]
  %n = neg(%m) : float32[6,6]
  %y = matmul(%n, %x) : float32[6,40]
}"""
GPU = TargetInfo("cuda", 1, "H200", ("sm_90a",), 132)
CPU = TargetInfo("cpu", 2)
RECORD = PluginRecord("mine", "somebody", "0" * 64)


def brings(threads: int) -> Callable[[Graph, Group], OwnKernels | None]:
    """Kernels for a group of one `neg`: two launches of blocks of so many threads, and a temporary between them."""
    between = Temporary("t", 144)
    first = CudaKernel("TILESTITCH_KERNEL", (6, 1, 1), (threads, 1, 1), ("m", between))
    second = CudaKernel("TILESTITCH_KERNEL", (6, 1, 1), (threads, 1, 1), (between, "n"))
    return partial(_of_neg, (first, second))


def brings_on_cpu() -> Callable[[Graph, Group], OwnKernels | None]:
    """A task for each row."""
    return partial(_of_neg, (CKernel("TILESTITCH_KERNEL", ("m", "n"), tasks=6),))


def _of_neg(kernels: tuple[OwnKernel, ...], graph: Graph, group: Group) -> OwnKernels | None:
    if [graph.node(name).op for name in group.nodes] != ["neg"]:
        return None
    return OwnKernels("mine", "plug-in mine", kernels)


def planned(target: TargetInfo) -> tuple[Graph, dict[str, Any], Callable[[Graph, Group], OwnKernels | None]]:
    """The graph, its plan as JSON data, and the kernels that were brought."""
    graph, kernels_of = parse_graph(TEXT), brings(64) if target is GPU else brings_on_cpu()
    context = PassContext(target, {"planner": "none"}, kernels_of=kernels_of, plugins=(RECORD,))
    plan = make_plan(graph, context)
    explain_plan(graph, plan)
    return graph, json.loads(json.dumps(plan.to_json())), kernels_of


def own(data: dict[str, Any]) -> dict[str, Any]:
    (group,) = (g for g in data["groups"] if g["outputs"] == ["n"])
    assert isinstance(group, dict)
    return group


@pytest.mark.parametrize("target", [GPU, CPU], ids=lambda t: t.name)
def test_a_group_whose_kernels_a_plugin_brings_has_no_schedule(target: TargetInfo) -> None:
    graph, data, kernels_of = planned(target)
    assert own(data)["schedule"] is None
    assert [launch["kind"] for launch in data["launches"] if launch["group"] == own(data)["name"]] == (
        ["mine", "mine"] if target is GPU else ["mine"]
    )
    check_plan(StitchPlan.from_json(data), graph, target, kernels_of)


@pytest.mark.parametrize("target", [GPU, CPU], ids=lambda t: t.name)
def test_a_schedule_that_would_not_be_obeyed_is_refused(target: TargetInfo) -> None:
    graph, data, kernels_of = planned(target)
    templates = make_plan(graph, PassContext(target, {"planner": "none"}))
    own(data)["schedule"] = own(json.loads(json.dumps(templates.to_json())))["schedule"]
    with pytest.raises(PlanError, match="has a schedule, but plug-in mine brings its kernels"):
        check_plan(StitchPlan.from_json(data), graph, target, kernels_of)
    with pytest.raises(PlanError, match="has a schedule, but plug-in mine brings its kernels"):
        check_plan(templates, graph, target, kernels_of)


@pytest.mark.parametrize("target", [GPU, CPU], ids=lambda t: t.name)
def test_without_the_plugin_the_plan_is_refused_by_its_name(target: TargetInfo) -> None:
    graph, data, _ = planned(target)
    with pytest.raises(PlanError, match=r"has no schedule; if a plug-in of that plan \(mine\) brought its kernels"):
        check_plan(StitchPlan.from_json(data), graph, target)


def test_other_kernels_of_the_plugin_are_other_launches() -> None:
    graph, data, _ = planned(GPU)
    with pytest.raises(PlanError, match=r"block is \[64, 1, 1\], its schedule gives \[32, 1, 1\]"):
        check_plan(StitchPlan.from_json(data), graph, GPU, brings(32))
    check_plan(StitchPlan.from_json({**data, "launches": None, "edges": None}), graph, GPU, brings(32))


EDITS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "an edge between its launches taken out": (
        lambda data: data["edges"].remove(next(e for e in data["edges"] if e[3] == "memory of %t")), "must wait for",
    ),
    "its temporary taken out": (lambda data: data["buffers"].update(temporaries=[]), "the arena has|other temporaries"),
    "its temporary within a value": (
        lambda data: data["buffers"]["temporaries"][0].__setitem__(2, 0), "overlap|share|temporary",
    ),
    "a launch taken out": (lambda data: data["launches"].pop(1), "launch 1 of group"),
    "another order": (
        lambda data: data["segments"][0]["groups"].reverse(), "before it is written",
    ),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_launches_of_plugins_are_checked_like_others(edit: str) -> None:
    graph, data, kernels_of = planned(GPU)
    change, reason = EDITS[edit]
    change(data)
    with pytest.raises(PlanError, match=reason):
        check_plan(StitchPlan.from_json(data), graph, GPU, kernels_of)
