"""Compares an artifact's results with those of another engine on the same inputs. Exit code 3 if they differ.

  tilestitch check model.tsm model.onnx --against reference

The error of an output is its largest difference, divided by the reference's largest magnitude. The allowed error
depends on the arithmetic that leads to the output, in the model and as compiled: 1e-6 for float64, 1e-4 for float32,
1e-2 for tf32 and float16, 4e-2 for bfloat16, and one quantisation step where floats are quantised while the model runs.
Integers that are not quantised, booleans and strings must agree exactly. The answer names the rule that was applied.
"""

from __future__ import annotations

import argparse
import math
from functools import partial
from typing import TYPE_CHECKING, Any

from tilestitch.compiler.cli import errors, rivals
from tilestitch.compiler.cli.arguments import add_json, add_loading, load_artifact
from tilestitch.compiler.cli.explain import read_explain
from tilestitch.compiler.cli.inputs import add_inputs, inputs_for
from tilestitch.compiler.cli.output import give, say, table
from tilestitch.compiler.cli.paths import existing

if TYPE_CHECKING:
    from tilestitch.compiler.cli.accuracy import Difference

SUMMARY = "check an artifact's results against ONNX Runtime or ONNX's reference"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", metavar="MODEL.tsm", help="the artifact to check")
    parser.add_argument("model", metavar="MODEL.onnx", help="the model that it was compiled from")
    parser.add_argument(
        "--against", choices=rivals.CHECKERS, default="onnxruntime", help="what to compare with (default: onnxruntime)"
    )
    parser.add_argument(
        "--rtol", "--tolerance", type=limit, metavar="X", help="allowed error, relative to the largest magnitude"
    )
    parser.add_argument("--atol", type=limit, metavar="X", help="allowed absolute error, added to that of --rtol")
    parser.add_argument(
        "--bisect", action="store_true", help="if results differ, find the first kernel with a different result"
    )
    add_inputs(parser)
    add_loading(parser)
    add_json(parser)


def limit(text: str) -> float:
    """Parse a finite number that is not negative, as an argparse type."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no finite number of at least 0")
    return value


def run(options: argparse.Namespace) -> int:
    from tilestitch.compiler.cli.accuracy import Limits, differences

    artifact, path = existing(options.artifact), existing(options.model)
    explained = read_explain(artifact)
    if "arithmetic" not in explained:
        raise errors.UsageError(f"{artifact} was compiled by an older version of tilestitch; compile the model again")
    model = load_artifact(options)
    inputs = inputs_for(model, options)
    index = model.specialisation_for(inputs)
    explained = [explained, *explained.get("specialisations", [])][index]
    outputs = model.run(inputs)
    expected = rivals.CHECKERS[options.against](path)(inputs)
    if len(expected) != len(outputs):
        raise errors.UsageError(
            f"{artifact} has {len(outputs)} outputs and {path} has {len(expected)}: they are not the same model"
        )
    limits = [Limits(inside, options.rtol, options.atol) for inside in explained["arithmetic"]]
    again = partial(rivals.on_jittered, options.against, path, inputs)
    found = differences(list(outputs), list(outputs.values()), expected, limits, again)
    culprit, text = None, ""
    if options.bisect and not all(one.ok for one in found):
        from tilestitch.compiler.cli.bisect import first_difference

        culprit, text = first_difference(model.artifact.plan[index], explained, path, inputs, options)
    _tell(options, found, culprit, text)
    return errors.OK if all(one.ok for one in found) else errors.ACCURACY


def _tell(options: argparse.Namespace, found: list[Difference], culprit: dict[str, Any] | None, text: str) -> None:
    ok = all(one.ok for one in found)
    if options.json:
        result = {"ok": ok, "against": options.against, "outputs": [one.to_json() for one in found]}
        give(result if not options.bisect else {**result, "first_difference": culprit, "bisect": text})
        return
    header = ("output", "dtype", "shape", "error", "allowed", "", "rule", "note")
    rows = [(one.name, one.dtype, _dims(one.shape), f"{one.error:.2e}", f"{one.tolerance:.0e}", _word(one.ok),
             one.rule, one.note) for one in found]  # fmt: skip
    say(table(rows, header))
    if text:
        say(text)
    say(f"{'agrees' if ok else 'DIFFERS'} with {options.against}")


def _word(ok: bool) -> str:
    return "ok" if ok else "OFF"


def _dims(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
