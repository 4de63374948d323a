"""Writes an example model: random weights from a seed, no download.

mlp          three layers and a softmax: x, float32 8x64
transformer  an encoder of two layers, 128 wide: ids, int64 1x64
resnet50     ResNet-50: image, float32 1x3x224x224
"""

import argparse

from tilestitch.compiler.cli import errors
from tilestitch.compiler.cli.arguments import add_json, natural
from tilestitch.compiler.cli.output import give, say
from tilestitch.compiler.cli.paths import writable

SUMMARY = "write a model to try things with"
NAMES = ("mlp", "transformer", "resnet50")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=NAMES, help="which model to write")
    parser.add_argument("-o", "--output", required=True, metavar="MODEL.onnx", help="the file to write")
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help="seed of the weights (default: 0)")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    target = writable(options.output)
    from tilestitch.compiler.example_models import EXAMPLES
    from tilestitch.runtime.archive import atomic_file

    data = EXAMPLES[options.name](options.seed).SerializeToString()
    with atomic_file(target) as file:
        file.write(data)
    if options.json:
        give({"model": str(target), "bytes": len(data), "seed": options.seed})
    else:
        say(f"{target}: {options.name}, {len(data) / 2**20:.1f} MiB")
    return errors.OK
