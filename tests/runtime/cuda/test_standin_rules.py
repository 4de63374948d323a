"""The stand-in refuses what a driver refuses, and finds what a GPU would do wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import cuda.bindings.driver as api
import numpy as np
import pytest

from tests.runtime.cuda.kernels_cu import cubin
from tests.runtime.cuda.standin.child import StandIn
from tilestitch.runtime.buffers import aligned_bytes
from tilestitch.runtime.cuda import tensor_maps
from tilestitch.runtime.cuda.driver import Allocation, CudaError, Device, host_address, load_driver
from tilestitch.runtime.cuda.graph import LaunchGraph, Parameters
from tilestitch.runtime.program import DeviceLaunch, Edge

OnStandIn = Callable[[Callable[[StandIn], Any]], None]
Work = Callable[["Gpu"], Any]
KERNELS = frozenset({"increment", "add", "mapped", "banded", "narrow", "paired"})


class Gpu:
    """GPU 0, its context current, with the kernels of `kernels_cu` and 4 KiB at `memory`."""

    def __init__(self) -> None:
        self.device = Device(load_driver(), 0)
        self.device.enter()
        self.call = self.device.call
        self.module = self.call("cuModuleLoadData", cubin(KERNELS))
        self.allocation = Allocation(self.device, 4096, "a test")
        self.memory = self.allocation.address
        self.stream = self.call("cuStreamCreate", 1)  # CU_STREAM_NON_BLOCKING

    def function(self, symbol: str) -> Any:
        return self.call("cuModuleGetFunction", self.module, symbol.encode())

    def launch(self, symbol: str = "increment", grid: Any = (1, 1, 1), block: Any = (32, 1, 1), **more: Any) -> None:
        pointers, shared_bytes = more.pop("pointers", None), more.pop("shared_bytes", 0)
        with self.graph([DeviceLaunch(symbol, grid, block, shared_bytes, (), **more)], pointers) as graph:
            graph.launch(self.stream)
            self.call("cuStreamSynchronize", self.stream)

    @contextmanager
    def graph(self, launches: Any, pointers: Any = None, edges: Any = (), clear: Any = (0, 0)) -> Iterator[LaunchGraph]:
        parameters = [Parameters(2) for _ in launches]
        for each in parameters:
            each.pointers[:] = (self.memory, self.memory) if pointers is None else pointers
        functions = [self.function(launch.symbol) for launch in launches]
        graph = LaunchGraph(self.device, launches, edges, functions, parameters, clear)
        try:
            yield graph
        finally:
            graph.close()

    def close(self) -> None:
        self.allocation.close()
        self.call("cuStreamDestroy", self.stream)
        self.call("cuModuleUnload", self.module)
        self.device.leave()


def refused(work: Work, status: str, reason: str) -> Callable[[StandIn], None]:
    """That `work` is refused with the driver's status, for this reason, and nothing is left of it."""

    def check(stand_in: StandIn) -> None:
        gpu = Gpu()
        with pytest.raises(CudaError) as caught:
            work(gpu)
        assert caught.value.status == f"CUDA_ERROR_{status}", stand_in.last_reason()
        assert reason in stand_in.last_reason()
        if not status.endswith("_ADDRESS"):
            gpu.close()
            del gpu, caught
            assert stand_in.leaks() == ""

    return check


