"""Which features a CPU has, as Linux tells."""

from __future__ import annotations

import ctypes
import platform
from types import SimpleNamespace

import pytest

from tilestitch.runtime.cpu import features
from tilestitch.runtime.cpu.features import cpu_flags, flags_of_aarch64, missing_features

NEOVERSE_N1 = 0x10_11_9FFF, 0  # fp asimd … atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs


def test_the_words_of_aarch64_say_what_a_cpu_has() -> None:
    flags = flags_of_aarch64(*NEOVERSE_N1)
    assert missing_features(["neon", "fullfp16", "dotprod", "lse", "crc", "rdm", "rcpc", "ccpp"], flags) == []
    assert missing_features(["bf16", "i8mm", "sve", "sve2"], flags) == ["bf16", "i8mm", "sve", "sve2"]
    assert missing_features(["sve", "sve2", "bf16", "i8mm"], flags_of_aarch64(1 << 22, 1 << 1 | 3 << 13)) == []


def test_a_process_on_aarch64_asks_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulator has them, while /proc/cpuinfo is its host's."""

    words = {16: NEOVERSE_N1[0], 26: NEOVERSE_N1[1]}
    library = SimpleNamespace(getauxval=lambda entry: words[entry])
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert features.cpu_flags.__wrapped__() == flags_of_aarch64(*NEOVERSE_N1)


@pytest.mark.skipif(features.machine() != "x86_64", reason="/proc/cpuinfo of x86-64")
def test_flags_of_this_cpu() -> None:
    assert {"fpu", "sse2"} <= cpu_flags()
