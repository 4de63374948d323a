"""Running on the strict stand-in for the driver, through the real cuda-bindings: what a GPU would refuse is refused."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.cuda.artifacts import W, launch, sum_program
from tests.runtime.cuda.kernels_cu import artifact, one_step
from tests.runtime.cuda.standin.child import StandIn
from tests.runtime.cuda.standin.models import exercise, models
from tests.runtime.cuda.test_compiled import model
from tilestitch.compiler import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.cuda.driver import Allocation, host_address
from tilestitch.runtime.errors import DeviceError
from tilestitch.runtime.program import Arg, Edge
from tilestitch.runtime.tensor_map import TensorMap

ROOT = Path(__file__).resolve().parents[3]
X = np.arange(4, dtype=np.float32)
OnStandIn = Callable[[Callable[[StandIn], Any]], None]


def run_twice(path: Path) -> Callable[[StandIn], None]:
    """Load, run with arrays of the host and of the GPU, profile, unload."""

    def work(stand_in: StandIn) -> None:
        with load(path, device="cuda") as loaded:
            there = loaded.run({"x": X}, on_device=True)["y"]
            assert loaded.run({"x": there})["y"].shape == (4,)
            loaded.profile({"x": X})
            del there

    return work


@pytest.mark.parametrize("more", [{"cluster": (2, 1, 1)}, {"cooperative": True}])
def test_clusters_and_cooperative_launches(on_standin: OnStandIn, tmp_path: Path, more: dict[str, Any]) -> None:
    on_standin(run_twice(artifact(tmp_path, one_step([launch("increment", 0, 1, **more)]))))


RUN = """
import sys, numpy as np
from tilestitch.runtime import load
with load(sys.argv[1], device="cuda") as loaded:
    print(loaded.run({"x": np.arange(4, dtype=np.float32)})["y"].shape)
"""


def test_tensor_maps_lie_where_the_driver_wants_them(standin_library: Path, tmp_path: Path) -> None:
    """Also where Python's objects lie at any multiple of 16, as they do without its own allocator."""
    row = TensorMap("float32", (4,), (), (4,))
    path = artifact(tmp_path, one_step([launch("mapped", Arg(0, 0, row), 1) for _ in range(16)]))
    assert with_driver(RUN, str(path), PYTHONMALLOC="malloc") == "(4,)\n"


COMPILE = """
import sys
from tests.runtime.cuda.test_compiled import model
from tilestitch.compiler import compile_model
compile_model(model(), target="cuda:sm_80", keep_source=True).save(sys.argv[1])
"""


def test_compiling_where_there_is_a_driver(standin_library: Path, tmp_path: Path) -> None:
    """TVM would compile for the GPU that it finds, and for none if it finds none of those that it knows."""
    compile_model(model(), target="cuda:sm_80", keep_source=True).save(tmp_path / "without.tsm")
    assert with_driver(COMPILE, str(tmp_path / "with.tsm")) == ""
    assert (tmp_path / "with.tsm").read_bytes() == (tmp_path / "without.tsm").read_bytes()


def with_driver(program: str, *arguments: str, **environment: str) -> str:
    """What a program prints, run with the stand-in in place of the driver, which refuses nothing."""
    command = [sys.executable, "-m", "tests.runtime.cuda.standin", "--", sys.executable, "-c", program, *arguments]
    result = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, cwd=ROOT, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@pytest.mark.parametrize("dynamic_bytes", [1024, 49152 - 128, 49152 - 64, 49152, 49153, 232448 - 128])
def test_shared_memory_up_to_what_a_block_may_have(on_standin: OnStandIn, tmp_path: Path, dynamic_bytes: int) -> None:
    """The kernel has 128 bytes of static shared memory, which count too."""
    on_standin(run_twice(artifact(tmp_path, one_step([launch("banded", 0, 1, shared_bytes=dynamic_bytes)]))))


def test_more_shared_memory_than_a_block_may_have_is_refused(on_standin: OnStandIn, tmp_path: Path) -> None:
    path = artifact(tmp_path, one_step([launch("banded", 0, 1, shared_bytes=232448 - 127)]))

    def work(stand_in: StandIn) -> None:
        with pytest.raises(
            DeviceError, match=r"'banded_[0-9a-f]+' needs 232449 bytes of shared memory, .* has at most 232448"
        ):
            load(path, device="cuda")

    on_standin(work)


def test_a_module_that_is_dropped_unloads_its_kernels_last(on_standin: OnStandIn, tmp_path: Path) -> None:
    """Also when it is taken apart in no order, as what refers to itself is."""
    path = artifact(tmp_path, one_step([launch("increment", 0, 1)]))

    def work(stand_in: StandIn) -> None:
        for _ in range(8):
            loaded = load(path, device="cuda")
            loaded.run({"x": X})
            loaded.itself = loaded  # type: ignore[attr-defined]
            del loaded
            assert stand_in.leaks() == ""

    on_standin(work)


