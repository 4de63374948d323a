"""Plans edited by hand: one that cannot be carried out is refused in one sentence, before code is generated."""

from __future__ import annotations

import contextlib
import copy
import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.networks import bert
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.passes import PassContext, PlanError, StitchPlan, check_plan, make_plan, run_pipeline
from tilestitch.passes.errors import PlanMismatchError
from tilestitch.passes.plan.difference import differences
from tilestitch.passes.plan.gemm.tiles import SimtTile
from tilestitch.passes.plan.launches.launch import Edge
from tilestitch.passes.plan.schedules import GemmSchedule, schedule_to_json
from tilestitch.passes.plan.target import TargetInfo

H200 = TargetInfo("cuda", 1, "H200", ("sm_90a",), 132)
CPU = TargetInfo("cpu", 2)


def rows() -> Graph:
    """A softmax of few long rows, which several blocks share, by way of temporary memory."""
    graph = Graph("rows")
    x = graph.add_input("x", TensorType("float32", (2, 200_000)))
    e = graph.emit("exp", graph.emit("sub", x, graph.emit("reduce_max", x, axes=(1,), keepdims=True)))
    graph.outputs = [graph.emit("div", e, graph.emit("reduce_sum", e, axes=(1,), keepdims=True))]
    return graph


def branch() -> Graph:
    """An If whose branches are kernels."""
    then = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "x"], ["a"]),
            helper.make_node("Tanh", ["a"], ["b"]),
            helper.make_node("MatMul", ["b", "x"], ["c"]),
            helper.make_node("MatMul", ["c", "b"], ["d"]),
        ],
        "then", [], [helper.make_tensor_value_info("d", TensorProto.FLOAT, [64, 64])],
    )  # fmt: skip
    otherwise = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["e"])], "else", [],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, [64, 64])],
    )  # fmt: skip
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("If", ["p"], ["y"], "if", then_branch=then, else_branch=otherwise)], "branch",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 64]),
                helper.make_tensor_value_info("p", TensorProto.BOOL, []),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 64])],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
    )  # fmt: skip
    return import_model(model).graph


def encoder() -> Graph:
    """Stitched kernels, bands and split-K."""
    return import_model(bert()).graph


GRAPHS = {"rows": rows, "branch": branch, "encoder": encoder}


@cache
def planned(name: str, target: TargetInfo = H200) -> tuple[Graph, str]:
    """The graph after all passes, and its plan as JSON text."""
    context = PassContext(target)
    graph = run_pipeline(GRAPHS[name](), context)
    return graph, json.dumps(make_plan(graph, context).to_json())


def check(name: str, changes: dict[str, Any], target: TargetInfo = H200) -> None:
    """Check the plan with entries of its JSON form changed; keys are paths such as `groups/0/kind`."""
    graph, text = planned(name, target)
    data = json.loads(text)
    for path, value in changes.items():
        *parents, last = [int(p) if p.isdigit() else p for p in path.split("/")]
        at = data
        for parent in parents:
            at = at[parent]
        at[last] = value
    check_plan(StitchPlan.from_json(data), graph, target)


ANEW = {"launches": None, "edges": None}
FAULTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "two edges between two launches": (
        "encoder", {"edges/1": [0, 1, "full", "mine"], "edges/0": [0, 1, "full", ""]}, "two edges from launch 0 to 1",
    ),
    "an arena larger than all that lies in it": ("encoder", {"buffers/arena_bytes": 1 << 61}, "the arena has"),
    "a buffer larger than its value": (
        "branch",
        {"bodies/if.then_graph/buffers/buffers/1/1": 1 << 40, "bodies/if.then_graph/buffers/buffers/1/2": 1 << 20,
         "bodies/if.then_graph/buffers/arena_bytes": 1 << 41, "bodies/if.then_graph/launches": None},
        "its buffer 1048576",
    ),
    "rows without a schedule": (
        "rows", {**ANEW, "groups/0/schedule": None}, "max_sub_exp_sum_etc has no schedule",
    ),
    "temporary memory that no machine has": ("rows", {"launches/0/temporaries/0/1": 1 << 62}, "nbytes is 4611"),
    "more blocks than a row has elements": (
        "rows", {**ANEW, "groups/0/schedule": {"template": "rows", "lanes": 4, "team": 32, "rows": 1,
                                               "blocks_per_row": 1 << 31}}, "are not shared by 2147483648 blocks",
    ),
    "no plan of a branch": ("branch", {"bodies": {}}, "plans of nested graphs are missing"),
    "a branch of unknown nodes": (
        "branch", {"bodies/if.else_graph/groups/0/nodes": ["q"], "bodies/if.else_graph/launches": None},
        "no node q",
    ),
    "a branch without tiles": (
        "branch", {"bodies/if.then_graph/groups/0/schedule/tile/bm": 0, "bodies/if.then_graph/launches": None},
        "do not fill a tile",
    ),
    "a branch without vectors": (
        "branch", {"bodies/if.else_graph/groups/0/schedule/lanes": 0, "bodies/if.else_graph/launches": None}, "0 lanes",
    ),
    "vectors without end": (
        "branch", {"bodies/if.else_graph/groups/0/schedule/vectors": 1 << 31, "bodies/if.else_graph/launches": None},
        "more than 64",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_plan_that_cannot_be_carried_out_is_refused_with_the_reason(fault: str) -> None:
    name, changes, reason = FAULTS[fault]
    with pytest.raises(PlanError, match=reason):
        check(name, changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"schedule": None}, "no schedule of its bands"),
        ({"schedule/share_rows": 0}, "a share has 0 rows"),
        ({"schedule/share_rows": 1 << 62}, "a share has 4611686018427387904 rows, a band"),
        ({"schedule/resident_blocks": 0}, "the device holds 0 blocks"),
        ({"schedule/resident_blocks": 1 << 31}, "2147483648 resident blocks: at most"),
        ({"schedule/polls": 1 << 63}, "9223372036854775808 polls"),
        ({"stages/0/0/schedule": None}, r"matmul_add\w* has no schedule"),
    ],
)
def test_bands_are_checked_before_code_is_generated(changes: dict[str, Any], reason: str) -> None:
    groups = json.loads(planned("encoder")[1])["groups"]
    number = next(i for i, group in enumerate(groups) if group["stages"] and group["tie"] == "band")
    with pytest.raises(PlanError, match=reason):
        check("encoder", {**ANEW, **{f"groups/{number}/{path}": value for path, value in changes.items()}})


