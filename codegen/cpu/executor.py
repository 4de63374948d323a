"""The object code of `executor.c` for a target, made from the checked-in LLVM IR by TVM's LLVM: no C compiler is
needed. `tests/codegen/executor_ir.py` makes the IR.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from tilestitch.codegen.cpu.toolchain.elf import object_bytes

_IR = Path(__file__).with_name("executor.ll")

EXECUTOR_EXPORTS = ("ts_init", "ts_resize", "ts_run", "ts_stop", "ts_team_bytes", "ts_worker")
"""The symbols that the runtime calls."""

_X86_PAUSE = 'asm sideeffect "pause", "~{dirflag},~{fpsr},~{flags}"()'
_AARCH64_PAUSE = 'asm sideeffect "yield", ""()'


@cache
def executor_object(triple: str) -> bytes:
    """Return a relocatable ELF object of the executor for an LLVM target triple of x86-64 or aarch64 Linux.

    Raises `ValueError` for another architecture.
    """
    architecture = triple.partition("-")[0]
    if architecture not in ("x86_64", "aarch64"):
        raise ValueError(f"no executor for the target {triple!r}: compile for x86_64 or aarch64 Linux")
    import tvm

    ir = _IR.read_text()
    if architecture == "aarch64":
        ir = ir.replace(_X86_PAUSE, _AARCH64_PAUSE)
    with tempfile.TemporaryDirectory(prefix="tilestitch-") as folder:
        source = Path(folder, "executor.ll")
        source.write_text(f'target triple = "{triple}"\n{ir}')
        return object_bytes(tvm.runtime.load_module(str(source)))
