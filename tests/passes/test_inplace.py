"""Concats that need no kernel, since their operands are written where they belong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.cuda.cuda_harness import emulated, target
from tests.compiled import assert_close
from tests.passes.simulate import simulate
from tests.strategies import feeds
from tilestitch.codegen.assemble import Planned, assemble
from tilestitch.codegen.cpu.backend import CpuBackend
from tilestitch.codegen.cpu.target import host_target
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.compiler.ir.text import parse_graph
from tilestitch.passes import PassContext, StitchPlan, TargetInfo, check_plan, make_plan
from tilestitch.passes.errors import PlanError
from tilestitch.passes.fusion.rules.combining import GlobalStitching
from tilestitch.passes.fusion.rules.inplace import offsets_of
from tilestitch.passes.plan import Group, GroupKind, Place, Segment
from tilestitch.runtime import load
from tilestitch.runtime.artifact_writer import artifact_bytes

STATES = """graph @states(%x: float32[4,16], %w: float32[16,16]) -> (%y, %z) {
  %a = matmul(%x, %w) : float32[4,16]
  %b = matmul(%a, %w) : float32[4,16]
  %c = matmul(%b, %w) : float32[4,16]
  %ra = reshape(%a) {shape=[1,4,16]} : float32[1,4,16]
  %rb = reshape(%b) {shape=[1,4,16]} : float32[1,4,16]
  %rc = reshape(%c) {shape=[1,4,16]} : float32[1,4,16]
  %s = concat(%rc, %ra, %rb) {axis=0} : float32[3,4,16]
  %y = matmul(%s, %w) : float32[3,4,16]
  %z = reduce_sum(%s) {axes=[0], keepdims=false} : float32[4,16]
}"""

ROWS = """graph @rows(%x: float32[4,16], %w: float32[16,16], %v: float32[32,16]) -> (%y, %z) {
  %a = matmul(%x, %w) : float32[4,16]
  %b = matmul(%a, %w) : float32[4,16]
  %s = concat(%a, %b) {axis=1} : float32[4,32]
  %y = matmul(%s, %v) : float32[4,16]
  %z = reduce_sum(%s) {axes=[0], keepdims=false} : float32[32]
}"""


def planned(text: str, target: str = "cpu") -> StitchPlan:
    graph = parse_graph(text)
    plan = make_plan(graph, PassContext(TargetInfo(target, 2)))
    check_plan(plan, graph)
    assert StitchPlan.from_json(plan.to_json()) == plan
    return plan


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_states_are_written_into_the_sequence(target: str) -> None:
    plan = planned(STATES, target)
    assert [place.offset_bytes for place in plan.buffers.places.values()] == [0, 256, 512]
    assert dict(plan.buffers.places) == {"c": Place("s", 0), "a": Place("s", 256), "b": Place("s", 512)}
    assert not any("s" in group.outputs for group in plan.groups)
    (whole,) = [b for b in plan.buffers.buffers if b.value == "s"]
    assert (whole.nbytes, whole.first, whole.last) == (768, 0, len(plan.groups) - 1)
    assert not {"a", "b", "c"} & {b.value for b in plan.buffers.buffers}


def test_the_values_are_right_on_the_cpu_and_on_the_emulated_device() -> None:
    graph = parse_graph(STATES)
    given = feeds(graph, 1)
    expected = evaluate(graph, given)
    backend = CpuBackend(host_target(), 2)
    assembled = assemble(
        [Planned(graph, planned(STATES), ("y", "z"))], backend, keep_source=False, progress=lambda *_: None
    )
    with load(artifact_bytes(assembled.contents), num_threads=2) as module:
        results = list(module.run(given).values())
    with load(emulated(parse_graph(STATES), pipeline=""), device="emulator") as module:
        results += module.run(given).values()
    results += simulate(planned(STATES), graph, given)
    for got, want in zip(results, 3 * expected, strict=True):
        assert_close(got, want, 1e-5)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("operands side by side in each row", ROWS),
        ("the result is the user's", STATES.replace("-> (%y, %z)", "-> (%y, %z, %s)")),
        ("an operand is the user's", STATES.replace("-> (%y, %z)", "-> (%y, %z, %b)")),
        ("an operand twice", STATES.replace("concat(%rc, %ra, %rb)", "concat(%rc, %ra, %ra)")),
        ("an input of the graph", STATES.replace("%ra = reshape(%a)", "%ra = reshape(%x)")),
        ("places that are not aligned", STATES.replace("16", "5")),
    ],
)  # fmt: skip
def test_what_cannot_be_written_in_place(what: str, text: str) -> None:
    assert not planned(text).buffers.places, what


def test_a_plan_with_wrong_places_is_refused() -> None:
    plan, graph = planned(STATES), parse_graph(STATES)
    places = {**plan.buffers.places, "a": Place("s", 512), "b": Place("s", 256)}
    with pytest.raises(PlanError, match="is not made of"):
        check_plan(replace(plan, buffers=replace(plan.buffers, places=places)), graph)


def test_offsets_follow_nested_concats_and_views() -> None:
    graph = parse_graph("""graph @g(%a: float32[2], %b: float32[2], %c: float32[4]) -> (%y) {
      %ab = concat(%b, %a) {axis=0} : float32[4]
      %r = reshape(%ab) {shape=[2,2]} : float32[2,2]
      %rc = reshape(%c) {shape=[2,2]} : float32[2,2]
      %s = concat(%rc, %r) {axis=0} : float32[4,2]
      %y = reshape(%s) {shape=[8]} : float32[8]
    }""")
    found = offsets_of(graph.outputs[0], graph.inputs)
    assert {v.name: at for v, at in (found or {}).items()} == {"c": 0, "b": 16, "a": 24}
    assert np.prod(graph.outputs[0].shape) == 8


BOTH_WAYS = """graph @both(%x: float32[64,48]) -> (%y, %z) {
  %r = reduce_sum(%x) {axes=[1], keepdims=true} : float32[64,1]
  %a = sub(%x, %r) : float32[64,48]
  %b = mul(%x, %r) : float32[64,48]
  %c = concat(%a, %b) {axis=0} : float32[128,48]
  %e = exp(%c) : float32[128,48]
  %y = reduce_max(%e) {axes=[0], keepdims=true} : float32[1,48]
  %t = transpose(%c) {perm=[1,0]} : float32[48,128]
  %z = neg(%t) : float32[48,128]
}"""


def test_no_kernel_writes_a_part_and_reads_the_whole() -> None:
    """Kernels are promised that what they write overlaps nothing else that they are given."""
    context = PassContext(target().planned_for, {"planner": "stitch"}, rules=(GlobalStitching(forced=True),))
    plan = make_plan(parse_graph(BOTH_WAYS), context)
    assert set(plan.buffers.places) == {"a", "b"}
    assert all("c" not in g.inputs or not {"a", "b"} & set(g.outputs) for g in plan.groups)
    assert "legality.in_place" in {refusal.rule for refusal in plan.refusals}


def test_a_plan_that_says_so_is_refused() -> None:
    graph = parse_graph(BOTH_WAYS)
    plan = make_plan(graph, PassContext(target().planned_for, {"planner": "stitch"}))
    writer = next(g for g in plan.groups if "a" in g.outputs)
    reader = next(part for g in plan.groups for part in g.parts or (g,) if "c" in part.inputs)
    joined = Group(
        "joined", GroupKind.STITCHED, (*writer.nodes, *reader.nodes), None, (*writer.inputs, "c"), (),
        (*writer.outputs, *reader.outputs), stages=((writer,), (reader,)),
    )  # fmt: skip
    edited = replace(plan, groups=(joined,), segments=(Segment(True, ("joined",)),))
    with pytest.raises(PlanError, match=r"reads %c and writes a part of it"):
        check_plan(edited, graph)


class Counted(tuple[Group, ...]):
    """Groups that count how often they are walked through."""

    walks = 0

    def __iter__(self) -> Iterator[Group]:
        type(self).walks += 1
        return super().__iter__()


def test_the_check_walks_through_the_groups_as_often_for_many_concats_as_for_one() -> None:
    walks = []
    for count in (1, 8):
        body = STATES.splitlines()[1:-1]
        names = [f"{value}{i}" for i in range(count) for value in "yz"]
        lines = [re.sub(r"%(?!x|w)(\w+)", rf"%\g<1>{i}", line) for i in range(count) for line in body]
        head = f"graph @g(%x: float32[4,16], %w: float32[16,16]) -> ({', '.join('%' + n for n in names)}) {{"
        graph = parse_graph("\n".join((head, *lines, "}")))
        plan = make_plan(graph, PassContext(TargetInfo("cuda", 2)))
        assert len(plan.buffers.places) == 3 * count
        Counted.walks = 0
        check_plan(replace(plan, groups=Counted(plan.groups)), graph)
        walks.append(Counted.walks)
    assert walks[0] == walks[1]
