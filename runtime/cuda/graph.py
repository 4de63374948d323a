"""A device step as a CUDA graph, built node by node, and the same launches one by one for profiles."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilestitch.runtime.buffers import aligned_bytes
from tilestitch.runtime.launches import MAX_PRIORITY, DeviceLaunch, Edge
from tilestitch.runtime.tensor_map import TensorMap
from tilestitch.runtime.trace import ranges

from . import tensor_maps
from .driver import Device
from .partition import Partition

_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_NODE_PRIORITIES = 8  # CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY
_PORTS = {"full": "DEFAULT", "programmatic": "PROGRAMMATIC", "launch_order": "LAUNCH_ORDER"}


class Parameters:
    """The parameters of one launch, pointers and tensor maps, and the table of their addresses that the driver reads.

    `maps`: the tensor maps among them, by position.
    """

    def __init__(self, count: int, maps: Mapping[int, TensorMap] | None = None) -> None:
        self.pointers = np.zeros(max(count, 1), np.uint64)
        self._maps = dict(maps or {})
        self._table = self.pointers.ctypes.data + 8 * np.arange(max(count, 1), dtype=np.uint64)
        self._encoded: dict[int, np.ndarray] = {}
        for position in self._maps:
            self._encoded[position] = aligned_bytes(tensor_maps.NBYTES)
            self._table[position] = self._encoded[position].ctypes.data

    @staticmethod
    def of(launch: DeviceLaunch) -> Parameters:
        """Return parameters for a launch's arguments that point nowhere yet."""
        maps = {position: arg.tensor_map for position, arg in enumerate(launch.args) if arg.tensor_map is not None}
        return Parameters(len(launch.args), maps)

    def point(self, device: Device, position: int, address: int) -> None:
        """Point a parameter to `address`, or encode its tensor map for it. Raises `CudaError`."""
        self.pointers[position] = address
        if position in self._maps:
            tensor_maps.encode(device, self._maps[position], address, self._encoded[position])

    @property
    def address(self) -> int:
        return int(self._table.ctypes.data)