class Stream:
    """A stream of another library."""

    def __init__(self, device: Any) -> None:
        self._device = device
        with device.current():
            self.cuda_stream = int(device.call("cuStreamCreate", 1))  # CU_STREAM_NON_BLOCKING

    def close(self) -> None:
        with self._device.current():
            self._device.call("cuStreamDestroy", self.cuda_stream)


def on_gpu(path: Path, work: Callable[[Any, Any, Any], None]) -> Callable[[StandIn], None]:
    """Call `work` with a module, an array of its GPU, and that."""

    def run(stand_in: StandIn) -> None:
        with load(path, device="cuda") as loaded:
            x = loaded.run({"x": X}, on_device=True)["y"]
            work(loaded, x, x.device)
            del x

    return run


def test_results_that_are_dropped_make_nothing_wait(on_standin: OnStandIn, tmp_path: Path) -> None:
    def work(loaded: Any, x: Any, device: Any) -> None:
        stream, waits = Stream(device), count_calls(device, "cuCtxSynchronize", "cuMemFree", "cuStreamSynchronize")
        for _ in range(3):
            loaded.run({"x": x}, stream=stream, on_device=True)
        assert waits == []
        stream.close()

    on_standin(on_gpu(artifact(tmp_path, one_step([launch("increment", 0, 1)])), work))


def test_memory_of_a_result_is_kept_for_other_streams_that_use_it(on_standin: OnStandIn, tmp_path: Path) -> None:
    """The stand-in refuses to free what work in another stream may still use."""

    def work(loaded: Any, x: Any, device: Any) -> None:
        first, second = Stream(device), Stream(device)
        y = loaded.run({"x": x}, stream=first, on_device=True)["y"]
        z = loaded.run({"x": y}, stream=second, on_device=True)["y"]
        del y
        loaded.run({"x": x}, {"y": z}, stream=first.cuda_stream)
        del z
        w = loaded.run({"x": x}, on_device=True)["y"]
        loaded.run({"x": w}, stream=first, on_device=True)
        del w
        gc.collect()
        for stream in (first, second):
            stream.close()

    on_standin(on_gpu(artifact(tmp_path, one_step([launch("increment", 0, 1)])), work))


def test_memory_that_results_gave_back_is_there_for_other_uses(on_standin: OnStandIn, tmp_path: Path) -> None:
    def work(loaded: Any, x: Any, device: Any) -> None:
        trims = count_calls(device, "cuMemPoolTrimTo")
        with pytest.raises(DeviceError, match=r"has no memory for .* MiB of a test: .* MiB are free; free some"):
            Allocation(device, 1 << 50, "a test")
        assert trims == ["cuMemPoolTrimTo"]

    on_standin(on_gpu(artifact(tmp_path, one_step([launch("increment", 0, 1)])), work))


def count_calls(device: Any, *names: str) -> list[str]:
    """A list to which the calls of these functions of the driver are added from now on."""
    calls: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        function = getattr(device.api, name)
        return lambda *arguments: (calls.append(name), function(*arguments))[1]

    device.call._functions.update({name: counted(name) for name in names})
    return calls


def test_threads_with_streams_of_their_own(on_standin: OnStandIn, tmp_path: Path) -> None:
    """Runs of one module take turns in memory that they share; those of two modules do not."""
    path = artifact(tmp_path, one_step([launch("increment", 0, 2), launch("increment", 2, 1)], [Edge(0, 1)], 1))

    def work(stand_in: StandIn) -> None:
        with load(path, device="cuda") as first, load(path, device="cuda") as second:
            there = first.run({"x": X}, on_device=True)["y"]
            device, modules = there.device, (first, second)

            def use(number: int) -> None:
                stream = Stream(device)
                for _ in range(5):
                    mine = modules[number % 2].run({"x": there}, stream=stream, on_device=True)["y"]
                    modules[number % 2].run({"x": mine}, {"y": mine}, stream=stream)
                    del mine
                with device.current():
                    device.call("cuStreamSynchronize", stream.cuda_stream)
                stream.close()

            with ThreadPoolExecutor(4) as threads:
                list(threads.map(use, range(8)))

    on_standin(work)


def test_weights_are_there_for_work_in_any_stream(on_standin: OnStandIn, tmp_path: Path) -> None:
    """A copy from pageable memory may end after the call that makes it, which streams of the user do not wait for."""

    def work(stand_in: StandIn) -> None:
        with load(artifact(tmp_path, sum_program()), device="cuda") as loaded:
            backend: Any = loaded._backend
            stream, weights = Stream(backend._device), np.zeros(4, np.float32)
            with backend._device.current():
                source = backend._addresses["w"], weights.nbytes, stream.cuda_stream
                backend._device.call("cuMemcpyDtoHAsync", host_address(weights), *source)
            np.testing.assert_array_equal(weights, W)
            stream.close()

    on_standin(work)


@pytest.mark.slow
def test_a_model_of_onnx(on_standin: OnStandIn) -> None:
    """`python -m tests.runtime.cuda.standin.models` takes all of them."""
    compiled = compile_model(models()["light_squeezenet"], "cuda:sm_90a").to_bytes()
    on_standin(lambda _: exercise(compiled))