LAUNCHES: dict[str, tuple[dict[str, Any], str, str]] = {
    "a grid too high": ({"grid": (1, 65536, 1)}, "INVALID_VALUE", "a grid of 1 x 65536"),
    "a block too large": ({"block": (1024, 2, 1)}, "INVALID_VALUE", "a block of 1024 x 2"),
    "a block too deep": ({"block": (1, 1, 65)}, "INVALID_VALUE", "a block of 1 x 1 x 65"),
    "a block above the launch bounds": ({"symbol": "narrow", "block": (96, 1, 1)}, "INVALID_VALUE", "compiled for 64"),
    "too much shared memory": ({"symbol": "banded", "shared_bytes": 49152}, "INVALID_VALUE", "128 are static"),
    "a cluster that is not portable": (
        {"cluster": (16, 1, 1), "grid": (16, 1, 1)}, "INVALID_CLUSTER_SIZE", "a cluster of 16 blocks, of 8",
    ),
    "a cluster that does not divide the grid": (
        {"cluster": (2, 1, 1), "grid": (3, 1, 1)}, "INVALID_VALUE", "does not divide the grid",
    ),
    "another cluster than compiled for": (
        {"symbol": "paired", "cluster": (4, 1, 1), "grid": (4, 1, 1)}, "INVALID_CLUSTER_SIZE", "another cluster",
    ),
    "a grid that the compiled cluster does not divide": (
        {"symbol": "paired", "grid": (3, 1, 1)}, "INVALID_VALUE", "does not divide the grid",
    ),
    "more blocks than are resident": (
        {"grid": (132 * 32 + 1, 1, 1), "cooperative": True}, "COOPERATIVE_LAUNCH_TOO_LARGE",
        "132 multiprocessors hold 4224",
    ),
    "clusters that wait for each other": (
        {"cluster": (2, 1, 1), "grid": (2, 1, 1), "cooperative": True}, "NOT_SUPPORTED", "launches of clusters",
    ),
    "a pointer to nowhere": ({"pointers": (4096, 4096)}, "ILLEGAL_ADDRESS", "a kernel failed"),
}  # fmt: skip


@pytest.mark.parametrize("what", LAUNCHES)
def test_launches(on_standin: OnStandIn, what: str) -> None:
    arguments, status, reason = LAUNCHES[what]
    on_standin(leaking(refused(lambda gpu: gpu.launch(**arguments), status, reason), status))


def test_a_pointer_that_a_vector_cannot_begin_at(on_standin: OnStandIn) -> None:
    def work(gpu: Gpu) -> None:
        gpu.launch(pointers=(gpu.memory, gpu.memory + 4))

    check = refused(work, "MISALIGNED_ADDRESS", "a kernel failed")
    on_standin(leaking(check, "MISALIGNED_ADDRESS"))


def leaking(check: Callable[[StandIn], None], status: str) -> Callable[[StandIn], None]:
    """A context that a fault broke cannot give anything back."""

    def run(stand_in: StandIn) -> None:
        check(stand_in)
        if status.endswith("_ADDRESS"):
            stand_in.forget()

    return run


def test_as_many_blocks_as_are_resident(on_standin: OnStandIn) -> None:
    on_standin(lambda _: using(lambda gpu: gpu.launch(grid=(132 * 32, 1, 1), cooperative=True)))


def using(work: Work) -> None:
    gpu = Gpu()
    work(gpu)
    gpu.close()


def test_fewer_parameters_than_the_kernel_has(on_standin: OnStandIn) -> None:
    def work(gpu: Gpu) -> None:
        gpu.call("cuLaunchKernel", gpu.function("add"), 1, 1, 1, 32, 1, 1, 0, gpu.stream, 0, 0)

    on_standin(refused(work, "INVALID_VALUE", "add has 3 parameters; number 0 cannot be read"))


def test_a_tensor_map_that_was_not_encoded(on_standin: OnStandIn) -> None:
    def work(gpu: Gpu) -> None:
        raw = aligned_bytes(128, np.zeros(128, np.uint8))
        table = np.array([host_address(raw), host_address(np.array([gpu.memory], np.uint64))], np.uint64)
        gpu.call("cuLaunchKernel", gpu.function("mapped"), 1, 1, 1, 32, 1, 1, 0, gpu.stream, host_address(table), 0)
        gpu.call("cuStreamSynchronize", gpu.stream)

    def check(stand_in: StandIn) -> None:
        with pytest.raises(CudaError, match="CUDA_ERROR_ILLEGAL_INSTRUCTION"):
            work(Gpu())
        stand_in.forget()

    on_standin(check)


