"""What the kernel templates need to know of a CPU: vector width, number of vector registers, cache sizes."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm.target import codegen as target_codegen

_BITS = {
    "bool": 8, "float16": 16, "bfloat16": 16, "float32": 32, "float64": 64,
    "int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64, "uint64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Isa:
    """Vector unit and caches of one core.

    ``fma_ports`` and ``load_ports`` are vector operations started per cycle, ``fma_latency`` is in cycles. They steer
    the choice of register tiles only; a wrong figure costs speed, never correctness.
    """

    name: str
    vector_bytes: int
    vector_registers: int
    fma_ports: int = 2
    load_ports: int = 2
    fma_latency: int = 4
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 1024 * 1024

    def lanes(self, dtype: str) -> int:
        """Elements of ``dtype`` in one vector register."""
        return max(1, self.vector_bytes * 8 // _BITS[dtype])


AVX512 = Isa("avx512", 64, 32, l1_bytes=48 * 1024, l2_bytes=2 * 1024 * 1024)
AVX2 = Isa("avx2", 32, 16)
SSE = Isa("sse", 16, 16)
NEON = Isa("neon", 16, 32, l1_bytes=64 * 1024)
SCALAR = Isa("generic", 16, 16)


def dtype_bytes(dtype: str) -> int:
    """Size in bytes of one element of a numeric dtype that kernels compute with."""
    return _BITS[dtype] // 8


def isa_of(target: tvm.target.Target) -> Isa:
    """The vector unit that LLVM assumes for ``target`` (from its mcpu, mattr and mtriple)."""

    def has(feature: str) -> bool:
        return bool(target_codegen.llvm_cpu_has_features(feature, target))

    triple = str(target.attrs.get("mtriple", "") or target_codegen.llvm_get_system_triple())
    if triple.startswith(("aarch64", "arm64")):
        return NEON
    if not triple.startswith(("x86_64", "i686", "i386")):
        return SCALAR
    if has("avx512f"):
        return AVX512
    if has("avx2") and has("fma"):
        return AVX2
    return SSE
