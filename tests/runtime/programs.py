"""Programs and artifacts for the tests, made of the kernels in `kernels.py` and of host steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.runtime.kernels import CHUNK, SIZE, TASKS, TRIPLE, kernel_library
from tests.runtime.signed import signed
from tilestitch.runtime import Module, load
from tilestitch.runtime.artifact_writer import ArtifactContents, write_artifact
from tilestitch.runtime.manifest import TargetInfo
from tilestitch.runtime.members import CPU_LIBRARY
from tilestitch.runtime.program import (
    Arena,
    Arg,
    Constant,
    Heap,
    Input,
    Launch,
    NativeStep,
    Program,
    Status,
    TensorType,
    ValueSpec,
)
from tilestitch.runtime.safetensors import TensorWriter

TARGET = TargetInfo("cpu", TRIPLE)
FLOAT4 = TensorType("float32", (4,))


def contents(
    *programs: Program, weights: Mapping[str, np.ndarray] | None = None, kernels: bytes | None = None, **more: Any
) -> ArtifactContents:
    """`programs` with the symbols of their launches signed."""
    programs, signatures = signed(*programs)
    library = kernel_library(symbols=frozenset(signatures)) if kernels is None else kernels
    members = {CPU_LIBRARY: library} if library else {}
    given = {"target": TARGET, "compiler_version": "0.0", "plan": {"groups": []}, "signatures": signatures, **more}
    return ArtifactContents(programs, weights or {}, members, **given)


def module(
    folder: Path, *programs: Program, weights: Mapping[str, np.ndarray] | None = None, threads: int = 1, **more: Any
) -> Module:
    path = folder / "model.tsm"
    write_artifact(path, contents(*programs, weights=weights, **more))
    return load(path, num_threads=threads)


def write_weights(path: str | Path, weights: Mapping[str, np.ndarray]) -> None:
    """Write a file of weights as `write_artifact(..., weights=path)` does."""
    Path(path).write_bytes(b"".join(TensorWriter(weights).chunks()))


def increment_program() -> Program:
    """z = (x + 1) + w, the sum x + 1 in the arena: one native step, then `add` on the host."""
    values = (
        ValueSpec("x", FLOAT4, Input(0)),
        ValueSpec("y", FLOAT4, Arena(0, 16)),
        ValueSpec("u", FLOAT4, Heap()),
        ValueSpec("w", FLOAT4, Constant("w")),
    )
    launches = (
        Launch("increment", 1, (Arg(0), Arg(1)), ("first",)),
        Launch("increment", 1, (Arg(1), Arg(2)), ("second", "third")),
    )
    return Program("increment", (0,), (2, 3), values, (NativeStep(launches),), 64)


def chain_program(length: int, serial: Sequence[int] = ()) -> Program:
    """`length` launches of `neighbours`, each reading what the one before wrote; those in `serial` have a single
    task.
    """
    vector = TensorType("int32", (SIZE,))
    values = [ValueSpec("x", vector, Input(0))]
    values += [ValueSpec(f"y{i}", vector, Arena(4 * SIZE * (i % 2), 4 * SIZE)) for i in range(length - 1)]
    values.append(ValueSpec("z", vector, Heap()))
    launches = tuple(
        Launch("neighbours_serial", 1, (Arg(i), Arg(i + 1)))
        if i in serial
        else Launch("neighbours", TASKS, (Arg(i), Arg(i + 1)))
        for i in range(length)
    )
    return Program("chain", (0,), (length,), tuple(values), (NativeStep(launches),), 8 * SIZE)


def chain_reference(x: np.ndarray, length: int) -> np.ndarray:
    for _ in range(length):
        x = (x + 2 * np.roll(x, -1)) % 1009
    return x


def pick_program() -> Program:
    index = TensorType("int64", (4,))
    values = (
        ValueSpec("x", FLOAT4, Input(0)),
        ValueSpec("index", index, Input(1)),
        ValueSpec("y", FLOAT4),
        ValueSpec("status", TensorType("int32", ()), Status()),
    )
    faults = ("index is negative", "index is too large")
    launch = Launch("pick", 1, tuple(Arg(i) for i in range(4)), ("gather_7",), faults=faults)
    return Program("pick", (0, 1), (2,), values, (NativeStep((launch,)),))


def reverse_program() -> Program:
    vector = TensorType("float32", (SIZE,))
    values = (ValueSpec("x", vector, Input(0)), ValueSpec("y", vector))
    launch = Launch("reverse", TASKS, (Arg(0), Arg(1)), scratch_bytes=4 * CHUNK)
    return Program("reverse", (0,), (1,), values, (NativeStep((launch,)),))