MAPS: dict[str, tuple[dict[str, Any], str]] = {
    "a map at a multiple of 32": ({"at": 32}, "which is no multiple of 64"),
    "a tensor at a multiple of 8": ({"offset": 8}, "which is no multiple of 16"),
    "no dimension": ({"rank": 0}, "rank 0"),
    "six dimensions": ({"rank": 6}, "rank 6"),
    "an empty dimension": ({"dims": [0, 4]}, "dimension 0 is 0"),
    "a dimension too large": ({"dims": [64, 2**31 + 1]}, "dimension 1 is 2147483649"),
    "a stride of odd bytes": ({"strides": [24]}, "stride 0 is 24"),
    "a stride too large": ({"strides": [2**40]}, "stride 0 is 1099511627776"),
    "an empty box": ({"box": [0, 4]}, "the box has 0"),
    "a box too large": ({"box": [64, 257]}, "the box has 257"),
    "an element stride of nothing": ({"steps": [1, 0]}, "element stride 1 is 0"),
    "an element stride too large": ({"steps": [1, 9]}, "element stride 1 is 9"),
    "a row of odd bytes": ({"box": [3, 4]}, "a row of the box has 12 bytes"),
    "a row wider than the swizzle": ({"swizzle": 3, "box": [64, 4]}, "a row of the box has 256 bytes"),
    "NaN among integers": ({"dtype": 2, "fill": 1}, "fill 1 of data type 2"),
    "an unknown data type": ({"dtype": 99}, "data type 99"),
}


def encode(gpu: Gpu, **changes: Any) -> None:
    """A map of float32 [4, 64] in boxes of [4, 32], with changes."""
    given: dict[str, Any] = {
        "at": 0, "offset": 0, "rank": 2, "dims": [64, 4], "strides": [256], "box": [32, 4], "steps": [1, 1],
        "swizzle": 0, "dtype": 7, "fill": 0, **changes,
    }  # fmt: skip
    raw = aligned_bytes(256)
    wide = [np.array(given[name], np.uint64) for name in ("dims", "strides")]
    narrow = [np.array(given[name], np.uint32) for name in ("box", "steps")]
    function = gpu.call.entry("cuTensorMapEncodeTiled", 12000, tensor_maps._Encode)
    status = function(
        host_address(raw) + given["at"], given["dtype"], given["rank"], gpu.memory + given["offset"],
        *map(host_address, (*wide, *narrow)), 0, given["swizzle"], 0, given["fill"],
    )  # fmt: skip
    if status:
        raise CudaError("cuTensorMapEncodeTiled", api.CUresult(status).name)


@pytest.mark.parametrize("what", MAPS)
def test_tensor_maps(on_standin: OnStandIn, what: str) -> None:
    changes, reason = MAPS[what]
    on_standin(refused(lambda gpu: encode(gpu, **changes), "INVALID_VALUE", reason))


def test_a_tensor_map_as_it_should_be(on_standin: OnStandIn) -> None:
    on_standin(lambda _: using(encode))


ONE = DeviceLaunch("increment", (1, 1, 1), (32, 1, 1), 0, ())
GRAPHS: dict[str, tuple[tuple[Edge, ...], tuple[int, int], str]] = {
    "edges in a circle": ((Edge(0, 1), Edge(1, 0)), (0, 0), "go round in a circle"),
    "an edge twice": ((Edge(0, 1), Edge(0, 1, "programmatic")), (0, 0), "there already"),
    "an edge to itself": ((Edge(1, 1),), (0, 0), "an edge within no graph"),
}


@pytest.mark.parametrize("what", GRAPHS)
def test_graphs(on_standin: OnStandIn, what: str) -> None:
    edges, _, reason = GRAPHS[what]

    def work(gpu: Gpu) -> None:
        with gpu.graph([ONE, ONE], edges=edges):
            pass

    on_standin(refused(work, "INVALID_VALUE", reason))


