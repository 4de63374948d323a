"""The arguments of commands that compile models for GPUs: which models, for which targets, in which precisions."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx.backend.test.loader as loader

MADE = Path(__file__).parent / "models"
"""What `python -m benchmarks.models` has made."""
LIGHT = Path(loader.DATA_DIR) / "light"
"""Nine models that come with the onnx package."""
TARGETS, PRECISIONS = ("cuda:sm_80", "cuda:sm_90a"), ("fp32", "fp16")

Choice = tuple[Path, str, str]
"""Model, target and precision."""


def add_choices(parser: argparse.ArgumentParser, precisions: Sequence[str] = PRECISIONS) -> None:
    """The arguments; precisions: the default."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these models")
    for name, default in (("target", TARGETS), ("precision", precisions)):
        usual = f"may be repeated (default: {', then '.join(default)})"
        parser.add_argument(f"--{name}", action="append", help=usual)
    parser.set_defaults(default_precisions=precisions)
    usual = "compile so many at once"
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help=usual)


def chosen(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Iterator[Choice]:
    """What was chosen, model by model; an unknown model ends the command."""
    models = {path.stem: path for folder in (MADE, LIGHT) for path in sorted(folder.glob("*.onnx"))}
    unknown = sorted(set(options.names) - set(models))
    if unknown:
        parser.error(f"there is no model {', '.join(unknown)}; there are {', '.join(models)}")
    for name in options.names or models:
        for target in options.target or TARGETS:
            for precision in options.precision or options.default_precisions:
                yield models[name], target, precision
