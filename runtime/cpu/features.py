"""Features that the CPU has, and those that an artifact needs and the CPU lacks."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tilestitch.runtime.errors import DeviceError
from tilestitch.runtime.manifest import TargetInfo

# LLVM's name -> Linux's name, where they differ by more than `.` or `-` for `_`.
_LINUX_NAMES = {
    "64bit": "lm", "avx512bf16": "avx512_bf16", "avx512bitalg": "avx512_bitalg", "avx512fp16": "avx512_fp16",
    "avx512vbmi2": "avx512_vbmi2", "avx512vnni": "avx512_vnni", "avx512vp2intersect": "avx512_vp2intersect",
    "avx512vpopcntdq": "avx512_vpopcntdq", "avxvnni": "avx_vnni", "bmi": "bmi1", "lzcnt": "abm", "mwaitx": "mwaitx",
    "pclmul": "pclmulqdq", "prfchw": "3dnowprefetch", "rdrnd": "rdrand", "sahf": "lahf_lm", "sha": "sha_ni",
    "sse3": "pni",
    "waitpkg": "waitpkg", "x87": "fpu", "crc32": "sse4_2", "vaes": "vaes",
    # aarch64
    "neon": "asimd", "fp-armv8": "fp", "dotprod": "asimddp", "fullfp16": "asimdhp", "lse": "atomics", "rdm": "asimdrdm",
    "crc": "crc32", "i8mm": "i8mm", "bf16": "bf16", "sve": "sve", "sve2": "sve2", "rcpc": "lrcpc", "ccpp": "dcpop",
}  # fmt: skip

TILES = "amx-tile"
_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18
"""`arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)` of x86-64; see Linux's Documentation/arch/x86/xstate.rst."""

_HWCAP, _HWCAP2 = 16, 26
_AARCH64_BITS = {
    _HWCAP: {
        0: "fp", 1: "asimd", 7: "crc32", 8: "atomics", 10: "asimdhp", 12: "asimdrdm", 15: "lrcpc", 16: "dcpop",
        20: "asimddp", 22: "sve",
    },
    _HWCAP2: {1: "sve2", 13: "i8mm", 14: "bf16"},
}  # fmt: skip
"""Bits of the auxiliary vector and Linux's names for them (arch/arm64/include/uapi/asm/hwcap.h)."""

_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


@cache
def cpu_flags() -> frozenset[str]:
    """Return the feature flags that Linux reports for the first CPU; empty on other systems.

    On aarch64, from the auxiliary vector that every process gets: under emulation /proc/cpuinfo may describe another
    machine.
    """
    if machine() == "aarch64":
        return _told_to_processes()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def machine() -> str:
    """Return the architecture of this CPU in LLVM's spelling (x86_64 or aarch64), or Python's name for any other."""
    return _ARCHITECTURES.get(platform.machine().lower(), platform.machine())


def _told_to_processes() -> frozenset[str]:
    """Return the flags of aarch64 from this process's auxiliary vector."""
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.restype, getauxval.argtypes = ctypes.c_ulong, (ctypes.c_ulong,)
    return flags_of_aarch64(*map(getauxval, _AARCH64_BITS))


def flags_of_aarch64(hwcap: int, hwcap2: int) -> frozenset[str]:
    """Return the flags that matter here from the two words of the auxiliary vector."""
    words = zip((hwcap, hwcap2), _AARCH64_BITS.values(), strict=True)
    return frozenset(name for word, names in words for bit, name in names.items() if word >> bit & 1)


def missing_features(features: Iterable[str], flags: frozenset[str]) -> list[str]:
    """Return those of LLVM's `features` that are not among Linux's `flags`."""
    return [feature for feature in features if _linux_name(feature) not in flags]


def _linux_name(feature: str) -> str:
    return _LINUX_NAMES.get(feature, feature.replace(".", "_").replace("-", "_"))


def check_cpu(target: TargetInfo, file: str) -> None:
    """Raise `DeviceError` when this CPU cannot run what was compiled for `target`."""
    here = machine()
    wanted = target.triple.partition("-")[0]
    if wanted != here:
        raise DeviceError(
            f"{file}: compiled for {wanted}, this machine is {here}; compile again with --target cpu on such a one"
        )
    missing = missing_features(target.features, cpu_flags())
    if missing:
        raise DeviceError(
            f"{file}: compiled for a CPU{' like ' + target.cpu if target.cpu else ''} with {', '.join(missing)}, "
            "which this one lacks; "
            "compile again on this machine, or with --target cpu and a feature set that both have"
        )
    if TILES in target.features:
        reason = refused_tiles()
        if reason:
            raise DeviceError(
                f"{file}: Linux does not let this process use the tile registers of AMX ({reason}); allow it, or "
                f"compile again with --target cpu:{target.cpu},-{TILES}"
            )


def refused_tiles() -> str:
    """Ask Linux to let all threads of this process use tile registers; return why it refuses, or ""."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA) == 0:
        return ""
    return os.strerror(ctypes.get_errno())
