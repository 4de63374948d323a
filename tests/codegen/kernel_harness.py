"""Compiles groups and runs them on numpy arrays, task by task in a shuffled order."""

from __future__ import annotations

import ctypes
import random
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.tolerances import KERNELS
from tilestitch.codegen.cpu.abi import KernelLaunch, PackedArg, StatusArg, TemporaryArg, ValueArg
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.codegen.cpu.target import CpuTarget, host_target
from tilestitch.codegen.cpu.toolchain.build import compile_kernels
from tilestitch.codegen.cpu.toolchain.link import link
from tilestitch.compiler.ir.graph import Graph, Value
from tilestitch.compiler.ir.ops import Kind, kind_of, reference
from tilestitch.compiler.ir.types import to_numpy_dtype
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.passes.plan import Group, GroupKind
from tilestitch.passes.plan.kept_floats import with_floats
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.schedule.kernels import schedule_group

GUARD = 64


@cache
def target() -> CpuTarget:
    return host_target()


class Fault(Exception):
    """A kernel stored a fault in its status word."""


def _guarded(nbytes: int) -> np.ndarray:
    """Memory between two guards, 64-byte aligned, filled with a pattern."""
    raw = np.full(nbytes + 2 * GUARD + 64, 0xA5, np.uint8)
    start = -raw.ctypes.data % 64 + GUARD
    return raw[start - GUARD : start + nbytes + GUARD]


def run_launches(
    launches: Sequence[KernelLaunch],
    values: Mapping[str, np.ndarray],
    outputs: Sequence[Value],
    cpu: CpuTarget | None = None,
) -> dict[str, np.ndarray]:
    """Run launches on named arrays; returns the outputs. Raises Fault with the message a kernel chose."""
    compiled = compile_kernels(launches, cpu or target())
    memory: dict[str, np.ndarray] = {}
    for name, array in values.items():
        block = _guarded(array.nbytes)
        block[GUARD : GUARD + array.nbytes] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        memory[name] = block
    for value in outputs:
        memory[value.name] = _guarded(value.tensor_type.nbytes)
    if launches:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "kernels.so"
            library.write_bytes(link(compiled.objects, list(dict.fromkeys(compiled.symbols)), compiled.aliases))
            loaded = ctypes.CDLL(str(library))
        for launch, symbol in zip(launches, compiled.symbols, strict=True):
            _run(getattr(loaded, symbol), launch, values, memory)
    for name, block in memory.items():
        assert (block[:GUARD] == 0xA5).all(), f"written before {name}"
        assert (block[-GUARD:] == 0xA5).all(), f"written past {name}"
    return {v.name: memory[v.name][GUARD:-GUARD].copy().view(to_numpy_dtype(v.dtype)).reshape(v.shape) for v in outputs}


def _run(function: Any, launch: KernelLaunch, values: Mapping[str, np.ndarray], memory: dict[str, np.ndarray]) -> None:
    function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    function.restype = None
    status = np.zeros(16, np.int32)
    keep = []
    table = np.zeros((len(launch.args) + 1, 2), np.int64)
    for i, arg in enumerate(launch.args):
        match arg:
            case ValueArg(name):
                table[i, 1] = memory[name].ctypes.data + GUARD
            case PackedArg(name):
                packed = np.ascontiguousarray(arg.arrange(values[name]))
                block = _guarded(packed.nbytes)
                block[GUARD : GUARD + packed.nbytes] = np.frombuffer(packed.tobytes(), np.uint8)
                keep.append(block)
                table[i, 1] = block.ctypes.data + GUARD
            case TemporaryArg(name, nbytes):
                memory.setdefault(f"temporary {name}", _guarded(nbytes))
                table[i, 1] = memory[f"temporary {name}"].ctypes.data + GUARD
            case StatusArg():
                table[i, 1] = status.ctypes.data
    scratch = _guarded(launch.scratch_bytes)
    tasks = list(range(launch.tasks))
    random.Random(0).shuffle(tasks)
    for task in tasks:
        scratch[GUARD:-GUARD] = 0xFF
        function(table.ctypes.data, task, scratch.ctypes.data + GUARD)
    assert (scratch[:GUARD] == 0xA5).all() and (scratch[-GUARD:] == 0xA5).all(), "written outside the workspace"
    assert not status[1:].any()
    if status[0]:
        raise Fault(launch.faults[status[0] - 1])


