"""Errors of the emulated device."""

from __future__ import annotations

from tilestitch.runtime.errors import DeviceError, ExecutionError, UnsupportedError


class EmulatorBuildError(DeviceError):
    """The host's C++ compiler is missing, or refused a kernel."""


class NoCompilerError(EmulatorBuildError):
    """The machine has no C++ compiler."""


class EmulatorUnsupportedError(UnsupportedError):
    """A kernel uses a part of CUDA that the emulator does not support."""


class KernelFaultError(ExecutionError):
    """A kernel did something that is an error on a GPU. `kernel` is its symbol, `line` the 1-based line of its text or
    None, `problem` says what happened and which block and thread did it, `launch` its number among the concurrent ones.
    """

    def __init__(self, kernel: str, problem: str, line: int | None, source: str, launch: int = 0) -> None:
        self.kernel = kernel
        self.problem = problem
        self.line = line
        self.source = source
        self.launch = launch
        super().__init__(kernel, problem, line, source, launch)

    def __str__(self) -> str:
        where = f", line {self.line}" if self.line else ""
        quoted = f"; the line reads: {self.source}" if self.source else ""
        return f"kernel {self.kernel}{where}: {self.problem}{quoted}"
