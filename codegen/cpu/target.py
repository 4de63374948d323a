"""CPU targets: the meaning of `cpu`, `cpu:znver4` or `cpu:aarch64-linux-gnu/neoverse-v2` to LLVM, and their
requirements on a machine.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import Any

import tvm
from tvm.target import codegen as target_codegen

from tilestitch.codegen.errors import TargetError
from tilestitch.passes.plan.cpu.isa import AVX2, AVX512, NEON, SCALAR, SSE, Isa
from tilestitch.runtime.cpu.features import cpu_flags, missing_features

# Features in LLVM's spelling that affect the code, and so are required of the machine that runs it.
_X86_FEATURES = [
    "sse2",
    "sse3",
    "ssse3",
    "sse4.1",
    "sse4.2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "bmi",
    "bmi2",
    "lzcnt",
    "popcnt",
    "movbe",
    "avx512f",
    "avx512bw",
    "avx512cd",
    "avx512dq",
    "avx512vl",
    "avx512vnni",
    "avx512vbmi",
    "avx512vbmi2",
    "avx512bitalg",
    "avx512vpopcntdq",
    "avx512ifma",
    "avx512bf16",
    "avx512fp16",
    "avxvnni",
    "gfni",
    "vaes",
    "vpclmulqdq",
]
TILES = "amx-tile"
TILE_FEATURES = {"tdpbusd": "amx-int8", "tdpbf16ps": "amx-bf16"}
"""LLVM's name of the feature for an instruction on tiles, besides that of all tiles. LLVM uses them only on request, so
a machine needs them only if a kernel does.
"""
_ARM_DOTS = {"usdot": "i8mm", "sdot": "dotprod"}
"""Byte multiplication instructions by their feature, the better first: the other requires signed bytes on the left."""
_MULTIPLY_PAIRS_FAST = ("znver", "cooperlake")
"""Processors whose `vdpbf16ps` multiplies more in a cycle than multiply-adds of float32 do. Intel's that were made for
AMX do less (docs/cpu_kernels.md).
"""
_VNNI = ("avx512vnni", "avxvnni")
_ARCHITECTURES = ("x86_64", "aarch64", "arm64")
_ARM_FEATURES = ["neon", "fullfp16", "dotprod", "bf16", "i8mm", "sve", "sve2", "lse"]


@dataclass(frozen=True)
class CpuTarget:
    """`mcpu`, `mtriple` and `mattr` in LLVM's spelling."""

    mcpu: str
    mtriple: str
    mattr: tuple[str, ...] = ()

    @cached_property
    def tvm_target(self) -> Any:
        # At level 3, code is larger and no faster.
        config: dict[str, Any] = {"kind": "llvm", "mcpu": self.mcpu, "mtriple": self.mtriple, "opt-level": 2}
        if self.mattr:
            config["mattr"] = list(self.mattr)
        return tvm.target.Target(config)

    @cached_property
    def isa(self) -> Isa:
        return _isa(self)

    @cached_property
    def dot(self) -> str:
        """The instruction that multiplies 8-bit integers, by its name in `isa.DOTS`; "" for none."""
        if self.isa is NEON:
            return next((dot for dot, feature in _ARM_DOTS.items() if self.has(feature)), "")
        wide = self.isa is AVX512
        if not wide and self.isa is not AVX2:
            return ""
        if self.has("avx512vnni" if wide else "avxvnni"):
            return "vpdpbusd"
        return "vpmaddwd" if not wide or self.has("avx512bw") else ""

    @cached_property
    def without_dots(self) -> CpuTarget:
        """The same target for kernels that do not call `vpdpbusd`. LLVM (22) turns a sum over 16 byte products into
        one, and takes a fourth of the sum for all of it.
        """
        return replace(self, mattr=(*self.mattr, *(f"-{name}" for name in _VNNI if self.has(name))))

    @cached_property
    def half_dot(self) -> str:
        """The instruction that multiplies half floats, by its name in `isa.HALF_DOTS`; "" for none that is faster than
        widening them.
        """
        if self.isa is NEON:
            return "bfdot" if self.has("bf16") else ""
        fast = self.mcpu.startswith(_MULTIPLY_PAIRS_FAST)
        return "vdpbf16ps" if self.isa is AVX512 and fast and self.has("avx512bf16") else ""

    @cached_property
    def tile_dots(self) -> tuple[str, ...]:
        """The instructions that multiply tiles, by their names in `isa.TILE_DOTS`."""
        if self.isa is not AVX512 or not self.has(TILES):
            return ()
        return tuple(name for name, feature in TILE_FEATURES.items() if self.has(feature))

    @property
    def aligns_operands(self) -> bool:
        """Whether vector instructions with memory operands require 16-byte alignment."""
        return self.machine == "x86_64" and not self.has("avx")

    @property
    def shares_ports(self) -> bool:
        """Whether 64-byte vectors are multiplied on the ports that convert and add, too: on all but AMD's cores."""
        return self.isa is AVX512 and not self.mcpu.startswith("znver")

    def has(self, feature: str) -> bool:
        """Return whether LLVM may use a feature, in its own spelling."""
        return _has(self, feature)

    @property
    def machine(self) -> str:
        """The architecture, named as `platform.machine()` does: x86_64 or aarch64."""
        first = self.mtriple.partition("-")[0]
        return "aarch64" if first == "arm64" else first

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The features that the code may use, among those that machines of this architecture may lack."""
        names = _ARM_FEATURES if self.mtriple.startswith(("aarch64", "arm64")) else _X86_FEATURES
        return tuple(name for name in names if self.has(name))

    def __str__(self) -> str:
        return f"cpu:{self.mtriple}/{self.mcpu}" + "".join(f",{a}" for a in self.mattr)


@cache
def _has(target: CpuTarget, feature: str) -> bool:
    """Return whether LLVM may use a feature. Cached, as LLVM takes a millisecond to tell, and every compilation asks
    for dozens.
    """
    return bool(target_codegen.llvm_cpu_has_features(feature, target.tvm_target))


@lru_cache(maxsize=64)
def _isa(target: CpuTarget) -> Isa:
    """Return the vector unit that LLVM assumes. Cached likewise: each compilation has a target of its own."""
    if target.machine == "aarch64":
        return NEON
    if target.machine not in ("x86_64", "i686", "i386"):
        return SCALAR
    if target.has("avx512f"):
        return AVX512
    return AVX2 if target.has("avx2") and target.has("fma") else SSE


def features_of_tiles(instructions: Collection[str]) -> tuple[str, ...]:
    """Return LLVM's names of the features that tile instructions among these need."""
    found = tuple(feature for name, feature in TILE_FEATURES.items() if name in instructions)
    return (TILES, *found) if found else ()


