"""Whole models on the emulated device against ONNX Runtime: does the CUDA text of every kernel compute the right thing?

    python -m benchmarks.emulated [NAME ...] [--target emulator:sm_90a] [--precision fp16] [--checked]
                                  [--side-by-side] [--orders N] [--result FILE]

NAME is a model of benchmarks.models, or one of the light models inside the onnx package. Blocks run in a random order,
as do launches that no edge of the graph orders; with --side-by-side blocks of these are interleaved. It says nothing
about speed on a GPU; seconds are processor time of the emulation.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("ORT_TELEMETRY_DISABLED", "1")

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.compiler.cli.accuracy import Limits, difference
from tilestitch.compiler.cli.inputs import make_inputs
from tilestitch.compiler.cli.output import table
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions

FOLDER = Path(__file__).parent / "models"
TOLERANCES = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 2e-2, "bf16": 1e-1}
"""Allowed error over the largest magnitude of a result, after all layers of a model."""
HEADER = ("model", "launches", "depth", "seconds", "error", "")


def light_models() -> dict[str, Path]:
    """The models of the ONNX Model Zoo that the onnx package carries, by name."""
    import onnx.backend.test

    folder = Path(onnx.backend.test.__file__).parent / "data" / "light"
    return {path.stem: path for path in sorted(folder.glob("*.onnx"))}


def with_weights(model: ModelProto, seed: int = 0) -> ModelProto:
    """A light model whose weights, one number each as it comes, are random, and that ends before its softmax: else
    results depend on little, or are one large number.
    """
    random, shapes = np.random.default_rng(seed), {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    norms = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    positive = {node.input[operand] for node in norms for operand in (1, 4)}  # factors and variances
    model.ir_version = 8  # in which weights need not be inputs
    for node in [node for node in model.graph.node if node.op_type == "ConstantOfShape"]:
        shape, name = shapes[node.input[0]], node.output[0]
        if len(shape) > 1:
            weights = random.standard_normal(shape) * math.prod(shape[1:]) ** -0.5
        else:
            weights = random.uniform(*((0.8, 1.2) if name in positive else (-0.1, 0.1)), shape)
        model.graph.initializer.append(numpy_helper.from_array(weights.astype(np.float32), name))
        model.graph.node.remove(node)
    if model.graph.node[-1].op_type == "Softmax":
        model.graph.output[0].name = model.graph.node.pop().input[0]
    return model


def exported_models() -> dict[str, Path]:
    return {path.stem: path for path in sorted(FOLDER.glob("*.onnx"))}


def check(path: Path, target: str, precision: str, orders: Sequence[EmulatorOptions]) -> tuple[object, ...]:
    """One row of the table: the worst error, and the seconds of all orders."""
    source = with_weights(onnx.load(path)) if path.stem.startswith("light_") else path
    compiled = compile_model(source, target, precision=precision)
    steps = [step for program in compiled.contents.programs for step in program.steps]
    launches = sum(len(getattr(step, "launches", ())) for step in steps)
    artifact, results, seconds = compiled.to_bytes(), [], 0.0
    for options in orders:
        with load(artifact, device=options) as model:
            inputs = make_inputs(model, {}, seed=0)
            start = time.process_time()
            results.append(list(model.run(inputs).values()))
            seconds += time.process_time() - start
    expected = rivals.onnxruntime(source, 1)(inputs)
    found = [
        difference(str(i), got, want, Limits(rtol=TOLERANCES[precision]))
        for of_order in results
        for i, (got, want) in enumerate(zip(of_order, expected))
    ]
    worst = max(found, key=lambda one: one.error)
    depth = sum(_depth(step) for step in steps)
    verdict = "ok" if all(d.ok for d in found) else "OFF"
    return path.stem, launches, depth, round(seconds, 1), float(worst.error), verdict


def as_json(rows: Sequence[tuple[object, ...]], given: Sequence[str]) -> str:
    """Rows of `check`, and the command that they are of."""
    now = datetime.datetime.now(datetime.timezone.utc)
    named = [dict(zip((*HEADER[:-1], "verdict"), row, strict=True)) for row in rows]
    command = " ".join(["python -m benchmarks.emulated", *given])
    content = {"date": now.isoformat(timespec="seconds"), "command": command, "emulated": True, "results": named}
    return json.dumps(content, indent=1) + "\n"


def _depth(step: object) -> int:
    """Launches on the longest way through the graph of a step."""
    depths = [1] * len(getattr(step, "launches", ()))
    for edge in getattr(step, "dependences", ()):
        depths[edge.after] = max(depths[edge.after], depths[edge.before] + 1)
    return max(depths, default=0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table; exit code 3 when a result is wrong."""
    models = {**exported_models(), **light_models()}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.emulated", description="Run whole models, emulated.")
    parser.add_argument("names", nargs="*", choices=[[], *models], metavar="NAME", help="default: all")
    parser.add_argument("--target", default="emulator:sm_90a")
    parser.add_argument("--precision", choices=TOLERANCES, default="fp32")
    parser.add_argument("--checked", action="store_true", help="also find races and accesses out of bounds")
    parser.add_argument("--side-by-side", action="store_true", help="interleave blocks of launches that no edge orders")
    parser.add_argument("--orders", type=int, default=1, metavar="N", help="random orders of blocks (default 1)")
    parser.add_argument("--result", type=Path, metavar="FILE", help="write the table as JSON, too, after each model")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    emulated = [
        EmulatorOptions(
            checked=options.checked, block_order="random", seed=1 + number, side_by_side=options.side_by_side,
            resident_blocks=16 if options.side_by_side else 4,
        )
        for number in range(options.orders)
    ]  # fmt: skip
    rows = []
    for name in options.names or models:
        rows.append(check(models[name], options.target, options.precision, emulated))
        print("  ".join(map(str, rows[-1])), file=sys.stderr)
        if options.result is not None:
            options.result.write_text(as_json(rows, given), encoding="utf-8")
    print(table(rows, HEADER))
    return 0 if all(row[-1] == "ok" for row in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
