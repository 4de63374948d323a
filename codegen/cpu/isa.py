"""The vector unit that LLVM assumes for a target."""

from __future__ import annotations

import tvm
from tvm.target import codegen as target_codegen

from tilestitch.passes.plan.cpu.isa import AVX2, AVX512, NEON, SCALAR, SSE, Isa


def isa_of(target: tvm.target.Target) -> Isa:
    """Return the vector unit for the mcpu, mattr and mtriple of `target`."""

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
