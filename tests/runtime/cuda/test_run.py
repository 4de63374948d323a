"""Running on a GPU: inputs and outputs on either side, steps on either side, one graph launch a device step."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import cuda.bindings.driver as real
import numpy as np
import pytest

from tests.runtime.cuda.artifacts import (
    FLOAT4,
    W,
    launch,
    loop_program,
    module,
    pick_program,
    split_program,
    sum_program,
    write,
)
from tests.runtime.cuda.fake_driver import GPU, FakeDriver, view
from tests.runtime.signed import plain
from tilestitch.runtime import load
from tilestitch.runtime.cuda.array import DeviceArray
from tilestitch.runtime.errors import ExecutionError, InputError
from tilestitch.runtime.program import Arg, Constant, DeviceStep, Edge, Input, Program, Status, TensorType, ValueSpec
from tilestitch.runtime.tensor_map import TensorMap

X = np.arange(4, dtype=np.float32)


class Interface:
    """An array of another library, with `__cuda_array_interface__` only."""

    def __init__(self, array: DeviceArray, **changes: Any) -> None:
        self.keep = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **changes}


def test_host_arrays_are_copied_and_one_graph_is_launched(fake: FakeDriver, tmp_path: Path) -> None:
    with module(tmp_path, sum_program()) as loaded:
        for scale in (1, 2):
            fake.calls.clear()
            np.testing.assert_array_equal(loaded(X * scale)["u"], X * scale + 1 + W)
        assert len(fake.named("cuGraphLaunch")) == 1
        assert len(fake.named("cuMemcpyHtoDAsync")) == 1
        assert fake.named("cuGraphExecKernelNodeSetParams") == []
        assert fake.named("cuMemAlloc") == []


def test_nothing_is_allocated_twice(fake: FakeDriver, tmp_path: Path) -> None:
    """One allocation for the weights, one for everything else."""
    with module(tmp_path, sum_program()) as loaded:
        loaded(X)
        assert len(fake.named("cuMemAlloc")) == 2


def test_arrays_on_the_gpu_are_used_in_place(fake: FakeDriver, tmp_path: Path) -> None:
    with module(tmp_path, sum_program()) as loaded:
        first = loaded.run({"x": X}, on_device=True)["u"]
        assert isinstance(first, DeviceArray)
        fake.calls.clear()
        second = loaded.run({"x": first}, on_device=True)["u"]
        assert (
            fake.named("cuMemcpyHtoDAsync") == fake.named("cuMemcpyDtoHAsync") == fake.named("cuMemcpyDtoDAsync") == []
        )
        assert len(fake.named("cuGraphExecKernelNodeSetParams")) == 2
        np.testing.assert_array_equal(first.numpy(), X + 1 + W)
        np.testing.assert_array_equal(second.numpy(), X + 2 + 2 * W)
        np.testing.assert_array_equal(loaded(X)["u"], X + 1 + W)
        del first, second
        gc.collect()


def test_arrays_of_other_libraries_on_the_gpu(fake: FakeDriver, tmp_path: Path) -> None:
    with module(tmp_path, sum_program()) as loaded:
        array = loaded.run({"x": X}, on_device=True)["u"]
        fake.calls.clear()
        np.testing.assert_array_equal(loaded(Interface(array))["u"], X + 2 + 2 * W)
        assert fake.named("cuMemcpyHtoDAsync") == []


def test_work_in_another_stream_is_waited_for(fake: FakeDriver, tmp_path: Path) -> None:
    with module(tmp_path, sum_program()) as loaded:
        array = loaded.run({"x": X}, on_device=True)["u"]
        fake.calls.clear()
        loaded(Interface(array, stream=1_000_007))
        (recorded, *_), (waited, *_) = fake.named("cuEventRecord"), fake.named("cuStreamWaitEvent")
        assert recorded[1] == 1_000_007
        assert recorded[0] == waited[1]


def test_outputs_into_given_arrays(fake: FakeDriver, tmp_path: Path) -> None:
    with module(tmp_path, sum_program()) as loaded:
        on_host = np.zeros(4, np.float32)
        assert loaded.run({"x": X}, out={"u": on_host})["u"] is on_host
        np.testing.assert_array_equal(on_host, X + 1 + W)
        there = loaded.run({"x": X}, on_device=True)["u"]
        outer = Interface(there)
        assert loaded.run({"x": X + 5}, out={"u": outer})["u"] is outer
        np.testing.assert_array_equal(there.numpy(), X + 6 + W)


def test_an_output_array_that_is_an_input_too(fake: FakeDriver, tmp_path: Path) -> None:
    """The kernels would write to what they still read: the result is copied afterwards."""
    with module(tmp_path, sum_program()) as loaded:
        array = loaded.run({"x": X}, on_device=True)["u"]
        fake.calls.clear()
        loaded.run({"x": array}, out={"u": array})
        np.testing.assert_array_equal(array.numpy(), X + 2 + 2 * W)
        assert len(fake.named("cuMemcpyDtoDAsync")) == 1


def test_host_steps_split_the_graph(fake: FakeDriver, tmp_path: Path) -> None:
    with module(tmp_path, split_program()) as loaded:
        outputs = loaded(X)
        np.testing.assert_array_equal(outputs["z"], 2 * (X + 1) + 1)
        np.testing.assert_array_equal(outputs["y"], X + 1)
        np.testing.assert_array_equal(outputs["x_again"], X)
        assert len(fake.named("cuGraphLaunch")) == 2


def test_outputs_on_the_gpu_belong_to_the_caller(fake: FakeDriver, tmp_path: Path) -> None:
    """Also those in the arena, and inputs that are outputs."""
    with module(tmp_path, split_program()) as loaded:
        outputs = loaded.run({"x": X}, on_device=True)
        loaded(X + 100)
        assert {name: array.numpy().tolist() for name, array in outputs.items()} == {
            "z": [3, 5, 7, 9],
            "y": [1, 2, 3, 4],
            "x_again": [0, 1, 2, 3],
        }
        addresses = {array.address for array in outputs.values()}
        assert len(addresses) == 3
        del outputs


def test_arrays_outlive_their_module(fake: FakeDriver, tmp_path: Path) -> None:
    loaded = module(tmp_path, sum_program())
    array = loaded.run({"x": X}, on_device=True)["u"]
    loaded.close()
    np.testing.assert_array_equal(array.numpy(), X + 1 + W)


@pytest.mark.parametrize("has_pools", [True, False])
def test_results_come_from_a_pool_where_the_gpu_has_one(fake: FakeDriver, tmp_path: Path, has_pools: bool) -> None:
    fake.gpus[0].has_pools = has_pools
    with module(tmp_path, sum_program()) as loaded:
        array = loaded.run({"x": X}, on_device=True)["u"]
        assert len(fake.named("cuMemAllocFromPoolAsync")) == has_pools
        np.testing.assert_array_equal(array.numpy(), X + 1 + W)
        del array
        assert len(fake.named("cuMemFreeAsync")) == has_pools


def test_loops_run_device_steps_in_their_bodies(fake: FakeDriver, tmp_path: Path) -> None:
    with module(tmp_path, loop_program(3), weights={"trips": np.array(3)}) as loaded:
        np.testing.assert_array_equal(loaded(X)["y"], X + 3)


def test_faults_name_the_onnx_node_and_leave_the_module_usable(fake: FakeDriver, tmp_path: Path) -> None:
    with module(tmp_path, pick_program(), weights={}) as loaded:
        with pytest.raises(ExecutionError, match="gather_7: index is negative; check"):
            loaded(X, np.array([0, -1, 2, 3]))
        with pytest.raises(ExecutionError, match="index is too large"):
            loaded(X, np.array([0, 1, 2, 4]))
        np.testing.assert_array_equal(loaded(X, np.array([3, 2, 1, 0]))["y"], X[::-1])


def test_every_launch_has_a_status_of_its_own_where_a_vector_may_begin(fake: FakeDriver, tmp_path: Path) -> None:
    indices = TensorType("int64", (4,))
    values = (
        ValueSpec("x", FLOAT4, Input(0)), ValueSpec("i", indices, Input(1)), ValueSpec("j", indices, Input(2)),
        ValueSpec("y", FLOAT4), ValueSpec("z", FLOAT4), ValueSpec("status", TensorType("int32", ()), Status()),
    )  # fmt: skip
    picks = (
        launch("pick", 0, 1, 3, 5, origins=("first",), faults=("index is negative", "index is too large")),
        launch("pick", 3, 2, 4, 5, origins=("second",), faults=("index is negative", "index is too large")),
    )
    with module(tmp_path, Program("p", (0, 1, 2), (4,), values, (DeviceStep(picks),)), weights={}) as loaded:
        order = np.array([3, 2, 1, 0])
        with pytest.raises(ExecutionError, match="second: index is too large"):
            loaded(X, order, order + 1)
        np.testing.assert_array_equal(loaded(X, order, order)["z"], X)
        ((first, second, _),) = fake.graphs()
        assert first.pointers[3] != second.pointers[3]
        assert all(pointer % 16 == 0 for pointer in (*first.pointers, *second.pointers))


def test_the_status_is_cleared_before_any_launch(fake: FakeDriver, tmp_path: Path) -> None:
    with module(tmp_path, pick_program(), weights={}) as loaded:
        loaded(X, np.array([0, 1, 2, 3]))
        ((kernel, memset),) = fake.graphs()
        assert memset.parameters is None
        assert len(kernel.before) == 1


def test_constants_are_found_by_offset(fake: FakeDriver, tmp_path: Path) -> None:
    values = (
        ValueSpec("x", FLOAT4, Input(0)),
        ValueSpec("w", TensorType("float32", (8,)), Constant("w", 16)),
        ValueSpec("y", FLOAT4),
    )
    program = Program("p", (0,), (2,), values, (DeviceStep((launch("add", 0, Arg(1, 16), 2),)),))
    weights = np.arange(20, dtype=np.float32)
    with module(tmp_path, program, weights={"w": weights}) as loaded:
        np.testing.assert_array_equal(loaded(X)["y"], X + weights[8:12])


def test_edges_order_the_launches(fake: FakeDriver, tmp_path: Path) -> None:
    """Two branches that meet: the graph has their edges with type and port, and no others."""
    values = tuple(ValueSpec(name, FLOAT4, Input(0)) if name == "x" else ValueSpec(name, FLOAT4) for name in "xabc")
    launches = (launch("increment", 0, 1), launch("increment", 0, 2), launch("add", 1, 2, 3))
    edges = (Edge(0, 2, "programmatic"), Edge(1, 2, "launch_order"))
    with module(tmp_path, Program("p", (0,), (3,), values, (DeviceStep(launches, edges),))) as loaded:
        np.testing.assert_array_equal(loaded(X)["c"], 2 * X + 2)
        ((_, _, last),) = fake.graphs()
        assert [edge[1:] for edge in last.before] == [(1, 1), (1, 2)]


def test_launch_attributes(fake: FakeDriver, tmp_path: Path) -> None:
    values = (ValueSpec("x", FLOAT4, Input(0)), ValueSpec("y", FLOAT4), ValueSpec("z", FLOAT4))
    clustered = launch("increment", 0, 1, cluster=(2, 1, 1), shared_bytes=100_000)
    waiting = launch("add", 0, 1, 2, cooperative=True)
    with module(tmp_path, Program("p", (0,), (2,), values, (DeviceStep((clustered, waiting)),))) as loaded:
        loaded(X)
        ((first, second),) = fake.graphs()
        extent = first.attributes["CLUSTER_DIMENSION"].clusterDim
        assert (extent.x, extent.y, extent.z) == (2, 1, 1)
        assert second.attributes["COOPERATIVE"].cooperative == 1
        assert [arguments[2] for arguments in fake.named("cuFuncSetAttribute")] == [100_000]
        loaded.profile({"x": X})
        assert [config.numAttrs for config, *_ in fake.named("cuLaunchKernelEx")] == [1, 1]


def test_a_stream_of_the_user(fake: FakeDriver, tmp_path: Path) -> None:
    class Stream:
        cuda_stream = 1_000_001

    with module(tmp_path, sum_program()) as loaded:
        x = loaded.run({"x": X}, on_device=True)["u"]
        fake.calls.clear()
        result = loaded.run({"x": x}, stream=Stream(), on_device=True)["u"]
        assert fake.named("cuGraphLaunch")[0][1] == 1_000_001
        assert fake.named("cuStreamSynchronize") == []
        assert result.queued_in == 1_000_001
        assert result.__cuda_array_interface__["stream"] == 1_000_001
        loaded.run({"x": x})
        assert fake.named("cuStreamWaitEvent")[-1][0] != 1_000_001, "the own stream waits for the user's"
        with pytest.raises(InputError, match="give a CUDA stream's handle"):
            loaded.run({"x": x}, stream="fast")


def test_two_gpus(fake: FakeDriver, tmp_path: Path) -> None:
    fake.gpus.append(GPU())
    fake._retained.append(0)
    path = write(tmp_path / "m.tsm", sum_program())
    with load(path, device="cuda:0") as first, load(path, device="cuda:1") as second:
        there = first.run({"x": X}, on_device=True)["u"]
        np.testing.assert_array_equal(second(X)["u"], first(X)["u"])
        for foreign in (there, Interface(there)):
            with pytest.raises(InputError, match=r"copy it there first"):
                second(foreign)
        del foreign, there
        gc.collect()


def test_runs_of_several_threads_take_turns(fake: FakeDriver, tmp_path: Path) -> None:
    with module(tmp_path, sum_program()) as loaded, ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda i: loaded(X + i)["u"], range(40)))
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, X + i + 1 + W)


def test_profile_gives_the_time_of_every_launch(fake: FakeDriver, tmp_path: Path) -> None:
    with module(tmp_path, split_program()) as loaded:
        times = loaded.profile({"x": X})
    assert [plain(time.symbol) for time in times] == ["increment", "host.add", "increment"]
    assert times[0].microseconds == pytest.approx(2.0)


def test_profile_tells_the_branches(fake: FakeDriver, tmp_path: Path) -> None:
    values = tuple(ValueSpec(name, FLOAT4, Input(0)) if name == "x" else ValueSpec(name, FLOAT4) for name in "xabc")
    launches = (launch("increment", 0, 1), launch("increment", 0, 2, branch=1), launch("add", 1, 2, 3))
    step = DeviceStep(launches, (Edge(0, 2), Edge(1, 2)))
    with module(tmp_path, Program("p", (0,), (3,), values, (step,))) as loaded:
        assert [time.branch for time in loaded.profile({"x": X})] == [0, 1, 0]


@pytest.mark.parametrize(("greatest", "expected"), [(-5, [0, -2, -5]), (-1, [0, 0, -1])])
def test_launches_have_their_priorities(fake: FakeDriver, tmp_path: Path, greatest: int, expected: list[int]) -> None:
    """In the GPU's own numbers, of which some GPUs have fewer."""
    fake.least_and_greatest_priority = (0, greatest)
    values = tuple(ValueSpec(name, FLOAT4, Input(0)) if name == "x" else ValueSpec(name, FLOAT4) for name in "xabc")
    launches = (
        launch("increment", 0, 1), launch("increment", 0, 2, branch=1, priority=2), launch("add", 1, 2, 3, priority=5),
    )  # fmt: skip
    step = DeviceStep(launches, (Edge(0, 2), Edge(1, 2)))
    with module(tmp_path, Program("p", (0,), (3,), values, (step,))) as loaded:
        loaded.run({"x": X})
        (graph,) = fake.graphs()
        found = [node.attributes.get("PRIORITY") for node in graph]
    assert [0 if value is None else value.priority for value in found] == expected


