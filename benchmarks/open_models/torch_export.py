"""From a PyTorch module to an ONNX file with open axes, by either of PyTorch's exporters."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.models import randomise
from benchmarks.open_models.model import EXPORTERS, SEED, Axes, OpenModel
from tests.open_models.sizes import MakeFeeds, Ranges, Sizes


def exported(
    build: Callable[[], nn.Module],
    axes: Axes,
    ranges: Ranges,
    feeds: MakeFeeds,
    example: Sizes,
    outputs: Axes,
    exporters: Sequence[str] = tuple(EXPORTERS),
    prepare: Callable[[nn.Module], None] = randomise,
) -> OpenModel:
    """EXAMPLE are the sizes of what the exporter traces; OUTPUTS names the results, in order, with their open axes."""
    return OpenModel(partial(_write, build, prepare, axes, feeds, example, outputs), ranges, feeds, exporters)


def _write(
    build: Callable[[], nn.Module],
    prepare: Callable[[nn.Module], None],
    axes: Axes,
    feeds: MakeFeeds,
    example: Sizes,
    outputs: Axes,
    path: Path,
    exporter: str,
) -> None:
    torch.manual_seed(SEED)
    module = build().eval()
    prepare(module)
    arrays = feeds(example, np.random.default_rng(SEED))
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    options: dict[str, Any] = {
        "input_names": list(arrays), "output_names": list(outputs), "opset_version": EXPORTERS[exporter],
        "verbose": False,
    }  # fmt: skip
    arguments = tuple(map(torch.from_numpy, arrays.values()))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "script":
            named = {name: dict(open_axes) for name, open_axes in (*axes.items(), *outputs.items())}
            torch.onnx.export(module, arguments, str(path), dynamo=False, dynamic_axes=named, **options)
            return
        shapes = _shapes(module, axes, list(arrays))
        program = torch.onnx.export(module, arguments, dynamo=True, dynamic_shapes=shapes, **options)
        assert program is not None
        program.save(str(path), external_data=False)


def _shapes(module: nn.Module, axes: Axes, names: Sequence[str]) -> tuple[Any, ...]:
    """By parameter of `forward`. A sum of dimensions gets no name: the exporter finds what it is from the others."""
    shapes = [
        {axis: torch.export.Dim.AUTO if "+" in name else name for axis, name in axes.get(key, {}).items()}
        for key in names
    ]
    parameters = inspect.signature(module.forward).parameters.values()
    if not any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return tuple(shapes)
    alone = len(parameters) - 1
    return (*shapes[:alone], tuple(shapes[alone:]))
