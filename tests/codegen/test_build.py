"""Compiling kernels: names, sharing, sources, errors."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.script.ir_builder import tirx as T

from tests.codegen.kernel_harness import check, cpu_group, one_group, run_graph, target
from tilestitch.codegen.compute.sizes import kernels_over
from tilestitch.codegen.cpu.abi import KernelLaunch, Parameter, kernel_function
from tilestitch.codegen.cpu.backend import CpuBackend
from tilestitch.codegen.cpu.group import lower_group
from tilestitch.codegen.cpu.target import host_target, parse_target
from tilestitch.codegen.cpu.toolchain import build
from tilestitch.codegen.cpu.toolchain.build import CompiledKernels, compile_kernels, content_hash, lower
from tilestitch.codegen.cpu.toolchain.link import link
from tilestitch.codegen.errors import CodegenError, KernelError, TargetError
from tilestitch.codegen.launch import ValueArg
from tilestitch.compiler.ir.graph import Graph
from tilestitch.compiler.ir.in_kernel import in_kernel
from tilestitch.compiler.ir.sizes import Symbol, size_of
from tilestitch.compiler.ir.types import TensorType
from tilestitch.passes.plan import GroupKind


def scaled(factor: float = 2.0, size: int = 100, prefix: str = "") -> Graph:
    graph = Graph("scaled")
    x = graph.add_input(f"{prefix}x", TensorType("float32", (size,)))
    graph.outputs = [graph.emit("exp", graph.emit("mul", x, graph.constant(np.float32(factor))), origins=["Exp_1"])]
    return graph


def launches(graph: Graph) -> tuple[KernelLaunch, ...]:
    return lower_group(graph, cpu_group(graph))


def test_equal_kernels_are_compiled_once_whatever_their_values_are_called() -> None:
    many = [launches(scaled(prefix=p))[0] for p in ("a", "b", "c")] + [launches(scaled(3.0))[0]]
    compiled = compile_kernels(many, target())
    assert len(set(compiled.symbols)) == 2 and len(compiled.objects) == 2
    assert compiled.symbols[0] == compiled.symbols[1] == compiled.symbols[2] != compiled.symbols[3]
    assert compiled.symbols[0].startswith("injective_")


def test_equal_kernels_with_other_signatures_are_compiled_once_and_linked_under_both_names(tmp_path: Path) -> None:
    layer, other = launches(scaled())[0], launches(scaled(3.0))[0]
    digests = ["0" * 16, "1" * 16, "0" * 16]
    compiled = compile_kernels([layer, layer, other], target(), digests, keep_source=True)
    one, two, three = compiled.symbols
    assert one != two and len(compiled.objects) == 2
    assert compiled.aliases == {two: one}
    assert {source.symbol for source in compiled.sources} == {one, two, three}
    assert all(source.symbol in source.texts["ll"] for source in compiled.sources)
    path = tmp_path / "kernels.so"
    path.write_bytes(link(compiled.objects, compiled.symbols, compiled.aliases))
    library = ctypes.CDLL(str(path))
    first, second, third = (ctypes.cast(library[symbol], ctypes.c_void_p).value for symbol in (one, two, three))
    assert first == second != third


def test_kept_sources_contain_no_addresses_of_the_process_that_compiled() -> None:
    def body(buffers: list[Any], task: Any, scratch: Any) -> None:
        T.buffer_store(buffers[0], buffers[0][0] + buffers[0][1], [2])

    func = kernel_function([Parameter(ValueArg("y"), "float32", 4)], body)
    (source,) = compile_kernels([KernelLaunch("sum", func, 1, ())], target(), keep_source=True).sources
    assert re.search(r'!"\d+\.w\d+\.b\d+"', source.texts["ll"])
    assert not re.search(r'!"0x[0-9a-f]{8}', source.texts["ll"])


def test_kernels_are_equal_whatever_other_sizes_their_models_leave_open() -> None:
    rows, columns = Symbol("rows", 1, 64), Symbol("columns", 1, 64)

    def body(buffers: list[Any], task: Any, scratch: Any) -> None:
        T.buffer_store(buffers[0], T.float32(1), [T.min(task, in_kernel(size_of(rows)) - 1)])

    def stored(*symbols: Symbol) -> str:
        with kernels_over(symbols):
            return content_hash(kernel_function([Parameter(ValueArg("y"), "float32", size_of(rows))], body))

    assert stored(rows) == stored(rows, columns) != stored(columns, rows)


def test_a_kernel_of_many_launches_is_written_as_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    monkeypatch.setattr(build, "_text", lambda func, text=build._text: written.append(func) or text(func))
    layer, other = launches(scaled())[0], launches(scaled(3.0))[0]
    layers = [replace(layer, origins=(f"Exp_{number}",)) for number in range(5)]
    assert len(compile_kernels([*layers, other], target()).symbols) == 6
    assert len(written) == 2


def test_symbols_are_the_same_in_another_process() -> None:
    code = (
        "from tests.codegen.test_build import launches, scaled\n"
        "from tilestitch.codegen.cpu.toolchain.build import content_hash\n"
        "print(content_hash(launches(scaled())[0].func))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert other == content_hash(launches(scaled())[0].func)


def test_objects_are_reproducible_and_do_not_depend_on_jobs() -> None:
    many = [launches(scaled(float(i)))[0] for i in range(4)]
    one, two = compile_kernels(many, target(), jobs=1), compile_kernels(many, target(), jobs=3)
    assert len(one.objects) == 4
    assert one == two


def test_all_cpus_compile_what_one_thread_will_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def compiled(*_: Any, jobs: int, **__: Any) -> CompiledKernels:
        asked.append(jobs)
        return CompiledKernels((), ())

    monkeypatch.setattr("tilestitch.codegen.cpu.backend.compile_kernels", compiled)
    CpuBackend(host_target(), threads=1).compile((), (), keep_source=False, progress=lambda *_: None)
    assert asked == [len(os.sched_getaffinity(0))]


def test_indices_are_simplified_before_loops_are_written_out() -> None:
    graph, found = Graph("product"), list[str]()
    x, y = (graph.add_input(name, TensorType("float32", (8, 32))) for name in "xy")
    graph.outputs = [graph.emit("matmul", x, graph.emit("transpose", y, perm=(1, 0)))]

    @tvm.ir.instrument.pass_instrument
    class Watch:
        def run_before_pass(self, module: Any, info: Any) -> None:
            if info.name == "tirx.FlattenBuffer":
                found.append(module.script())

    with tvm.transform.PassContext(instruments=[Watch()]):
        for launch in launches(graph):
            lower(launch.func, "kernel", target())
    assert found and all("T.unroll" in text for text in found)


def test_sources_are_kept_on_request() -> None:
    compiled = compile_kernels(launches(scaled()), target(), keep_source=True)
    (source,) = compiled.sources
    assert source.symbol == compiled.symbols[0]
    assert "def kernel" in source.texts["tir.py"] and f"@{source.symbol}" in source.texts["ll"]
    assert not compile_kernels(launches(scaled()), target()).sources


def test_common_functions_make_no_library_calls_in_vector_loops() -> None:
    for op in ("exp", "log", "tanh", "erf", "sin", "cos", "sqrt", "floor", "round"):
        graph = Graph(op)
        graph.outputs = [graph.emit(op, graph.add_input("x", TensorType("float32", (1000,))))]
        (source,) = compile_kernels(launches(graph), target(), keep_source=True).sources
        body = source.texts["ll"].split(f"@{source.symbol}(")[1].split("\n}")[0]
        called = {line.split("@")[1].split("(")[0] for line in body.splitlines() if " call " in line and "@" in line}
        allowed = (
            "llvm.fmuladd.",
            "llvm.fma.",
            "llvm.fabs.",
            "llvm.fshl.",
            "llvm.sqrt.",
            "llvm.floor.",
            "llvm.roundeven.",
            "llvm.smin.",
            "llvm.umin.",
            "llvm.smax.",
            "llvm.copysign.",
            "llvm.minnum.",
            "llvm.maxnum.",
            "llvm.dbg",
        )
        assert all(name.startswith(allowed) for name in called), (op, called)


def test_what_tvm_refuses_is_one_error_with_kernel_and_nodes() -> None:
    (good,) = launches(scaled())
    from tvm import tirx
    from tvm.script.ir_builder import tirx as T

    from tilestitch.codegen.cpu.abi import kernel_function

    stray = tirx.Var("stray", "float32")
    bad = replace(good, func=kernel_function([], lambda buffers, task, scratch: T.evaluate(stray + stray)))
    with pytest.raises(KernelError, match=r"kernel injective_.*\(ONNX nodes: Exp_1\)"):
        compile_kernels([good, bad], target())


def test_groups_that_no_template_fits_are_refused_by_name() -> None:
    graph = Graph("strings")
    x = graph.add_input("x", TensorType("complex64", (3,)))
    graph.outputs = [graph.emit("add", x, x, origins=["Add_7"])]
    with pytest.raises(CodegenError, match=r"complex64.*host step.*Add_7"):
        lower_group(graph, one_group(graph))
    graph = Graph("open")
    y = graph.add_input("y", TensorType("float32", ("n",)))
    graph.outputs = [graph.emit("add", y, y, origins=["Add_8"])]
    with pytest.raises(CodegenError, match=r"sizes only a run can tell.*host step.*Add_8"):
        lower_group(graph, one_group(graph))
    graph = Graph("both")
    z = graph.add_input("z", TensorType("float32", (4, 4)))
    total = graph.emit("reduce_sum", z, axes=(1,), keepdims=True)
    graph.outputs = [graph.emit("reduce_sum", graph.emit("add", z, total), axes=(0,), keepdims=True, origins=["Sum_9"])]
    with pytest.raises(CodegenError, match=r"fits no kernel template.*Sum_9"):
        lower_group(graph, one_group(graph, GroupKind.ROWWISE))


def test_empty_outputs_need_no_launch() -> None:
    assert launches(scaled(size=0)) == ()


@pytest.mark.parametrize("name", ["cpu:x86-64", "cpu:x86-64-v2", "cpu:x86-64-v3"])
def test_older_processors_get_code_that_runs_here_too(name: str) -> None:
    if host_target().mtriple.split("-")[0] != "x86_64":
        pytest.skip("an x86-64 machine is needed to run its code")
    for dtype in ("float32", "float16", "bfloat16"):
        graph = Graph("old")
        x = graph.add_input("x", TensorType(dtype, (37,)))
        graph.outputs = [graph.emit("round", graph.emit("tanh", graph.emit("mul", x, x)))]
        values = (np.arange(37) / 7).astype(np.float32)
        from tilestitch.compiler.ir.types import to_numpy_dtype

        operand = values.astype(to_numpy_dtype(dtype))
        expected = np.round(np.tanh(operand.astype(np.float32) ** 2))
        (result,) = run_graph(graph, {"x": operand}, cpu=parse_target(name)).values()
        np.testing.assert_array_equal(result.astype(np.float32), expected)


def test_targets_are_parsed_and_described() -> None:
    assert parse_target("cpu") == host_target()
    assert "avx2" in parse_target("cpu:x86-64-v3").features and "avx512f" not in parse_target("cpu:x86-64-v3").features
    assert "avx2" not in parse_target("cpu:x86-64-v3,-avx2").features
    assert parse_target("cpu:aarch64-linux-gnu/neoverse-v2").isa.vector_bytes == 16
    assert parse_target("cpu:x86-64-v4").isa.vector_bytes == 64


@pytest.mark.parametrize("name", ["gpu", "cpu:pentium-pro-max", "cpu:wasm32-unknown/generic", "cpu:x86-64-v3,avx2"])
def test_unknown_targets_say_what_to_write(name: str) -> None:
    with pytest.raises(TargetError, match=r"cpu|known|knows|feature"):
        parse_target(name)


def test_a_group_of_several_outputs_shares_what_they_have_in_common() -> None:
    graph = Graph("several")
    x = graph.add_input("x", TensorType("float32", (4, 30)))
    shared = graph.emit("exp", x)
    graph.outputs = [graph.emit("neg", shared), shared, graph.emit("reshape", graph.emit("abs", shared), shape=(8, 15))]
    check(graph, {"x": np.linspace(-3, 3, 120, dtype=np.float32).reshape(4, 30)})


def test_objects_need_no_room_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM ends the process when it cannot write a file."""
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    (data,) = compile_kernels(launches(scaled()), target()).objects
    assert data.startswith(b"\x7fELF")


