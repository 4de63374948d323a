"""Checks an artifact's results against another engine's on the same inputs. Exit code 3 when they differ by too much.

  tilestitch check model.tsm model.onnx --against reference

The error of an output is its largest difference over the reference's largest magnitude: 1e-4 is allowed for float32 and
float64, 1e-2 for float16, 4e-2 for bfloat16; integers, booleans and strings must agree exactly. Of a model compiled
with --precision tf32 or fp16, 1e-2 is allowed for all inexact outputs, with bf16 4e-2.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tilestitch.compiler.cli import errors, rivals
from tilestitch.compiler.cli.arguments import (
    add_device,
    add_inputs,
    add_json,
    add_threads,
    add_weights,
    load_artifact,
    make_inputs,
    read_inputs,
)
from tilestitch.compiler.cli.output import give, say, table
from tilestitch.compiler.cli.paths import existing

if TYPE_CHECKING:
    from tilestitch.compiler.cli.accuracy import Difference

SUMMARY = "check an artifact's results against ONNX Runtime or ONNX's reference"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", metavar="MODEL.tsm")
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("--against", choices=rivals.CHECKERS, default="onnxruntime")
    parser.add_argument(
        "--tolerance", type=float, metavar="X", help="allowed error of inexact outputs, instead of the usual"
    )
    parser.add_argument(
        "--bisect", action="store_true", help="if results differ, find the first kernel whose result does"
    )
    add_inputs(parser)
    add_device(parser)
    add_threads(parser)
    add_weights(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from tilestitch.compiler.cli.accuracy import LOWERED, difference
    from tilestitch.runtime.artifact import read_artifact

    artifact, path = existing(options.artifact), existing(options.model)
    if options.tolerance is None:
        options.tolerance = LOWERED.get(read_artifact(artifact).manifest.precision)
    given = read_inputs(options.input)
    model = load_artifact(options)
    inputs = make_inputs(model, given, options.seed)
    outputs = model.run(inputs)
    expected = rivals.CHECKERS[options.against](path)(inputs)
    if len(expected) != len(outputs):
        raise errors.UsageError(
            f"{artifact} has {len(outputs)} outputs and {path} has {len(expected)}: they are not the same model"
        )
    found = [difference(name, outputs[name], want, options.tolerance) for name, want in zip(outputs, expected)]
    culprit = None
    if options.bisect and not all(one.ok for one in found):
        from tilestitch.compiler.cli.bisect import first_difference

        culprit = first_difference(artifact, path, inputs, options)
    _tell(options, found, culprit)
    return errors.OK if all(one.ok for one in found) else errors.ACCURACY


def _tell(options: argparse.Namespace, found: list[Difference], culprit: dict[str, Any] | None) -> None:
    ok = all(one.ok for one in found)
    if options.json:
        result = {"ok": ok, "against": options.against, "outputs": [one.to_json() for one in found]}
        give(result if not options.bisect else {**result, "first_difference": culprit})
        return
    header = ("output", "dtype", "shape", "error", "allowed", "", "note")
    rows = [(one.name, one.dtype, _dims(one.shape), f"{one.error:.2e}", f"{one.tolerance:.0e}", _word(one.ok), one.note)
            for one in found]  # fmt: skip
    say(table(rows, header))
    if culprit is not None:
        say(culprit["text"])
    elif options.bisect and not ok:
        say(
            "no intermediate result differs when the model is compiled again to look at it: the artifact is of another "
            "model or version, or the fault depends on how operators are fused"
        )
    say(f"{'agrees' if ok else 'DIFFERS'} with {options.against}")


def _word(ok: bool) -> str:
    return "ok" if ok else "OFF"


def _dims(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
