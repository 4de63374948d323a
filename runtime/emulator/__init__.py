"""The emulated device: runs the CUDA text of kernels on the host, and finds their faults. See `docs/emulator.md`."""

from __future__ import annotations

from .errors import EmulatorBuildError, EmulatorUnsupportedError, KernelFaultError, NoCompilerError
from .kernels import Argument, KernelLaunch, Kernels, Ran, TensorArgument
from .options import EmulatorOptions, Multiprocessors
from .traffic import Requests, Traffic

__all__ = [
    "Argument", "EmulatorBuildError", "EmulatorOptions", "EmulatorUnsupportedError", "KernelFaultError", "KernelLaunch",
    "Kernels", "Multiprocessors", "NoCompilerError", "Ran", "Requests", "TensorArgument", "Traffic",
]  # fmt: skip
