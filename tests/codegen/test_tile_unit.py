"""The unit that stands for tile registers: what its instructions give, and what it refuses as the CPU would.

Results are those of the CPU's own registers where it has them.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.amx import built
from tilestitch.codegen.cpu.contraction.matrix_tiles import SHAPES
from tilestitch.runtime.cpu.features import cpu_flags

CONFIGURE, RELEASE, RETURN = b"\xc4\xe2\x78\x49\x07", b"\xc4\xe2\x78\x49\xc0", b"\xc3"
"""`ldtilecfg [rdi]`, `tilerelease`, `ret`."""
LOADS = b"\xc4\xa2\x7b\x4b\x04\x01" + b"\xc4\xa2\x7b\x4b\x0c\x06" + b"\xc4\xa2\x7b\x4b\x14\x02"
"""`tileloadd` of tmm0 from [rcx + r8], tmm1 from [rsi + r8], tmm2 from [rdx + r8]."""
STORE = b"\xc4\xa2\x7a\x4b\x04\x01"
"""`tilestored [rcx + r8], tmm0`."""
HALVES, BYTES = b"\xc4\xe2\x6a\x5c\xc1", b"\xc4\xe2\x69\x5e\xc1"
"""`tdpbf16ps` and `tdpbusd tmm0, tmm1, tmm2`."""


def run(code: bytes, left: np.ndarray, right: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """The sums of 16 x 16 after `code`, between loads of all three and a store."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(CONFIGURE + LOADS + code + STORE + RELEASE + RETURN)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_long)
    result = np.ascontiguousarray(sums)
    operands = [SHAPES, np.ascontiguousarray(left), np.ascontiguousarray(right), result]
    function(ctypes.addressof(ctypes.c_char.from_buffer(page)))(*(each.ctypes.data for each in operands), 64)
    return result


def halves(rows: int = 16) -> np.ndarray:
    return np.zeros((rows, 32), ml_dtypes.bfloat16)


def test_sums_of_halves_are_of_pairs_of_the_same_place(unit: Any) -> None:
    """Both halves of all pairs are added up before they meet: what one half swallows, the other does not."""
    left, right = halves(), halves()
    left[0, :6] = [2.0**30, -(2.0**30), 1, 0, -(2.0**30), 2.0**30]
    right.reshape(16, 16, 2)[:3, 0] = 1
    sums = np.full((16, 16), 0.5, np.float32)
    got = run(HALVES, left, right, sums.copy())
    # Of the first halves 2**30 + 1 - 2**30, which is 0 in float32; of the second ones 0.
    assert got[0, 0] == 0.5 and (got[1:] == 0.5).all()
    left[0, :6] = [1, 2.0**30, 2, 0, 0, -(2.0**30)]
    assert run(HALVES, left, right, sums.copy())[0, 0] == 3.5


def test_denormals_are_zero(unit: Any) -> None:
    left, right, sums = halves(), halves(), np.zeros((16, 16), np.float32)
    left[0, 0], left[1, 0], left[2, 0] = 2.0**-130, 2.0**-70, 2.0**-60
    right.reshape(16, 16, 2)[0, 0, 0] = 2.0**-60
    right.reshape(16, 16, 2)[0, 1, 0] = 2.0**60
    sums[3, 3] = np.float32(2.0**-140)
    got = run(HALVES, left, right, sums)
    assert got[0, 1] == 0 and got[1, 0] == 0 and got[2, 0] == np.float32(2.0**-120) and got[3, 3] == 0


def test_halves_are_rounded_to_nearest(unit: Any) -> None:
    random = np.random.default_rng(0)
    left, right = (random.standard_normal((16, 32)).astype(ml_dtypes.bfloat16) for _ in range(2))
    got = run(HALVES, left, right, np.zeros((16, 16), np.float32))
    pairs = right.reshape(16, 16, 2).astype(np.float64)
    exact = np.einsum("mki,kni->mn", left.reshape(16, 16, 2).astype(np.float64), pairs)
    np.testing.assert_allclose(got, exact, rtol=0, atol=32 * 2.0**-24 * 16)


def test_bytes_wrap(unit: Any) -> None:
    left, right = np.full((16, 64), 255, np.uint8), np.full((16, 64), -128, np.int8)
    sums = np.full((16, 16), -(2**31), np.int32)
    assert (run(BYTES, left, right, sums) == 2**31 - 64 * 255 * 128).all()


def shapes(*changes: tuple[int, int]) -> bytes:
    found = SHAPES.copy()
    for place, byte in changes:
        found[place] = byte
    return found.tobytes()


WHOLE = shapes()
FAULTS = {
    "no shapes": (WHOLE, b"\xc4\xe2\x7b\x49\xc0"),  # tilezero tmm0
    "shapes released": (WHOLE, CONFIGURE + RELEASE + b"\xc4\xe2\x7b\x49\xc0"),
    "palette 0 releases": (shapes((0, 0)), CONFIGURE + b"\xc4\xe2\x7b\x49\xc0"),
    "no other instruction": (WHOLE, b"\xc4\xe2\x7b\x50\xc0"),
    "no such palette": (shapes((0, 2)), CONFIGURE),
    "reserved bytes": (shapes((2, 1)), CONFIGURE),
    "a ninth register": (shapes((16 + 16, 64), (48 + 8, 16)), CONFIGURE),
    "rows": (shapes((48, 17)), CONFIGURE),
    "columns": (shapes((16, 65)), CONFIGURE),
    "rows without columns": (shapes((16, 0)), CONFIGURE),
    "columns without rows": (shapes((48, 0)), CONFIGURE),
    "a register without a shape": (shapes((16, 0), (48, 0)), CONFIGURE + b"\xc4\xe2\x7b\x49\xc0"),
    "twice the same": (WHOLE, CONFIGURE + b"\xc4\xe2\x6a\x5c\xc0"),  # tdpbf16ps tmm0, tmm0, tmm2
    "rows that do not fit": (shapes((48, 8)), CONFIGURE + HALVES),
    "pairs that do not fit": (shapes((48 + 2, 8)), CONFIGURE + HALVES),
    "columns that do not fit": (shapes((16, 32)), CONFIGURE + BYTES),
    "no row to go to": (WHOLE, CONFIGURE + b"\xc4\xe2\x7b\x4b\x06"),  # tileloadd tmm0, [rsi] without an index byte
    "a register too many": (WHOLE, CONFIGURE + b"\xc4\xe2\x73\x4b\x04\x06"),  # tileloadd that names another
}
RUN = """
import ctypes, mmap, sys
library, shapes, code = ctypes.CDLL(sys.argv[1]), bytes.fromhex(sys.argv[2]), bytes.fromhex(sys.argv[3])
page = mmap.mmap(-1, 4096, prot=7)
page.write(code)
library.install()
print("runs", flush=True)
ctypes.CFUNCTYPE(None, ctypes.c_char_p)(ctypes.addressof(ctypes.c_char.from_buffer(page)))(shapes)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if "amx_tile" in cpu_flags():
        pytest.skip("this CPU has the instructions, and refuses some of these by another signal")
    folder = tmp_path_factory.mktemp("unit")
    built(folder)
    return folder / "unit.so"


@pytest.mark.parametrize("fault", FAULTS)
def test_the_unit_refuses_what_the_cpu_would(library: Path, fault: str) -> None:
    described, code = FAULTS[fault]
    command = [sys.executable, "-c", RUN, str(library), described.hex(), (code + RETURN).hex()]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.stdout == b"runs\n" and done.returncode == -signal.SIGILL
