"""Arguments that several commands share, and the text forms they have."""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilestitch.compiler.cli.errors import UsageError
from tilestitch.compiler.cli.paths import existing

if TYPE_CHECKING:
    import numpy as np

Shape = tuple[int, ...]


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def add_inputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy", help="an input; those not given are random"
    )
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help="of the random inputs (default 0)")


def add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=positive, metavar="N", help="threads to run with")


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", help="where to run: cpu (default), cuda, cuda:N, emulator")


def add_weights(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights",
        metavar="FILE.safetensors",
        help="of an artifact compiled with --strip-weights",
    )


def load_artifact(options: argparse.Namespace) -> Any:
    """The artifact that the options name, loaded for their device with their weights and threads."""
    from tilestitch.runtime import load

    weights = existing(options.weights) if options.weights else None
    artifact = existing(options.artifact)
    return load(artifact, device=options.device, num_threads=options.threads, weights=weights)


def positive(text: str) -> int:
    """An argparse type: an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def natural(text: str) -> int:
    """An argparse type: an integer of at least 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def input_files(texts: Sequence[str]) -> list[str]:
    """The files of `NAME=FILE.npy` arguments."""
    return [text.rpartition("=")[2] for text in texts]


def parse_shape(text: str) -> tuple[str, Shape]:
    """An argparse type: `NAME=1x3x224x224`, or `NAME=` for a scalar. The name may hold `=`."""
    name, separator, dims = text.rpartition("=")
    try:
        shape = tuple(int(dim) for dim in dims.split("x")) if dims else ()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=1x3x224x224") from None
    if not separator or not name or any(dim < 0 for dim in shape):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=1x3x224x224")
    return name, shape


def parse_dim(text: str) -> tuple[str, tuple[int, int]]:
    """An argparse type: `NAME=1..64`, or `NAME=64` for one size. The name may hold `=`."""
    name, separator, sizes = text.rpartition("=")
    low, dots, high = sizes.partition("..")
    wanted = f"{text!r} is not of the form NAME=1..64"
    if not (separator and name and low.isdecimal() and (high.isdecimal() or not dots)):
        raise argparse.ArgumentTypeError(wanted)
    first, last = int(low), int(high if dots else low)
    if first > last:
        raise argparse.ArgumentTypeError(f"{wanted}: it ends before it begins")
    return name, (first, last)


def shape_sets(pairs: Iterable[tuple[str, Shape]]) -> tuple[dict[str, Shape], ...]:
    """One set of input shapes for each specialisation: a name that comes again begins the next set."""
    sets: list[dict[str, Shape]] = []
    for name, shape in pairs:
        if not sets or name in sets[-1]:
            sets.append({})
        sets[-1][name] = shape
    return tuple(sets)


def read_inputs(texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Arrays by name from `NAME=FILE.npy` arguments. Pickled arrays are refused."""
    import numpy as np

    inputs: dict[str, np.ndarray] = {}
    for text in texts:
        name, separator, path = text.rpartition("=")
        if not separator or not name:
            raise UsageError(f"--input {text!r} is not of the form NAME=FILE.npy")
        if name in inputs:
            raise UsageError(f"--input {name} is given twice")
        try:
            array = np.load(existing(path), allow_pickle=False)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UsageError(f"--input {name}: {path} is not a plain .npy file ({error})") from error
        if not isinstance(array, np.ndarray):
            raise UsageError(f"--input {name}: {path} holds several arrays; save one as .npy")
        inputs[name] = array
    return inputs


def make_inputs(model: Any, given: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Inputs for MODEL, a loaded artifact.

    GIVEN, and random arrays for the rest, of the first specialisation that fits.
    """
    fitting = [specs for specs in model.specialisations if _fits(specs, given)]
    return fill_inputs((fitting or model.specialisations)[0], given, seed)


def specialisation_of(model: Any, inputs: Mapping[str, Any]) -> int:
    """The number of MODEL's first specialisation that INPUTS fit; the first of all where none does."""
    return next((i for i, specs in enumerate(model.specialisations) if _fits(specs, inputs)), 0)


def _fits(specs: Sequence[Any], given: Mapping[str, Any]) -> bool:
    return all(_has_shape(given[spec.name], spec.shape) for spec in specs if spec.name in given)


def _has_shape(value: Any, shape: Any) -> bool:
    """Names stand for any size; what is no tensor has no shape to compare."""
    actual = getattr(value, "shape", None)
    if shape is None or actual is None:
        return True
    return len(actual) == len(shape) and all(isinstance(b, str) or a == b for a, b in zip(actual, shape))


def fill_inputs(specs: Sequence[Any], given: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """GIVEN completed by random arrays for those of SPECS (with name, dtype, shape) that it lacks, in the order of
    SPECS.

    Floats are normally distributed; integers and booleans are 0 or 1, which is in range for indices and masks alike.
    Raises UsageError for names that are none of SPECS, and where a missing input has no random counterpart.
    """
    import numpy as np

    unknown = sorted(set(given) - {spec.name for spec in specs})
    if unknown:
        known = ", ".join(spec.name for spec in specs) or "none"
        raise UsageError(f"the model has no input {', '.join(unknown)}; its inputs: {known}")
    random = np.random.default_rng(seed)
    inputs = {}
    for spec in specs:
        # Drawn even if it is given, so that the others do not depend on which are.
        drawn = _draw(random, spec) if _is_drawable(spec) else None
        value = given.get(spec.name, drawn)
        if value is None:
            raise UsageError(f"input {spec.name} ({spec.dtype} {_dims(spec.shape)}) cannot be made up; {_remedy(spec)}")
        inputs[spec.name] = value
    return inputs


def _remedy(spec: Any) -> str:
    given = f"give it with --input {spec.name}=FILE.npy"
    if not spec.shape or all(isinstance(size, int) for size in spec.shape):
        return given
    sizes = "x".join(str(size) if isinstance(size, int) else f"<{size}>" for size in spec.shape)
    return f"{given}, or name its sizes when you compile, besides those named: --shape {spec.name}={sizes}"


def _is_drawable(spec: Any) -> bool:
    static = spec.shape is not None and all(isinstance(dim, int) for dim in spec.shape)
    return static and spec.dtype not in ("string", "sequence", "optional")


def _draw(random: np.random.Generator, spec: Any) -> np.ndarray:
    import numpy as np

    from tilestitch.runtime.dtypes import numpy_dtype

    whole = spec.dtype == "bool" or spec.dtype.startswith(("int", "uint"))
    values = random.integers(0, 2, spec.shape) if whole else random.standard_normal(spec.shape)
    return np.asarray(values).astype(numpy_dtype(spec.dtype))


def _dims(shape: Any) -> str:
    return "of unknown shape" if shape is None else "x".join(str(dim) for dim in shape) or "scalar"
