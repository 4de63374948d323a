"""What a model of the zoo is before it is exported, and the exporters."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.detection_operators import declare_operators

SEED = 0
Dynamic = Mapping[str, Mapping[int, str]]


@dataclass(frozen=True)
class Sample:
    """A module in evaluation mode and one set of its inputs, in the order of `forward`.

    dynamic: of an input, which axes are open and under what name.
    """

    module: nn.Module
    inputs: Mapping[str, Tensor]
    dynamic: Dynamic = field(default_factory=dict)


Build = Callable[[], Sample]


def optional(module: str) -> Any:
    """Imports MODULE, or says what to install."""
    declare_operators()
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise SystemExit(f"{module} cannot be imported ({error}): install it with `pip install {package}`") from error


class Flat(nn.Module):
    """Calls a module with its inputs by name, and returns the tensors of what it returns as a tuple."""

    def __init__(self, module: nn.Module, names: Sequence[str], **constants: Any) -> None:
        super().__init__()
        self.module, self.names, self.constants = module, list(names), constants

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensors_of(self.module(**dict(zip(self.names, values)), **self.constants)))


def tensors_of(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for part in value.values() for tensor in tensors_of(part)]
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in tensors_of(part)]
    return []


NOTHING = 1e-6
"""Largest of weights that leave only biases after them."""


def randomise(module: nn.Module) -> None:
    """Gives vectors and statistics the values of a trained model's kind: a fresh module has zeros and ones there; and
    matrices that begin at next to nothing some that let their input through.
    """
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() == 1 and parameter.is_floating_point():
                low, width = (0.8, 0.4) if name.endswith("weight") else (-0.1, 0.2)
                parameter.uniform_(low, low + width)
            elif parameter.dim() > 1 and parameter.is_floating_point() and parameter.abs().max() < NOTHING:
                parameter.normal_(0, parameter[0].numel() ** -0.5)
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.uniform_(-0.1, 0.1)
            elif name.endswith("running_var"):
                buffer.uniform_(0.8, 1.2)


def prepared(build: Build) -> Sample:
    """What BUILD makes with the seed of all samples, in evaluation mode."""
    torch.manual_seed(SEED)
    sample = build()
    sample.module.eval()
    randomise(sample.module)
    return sample


def export(build: Build, path: Path, exporter: str, opset: int, half: bool = False, dynamic: bool = False) -> Sample:
    """Exports what BUILD makes to PATH with EXPORTER, `dynamo` or `script`.

    half: floating-point weights and inputs become float16. dynamic: the sample's open axes stay open.
    """
    sample = prepared(build)
    if half:
        cast = {name: value.half() if value.is_floating_point() else value for name, value in sample.inputs.items()}
        sample = Sample(sample.module.half(), cast, sample.dynamic)
    names = list(sample.inputs)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = tensors_of(sample.module(*sample.inputs.values()))
        shared: dict[str, Any] = {
            "input_names": names,
            "output_names": [f"output{index}" for index in range(len(outputs))],
            "opset_version": opset,
            "verbose": False,
        }
        arguments = tuple(sample.inputs.values())
        if exporter == "dynamo":
            shapes: Any = tuple(dict.fromkeys(sample.dynamic.get(name, {}), torch.export.Dim.AUTO) for name in names)
            if isinstance(sample.module, Flat):  # one parameter takes all
                shapes = (shapes,)
            program = torch.onnx.export(
                sample.module, arguments, dynamo=True, dynamic_shapes=shapes if dynamic else None, **shared
            )
            assert program is not None
            program.save(str(path), external_data=False)
        else:
            axes = {name: dict(value) for name, value in sample.dynamic.items()} if dynamic else None
            torch.onnx.export(sample.module, arguments, str(path), dynamo=False, dynamic_axes=axes, **shared)
    return sample
