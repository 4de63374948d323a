"""Kernels that plug-ins provide as C text, compiled by this machine's C compiler."""

import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tilestitch.codegen.cpu.abi import KernelLaunch
from tilestitch.codegen.cpu.target import CpuTarget
from tilestitch.codegen.cpu.toolchain.elf import SHN_UNDEF, STB_LOCAL, read_object
from tilestitch.codegen.cpu.toolchain.link import LIBC, LIBM
from tilestitch.codegen.errors import KernelError, LinkError, first_error
from tilestitch.passes.plan.own_kernels import KERNEL_NAME

COMPILERS = ("cc", "gcc", "clang")
OPTIONS = (
    "-std=gnu11", "-O3", "-fPIC", "-c", "-x", "c",
    "-fno-stack-protector", "-U_FORTIFY_SOURCE",  # both call functions that the linker does not know
    "-fno-asynchronous-unwind-tables", "-Werror=implicit-function-declaration",
)  # fmt: skip

_PROLOGUE = """\
#include <stdint.h>
#line 1 "{name}.c"
"""
# How the executor calls kernels: see `abi`.
_EPILOGUE = """
struct tilestitch_argument {{ int64_t unused; void *pointer; }};
void {name}(const struct tilestitch_argument *a, int64_t task, void *scratch) {{
  (void)scratch;
  {name}_task({arguments});
}}
"""


@dataclass(frozen=True)
class CText:
    """The text of a `CKernel` with so many pointers, and whether it takes scratch memory."""

    body: str
    pointers: int
    takes_scratch: bool

    @property
    def text(self) -> str:
        return self.named(KERNEL_NAME)

    def named(self, name: str) -> str:
        """Return the complete text of the kernel with the symbol `name`."""
        arguments = [f"a[{i}].pointer" for i in range(self.pointers)] + ["task"] + ["scratch"] * self.takes_scratch
        body = self.body.replace(KERNEL_NAME, f"{name}_task")
        return _PROLOGUE.format(name=name) + body + _EPILOGUE.format(name=name, arguments=", ".join(arguments))


def compiler() -> str | None:
    """Return the path of a C compiler, if there is one."""
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


def compile_c(symbol: str, text: str, launch: KernelLaunch, target: CpuTarget) -> bytes:
    """Return the relocatable object. Raises KernelError, naming the plug-in, where there is no compiler, or it
    refuses.
    """
    path = compiler()
    if path is None:
        advice = "install gcc or clang (Debian and Ubuntu: apt-get install gcc), or leave out the plug-in"
        raise KernelError(f"{launch.owner}: its kernels are C, and there is no C compiler; {advice}", launch.origins)
    if target.machine != platform.machine():
        problem = f"its kernels are C, which is compiled for {platform.machine()} here, not for {target.machine}"
        raise KernelError(f"{launch.owner}: {problem}; compile on such a machine", launch.origins)
    with tempfile.TemporaryDirectory(prefix="tilestitch-") as folder:
        output = Path(folder) / "kernel.o"
        command = [path, *OPTIONS, *_features(target), "-", "-o", str(output)]
        answer = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if answer.returncode:
            raise KernelError.refused(symbol, first_error(answer.stderr), launch.owner, launch.origins)
        data = output.read_bytes()
    try:
        reason = _why_no_part(data, symbol)
    except LinkError as error:
        reason = str(error)
    if reason:
        raise KernelError.refused(symbol, reason, launch.owner, launch.origins)
    return data


def _why_no_part(data: bytes, symbol: str) -> str | None:
    """Return why an object cannot be linked with other kernels."""
    shared = [s for s in read_object(data, symbol).symbols if s.name and s.binding != STB_LOCAL]
    known = {symbol, f"{symbol}_task"}
    defined = sorted({s.name for s in shared if s.section != SHN_UNDEF} - known)
    if defined:
        return f"it defines {', '.join(defined)} for all kernels; write `static` before all functions but {KERNEL_NAME}"
    missing = sorted({s.name for s in shared if s.section == SHN_UNDEF} - known - LIBC - LIBM)
    return (
        f"it needs {', '.join(missing)}; kernels may call libm and memcpy, memmove, memset, memcmp" if missing else None
    )


def _features(target: CpuTarget) -> list[str]:
    """Return the compiler options for the CPU's features; on x86, options have LLVM's names."""
    if target.machine != "x86_64":
        return []
    return ["-fcf-protection=none", *(f"-m{feature}" for feature in target.features)]
