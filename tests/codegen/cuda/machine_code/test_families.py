"""The machine code of every family: no spills, no fences in loops, 16 bytes at a time where shapes allow it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from tests.attention_graphs import Case
from tests.codegen.cuda.contraction_harness import lower, matmul, target
from tests.codegen.cuda.cuda_harness import launches_of
from tests.codegen.cuda.test_cuda_attention import lower as lower_attention
from tests.codegen.cuda.test_cuda_grid import batch_norm
from tests.codegen.cuda.test_cuda_injective import sum_of_two
from tests.codegen.cuda.test_cuda_rows import layer_norm, softmax
from tests.codegen.cuda.test_wgmma import TILES, emitted, name_of
from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.cuda.backend import asked
from tilestitch.codegen.cuda.machine_code.disassemble import disassemble
from tilestitch.codegen.cuda.machine_code.flow import MachineCode
from tilestitch.codegen.cuda.machine_code.lint import Widths, lint, main_loops, widths
from tilestitch.codegen.cuda.toolchain.compile import BuildOptions, compile_kernels
from tilestitch.compiler.ir import Graph
from tilestitch.passes.plan.gemm.tiles import WgmmaTile

WIDE = Widths(16, 16)
HOPPER = "cuda:sm_90a"
Lower = Callable[[str], Sequence[CudaLaunch]]


def compiled(launches: Sequence[CudaLaunch], name: str) -> list[MachineCode]:
    """The machine code of each launch."""
    kernels = compile_kernels(launches, target(name), BuildOptions(1), lambda *_: None)
    members = ((member.split("/")[1], data) for member, data in kernels.members.items() if member.endswith(".cubin"))
    codes = {code.symbol: code for code in disassemble(members)}
    return [codes[symbol] for symbol in kernels.symbols]


def group(graph: Graph) -> Lower:
    return lambda name: launches_of(graph, name=name)


def gemm(dtype: str, shape: tuple[int, int, int] = (1024, 1024, 1024), **options: object) -> Lower:
    m, n, k = shape
    graph = matmul((m, k), (k, n), dtype, epilogue=dtype != "int8", **options)  # type: ignore[arg-type]
    return lambda name: lower(graph, target(name))


def heads(width: int, dtype: str, queries: int = 512, tf32: bool = False) -> Lower:
    case = Case(heads=64, queries=queries, keys=2048, width=width, columns=width, dtype=dtype, tf32=tf32)
    return lambda name: lower_attention(case, name)


FAMILIES: dict[str, tuple[Lower, Widths]] = {
    "element-wise": (group(sum_of_two((4096, 1024), (4096, 1024), "float32")), WIDE),
    "element-wise, half floats": (group(sum_of_two((4096, 1024), (1024,), "float16")), WIDE),
    "rows": (group(layer_norm(4096, 1024)), WIDE),
    "rows, half floats": (group(softmax((4096, 1000), 1, "float16")), WIDE),
    "columns": (group(softmax((1024, 64, 64), 1)), Widths(4, 4)),
    "rows over blocks": (group(softmax((4, 1 << 18), 1)), WIDE),
    "columns over blocks": (group(batch_norm(65536, 64)), Widths(4, 4)),
    "GEMM, float32": (gemm("float32"), Widths(16, 4)),  # a round of sums is one for each thread
    "GEMM, float32, in parts": (gemm("float32", (64, 256, 8192)), WIDE),
    "GEMM, tf32": (gemm("float32", precision="tf32"), WIDE),
    "GEMM, float16": (gemm("float16"), Widths(16, 8)),
    "GEMM, bfloat16, in parts": (gemm("bfloat16", (64, 256, 8192)), Widths(16, 8)),
    "GEMM, few rows": (gemm("float16", (4, 4096, 4096)), Widths(16, 2)),
    "attention, float16, 64": (heads(64, "float16"), WIDE),
    "attention, bfloat16, 128": (heads(128, "bfloat16"), WIDE),
    "attention, float16, 256": (heads(256, "float16"), WIDE),
    "attention, float32, 64": (heads(64, "float32"), WIDE),
    "attention, tf32, 64": (heads(64, "float32", tf32=True), WIDE),
    "attention, float16, keys in parts": (heads(64, "float16", queries=1), Widths(16, 8)),
}
"""Each with the widths of its accesses, in its last launch, at shapes that are multiples of everything."""


@pytest.mark.parametrize("name", ["cuda:sm_80", HOPPER])
@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str, name: str) -> None:
    make, wanted = FAMILIES[family]
    launches = make(name)
    for launch, code in zip(launches, compiled(launches, name), strict=True):
        assert lint(code, asked(launch.func)) == (), family
    found = widths(code)
    assert found.load_bytes >= wanted.load_bytes and found.store_bytes >= wanted.store_bytes, (family, found)


@pytest.mark.parametrize("name", ["cuda:sm_80", HOPPER])
@pytest.mark.parametrize("shape", [(169, 256, 528), (1000, 48, 147)])
def test_gemms_of_odd_shapes_keep_their_values_in_registers(shape: tuple[int, int, int], name: str) -> None:
    """The compiler is tempted to keep a register too few."""
    for code in compiled(gemm("float32", shape)(name), name):
        assert not [finding for finding in lint(code) if finding.rule == "local_memory"]


@pytest.mark.parametrize("tile", TILES, ids=name_of)
def test_gemms_by_warpgroups(tile: WgmmaTile) -> None:
    """The loop that multiplies does nothing else: no fence, no access to global memory."""
    launches = emitted(matmul((4096, 4096), (4096, 4096), "float16"), tile)
    (code,) = compiled(launches, HOPPER)
    assert lint(code, asked(launches[0].func)) == ()
    assert widths(code) == WIDE
    loops = [{code.instructions[n].name for n in loop.members} for loop in main_loops(code)]
    (main,) = (names for names in loops if "HGMMA" in names)
    assert not main & {"LDG", "STG", "MEMBAR", "CCTL", "ERRBAR"}
    assert "UTMALDG" not in main


@pytest.mark.parametrize(("dtype", "weights", "rows"), [("float16", 2 * 4 * 4, 4), ("float32", 8 * 4, 8)])
def test_exponentials_of_attention_are_a_multiply_add_and_one_instruction(dtype: str, weights: int, rows: int) -> None:
    """And results are multiplied by an inverse that each row has once. weights, rows: of a thread, a tile of keys."""
    case = Case(heads=64, queries=512, keys=2048, width=64, columns=64, dtype=dtype)
    (code,) = compiled(lower_attention(case, "cuda:sm_80"), "cuda:sm_80")
    opcodes = [instruction.opcode for instruction in code.instructions]
    assert weights <= opcodes.count("MUFU.EX2") <= weights + rows
    assert opcodes.count("MUFU.RCP") <= 2 * rows
    assert sum(i.name == "FFMA" and "1.4426950" in i.operands for i in code.instructions) >= weights
