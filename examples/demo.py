"""Compiles two models, runs them, compares with ONNX Runtime, and writes a report of each.

    python -m examples.demo [--folder DIR]

The models: ResNet-50 and a small transformer, both with random weights.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("ORT_TELEMETRY_DISABLED", "1")

from onnx import ModelProto

from tests.models import random_inputs, transformer
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.compiler.cli.accuracy import difference
from tilestitch.compiler.cli.bench import interleaved, statistics
from tilestitch.compiler.cli.errors import AccuracyError
from tilestitch.compiler.cli.output import Progress
from tilestitch.compiler.example_models import resnet50
from tilestitch.compiler.report import write_report
from tilestitch.runtime import load

ROUNDS = 30


def models() -> Mapping[str, ModelProto]:
    small = transformer(layers=4, hidden=256, heads=4, sequence=64, vocabulary=1000)
    return {"resnet50": resnet50(seed=0), "transformer": small}


def show(name: str, proto: ModelProto, folder: Path) -> None:
    """Raises AccuracyError when a result is wrong."""
    print(f"{name}: {len(proto.graph.node)} ONNX nodes")
    start = time.perf_counter()
    with Progress() as progress:
        compiled = compile_model(proto, "cpu", progress=progress)
    artifact = folder / f"{name}.tsm"
    compiled.save(artifact)
    print(f"  compiled in {time.perf_counter() - start:.1f} s: {artifact}, {artifact.stat().st_size / 2**20:.1f} MiB")
    model = load(artifact, device="cpu")
    rival, inputs = rivals.onnxruntime(proto), random_inputs(proto)
    agree(list(model.run(inputs).values()), rival(inputs))
    engines = {"tilestitch": lambda: model.run(inputs), "ONNX Runtime": lambda: rival(inputs)}
    with Progress() as progress:
        latency = {name: statistics(times) for name, times in interleaved(engines, ROUNDS, 3, progress).items()}
    print("  latency: " + ", ".join(f"{name} {values['p50_us'] / 1e3:.2f} ms" for name, values in latency.items()))
    explained = compiled.explain()
    print(f"  {fused(explained)}")
    facts = {f"{name}, ms": f"{values['p50_us'] / 1e3:.2f}" for name, values in latency.items()}
    report = write_report(folder / f"{name}.html", {"model": name, "facts": facts, **explained})
    print(f"  report: {report}")


def agree(outputs: Sequence[Any], expected: Sequence[Any]) -> None:
    for index, (got, want) in enumerate(zip(outputs, expected)):
        found = difference(f"output {index}", got, want)
        if not found.ok:
            raise AccuracyError(f"{found.name} differs from ONNX Runtime by {found.error:.1e} {found.note}")
        print(f"  agrees with ONNX Runtime: error {found.error:.1e} of the largest magnitude")


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
    for name, proto in models().items():
        show(name, proto, folder.resolve())


if __name__ == "__main__":
    main()
