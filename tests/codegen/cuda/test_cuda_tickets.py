"""Stages in one launch whose blocks draw tiles and wait for those they read, on the emulated device."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from examples.sync_policy import HalfRows
from tests.codegen.cuda.cuda_harness import target
from tests.codegen.kernel_harness import interpret
from tests.compiled import assert_close
from tests.passes.sync.graphs import attention, convolutions, mlp, normalised_mlp, operand
from tests.passes.sync.tying import retied
from tests.tolerances import SUMS
from tilestitch.codegen.assemble import Planned, assemble
from tilestitch.codegen.cuda.abi import CountersArg, CudaLaunch, TemporaryArg, ValueArg
from tilestitch.codegen.cuda.backend import CudaBackend
from tilestitch.codegen.cuda.group import lower_group
from tilestitch.codegen.cuda.toolchain.compile import BuildOptions, compile_kernels
from tilestitch.codegen.cuda.toolchain.text import kernel_text
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.types import to_numpy_dtype
from tilestitch.passes import PassContext, StitchPlan, check_plan, make_plan
from tilestitch.passes.errors import PlanError
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.schedules import GemmSchedule, TicketSchedule
from tilestitch.passes.plan.sync.edges import Bound, TileEdge
from tilestitch.passes.schedule.cuda.gemm_tiles import MMA_TILES
from tilestitch.passes.schedule.launches import completed
from tilestitch.runtime import load
from tilestitch.runtime.artifact_writer import artifact_bytes
from tilestitch.runtime.emulator import EmulatorOptions, Kernels
from tilestitch.runtime.emulator.errors import KernelFaultError

ORDERS = [
    EmulatorOptions(resident_blocks=1),
    EmulatorOptions(resident_blocks=2, block_order="reversed", thread_order="reversed"),
    EmulatorOptions(resident_blocks=64, block_order="adversarial", thread_order="random", seed=3),
    EmulatorOptions(resident_blocks=3, block_order="adversarial", seed=4),
    EmulatorOptions(resident_blocks=64, block_order="random", seed=5),
]
CHAINS: dict[str, Callable[[], Graph]] = {
    "two GEMMs": lambda: mlp(70, 40, 130),
    "two GEMMs on tensor cores": lambda: mlp(70, 40, 136, "float16"),
    "GEMM, rows, GEMM": lambda: normalised_mlp(40, 24, 72),
    "projection, attention, projection": lambda: attention(24, 2, 16),
    "two convolutions": lambda: convolutions(2, 8, 9),
}


def planned(graph: Graph, sync: str = "tile", name: str = "cuda:sm_80") -> StitchPlan:
    """The plan with everything in one launch that can be. Rows are left apart from GEMMs, but those of attention."""
    planner = "stitch" if graph.name == "attention" else "xla"
    plan = make_plan(graph, PassContext(target(name).planned_for, {"planner": planner, "sync": sync}))
    check_plan(plan, graph)
    return plan


def ticketed(plan: StitchPlan) -> Group:
    (group,) = (group for group in plan.groups if group.tie == "tickets")
    return group


def inputs(graph: Graph) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {v.name: random.uniform(-1, 1, v.shape).astype(to_numpy_dtype(v.dtype)) for v in graph.inputs}


def artifact(graph: Graph, plan: StitchPlan) -> bytes:
    backend = CudaBackend(target(), BuildOptions(text_only=True))
    assembled = assemble([Planned(graph, plan, ("y",))], backend, keep_source=True, progress=lambda *_: None)
    return artifact_bytes(replace(assembled.contents, compiler_version="test"))


def check(graph: Graph, plan: StitchPlan, options: EmulatorOptions) -> None:
    """Three runs: the later ones find the counters as the earlier ones left them."""
    feeds = inputs(graph)
    expected = interpret(graph, feeds)[graph.outputs[0]]
    with load(artifact(graph, plan), device=options) as module:
        for _ in range(3):
            assert_close(module.run(feeds)["y"], expected, 8 * SUMS[graph.outputs[0].dtype])


@pytest.mark.parametrize("options", ORDERS, ids=lambda o: f"{o.block_order}-{o.resident_blocks}")
@pytest.mark.parametrize("chain", CHAINS)
def test_dependent_kernels_as_one_launch(chain: str, options: EmulatorOptions) -> None:
    graph = CHAINS[chain]()
    plan = planned(graph)
    assert plan.groups == (ticketed(plan),)
    check(graph, plan, options)


@pytest.mark.parametrize("queues", [False, True], ids=["drawn", "queues"])
def test_several_threads_run_one_artifact_that_is_loaded_twice(queues: bool) -> None:
    """Every module has counters of its own, and threads that share one take turns."""
    graph = mlp(70, 40, 130)
    contents = artifact(graph, with_queues(graph) if queues else planned(graph))
    feeds = [{name: x * scale for name, x in inputs(graph).items()} for scale in np.float32([1.0, 0.5, -0.5, -1.0])]
    expected = [interpret(graph, own)[graph.outputs[0]] for own in feeds]
    with load(contents, device=ORDERS[2]) as one, load(contents, device=ORDERS[3]) as other:
        modules = (one, other, one, other)

        def work(thread: int) -> None:
            for _ in range(3):
                assert_close(modules[thread].run(feeds[thread])["y"], expected[thread], 8 * SUMS["float32"])

        with ThreadPoolExecutor(len(modules)) as pool:
            list(pool.map(work, range(len(modules))))


@pytest.mark.parametrize(("rows", "width", "hidden"), [(1, 1, 1), (1, 40, 130), (5, 3, 7), (33, 1, 65)])
def test_odd_sizes(rows: int, width: int, hidden: int) -> None:
    graph = mlp(rows, width, hidden)
    plan = planned(graph)
    ticketed(plan)
    check(graph, plan, ORDERS[2])


def test_both_operands_are_waited_for() -> None:
    graph = Graph("square")
    x, w = operand(graph, "x", 40, 24), operand(graph, "w", 24, 40)
    inner = graph.emit("matmul", x, w)
    graph.outputs = [graph.emit("matmul", inner, inner)]
    plan = planned(graph)
    ticketed(plan)
    check(graph, plan, ORDERS[2])


def test_indices_that_the_launch_computes_are_looked_at_there() -> None:
    graph = Graph("indices")
    rows = graph.emit("reduce_max", operand(graph, "i", 700, 3, dtype="int64"), axes=(1,), keepdims=False)
    inner = graph.emit("matmul", operand(graph, "x", 40, 24), operand(graph, "w", 24, 40))
    graph.outputs = [graph.emit("matmul", graph.emit("gather", inner, rows, axis=0), operand(graph, "v", 40, 8))]
    plan = planned(graph)
    assert any("gather" in part.nodes for part in ticketed(plan).parts)
    check(graph, plan, ORDERS[2])


@pytest.mark.parametrize(("policy", "semaphores"), [("tile", 9), ("row", 3), ("kernel", 1)])
def test_every_policy_computes_the_same(policy: str, semaphores: int) -> None:
    graph = mlp(70, 40, 70)
    plan = planned(graph, policy)
    schedule = ticketed(plan).schedule
    assert isinstance(schedule, TicketSchedule)
    assert [(edge.policy, edge.count) for edge in schedule.edges] == [(policy, semaphores)]
    check(graph, plan, ORDERS[2])


def test_a_policy_of_a_users_own_computes_the_same() -> None:
    graph = mlp(70, 40, 130)
    plan = make_plan(graph, PassContext(target().planned_for, {"planner": "xla", "sync": HalfRows()}))
    check_plan(plan, graph)
    ticketed(plan)
    check(graph, plan, ORDERS[2])


def test_slices_of_a_projection_share_semaphores() -> None:
    graph = attention(24, 2, 32)
    plan = planned(graph, "strided")
    schedule = ticketed(plan).schedule
    assert isinstance(schedule, TicketSchedule)
    first = schedule.edges[0]
    assert first.semaphores[-1].modulus * 3 == first.semaphores[-1].size
    check(graph, plan, ORDERS[2])


SUMS_IN_PARTS: dict[str, tuple[Callable[[], Graph], int]] = {
    "first of two GEMMs": (lambda: mlp(40, 300, 40), 0),
    "second of two GEMMs": (lambda: mlp(40, 40, 300), 1),
    "second of two convolutions": (lambda: convolutions(2, 16, 9), -1),
}


@pytest.mark.parametrize("options", [ORDERS[0], ORDERS[2]], ids=lambda o: f"{o.resident_blocks}")
@pytest.mark.parametrize("chain", SUMS_IN_PARTS)
def test_sums_in_parts(chain: str, options: EmulatorOptions) -> None:
    """What a split-K kernel stores is there when its last part has come; a part of one waits for what it reads."""
    make, place = SUMS_IN_PARTS[chain]
    graph = make()
    plan = make_plan(graph, PassContext(target().planned_for, {"planner": "xla"}))
    groups = list(plan.groups)
    gemms = [n for n, group in enumerate(groups) if isinstance(group.schedule, GemmSchedule)]
    number = gemms[place]
    schedule = groups[number].schedule
    assert isinstance(schedule, GemmSchedule)
    groups[number] = replace(groups[number], schedule=replace(schedule, split_k=3))
    plan = retied(graph, plan, groups, "tile")
    check_plan(plan, graph)
    check(graph, plan, options)


def test_sums_in_parts_by_fewer_threads_than_the_launch_has() -> None:
    """The threads that the part leaves waiting take no part in its barriers."""
    graph = mlp(40, 384, 40, "float16")
    plan = make_plan(graph, PassContext(target().planned_for, {"planner": "xla"}))
    groups = list(plan.groups)
    narrow, wide = (next(tile for tile in MMA_TILES if tile.threads == count) for count in (128, 256))
    for group, tile, parts in zip(plan.groups, (narrow, wide), (3, 1), strict=True):
        schedule = replace(group.schedule, tile=tile, split_k=parts, tile_rows=1)  # type: ignore[type-var]
        groups[groups.index(group)] = replace(group, schedule=schedule)
    plan = retied(graph, plan, groups, "tile")
    check_plan(plan, graph)
    for options in ORDERS[:3]:
        check(graph, plan, options)


def test_tiles_of_large_kernels_have_indices_of_32_bits() -> None:
    """TVM knows how many tiles a part has; else it writes divisions that could be of any number with 64 bits."""
    graph = convolutions(1, 64, 64)
    group = ticketed(planned(graph))
    assert [part.kind.value for part in group.parts] == ["contraction", "injective"]
    (launch,) = lower_group(graph, group, target())
    assert "TILESTITCH_KERNEL" in kernel_text(launch.func, target())


def test_compiles_for_real_gpus() -> None:
    for graph in (mlp(70, 40, 136, "float16"), normalised_mlp(40, 24, 72), attention(24, 2, 16, "float16")):
        plan = planned(graph, name="cuda:sm_80,sm_90a")
        launches = lower_group(graph, ticketed(plan), target("cuda:sm_80,sm_90a"))
        compile_kernels(launches, target("cuda:sm_80,sm_90a"), BuildOptions(2), lambda *_: None)


# -- queues ------------------------------------------------------------------------------------------------------------


def with_queues(graph: Graph, blocks: int | None = None, policy: str = "tile") -> StitchPlan:
    """Every block has a queue of its own; so many blocks, if not those that were planned."""
    plan = planned(graph, policy)
    group = ticketed(plan)
    assert isinstance(group.schedule, TicketSchedule)
    schedule = replace(group.schedule, queues=True, blocks=blocks or group.schedule.blocks)
    groups = tuple(replace(group, schedule=schedule) if each is group else each for each in plan.groups)
    found = completed(replace(plan, groups=groups, launches=None, edges=None, lanes=None), graph)
    check_plan(found, graph)
    assert StitchPlan.from_json(found.to_json()) == found
    return found


@pytest.mark.parametrize("options", [ORDERS[1], ORDERS[2]], ids=lambda o: f"{o.block_order}")
@pytest.mark.parametrize("chain", CHAINS)
def test_blocks_may_have_queues_of_their_own(chain: str, options: EmulatorOptions) -> None:
    graph = CHAINS[chain]()
    plan = with_queues(graph)
    (launch,) = (launch for launch in plan.launches or () if launch.kind == "tickets")
    assert launch.cooperative and launch.elastic
    check(graph, plan, options)


@pytest.mark.parametrize(("blocks", "resident"), [(1, None), (7, None), (100, None), (100, 3)])
def test_queues_of_any_number_of_blocks(blocks: int, resident: int | None) -> None:
    """Fewer than tiles, more than tiles, and more than a device holds together: the runtime then takes fewer."""
    graph = mlp(70, 40, 130)
    check(graph, with_queues(graph, blocks), replace(ORDERS[4], cooperative_blocks=resident))


def test_queues_whose_blocks_are_not_resident_together_wait_for_ever() -> None:
    """So the launch is cooperative, and a plan in which it is not is refused."""
    graph = mlp(70, 40, 130)
    plan = with_queues(graph)
    launch, text = _text(graph, plan)
    with pytest.raises(KernelFaultError, match="deadlock"):
        run(graph, replace(launch, cooperative=False), text, ORDERS[1])
    run(graph, launch, text, ORDERS[1])
    spoilt = tuple(replace(each, cooperative=False) for each in plan.launches or ())
    with pytest.raises(PlanError, match="cooperative is None, its schedule gives True"):
        check_plan(replace(plan, launches=spoilt), graph)


def test_queues_that_leave_out_a_tile_are_found() -> None:
    """Blocks go on one tile too far: there is no sixth."""
    graph = mlp(70, 40, 130)
    launch, text = _text(graph, with_queues(graph, 5))
    spoilt, count = re.subn(r"return ticket \+ \(int\)gridDim\.x;", "return ticket + (int)gridDim.x + 1;", text)
    assert count == 1
    with pytest.raises(KernelFaultError, match=r"(?i)deadlock|race"):
        run(graph, launch, spoilt, ORDERS[2])
    run(graph, launch, text, ORDERS[2])


def test_a_run_of_queues_that_is_not_counted_is_found() -> None:
    """Any tile may come first in the second run, perhaps the right one: in order, the second kernel's are too early."""
    graph = mlp(40, 40, 70)
    plan = with_queues(graph)
    launch, text = _text(graph, plan)
    spoilt, count = re.subn(r"\n\s*ts_ticket_over\(\(&[^;]*;", "", text)
    assert count == 1 and launch.cooperative
    with pytest.raises(KernelFaultError, match=r"(?i)race"):
        run(graph, launch, spoilt, ORDERS[0], runs=2)
    run(graph, launch, text, ORDERS[0], runs=2)


