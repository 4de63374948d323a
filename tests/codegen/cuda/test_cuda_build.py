"""Targets, the build by NVRTC, its cache and its errors."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import onnx.parser
import pytest
import tvm_ffi

from tests.codegen.cuda.cuda_harness import build, launches_of, target, text_of
from tests.codegen.cuda.test_cuda_injective import sum_of_two
from tests.codegen.cuda.test_cuda_rows import layer_norm, softmax
from tilestitch.codegen.cuda.abi import SYMBOL, CudaLaunch
from tilestitch.codegen.cuda.target import parse_cuda_target
from tilestitch.codegen.cuda.toolchain import compile as builder
from tilestitch.codegen.cuda.toolchain.compile import BuildOptions, compile_kernels
from tilestitch.codegen.errors import KernelError, TargetError
from tilestitch.codegen.kernel_cache import KernelCache
from tilestitch.compiler import compile_model
from tilestitch.cost_model.devices import DeviceError, devices, find_device, representative, with_limits_of
from tilestitch.passes.schedule.cuda.gpu import Gpu

pytest.importorskip("cuda.bindings.nvrtc")


def quiet(*_: object) -> None:
    """Progress that is not shown."""


def test_devices_are_found_by_product_name_however_it_is_written() -> None:
    assert find_device("h200") is find_device("NVIDIA H200")
    assert find_device("RTX-4090").architecture == "sm_89"
    assert find_device("a100-80").memory_bytes == 80 * 10**9
    with pytest.raises(DeviceError, match=r"no GPU called 'h900'.*H100 SXM.*B200"):
        find_device("h900")


def test_every_device_has_figures_that_fit_together() -> None:
    for device in devices():
        assert device.shared_bytes_per_block <= device.shared_bytes_per_sm
        assert with_limits_of(device, [device.architecture]) is device
        assert device.threads_per_sm % 32 == 0
        assert device.source
        # Two operations a cycle on 64 or 128 lanes of each multiprocessor, within rounding of the data sheets.
        lanes = device.peak_flops["float32"] / (2 * device.sm_count * device.clock_hz)
        assert min(abs(lanes / n - 1) for n in (64, 128)) < 0.1, device.name


def test_an_architecture_stands_for_its_usual_product() -> None:
    assert representative(90).name == "H100 SXM"
    assert parse_cuda_target("cuda:sm_90a").device.name == "H100 SXM"
    assert parse_cuda_target("cuda:h200").device.name == "H200"


def test_several_architectures_use_what_all_of_them_have() -> None:
    both = parse_cuda_target("cuda:sm_90a,sm_80")
    assert both.architectures == ("sm_80", "sm_90a")
    assert (both.capability, both.specific, both.compute) == (80, None, "compute_90")
    assert parse_cuda_target("cuda:sm_90a").specific == "sm_90a"


@pytest.mark.parametrize(
    ("architectures", "kib"),
    [("sm_90a", 227), ("sm_80", 163), ("sm_86", 99), ("sm_80,sm_90", 163), ("sm_86,sm_90", 99), ("sm_100,sm_120", 99)],
)
def test_blocks_have_the_shared_memory_that_all_architectures_allow(architectures: str, kib: int) -> None:
    target = parse_cuda_target(f"cuda:{architectures}")
    assert target.device.shared_bytes_per_block == kib * 1024
    assert Gpu.of(target.planned_for).device == target.device


def test_attention_that_is_planned_for_a_large_gpu_fits_the_smallest() -> None:
    tensor = "float[1,4,512,128]"
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 23]> g ({tensor} q, {tensor} k, {tensor} v) => ({tensor} y) '
        "{ y = Attention(q, k, v) }"
    )
    used = {}
    for architectures in ("sm_80,sm_90", "sm_86,sm_90"):
        (step,) = compile_model(model, f"cuda:{architectures}").contents.programs[0].steps
        used[architectures] = max(launch.shared_bytes for launch in step.launches)
    assert used["sm_80,sm_90"] > 99 * 1024 >= used["sm_86,sm_90"]


def test_targets_are_named_in_any_case_and_for_the_emulated_device_too() -> None:
    assert parse_cuda_target("cuda:SM_90A, H200").architectures == ("sm_90a",)
    assert parse_cuda_target("emulator").architectures == ("sm_80",)
    assert parse_cuda_target("emulator:h200").device.name == "H200"


@pytest.mark.parametrize("text", ["cuda:h200/33", "cuda:SM_90A, H200/33", "emulator:sm_80,h200/33"])
def test_a_share_of_a_gpu(text: str) -> None:
    target, whole = parse_cuda_target(text), parse_cuda_target(text.split("/")[0])
    assert (target.multiprocessors, target.device.sm_count, target.device.name) == (33, 33, "H200")
    assert target.architectures == whole.architectures
    planned = target.planned_for
    assert (planned.multiprocessors, planned.is_share) == (33, True)
    assert Gpu.of(planned).device == target.device, "the planner's device is that of code generation"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cuda", "the name of a GPU is missing; write cuda:sm_90a"),
        ("cuda:", "the name of a GPU is missing"),
        ("cuda:sm_80,", "the name of a GPU is missing"),
        ("cuda:h200, ,l4", "the name of a GPU is missing"),
        ("emulator:", "the name of a GPU is missing; write emulator:sm_90a"),
        ("emulator:sm_99", "no architecture sm_99; give one of sm_60, .*sm_121, or the name of a GPU"),
        ("cuda:sm_35", "no architecture sm_35; give one of"),
        ("cuda:sm_80a", "sm_80 has no suffix a; suffixes are a from sm_90 on and f from sm_100 on"),
        ("cuda:sm_90f", "sm_90 has no suffix f"),
        ("cuda:sm_90b", "sm_90 has no suffix b"),
        ("cuda:frobnicator", "no GPU called 'frobnicator' is known; give one of H100 SXM, .*or an architecture"),
        ("emulator:sm_80,voodoo", "no GPU called 'voodoo'"),
        ("cuda:h200/", "'' is no number of multiprocessors; write cuda:h200/32 for 32 of them"),
        ("cuda:h200/-1", "'-1' is no number of multiprocessors"),
        ("cuda:h200/1/2", "'1/2' is no number of multiprocessors"),
        ("cuda:h200/0", "H200 has 132 multiprocessors, of which 0 were asked for; give 1 to 132"),
        ("cuda:h200/133", "133 multiprocessors were asked for, and the smallest GPU has 132"),
        ("cuda:h200,sm_80/109", "109 multiprocessors were asked for, and the smallest GPU has 108"),
    ],
)
def test_targets_that_are_not_understood(text: str, said: str) -> None:
    with pytest.raises(TargetError, match=f"target {text!r}: .*{said}"):
        parse_cuda_target(text)


def test_each_architecture_gets_machine_code_and_newer_gpus_get_ptx() -> None:
    kernels = build(softmax((64, 64), 1))
    (symbol,) = set(kernels.symbols)
    assert set(kernels.members) == {"kernels/sm_80/0.cubin", "kernels/sm_90a/0.cubin", "kernels/compute_90/0.ptx"}
    assert kernels.members["kernels/sm_80/0.cubin"][:4] == b"\x7fELF"
    assert f".entry {symbol}".encode() in kernels.members["kernels/compute_90/0.ptx"]


def test_a_portable_kernel_is_compiled_once_for_sm_90a_and_newer_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []
    run = builder.nvrtc.compile_jobs

    def jobs_seen(jobs: Any, *options: Any) -> Any:
        logs = run(jobs, *options)
        asked.extend((job.architecture, any(job.output == other.ptx for other in jobs)) for job in jobs)
        return logs

    monkeypatch.setattr(builder.nvrtc, "compile_jobs", jobs_seen)
    build(softmax((64, 64), 1))
    assert asked == [("sm_80", False), ("sm_90", False), ("compute_90", True)]


def test_every_driver_of_cuda_13_takes_the_ptx() -> None:
    """A driver refuses PTX of an ISA newer than itself; that of CUDA 13.0 knows 9.0."""
    ptx = build(softmax((64, 64), 1)).members["kernels/compute_90/0.ptx"].decode()
    version = re.search(r"^\.version (\d+)\.(\d+)$", ptx, re.MULTILINE)
    assert version is not None
    assert (int(version[1]), int(version[2])) <= (9, 0)


def test_equal_kernels_are_compiled_once() -> None:
    launches = [*launches_of(layer_norm(64, 64)), *launches_of(layer_norm(64, 64))]
    kernels = compile_kernels(launches, target(), BuildOptions(1), quiet)
    assert len(kernels.symbols) == 2
    assert len(kernels.sources) == 1


def test_compiled_kernels_are_kept_and_damaged_ones_compiled_again(tmp_path: Path) -> None:
    options = BuildOptions(1, KernelCache(tmp_path))
    launches = launches_of(sum_of_two((4, 4), (4, 4), "float32"))
    first = compile_kernels(launches, target(), options, quiet)
    entries = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(entries) == len(first.members)
    entries[0].write_bytes(b"damaged")
    assert compile_kernels(launches, target(), options, quiet).members == first.members
    assert all(p.stat().st_size > 32 for p in entries)


def test_the_text_of_a_refused_kernel_is_never_written_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is known beforehand, and others may write to the folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (tmp_path / "tilestitch-bad.cu").symlink_to(mine)
    kept = Path(builder._keep("bad", "text"))
    assert (kept.read_text(), mine.read_text()) == ("text", "precious")


@pytest.mark.parametrize(("architectures", "refused"), [("sm_90", False), ("sm_80,sm_90", True), ("sm_120", True)])
def test_more_shared_memory_than_an_architecture_has_is_refused(architectures: str, refused: bool) -> None:
    text = f'extern "C" __global__ void {SYMBOL}(float *p0) {{ p0[0] = 0; }}'
    launch = CudaLaunch("wide", text, (1, 1, 1), (1, 1, 1), (), ("Conv_7",), shared_bytes=200 * 1024)
    options, on = BuildOptions(text_only=True), parse_cuda_target(f"cuda:{architectures}")
    if refused:
        with pytest.raises(KernelError, match=r"a block takes 204800 bytes.* allows \d+;.*Conv_7"):
            compile_kernels([launch], on, options, quiet)
    else:
        compile_kernels([launch], on, options, quiet)


def test_a_refused_kernel_is_named_with_its_nodes_and_text() -> None:
    text = f'extern "C" __global__ void {SYMBOL}(float *p0) {{ p0[0] = nonsense; }}'
    launch = CudaLaunch("bad", text, (1, 1, 1), (1, 1, 1), (), ("Conv_7",))
    with pytest.raises(KernelError, match="nonsense") as error:
        compile_kernels([launch], target(), BuildOptions(1), quiet)
    assert "Conv_7" in str(error.value)
    kept = next(word for word in str(error.value).split() if word.startswith("/")).rstrip(";")
    assert "nonsense" in Path(kept).read_text(encoding="utf-8")


def test_a_missing_compiler_is_said() -> None:
    with pytest.raises(TargetError, match="no CUDA compiler"):
        compile_kernels([], target(), BuildOptions(1, nvcc="/nowhere/nvcc"), quiet)
    with pytest.raises(TargetError, match="does not compile for sm_60"):
        compile_kernels([], target("cuda:p100"), BuildOptions(1), quiet)


def test_no_module_that_uses_the_gpu_when_it_is_dropped_is_made() -> None:
    name, made = "ffi.Module.create.cuda", []
    known = tvm_ffi.get_global_func(name, allow_missing=True)
    tvm_ffi.register_global_func(name, lambda *given: made.append(given), override=True)
    try:
        assert "__global__" in text_of(sum_of_two((2, 3), (3,), "float32")) and not made
        assert tvm_ffi.get_global_func(name)
    finally:
        tvm_ffi.remove_global_func(name)
        if known is not None:
            tvm_ffi.register_global_func(name, known)
