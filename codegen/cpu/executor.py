"""The object code of `executor.c` for a target, made from the checked-in LLVM IR by TVM's LLVM: no C compiler is
needed.

`python -m tilestitch.codegen.cpu.executor` makes `executor.ll` again after a change of `executor.c`; only that needs
clang 16.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tilestitch.codegen.cpu.toolchain.elf import object_bytes

_SOURCE = Path(__file__).with_name("executor.c")
_IR = Path(__file__).with_name("executor.ll")

EXECUTOR_EXPORTS = ("ts_init", "ts_resize", "ts_run", "ts_stop", "ts_team_bytes", "ts_worker")
"""The symbols that the runtime calls."""

_CLANG = (
    "clang-16", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-ffreestanding", "-fno-strict-aliasing",
    "-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-fdiscard-value-names", "-Qn", "-emit-llvm", "-S",
)  # fmt: skip

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


def neutral_ir(ir: str) -> str:
    """Return clang's output without target-specific parts: triple, data layout, target attributes, metadata."""
    ir = re.sub(
        r"^(; (ModuleID|Function Attrs)|source_filename|target (triple|datalayout)|!).*\n", "", ir, flags=re.MULTILINE
    )
    ir = re.sub(r", ![a-z]+(\.[a-z]+)* ![0-9]+", "", ir)
    ir = re.sub(r'"[^"]*"(="[^"]*")? (?=[^{}]*\}$)', "", ir, flags=re.MULTILINE)
    for group in re.findall(r"^attributes (#[0-9]+) = \{ *\}\n", ir, flags=re.MULTILINE):
        ir = re.sub(rf"^attributes {group} = .*\n| {group}\b", "", ir, flags=re.MULTILINE)
    ir = re.sub(r" *; preds = .*$", "", ir, flags=re.MULTILINE)
    return "; Made from executor.c by `python -m tilestitch.codegen.cpu.executor`; do not edit.\n" + ir.strip() + "\n"


def _regenerate() -> None:
    with tempfile.TemporaryDirectory(prefix="tilestitch-") as folder:
        output = Path(folder, "executor.ll")
        subprocess.run([*_CLANG, str(_SOURCE), "-o", str(output)], check=True)
        _IR.write_text(neutral_ir(output.read_text()))


if __name__ == "__main__":
    _regenerate()
