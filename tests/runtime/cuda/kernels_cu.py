"""Kernels as CUDA text, and artifacts of them with real machine code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from tests.runtime.cuda.artifacts import FLOAT4, write
from tests.runtime.signed import plain, signed
from tilestitch.runtime.program import DeviceLaunch, DeviceStep, Edge, Input, Program, ValueSpec

TEXT = """
struct alignas(64) CUtensorMap { unsigned long long words[16]; };

extern "C" __global__ void increment(const float* x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = x[i] + 1;
}

extern "C" __global__ void add(const float* a, const float* b, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = a[i] + b[i];
}

extern "C" __global__ void mapped(const __grid_constant__ CUtensorMap map, float* y) {
  y[threadIdx.x] = reinterpret_cast<const float*>(&map)[threadIdx.x];
}

extern "C" __global__ void banded(const float* x, float* y) {
  __shared__ float few[32];
  extern __shared__ float many[];
  few[threadIdx.x] = x[threadIdx.x];
  many[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = few[threadIdx.x ^ 1] + many[threadIdx.x ^ 1];
}

extern "C" __global__ void __launch_bounds__(64) narrow(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }

extern "C" __global__ void __cluster_dims__(2, 1, 1) paired(const float* x, float* y) {
  y[threadIdx.x] = x[threadIdx.x];
}
"""
"""`banded` has 128 bytes of static shared memory."""


@cache
def cubin(symbols: frozenset[str]) -> bytes:
    """Machine code of the kernels that `symbols` are signed names of."""
    from tilestitch.codegen.cuda.toolchain.nvrtc import compile_text

    head, *functions = TEXT.split('extern "C" ')
    texts = {re.search(r"(\w+)\(const", text)[1]: text for text in functions}  # type: ignore[index]
    named = [texts[name].replace(f"{name}(", f"{s}(") for s in sorted(symbols) if (name := plain(s)) in texts]
    return compile_text(head + "".join(f'extern "C" {text}' for text in named), "sm_90a")


def artifact(folder: Path, *programs: Program, weights: Mapping[str, np.ndarray] | None = None) -> Path:
    kernels = {"kernels/sm_90a.cubin": cubin(frozenset(signed(*programs)[1]))}
    return write(folder / "m.tsm", *programs, kernels=kernels, weights=weights)


def one_step(launches: Sequence[DeviceLaunch], edges: Sequence[Edge] = (), temporaries: int = 0) -> Program:
    """A device step with the input 0, the output 1, and values 2 and up between."""
    values = (ValueSpec("x", FLOAT4, Input(0)), ValueSpec("y", FLOAT4))
    between = tuple(ValueSpec(f"t{number}", FLOAT4) for number in range(temporaries))
    return Program("p", (0,), (1,), (*values, *between), (DeviceStep(tuple(launches), tuple(edges)),))