def test_priorities_that_the_graph_is_not_asked_to_use(on_standin: OnStandIn) -> None:
    """The driver takes them and runs all nodes with the priority of the stream."""

    def work(gpu: Gpu) -> None:
        with gpu.graph([ONE, replace(ONE, priority=5)]) as graph:
            gpu.call("cuGraphInstantiate", graph._graph, 0)

    on_standin(refused(work, "INVALID_VALUE", "a node has a priority, which the graph is not asked to use"))


def test_an_empty_grid(on_standin: OnStandIn) -> None:
    """As a launch of a graph it is left out; a driver that is given one refuses it, when a node changes too."""

    def work(gpu: Gpu) -> None:
        with gpu.graph([replace(ONE, grid=(0, 1, 1)), ONE]) as graph:
            graph.launch(gpu.stream)
            gpu.call("cuStreamSynchronize", gpu.stream)
            parameters = graph._node_parameters(1)
            parameters.gridDimX = 0
            gpu.call("cuGraphExecKernelNodeSetParams", graph._exec, graph._nodes[1], parameters)

    on_standin(refused(work, "INVALID_VALUE", "a grid of 0 x 1 x 1"))


def test_a_programmatic_edge_from_a_memset(on_standin: OnStandIn) -> None:
    def work(gpu: Gpu) -> None:
        with gpu.graph([ONE], clear=(gpu.memory, 4)) as graph:
            data = graph._edge_data(Edge(0, 0, "programmatic"))
            memset = graph._add_memset()
            gpu.call("cuGraphAddDependencies", graph._graph, [memset], [graph._nodes[0]], [data], 1)

    on_standin(refused(work, "INVALID_VALUE", "a programmatic edge of no kernel"))


def test_kernels_are_unloaded_after_their_graphs(on_standin: OnStandIn) -> None:
    def work(gpu: Gpu) -> None:
        with gpu.graph([ONE]):
            gpu.call("cuModuleUnload", gpu.module)

    on_standin(refused(work, "INVALID_HANDLE", "a graph launches kernels of the module"))


def test_kernels_are_unloaded_after_their_launches(on_standin: OnStandIn) -> None:
    """The driver takes it; a GPU that has not begun yet runs what is no code any more."""

    def check(stand_in: StandIn) -> None:
        gpu = Gpu()
        with gpu.graph([ONE]) as graph:
            graph.launch(gpu.stream)
        gpu.call("cuModuleUnload", gpu.module)
        with pytest.raises(CudaError, match="CUDA_ERROR_INVALID_HANDLE"):
            gpu.call("cuStreamSynchronize", gpu.stream)
        stand_in.forget()

    on_standin(check)