def host_target() -> CpuTarget:
    """Return the target for this machine, with exactly the features it has."""
    triple = str(target_codegen.llvm_get_system_triple())
    mcpu = str(target_codegen.llvm_get_system_cpu())
    return CpuTarget(mcpu, triple, _corrections(CpuTarget(mcpu, triple)))


def _corrections(named: CpuTarget) -> tuple[str, ...]:
    """Return the features to disable: a virtual machine may hide features implied by the processor's name."""
    present = cpu_flags()
    if not present:
        return ()
    features = (*named.features, *features_of_tiles(named.tile_dots))
    return tuple(f"-{name}" for name in missing_features(features, present))


def parse_target(text: str) -> CpuTarget:
    """Parse a target: `cpu` is this machine; `cpu:MCPU` a processor by LLVM's name; `cpu:TRIPLE/MCPU` one of another
    architecture; `,+feature` and `,-feature` may follow.

    Raises TargetError if the name is not understood.
    """
    kind, _, rest = text.partition(":")
    if kind != "cpu":
        raise TargetError(f"target {text!r} is no CPU; write cpu, cpu:znver4 or cpu:x86-64-v3")
    if text == "cpu":
        return host_target()
    name, *attributes = rest.split(",")
    if not name:
        raise TargetError(f"target {text!r} names no processor; write cpu for this machine's, or cpu:znver4")
    triple, slash, mcpu = name.partition("/")
    if not slash:
        triple, mcpu = str(target_codegen.llvm_get_system_triple()), name
    bad = [a for a in attributes if a[:1] not in ("+", "-")]
    if bad:
        raise TargetError(f"target {text!r}: {bad[0]!r} is no feature; write +avx2 or -avx512f")
    if not triple.startswith(_ARCHITECTURES):
        raise TargetError(
            f"target {text!r}: only {', '.join(_ARCHITECTURES)} are supported; write cpu:TRIPLE/MCPU with one of them"
        )
    if not target_codegen.llvm_is_valid_cpu(mcpu, triple):
        raise TargetError(
            f"target {text!r}: LLVM knows no processor {mcpu!r}; it knows x86-64-v3, x86-64-v4, znver4, and others"
        )
    return CpuTarget(mcpu, triple, tuple(attributes))
