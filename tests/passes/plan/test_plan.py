"""StitchPlan: JSON both ways, what is refused, and replay on the wrong graph."""

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.passes import PassContext, PlanError, PlanMismatchError, StitchPlan, check_plan, load_plan, make_plan
from tilestitch.passes.plan import ALIGNMENT, Buffer, BufferPlan, WhyNot
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.schedule.memory import _place

TEXT = """graph @g(%x: float32[8,8], %w: float32[8,8]) -> (%y) {
  %m = matmul(%x, %w) : float32[8,8]
  %a = tanh(%m) : float32[8,8]
  %n = matmul(%a, %w) : float32[8,8]
  %r = reduce_max(%n) {axes=[1], keepdims=true} : float32[8,1]
  %y = sub(%n, %r) : float32[8,8]
}"""


def graph() -> Graph:
    return parse_graph(TEXT)


def plan() -> StitchPlan:
    return make_plan(graph(), PassContext())


def test_a_plan_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan().save(path)
    assert load_plan(path, graph()) == plan()


def test_planning_twice_gives_the_same_text() -> None:
    assert json.dumps(plan().to_json()) == json.dumps(plan().to_json())


def test_replay_on_another_graph_is_refused_with_both_fingerprints(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan().save(path)
    other = parse_graph(TEXT.replace("tanh", "exp"))
    with pytest.raises(PlanMismatchError, match=f"{plan().fingerprint[:12]}.*leave out --plan"):
        load_plan(path, other)


H100 = TargetInfo("cuda", 1, "H100 SXM", ("sm_90a",), 132)


@pytest.mark.parametrize(
    ("made_for", "asked_for", "reason"),
    [
        (H100, TargetInfo("cpu", 2), "made for cuda, not for cpu"),
        (TargetInfo("cpu", 2), H100, "made for cpu, not for cuda"),
        (TargetInfo("cpu", 2, isa="avx512"), TargetInfo("cpu", 2, isa="avx2"), r"cpu \(avx512\), not for cpu \(avx2\)"),
        (H100, TargetInfo("cuda", 1, "A100 40GB", ("sm_80",), 108), r"H100 SXM \(sm_90a\), not for A100"),
        (H100, TargetInfo("cuda", 1, "H100 SXM", ("sm_90a",), 114), "need 132 multiprocessors"),
    ],
)
def test_replay_on_another_machine_is_refused(
    made_for: TargetInfo, asked_for: TargetInfo, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    make_plan(graph(), PassContext(made_for)).save(path)
    assert load_plan(path, graph(), made_for).target == made_for
    with pytest.raises(PlanMismatchError, match=f"{reason}.*--target"):
        load_plan(path, graph(), asked_for)


def test_a_plan_for_a_cpu_suits_any_number_of_threads(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    make_plan(graph(), PassContext(TargetInfo("cpu", 2))).save(path)
    load_plan(path, graph(), TargetInfo("cpu", 16))


def test_a_file_that_is_no_plan_is_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{")
    with pytest.raises(PlanError, match=r"plan\.json is no JSON text"):
        load_plan(path, graph())
    path.write_text("{}")
    with pytest.raises(PlanError, match=r"plan\.json.*format"):
        load_plan(path, graph())


def damaged(**changes: Any) -> StitchPlan:
    """The plan with entries of its JSON form changed; keys are paths such as `groups.0.kind`."""
    data = plan().to_json()
    for path, value in changes.items():
        *parents, last = [int(p) if p.isdigit() else p for p in path.split("__")]
        target: Any = data
        for parent in parents:
            target = target[parent]
        target[last] = value
    return StitchPlan.from_json(data)


DAMAGE: dict[str, dict[str, Any]] = {
    "a kind that does not exist": {"groups__0__kind": "magic"},
    "the wrong kind": {"groups__0__kind": "opaque"},
    "a node that does not exist": {"groups__0__nodes": ["m", "q"]},
    "an output that nothing computes": {"groups__0__outputs": ["y"]},
    "an operand left out": {"groups__0__inputs": ["x"]},
    "a group twice": {"segments__0__groups": ["matmul_tanh", "matmul_tanh"]},
    "groups in the wrong order": {"segments__0__groups": ["max_sub", "matmul", "matmul_tanh"]},
    "a buffer that is too small": {"buffers__buffers__0__2": 8},
    "a buffer out of the arena": {"buffers__buffers__0__1": 1 << 20},
    "a buffer that is not aligned": {"buffers__buffers__0__1": 4},
    "a buffer that dies too early": {"buffers__buffers__0__4": 0},
    "buffers on top of each other": {"buffers__buffers__1__1": 0},
    "no buffers": {"buffers__buffers": []},
    "an alias of nothing": {"buffers__aliases": {"m": "x"}},
    "another version": {"version": 99},
    "an unknown field": {"extra": 1},
    "a number where a name belongs": {"groups__0__name": 3},
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_plan_is_refused(name: str) -> None:
    with pytest.raises(PlanError):
        check_plan(damaged(**DAMAGE[name]), graph())


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_damage_to_a_field_crashes(data: st.DataObject) -> None:
    """Whatever stands in a field: a PlanError, or a plan that still passes all checks."""
    tree = copy.deepcopy(plan().to_json())
    spots: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            spots.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    walk(tree)
    parent, key = data.draw(st.sampled_from(range(len(spots))).map(spots.__getitem__))
    parent[key] = data.draw(st.one_of(st.none(), st.integers(-5, 5), st.text(max_size=3), st.just([]), st.just({})))
    with contextlib.suppress(PlanError):
        check_plan(StitchPlan.from_json(tree), graph())


def test_a_refusal_reads_as_one_sentence() -> None:
    why = WhyNot("a -> b", "profit.row", "a row is too long", {"row_bytes": 10})
    assert str(why) == "a -> b: a row is too long (row_bytes=10) [profit.row]"
    assert WhyNot.from_json(why.to_json()) == why


# -- memory ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 9), st.integers(0, 9)), max_size=25))
def test_buffers_alive_together_never_overlap(items: list[tuple[int, int, int]]) -> None:
    graph = Graph()
    values = [(graph.constant(np.zeros(size, np.float32), name="v"), min(a, b), max(a, b)) for size, a, b in items]
    buffers = _place(values)
    end = max((-(-(b.offset_bytes + b.nbytes) // ALIGNMENT) * ALIGNMENT for b in buffers), default=0)
    BufferPlan(end, tuple(buffers))  # checks offsets, alignment and overlap
    most = max((sum(b.nbytes for b in buffers if b.first <= t <= b.last) for t in range(10)), default=0)
    assert end <= 2 * most + ALIGNMENT * len(items)


def test_memory_is_used_again_after_a_value_is_dead() -> None:
    text = "graph @g(%x: float32[16,16]) -> (%m5) {\n%m0 = matmul(%x, %x) : float32[16,16]\n"
    text += "".join(f"%m{i} = matmul(%m{i - 1}, %x) : float32[16,16]\n" for i in range(1, 6)) + "}"
    buffers = make_plan(parse_graph(text), PassContext()).buffers
    assert len(buffers.buffers) == 5 and buffers.arena_bytes == 2 * 16 * 16 * 4


FORK = """graph @g(%x: float32[16,16]) -> (%y) {
  %a0 = matmul(%x, %x) : float32[16,16]
  %a1 = matmul(%a0, %x) : float32[16,16]
  %b0 = matmul(%x, %x) {trans_a=true} : float32[16,16]
  %b1 = matmul(%b0, %x) : float32[16,16]
  %c1 = matmul(%b1, %x) : float32[16,16]
  %y = matmul(%a1, %c1) : float32[16,16]
}"""


@pytest.mark.parametrize(("target", "buffers"), [("cpu", 3), ("cuda", 4)])
def test_what_may_run_together_shares_no_memory(target: str, buffers: int) -> None:
    plan = make_plan(parse_graph(FORK), PassContext(TargetInfo(target), {"planner": "injective"}))
    assert plan.buffers.arena_bytes == buffers * 16 * 16 * 4
    places = {b.value: b.offset_bytes for b in plan.buffers.buffers}
    assert (places["b0"] in (places["a0"], places["a1"])) == (target == "cpu")
    check_plan(plan, parse_graph(FORK))


def test_overlapping_buffers_are_refused() -> None:
    with pytest.raises(PlanError, match="overlap"):
        BufferPlan(128, (Buffer("a", 0, 100, 0, 2), Buffer("b", 64, 64, 1, 3)))
