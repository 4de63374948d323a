"""Arguments that several commands share, and their text forms."""

import argparse
from collections.abc import Iterable
from typing import Any

from tilestitch.compiler.cli.paths import existing

Shape = tuple[int, ...]


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_loading(parser: argparse.ArgumentParser) -> None:
    """Add the options of `load_artifact`."""
    parser.add_argument("--device", default="cpu", help="where to run: cpu (default), cuda, cuda:N, emulator")
    parser.add_argument(
        "--multiprocessors", type=positive, metavar="N",
        help="run on so many of a GPU's multiprocessors, rounded up to what it allows (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="threads to run with (default: all physical cores)"
    )
    parser.add_argument(
        "--weights",
        metavar="FILE.safetensors",
        help="the weights of an artifact that was compiled with --strip-weights",
    )
    parser.add_argument(
        "--no-sync", action="store_true",
        help="let kernels wait for whole kernels, even if the model was compiled with --sync",
    )  # fmt: skip


def load_artifact(options: argparse.Namespace) -> Any:
    """Return the artifact named in the options, loaded for their device with their weights and threads."""
    from tilestitch.runtime import load

    weights = None if options.weights is None else existing(options.weights)
    artifact = existing(options.artifact)
    return load(
        artifact, device=options.device, num_threads=options.threads, weights=weights, sync=not options.no_sync,
        multiprocessors=options.multiprocessors,
    )  # fmt: skip


def positive(text: str) -> int:
    """Parse an integer of at least 1, as an argparse type."""
    value = whole_number(text)
    if value is None or value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def natural(text: str) -> int:
    """Parse an integer of at least 0, as an argparse type."""
    value = whole_number(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return value


def whole_number(text: str) -> int | None:
    """Return the number in ASCII digits; None for anything else: signs, spaces, `1_000`, digits of other scripts."""
    return int(text) if text.isascii() and text.isdecimal() else None


def parse_shape(text: str) -> tuple[str, Shape]:
    """Parse `NAME=1x3x224x224`, or `NAME=` for a scalar, as an argparse type. The name may contain `=`."""
    name, separator, dims = text.rpartition("=")
    shape = [whole_number(dim) for dim in dims.split("x")] if dims else []
    if not separator or not name or None in shape:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=1x3x224x224")
    return name, tuple(dim for dim in shape if dim is not None)


def parse_dim(text: str) -> tuple[str, tuple[int, int]]:
    """Parse `NAME=1..64`, or `NAME=64` for one size, as an argparse type. The name may contain `=`."""
    name, separator, sizes = text.rpartition("=")
    low, dots, high = sizes.partition("..")
    wanted = f"{text!r} is not of the form NAME=1..64"
    first, last = whole_number(low), whole_number(high if dots else low)
    if not separator or not name or first is None or last is None:
        raise argparse.ArgumentTypeError(wanted)
    if first > last:
        raise argparse.ArgumentTypeError(f"{wanted}: it ends before it begins")
    return name, (first, last)


def shape_sets(pairs: Iterable[tuple[str, Shape]]) -> tuple[dict[str, Shape], ...]:
    """Return one set of input shapes for each specialisation: a repeated name begins the next set."""
    sets: list[dict[str, Shape]] = []
    for name, shape in pairs:
        if not sets or name in sets[-1]:
            sets.append({})
        sets[-1][name] = shape
    return tuple(sets)
