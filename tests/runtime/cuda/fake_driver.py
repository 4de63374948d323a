"""A stand-in for `cuda.bindings.driver` whose device memory is the host's and whose kernels are Python functions.

It has the functions that `runtime.cuda` calls, with the real package's structures and enumerations where they carry
data, and is stricter than a GPU: work runs when it is queued, every address must lie in a live allocation, no call
works without a current context, handles are checked, and `leaks()` tells what was never given back.

A module image is the text `fake:SYMBOL,SYMBOL`: signed names of those of `KERNELS` that it holds. Work in streams runs
at once, so that nothing here shows a missing wait; `calls` records every call for tests that look at their order.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import cuda.bindings.driver as real
import numpy as np

from tests.runtime.signed import plain
from tilestitch.runtime.cuda import tensor_maps

Kernel = Callable[[Sequence[int], tuple[int, int, int], tuple[int, int, int]], None]
"""Called with the pointers, grid and block of a launch."""


def view(address: int, dtype: str, count: int) -> np.ndarray:
    """`count` elements at an address."""
    raw = (ctypes.c_uint8 * (count * np.dtype(dtype).itemsize)).from_address(address)
    return np.frombuffer(raw, dtype)


def increment(pointers: Sequence[int], grid: Any, block: Any) -> None:
    """y[i] = x[i] + 1 for grid x block float32."""
    count = grid[0] * block[0]
    view(pointers[1], "float32", count)[...] = view(pointers[0], "float32", count) + 1


def add(pointers: Sequence[int], grid: Any, block: Any) -> None:
    count = grid[0] * block[0]
    a, b, y = (view(pointer, "float32", count) for pointer in pointers)
    y[...] = a + b


def pick(pointers: Sequence[int], grid: Any, block: Any) -> None:
    """y[i] = x[index[i]] for four float32; status 1 for an index below 0, 2 for one above 3."""
    x, index, y, status = (view(p, t, n) for p, t, n in zip(pointers, ("f4", "i8", "f4", "i4"), (4, 4, 4, 1)))
    if (index < 0).any():
        status[0] = 1
    if (index > 3).any():
        status[0] = 2
    y[...] = x[np.clip(index, 0, 3)]


def count_blocks(pointers: Sequence[int], grid: Any, block: Any) -> None:
    """Adds the grid's blocks to a counter, and copies it to four int32."""
    counter = view(pointers[0], "u4", 1)
    counter[...] += grid[0]
    view(pointers[1], "i4", 4)[...] = counter


def sized_increment(pointers: Sequence[int], grid: Any, block: Any) -> None:
    """y[i] = x[i] + 1 for sizes[0] * sizes[1] float32, with a thread for each of them."""
    batch, seq = view(pointers[1], "int64", 2)
    assert batch * seq <= grid[0] * block[0] < batch * seq + block[0]
    view(pointers[2], "float32", batch * seq)[...] = view(pointers[0], "float32", batch * seq) + 1


def sized_double(pointers: Sequence[int], grid: Any, block: Any) -> None:
    """y[i] = 2 x[i] for sizes[0] * sizes[1] float32, with a thread for each of them."""
    batch, seq = view(pointers[1], "int64", 2)
    assert batch * seq <= grid[0] * block[0] < batch * seq + block[0]
    view(pointers[2], "float32", batch * seq)[...] = view(pointers[0], "float32", batch * seq) * 2


KERNELS: dict[str, Kernel] = {
    "increment": increment, "add": add, "pick": pick, "count_blocks": count_blocks, "sized_increment": sized_increment,
    "sized_double": sized_double,
}  # fmt: skip


def kernel_named(symbol: str) -> Kernel:
    """What a kernel does, by its signed symbol, or by its own where a test brings it."""
    return KERNELS[symbol if symbol in KERNELS else plain(symbol)]


@dataclass
class Node:
    parameters: Any  # None for a memset
    pointers: list[int] = field(default_factory=list)
    memset: tuple[int, int] = (0, 0)
    attributes: dict[str, Any] = field(default_factory=dict)
    before: list[tuple[int, int, int]] = field(default_factory=list)  # node, edge type, port
    enabled: bool = True


@dataclass
class GPU:
    capability: tuple[int, int] = (9, 0)
    memory_bytes: int = 1 << 30
    shared_bytes: int = 232448
    multiprocessors: int = 132
    blocks_per_multiprocessor: int = 2
    has_pools: bool = True
    name: bytes = b"Fake GPU"