# -- planted faults ----------------------------------------------------------------------------------------------------


def run(graph: Graph, launch: CudaLaunch, text: str, options: EmulatorOptions, runs: int = 1) -> np.ndarray:
    """The result of a kernel whose text is given, after so many runs."""
    memory: dict[str, Any] = dict(inputs(graph))
    out = graph.outputs[0]
    memory[out.name] = np.empty(out.shape, to_numpy_dtype(out.dtype))
    counters = {arg: np.zeros(arg.nbytes, np.uint8) for arg in launch.args if isinstance(arg, CountersArg)}
    kernels = Kernels({"k": text.replace("TILESTITCH_KERNEL", "k")}, options)

    def array(arg: Any) -> np.ndarray:
        match arg:
            case ValueArg(name):
                return memory[name]
            case TemporaryArg(name, nbytes):
                return memory.setdefault(f"temporary {name}", np.full(nbytes, 0xFF, np.uint8))
        return counters[arg]

    for _ in range(runs):
        kernels.launch(
            "k", launch.grid, launch.block, [array(a) for a in launch.args], launch.shared_bytes, launch.cooperative
        )
    return np.asarray(memory[out.name])


def _text(graph: Graph, plan: StitchPlan) -> tuple[CudaLaunch, str]:
    (launch,) = lower_group(graph, ticketed(plan), target())
    return launch, kernel_text(launch.func, target())


