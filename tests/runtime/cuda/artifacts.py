"""Artifacts of the fake driver's kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.runtime.signed import Signatures, signed, symbols_of
from tilestitch.runtime import Module, load
from tilestitch.runtime.artifact_writer import ArtifactContents, write_artifact
from tilestitch.runtime.manifest import TargetInfo
from tilestitch.runtime.program import (
    Arena,
    Arg,
    Body,
    Constant,
    DeviceLaunch,
    DeviceStep,
    Heap,
    HostStep,
    Input,
    LoopStep,
    Program,
    Status,
    TensorType,
    ValueSpec,
)

FLOAT4 = TensorType("float32", (4,))
BOOL, INT = TensorType("bool", ()), TensorType("int64", ())
W = np.array([10, 20, 30, 40], np.float32)
CUBIN = {"kernels/sm_90a.cubin": b"fake:increment,add,pick"}


def launch(symbol: str, *args: int | Arg, **more: Any) -> DeviceLaunch:
    """Four threads; arguments are value numbers."""
    pointers = tuple(arg if isinstance(arg, Arg) else Arg(arg) for arg in args)
    return DeviceLaunch(symbol, (2, 1, 1), (2, 1, 1), more.pop("shared_bytes", 0), pointers, **more)


def sum_program() -> Program:
    """u = (x + 1) + w by two launches with the value between them in the arena."""
    values = (
        ValueSpec("x", FLOAT4, Input(0)),
        ValueSpec("y", FLOAT4, Arena(0, 16)),
        ValueSpec("w", FLOAT4, Constant("w")),
        ValueSpec("u", FLOAT4, Heap()),
    )
    first = launch("increment", 0, 1, origins=("first",))
    return Program("sum", (0,), (3,), values, (DeviceStep((first, launch("add", 1, 2, 3, origins=("second",)))),), 64)


def pick_program() -> Program:
    values = (
        ValueSpec("x", FLOAT4, Input(0)),
        ValueSpec("index", TensorType("int64", (4,)), Input(1)),
        ValueSpec("y", FLOAT4),
        ValueSpec("status", TensorType("int32", ()), Status()),
    )
    only = launch("pick", 0, 1, 2, 3, origins=("gather_7",), faults=("index is negative", "index is too large"))
    return Program("pick", (0, 1), (2,), values, (DeviceStep((only,)),))


def split_program() -> Program:
    """z = 2 (x + 1) + 1: the GEMM on the host, between two device steps. The arena's value is an output too."""
    values = (
        ValueSpec("x", FLOAT4, Input(0)),
        ValueSpec("y", FLOAT4, Arena(0, 16)),
        ValueSpec("two", FLOAT4, Heap()),
        ValueSpec("z", FLOAT4, Heap()),
    )
    steps = (
        DeviceStep((launch("increment", 0, 1),)),
        HostStep("add", (1, 1), (2,), origins=("double",)),
        DeviceStep((launch("increment", 2, 3),)),
    )
    return Program("split", (0,), (3, 1, 0), values, steps, 64, ("z", "y", "x_again"))


def loop_program(trips: int) -> Program:
    """x + trips, by a loop whose body is a device step."""
    body = Program(
        "body",
        (0, 1, 2),
        (1, 3),
        (
            ValueSpec("i", INT, Input(0)),
            ValueSpec("go", BOOL, Input(1)),
            ValueSpec("x", FLOAT4, Input(2)),
            ValueSpec("y", FLOAT4, Heap()),
        ),
        (DeviceStep((launch("increment", 2, 3),)),),
    )
    values = (
        ValueSpec("x", FLOAT4, Input(0)),
        ValueSpec("trips", INT, Constant("trips")),
        ValueSpec("y", FLOAT4, Heap()),
    )
    return Program("loop", (0,), (2,), values, (LoopStep(1, -1, (0,), Body(body), (2,)),))


def write(
    path: Path,
    *programs: Program,
    kernels: Mapping[str, bytes] = CUBIN,
    architectures: tuple[str, ...] = ("sm_90a",),
    weights: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """`programs` with the symbols of their launches signed, and those of `kernels` to match."""
    signed_programs, signatures = signed(*programs)
    images = {name: _signed_image(image, signatures) for name, image in kernels.items()}
    target, tensors = TargetInfo("cuda", architectures=architectures), {"w": W} if weights is None else weights
    write_artifact(path, ArtifactContents(signed_programs, tensors, images, target, "0", signatures=signatures))
    return path


def _signed_image(image: bytes, signatures: Signatures) -> bytes:
    mark, _, names = image.partition(b":")
    if mark != b"fake":
        return image
    found = [symbol for name in names.decode().split(",") for symbol in symbols_of(signatures, name)]
    return b"fake:" + ",".join(found).encode()


def module(folder: Path, *programs: Program, device: str = "cuda", **more: Any) -> Module:
    return load(write(folder / "m.tsm", *programs, **more), device=device)
