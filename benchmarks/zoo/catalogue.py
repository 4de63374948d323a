"""Every PyTorch model of the zoo by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.zoo import decoders, diffusion, language, modules, newer, perception, recent, speech, vision
from benchmarks.zoo.checking import input_names
from benchmarks.zoo.sample import Build, Sample, export, prepared

TABLES: Mapping[str, Mapping[str, Build]] = {
    "language": language.MODELS, "decoders": decoders.MODELS, "speech": speech.MODELS, "vision": vision.MODELS,
    "modules": modules.MODELS, "recent": recent.MODELS, "diffusion": diffusion.MODELS,
    "perception": perception.MODELS, "newer": newer.MODELS,
}  # fmt: skip


def names() -> list[str]:
    return [name for part in TABLES.values() for name in part]


def build_of(name: str) -> Build:
    return {key: value for part in TABLES.values() for key, value in part.items()}[name]


def sample_of(name: str) -> Sample:
    """The module and the inputs that an export of this name was made from."""
    return prepared(build_of(name))


def write(name: str, path: Path, exporter: str, opset: int, half: bool, dynamic: bool) -> None:
    """Writes the model to PATH, its inputs beside it as .npz, and the sizes of open axes as .json."""
    sample = export(build_of(name), path, exporter, opset, half, dynamic)
    kept = input_names(path)
    arrays = {key: value.detach().numpy() for key, value in sample.inputs.items() if key in kept}
    np.savez(path.with_suffix(".npz"), allow_pickle=True, **arrays)
    if dynamic:
        path.with_suffix(".json").write_text(json.dumps({key: list(value.shape) for key, value in arrays.items()}))
    print(f"{path.stem}: {path.stat().st_size / 1e6:.1f} MB", flush=True)
