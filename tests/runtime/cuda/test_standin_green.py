"""What the stand-in refuses of green contexts and of the kernels that run in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cuda.bindings.driver as api
import pytest

from tests.runtime.cuda.kernels_cu import cubin
from tests.runtime.cuda.standin.child import StandIn
from tests.runtime.cuda.test_standin_rules import KERNELS, Gpu
from tilestitch.runtime.cuda.driver import CudaError
from tilestitch.runtime.cuda.graph import LaunchGraph, Parameters
from tilestitch.runtime.cuda.modules import LibraryCode
from tilestitch.runtime.cuda.partition import Partition
from tilestitch.runtime.program import DeviceLaunch

OnStandIn = Callable[[Callable[[StandIn], Any]], None]
SM = api.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM


def split(gpu: Gpu, groups: int = 16, least: int = 1, flags: int = 0) -> Any:
    """The groups and the remainder."""
    whole = gpu.call("cuDeviceGetDevResource", gpu.device.handle, SM)
    made, count, rest = gpu.call("cuDevSmResourceSplitByCount", groups, whole, flags, least)
    return list(made[:count]), rest


def created(gpu: Gpu, resources: list[Any], flags: int = 1) -> Any:
    description = gpu.call("cuDevResourceGenerateDesc", resources, len(resources))
    return gpu.call("cuGreenCtxCreate", description, gpu.device.handle, flags)


def split_again(gpu: Gpu) -> None:
    gpu.call("cuDevSmResourceSplitByCount", 1, split(gpu)[0][0], 0, 1)


def two_splits(gpu: Gpu) -> None:
    created(gpu, [split(gpu)[0][0], split(gpu)[0][1]])


def overlapping(gpu: Gpu) -> None:
    groups, _ = split(gpu)
    context = created(gpu, groups[:2])
    try:
        created(gpu, groups[1:3])
    finally:
        gpu.call("cuGreenCtxDestroy", context)


def other_kind(gpu: Gpu) -> None:
    gpu.call("cuDeviceGetDevResource", gpu.device.handle, api.CUdevResourceType.CU_DEV_RESOURCE_TYPE_INVALID)


def blocking_stream(gpu: Gpu) -> None:
    context = created(gpu, split(gpu)[0][:1])
    try:
        gpu.call("cuGreenCtxStreamCreate", context, 0, 0)
    finally:
        gpu.call("cuGreenCtxDestroy", context)


def stream_left(gpu: Gpu) -> None:
    context = created(gpu, split(gpu)[0][:1])
    stream = gpu.call("cuGreenCtxStreamCreate", context, 1, 0)
    try:
        gpu.call("cuGreenCtxDestroy", context)
    finally:
        gpu.call("cuStreamDestroy", stream)
        gpu.call("cuGreenCtxDestroy", context)


def stream_of_a_context_that_is_gone(gpu: Gpu) -> None:
    context = created(gpu, split(gpu)[0][:1])
    gpu.call("cuGreenCtxDestroy", context)
    gpu.call("cuGreenCtxStreamCreate", context, 1, 0)


REFUSED: dict[str, tuple[Callable[[Gpu], Any], str, str]] = {
    "another kind of resource": (other_kind, "INVALID_RESOURCE_TYPE", "resource type 0"),
    "a split of a split": (split_again, "INVALID_RESOURCE_CONFIGURATION", "is not split again"),
    "groups of too many": (lambda gpu: split(gpu, 1, 133), "INVALID_VALUE", "groups of 133 of 132"),
    "flags of a split": (lambda gpu: split(gpu, flags=1), "INVALID_VALUE", "flags 1"),
    "resources of two splits": (two_splits, "INVALID_RESOURCE_CONFIGURATION", "of another GPU or split"),
    "a group and the remainder": (
        lambda gpu: created(gpu, [split(gpu)[0][0], split(gpu)[1]]), "INVALID_RESOURCE_CONFIGURATION", "resource 1",
    ),
    "a group twice": (
        lambda gpu: created(gpu, split(gpu)[0][:1] * 2), "INVALID_RESOURCE_CONFIGURATION", "is given twice",
    ),
    "no default stream": (lambda gpu: created(gpu, split(gpu)[0], 0), "INVALID_VALUE", "requires DEFAULT_STREAM"),
    "multiprocessors of another": (overlapping, "INVALID_VALUE", "multiprocessor 8 is another green context's"),
    "a blocking stream": (blocking_stream, "INVALID_VALUE", "NON_BLOCKING must be given"),
    "a stream that is left": (stream_left, "INVALID_VALUE", "was not destroyed, and would leak"),
    "a stream of nothing": (stream_of_a_context_that_is_gone, "INVALID_CONTEXT", "no live green context"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_resources_and_contexts(on_standin: OnStandIn, name: str) -> None:
    make, status, reason = REFUSED[name]

    def work(stand_in: StandIn) -> None:
        gpu = Gpu()
        with pytest.raises(CudaError) as caught:
            make(gpu)
        assert caught.value.status == f"CUDA_ERROR_{status}", stand_in.last_reason()
        if name != "a stream that is left":  # another call follows that one
            assert reason in stand_in.last_reason()
        gpu.close()
        del gpu, caught

    on_standin(work)


@pytest.mark.parametrize(("least", "each", "count"), [(0, 8, 16), (1, 8, 16), (9, 16, 8), (40, 40, 3), (132, 136, 0)])
def test_sizes_of_groups(on_standin: OnStandIn, least: int, each: int, count: int) -> None:
    def work(stand_in: StandIn) -> None:
        gpu = Gpu()
        groups, rest = split(gpu, 132, least)
        assert [int(group.sm.smCount) for group in groups] == [each] * count
        assert int(rest.sm.smCount) == 132 - each * count
        gpu.close()

    on_standin(work)


@contextmanager
def on_partition(gpu: Gpu, multiprocessors: int = 8) -> Iterator[tuple[Partition, LibraryCode, Any]]:
    code = LibraryCode(gpu.device)
    library = code.load(cubin(KERNELS))
    with Partition(gpu.device, multiprocessors) as partition:
        try:
            yield partition, code, library
        finally:
            code.unload(library)


def launched(gpu: Gpu, function: Any, partition: Any, **more: Any) -> None:
    parameters = Parameters(2)
    parameters.pointers[:] = gpu.memory
    grid = more.pop("grid", (1, 1, 1))
    one = DeviceLaunch("increment", grid, (32, 1, 1), 0, (), **more)
    graph = LaunchGraph(gpu.device, [one], [], [function], [parameters], partition=partition)
    try:
        graph.launch(gpu.stream)
        graph.launch_timed(gpu.stream)
        gpu.call("cuStreamSynchronize", gpu.stream)
    finally:
        graph.close()


LAUNCHES: dict[str, tuple[bool, dict[str, Any], str, str]] = {
    "as many blocks as it holds": (True, {"grid": (8 * 32, 1, 1), "cooperative": True}, "", ""),
    "more blocks than it holds": (
        True, {"grid": (8 * 32 + 1, 1, 1), "cooperative": True}, "COOPERATIVE_LAUNCH_TOO_LARGE",
        "8 multiprocessors hold 256",
    ),
    "clusters that may lie apart": (
        True, {"grid": (16, 1, 1), "cluster": (16, 1, 1)}, "INVALID_CLUSTER_SIZE", "may not fit",
    ),
    "a function of a module": (False, {}, "INVALID_HANDLE", "kern a library's kernel"),
}  # fmt: skip


@pytest.mark.parametrize("name", LAUNCHES)
def test_launches(on_standin: OnStandIn, name: str) -> None:
    of_library, more, status, reason = LAUNCHES[name]

    def work(stand_in: StandIn) -> None:
        gpu = Gpu()
        with on_partition(gpu) as (partition, code, library):
            function = code.find(library, b"increment") if of_library else gpu.function("increment")
            if "cluster" in more:
                code.set(function, api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
            if not status:
                launched(gpu, function, partition, **more)
                assert stand_in.widths() == [8]
            else:
                with pytest.raises(CudaError) as caught:
                    launched(gpu, function, partition, **more)
                assert caught.value.status == f"CUDA_ERROR_{status}"
                assert reason in stand_in.last_reason()
                del caught
        gpu.close()

    on_standin(work)


def test_a_library_outlives_its_graphs_and_a_context_too(on_standin: OnStandIn) -> None:
    def work(stand_in: StandIn) -> None:
        gpu = Gpu()
        with on_partition(gpu) as (partition, code, library):
            parameters = Parameters(2)
            parameters.pointers[:] = gpu.memory
            one = DeviceLaunch("increment", (1, 1, 1), (32, 1, 1), 0, ())
            function = code.find(library, b"increment")
            graph = LaunchGraph(gpu.device, [one], [], [function], [parameters], partition=partition)
            with pytest.raises(CudaError, match="INVALID_HANDLE"):
                code.unload(library)
            with pytest.raises(CudaError, match="INVALID_VALUE"):
                gpu.call("cuGreenCtxDestroy", partition._green)
            assert "a graph has kernels that run in it" in stand_in.last_reason()
            graph.close()
        gpu.close()

    on_standin(work)


def test_a_function_of_the_primary_context_in_a_stream_of_a_green_one(on_standin: OnStandIn) -> None:
    def work(stand_in: StandIn) -> None:
        gpu = Gpu()
        parameters = Parameters(2)
        parameters.pointers[:] = gpu.memory
        with Partition(gpu.device, 8) as partition:
            stream = partition.new_stream()
            with pytest.raises(CudaError, match="INVALID_CONTEXT"):
                gpu.call(
                    "cuLaunchKernel", gpu.function("increment"), 1, 1, 1, 32, 1, 1, 0, stream, parameters.address, 0
                )
            gpu.call("cuStreamDestroy", stream)
        gpu.close()

    on_standin(work)
