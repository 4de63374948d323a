"""What launches read and write of their arguments, counted access by access."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tilestitch.runtime.emulator import EmulatorOptions, Kernels, Traffic

KERNELS = {
    "twice": """extern "C" __global__ void twice(const float* x, float* y) {
      for (int i = threadIdx.x; i < 64; i += 32) y[i] = x[i] + x[63 - i];
    }""",
    "vectors": """extern "C" __global__ void vectors(const float4* x, float4* y) {
      y[threadIdx.x] = x[threadIdx.x];
    }""",
    "half": """extern "C" __global__ void half(const float* x, float* y) {
      if (threadIdx.x < 16) y[threadIdx.x] = x[2 * threadIdx.x];
    }""",
    "sum": """extern "C" __global__ void sum(const float* x, float* y) { atomicAdd(y, x[threadIdx.x]); }""",
    "copy": """extern "C" __global__ void copy(const float* x, float* y) {
      __shared__ __align__(16) float tile[64];
      unsigned to = (unsigned)__cvta_generic_to_shared(tile + 2 * threadIdx.x);
      asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" :: "r"(to), "l"(x + 2 * threadIdx.x));
      asm volatile("cp.async.wait_all;");
      __syncthreads();
      y[threadIdx.x] = tile[threadIdx.x];
    }""",
}


@pytest.mark.parametrize(
    ("kernel", "read", "written"),
    [
        ("twice", (128, 64), (64, 64)),
        ("vectors", (128, 128), (128, 128)),
        ("half", (16, 16), (16, 16)),
        ("sum", (32, 32), (32, 1)),
        ("copy", (64, 64), (32, 32)),
    ],
)
def test_all_accesses_and_distinct_bytes(kernel: str, read: tuple[int, int], written: tuple[int, int]) -> None:
    seen: list[tuple[str, Sequence[Traffic]]] = []
    options = EmulatorOptions(on_launch=lambda symbol, traffic: seen.append((symbol, traffic)))
    x = np.ones(128, np.float32)
    x.flags.writeable = False
    Kernels({kernel: KERNELS[kernel]}, options).launch(kernel, (1, 1, 1), (32, 1, 1), [x, np.zeros(128, np.float32)])
    ((symbol, (input_, output)),) = seen
    assert symbol == kernel
    assert (input_.bytes_read, input_.distinct_bytes_read) == (4 * read[0], 4 * read[1])
    assert (output.bytes_written, output.distinct_bytes_written) == (4 * written[0], 4 * written[1])
    assert input_.bytes_written == output.bytes_read == 0


def test_only_checked_kernels_are_counted() -> None:
    with pytest.raises(ValueError, match="leave checked on"):
        EmulatorOptions(checked=False, on_launch=print)