def test_profilers_are_told_the_onnx_nodes(fake: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the package nvtx where it is installed; a profile is the same without it."""
    seen: list[tuple[str, str, int]] = []

    @contextmanager
    def annotate(message: str, domain: str) -> Iterator[None]:
        before = len(fake.named("cuLaunchKernelEx"))
        yield
        seen.append((message, domain, len(fake.named("cuLaunchKernelEx")) - before))

    nvtx = ModuleType("nvtx")
    nvtx.__spec__ = ModuleSpec("nvtx", None)
    nvtx.annotate = annotate  # type: ignore[attr-defined]
    with module(tmp_path, sum_program()) as loaded:
        monkeypatch.setitem(sys.modules, "nvtx", nvtx)
        symbols = [time.symbol for time in loaded.profile({"x": X})]
        assert seen == [
            (f"first [{symbols[0]}]", "tilestitch", 1), (f"second [{symbols[1]}]", "tilestitch", 1),
        ]  # fmt: skip
        monkeypatch.setattr("tilestitch.runtime.trace.has_ranges", lambda: False)
        assert [time.symbol for time in loaded.profile({"x": X})] == symbols
        assert len(seen) == 2


def test_a_module_that_is_dropped_gives_everything_back(fake: FakeDriver, tmp_path: Path) -> None:
    loaded = module(tmp_path, sum_program())
    loaded(X)
    del loaded
    gc.collect()
    assert fake.leaks() == {}


def test_empty_and_scalar_arrays(fake: FakeDriver, tmp_path: Path) -> None:
    values = (
        ValueSpec("x", TensorType("float32", (0, 3)), Input(0)),
        ValueSpec("s", TensorType("int64", ()), Input(1)),
    )
    with module(tmp_path, Program("p", (0, 1), (0, 1), values, (), 0, ("a", "b"))) as loaded:
        outputs = loaded.run({"x": np.zeros((0, 3), np.float32), "s": np.int64(7)}, on_device=True)
        assert outputs["a"].numpy().shape == (0, 3)
        assert outputs["b"].numpy() == 7
        del outputs


def test_kernels_see_what_was_uploaded(fake: FakeDriver, tmp_path: Path) -> None:
    """Inputs that are not C-contiguous are made so."""
    with module(tmp_path, sum_program()) as loaded:
        strided = np.arange(8, dtype=np.float32)[::2]
        np.testing.assert_array_equal(loaded(strided)["u"], strided + 1 + W)
        pointer = fake.named("cuMemcpyHtoDAsync")[-1][0]
        np.testing.assert_array_equal(view(int(pointer), "float32", 4), strided)


def mapped(tensor_map: TensorMap) -> Program:
    """y = x + 1, with a tensor map over x in place of its pointer."""
    values = (ValueSpec("x", FLOAT4, Input(0)), ValueSpec("y", FLOAT4))
    step = DeviceStep((launch("increment", Arg(0, 0, tensor_map), 1),))
    return Program("p", (0,), (1,), values, (step,))


ROW = TensorMap("float32", (4,), (), (4,), swizzle="32B", oob_fill="nan", l2_promotion="256B")


def test_tensor_maps_are_encoded_when_a_program_is_bound(fake: FakeDriver, tmp_path: Path) -> None:
    with module(tmp_path, mapped(ROW)) as loaded:
        np.testing.assert_array_equal(loaded(X)["y"], X + 1)
        np.testing.assert_array_equal(loaded(2 * X)["y"], 2 * X + 1)
    ((dtype, rank, _, dims, strides, box, steps, *names),) = fake.named("cuTensorMapEncodeTiled")
    assert (dtype, rank, dims, strides, box, steps) == (
        real.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 1, [4], [], [4], [1],
    )  # fmt: skip
    assert names == [
        real.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        real.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_32B,
        real.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        real.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA,
    ]


def test_a_tensor_map_follows_its_input(fake: FakeDriver, tmp_path: Path) -> None:
    """An array on the GPU is read in place: the map is encoded again, over its address."""
    with module(tmp_path, mapped(ROW)) as loaded:
        on_gpu = loaded.run({"x": X}, on_device=True)["y"]
        np.testing.assert_array_equal(loaded({"x": on_gpu})["y"], X + 2)
        first, second = (arguments[2] for arguments in fake.named("cuTensorMapEncodeTiled"))
        assert first != second == on_gpu.address
        np.testing.assert_array_equal(loaded({"x": on_gpu})["y"], X + 2)
        assert len(fake.named("cuTensorMapEncodeTiled")) == 2


def test_an_array_on_the_gpu_that_kernels_cannot_read_where_it_lies_is_copied(fake: FakeDriver, tmp_path: Path) -> None:
    with module(tmp_path, mapped(ROW)) as loaded:
        whole = loaded.run({"x": X}, on_device=True)["y"]
        odd = DeviceArray(whole.device, whole.address + 4, whole.dtype, (4,), whole)
        fake.check_range = lambda address, nbytes: None  # type: ignore[method-assign]
        np.testing.assert_array_equal(loaded({"x": odd})["y"][:3], X[1:] + 2)
        assert len(fake.named("cuTensorMapEncodeTiled")) == 1
