"""TVM, imported without PyTorch, which it would import first where that is installed.

PyTorch takes two to four seconds of every process that compiles, and code generation has no use for it. TVM wants it
first for the sake of symbols that clashed on Windows; there it stays so.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from threading import get_ident
from types import ModuleType


def import_tvm() -> None:
    """Imports TVM, if it is installed and neither it nor PyTorch has been imported. PyTorch can be imported afterwards
    as before, and by other threads meanwhile.
    """
    if sys.platform == "win32" or sys.modules.keys() & {"torch", "tvm", "tvm_ffi"}:
        return
    if importlib.util.find_spec("tvm") is None:
        return
    # TVM is prepared for the error of a missing PyTorch; its own are raised again by whatever needs TVM.
    with _hidden("torch"), contextlib.suppress(ImportError, OSError):
        importlib.import_module("tvm")


@contextlib.contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Within the block, this thread finds no such package."""
    finder = _Missing(package, get_ident())
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Missing:
    """Asked before all other finders."""

    def __init__(self, package: str, thread: int) -> None:
        self.package, self.thread = package, thread

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == self.package and get_ident() == self.thread:
            raise ModuleNotFoundError(f"{name} is not imported while TVM is", name=name)
        return None
