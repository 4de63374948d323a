"""Runs one contraction group on the emulated device, and asks NVRTC what its kernels need."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from tests.codegen.kernel_harness import interpret, one_group
from tests.cost_models import ANALYTICAL
from tests.tolerances import SUMS
from tilestitch.codegen.cuda.abi import SYMBOL, CudaLaunch
from tilestitch.codegen.cuda.gemm.indexed import IndexedGemm
from tilestitch.codegen.cuda.group import lower_group
from tilestitch.codegen.cuda.surroundings import Anchored
from tilestitch.codegen.cuda.target import CudaTarget, parse_cuda_target
from tilestitch.codegen.cuda.toolchain import nvrtc
from tilestitch.codegen.cuda.toolchain.text import kernel_text
from tilestitch.codegen.launch import CountersArg, KernelArg, PackedArg, TemporaryArg, TensorMapArg, ValueArg
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.compiler.ir.types import to_numpy_dtype
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.plan.gemm.partition import cut
from tilestitch.passes.plan.gemm.tiles import WgmmaTile
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.schedule.cuda.gemm import persistent_blocks
from tilestitch.passes.schedule.kernels import schedule_group
from tilestitch.runtime.emulator import EmulatorOptions, Kernels, TensorArgument
from tilestitch.runtime.emulator.kernels import Argument


@cache
def target(name: str = "cuda:sm_80") -> CudaTarget:
    return parse_cuda_target(name)


def anchored(graph: Graph, cuda: CudaTarget | None = None) -> Anchored:
    """The whole graph as one group."""
    nodes, outputs = tuple(graph.nodes), tuple(dict.fromkeys(graph.outputs))
    roles = roles_of(nodes, outputs, "g")
    assert isinstance(roles, Roles), roles
    made = {v for n in nodes for v in n.outputs}
    read = dict.fromkeys(v for n in nodes for v in n.inputs if v not in made)
    inputs = tuple(v for v in read if v.data is None or v.data.size != 1)
    return Anchored(nodes, roles, inputs, outputs, cuda or target())


def lower(
    graph: Graph, cuda: CudaTarget | None = None, model: LatencyModel = ANALYTICAL
) -> tuple[CudaLaunch, ...]:  # fmt: skip
    cuda, by_name = cuda or target(), {node.name: node for node in graph.nodes}
    return lower_group(graph, schedule_group(by_name, one_group(graph), cuda.planned_for, model), cuda)


def wgmma_blocks(gemm: IndexedGemm, tile: WgmmaTile, parts: int, cuda: CudaTarget) -> int:
    """Blocks of a launch of wgmma as the planner would choose them."""
    partition = cut(gemm, (tile.bm, tile.bn, tile.bk), parts)
    return persistent_blocks(tile, partition, cuda.device)


def run(
    launches: Sequence[CudaLaunch], values: Mapping[str, np.ndarray], outputs: Sequence[Value],
    options: EmulatorOptions | None = None, runs: int = 1,
) -> dict[str, np.ndarray]:  # fmt: skip
    """The outputs of launches on the emulated device, after so many runs; counters are kept from one to the next."""
    memory: dict[str, np.ndarray] = {name: np.ascontiguousarray(array) for name, array in values.items()}
    texts = {f"k{i}": kernel_text(launch.func, target()).replace(SYMBOL, f"k{i}") for i, launch in enumerate(launches)}
    kernels = Kernels(texts, options)
    counters = [[np.zeros(a.nbytes, np.uint8) for a in x.args if isinstance(a, CountersArg)] for x in launches]
    for _ in range(runs):
        memory.update({v.name: _unwritten(v) for v in outputs})
        for i, launch in enumerate(launches):
            arrays = [_memory_of(arg, memory, counters[i]) for arg in launch.args]
            kernels.launch(f"k{i}", launch.grid, launch.block, arrays, launch.shared_bytes, cluster=launch.cluster)
    if runs == 1:
        assert not any(np.any(array) for own in counters for array in own), "counters are as the next run wants them"
    return {v.name: memory[v.name] for v in outputs}


def _unwritten(value: Value) -> np.ndarray:
    array = np.empty(value.shape, to_numpy_dtype(value.dtype))
    array.reshape(-1).view(np.uint8).fill(0xFF)
    return array


def _memory_of(arg: KernelArg, memory: dict[str, np.ndarray], counters: Sequence[np.ndarray]) -> Any:
    match arg:
        case ValueArg(name):
            return memory[name]
        case TemporaryArg(name, nbytes):
            return memory.setdefault(f"temporary {name}", np.empty(nbytes, np.uint8))
        case PackedArg(name, key, arrange):
            return memory.setdefault(f"{key} {name}", arrange(memory[name]))
        case TensorMapArg(over, tensor_map, offset_bytes):
            return TensorArgument(tensor_map, after(Argument.of(_memory_of(over, memory, counters)), offset_bytes))
        case CountersArg():
            return counters[0]
    raise AssertionError(arg)


def after(memory: Argument, offset_bytes: int) -> Argument:
    """The memory from an offset on."""
    return replace(memory, address=memory.address + offset_bytes, nbytes=memory.nbytes - offset_bytes)


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)

    def make(type_: TensorType) -> np.ndarray:
        shape = type_.static_shape
        data: Any = random.integers(0, 5, shape) if "int" in type_.dtype else random.uniform(-1, 1, shape)
        return np.asarray(data).astype(to_numpy_dtype(type_.dtype))

    return {v.name: make(v.tensor_type) for v in graph.inputs}


def round_to_tf32(x: np.ndarray) -> np.ndarray:
    """The nearest float32 with 10 bits of mantissa, ties away from zero."""
    return ((x.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32)


def check(
    graph: Graph, launches: Sequence[CudaLaunch] | Callable[[Graph], Sequence[CudaLaunch]] = lower,
    options: EmulatorOptions | None = None, tf32: bool = False, runs: int = 1,
) -> tuple[CudaLaunch, ...]:  # fmt: skip
    """Compare a group on the emulated device with numpy; returns its launches. They may be given, or how they are made.

    tf32: inputs are exact as TF32.
    """
    launches = tuple(launches(graph) if callable(launches) else launches)
    inputs = random_inputs(graph)
    if tf32:
        inputs = {name: round_to_tf32(array) for name, array in inputs.items()}
    expected = interpret(graph, inputs)
    constants = {v.name: np.asarray(v.data) for v in graph.constants}
    outputs = list(dict.fromkeys(graph.outputs))
    actual = run(launches, {**inputs, **constants}, outputs, options, runs)
    for value in outputs:
        want, got = expected[value].astype(np.float64), actual[value.name].astype(np.float64)
        tolerance = SUMS.get(value.dtype, 0)
        scale = max(1.0, float(np.abs(want).max())) if want.size else 1.0
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * scale)
    return launches


def matmul(
    left: tuple[int, ...], right: tuple[int, ...], dtype: str = "float32", *, trans: tuple[bool, bool] = (False, False),
    out_dtype: str | None = None, epilogue: bool = False, precision: str | None = None,
) -> Graph:  # fmt: skip
    """A GEMM of two inputs; with an epilogue, tanh(GEMM + residual)."""
    graph = Graph()
    a = graph.add_input("a", TensorType(dtype, left))
    b = graph.add_input("b", TensorType(dtype, right))
    more: dict[str, Any] = {"out_dtype": out_dtype} if out_dtype else {}
    more.update({"precision": precision} if precision else {})
    y = graph.emit("matmul", a, b, trans_a=trans[0], trans_b=trans[1], **more)
    if epilogue:
        y = graph.emit("tanh", graph.emit("add", y, graph.add_input("r", y.tensor_type)))
    graph.outputs = [y]
    return graph


def gemm_shapes(m: int, n: int, k: int, trans: tuple[bool, bool]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Shapes of the operands of a GEMM [m, n]."""
    return (k, m) if trans[0] else (m, k), (n, k) if trans[1] else (k, n)


_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


def assembler_log(launch: CudaLaunch, architecture: str, cuda: CudaTarget | None = None) -> str:
    """What NVRTC and its assembler say of a kernel, which they must not refuse."""
    source = kernel_text(launch.func, cuda or target()).encode()
    library = nvrtc._bindings()
    _, program = library.nvrtcCreateProgram(source, b"kernel.cu", 0, [], [])
    flags = [f"--gpu-architecture={architecture}", f"-I{nvrtc.include_folder()}", *nvrtc.OPTIONS, "--ptxas-options=-v"]
    (status,) = library.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
    log = nvrtc._text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program).decode(errors="replace")
    assert status == library.nvrtcResult.NVRTC_SUCCESS, log
    return log


def resources(launch: CudaLaunch, architecture: str, cuda: CudaTarget | None = None) -> tuple[int, int]:
    """Registers of a thread and bytes spilled, as the assembler reports them."""
    log = assembler_log(launch, architecture, cuda)
    spilled = [sum(map(int, pair)) for pair in _SPILLS.findall(log)]
    registers = _REGISTERS.search(log)
    assert registers is not None and spilled, log
    return int(registers[1]), max(spilled)
