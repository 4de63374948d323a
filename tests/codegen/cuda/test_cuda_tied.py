"""Launches that overlap, whose blocks wait for the tiles of others that they read, on the emulated device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.codegen.cuda.cuda_harness import target
from tests.codegen.cuda.test_cuda_tickets import CHAINS, ORDERS, inputs
from tests.codegen.kernel_harness import interpret
from tests.compiled import assert_close
from tests.passes.sync.graphs import attention, mlp, normalised_mlp, operand
from tests.tolerances import SUMS
from tilestitch.codegen.assemble import Planned, assemble
from tilestitch.codegen.cuda.abi import CountersArg, TemporaryArg, TensorMapArg, ValueArg
from tilestitch.codegen.cuda.backend import CudaBackend
from tilestitch.codegen.cuda.group import lower_group
from tilestitch.codegen.cuda.toolchain.compile import BuildOptions, compile_kernels
from tilestitch.codegen.cuda.toolchain.text import kernel_text
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.types import to_numpy_dtype
from tilestitch.passes import PassContext, StitchPlan, check_plan, make_plan
from tilestitch.passes.plan.schedules import LaunchesSchedule, TransposeSchedule
from tilestitch.runtime import load
from tilestitch.runtime.artifact_writer import artifact_bytes
from tilestitch.runtime.emulator import EmulatorOptions, Kernels, TensorArgument
from tilestitch.runtime.emulator.errors import KernelFaultError
from tilestitch.runtime.emulator.kernels import KernelLaunch

GPU = "cuda:sm_90"


def planned(graph: Graph, sync: str = "tile/launches", name: str = GPU) -> StitchPlan:
    planner = "stitch" if graph.name == "attention" else "xla"
    plan = make_plan(graph, PassContext(target(name).planned_for, {"planner": planner, "sync": sync}))
    check_plan(plan, graph)
    return plan


def check(graph: Graph, plan: StitchPlan, options: EmulatorOptions) -> None:
    """Three runs: the later ones find the counters as the earlier ones left them."""
    feeds = inputs(graph)
    expected = interpret(graph, feeds)[graph.outputs[0]]
    backend = CudaBackend(target(GPU), BuildOptions(text_only=True))
    assembled = assemble([Planned(graph, plan, ("y",))], backend, keep_source=True, progress=lambda *_: None)
    with load(artifact_bytes(replace(assembled.contents, compiler_version="test")), device=options) as module:
        for _ in range(3):
            assert_close(module.run(feeds)["y"], expected, 8 * SUMS[graph.outputs[0].dtype])


@pytest.mark.parametrize("options", ORDERS, ids=lambda o: f"{o.block_order}-{o.resident_blocks}")
@pytest.mark.parametrize("chain", CHAINS)
def test_dependent_kernels_overlap(chain: str, options: EmulatorOptions) -> None:
    graph = CHAINS[chain]()
    plan = planned(graph)
    assert [group.tie for group in plan.groups] == ["launches"]
    assert {edge.kind for edge in plan.edges or ()} == {"programmatic"}
    check(graph, plan, options)


@pytest.mark.parametrize(("rows", "width", "hidden"), [(1, 1, 1), (1, 41, 131), (5, 3, 7), (37, 1, 67)])
def test_odd_sizes(rows: int, width: int, hidden: int) -> None:
    graph = mlp(rows, width, hidden)
    check(graph, planned(graph), ORDERS[2])


def two_after_one() -> Graph:
    """A kernel reads what two kernels before it store, one of which reads the other's."""
    graph = Graph("residual")
    x = operand(graph, "x", 40, 24)
    a = graph.emit("tanh", graph.emit("matmul", x, operand(graph, "w", 24, 40)))
    b = graph.emit("matmul", a, operand(graph, "v", 40, 40))
    graph.outputs = [graph.emit("matmul", b, a)]
    return graph


