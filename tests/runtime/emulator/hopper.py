"""Device functions for kernels of the tests that use Hopper's asynchronous units; NVRTC compiles each of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tests.runtime.emulator.kernels import run
from tilestitch.codegen.cuda.toolchain import nvrtc
from tilestitch.runtime.emulator import EmulatorOptions, TensorArgument
from tilestitch.runtime.tensor_map import TensorMap

HEAD = """\
#ifdef __CUDACC_RTC__
struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };
typedef unsigned char uint8_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#else
#include <cuda.h>
#endif
__device__ inline uint32_t shared(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ inline void init(uint64_t* bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared(bar)), "r"(count) : "memory");
}
__device__ inline void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void arrive(uint64_t* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared(bar)) : "memory");
}
__device__ inline void expect(uint64_t* bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(shared(bar)), "r"(bytes) : "memory");
}
__device__ inline void await(uint64_t* bar, int parity) {
  asm volatile("{\\n.reg .pred done;\\nagain:\\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n"
               "@done bra out;\\nbra again;\\nout:\\n}" :: "r"(shared(bar)), "r"(parity) : "memory");
}
__device__ inline void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ inline void wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void wait_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
"""


def _tensor_copies(rank: int) -> str:
    names = [f"x{i}" for i in range(rank)]
    parameters = ", ".join(f"int {name}" for name in names)
    start = ", ".join(f"%{3 + i}" for i in range(rank))
    values = ", ".join(f'"r"({name})' for name in names)
    return f"""\
__device__ inline void load_{rank}d(void* to, const void* map, uint64_t* bar, {parameters}) {{
  asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {{{start}}}], [%2];"
               :: "r"(shared(to)), "l"(map), "r"(shared(bar)), {values} : "memory");
}}
__device__ inline void store_{rank}d(const void* map, const void* from, {parameters}) {{
  asm volatile("cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [%0, {{{start}}}], [%1];"
               :: "l"(map), "r"(shared(from)), "r"(0), {values} : "memory");
}}
"""


HEAD += "".join(_tensor_copies(rank) for rank in range(1, 6))

WGMMA = """\
__device__ inline uint64_t matrix(const void* p, int leading, int stride, int mode) {
  return (uint64_t)((shared(p) & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 |
         (uint64_t)mode << 62;
}
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
"""

FIRST = HEAD.count("\n") + 2
"""The line of a body's first line in a kernel's text."""


def hopper(parameters: str, body: str, before: str = "", threads: int = 512) -> str:
    """A kernel called `kernel` for blocks of up to so many threads; `map NAME` among its parameters is a tensor map."""
    parameters = ", ".join(
        f"const __grid_constant__ CUtensorMap {part.split()[1]}" if part.split()[0] == "map" else part
        for part in parameters.split(", ")
    )
    bounds = f"__launch_bounds__({threads}, 1)"
    return f'{HEAD}{before}extern "C" __global__ void {bounds} kernel({parameters}) {{\n{body}\n}}\n'


@cache
def compile_for_hopper(text: str) -> None:
    """Whatever the emulator accepts must be CUDA for the GPU; skipped where NVRTC is not installed."""
    try:
        nvrtc.compile_text(text, "sm_90a")
    except nvrtc.NvrtcMissingError:
        return


def run_hopper(
    text: str, arguments: Sequence[Any], block: int = 128, options: EmulatorOptions | None = None, **more: Any
) -> None:
    """Compile for sm_90a and run on the emulated device; arguments are arrays and (map, array)."""
    compile_for_hopper(text)
    given = [TensorArgument.of(*argument) if isinstance(argument, tuple) else argument for argument in arguments]
    run(text, given, block=block, options=options, **more)


def map_of(array: np.ndarray, box: Sequence[int], dtype: str | None = None, **more: Any) -> TensorMap:
    """A map over a whole C-contiguous array; `box` innermost first."""
    strides = tuple(int(stride) for stride in reversed(array.strides[:-1]))
    return TensorMap(dtype or array.dtype.name, tuple(reversed(array.shape)), strides, tuple(box), **more)
