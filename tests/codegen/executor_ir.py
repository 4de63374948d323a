"""LLVM IR of the executor: `python -m tests.codegen.executor_ir` makes `executor.ll` again after a change of
`executor.c`; that needs clang 16.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from tilestitch.codegen.cpu import backend

IR = Path(backend.__file__).with_name("executor.ll")
_CLANG = (
    "clang-16", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-ffreestanding", "-fno-strict-aliasing",
    "-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-fdiscard-value-names", "-Qn", "-emit-llvm", "-S",
)  # fmt: skip


def compiled_ir() -> str:
    """Return the IR of `executor.c`, for any target."""
    with tempfile.TemporaryDirectory(prefix="tilestitch-") as folder:
        output = Path(folder, "executor.ll")
        subprocess.run([*_CLANG, str(IR.with_suffix(".c")), "-o", str(output)], check=True)
        return neutral_ir(output.read_text())


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
    return "; Made from executor.c by `python -m tests.codegen.executor_ir`; do not edit.\n" + ir.strip() + "\n"


if __name__ == "__main__":
    IR.write_text(compiled_ir())
