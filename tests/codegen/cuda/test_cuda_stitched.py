"""Stitched groups as CUDA: parts side by side in a launch, and stages after a barrier of the grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.cuda.cuda_harness import target
from tests.codegen.cuda.test_cuda_rows import numbers
from tests.codegen.kernel_harness import interpret
from tests.compiled import assert_close
from tests.tolerances import DEVICE_KERNELS
from tilestitch.codegen.assemble import Planned, assemble
from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.cuda.backend import CudaBackend
from tilestitch.codegen.cuda.group import lower_group
from tilestitch.codegen.cuda.toolchain.compile import BuildOptions, compile_kernels
from tilestitch.compiler.ir.graph import Graph, Value
from tilestitch.compiler.ir.types import TensorType
from tilestitch.passes import PassContext, StitchPlan, check_plan, make_plan
from tilestitch.passes.fusion.rules.combining import GlobalStitching, Packing
from tilestitch.passes.plan.schedules import GemmSchedule
from tilestitch.runtime import load
from tilestitch.runtime.artifact_writer import artifact_bytes
from tilestitch.runtime.emulator import EmulatorOptions

ORDERS = [
    EmulatorOptions(),
    EmulatorOptions(block_order="reversed", thread_order="reversed", cooperative_blocks=2),
    EmulatorOptions(block_order="adversarial", thread_order="random", seed=7, cooperative_blocks=3),
]


def softmax(graph: Graph, x: Value, axis: int) -> Value:
    largest = graph.emit("reduce_max", x, axes=(axis,), keepdims=True)
    weights = graph.emit("exp", graph.emit("sub", x, largest))
    return graph.emit("div", weights, graph.emit("reduce_sum", weights, axes=(axis,), keepdims=True))


def chain(rows: int, columns: int, dtype: str = "float32") -> Graph:
    """Softmax of the rows, then of the columns, then a scale that is computed from everything."""
    graph = Graph("chain")
    x = graph.add_input("x", TensorType(dtype, (rows, columns)))
    both = softmax(graph, softmax(graph, x, 1), 0)
    flat = graph.emit("reshape", both, shape=(rows * columns,))
    largest = graph.emit("reduce_max", flat, axes=(0,), keepdims=False)
    graph.outputs = [graph.emit("div", both, largest)]
    return graph


def apart(dtype: str = "float32") -> Graph:
    """Four kernels that have nothing to do with each other, of 32 to 256 threads."""
    graph = Graph("apart")
    a, b, c, d = (graph.add_input(n, TensorType(dtype, s))
                  for n, s in (("a", (5, 300)), ("b", (70, 3)), ("c", (37, 41)), ("d", (17,))))  # fmt: skip
    turned = graph.emit("transpose", c, perm=(1, 0))
    graph.outputs = [softmax(graph, a, 1), softmax(graph, b, 0), graph.emit("abs", turned), graph.emit("exp", d)]
    return graph


def planned(graph: Graph) -> StitchPlan:
    """The plan in which everything is stitched that may be."""
    rules = (GlobalStitching(forced=True), Packing(forced=True))
    plan = make_plan(graph, PassContext(target().planned_for, {"planner": "explore"}, rules=rules))
    check_plan(plan, graph)
    return plan


def launches_of(graph: Graph, plan: StitchPlan) -> Iterator[CudaLaunch]:
    for name in plan.launch_order:
        yield from lower_group(graph, plan.group(name), target())


def check(graph: Graph, plan: StitchPlan, feeds: Mapping[str, np.ndarray], options: EmulatorOptions) -> None:
    """The plan computes the graph, in two runs: the second finds the counters as the first left them."""
    names = tuple(f"y{i}" for i in range(len(graph.outputs)))
    backend = CudaBackend(target(), BuildOptions(text_only=True))
    assembled = assemble([Planned(graph, plan, names)], backend, keep_source=True, progress=lambda *_: None)
    expected = interpret(graph, feeds)
    with load(artifact_bytes(replace(assembled.contents, compiler_version="test")), device=options) as module:
        for _ in range(2):
            for value, got in zip(graph.outputs, module.run(dict(feeds)).values(), strict=True):
                assert_close(got, expected[value], 4 * DEVICE_KERNELS[value.dtype])


@pytest.mark.parametrize("options", ORDERS, ids=lambda o: o.block_order)
@pytest.mark.parametrize(("rows", "columns", "dtype"), [(61, 192, "float32"), (7, 131, "float16")])
def test_rows_then_columns_in_one_launch(options: EmulatorOptions, rows: int, columns: int, dtype: str) -> None:
    """With as many blocks as wanted, and with two or three: then each computes several blocks' work in turn."""
    graph = chain(rows, columns, dtype)
    plan = planned(graph)
    assert max(len(g.stages) for g in plan.groups) >= 2
    assert any(launch.cooperative and launch.elastic and launch.grid[0] > 3 for launch in launches_of(graph, plan))
    check(graph, plan, {"x": numbers((rows, columns), dtype)}, options)


