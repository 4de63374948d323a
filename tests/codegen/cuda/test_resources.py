"""What a compiled kernel needs of a GPU, read from its machine code."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from tilestitch.codegen.cuda.toolchain import nvrtc
from tilestitch.codegen.cuda.toolchain.resources import KernelResources, kernel_resources
from tilestitch.codegen.errors import CodegenError
from tilestitch.cost_model.devices import find_device

TEXT = """
extern "C" __global__ void plain(float* x) { x[threadIdx.x] += 1.0f; }
extern "C" __global__ void shared(float* x) {
  __shared__ float tile[300];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = tile[299 - threadIdx.x];
}
extern "C" __global__ void stack(float* x, int* order) {
  float mine[64];
  for (int i = 0; i < 64; ++i) mine[i] = x[i * 32 + threadIdx.x];
  for (int i = 0; i < 64; ++i) x[i * 32 + threadIdx.x] = mine[order[i] & 63];
}
"""


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_registers_shared_memory_and_stack_of_each_kernel(tmp_path: Path, architecture: str) -> None:
    output = tmp_path / "kernels.cubin"
    assert nvrtc.compile_jobs([nvrtc.Job(TEXT, architecture, output)], 1, lambda done: None) == [None]
    found = kernel_resources(output.read_bytes())
    assert sorted(found) == ["plain", "shared", "stack"]
    assert (found["plain"].shared_bytes, found["plain"].local_bytes) == (0, 0)
    assert 4 <= found["plain"].registers <= 32
    assert found["shared"].shared_bytes == 1200
    assert found["stack"].local_bytes == 256


@pytest.mark.parametrize(
    ("resources", "threads", "dynamic_bytes", "blocks"),
    [
        (KernelResources(32, 0, 0), 256, 0, 8),  # threads: 2048
        (KernelResources(33, 0, 0), 256, 0, 6),  # registers: 65536 in units of 256 a warp
        (KernelResources(255, 0, 0), 256, 0, 1),
        (KernelResources(16, 0, 0), 32, 0, 32),  # blocks
        (KernelResources(32, 1024, 0), 64, 48 * 1024, 4),  # shared memory: 228 KiB, 1 KiB a block is not ours
        (KernelResources(32, 0, 0), 64, 228 * 1024, 0),
        (KernelResources(32, 0, 0), 1056, 0, 0),
    ],
)
def test_blocks_that_one_sm_of_an_h100_holds(
    resources: KernelResources, threads: int, dynamic_bytes: int, blocks: int
) -> None:
    assert resources.blocks_per_sm(find_device("H100"), threads, dynamic_bytes) == blocks


@pytest.mark.parametrize("content", [b"", b"PTX", b"\x7fELF\x02" + bytes(100)])
def test_what_is_no_cubin(content: bytes) -> None:
    with pytest.raises(CodegenError, match="cubin cannot be read"):
        kernel_resources(content)