def there_and_back(zero: int) -> Graph:
    """Integers, scaled, quantised and dequantised."""
    graph = Graph("there_and_back")
    x = graph.emit("cast", graph.add_input("x", TensorType("int16", (1003,))), to="float32")
    x = graph.emit("mul", x, graph.constant(np.float32(0.01)))
    rounded = graph.emit("cast", graph.emit("round", x), to="int32")
    moved = graph.emit("add", rounded, graph.constant(np.int32(zero)))
    raised = graph.emit("maximum", moved, graph.constant(np.int32(0)))
    q = graph.emit("cast", graph.emit("minimum", raised, graph.constant(np.int32(255))), to="uint8")
    whole = graph.emit("sub", graph.emit("cast", q, to="int32"), graph.constant(np.int32(zero)))
    graph.outputs = [graph.emit("cast", whole, to="float32")]
    return graph


def test_what_is_quantised_and_dequantised_stays_a_float() -> None:
    graph = there_and_back(130)
    (source,) = compile_kernels(launches(graph), target(), keep_source=True).sources
    assert "uint8" not in source.texts["tir.py"] and "lrint" not in source.texts["ll"]
    check(graph, {"x": np.arange(-501, 502, dtype=np.int16) * 60})


def test_a_conversion_rounds_by_itself() -> None:
    graph = there_and_back(130)
    (cast,) = (node for node in graph.nodes if node.output.dtype == "uint8")
    graph.outputs = [cast.output]
    (source,) = compile_kernels(launches(graph), target(), keep_source=True).sources
    assert "llvm.lrint." in source.texts["ll"] and "fptosi" not in source.texts["ll"]
    check(graph, {"x": np.arange(-501, 502, dtype=np.int16) * 60})


