"""Accumulators stay in registers whatever the epilogue computes: its constants are loaded after the reduction."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.kernel_harness import cpu_group, interpret, run_launches, target
from tests.compiled import assert_close
from tests.tolerances import SUMS
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.codegen.cpu.target import parse_target
from tilestitch.codegen.cpu.toolchain.build import _codegen, lower
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.passes.plan.cpu.schedules import CpuGemmSchedule

TILES = {
    "cpu:znver4": CpuGemmSchedule(14, 2, 16, 15, 4, 768, spill=True, prefetch_next=True),
    "cpu:haswell": CpuGemmSchedule(6, 2, 8, 15, 4, 768, spill=True),
    "cpu:aarch64-linux-gnu/neoverse-n1": CpuGemmSchedule(6, 4, 4, 15, 4, 768, spill=True),
}
STACK = re.compile(r"\(%rsp|\[sp|\[x29")


def gelu(graph: Graph, x: Value) -> Value:
    half, one, root = (graph.constant(np.float32(number)) for number in (0.5, 1, 0.5**0.5))
    error = graph.emit("erf", graph.emit("mul", x, root))
    return graph.emit("mul", graph.emit("mul", x, half), graph.emit("add", error, one))


def gemm(m: int, n: int, k: int) -> Graph:
    """A layer of a perceptron with GELU."""
    graph, random = Graph("gemm"), np.random.default_rng(m)
    x = graph.add_input("x", TensorType("float32", (m, k)))
    w, bias = (graph.constant(random.standard_normal(shape, np.float32)) for shape in ((k, n), (n,)))
    graph.outputs = [gelu(graph, graph.emit("add", graph.emit("matmul", x, w), bias))]
    return graph


def reductions(text: str) -> list[str]:
    """The innermost loops of x86-64's or aarch64's assembly that multiply and add most, and do not compare."""
    blocks = re.split(r"^(\.LBB\w+):", text, flags=re.MULTILINE)[1:]
    parts = [
        re.split(rf"\s(?:j|b\.)\w+\s+{label}$", body, flags=re.M) for label, body in zip(blocks[::2], blocks[1::2])
    ]
    loops = [body for body, *rest in parts if rest and not re.search("vcmp|fcm", body)]
    counts = [len(re.findall(r"vfmadd231ps|\sfmla\s", body)) for body in loops]
    return [body for body, count in zip(loops, counts, strict=True) if count > max(counts) / 2]


@pytest.mark.parametrize("k_block", [768, 256])
@pytest.mark.parametrize("name", TILES)
def test_accumulators_beside_an_epilogue_with_many_constants(name: str, k_block: int) -> None:
    """The rows have tiles of two heights, so that the epilogue is there twice where the reduction is one block."""
    graph, cpu = gemm(197, 3072, 768), parse_target(name)
    (launch,) = lower_group(graph, replace(cpu_group(graph), schedule=replace(TILES[name], k_block=k_block)))
    loops = reductions(str(_codegen(lower(launch.func, "kernel", cpu), cpu).inspect_source("asm")))
    assert len(loops) >= 2
    assert not [body for body in loops if STACK.search(body)]


@pytest.mark.parametrize("changes", [{"rows": 5}, {"rows": 3, "k_block": 7}], ids=str)
def test_results_are_those_of_the_graph(changes: dict[str, int]) -> None:
    graph = gemm(33, 70, 19)
    schedule = CpuGemmSchedule(5, 2, target().isa.vector_bytes // 4, 2, 2, 19, spill=True)
    launches = lower_group(graph, replace(cpu_group(graph), schedule=replace(schedule, **changes)))
    x = np.random.default_rng(1).standard_normal((33, 19), np.float32)
    constants = {value.name: np.asarray(value.data) for value in graph.constants}
    expected = interpret(graph, {"x": x})[graph.outputs[0]]
    (actual,) = run_launches(launches, {"x": x, **constants}, graph.outputs).values()
    assert_close(actual, expected, SUMS["float32"])