CALLS: dict[str, tuple[Work, str, str]] = {
    "memory is freed once": (lambda gpu: [gpu.call("cuMemFree", gpu.memory + 16)], "INVALID_VALUE", "not the address"),
    "a copy beyond the end": (
        lambda gpu: gpu.call("cuMemcpyHtoD", gpu.memory + 4000, host_address(np.zeros(97, np.uint8)), 97),
        "INVALID_VALUE", "go beyond the allocation's 4096",
    ),
    "memory of another kind": (
        lambda gpu: gpu.call("cuMemFreeAsync", gpu.memory, gpu.stream), "INVALID_VALUE", "memory of cuMemAlloc",
    ),
    "a stream that is not there": (
        lambda gpu: gpu.call("cuStreamSynchronize", 123456), "INVALID_HANDLE", "is no live stream",
    ),
    "an unknown kernel": (lambda gpu: gpu.function("nothing"), "NOT_FOUND", "no kernel nothing"),
    "no machine code": (lambda gpu: gpu.call("cuModuleLoadData", b"nothing at all\0"), "INVALID_IMAGE", "no cubin"),
    "more shared memory than there is": (
        lambda gpu: gpu.call(
            "cuFuncSetAttribute", gpu.function("banded"),
            api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232448,
        ),
        "INVALID_VALUE", "232448 dynamic and 128 static",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CALLS)
def test_calls(on_standin: OnStandIn, what: str) -> None:
    on_standin(refused(*CALLS[what]))


def in_pool(gpu: Gpu) -> int:
    return int(gpu.call("cuMemAllocFromPoolAsync", 4096, gpu.device.pool, gpu.stream))


def test_memory_is_used_after_its_allocation_in_stream_order(on_standin: OnStandIn) -> None:
    def work(gpu: Gpu) -> None:
        address, other = in_pool(gpu), gpu.call("cuStreamCreate", 1)
        gpu.call("cuMemsetD8Async", address, 0, 16, other)
        gpu.call("cuStreamSynchronize", other)

    on_standin(leaking(refused(work, "ILLEGAL_ADDRESS", "a kernel failed"), "ILLEGAL_ADDRESS"))


def test_memory_is_freed_after_its_uses_in_stream_order(on_standin: OnStandIn) -> None:
    def work(gpu: Gpu) -> None:
        address, other = in_pool(gpu), gpu.call("cuStreamCreate", 1)
        gpu.call("cuStreamSynchronize", gpu.stream)
        gpu.call("cuMemsetD8Async", address, 0, 16, other)
        try:
            gpu.call("cuMemFreeAsync", address, gpu.stream)
        finally:
            gpu.call("cuStreamSynchronize", other)
            gpu.call("cuStreamDestroy", other)
            gpu.call("cuMemFreeAsync", address, gpu.stream)

    on_standin(refused(work, "INVALID_VALUE", "work on"))


def test_a_wait_that_is_missing_shows(on_standin: OnStandIn) -> None:
    """What another stream writes is not there until it is waited for."""

    def work(gpu: Gpu) -> None:
        other, result = gpu.call("cuStreamCreate", 1), np.zeros(16, np.uint8)
        gpu.call("cuMemsetD8Async", gpu.memory, 7, 16, other)
        gpu.call("cuMemcpyDtoHAsync", host_address(result), gpu.memory, 16, gpu.stream)
        assert not (result == 7).any()
        event = gpu.call("cuEventCreate", 2)
        gpu.call("cuEventRecord", event, other)
        gpu.call("cuStreamWaitEvent", gpu.stream, event, 0)
        gpu.call("cuMemcpyDtoHAsync", host_address(result), gpu.memory, 16, gpu.stream)
        assert (result == 7).all()
        gpu.call("cuEventDestroy", event)
        gpu.call("cuStreamDestroy", other)

    on_standin(lambda _: using(work))


def test_a_context_is_current_in_one_thread(on_standin: OnStandIn) -> None:
    def work(gpu: Gpu) -> None:
        errors: list[str] = []

        def elsewhere() -> None:
            try:
                gpu.call("cuCtxSynchronize")
            except CudaError as error:
                errors.append(error.status)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert errors == ["CUDA_ERROR_INVALID_CONTEXT"]

    on_standin(lambda _: using(work))


def test_a_broken_context_is_of_no_use(on_standin: OnStandIn) -> None:
    def check(stand_in: StandIn) -> None:
        gpu = Gpu()
        for work in (lambda: gpu.launch(pointers=(0, 0)), lambda: gpu.call("cuMemAlloc", 16)):
            with pytest.raises(CudaError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
                work()
        stand_in.forget()

    on_standin(check)


def test_what_is_not_given_back_is_named(on_standin: OnStandIn) -> None:
    def check(stand_in: StandIn) -> None:
        gpu = Gpu()
        assert stand_in.leaks() == "1 allocations, 1 contexts left current, 1 modules, 1 retained contexts, 1 streams"
        gpu.close()

    on_standin(check)


def test_an_unknown_function_says_so(on_standin: OnStandIn) -> None:
    def check(stand_in: StandIn) -> None:
        using(lambda gpu: None)
        with pytest.raises(RuntimeError, match="cuArrayCreate_v2 is not found"):
            api.cuArrayCreate(api.CUDA_ARRAY_DESCRIPTOR())

    on_standin(check)
