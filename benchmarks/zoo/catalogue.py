"""Every model of the zoo by name."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.zoo import classical, language, modules, speech, vision
from benchmarks.zoo.sample import Build, export

TABLES: Mapping[str, Mapping[str, Build]] = {
    "language": language.MODELS, "speech": speech.MODELS, "vision": vision.MODELS, "modules": modules.MODELS,
}  # fmt: skip


def names() -> list[str]:
    return [name for part in TABLES.values() for name in part] + list(classical.MODELS)


def write(name: str, folder: Path, stem: str, options: argparse.Namespace) -> None:
    """Writes STEM.onnx, its inputs STEM.npz, and the sizes of open axes STEM.json."""
    if name in classical.MODELS:
        classical.write(name, folder / f"{name}.onnx")
        return
    build = {key: value for part in TABLES.values() for key, value in part.items()}[name]
    from benchmarks.zoo.checking import input_names

    opset = options.opset or {"dynamo": 18, "script": 17}[options.exporter]
    path = folder / f"{stem}.onnx"
    sample = export(build, path, options.exporter, opset, options.half, options.dynamic)
    kept = input_names(path)
    arrays = {key: value.detach().numpy() for key, value in sample.inputs.items() if key in kept}
    np.savez(path.with_suffix(".npz"), **arrays)
    if options.dynamic:
        path.with_suffix(".json").write_text(json.dumps({key: list(value.shape) for key, value in arrays.items()}))
    print(f"{stem}: {path.stat().st_size / 1e6:.1f} MB", flush=True)
