"""What the artifact records of kernels: their signatures, made with the programs."""

from __future__ import annotations

import numpy as np
import pytest

from tilestitch.codegen.assemble import Planned, assemble
from tilestitch.codegen.backend import Backend
from tilestitch.codegen.cpu.backend import CpuBackend
from tilestitch.codegen.cpu.target import host_target
from tilestitch.codegen.cuda.backend import CudaBackend
from tilestitch.codegen.cuda.target import parse_cuda_target
from tilestitch.codegen.cuda.toolchain.compile import BuildOptions
from tilestitch.compiler.ir.graph import Graph
from tilestitch.compiler.ir.types import TensorType
from tilestitch.passes.contract import PassContext
from tilestitch.passes.pipeline import run_pipeline
from tilestitch.passes.planner import make_plan
from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.artifact_writer import ArtifactContents, artifact_bytes
from tilestitch.runtime.program import DeviceStep, NativeStep

BACKENDS = {
    "cpu": CpuBackend(host_target(), 2),
    "cuda": CudaBackend(parse_cuda_target("cuda:sm_80"), BuildOptions(text_only=True)),
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]


def assembled(graph: Graph, backend: Backend) -> ArtifactContents:
    context = PassContext(backend.planned_for(2), options={"planner": "stitch"})
    final = run_pipeline(graph, context)
    planned = Planned(final, make_plan(final, context), tuple(v.name for v in final.outputs))
    return assemble([planned], backend, keep_source=False, progress=lambda *_: None).contents


def test_every_launch_fits_its_signature(backend: Backend) -> None:
    graph = Graph("g")
    x = graph.add_input("x", TensorType("float32", (4, 6)))
    weights = graph.constant(np.ones((6, 8), np.float32))
    graph.outputs = [graph.emit("exp", graph.emit("matmul", x, weights))]
    contents = assembled(graph, backend)
    (program,) = read_artifact(artifact_bytes(contents)).programs
    launches = [launch for s in program.steps if isinstance(s, NativeStep | DeviceStep) for launch in s.launches]
    assert {launch.symbol for launch in launches} == set(contents.signatures)
    for launch in launches:
        signature = contents.signatures[launch.symbol]
        assert launch.symbol.endswith(signature.digest)
        assert signature.extent == launch.extent
    tensors = [p for p in contents.signatures[launches[-1].symbol].parameters if p.kind == "tensor"]
    assert [(p.dtype, p.nbytes) for p in tensors if p.writes] == [("float32", 4 * 4 * 8)]
    assert len(tensors) > 1


def test_results_that_nothing_reads_are_written(backend: Backend) -> None:
    graph = Graph("g")
    x = graph.add_input("x", TensorType("float32", (2, 9)))
    graph.outputs = list(graph.add("top_k", [x], {"k": 3, "axis": 1, "largest": True}).outputs[:1])
    contents = assembled(graph, backend)
    (signature,) = contents.signatures.values()
    written = [p.dtype for p in signature.parameters if p.writes and p.kind == "tensor"]
    assert written == ["float32", "int64"]
    read_artifact(artifact_bytes(contents))
