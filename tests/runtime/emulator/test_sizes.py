"""Programs with symbols on the emulated device: grids and memory by the sizes of a run, sizes as an argument."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.runtime.emulator.kernels import kernel, numbers
from tests.runtime.signed import signed
from tilestitch.runtime import Module, load
from tilestitch.runtime.artifact_writer import ArtifactContents, write_artifact
from tilestitch.runtime.emulator import KernelFaultError
from tilestitch.runtime.errors import InputError
from tilestitch.runtime.manifest import TargetInfo
from tilestitch.runtime.members import cuda_source_member
from tilestitch.runtime.program import (
    Arena,
    Arg,
    DeviceLaunch,
    DeviceStep,
    Heap,
    Input,
    Program,
    Sizes,
    Symbol,
    TensorType,
    ValueSpec,
)

ROWS = TensorType("float32", ("batch", "seq"))
DOUBLE = kernel(
    "float* x, long long* sizes, float* y",
    "  long long i = blockIdx.x * 32LL + threadIdx.x;\n  if (i < sizes[0] * sizes[1]) y[i] = 2 * x[i];",
)


def module(folder: Path, text: str = DOUBLE) -> Module:
    """y = 4 x in two launches, with 2 x in the arena."""
    values = (
        ValueSpec("x", ROWS, Input(0)), ValueSpec("sizes", TensorType("int64", (2,)), Sizes()),
        ValueSpec("half", ROWS, Arena("64*batch", "4*batch*seq")), ValueSpec("y", ROWS, Heap()),
    )  # fmt: skip
    grid = ("(batch*seq + 31)//32", 1, 1)
    launches = [DeviceLaunch("double", grid, (32, 1, 1), 0, tuple(map(Arg, args))) for args in ((0, 1, 2), (2, 1, 3))]
    symbols = (Symbol("batch", 1, 8), Symbol("seq", 1, 1000))
    steps = (DeviceStep(tuple(launches)),)
    programs, signatures = signed(Program("rows", (0,), (3, 2), values, steps, "64*batch + 4*batch*seq", (), symbols))
    sources = {cuda_source_member(symbol): text.replace("kernel(", f"{symbol}(").encode() for symbol in signatures}
    target = TargetInfo("cuda", architectures=("sm_90a",))
    write_artifact(
        folder / "m.tsm", ArtifactContents(programs, {}, {}, target, "0", extra=sources, signatures=signatures)
    )
    return load(folder / "m.tsm", device="emulator")


def test_one_program_runs_at_all_sizes(tmp_path: Path) -> None:
    with module(tmp_path) as loaded:
        for batch, seq in [(1, 1), (8, 1000), (3, 7), (1, 1), *((2, seq) for seq in range(30, 45)), (3, 7)]:
            x = numbers(batch, seq)
            results = loaded.run({"x": x})
            np.testing.assert_array_equal(results["y"], 4 * x)
            np.testing.assert_array_equal(results["half"], 2 * x)
        with pytest.raises(InputError, match="batch, which must be from 1 to 8"):
            loaded.run({"x": numbers(9, 1)})


def test_sizes_cannot_be_written_nor_read_beyond(tmp_path: Path) -> None:
    for wrong, message in [("sizes[0] = 1", "constant"), ("y[0] = sizes[2]", "sizes")]:
        text = DOUBLE.replace("  long long i", f"  {wrong};\n  long long i")
        with module(tmp_path, text) as loaded, pytest.raises(KernelFaultError, match=message):
            loaded.run({"x": numbers(2, 2)})