@pytest.mark.parametrize("options", [ORDERS[1], ORDERS[2]], ids=lambda o: f"{o.resident_blocks}")
def test_a_kernel_waits_for_several(options: EmulatorOptions) -> None:
    graph = two_after_one()
    plan = planned(graph)
    (group,) = plan.groups
    assert isinstance(group.schedule, LaunchesSchedule)
    assert {(edge.producer, edge.consumer) for edge in group.schedule.edges} == {(0, 1), (0, 2), (1, 2)}
    check(graph, plan, options)


def test_blocks_that_are_not_known_by_their_tiles_wait_for_the_whole() -> None:
    """Those of a transpose through shared memory."""
    graph = Graph("turned")
    turned = graph.emit("tanh", graph.emit("transpose", operand(graph, "x", 97, 64), perm=(1, 0)))
    graph.outputs = [graph.emit("matmul", turned, operand(graph, "w", 97, 40))]
    plan = planned(graph)
    (group,) = plan.groups
    assert any(isinstance(part.schedule, TransposeSchedule) for part in group.parts)
    for options in (ORDERS[0], ORDERS[2]):
        check(graph, plan, options)


@pytest.mark.parametrize("policy", ["row", "kernel"])
def test_every_policy_computes_the_same(policy: str) -> None:
    graph = mlp(70, 40, 70)
    check(graph, planned(graph, f"{policy}/launches"), ORDERS[2])


def test_compiles_for_real_gpus() -> None:
    for graph in (mlp(70, 40, 136, "float16"), normalised_mlp(40, 24, 72), attention(24, 2, 16, "float16")):
        plan = planned(graph, name="cuda:sm_90")
        launches = lower_group(graph, plan.groups[0], target("cuda:sm_90"))
        compile_kernels(launches, target("cuda:sm_90"), BuildOptions(2), lambda *_: None)


def test_older_gpus_are_refused() -> None:
    plan = make_plan(mlp(70, 40, 70), PassContext(target("cuda:sm_80,sm_90").planned_for, {"sync": "tile/launches"}))
    assert all(group.tie != "launches" for group in plan.groups)
    (reason,) = (refusal.reason for refusal in plan.refusals if refusal.rule == "sync.part")
    assert reason == "launches that overlap need sm_90, and sm_80 is among the architectures"


# -- planted faults ----------------------------------------------------------------------------------------------------


def run(
    graph: Graph, plan: StitchPlan, pattern: str, instead: str, options: EmulatorOptions, runs: int = 1,
    given_memory: dict[str, Any] | None = None,
) -> int:  # fmt: skip
    """Run the kernels of a plan of one group with their text changed, and a reader after them; how often it changed.
    given_memory: values and counters by name, as they are before, and after it.
    """
    memory: dict[str, Any] = {} if given_memory is None else given_memory
    memory.update(inputs(graph))
    out = graph.outputs[0]
    memory[out.name] = np.empty(out.shape, to_numpy_dtype(out.dtype))
    launches = lower_group(graph, plan.groups[0], target(GPU))
    texts, changed = {}, 0
    for number, launch in enumerate(launches):
        text, count = re.subn(pattern, instead, kernel_text(launch.func, target(GPU)))
        texts[f"k{number}"] = text.replace("TILESTITCH_KERNEL", f"k{number}")
        changed += count

    def given(arg: Any) -> np.ndarray | TensorArgument:
        return TensorArgument.of(arg.tensor_map, array(arg.over)) if isinstance(arg, TensorMapArg) else array(arg)

    def array(arg: Any) -> np.ndarray:
        match arg:
            case ValueArg(name):
                return memory[name]
            case TemporaryArg(name, nbytes):
                return memory.setdefault(f"temporary {name}", np.full(nbytes, 0xFF, np.uint8))
            case CountersArg():
                return memory.setdefault(f"counters {arg.name}", np.zeros(arg.nbytes, np.uint8))
        raise AssertionError(arg)

    requests = [
        KernelLaunch(
            f"k{number}",
            launch.grid,
            launch.block,
            [given(a) for a in launch.args],
            launch.shared_bytes,
            cluster=launch.cluster,
        )
        for number, launch in enumerate(launches)
    ]
    # A kernel that only comes after the last one writes over the end of what the first one has stored.
    inner = next(array(arg) for arg in launches[0].args if isinstance(arg, TemporaryArg))
    last = inner.nbytes - 32
    after = f'extern "C" __global__ void after(unsigned char* x) {{ x[{last} + threadIdx.x] = 0; }}'
    kernels = Kernels({**texts, "after": after}, options)
    edges = [(edge.before, edge.after, edge.kind) for edge in plan.edges or ()]
    edges.append((len(launches) - 1, len(launches), "full"))
    for _ in range(runs):
        kernels.run([*requests, KernelLaunch("after", (1, 1, 1), (32, 1, 1), [inner])], edges)
    return changed