@pytest.mark.parametrize("options", ORDERS, ids=lambda o: o.block_order)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_independent_kernels_in_one_launch(options: EmulatorOptions, dtype: str) -> None:
    graph = apart(dtype)
    plan = planned(graph)
    (launch,) = launches_of(graph, plan)
    assert not launch.cooperative and launch.kind == "packed"
    check(graph, plan, {v.name: numbers(v.shape, dtype) for v in graph.inputs}, options)


@pytest.mark.parametrize("options", ORDERS[1:], ids=lambda o: o.block_order)
def test_the_last_block_of_a_sum_joins_it_with_its_own_threads_only(options: EmulatorOptions) -> None:
    """The other warps of the block have no part of the GEMM, and never come to a barrier of all threads."""
    graph = Graph("sums")
    a, b, x = (graph.add_input(name, TensorType("float32", shape))
               for name, shape in (("a", (3, 1024)), ("b", (1024, 24)), ("x", (2, 1025))))  # fmt: skip
    graph.outputs = [graph.emit("matmul", a, b, trans_a=False, trans_b=False), softmax(graph, x, 1)]
    plan = planned(graph)
    gemm = next(p.schedule for g in plan.groups for p in g.parts if isinstance(p.schedule, GemmSchedule))
    (launch,) = launches_of(graph, plan)
    assert gemm.split_k > 1 and gemm.tile.threads < launch.threads
    check(graph, plan, {v.name: numbers(v.shape, "float32") for v in graph.inputs}, options)


def test_what_only_parts_read_is_temporary() -> None:
    graph = chain(24, 64)
    plan = planned(graph)
    (group,) = (g for g in plan.groups if len(g.stages) > 1)
    inner = {v for part in group.parts for v in part.outputs} - set(group.outputs)
    (launch,) = lower_group(graph, group, target())
    assert inner and inner <= {getattr(arg, "name", None) for arg in launch.args}


def test_gathers_check_their_indices_before_the_launch() -> None:
    graph = Graph("gathers")
    x, i = graph.add_input("x", TensorType("float32", (9, 5))), graph.add_input("i", TensorType("int64", (4,)))
    y = graph.add_input("y", TensorType("float32", (6, 7)))
    graph.outputs = [graph.emit("gather", x, i, axis=0), graph.emit("exp", y)]
    plan = planned(graph)
    kinds = [launch.kind for launch in launches_of(graph, plan)]
    assert kinds[-1] == "packed" and len(kinds) == 2
    feeds = {"x": numbers((9, 5), "float32"), "i": np.array([8, 0, -9, 3]), "y": numbers((6, 7), "float32")}
    check(graph, plan, feeds, ORDERS[0])


def test_compiles_for_real_gpus() -> None:
    for graph in (chain(24, 64, "float16"), apart()):
        launches = list(launches_of(graph, planned(graph)))
        compile_kernels(launches, target("cuda:sm_80,sm_90a"), BuildOptions(2), lambda *_: None)