class LaunchGraph:
    """Launches that one call queues. `functions` and `parameters` are in the order of the launches.

    `clear`: address and size in bytes of words that are zeroed before any launch; size 0 for none. `partition`: where
    the kernels run, whatever stream the graph is launched in, instead of on the whole GPU; `functions` are then of a
    library.
    """

    def __init__(
        self,
        device: Device,
        launches: Sequence[DeviceLaunch],
        edges: Sequence[Edge],
        functions: Sequence[Any],
        parameters: Sequence[Parameters],
        clear: tuple[int, int] = (0, 0),
        partition: Partition | None = None,
    ) -> None:
        self._device, self._partition = device, partition
        self._launches, self._functions, self._parameters = list(launches), list(functions), parameters
        self._clear = clear
        self._priorities: tuple[int, int] | None = None
        self._graph = device.call("cuGraphCreate", 0)
        self._exec: Any = None
        try:
            self._nodes = [self._add_kernel(number) for number in range(len(launches))]
            self._add_edges(edges)
            self._exec = device.call("cuGraphInstantiate", self._graph, self._flags)
            self._enabled = [True] * len(launches)
            for number in range(len(launches)):
                self._enable(number)
        except BaseException:
            self.close()
            raise

    @property
    def _flags(self) -> int:
        """Flags for instantiation: by default all nodes run with the stream's priority, whatever their own."""
        return _NODE_PRIORITIES if any(launch.priority for launch in self._launches) else 0

    def _add_kernel(self, number: int) -> Any:
        node = self._device.call("cuGraphAddKernelNode", self._graph, None, 0, self._node_parameters(number))
        api = self._device.api
        for name, value in self._attributes(self._launches[number], api.CUkernelNodeAttrValue):
            identity = getattr(api.CUkernelNodeAttrID, f"CU_LAUNCH_ATTRIBUTE_{name}")
            self._device.call("cuGraphKernelNodeSetAttribute", node, identity, value)
        return node

    def _node_parameters(self, number: int) -> Any:
        launch = self._launches[number]
        parameters = self._device.api.CUDA_KERNEL_NODE_PARAMS()
        if self._partition is None:
            parameters.func = self._functions[number]
        else:  # with `func`, the driver ignores the context
            parameters.kern = self._device.api.CUkernel(int(self._functions[number]))
            parameters.ctx = self._partition.context
        parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = (
            launch.blocks if launch.has_blocks else launch.cluster
        )
        parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = launch.block
        parameters.sharedMemBytes = launch.shared_bytes
        parameters.kernelParams = self._parameters[number].address
        return parameters

    def _attributes(self, launch: DeviceLaunch, new_value: Callable[[], Any]) -> list[tuple[str, Any]]:
        """Return names and values of launch attributes; `new_value` makes one, since graph nodes and stream launches
        use different classes.
        """
        found = []
        if launch.cooperative:
            value = new_value()
            value.cooperative = 1
            found.append(("COOPERATIVE", value))
        if launch.cluster != (1, 1, 1):
            value = new_value()
            extent = value.clusterDim
            extent.x, extent.y, extent.z = launch.cluster
            found.append(("CLUSTER_DIMENSION", value))
        if launch.priority:
            value = new_value()
            value.priority = self._priority(launch.priority)
            found.append(("PRIORITY", value))
        return found

    def _priority(self, level: int) -> int:
        """Return the GPU's number for a priority from 0 to MAX_PRIORITY: the higher the priority, the lower its
        number.
        """
        if self._priorities is None:
            self._priorities = self._device.call("cuCtxGetStreamPriorityRange")
        least, greatest = self._priorities
        return int(least) - level * (int(least) - int(greatest)) // MAX_PRIORITY

    def _add_edges(self, edges: Sequence[Edge]) -> None:
        before = [self._nodes[edge.before] for edge in edges]
        after = [self._nodes[edge.after] for edge in edges]
        data = [self._edge_data(edge) for edge in edges]
        if self._clear[1]:
            first = self._add_memset()
            starts = sorted(set(range(len(self._nodes))) - {edge.after for edge in edges})
            before += [first] * len(starts)
            after += [self._nodes[number] for number in starts]
            data += [self._edge_data(Edge(0, 0))] * len(starts)
        if before:
            self._device.call("cuGraphAddDependencies", self._graph, before, after, data, len(before))

    def _edge_data(self, edge: Edge) -> Any:
        api = self._device.api
        data = api.CUgraphEdgeData()
        if edge.kind != "full":
            data.type = int(api.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
            data.from_port = int(getattr(api, f"CU_GRAPH_KERNEL_NODE_PORT_{_PORTS[edge.kind]}"))
        return data

    def _add_memset(self) -> Any:
        parameters = self._device.api.CUDA_MEMSET_NODE_PARAMS()
        parameters.dst, parameters.value, parameters.elementSize = self._clear[0], 0, 4
        parameters.width, parameters.height, parameters.pitch = self._clear[1] // 4, 1, self._clear[1]
        context = self._device.call("cuCtxGetCurrent")
        return self._device.call("cuGraphAddMemsetNode", self._graph, None, 0, parameters, context)

    def relaunch(self, number: int, launch: DeviceLaunch, function: Any) -> bool:
        """Set another grid, or another kernel of the same attributes, to be used from the next `update` on. Returns
        whether anything changed.
        """
        before, self._launches[number] = self._launches[number], launch
        self._functions[number] = function
        return (launch.symbol, launch.grid) != (before.symbol, before.grid)

    def launched(self, number: int) -> DeviceLaunch:
        """Return the launch as it is now."""
        return self._launches[number]

    def update(self, number: int) -> None:
        """Pass a launch's present kernel, grid and pointers to the graph, from the next `launch` on."""
        self._device.call(
            "cuGraphExecKernelNodeSetParams", self._exec, self._nodes[number], self._node_parameters(number)
        )
        self._enable(number)

    def _enable(self, number: int) -> None:
        """Enable a node unless its grid has no blocks, which the driver rejects."""
        enabled = self._launches[number].has_blocks
        if enabled != self._enabled[number]:
            self._device.call("cuGraphNodeSetEnabled", self._exec, self._nodes[number], int(enabled))
            self._enabled[number] = enabled

    def launch(self, stream: int) -> None:
        """Queue all launches."""
        self._device.call("cuGraphLaunch", self._exec, stream)

    def launch_timed(self, stream: int) -> list[float]:
        """Queue the launches one after the other, wait, and return the microseconds between the ends of successive
        launches. Kernels that could run concurrently do not, and each pays for its own launch. Profilers get ranges.
        """
        if self._partition is None:
            return self._launch_timed(stream)
        call = self._device.call
        apart = self._partition.new_stream()  # outside of a graph, it is the stream that says where a kernel runs
        before = call("cuEventCreate", _NO_TIMING)
        try:
            call("cuEventRecord", before, stream)
            call("cuStreamWaitEvent", apart, before, 0)
            return self._launch_timed(apart)
        finally:
            call("cuEventDestroy", before)
            call("cuStreamDestroy", apart)

    def _launch_timed(self, stream: int) -> list[float]:
        if self._clear[1]:
            self._device.call("cuMemsetD8Async", self._clear[0], 0, self._clear[1], stream)
        events: list[Any] = []
        named = ranges()
        try:
            for number in range(len(self._launches) + 1):
                events.append(self._device.call("cuEventCreate", 0))
                self._device.call("cuEventRecord", events[-1], stream)
                if number < len(self._launches) and self._launches[number].has_blocks:
                    with named(self._launches[number].symbol, self._launches[number].origins):
                        self._launch_one(number, stream)
            self._device.call("cuStreamSynchronize", stream)
            pairs = itertools.pairwise(events)
            return [1000 * float(self._device.call("cuEventElapsedTime", start, end)) for start, end in pairs]
        finally:
            for event in events:
                self._device.call("cuEventDestroy", event)

    def _launch_one(self, number: int, stream: int) -> None:
        api, launch = self._device.api, self._launches[number]
        config = api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
        config.sharedMemBytes, config.hStream = launch.shared_bytes, api.CUstream(stream)
        attributes = []
        for name, value in self._attributes(launch, api.CUlaunchAttributeValue):
            attribute = api.CUlaunchAttribute()
            attribute.id = getattr(api.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
            attribute.value = value
            attributes.append(attribute)
        config.attrs, config.numAttrs = attributes, len(attributes)
        address = self._parameters[number].address
        self._device.call("cuLaunchKernelEx", config, self._functions[number], address, 0)

    def close(self) -> None:
        if self._exec is not None:
            self._device.call("cuGraphExecDestroy", self._exec)
        if self._graph is not None:
            self._device.call("cuGraphDestroy", self._graph)
        self._exec = self._graph = None