PLANTED: Mapping[str, tuple[str, str, str, int]] = {
    "a post that is missing": (r"\n\s*ts_ticket_post\([^;]*;", "", "deadlock", 1),
    "a post that orders nothing": (r"red\.release\.gpu", "red.relaxed.gpu", "race", 1),
    "a wait that orders nothing": (r"ld\.acquire\.gpu", "ld.relaxed.gpu", "race", 1),
    "a wait that is missing": (r"\n\s*ts_ticket_await\([^;]*;", "", "race", 1),
    "a post before the block's other threads have stored": (
        r"(void ts_ticket_post\(unsigned \*semaphore\) \{\n)\s*__syncthreads\(\);", r"\1", "race", 1,
    ),
    "a run that is not counted": (r'(: "l"\(words \+ 1\), "r"\()1u', r"\g<1>0u", "race", 2),
    "an end that does not wait for the launch before": (r"griddepcontrol\.wait", "membar.gl", "race", 1),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_are_found(fault: str) -> None:
    pattern, instead, found, runs = PLANTED[fault]
    graph = _half() if "end" in fault else mlp(40, 40, 70)
    plan = planned(graph, "tile/launches")
    problems = []
    for options in (ORDERS[2], ORDERS[3], ORDERS[4]):
        run(graph, plan, "nothing like this", "", options, runs)
        try:
            assert run(graph, plan, pattern, instead, options, runs)
        except KernelFaultError as error:
            problems.append(str(error).lower())
    assert problems and all(found in problem for problem in problems)


@pytest.mark.parametrize("before", [2**32 - 1, 2**31 - 1, 2**31 // 3, 2**32 // 3], ids=hex)
def test_counters_that_wrap_around_are_compared_by_their_difference(before: int) -> None:
    """After so many runs: the number of runs goes on from 2^32 - 1 to 0, semaphores go beyond 2^31 and to 0."""
    graph = mlp(40, 40, 70)
    plan = planned(graph, "row/launches")
    (group,) = plan.groups
    assert isinstance(group.schedule, LaunchesSchedule)
    (edge,) = group.schedule.edges
    assert {edge.posts((0, 0, row, 0)) for row in range(edge.counts[2])} == {3}

    def words(runs: int) -> list[int]:
        return [0, 0, 0, runs % 2**32, *([3 * runs % 2**32] * edge.count)]

    counters = np.array(words(before), np.uint32)
    memory: dict[str, Any] = {"counters tied": counters.view(np.uint8)}
    run(graph, plan, "nothing like this", "", ORDERS[2], runs=2, given_memory=memory)
    expected = interpret(graph, inputs(graph))[graph.outputs[0]]
    assert_close(memory[graph.outputs[0].name], expected, 8 * SUMS["float32"])
    assert counters.tolist() == words(before + 2)


def _half() -> Graph:
    """A GEMM whose first rows only a second one reads: it may be over before the first is."""
    graph = Graph("half")
    x = operand(graph, "x", 200, 40)
    inner = graph.emit("tanh", graph.emit("matmul", x, operand(graph, "w", 40, 40)))
    rows = graph.emit("slice", inner, starts=(0, 0), sizes=(8, 40), steps=(1, 1))
    graph.outputs = [graph.emit("matmul", rows, operand(graph, "v", 40, 8))]
    return graph