def one_group(graph: Graph, kind: GroupKind | None = None) -> Group:
    """The whole graph as one group."""
    nodes = graph.nodes
    anchors = [n for n in nodes if kind_of(n.op) not in (Kind.VIEW, Kind.INJECTIVE)]
    kinds = {Kind.REDUCTION: GroupKind.ROWWISE, Kind.CONTRACTION: GroupKind.CONTRACTION, Kind.OPAQUE: GroupKind.OPAQUE}
    chosen = kind or (kinds[kind_of(anchors[0].op)] if anchors else GroupKind.INJECTIVE)
    made = {v for n in nodes for v in n.outputs}
    read = list(dict.fromkeys(v for n in nodes for v in n.inputs if v not in made))
    return Group(
        "g", chosen, tuple(n.name for n in nodes), anchors[0].name if anchors else None,
        tuple(v.name for v in read if not v.is_constant), tuple(v.name for v in read if v.is_constant),
        tuple(dict.fromkeys(v.name for v in graph.outputs)), tuple(o for n in nodes for o in n.origins),
    )  # fmt: skip


def cpu_group(graph: Graph, kind: GroupKind | None = None, threads: int = 4, cpu: CpuTarget | None = None) -> Group:
    """The whole graph as one group with its schedule for a CPU."""
    by_name = {node.name: node for node in graph.nodes}
    isa = (cpu or target()).isa
    target_ = TargetInfo("cpu", threads, isa=isa.name)
    return with_floats(by_name, schedule_group(by_name, one_group(graph, kind), target_, AnalyticalModel()))


def interpret(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[Value, np.ndarray]:
    """Every value of the graph by numpy."""
    known: dict[Value, np.ndarray] = {v: inputs[v.name] for v in graph.inputs}
    for node in graph.nodes:
        operands = [v.data if v.data is not None else known[v] for v in node.inputs]
        results = reference(node.op)(operands, node.attrs)
        known.update(zip(node.outputs, (np.asarray(r) for r in results), strict=True))
    return known


def run_graph(
    graph: Graph, inputs: Mapping[str, np.ndarray], kind: GroupKind | None = None, cpu: CpuTarget | None = None
) -> dict[str, np.ndarray]:
    """The outputs of the graph, computed as one group."""
    launches = lower_group(graph, cpu_group(graph, kind, cpu=cpu))
    constants = {v.name: np.asarray(v.data) for v in graph.constants}
    outputs = list(dict.fromkeys(graph.outputs))
    return run_launches(launches, {**inputs, **constants}, outputs, cpu)


def check(graph: Graph, inputs: Mapping[str, np.ndarray], kind: GroupKind | None = None, factor: float = 1.0) -> None:
    """Compare the group with numpy: exactly, or to `factor` times the tolerance of a float dtype."""
    expected = interpret(graph, inputs)
    actual = run_graph(graph, inputs, kind)
    for value in graph.outputs:
        want, got = expected[value], actual[value.name]
        assert got.shape == want.shape and got.dtype == want.dtype, (got.dtype, want.dtype)
        if value.dtype not in KERNELS:
            np.testing.assert_array_equal(got, want)
            continue
        wide = np.float64
        tolerance = KERNELS[value.dtype] * factor
        finite = np.abs(want.astype(wide)[np.isfinite(want.astype(wide))])
        scale = float(finite.max()) if finite.size else 1.0
        np.testing.assert_allclose(
            got.astype(wide),
            want.astype(wide),
            rtol=tolerance,
            atol=tolerance * min(scale, 1.0) + tolerance * scale * 0.01,
        )
