"""Counts 64-bit integer operations in the kernels of small models with open dimensions, by the PTX that NVRTC makes.

    python -m benchmarks.open_indices [NAME ...] [--target cuda:sm_90a]

Each model is compiled for its ranges, and for those that its dimensions have where none is given. NAME is one of
`tests.open_models.catalogue`. Quotients of 64 bits take tens of instructions on a GPU, those of 32 few; a product is
about four times as dear. No GPU is needed, and no CUDA installation.
"""

from __future__ import annotations

import argparse
import re
import sys

from tests.open_models.catalogue import fixture_of
from tilestitch.compiler.driver import CompiledModel, compile_model

NAMES = (
    "encoder.script", "gpt2.dynamo", "llama.script", "whisper.dynamo", "resnet.dynamo", "mobilenet.script",
    "keras_cnn.keras", "dlrm.script",
)  # fmt: skip
COUNTED = {
    "64-bit quotients": re.compile(r"\b(?:div|rem)\.[su]64\b"),
    "of constants": re.compile(r"\bmul\.hi\.[su]64\b"),
    "64-bit products": re.compile(r"\b(?:mul|mad)\.lo\.[su]64\b"),
    "32-bit quotients": re.compile(r"\b(?:div|rem)\.[su]32\b"),
}


def counts(compiled: CompiledModel) -> list[int]:
    """Of all kernels of an artifact, equal ones once."""
    texts = [bytes(data).decode() for name, data in compiled.contents.kernels.items() if name.endswith(".ptx")]
    return [sum(len(pattern.findall(text)) for text in texts) for pattern in COUNTED.values()]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.open_indices", description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these models")
    parser.add_argument("--target", default="cuda:sm_90a")
    options = parser.parse_args(arguments)
    header = ("model", "ranges", *COUNTED)
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}", flush=True)
    for name in options.names or NAMES:
        fixture = fixture_of(name)
        for called, dims in (("given", dict(fixture.ranges)), ("default", None)):
            found = counts(compile_model(fixture.model, options.target, dims=dims))
            print(f"| {name} | {called} | {' | '.join(map(str, found))} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
