"""Compiles two models, runs them, compares with their expected outputs and with ONNX Runtime, and writes a report of
each.

    python -m examples.demo [--folder DIR]

The models: the ResNet-50 graph that ships inside the onnx package, with its expected output, and a small transformer.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("ORT_TELEMETRY_DISABLED", "1")

import numpy as np
from onnx import ModelProto

from tests.models import random_inputs, transformer
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.compiler.cli.accuracy import difference
from tilestitch.compiler.cli.bench import interleaved, statistics
from tilestitch.compiler.cli.errors import AccuracyError
from tilestitch.compiler.cli.output import Progress
from tilestitch.compiler.conformance.cases import load_cases
from tilestitch.compiler.report import write_report
from tilestitch.runtime import load

ROUNDS = 30


@dataclass(frozen=True)
class Example:
    """A model, its inputs, and what its outputs must be if that is known otherwise than from ONNX Runtime."""

    name: str
    model: ModelProto
    inputs: Mapping[str, np.ndarray]
    expected: Sequence[np.ndarray] | None


def resnet50() -> Example:
    case = next(case for case in load_cases(["light"]) if case.name == "test_resnet50")
    inputs, expected = next(case.data_sets())
    initialised = {tensor.name for tensor in case.model.graph.initializer}
    names = [value.name for value in case.model.graph.input if value.name not in initialised]
    return Example("resnet50", case.model, dict(zip(names, inputs)), expected)


def small_transformer() -> Example:
    model = transformer(layers=4, hidden=256, heads=4, sequence=64, vocabulary=1000)
    return Example("transformer", model, random_inputs(model), None)


def show(example: Example, folder: Path) -> None:
    """Raises AccuracyError when a result is wrong."""
    print(f"{example.name}: {len(example.model.graph.node)} ONNX nodes")
    start = time.perf_counter()
    with Progress() as progress:
        compiled = compile_model(example.model, "cpu", progress=progress)
    artifact = folder / f"{example.name}.tsm"
    compiled.save(artifact)
    print(f"  compiled in {time.perf_counter() - start:.1f} s: {artifact}, {artifact.stat().st_size / 2**20:.1f} MiB")
    model = load(artifact, device="cpu")
    rival = rivals.onnxruntime(example.model)
    inputs = dict(example.inputs)
    outputs = list(model.run(inputs).values())
    if example.expected is not None:
        agree("its expected output", outputs, example.expected)
    agree("ONNX Runtime", outputs, rival(inputs))
    engines = {"tilestitch": lambda: model.run(inputs), "ONNX Runtime": lambda: rival(inputs)}
    with Progress() as progress:
        latency = {name: statistics(times) for name, times in interleaved(engines, ROUNDS, 3, progress).items()}
    print("  latency: " + ", ".join(f"{name} {values['p50_us'] / 1e3:.2f} ms" for name, values in latency.items()))
    explained = compiled.explain()
    print(f"  {fused(explained)}")
    facts = {f"{name}, ms": f"{values['p50_us'] / 1e3:.2f}" for name, values in latency.items()}
    report = write_report(folder / f"{example.name}.html", {"model": example.name, "facts": facts, **explained})
    print(f"  report: {report}")


def agree(with_whom: str, outputs: Sequence[Any], expected: Sequence[Any]) -> None:
    for index, (got, want) in enumerate(zip(outputs, expected)):
        found = difference(f"output {index}", got, want)
        if not found.ok:
            raise AccuracyError(f"{found.name} differs from {with_whom} by {found.error:.1e} {found.note}")
        print(f"  agrees with {with_whom}: error {found.error:.1e} of the largest magnitude")


def fused(explained: Mapping[str, Any]) -> str:
    """One line: how many kernels, of which kinds, and how many operators were fused into others."""
    kernels = explained["kernels"]
    kinds = Counter(kernel["kind"] for kernel in kernels)
    several = [kernel for kernel in kernels if len(kernel["onnx_nodes"]) > 1]
    largest = max(kernels, key=lambda kernel: len(kernel["onnx_nodes"]))
    counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return (
        f"{len(kernels)} kernels ({counted}); {len(several)} of them compute several ONNX nodes, "
        f"{largest['name']} {len(largest['onnx_nodes'])}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="Compile, run, compare, report.")
    parser.add_argument("--folder", type=Path, default=Path("build/demo"), help="for artifacts and reports")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for example in (resnet50(), small_transformer()):
        show(example, folder.resolve())


if __name__ == "__main__":
    main()