class FakeDriver:
    """The driver's functions as attributes. `fail[NAME] = STATUS` makes a function fail."""

    def __init__(self, gpus: Sequence[GPU] | None = None, argument_counts: dict[str, int] | None = None) -> None:
        self.gpus = [GPU()] if gpus is None else list(gpus)
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.fail: dict[str, str] = {}
        self.has_library = True
        self.least_and_greatest_priority = (0, -5)
        self.argument_counts = argument_counts or {}
        self._contexts: list[int] = []
        self._next = itertools.count(1000)
        self._memory: dict[int, tuple[int, ctypes.Array[Any]]] = {}  # address -> GPU, bytes
        self._retained = [0] * len(self.gpus)
        self._live: dict[str, dict[int, Any]] = {
            k: {} for k in ("module", "function", "stream", "event", "graph", "exec", "pool")
        }
        self._nodes: dict[int, Node] = {}
        self.encode = _encoder(self)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu") or name not in _FUNCTIONS:
            return getattr(real, name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, arguments))
            if name in self.fail:
                return (getattr(real.CUresult, self.fail[name]), *[None] * 3)
            if name not in _WITHOUT_CONTEXT:
                assert self._contexts, f"{name} was called without a current context"
            result = _FUNCTIONS[name](self, *arguments)
            if isinstance(result, real.CUresult):
                return (result,)
            values = () if result is None else result if isinstance(result, tuple) else (result,)
            return (real.CUresult.CUDA_SUCCESS, *values)

        return call

    # -- what tests look at ------------------------------------------------------------------------------------

    def named(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of all calls of a function."""
        return [arguments for called, arguments in self.calls if called == name]

    def leaks(self) -> dict[str, int]:
        """How many of each kind of thing are still there."""
        kinds = {kind: len(live) for kind, live in self._live.items() if kind != "function"}
        kinds.update(memory=len(self._memory), context=sum(self._retained), pushed=len(self._contexts))
        return {kind: count for kind, count in kinds.items() if count}

    @property
    def used_bytes(self) -> int:
        return sum(len(raw) for _, raw in self._memory.values())

    def graphs(self) -> list[list[Node]]:
        return [[self._nodes[node] for node in nodes] for nodes in self._live["graph"].values()]

    # -- helpers -----------------------------------------------------------------------------------------------

    def _new(self, kind: str, value: Any) -> int:
        handle = next(self._next)
        self._live[kind][handle] = value
        return handle

    def _get(self, kind: str, handle: Any) -> Any:
        assert int(handle) in self._live[kind], f"{kind} {handle} is not there"
        return self._live[kind][int(handle)]

    def _stream(self, handle: Any) -> None:
        assert int(handle or 0) in (0, 1, 2) or int(handle) >= 1_000_000 or int(handle) in self._live["stream"], handle

    def check_range(self, address: int, nbytes: int) -> None:
        inside = any(
            start <= address and address + nbytes <= start + len(raw) for start, (_, raw) in self._memory.items()
        )
        assert inside, f"{nbytes} bytes at {address:#x} are in no allocation"

    def launch(self, node: Node) -> None:
        if node.parameters is None:
            self.check_range(*node.memset)
            ctypes.memset(node.memset[0], 0, node.memset[1])
            return
        p = node.parameters
        for pointer in node.pointers:
            self.check_range(pointer, 1)
        kernel_named(self._get("function", p.func))(
            node.pointers, (p.gridDimX, p.gridDimY, p.gridDimZ), (p.blockDimX, p.blockDimY, p.blockDimZ)
        )

    def check_grid(self, parameters: Any) -> None:
        """What a driver refuses when a node or launch is made."""
        extents = (parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ)
        assert all(extents), f"a grid of {extents} blocks"

    def read_pointers(self, function: Any, table: int) -> list[int]:
        symbol = self._get("function", function)
        count = self.argument_counts.get(symbol, self.argument_counts.get(plain(symbol), 2))
        addresses = view(int(table), "uint64", count)
        return [int(view(int(address), "uint64", 1)[0]) for address in addresses]


def _attribute(fake: FakeDriver, attribute: Any, device: int) -> int:
    gpu = fake.gpus[device]
    values = {
        "COMPUTE_CAPABILITY_MAJOR": gpu.capability[0],
        "COMPUTE_CAPABILITY_MINOR": gpu.capability[1],
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": gpu.shared_bytes,
        "MULTIPROCESSOR_COUNT": gpu.multiprocessors,
        "MEMORY_POOLS_SUPPORTED": int(gpu.has_pools),
    }
    return values[attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")]


def _init(fake: FakeDriver, flags: int) -> Any:
    if not fake.has_library:
        raise RuntimeError("libcuda.so.1 was not found\nmore text")
    return real.CUresult.CUDA_SUCCESS if fake.gpus else real.CUresult.CUDA_ERROR_NO_DEVICE


def _retain(fake: FakeDriver, device: int) -> int:
    fake._retained[device] += 1
    return device + 1


def _release(fake: FakeDriver, device: int) -> None:
    fake._retained[device] -= 1


def _alloc(fake: FakeDriver, nbytes: int) -> Any:
    gpu = fake._contexts[-1] - 1
    used = sum(len(raw) for owner, raw in fake._memory.values() if owner == gpu)
    if used + nbytes > fake.gpus[gpu].memory_bytes:
        return real.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    block = (ctypes.c_uint8 * (nbytes + 256))()
    address = -(-ctypes.addressof(block) // 256) * 256
    raw = (ctypes.c_uint8 * nbytes).from_address(address)
    raw._keep = block  # type: ignore[attr-defined]
    ctypes.memset(address, 0xCD, nbytes)
    fake._memory[address] = (gpu, raw)
    return real.CUdeviceptr(address)


def _free(fake: FakeDriver, address: Any) -> None:
    gpu, _ = fake._memory.pop(int(address))
    assert fake._contexts[-1] == gpu + 1, "freed in another GPU's context"


def _mem_info(fake: FakeDriver) -> tuple[int, int]:
    total = fake.gpus[fake._contexts[-1] - 1].memory_bytes
    return total - fake.used_bytes, total


def _to_device(fake: FakeDriver, target: Any, source: int, nbytes: int, stream: Any = 0) -> None:
    fake._stream(stream)
    fake.check_range(int(target), nbytes)
    ctypes.memmove(int(target), source, nbytes)


def _pitched(fake: FakeDriver, copy: Any, stream: Any) -> None:
    host = real.CUmemorytype.CU_MEMORYTYPE_HOST
    source = int(copy.srcHost) if copy.srcMemoryType == host else int(copy.srcDevice)
    target = int(copy.dstHost) if copy.dstMemoryType == host else int(copy.dstDevice)
    for row in range(copy.Height):
        at, to = source + row * copy.srcPitch, target + row * copy.dstPitch
        if copy.srcMemoryType == host:
            _to_device(fake, to, at, copy.WidthInBytes, stream)
        elif copy.dstMemoryType == host:
            _to_host(fake, to, at, copy.WidthInBytes, stream)
        else:
            _on_device(fake, to, at, copy.WidthInBytes, stream)


def _to_host(fake: FakeDriver, target: int, source: Any, nbytes: int, stream: Any = 0) -> None:
    fake._stream(stream)
    fake.check_range(int(source), nbytes)
    ctypes.memmove(target, int(source), nbytes)


def _on_device(fake: FakeDriver, target: Any, source: Any, nbytes: int, stream: Any) -> None:
    fake.check_range(int(source), nbytes)
    _to_device(fake, target, int(source), nbytes, stream)


def _memset(fake: FakeDriver, target: Any, value: int, nbytes: int, stream: Any) -> None:
    fake.check_range(int(target), nbytes)
    ctypes.memset(int(target), value, nbytes)


def _owner(fake: FakeDriver, attribute: Any, address: Any) -> int:
    for start, (gpu, raw) in fake._memory.items():
        if start <= int(address) < start + max(len(raw), 1):
            return gpu
    raise AssertionError("no pointer of the device")


def _load(fake: FakeDriver, image: bytes) -> Any:
    text = bytes(image).rstrip(b"\0").decode(errors="replace")
    if not text.startswith("fake:"):
        return real.CUresult.CUDA_ERROR_INVALID_IMAGE
    return fake._new("module", text.removeprefix("fake:").split(","))


def _function(fake: FakeDriver, module: Any, name: bytes) -> Any:
    if name.decode() not in fake._get("module", module):
        return real.CUresult.CUDA_ERROR_NOT_FOUND
    return real.CUfunction(fake._new("function", name.decode()))


def _drop(kind: str) -> Callable[..., None]:
    def drop(fake: FakeDriver, handle: Any) -> None:
        fake._get(kind, handle)
        del fake._live[kind][int(handle)]

    return drop


def _use(kind: str) -> Callable[..., None]:
    return lambda fake, *arguments: fake._get(kind, arguments[0]) and None


def _wait_event(fake: FakeDriver, stream: Any, event: Any, flags: int) -> None:
    fake._stream(stream)
    fake._get("event", event)


def _record(fake: FakeDriver, event: Any, stream: Any) -> None:
    fake._get("event", event)
    fake._stream(stream)


def _proc_address(fake: FakeDriver, name: bytes, version: int, flags: int) -> tuple[int, int]:
    assert (name, flags) == (b"cuTensorMapEncodeTiled", 0)
    return ctypes.cast(fake.encode, ctypes.c_void_p).value or 0, 0


def _encoder(fake: FakeDriver) -> Any:
    """A function in C's form that writes maps whose first word is the address, so that kernels here take it for a
    pointer; `calls` shows its arguments as lists and numbers.
    """

    def encode(target: int, dtype: int, rank: int, address: int, *rest: int) -> int:
        (dims, strides, box, steps), names = rest[:4], rest[4:]
        assert fake._contexts, "no context is current"
        assert address % 16 == 0, f"the tensor lies at {address:#x}"
        assert target % 64 == 0, f"the map lies at {target:#x}"
        wide = [view(numbers, "u8", count).tolist() for numbers, count in ((dims, rank), (strides, rank - 1))]
        narrow = [view(numbers, "u4", rank).tolist() for numbers in (box, steps)]
        fake.calls.append(("cuTensorMapEncodeTiled", (dtype, rank, address, *wide, *narrow, *names)))
        view(target, "u8", 16)[...] = [address, *[0] * 15]
        return 0

    return tensor_maps._Encode(encode)


def _add_kernel(fake: FakeDriver, graph: Any, dependencies: Any, count: int, parameters: Any) -> Any:
    handle = next(fake._next)
    fake.check_grid(parameters)
    fake._nodes[handle] = Node(parameters, fake.read_pointers(parameters.func, parameters.kernelParams))
    fake._get("graph", graph).append(handle)
    return real.CUgraphNode(handle)


def _add_memset(fake: FakeDriver, graph: Any, dependencies: Any, count: int, parameters: Any, context: Any) -> Any:
    handle = next(fake._next)
    nbytes = parameters.width * parameters.elementSize
    fake._nodes[handle] = Node(None, memset=(int(parameters.dst), nbytes))
    fake._get("graph", graph).append(handle)
    return real.CUgraphNode(handle)


def _add_edges(fake: FakeDriver, graph: Any, before: Any, after: Any, data: Any, count: int) -> None:
    assert len(before) == len(after) == len(data) == count
    for first, second, edge in zip(before, after, data):
        fake._nodes[int(second)].before.append((int(first), int(edge.type), int(edge.from_port)))


def _set_attribute(fake: FakeDriver, node: Any, attribute: Any, value: Any) -> None:
    assert isinstance(value, real.CUkernelNodeAttrValue)
    fake._nodes[int(node)].attributes[attribute.name.removeprefix("CU_LAUNCH_ATTRIBUTE_")] = value


def _instantiate(fake: FakeDriver, graph: Any, flags: int) -> int:
    nodes = list(fake._get("graph", graph))
    prioritised = any("PRIORITY" in fake._nodes[int(node)].attributes for node in nodes)
    asked = bool(flags & int(real.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY))
    assert asked == prioritised, "nodes run with their own priorities only where the graph is asked to"
    return fake._new("exec", nodes)


def _update(fake: FakeDriver, executable: Any, node: Any, parameters: Any) -> None:
    assert int(node) in fake._get("exec", executable)
    fake.check_grid(parameters)
    fake._nodes[int(node)].parameters = parameters
    fake._nodes[int(node)].pointers = fake.read_pointers(parameters.func, parameters.kernelParams)


def _set_enabled(fake: FakeDriver, executable: Any, node: Any, enabled: int) -> None:
    assert int(node) in fake._get("exec", executable)
    fake._nodes[int(node)].enabled = bool(enabled)


def _launch_graph(fake: FakeDriver, executable: Any, stream: Any) -> None:
    """Runs the nodes in the last order that their edges allow: what is not ordered by an edge runs the other way."""
    fake._stream(stream)
    waiting = list(reversed(fake._get("exec", executable)))
    done: set[int] = set()
    while waiting:
        ready = next(n for n in waiting if all(first in done for first, _, _ in fake._nodes[n].before))
        waiting.remove(ready)
        if fake._nodes[ready].enabled:
            fake.launch(fake._nodes[ready])
        done.add(ready)


def _launch_kernel(fake: FakeDriver, config: Any, function: Any, table: int, extra: int) -> None:
    fake._stream(config.hStream)
    parameters = real.CUDA_KERNEL_NODE_PARAMS()
    parameters.func = function
    for name in ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ"):
        setattr(parameters, name, getattr(config, name))
    fake.check_grid(parameters)
    fake.launch(Node(parameters, fake.read_pointers(function, table)))


def _launch_plain(fake: FakeDriver, function: Any, *numbers: Any) -> None:
    *extents, _, stream, table, _ = numbers
    fake._stream(stream)
    parameters = real.CUDA_KERNEL_NODE_PARAMS()
    parameters.func = function
    names = ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ")
    for name, extent in zip(names, extents, strict=True):
        setattr(parameters, name, extent)
    fake.launch(Node(parameters, fake.read_pointers(function, table)))


_WITHOUT_CONTEXT = {
    "cuInit", "cuGetProcAddress", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease", "cuCtxPushCurrent", "cuMemPoolDestroy",
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cuInit": _init,
    "cuDeviceGetCount": lambda fake: len(fake.gpus),
    "cuDeviceGet": lambda fake, ordinal: ordinal,
    "cuDeviceGetName": lambda fake, length, device: fake.gpus[device].name + b"\0\0",
    "cuDeviceGetAttribute": _attribute,
    "cuDevicePrimaryCtxRetain": _retain,
    "cuDevicePrimaryCtxRelease": _release,
    "cuCtxPushCurrent": lambda fake, context: fake._contexts.append(context),
    "cuCtxPopCurrent": lambda fake: fake._contexts.pop(),
    "cuCtxGetCurrent": lambda fake: fake._contexts[-1],
    "cuCtxSynchronize": lambda fake: None,
    "cuGetProcAddress": _proc_address,
    "cuMemPoolCreate": lambda fake, wanted: real.CUmemoryPool(fake._new("pool", int(wanted.location.id))),
    "cuMemPoolSetAttribute": _use("pool"),
    "cuMemPoolTrimTo": _use("pool"),
    "cuMemPoolDestroy": _drop("pool"),
    "cuMemAllocFromPoolAsync": lambda fake, nbytes, pool, stream: _alloc(fake, nbytes),
    "cuMemFreeAsync": lambda fake, address, stream: _free(fake, address),
    "cuMemAlloc": _alloc,
    "cuMemFree": _free,
    "cuMemGetInfo": _mem_info,
    "cuMemcpyHtoD": _to_device,
    "cuMemcpyHtoDAsync": _to_device,
    "cuMemcpyDtoH": _to_host,
    "cuMemcpyDtoHAsync": _to_host,
    "cuMemcpyDtoDAsync": _on_device,
    "cuMemcpy2DAsync": _pitched,
    "cuMemsetD8Async": _memset,
    "cuPointerGetAttribute": _owner,
    "cuModuleLoadData": _load,
    "cuModuleUnload": _drop("module"),
    "cuModuleGetFunction": _function,
    "cuFuncGetAttribute": lambda fake, attribute, function: 0,
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": lambda fake, *_: (
        fake.gpus[fake._contexts[-1] - 1].blocks_per_multiprocessor
    ),
    "cuFuncSetAttribute": lambda fake, function, attribute, value: None,
    "cuStreamCreate": lambda fake, flags: fake._new("stream", flags),
    "cuCtxGetStreamPriorityRange": lambda fake: fake.least_and_greatest_priority,
    "cuStreamCreateWithPriority": lambda fake, flags, priority: fake._new("stream", priority),
    "cuStreamDestroy": _drop("stream"),
    "cuStreamSynchronize": lambda fake, stream: fake._stream(stream),
    "cuStreamWaitEvent": _wait_event,
    "cuEventCreate": lambda fake, flags: fake._new("event", flags),
    "cuEventDestroy": _drop("event"),
    "cuEventRecord": _record,
    "cuEventSynchronize": _use("event"),
    "cuEventElapsedTime": lambda fake, start, end: 0.002,
    "cuGraphCreate": lambda fake, flags: fake._new("graph", []),
    "cuGraphDestroy": _drop("graph"),
    "cuGraphAddKernelNode": _add_kernel,
    "cuGraphAddMemsetNode": _add_memset,
    "cuGraphAddDependencies": _add_edges,
    "cuGraphKernelNodeSetAttribute": _set_attribute,
    "cuGraphInstantiate": _instantiate,
    "cuGraphExecDestroy": _drop("exec"),
    "cuGraphExecKernelNodeSetParams": _update,
    "cuGraphNodeSetEnabled": _set_enabled,
    "cuGraphLaunch": _launch_graph,
    "cuLaunchKernel": _launch_plain,
    "cuLaunchKernelEx": _launch_kernel,
}