PLANTED: Mapping[str, tuple[str, str, str]] = {
    "a post that is missing": (r"\n\s*ts_ticket_post\([^;]*;", "", "deadlock"),
    "a post that orders nothing": (r"red\.release\.gpu", "red.relaxed.gpu", "race"),
    "a wait that orders nothing": (r"ld\.acquire\.gpu", "ld.relaxed.gpu", "race"),
    "a wait that is missing": (r"\n\s*ts_ticket_await\([^;]*;", "", "race"),
    "a post before the block's other threads have stored": (
        r"(void ts_ticket_post\(unsigned \*semaphore\) \{\n)\s*__syncthreads\(\);", r"\1", "race",
    ),
    "a wait for too many posts": (
        r"ts_ticket_await\((\(&\([^;]*\)\)), v, 1\)", r"ts_ticket_await(\1, v, 2)", "deadlock",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_are_found(fault: str) -> None:
    pattern, instead, found = PLANTED[fault]
    graph = mlp(40, 40, 70)
    launch, text = _text(graph, planned(graph))
    spoilt, count = re.subn(pattern, instead, text)
    assert count >= 1
    with pytest.raises(KernelFaultError, match=rf"(?i){found}"):
        run(graph, launch, spoilt, ORDERS[2])
    run(graph, launch, text, ORDERS[2])


def test_a_run_that_is_not_counted_is_found() -> None:
    """Semaphores then have the posts of the run before, and tiles are read before they are stored."""
    graph = mlp(40, 40, 70)
    launch, text = _text(graph, planned(graph))
    counting = r'(int ts_ticket_draw\(.*?: "l"\(words \+ 1\), "r"\()1u'
    spoilt, count = re.subn(counting, r"\g<1>0u", text, flags=re.DOTALL)
    assert count == 1
    with pytest.raises(KernelFaultError, match=r"(?i)race"):
        run(graph, launch, spoilt, ORDERS[2], runs=2)
    run(graph, launch, text, ORDERS[2], runs=2)


@pytest.mark.parametrize("runs", [2**32 - 1, 2**31 - 1, 2**31 // 3, 2**32 // 3], ids=hex)
@pytest.mark.parametrize("queues", [False, True], ids=["drawn", "queues"])
def test_counters_that_wrap_around_are_compared_by_their_difference(queues: bool, runs: int) -> None:
    """After so many runs: the number of runs goes on from 2^32 - 1 to 0, semaphores go beyond 2^31 and to 0."""
    graph = mlp(40, 40, 70)
    plan = with_queues(graph, policy="row") if queues else planned(graph, "row")
    launch, text = _text(graph, plan)
    schedule = ticketed(plan).schedule
    assert isinstance(schedule, TicketSchedule)
    (edge,) = schedule.edges
    posts = [edge.posts((0, 0, row, 0)) for row in range(edge.counts[2])]
    assert set(posts) == {3}
    words = np.array([0, runs, *(runs * n % 2**32 for n in posts)], np.uint32)
    feeds = inputs(graph)
    out, hidden = np.empty((40, 40), np.float32), np.empty(40 * 70, np.float32)
    kernels = Kernels({"k": text.replace("TILESTITCH_KERNEL", "k")}, ORDERS[2])
    known: dict[str, Any] = {**feeds, graph.outputs[0].name: out}
    arrays = [known[a.value] if isinstance(a, ValueArg) else words if isinstance(a, CountersArg) else hidden
              for a in launch.args]  # fmt: skip
    for _ in range(2):
        out[:] = np.nan
        kernels.launch("k", launch.grid, launch.block, arrays, launch.shared_bytes, launch.cooperative)
        assert_close(out, interpret(graph, feeds)[graph.outputs[0]], 8 * SUMS["float32"])
    assert words.tolist() == [0, (runs + 2) % 2**32, *((runs + 2) * n % 2**32 for n in posts)]


def test_what_the_check_refuses_races_on_the_emulated_device() -> None:
    """A plan edited by hand whose tiles wait for the first tile of a row only."""
    graph = mlp(40, 40, 70)
    plan = planned(graph)
    group = ticketed(plan)
    assert isinstance(group.schedule, TicketSchedule)
    (edge,) = group.schedule.edges
    narrow = replace(edge, last=(*edge.last[:-1], Bound((0, 0, 0, 0), 0, 0, 1)))
    spoilt = replace(group, schedule=replace(group.schedule, edges=(narrow,)))
    with pytest.raises(PlanError, match=r"tile \(0, 0, 0, 0\) of matmul\w* reads what tile \(0, 0, 0, 1\) of matmul"):
        check_plan(replace(plan, groups=(spoilt,)), graph)
    (launch,) = lower_group(graph, spoilt, target())
    with pytest.raises(KernelFaultError, match=r"(?i)race"):
        run(graph, launch, kernel_text(launch.func, target()), ORDERS[2])


def test_a_group_without_what_its_tiles_wait_for_is_refused() -> None:
    graph = mlp(40, 40, 70)
    plan = planned(graph)
    group = ticketed(plan)
    assert isinstance(group.schedule, TicketSchedule)
    edges: tuple[TileEdge, ...] = ()
    spoilt = replace(group, schedule=replace(group.schedule, edges=edges))
    with pytest.raises(PlanError, match="does not wait for it"):
        check_plan(replace(plan, groups=(spoilt,)), graph)
