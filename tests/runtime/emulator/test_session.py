"""Artifacts on the emulated device, from the file to the outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.runtime.emulator.hopper import compile_for_hopper, hopper
from tests.runtime.emulator.kernels import kernel, numbers
from tests.runtime.signed import plain, signed, symbols_of
from tilestitch.runtime import Module, load
from tilestitch.runtime.artifact_writer import ArtifactContents, write_artifact
from tilestitch.runtime.emulator import EmulatorOptions, KernelFaultError
from tilestitch.runtime.errors import DeviceError, ExecutionError, InputError
from tilestitch.runtime.manifest import TargetInfo
from tilestitch.runtime.members import cuda_source_member
from tilestitch.runtime.program import (
    Arena,
    Arg,
    Constant,
    DeviceLaunch,
    DeviceStep,
    Edge,
    Heap,
    HostStep,
    Input,
    Program,
    Status,
    TensorType,
    ValueSpec,
)
from tilestitch.runtime.tensor_map import TensorMap

FLOATS = TensorType("float32", (64,))
SCALE = kernel("float* x, float* w, float* y", "  y[threadIdx.x] = x[threadIdx.x] * w[threadIdx.x];")
CHECKED = kernel(
    "float* x, float* y, int* status",
    "  if (x[threadIdx.x] < 0) *status = 1;\n  y[threadIdx.x] = sqrtf(x[threadIdx.x]);",
)
TEXTS = {"scale": SCALE.replace("kernel(", "scale("), "root": CHECKED.replace("kernel(", "root(")}
W = np.linspace(1, 2, 64, dtype=np.float32)


def launch(symbol: str, *args: int, faults: tuple[str, ...] = ()) -> DeviceLaunch:
    return DeviceLaunch(symbol, (1, 1, 1), (64, 1, 1), 0, tuple(map(Arg, args)), (f"node_{symbol}",), faults)


def program(*steps: DeviceStep | HostStep) -> Program:
    """Values: 0 input x, 1 weight w, 2 in the arena, 3 and 5 on the heap, 4 the status word. The output is 5."""
    values = (
        ValueSpec("x", FLOATS, Input(0)), ValueSpec("w", FLOATS, Constant("w")), ValueSpec("s", FLOATS, Arena(0, 256)),
        ValueSpec("h", FLOATS, Heap()), ValueSpec("fault", TensorType("int32", (1,)), Status()),
        ValueSpec("y", FLOATS, Heap()),
    )  # fmt: skip
    return Program("main", (0,), (5,), values, tuple(steps), arena_bytes=256)


def module(folder: Path, *steps: DeviceStep | HostStep, options: EmulatorOptions | None = None, **texts: str) -> Module:
    programs, signatures = signed(program(*steps))
    sources = {
        cuda_source_member(symbol): text.replace(f"{name}(", f"{symbol}(").encode()
        for name, text in {**TEXTS, **texts}.items() if text
        for symbol in symbols_of(signatures, name)
    }  # fmt: skip
    target = TargetInfo("cuda", architectures=("sm_90a",))
    contents = ArtifactContents(programs, {"w": W}, {}, target, "0", extra=sources, signatures=signatures)
    write_artifact(folder / "m.tsm", contents)
    return load(folder / "m.tsm", device=options or "emulator")


NEGATIVE = "negative input of a square root"
CHAIN = DeviceStep((launch("scale", 0, 1, 2), launch("root", 2, 5, 4, faults=(NEGATIVE,))))


@pytest.mark.parametrize(
    "options", [None, EmulatorOptions(checked=False), EmulatorOptions(block_order="adversarial", seed=4)]
)
def test_launches_of_a_step(tmp_path: Path, options: EmulatorOptions | None) -> None:
    x = np.abs(numbers(64))
    with module(tmp_path, CHAIN, options=options) as loaded:
        for _ in range(2):
            np.testing.assert_allclose(loaded.run({"x": x})["y"], np.sqrt(x * W), rtol=1e-6)
        assert [plain(time.symbol) for time in loaded.profile({"x": x})] == ["scale", "root"]


def test_host_steps_between_device_steps(tmp_path: Path) -> None:
    steps = (
        DeviceStep((launch("scale", 0, 1, 2),)), HostStep("neg", (2,), (3,)), DeviceStep((launch("scale", 3, 1, 5),)),
    )  # fmt: skip
    x = numbers(64)
    with module(tmp_path, *steps) as loaded:
        np.testing.assert_allclose(loaded.run({"x": x})["y"], -x * W * W, rtol=1e-6)


def test_faults_that_kernels_report(tmp_path: Path) -> None:
    with module(tmp_path, CHAIN) as loaded, pytest.raises(ExecutionError, match=f"node_root: {NEGATIVE}"):
        loaded.run({"x": -np.ones(64, np.float32)})


def test_faults_of_kernels_name_the_onnx_node(tmp_path: Path) -> None:
    wrong = TEXTS["scale"].replace("y[threadIdx.x]", "y[threadIdx.x + 1]")
    with module(tmp_path, CHAIN, scale=wrong) as loaded, pytest.raises(KernelFaultError) as caught:
        loaded.run({"x": numbers(64)})
    assert plain(caught.value.kernel) == "scale" and "ONNX node node_scale: block (0, 0, 0)" in caught.value.problem


def test_inputs_and_weights_cannot_be_written(tmp_path: Path) -> None:
    wrong = TEXTS["scale"].replace("y[threadIdx.x] =", "x[threadIdx.x] =")
    with module(tmp_path, CHAIN, scale=wrong) as loaded, pytest.raises(KernelFaultError, match="which is constant"):
        loaded.run({"x": numbers(64)})


def test_a_missing_edge_shows_in_some_order(tmp_path: Path) -> None:
    step = DeviceStep(CHAIN.launches, edges=())
    ordered = DeviceStep(CHAIN.launches, edges=(Edge(0, 1),))
    x, wrong = np.abs(numbers(64)), 0
    for seed in range(6):
        options = EmulatorOptions(block_order="random", seed=seed)
        with module(tmp_path, ordered, options=options) as loaded:
            np.testing.assert_allclose(loaded.run({"x": x})["y"], np.sqrt(x * W), rtol=1e-6)
        with module(tmp_path, step, options=options) as loaded:
            wrong += bool(np.isnan(loaded.run({"x": x})["y"]).all())  # memory that nothing was written to is NaN
    assert 0 < wrong < 6


def test_an_artifact_without_cuda_text(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"no CUDA text of root.*--keep-source"):
        module(tmp_path, CHAIN, root="")


def test_streams_mean_nothing_here(tmp_path: Path) -> None:
    with module(tmp_path, CHAIN) as loaded, pytest.raises(InputError, match="stream is for GPUs"):
        loaded.run({"x": numbers(64)}, stream=1)


REVERSED = hopper(
    "map m, float* y",
    """\
  __shared__ alignas(128) float tile[32];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) {
    init(&bar, 1);
    fence_init();
    expect(&bar, 128);
    load_1d(tile, &m, &bar, 16);
  }
  __syncthreads();
  await(&bar, 0);
  y[threadIdx.x] = tile[31 - threadIdx.x % 32];""",
).replace("kernel(", "reversed(")


def test_a_tensor_map_lies_over_what_a_run_binds(tmp_path: Path) -> None:
    compile_for_hopper(REVERSED)
    tensor_map = TensorMap("float32", (48,), (), (32,))
    reverse = DeviceLaunch("reversed", (1, 1, 1), (64, 1, 1), 0, (Arg(0, 64, tensor_map), Arg(5)))
    model = module(tmp_path, DeviceStep((reverse,)), reversed=REVERSED)
    x = numbers(65)[1:]  # not aligned to 16 bytes
    np.testing.assert_array_equal(model.run({"x": x})["y"], np.tile(x[:31:-1], 2))