@pytest.mark.parametrize(
    "cpu", ["cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:aarch64-linux-gnu/neoverse-n1"]
)
def test_no_cpu_calls_a_library_to_round(cpu: str) -> None:
    graph = there_and_back(7)
    (cast,) = (node for node in graph.nodes if node.output.dtype == "uint8")
    graph.outputs = [cast.output]
    chosen = parse_target(cpu)
    (launch,) = launches(graph)
    text = str(build._codegen(build.lower(launch.func, "kernel", chosen), chosen).inspect_source("asm"))
    assert "lrint" not in text


@pytest.mark.parametrize(("cpu", "reads"), [("cpu:x86-64", False), ("cpu:x86-64-v2", False), ("cpu:x86-64-v3", True)])
def test_a_conversion_reads_memory_itself_only_where_that_may_lie_anywhere(cpu: str, reads: bool) -> None:
    """Without AVX it faults where the address is no multiple of 16."""
    graph = Graph("rounded")
    x = graph.add_input("x", TensorType("float32", (1003,)))
    graph.outputs = [graph.emit("cast", graph.emit("round", x), to="int32")]
    chosen = parse_target(cpu)
    (launch,) = launches(graph)
    text = str(build._codegen(build.lower(launch.func, "kernel", chosen), chosen).inspect_source("asm"))
    assert "cvtps2dq" in text
    assert bool(re.search(r"cvtps2dq\t[^\n]*\(", text)) == reads
