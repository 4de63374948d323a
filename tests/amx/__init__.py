"""Runs instructions of AMX on CPUs that lack them: what the CPU refuses as an unknown instruction is done in C.

The machine code under test stays as it is. See `unit.c`.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tilestitch.codegen.cpu.target import CpuTarget, parse_target
from tilestitch.runtime.cpu.features import cpu_flags, missing_features


def cpu_with_tiles() -> CpuTarget:
    """A CPU that has the unit, with those of its other features that this machine has."""
    named = parse_target("cpu:sapphirerapids")
    assert named.tile_dots
    lacking = missing_features(named.features, cpu_flags())
    return CpuTarget(named.mcpu, named.mtriple, tuple(f"-{name}" for name in lacking))


def built(folder: Path) -> ctypes.CDLL:
    """The unit as a library; the test is skipped where nothing compiles it."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    if compiler is None or "avx512f" not in cpu_flags():
        pytest.skip("this takes a C compiler and AVX-512")
    source, library = Path(__file__).with_name("unit.c"), folder / "unit.so"
    subprocess.run([compiler, "-x", "c", "-O2", "-mfma", "-shared", "-fPIC", "-o", library, source], check=True)
    return ctypes.CDLL(str(library))


@contextmanager
def emulated(unit: ctypes.CDLL) -> Iterator[ctypes.CDLL]:
    """Within it, all threads have tile registers. `unit.faults()` counts what a CPU would have refused."""
    if "amx_tile" in cpu_flags():
        pytest.skip("this CPU has the instructions: other tests run them")
    if unit.install():
        raise OSError("the handler of unknown instructions cannot be set")
    try:
        yield unit
    finally:
        unit.remove_it()
