"""The kernels' shared library, loaded from memory."""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import os
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

from tilestitch.runtime.errors import ArtifactSchemaError, DeviceError

_POINTER, _INT64 = ctypes.c_void_p, ctypes.c_int64
_ABI: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ts_team_bytes": (_INT64, ()),
    "ts_init": (None, (_POINTER, _INT64, _POINTER, _INT64, _INT64, _INT64)),
    "ts_worker": (None, (_POINTER, _INT64)),
    "ts_run": (None, (_POINTER,)),
    "ts_stop": (None, (_POINTER,)),
}


class Library:
    """Loaded kernels, unloaded with the last reference to the object.

    `file` is the artifact's name for messages. Raises `DeviceError` when the system refuses to load them,
    `ArtifactSchemaError` when the executor or a kernel is missing.
    """

    def __init__(self, image: memoryview | bytes, file: str) -> None:
        self._file = file
        self._dll, descriptor = _load(image, file)
        # The descriptor stays open: the loader identifies the library by the descriptor's path, which must not come to
        # mean another file.
        weakref.finalize(self, _unload, self._dll._handle, descriptor).atexit = False
        self.team_bytes = int(self._function("ts_team_bytes")())
        self.init = self._function("ts_init")
        self.worker = self._function("ts_worker")
        self.run = self._function("ts_run")
        self.stop = self._function("ts_stop")
        self.resize = self._optional("ts_resize")

    def address(self, symbol: str) -> int:
        """Return the address of a kernel."""
        try:
            address = ctypes.cast(getattr(self._dll, symbol), ctypes.c_void_p).value
        except AttributeError as error:
            raise ArtifactSchemaError(f"the kernels have no function {symbol!r}", file=self._file) from error
        return address or 0

    def _optional(self, symbol: str) -> int | None:
        """Return the address of a function that artifacts of earlier compilers lack."""
        return self.address(symbol) if hasattr(self._dll, symbol) else None

    def _function(self, symbol: str) -> Callable[..., Any]:
        self.address(symbol)
        function = getattr(self._dll, symbol)
        function.restype, function.argtypes = _ABI[symbol]
        return function


def _load(image: memoryview | bytes, file: str) -> tuple[ctypes.CDLL, int]:
    """Load a library from an anonymous file where the system has them, else from a private temporary file that is
    removed at once.
    """
    descriptor, path = _open(image)
    try:
        return ctypes.CDLL(path), descriptor
    except OSError as error:
        os.close(descriptor)
        raise DeviceError(f"{file}: the kernels cannot be loaded ({error}); compile again on this machine") from error
    finally:
        if not path.startswith("/proc/"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _open(image: memoryview | bytes) -> tuple[int, str]:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tilestitch-kernels", os.MFD_CLOEXEC)
        path = f"/proc/self/fd/{descriptor}"
    else:
        descriptor, path = tempfile.mkstemp(prefix="tilestitch-", suffix=".so")
    with open(descriptor, "wb", closefd=False) as target:
        target.write(image)
    return descriptor, path


def _unload(handle: int, descriptor: int) -> None:
    _ctypes.dlclose(handle)
    os.close(descriptor)
