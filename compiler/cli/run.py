"""Runs an artifact once, on inputs from files or on random ones.

tilestitch run model.tsm --input image=cat.npy -o out.npz
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilestitch.compiler.cli import errors
from tilestitch.compiler.cli.arguments import add_json, add_loading, load_artifact
from tilestitch.compiler.cli.inputs import add_inputs, input_files, inputs_for
from tilestitch.compiler.cli.output import give, say, table
from tilestitch.compiler.cli.paths import writable

if TYPE_CHECKING:
    import numpy as np

SUMMARY = "run an artifact once"

MODELS = (".onnx", ".tsm", ".safetensors")
"""Suffixes of models and their weights."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", metavar="MODEL.tsm", help="the artifact to run")
    add_inputs(parser)
    parser.add_argument("-o", "--output", metavar="OUT.npz", help="write the outputs to this file, by name")
    add_loading(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    taken = [options.artifact, options.weights, *input_files(options.input)]
    target = None if options.output is None else _replaceable(writable(options.output, taken))
    model = load_artifact(options)
    outputs = model.run(inputs_for(model, options))
    if target is not None:
        _save(target, outputs)
    summary = [describe(name, value) for name, value in outputs.items()]
    if options.json:
        give({"outputs": summary})
    else:
        header = ("name", "dtype", "shape", "min", "mean", "max")
        say(table([[_text(row[key]) for key in header] for row in summary], header))
        if target is not None:
            say(f"wrote {target}")
    return errors.OK


def _replaceable(target: Path) -> Path:
    """Return the target. Raises UsageError where outputs would replace a model, as when -o is mistaken for the model's
    option.
    """
    if target.exists() and target.suffix.lower() in MODELS:
        raise errors.UsageError(f"{target} is there already and named like a model; name an .npz file for the outputs")
    return target


def describe(name: str, value: Any) -> dict[str, Any]:
    """Return the facts about an output: name, dtype, shape, and min, mean, max of its finite numbers."""
    import numpy as np

    facts: dict[str, Any] = {"name": name, "dtype": "nothing", "shape": None, "min": None, "mean": None, "max": None}
    if isinstance(value, (list, tuple)):
        return {**facts, "dtype": "sequence", "shape": [len(value)]}
    if value is None:
        return facts
    array = np.asarray(value)
    facts.update(dtype="string" if array.dtype.kind in "OUT" else array.dtype.name, shape=list(array.shape))
    if array.dtype.kind not in "OUTSc":
        numbers = array.astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        if finite.size:
            facts.update(min=float(finite.min()), mean=float(finite.mean()), max=float(finite.max()))
    return facts


def _save(target: Path, outputs: dict[str, np.ndarray]) -> None:
    import numpy as np

    from tilestitch.runtime.archive import atomic_file

    outputs = {part: array for name, value in outputs.items() for part, array in _as_arrays(name, value).items()}
    unfit = [name for name, value in outputs.items() if not isinstance(value, np.ndarray) or value.dtype.kind == "O"]
    if unfit:
        raise errors.UsageError(f"{', '.join(unfit)} cannot be put into an .npz file: not arrays of numbers")
    arrays: dict[str, Any] = outputs
    with atomic_file(target) as file:
        np.savez(file, **arrays)


def _as_arrays(name: str, value: Any) -> dict[str, Any]:
    """Return maps of the same keys as arrays: NAME.keys [keys] and NAME.values [maps, keys]. Other values as they
    are.
    """
    import numpy as np

    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        return {name: value}
    keys = list(value[0])
    if any(item.keys() != value[0].keys() for item in value):
        return {name: value}
    return {f"{name}.keys": np.array(keys), f"{name}.values": np.array([[item[key] for key in keys] for item in value])}


def _text(value: Any) -> Any:
    if value is None:
        return "-"
    return "x".join(map(str, value)) or "scalar" if isinstance(value, list) else value
