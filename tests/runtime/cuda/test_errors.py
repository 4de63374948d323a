"""What is missing or does not fit is one clear error with its remedy, and nothing is left over."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.cuda.artifacts import FLOAT4, launch, module, sum_program, write
from tests.runtime.cuda.fake_driver import FakeDriver
from tilestitch.runtime import load
from tilestitch.runtime.cuda import driver as driver_module
from tilestitch.runtime.cuda.modules import choose_members, native_architecture
from tilestitch.runtime.errors import ArtifactSchemaError, DeviceError, InputError
from tilestitch.runtime.program import DeviceStep, Input, Program, ValueSpec

X = np.arange(4, dtype=np.float32)


def test_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'cuda'")

    monkeypatch.setattr(driver_module.importlib, "import_module", missing)
    with pytest.raises(DeviceError, match=r"pip install 'tilestitch\[cuda\]'") as caught:
        driver_module.load_driver()
    assert caught.value.exit_code == 4


def opened(monkeypatch: pytest.MonkeyPatch, fake: FakeDriver) -> None:
    monkeypatch.setattr(importlib, "import_module", lambda name: fake)
    driver_module.load_driver()


def test_no_driver_and_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDriver()
    fake.has_library = False
    with pytest.raises(DeviceError, match=r"no NVIDIA driver.*\(libcuda.so.1 was not found\).*device='emulator'"):
        opened(monkeypatch, fake)
    with pytest.raises(DeviceError, match="CUDA_ERROR_NO_DEVICE; run on a machine with"):
        opened(monkeypatch, FakeDriver([]))


def test_no_such_gpu(fake: FakeDriver, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="no GPU number 3; there are cuda:0"):
        module(tmp_path, sum_program(), device="cuda:3")


def test_another_architecture(fake: FakeDriver, tmp_path: Path) -> None:
    fake.gpus[0].capability = (8, 0)
    with pytest.raises(
        DeviceError, match=r"compiled for sm_90a, but GPU 0.*8\.0.*compile MODEL.onnx --target cuda:sm_80"
    ):
        module(tmp_path, sum_program())


@pytest.mark.parametrize(
    ("names", "capability", "chosen"),
    [
        (["sm_80.cubin", "sm_90a.cubin", "compute_90.ptx"], (9, 0), ["sm_90a.cubin"]),
        (["sm_80.cubin", "sm_86.cubin"], (8, 9), ["sm_86.cubin"]),
        (["sm_86.cubin"], (8, 0), []),
        (["sm_90.cubin", "sm_90a.cubin"], (9, 0), ["sm_90a.cubin"]),
        (["sm_90a.cubin", "compute_80.ptx"], (10, 0), ["compute_80.ptx"]),
        (["compute_70.ptx", "compute_80.ptx"], (12, 0), ["compute_80.ptx"]),
        (["compute_90a.ptx"], (10, 0), []),
        (["sm_100f.cubin"], (10, 3), ["sm_100f.cubin"]),
        (["sm_90/10.cubin", "sm_90/2.cubin", "sm_80/0.cubin"], (9, 0), ["sm_90/2.cubin", "sm_90/10.cubin"]),
        (["cpu.so", "cuda/k.cu"], (9, 0), []),
    ],
)  # fmt: skip
def test_machine_code_that_fits(names: list[str], capability: tuple[int, int], chosen: list[str]) -> None:
    members = choose_members([f"kernels/{name}" for name in names], capability)
    assert members == tuple(f"kernels/{name}" for name in chosen)


@pytest.mark.parametrize(
    ("capability", "name"), [((7, 5), "sm_75"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a")]
)
def test_the_architecture_to_compile_for(capability: tuple[int, int], name: str) -> None:
    assert native_architecture(capability) == name


def test_ptx_is_passed_as_a_string(fake: FakeDriver, tmp_path: Path) -> None:
    fake.gpus[0].capability = (10, 0)
    with module(tmp_path, sum_program(), kernels={"kernels/compute_90.ptx": b"fake:increment,add"}) as loaded:
        loaded(X)
    assert fake.named("cuModuleLoadData")[0][0].endswith(b"\0")


def test_code_that_the_driver_refuses(fake: FakeDriver, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"cannot load member 'kernels/sm_90a.cubin' \(CUDA_ERROR_INVALID_IMAGE\)"):
        module(tmp_path, sum_program(), kernels={"kernels/sm_90a.cubin": b"garbage"})


def test_kernels_in_several_parts(fake: FakeDriver, tmp_path: Path) -> None:
    parts = {"kernels/sm_90/0.cubin": b"fake:add", "kernels/sm_90/1.cubin": b"fake:increment"}
    with module(tmp_path, sum_program(), kernels=parts) as loaded:
        loaded(X)


def test_a_kernel_that_is_not_there(fake: FakeDriver, tmp_path: Path) -> None:
    with pytest.raises(ArtifactSchemaError, match=r"the kernel 'add_[0-9a-f]+', which is not there"):
        module(tmp_path, sum_program(), kernels={"kernels/sm_90.cubin": b"fake:increment"})


def test_too_much_shared_memory(fake: FakeDriver, tmp_path: Path) -> None:
    values = (ValueSpec("x", FLOAT4, Input(0)), ValueSpec("y", FLOAT4))
    program = Program("p", (0,), (1,), values, (DeviceStep((launch("increment", 0, 1, shared_bytes=300_000),)),))
    with pytest.raises(DeviceError, match=r"300000 bytes of shared memory.*at most 232448.*cuda:sm_90a"):
        module(tmp_path, program)


@pytest.mark.parametrize(("memory_bytes", "what"), [(100, "weights of"), (600, "values of")])
def test_out_of_memory(fake: FakeDriver, tmp_path: Path, memory_bytes: int, what: str) -> None:
    fake.gpus[0].memory_bytes = memory_bytes
    message = rf"no memory for .* MiB of {what}.*device='cuda:N'"
    with pytest.raises(DeviceError, match=message), module(tmp_path, sum_program()) as loaded:
        loaded(X)


@pytest.mark.parametrize(
    "name", ["cuGraphCreate", "cuGraphAddKernelNode", "cuGraphAddDependencies", "cuGraphInstantiate"]
)
def test_a_graph_that_cannot_be_built_is_given_back(fake: FakeDriver, tmp_path: Path, name: str) -> None:
    fake.fail[name] = "CUDA_ERROR_NOT_SUPPORTED"
    message = f"{name} failed with CUDA_ERROR_NOT_SUPPORTED"
    with module(tmp_path, sum_program()) as loaded, pytest.raises(DeviceError, match=message):
        loaded(X)


def test_a_kernel_that_breaks_the_gpu(fake: FakeDriver, tmp_path: Path) -> None:
    with module(tmp_path, sum_program()) as loaded:
        fake.fail["cuStreamSynchronize"] = "CUDA_ERROR_ILLEGAL_ADDRESS"
        with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS; the GPU's state is lost for this process"):
            loaded(X)
        fake.fail.clear()
        loaded(X)


def test_arrays_that_do_not_fit(fake: FakeDriver, tmp_path: Path) -> None:
    class Strided:
        __cuda_array_interface__ = {  # noqa: RUF012
            "shape": (4,), "typestr": "<f4", "data": (256, False), "strides": (8,), "version": 3,
        }  # fmt: skip

    with module(tmp_path, sum_program()) as loaded:
        with pytest.raises(InputError, match="not C-contiguous"):
            loaded(Strided())
        array = loaded.run({"x": X}, on_device=True)["u"]
        array.shape = (2, 2)
        with pytest.raises(InputError, match="no specialisation fits"):
            loaded(array)
        with pytest.raises(InputError, match="out: 'u' needs a writable, C-contiguous array"):
            loaded.run({"x": X}, out={"u": array})
        del array


def test_on_the_cpu_there_are_no_streams_and_no_device_arrays(tmp_path: Path) -> None:
    from tests.runtime.programs import increment_program
    from tests.runtime.programs import module as cpu_module

    with cpu_module(tmp_path, increment_program(), weights={"w": X}) as loaded:
        with pytest.raises(InputError, match="stream is for GPUs"):
            loaded.run({"x": X}, stream=0)
        with pytest.raises(InputError, match="on_device is for GPUs"):
            loaded.run({"x": X}, on_device=True)


def test_a_cuda_artifact_on_the_cpu(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"compiled for cuda.*device='cuda' or 'emulator'.*--target cpu"):
        load(write(tmp_path / "m.tsm", sum_program()))
