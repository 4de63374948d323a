"""Import of TVM without PyTorch, which it would import first if it is installed.

PyTorch takes two to four seconds of every compiling process, and code generation does not use it. TVM imports it first
because of symbols that clashed on Windows, where it still does.
"""

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from threading import get_ident
from types import ModuleType


def import_tvm() -> None:
    """Import TVM, if it is installed and neither it nor PyTorch has been imported. PyTorch can be imported afterwards,
    and by other threads meanwhile.
    """
    if sys.platform == "win32" or sys.modules.keys() & {"torch", "tvm", "tvm_ffi"}:
        return
    if importlib.util.find_spec("tvm") is None:
        return
    # TVM handles a missing PyTorch; its own import errors are raised again by the next import of it.
    with _hidden("torch"), contextlib.suppress(ImportError, OSError):
        importlib.import_module("tvm")


@contextlib.contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Hide a package from this thread within the block."""
    finder = _Missing(package, get_ident())
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Missing:
    """Import finder that is asked first and hides the package."""

    def __init__(self, package: str, thread: int) -> None:
        self.package, self.thread = package, thread

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == self.package and get_ident() == self.thread:
            raise ModuleNotFoundError(f"{name} is not imported while TVM is", name=name)
        return None
