"""The emulated device: runs the CUDA text of kernels on the host, and finds their faults. See `docs/emulator.md`."""

from __future__ import annotations

from .errors import EmulatorBuildError, EmulatorUnsupportedError, KernelFaultError, NoCompilerError
from .kernels import Argument, Kernels, TensorArgument
from .options import EmulatorOptions
from .traffic import Traffic

__all__ = [
    "Argument", "EmulatorBuildError", "EmulatorOptions", "EmulatorUnsupportedError", "KernelFaultError", "Kernels",
    "NoCompilerError", "TensorArgument", "Traffic",
]  # fmt: skip
