"""Compiles groups for CUDA, and runs them on the emulated device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from tests.codegen.kernel_harness import interpret, one_group
from tests.compiled import assert_close
from tests.cost_models import ANALYTICAL
from tests.tolerances import DEVICE_KERNELS
from tilestitch.codegen.assemble import Planned, assemble
from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.cuda.backend import CudaBackend
from tilestitch.codegen.cuda.group import lower_group
from tilestitch.codegen.cuda.target import CudaTarget, parse_cuda_target
from tilestitch.codegen.cuda.toolchain.compile import BuildOptions, CudaKernels, compile_kernels
from tilestitch.codegen.cuda.toolchain.text import PRELUDE, kernel_text
from tilestitch.compiler.ir import Graph
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.contract import PassContext
from tilestitch.passes.pipeline import run_pipeline
from tilestitch.passes.plan import Group, GroupKind
from tilestitch.passes.planner import make_plan
from tilestitch.passes.schedule.kernels import schedule_group
from tilestitch.runtime import load
from tilestitch.runtime.artifact_writer import artifact_bytes


@cache
def target(name: str = "cuda:sm_80") -> CudaTarget:
    return parse_cuda_target(name)


def launches_of(
    graph: Graph, kind: GroupKind | None = None, name: str = "cuda:sm_80", model: LatencyModel = ANALYTICAL
) -> tuple[CudaLaunch, ...]:
    """The launches of the whole graph as one group."""
    return lower_group(graph, scheduled(graph, one_group(graph, kind), name, model), target(name))


def scheduled(graph: Graph, group: Group, name: str = "cuda:sm_80", model: LatencyModel = ANALYTICAL) -> Group:
    """The group with the schedules that `model` chooses."""
    return schedule_group({node.name: node for node in graph.nodes}, group, target(name).planned_for, model)


def text_of(graph: Graph, model: LatencyModel = ANALYTICAL) -> str:
    """The CUDA text of the graph's kernels, without what stands before each."""
    launches = launches_of(graph, model=model)
    return "\n".join(kernel_text(launch.func, target()).partition(PRELUDE)[2] for launch in launches)


def build(graph: Graph, name: str = "cuda:sm_80,sm_90a", model: LatencyModel = ANALYTICAL) -> CudaKernels:
    """Machine code of the whole graph as one group, from an empty cache."""
    return compile_kernels(launches_of(graph, name=name, model=model), target(name), BuildOptions(2), lambda *_: None)


def emulated(
    graph: Graph, planner: str = "stitch", pipeline: str | None = None, model: LatencyModel = ANALYTICAL,
    sync: str = "off",
) -> bytes:  # fmt: skip
    """An artifact of the graph for the emulated device."""
    context = PassContext(target().planned_for, options={"planner": planner, "sync": sync}, cost_model=model)
    prepared = run_pipeline(graph, context, pipeline)
    names = tuple(f"y{i}" for i in range(len(graph.outputs)))
    planned = [Planned(prepared, make_plan(prepared, context), names)]
    backend = CudaBackend(target(), BuildOptions(text_only=True))
    contents = assemble(planned, backend, keep_source=True, progress=lambda *_: None).contents
    return artifact_bytes(replace(contents, compiler_version="test"))


def check(graph: Graph, feeds: Mapping[str, np.ndarray], factor: float = 1.0, model: LatencyModel = ANALYTICAL) -> None:
    """Compare the compiled graph, whose schedules `model` chooses, on the emulated device with numpy."""
    expected = interpret(graph, feeds)
    with load(emulated(graph, pipeline="", model=model), device="emulator") as module:
        results = list(module.run(dict(feeds)).values())
    for value, got in zip(graph.outputs, results, strict=True):
        assert_close(got, expected[value], factor * DEVICE_KERNELS.get(value.dtype, 0))