def test_a_stitched_group_has_the_schedules_of_its_parts_only() -> None:
    groups = json.loads(planned("encoder")[1])["groups"]
    number = next(i for i, group in enumerate(groups) if group["stages"] and group["tie"] == "barrier")
    band = next(group["schedule"] for group in groups if group["stages"] and group["tie"] == "band")
    with pytest.raises(PlanError, match="a schedule besides those of its parts"):
        check("encoder", {f"groups/{number}/schedule": band})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"edges": [[0, 1, "full", ""]]}, "on a CPU launches follow each other"),
        (
            {"buffers/temporaries": [["exp", "sums", 1 << 20, 64]], "buffers/arena_bytes": (1 << 20) + 64},
            "the arena has",
        ),
    ],
)
def test_edges_and_memory_that_no_launch_of_a_cpu_needs_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        check("encoder", changes, CPU)


def test_a_plan_cut_for_fewer_multiprocessors_is_refused() -> None:
    with pytest.raises(PlanMismatchError, match="cut for 7 multiprocessors, not for 132"):
        check("encoder", {**ANEW, "target/multiprocessors": 7})


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["rows", "branch", "encoder"]), st.booleans(), st.data())
def test_no_damage_to_a_field_of_a_plan_for_a_gpu_crashes(name: str, anew: bool, data: st.DataObject) -> None:
    """Whatever stands in a field: a PlanError, or a plan that still passes all checks."""
    graph, text = planned(name)
    tree = json.loads(text)
    if anew:
        for plan in (tree, *tree["bodies"].values()):
            plan["launches"] = plan["edges"] = None
    spots: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            spots.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    walk(tree)
    parent, key = data.draw(st.sampled_from(range(len(spots))).map(spots.__getitem__))
    numbers = st.one_of(st.integers(-2, 9), st.sampled_from([64, 1 << 31, 1 << 62, 1 << 63]))
    edits = st.one_of(
        st.none(), st.booleans(), numbers, st.text(max_size=3), st.just([]), st.just({}), st.just("twice")
    )
    edit = data.draw(edits)
    if edit == "twice" and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(parent[key]))
    else:
        parent[key] = edit
    with contextlib.suppress(PlanError):
        check_plan(StitchPlan.from_json(tree), graph, H200)


def test_two_temporaries_of_one_group_both_show_in_a_difference() -> None:
    _, text = planned("rows")
    before = StitchPlan.from_json(json.loads(text))
    data = json.loads(text)
    temporaries = data["buffers"]["temporaries"]
    assert len({group for group, *_ in temporaries}) < len(temporaries), "several temporaries of one group"
    first, last = temporaries[0], temporaries[-1]
    assert np.isclose(first[3], last[3])
    first[2], last[2] = last[2], first[2]
    paths = {path for path, _, _ in differences(before, StitchPlan.from_json(data))}
    assert paths == {f"buffers.temporaries.{group}.{name}" for group, name, *_ in (first, last)}


@pytest.mark.parametrize("number", [10**3, 2**63, 10**400])
def test_an_edge_to_no_launch_shows_in_a_difference_by_its_number(number: int) -> None:
    _, text = planned("encoder")
    before = StitchPlan.from_json(json.loads(text))
    after = replace(before, edges=(*(before.edges or ()), Edge(0, number, reason="mine")))
    ((path, old, new),) = differences(before, after)
    assert path.endswith(f"-> launch {number}") and (old, new) == (None, ["full", "mine"])
    assert len(list(differences(before, replace(before, launches=None)))) > 1


@pytest.mark.parametrize(("target", "other"), [(H200, CPU), (CPU, H200)], ids=["gpu", "cpu"])
@pytest.mark.parametrize("name", ["rows", "encoder"])
def test_schedules_of_the_other_target_are_refused_whatever_the_group(
    name: str, target: TargetInfo, other: TargetInfo
) -> None:
    graph, _ = planned(name, target)
    plan, foreign = (StitchPlan.from_json(json.loads(planned(name, t)[1])) for t in (target, other))
    schedules = {part.schedule for group in foreign.groups for part in group.parts or (group,)}
    alone = [number for number, group in enumerate(plan.groups) if not group.parts]
    assert schedules and alone
    for number in alone:
        group = plan.groups[number]
        for schedule in schedules:
            groups = [*plan.groups[:number], replace(group, schedule=schedule), *plan.groups[number + 1 :]]
            with pytest.raises(PlanError, match=f"template .* is not for {target.name}"):
                check_plan(replace(plan, groups=tuple(groups), launches=None, edges=None), graph, target)


def test_tiles_of_gemms_are_for_contractions_alone() -> None:
    gemm = schedule_to_json(GemmSchedule(SimtTile(64, 64, 16, 4, 4)))
    with pytest.raises(PlanError, match="template gemm does not compute a group of kind rowwise"):
        check("rows", {**ANEW, "groups/0/schedule": gemm})
