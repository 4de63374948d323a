"""The executor's checked-in IR belongs to its C source, is tied to no target, and becomes an object for each of
ours; threads that draw tasks by turns get neighbours.
"""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.codegen.executor_ir import IR, compiled_ir
from tests.runtime.kernels import TRIPLE
from tilestitch.codegen.cpu.backend import EXECUTOR_EXPORTS, executor_object
from tilestitch.codegen.cpu.toolchain.elf import EM_AARCH64, EM_X86_64, read_object
from tilestitch.codegen.cpu.toolchain.link import link


def test_ir_names_no_target() -> None:
    text = IR.read_text()
    for word in ("target triple", "target datalayout", "target-cpu", "target-features", "x86"):
        assert word not in text


@pytest.mark.skipif(not shutil.which("clang-16"), reason="clang-16 is not installed")
def test_ir_is_what_the_source_compiles_to() -> None:
    assert compiled_ir() == IR.read_text()


@pytest.mark.parametrize(("triple", "machine"), [("x86_64-linux-gnu", EM_X86_64), ("aarch64-linux-gnu", EM_AARCH64)])
def test_object_defines_the_exports(triple: str, machine: int) -> None:
    parsed = read_object(executor_object(triple), "executor")
    assert parsed.machine == machine
    assert set(EXECUTOR_EXPORTS) <= {symbol.name for symbol in parsed.symbols if symbol.section}
    assert {symbol.name for symbol in parsed.symbols if symbol.name and not symbol.section} == {
        "syscall",
        "clock_gettime",
    }


def test_waiting_threads_relax_in_the_way_of_their_machine() -> None:
    assert b"\xf3\x90" in executor_object("x86_64-linux-gnu")  # pause
    assert struct.pack("<I", 0xD503203F) in executor_object("aarch64-linux-gnu")  # yield


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The executor and a driver for it, built with ThreadSanitizer."""
    program = tmp_path_factory.mktemp("stress") / "stress"
    driver = Path(__file__).with_name("executor_stress.c")
    command = [
        "clang-16",
        "-std=c11",
        "-g",
        "-O1",
        "-fsanitize=thread",
        str(driver),
        str(IR.with_suffix(".c")),
        "-o",
        str(program),
    ]
    result = subprocess.run([*command, "-lpthread"], capture_output=True, text=True, check=False)
    if result.returncode and "tsan" in result.stderr:
        pytest.skip("clang-16 has no ThreadSanitizer here")
    assert not result.returncode, result.stderr
    return program


@pytest.mark.skipif(not shutil.which("clang-16"), reason="clang-16 is not installed")
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("spins", [0, 4000])
def test_there_are_no_data_races(stress: Path, threads: int, spins: int) -> None:
    command = [str(stress), str(threads), "500", str(spins)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (result.stdout, result.returncode) == ("right\n", 0), result.stderr


_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("executor") / "executor.so"
    path.write_bytes(link([executor_object(TRIPLE)], EXECUTOR_EXPORTS))
    return ctypes.CDLL(str(path))


def _drawn(threads: int, tasks: int, code: ctypes.CDLL) -> list[int]:
    """The tasks of a launch in the order in which a team draws them; the caller's thread is the only one that works."""
    code.ts_team_bytes.restype = ctypes.c_int64
    team = np.zeros(code.ts_team_bytes() + 64, np.uint8)
    address = ctypes.c_void_p(-(-team.ctypes.data // 64) * 64)
    code.ts_init(address, ctypes.c_int64(threads), None, ctypes.c_int64(0), ctypes.c_int64(0), ctypes.c_int64(202))
    order: list[int] = []
    kernel = _TASK(lambda args, task, scratch: order.append(task))
    launch = (ctypes.c_int64 * 4)(ctypes.cast(kernel, ctypes.c_void_p).value or 0, 0, tasks, 1)
    run = (ctypes.c_int64 * 5)(address.value or 0, ctypes.addressof(launch), 1, 0, 0)
    code.ts_run(run)
    return order


@pytest.mark.parametrize(
    ("threads", "tasks", "order"),
    [
        (1, 4, [0, 1, 2, 3]),
        (2, 6, [0, 3, 1, 4, 2, 5]),
        (2, 5, [0, 3, 1, 4, 2]),
        (3, 7, [0, 3, 5, 1, 4, 6, 2]),
        (4, 3, [0, 1, 2]),
    ],
)
def test_threads_that_draw_by_turns_get_neighbouring_tasks(
    threads: int, tasks: int, order: list[int], library: ctypes.CDLL
) -> None:
    assert _drawn(threads, tasks, library) == order


def test_every_task_is_drawn_once(library: ctypes.CDLL) -> None:
    for threads in range(1, 9):
        for tasks in range(2, 40):
            assert sorted(_drawn(threads, tasks, library)) == list(range(tasks))


def test_other_architectures_are_refused() -> None:
    with pytest.raises(ValueError, match="x86_64 or aarch64"):
        executor_object("riscv64-linux-gnu")
