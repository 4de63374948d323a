"""Choosing the machine code that fits a GPU, and loading it: in the primary context for the whole GPU, or bound to no
context for partitions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Protocol

from tilestitch.runtime.artifact import Artifact
from tilestitch.runtime.errors import ArtifactSchemaError, DeviceError
from tilestitch.runtime.program import DeviceLaunch

from .driver import CudaError, Device
from .partition import Partition


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


_MEMBER = re.compile(r"kernels/(?P<kind>sm|compute)_(?P<number>\d+)(?P<suffix>[af]?)(/\d+)?\.(cubin|ptx)")
PORTABLE_CLUSTER = 8


def choose_members(names: Iterable[str], capability: tuple[int, int]) -> tuple[str, ...]:
    """Return the members to load on a GPU: all parts of the best cubin, else of the best PTX; none when nothing fits.

    A cubin fits GPUs of the same major and the same or a later minor version; with the suffix `a` exactly its own
    version, with `f` its family. PTX fits its own and every later version; with `a` only its own.
    """
    found: dict[tuple[bool, bool, int], list[str]] = {}
    for name in names:
        match = _MEMBER.fullmatch(name)
        if match is None:
            continue
        is_cubin, number, suffix = match["kind"] == "sm", int(match["number"]), match["suffix"]
        if _fits(is_cubin, divmod(number, 10), suffix, capability):
            found.setdefault((is_cubin, bool(suffix), number), []).append(name)
    return tuple(sorted(found[max(found)], key=_part)) if found else ()


def _fits(is_cubin: bool, version: tuple[int, int], suffix: str, capability: tuple[int, int]) -> bool:
    if suffix == "a":
        return version == capability
    if is_cubin or suffix == "f":
        return version[0] == capability[0] and version[1] <= capability[1]
    return version <= capability


def _part(name: str) -> tuple[int, str]:
    return len(name), name


def native_architecture(capability: tuple[int, int]) -> str:
    """Return the architecture to compile for, with the GPU's architecture-specific instructions where it has such."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


class Modules:
    """An artifact's kernels on one GPU, or on a partition of it."""

    def __init__(
        self, artifact: Artifact, device: Device, launches: Sequence[DeviceLaunch], partition: Partition | None = None
    ) -> None:
        self._device, self.partition = device, partition
        self._code: Code = ModuleCode(device) if partition is None else LibraryCode(device)
        self._file = artifact.name
        self._handles: list[Any] = []
        self._functions: dict[str, Any] = {}
        if not launches:
            return
        members = choose_members(artifact.member_names, device.capability)
        if not members:
            raise self._nothing_fits(artifact)
        try:
            with device.current():
                for name in members:
                    self._handles.append(self._load(bytes(artifact.member(name)), name))
                for symbol in sorted({launch.symbol for launch in launches}):
                    self._functions[symbol] = self._find(symbol)
                for launch in launches:
                    self._allow(launch)
        except BaseException:
            self.close()
            raise

    def _nothing_fits(self, artifact: Artifact) -> DeviceError:
        there = ", ".join(artifact.manifest.target.architectures) or "nothing"
        wanted = native_architecture(self._device.capability)
        return DeviceError(
            f"{self._file}: compiled for {there}, but {self._device} has compute capability "
            f"{'.'.join(map(str, self._device.capability))}; compile again: "
            f"tilestitch compile MODEL.onnx --target cuda:{wanted}"
        )

    def _load(self, image: bytes, name: str) -> Any:
        try:
            return self._code.load(image + b"\0" if name.endswith(".ptx") else image)
        except CudaError as error:
            wanted = native_architecture(self._device.capability)
            raise DeviceError(
                f"{self._file}: {self._device} cannot load member {name!r} ({error.status}); upgrade the NVIDIA "
                f"driver, or compile again: tilestitch compile MODEL.onnx --target cuda:{wanted}"
            ) from error

    def _find(self, symbol: str) -> Any:
        for handle in self._handles:
            try:
                return self._code.find(handle, symbol.encode())
            except CudaError as error:
                if error.status != "CUDA_ERROR_NOT_FOUND":
                    raise
        raise ArtifactSchemaError(f"the program launches the kernel {symbol!r}, which is not there", file=self._file)

    def _allow(self, launch: DeviceLaunch) -> None:
        """Set the function attributes that a kernel needs: much dynamic shared memory, large clusters."""
        attributes = self._device.api.CUfunction_attribute
        function = self._functions[launch.symbol]
        self._allow_shared(launch, function)
        if launch.cluster[0] * launch.cluster[1] * launch.cluster[2] > PORTABLE_CLUSTER:
            name = attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            self._code.set(function, name, 1)
        if launch.cooperative and not any(isinstance(size, str) for size in launch.grid):
            self._check_fits(launch)

    def _allow_shared(self, launch: DeviceLaunch, function: Any) -> None:
        """Raise the limit of dynamic shared memory. The default of 48 KiB includes static shared memory, which a launch
        does not tell.
        """
        attributes = self._device.api.CUfunction_attribute
        static = self._code.get(function, attributes.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
        most = self._device.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        if launch.shared_bytes + static > most:
            raise DeviceError(
                f"{self._file}: kernel {launch.symbol!r} needs {launch.shared_bytes + static} bytes of shared memory, "
                f"a block of {self._device} has at most {most}; compile again: tilestitch compile MODEL.onnx --target "
                f"cuda:{native_architecture(self._device.capability)}"
            )
        if launch.shared_bytes:
            name = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            now = self._code.get(function, name)
            self._code.set(function, name, max(now, launch.shared_bytes))

    def _check_fits(self, launch: DeviceLaunch) -> None:
        """Refuse a cooperative launch with more blocks than the multiprocessors hold at a time: waiting for each other,
        they would deadlock.
        """
        wanted, most = 1 if launch.elastic else prod(launch.blocks), self.resident_blocks(launch)
        if wanted <= most:
            return
        named, place, target = str(self._device), "this very GPU", "cuda:NAME"
        if self.partition is not None:
            named, place = f"the partition of {self.partition}", "so many multiprocessors"
            target = f"cuda:NAME/{self.partition.multiprocessors}"
        raise DeviceError(
            f"{self._file}: kernel {launch.symbol!r} needs {wanted} blocks at a time, {named} holds {most} of them; "
            f"compile again for {place}: tilestitch compile MODEL.onnx --target {target}"
        )

    def resident_blocks(self, launch: DeviceLaunch) -> int:
        """Return the number of a launch's blocks that are resident together on all multiprocessors that the kernels
        have, given the kernel's resources.
        """
        each = self._device.call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor", self._functions[launch.symbol], prod(launch.block),
            launch.shared_bytes,
        )  # fmt: skip
        return int(each) * self.multiprocessors

    @property
    def multiprocessors(self) -> int:
        """The multiprocessors that the kernels have."""
        if self.partition is not None:
            return self.partition.multiprocessors
        return self._device.attribute("MULTIPROCESSOR_COUNT")

    def fitted(self, launch: DeviceLaunch) -> DeviceLaunch:
        """Return the launch as it can run here: an elastic one gets no more blocks than are resident together."""
        if not launch.cooperative:
            return launch
        if not launch.elastic:
            self._check_fits(launch)
            return launch
        return replace(launch, grid=(min(launch.blocks[0], self.resident_blocks(launch)), 1, 1))

    def function(self, symbol: str) -> Any:
        return self._functions[symbol]

    def close(self) -> None:
        """Unload. No launch may be under way."""
        with self._device.current():
            while self._handles:
                self._code.unload(self._handles.pop())
        self._functions.clear()
