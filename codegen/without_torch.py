"""TVM, imported without PyTorch, which it would import first where that is installed.

PyTorch takes two to four seconds of every process that compiles, and code generation has no use for it. TVM wants it
first for the sake of symbols that clashed on Windows; there it stays so.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from typing import cast


def import_tvm() -> None:
    """Imports TVM, if it is installed and neither it nor PyTorch has been imported. PyTorch can be imported afterwards
    as before; a thread that first imports it meanwhile fails with ModuleNotFoundError.
    """
    if sys.platform == "win32" or sys.modules.keys() & {"torch", "tvm", "tvm_ffi"}:
        return
    if importlib.util.find_spec("tvm") is None:
        return
    modules = cast(dict[str, object], sys.modules)
    modules["torch"] = None  # an import of it raises ModuleNotFoundError, which TVM is prepared for
    try:
        with contextlib.suppress(ImportError, OSError):  # raised again by whatever needs TVM
            importlib.import_module("tvm")
    finally:
        del modules["torch"]
