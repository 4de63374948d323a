"""Machine code on a GPU: in the primary context for the whole GPU, or bound to no context for partitions."""

from __future__ import annotations

from typing import Any, Protocol

from .driver import Device


class Code(Protocol):
    """Loads images, and finds kernels in them. A kernel's handle is what the driver takes for a `CUfunction`."""

    def load(self, image: bytes) -> Any: ...

    def find(self, loaded: Any, symbol: bytes) -> Any: ...

    def get(self, kernel: Any, attribute: Any) -> int: ...

    def set(self, kernel: Any, attribute: Any, value: int) -> None: ...

    def unload(self, loaded: Any) -> None: ...


class ModuleCode:
    """Modules of the primary context. Their functions run on the whole GPU, unless launched in another stream."""

    def __init__(self, device: Device) -> None:
        self._call = device.call

    def load(self, image: bytes) -> Any:
        return self._call("cuModuleLoadData", image)

    def find(self, loaded: Any, symbol: bytes) -> Any:
        return self._call("cuModuleGetFunction", loaded, symbol)

    def get(self, kernel: Any, attribute: Any) -> int:
        return int(self._call("cuFuncGetAttribute", attribute, kernel))

    def set(self, kernel: Any, attribute: Any, value: int) -> None:
        self._call("cuFuncSetAttribute", kernel, attribute, value)

    def unload(self, loaded: Any) -> None:
        self._call("cuModuleUnload", loaded)


class LibraryCode:
    """Libraries. A node of a graph takes a context only together with a kernel that has none, which theirs are."""

    def __init__(self, device: Device) -> None:
        self._call, self._device = device.call, device.handle
        self._kernel = device.api.CUkernel
        self._function = device.api.CUfunction

    def load(self, image: bytes) -> Any:
        loaded = self._call("cuLibraryLoadData", image, [], [], 0, [], [], 0)
        try:
            # The driver may put off loading until a kernel is launched, and with it the reason why it cannot.
            self._call("cuLibraryGetModule", loaded)
        except BaseException:
            self.unload(loaded)
            raise
        return loaded

    def find(self, loaded: Any, symbol: bytes) -> Any:
        return self._function(int(self._call("cuLibraryGetKernel", loaded, symbol)))

    def get(self, kernel: Any, attribute: Any) -> int:
        return int(self._call("cuKernelGetAttribute", attribute, self._kernel(int(kernel)), self._device))

    def set(self, kernel: Any, attribute: Any, value: int) -> None:
        self._call("cuKernelSetAttribute", attribute, value, self._kernel(int(kernel)), self._device)

    def unload(self, loaded: Any) -> None:
        self._call("cuLibraryUnload", loaded)
