"""A model with open dimensions: how its file is made, how far its dimensions go, and inputs of any size."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.open_models.sizes import MakeFeeds, Ranges

Axes = Mapping[str, Mapping[int, str]]
"""Of an input, which axes are open, and the dimension's name, or a sum of names."""

FOLDER = Path(__file__).parent.parent / "models" / "open"
EXPORTERS = {"script": 17, "dynamo": 20}
"""Of PyTorch's exporters, the older one and the one that goes through torch.export, and the operator set of each."""
SEED = 0


@dataclass(frozen=True)
class OpenModel:
    """`write(path, exporter)` makes the file; `feeds(sizes, random)` makes inputs, maybe more than the file kept."""

    write: Callable[[Path, str], None]
    ranges: Ranges
    feeds: MakeFeeds
    exporters: Sequence[str] = tuple(EXPORTERS)


def path_of(name: str, exporter: str) -> Path:
    return FOLDER / f"{name}.{exporter}.onnx"


def export(model: OpenModel, name: str, exporter: str, force: bool = False) -> Path:
    """The file of NAME, which is made when it is not there."""
    path = path_of(name, exporter)
    if path.exists() and not force:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    model.write(unfinished, exporter)
    os.replace(unfinished, path)
    return path
