"""Kernels whose registers spill are compiled again, and the best result is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from tests.codegen.cuda.cuda_harness import build
from tilestitch.codegen.cuda.toolchain import nvrtc, spills
from tilestitch.codegen.cuda.toolchain.resources import KernelResources, kernel_resources, sections
from tilestitch.codegen.cuda.toolchain.spills import with_another_block, without_spills
from tilestitch.compiler.ir import Graph, TensorType

HEAD = 'extern "C" __global__ void __launch_bounds__(64) '
PLAIN = HEAD + "kernel(float* x) { x[threadIdx.x] += 1.0f; }"
FREE, ANY, ONE_BLOCK = (HEAD, ()), (HEAD, ("--maxrregcount=255",)), (HEAD.replace("64", "64, 1"), ())


def array(length: int) -> str:
    """A kernel that has an array in a thread's memory."""
    return HEAD + (
        f"kernel(float* x, int* order) {{ float mine[{length}];"
        f"for (int i = 0; i < {length}; ++i) mine[i] = x[i * 64 + threadIdx.x];"
        f"for (int i = 0; i < {length}; ++i) x[i * 64 + threadIdx.x] = mine[order[i] & {length - 1}]; }}"
    )


SMALL, LARGE, NONE = (nvrtc.compile_text(text, "sm_80") for text in (array(32), array(64), PLAIN))


@pytest.mark.parametrize(
    ("answers", "asked", "kept"),
    [
        ([NONE], [FREE], NONE),
        ([SMALL, NONE], [FREE, ANY], NONE),
        ([SMALL, LARGE, NONE], [FREE, ANY, ONE_BLOCK], NONE),
        ([LARGE, SMALL, LARGE], [FREE, ANY, ONE_BLOCK], SMALL),
    ],
)
def test_ways_are_tried_until_nothing_spills(
    answers: list[bytes], asked: list[tuple[str, tuple[str, ...]]], kept: bytes
) -> None:
    left, seen = iter(answers), []

    def compile_(text: str, options: tuple[str, ...]) -> bytes:
        seen.append((text, options))
        return next(left)

    assert without_spills(HEAD, compile_) == kept
    assert seen == asked


@pytest.mark.parametrize("text", [PLAIN, array(64)], ids=["plain", "spilled"])
def test_a_cubin_comes_with_the_ptx_of_the_text_as_it_is(text: str, tmp_path: Path) -> None:
    """What is compiled again for the sake of registers is the cubin alone. A second compilation would write the same,
    and is left out."""
    along, alone = tmp_path / "along.ptx", tmp_path / "alone.ptx"
    compiled = nvrtc.Job(text, "sm_90", tmp_path / "cubin", along)
    assert nvrtc.compile_jobs([compiled, nvrtc.Job(text, "compute_90", alone)], 1, lambda done: None) == [None, None]
    assert along.read_bytes() == alone.read_bytes()
    assert nvrtc.compile_jobs([nvrtc.Job("no C++", "compute_90", along)], 1, lambda done: None) == [None]
    assert along.read_bytes() == alone.read_bytes()


def test_what_a_portable_kernel_is_for_sm_90_it_is_for_sm_90a() -> None:
    """Its artifact names the cubin as sm_90a's, and the GPU runs it with those that use the features of sm_90a."""
    codes = [
        [s.data for s in sections(nvrtc.compile_text(array(64), a)) if s.name.startswith(".text")]
        for a in ("sm_90", "sm_90a")
    ]
    assert codes[0] == codes[1] != []


def test_a_number_of_blocks_that_is_asked_for_stays() -> None:
    bound = HEAD.replace("64", "64, 4")
    texts = []
    without_spills(bound, lambda text, _: texts.append(text) or SMALL)  # type: ignore[func-returns-value]
    assert texts == [bound, bound, bound]


def fake(registers: int, local: int = 0, code: int = 1000) -> bytes:
    """Return a stand-in for a cubin."""
    return f"{registers} {local} {code}".encode()


@pytest.fixture
def by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cubins are their resources."""

    def resources_of(cubin: bytes) -> dict[str, KernelResources]:
        registers, local, _ = map(int, cubin.split())
        return {"kernel": KernelResources(registers, 0, local)}

    monkeypatch.setattr(spills, "kernel_resources", resources_of)
    monkeypatch.setattr(spills, "_code_bytes", lambda cubin: int(cubin.split()[2]))


@pytest.mark.parametrize(
    ("threads", "found", "asked", "other", "is_kept"),
    [
        (256, fake(130), 128, fake(128), True),
        (256, fake(136), 128, fake(128, code=1030), True),
        (256, fake(136), 128, fake(128, code=1031), False),
        (256, fake(130), 128, fake(128, local=8), False),
        (256, fake(130, local=8), 128, fake(128, local=8), True),
        (128, fake(175), 168, fake(168), True),
        (256, fake(137), None, b"", False),
        (256, fake(128), None, b"", False),
        (256, fake(52), None, b"", False),  # four blocks would be five: little more
    ],
)
@pytest.mark.usefixtures("by_name")
def test_a_few_registers_less_are_asked_for_where_an_sm_then_holds_another_block(
    threads: int, found: bytes, asked: int | None, other: bytes, is_kept: bool
) -> None:
    seen = []

    def compile_(_: str, options: tuple[str, ...]) -> bytes:
        seen.append(options)
        return other

    source = HEAD.replace("64", str(threads))
    assert with_another_block(source, found, "sm_80", compile_) == (other if is_kept else found)
    assert seen == ([] if asked is None else [(f"--maxrregcount={asked}",)])


@pytest.mark.parametrize("source", [HEAD.replace("64", "256, 1"), HEAD.replace("64", "256") + "extern __shared__"])
@pytest.mark.usefixtures("by_name")
def test_kernels_that_ask_for_blocks_or_for_memory_at_their_launch_keep_their_registers(source: str) -> None:
    def compile_(text: str, options: tuple[str, ...]) -> bytes:
        raise AssertionError(f"compiled again with {options}: {text}")

    assert with_another_block(source, fake(130), "sm_75", compile_) == fake(130)


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90a"])
def test_an_sm_holds_two_blocks_of_large_float32_gemms(architecture: str) -> None:
    """As is predicted from the estimated registers; the compiler took up to 133, and one block was held."""
    graph = Graph("gemm")
    a, b = (graph.add_input(name, TensorType("float32", (2048, 2048))) for name in "ab")
    graph.outputs = [graph.emit("matmul", a, b, trans_a=False, trans_b=False, out_dtype="float32")]
    kernels = build(graph, f"cuda:{architecture}")
    (found,) = kernel_resources(kernels.members[f"kernels/{architecture}/0.cubin"]).values()
    assert found.registers <= 128
    assert found.local_bytes == 0
