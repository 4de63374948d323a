"""Chains with GEMMs whose blocks walk over tiles (wgmma), which read what others store by copies of tensors (TMA)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from tests.codegen.cuda import test_cuda_tied as tied
from tests.codegen.cuda.contraction_harness import assembler_log
from tests.codegen.cuda.cuda_harness import target
from tests.codegen.cuda.test_cuda_tickets import ORDERS
from tests.passes.sync.graphs import convolutions, mlp, operand
from tests.passes.sync.tying import retied
from tilestitch.codegen.cuda.group import lower_group
from tilestitch.codegen.cuda.toolchain.text import kernel_text
from tilestitch.compiler.ir import Graph
from tilestitch.passes import PassContext, StitchPlan, make_plan
from tilestitch.passes.plan.gemm.tiles import MmaTile, WgmmaTile
from tilestitch.passes.plan.schedules import GemmSchedule
from tilestitch.passes.schedule.cuda import gemm_tiles
from tilestitch.runtime.emulator.errors import KernelFaultError

GPU = "cuda:sm_90a"
SMALL = GemmSchedule(WgmmaTile(64, 64, 1, False, 4), 1, 3, 2)
IN_TURNS = GemmSchedule(WgmmaTile(64, 64, 1, True, 3), 1, 2, 1)
SHARED = GemmSchedule(WgmmaTile(128, 64, 2, False, 3), 1, 2, 1)
CLUSTER = GemmSchedule(WgmmaTile(64, 128, 1, False, 3, cluster=2), 1, 2, 1)
PARTS = replace(SMALL, split_k=2)
WARPS = GemmSchedule(MmaTile(32, 64, 32, 2, 2, 4, 2), 1, 0, 2)
PAIRS: Mapping[str, tuple[GemmSchedule, GemmSchedule]] = {
    "small tiles": (SMALL, SMALL),
    "two warpgroups in turns": (IN_TURNS, IN_TURNS),
    "two warpgroups share rows": (SHARED, SHARED),
    "clusters, and a tile that is not there": (CLUSTER, CLUSTER),
    "sums in parts": (PARTS, PARTS),
    "reads tiles of warps": (WARPS, SMALL),
    "read by tiles of warps": (SMALL, WARPS),
}


def chain() -> Graph:
    """Two GEMMs of 3 x 3 tiles of 64 x 64, with edges."""
    return mlp(136, 136, 168, "float16")


def planned(graph: Graph, schedules: Sequence[GemmSchedule], policy: str = "tile") -> StitchPlan:
    """The GEMMs with the schedules, tied."""
    plan = make_plan(graph, PassContext(target(GPU).planned_for, {"planner": "xla"}))
    given = iter(schedules)
    groups = [replace(g, schedule=next(given)) if isinstance(g.schedule, GemmSchedule) else g for g in plan.groups]
    found = retied(graph, plan, groups, f"{policy}/launches")
    assert [group.tie for group in found.groups] == ["launches"]
    return found


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tied, "GPU", GPU)
    for schedule in (IN_TURNS, SHARED, CLUSTER):
        monkeypatch.setitem(gemm_tiles._SPEEDS, schedule.tile, 0.1)


@pytest.mark.parametrize("options", ORDERS[1:], ids=lambda o: f"{o.block_order}-{o.resident_blocks}")
@pytest.mark.parametrize("pair", PAIRS)
def test_dependent_gemms_overlap(pair: str, options: tied.EmulatorOptions) -> None:
    graph = chain()
    tied.check(graph, planned(graph, PAIRS[pair]), options)


@pytest.mark.parametrize("policy", ["row", "kernel"])
def test_every_policy_computes_the_same(policy: str) -> None:
    graph = chain()
    tied.check(graph, planned(graph, (SMALL, CLUSTER), policy), ORDERS[2])


@pytest.mark.parametrize("options", [ORDERS[1], ORDERS[3]], ids=lambda o: f"{o.resident_blocks}")
def test_the_epilogue_reads_what_was_waited_for(options: tied.EmulatorOptions) -> None:
    """By loads, of threads that have not looked themselves: they come after the thread that has, by the ring."""
    graph = Graph("residual")
    x, w, v = (operand(graph, name, 136, 136, dtype="float16") for name in "xwv")
    a = graph.emit("matmul", x, w)
    graph.outputs = [graph.emit("add", graph.emit("matmul", a, v), a)]
    tied.check(graph, planned(graph, (SMALL, SMALL)), options)


def test_both_operands_are_waited_for() -> None:
    graph = Graph("square")
    a = graph.emit("matmul", *(operand(graph, name, 136, 136, dtype="float16") for name in "xw"))
    graph.outputs = [graph.emit("matmul", a, a)]
    tied.check(graph, planned(graph, (SMALL, SMALL)), ORDERS[2])


def test_a_convolution_waits_for_all() -> None:
    """Patches reach beyond the pixels that they need."""
    graph = convolutions(2, 64, 10, "float16")
    tied.check(graph, planned(graph, (SMALL, SMALL)), ORDERS[3])


# -- code --------------------------------------------------------------------------------------------------------------


def text_of(schedules: Sequence[GemmSchedule]) -> str:
    """Of the second launch, from its function on."""
    graph = chain()
    launch = lower_group(graph, planned(graph, schedules).groups[0], target(GPU))[-1]
    text = kernel_text(launch.func, target(GPU))
    return text[text.rindex('extern "C"') :]


@pytest.mark.parametrize("tile", [SMALL, SHARED, CLUSTER], ids=["small", "shared", "cluster"])
def test_weights_are_on_their_way_before_the_wait(tile: GemmSchedule) -> None:
    text = text_of((SMALL, tile))
    early, late = text[: text.index("ts_ticket_await")], text[text.index("ts_ticket_await") :]
    copies = [re.findall(r"ts_sm90_(?:copy|share)_\dd\([^;]*?(p\d+)", part) for part in (early, late)]
    assert len(copies[0]) == 1 and sorted(set(copies[1])) == sorted({copies[0][0], *copies[1]})
    assert len(set(copies[1])) == 2, "both operands after it"


def test_a_kernel_apart_is_as_before() -> None:
    graph = chain()
    plan = make_plan(graph, PassContext(target(GPU).planned_for, {"planner": "xla"}))
    group = replace(plan.groups[0], schedule=SMALL)
    (launch,) = lower_group(graph, group, target(GPU))
    text = kernel_text(launch.func, target(GPU))
    body = text[text.rindex('extern "C"') :]
    assert not any(name in body for name in ("ts_ticket", "ts_tied", "ts_sm90_meet", "ts_sm90_expect"))


@pytest.mark.parametrize("pair", ["two warpgroups share rows", "two warpgroups in turns", "small tiles"])
def test_the_assembler_has_no_complaint(pair: str) -> None:
    """Nothing spilled, registers moved, GEMMs of a group under way together."""
    graph = chain()
    launch = lower_group(graph, planned(graph, PAIRS[pair]).groups[0], target(GPU))[-1]
    log = assembler_log(launch, "sm_90a", target(GPU))
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log
    assert not re.search(r"C75\d\d|setmaxnreg|[Ss]erializ", log), log


# -- planted faults ----------------------------------------------------------------------------------------------------

PLANTED: Mapping[str, tuple[str, str, str]] = {
    "a post that is missing": (r"\n\s*ts_ticket_post_one\([^;]*;", "", "deadlock"),
    "a wait that is missing": (r"\n\s*ts_ticket_await\([^;]*;", "", "race"),
    "a wait that orders nothing": (r"ld\.acquire\.gpu", "ld.relaxed.gpu", "race"),
    "a post that orders nothing": (r"red\.release\.gpu", "red.relaxed.gpu", "race"),
    "a post before other threads have stored": (r"\n\s*ts_sm90_meet\([^;]*;", "", "race"),
    "what is stored is not shown to copies": (r"\n\s*ts_ticket_show\([^;]*;", "", "wrote with no fence.proxy.async"),
    "threads of a warp that do not come after those that looked": (
        r"(ts_ticket_await\([^;]*;\s*}?)\s*ts_sm90_sync_warp\(\);", r"\1", "race",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_are_found(fault: str) -> None:
    pattern, instead, found = PLANTED[fault]
    graph = chain()
    plan = planned(graph, (SMALL, SMALL))
    problems = []
    for options in (ORDERS[2], ORDERS[3], ORDERS[4]):
        tied.run(graph, plan, "nothing like this", "", options)
        try:
            assert tied.run(graph, plan, pattern, instead, options)
        except KernelFaultError as error:
            problems.append(str(error).lower())
    assert problems and all(found in problem for problem in problems), problems
