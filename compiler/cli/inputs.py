"""Inputs of an artifact's runs: from files, or random ones of the requested sizes."""

from __future__ import annotations

import argparse
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilestitch.compiler.cli.arguments import natural, whole_number
from tilestitch.compiler.cli.errors import UsageError
from tilestitch.compiler.cli.paths import existing

if TYPE_CHECKING:
    import numpy as np

_ARRAY_MAGIC = (b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of files of one array, and of zips of several."""


def add_inputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help="an array for this input; inputs that are not given are random",
    )
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help="seed of the random inputs (default: 0)")
    add_sizes(parser, "sizes of open dimensions, for random inputs; may be repeated")


def add_sizes(parser: argparse.ArgumentParser, purpose: str) -> None:
    parser.add_argument(
        "--dim", action="extend", type=parse_sizes, default=[], metavar="NAME=8[,NAME=77]…", help=purpose
    )


def parse_sizes(text: str) -> list[tuple[str, int]]:
    """Parse `batch=8,seq=77`, as an argparse type."""
    sizes = []
    for part in text.split(","):
        name, _, digits = part.rpartition("=")
        size = whole_number(digits.strip())
        if not name.strip() or size is None:
            raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=8,NAME=77")
        sizes.append((name.strip(), size))
    return sizes


def sizes_of(pairs: Sequence[tuple[str, int]], option: str = "--dim") -> dict[str, int]:
    """Return the sizes by name of dimension. Raises UsageError for one that is given twice."""
    sizes: dict[str, int] = {}
    for name, size in pairs:
        if sizes.setdefault(name, size) != size:
            raise UsageError(f"{option} {name} is given as {sizes[name]} and as {size}; give it once")
    return sizes


def input_files(texts: Sequence[str]) -> list[str]:
    """Return the files of `NAME=FILE.npy` arguments."""
    return [text.rpartition("=")[2] for text in texts]


def read_inputs(texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Return arrays by name from `NAME=FILE.npy` arguments. Pickled arrays are refused."""

    inputs: dict[str, np.ndarray] = {}
    for text in texts:
        name, separator, path = text.rpartition("=")
        if not separator or not name:
            raise UsageError(f"--input {text!r} is not of the form NAME=FILE.npy")
        if name in inputs:
            raise UsageError(f"--input {name} is given twice")
        inputs[name] = _read_array(name, existing(path))
    return inputs


def _read_array(name: str, path: Path) -> np.ndarray:
    import numpy as np

    with path.open("rb") as file:
        if not file.read(len(_ARRAY_MAGIC[0])).startswith(_ARRAY_MAGIC):  # numpy would suggest loading it as a pickle
            raise UsageError(f"--input {name}: {path} is not a .npy file; write one with numpy.save")
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(
            f"--input {name}: {path} is not a plain .npy file ({error}); write it again with numpy.save"
        ) from error
    if not isinstance(array, np.ndarray):
        raise UsageError(f"--input {name}: {path} holds several arrays; save one as .npy")
    return array


def inputs_for(model: Any, options: argparse.Namespace) -> dict[str, np.ndarray]:
    """Return the inputs in the options, and random ones for the rest, for MODEL, a loaded artifact."""
    return make_inputs(model, read_inputs(options.input), options.seed, sizes_of(options.dim))


def make_inputs(
    model: Any, given: Mapping[str, np.ndarray], seed: int, sizes: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """Return the inputs for MODEL: GIVEN, and random arrays for the rest. Their open dimensions come from GIVEN and
    SIZES; without either, from the first specialisation that fits, is static and non-empty.
    """
    fitting = [specs for specs in model.specialisations if _fits(specs, given)]
    static = next((specs for specs in fitting if all(_is_static(spec) and 0 not in spec.shape for spec in specs)), None)
    if static is not None and not sizes:
        return fill_inputs(static, given, seed)
    known = _known_sizes(model.inputs, given, sizes or {})
    return fill_inputs(model.inputs, given, seed, known)


def _fits(specs: Sequence[Any], given: Mapping[str, Any]) -> bool:
    return all(_has_shape(given[spec.name], spec.shape) for spec in specs if spec.name in given)


def _has_shape(value: Any, shape: Any) -> bool:
    """Return whether a value has a shape; names match any size, and other values than tensors match."""
    actual = getattr(value, "shape", None)
    if shape is None or actual is None:
        return True
    return len(actual) == len(shape) and all(isinstance(b, str) or a == b for a, b in zip(actual, shape))


def _is_static(spec: Any) -> bool:
    return spec.shape is not None and all(isinstance(dim, int) for dim in spec.shape)


# Drawn even if it is given, so that the others do not depend on which are.


def _known_sizes(specs: Sequence[Any], given: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes by name: requested ones, and those of given inputs. Raises UsageError for unknown names, sizes
    out of range, and where the two differ.
    """
    check_sizes(specs, sizes)
    known = dict(sizes)
    for spec in specs:
        actual = getattr(given.get(spec.name), "shape", ())
        for dim, size in zip(spec.shape or (), actual, strict=False):
            if isinstance(dim, str) and known.setdefault(dim, size) != size and dim in sizes:
                raise UsageError(f"--dim {dim}={sizes[dim]}, but input {spec.name} has {size} there; leave one out")
    return known


def check_sizes(specs: Sequence[Any], sizes: Mapping[str, int]) -> None:
    """Raise UsageError for sizes of dimensions that the inputs SPECS do not leave open, and for those out of range."""
    ranges = {symbol.name: symbol for spec in specs for symbol in spec.symbols}
    open_dims = {name: str(ranges.get(name, name)) for name in _names_of(specs)}
    for name, size in sizes.items():
        if name not in open_dims:
            raise UsageError(f"--dim {name}: no input has such an open dimension; there are {_listed(open_dims)}")
        if name in ranges and not ranges[name].holds(size):
            allowed = f"from {ranges[name].low} to {ranges[name].high}"
            raise UsageError(f"--dim {name}={size}: the artifact was compiled for sizes {allowed}")


def _names_of(specs: Sequence[Any]) -> dict[str, None]:
    """Return the names in the inputs' dimensions, in order."""
    texts = [dim for spec in specs for dim in spec.shape or () if isinstance(dim, str)]
    return {name: None for text in texts for name in re.findall(r"[^\W\d]\w*", text) if name not in ("max", "min")}


def _listed(open_dims: Mapping[str, str]) -> str:
    return ", ".join(open_dims.values()) or "none"


def _size(dim: int | str, known: Mapping[str, int]) -> int | str:
    """Return the size of a dimension, or its text if that is not known."""
    from tilestitch.runtime.sizes import SizeError, value_of

    if isinstance(dim, int) or dim in known:
        return known.get(dim, dim) if isinstance(dim, str) else dim
    try:
        return value_of(dim, known)
    except SizeError:
        return dim


# -- arrays ------------------------------------------------------------------------------------------------------------


def fill_inputs(
    specs: Sequence[Any], given: Mapping[str, np.ndarray], seed: int, known: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """Return GIVEN completed by random arrays for those of SPECS (with name, dtype, shape) that it lacks, in the order
    of SPECS. KNOWN: sizes of open dimensions.

    Floats are normally distributed; integers and booleans are 0 or 1, which is in range for indices and masks alike.
    Raises UsageError for names that are none of SPECS, and where a missing input has no random counterpart.
    """
    import numpy as np

    unknown = sorted(set(given) - {spec.name for spec in specs})
    if unknown:
        names = ", ".join(spec.name for spec in specs) or "none"
        raise UsageError(f"the model has no input {', '.join(unknown)}; its inputs: {names}")
    random = np.random.default_rng(seed)
    lacking = [name for name in _names_of(specs) if name not in (known or {})]
    inputs = {}
    for spec in specs:
        shape = None if spec.shape is None else tuple(_size(dim, known or {}) for dim in spec.shape)
        # Drawn even if it is given, so that the others do not depend on which are.
        drawn = _draw(random, spec.dtype, shape) if shape is not None and _is_drawable(spec.dtype, shape) else None
        value = given.get(spec.name, drawn)
        if value is None:
            kind = f"{spec.dtype} {_dims(shape)}"
            raise UsageError(f"input {spec.name} ({kind}) cannot be made up; {_remedy(spec.name, shape, lacking)}")
        inputs[spec.name] = value
    return inputs


def _remedy(name: str, shape: Sequence[int | str] | None, lacking: Sequence[str]) -> str:
    from_file = f"give it with --input {name}=FILE.npy"
    if shape is None or all(isinstance(size, int) for size in shape):
        return from_file
    return f"{from_file}, or sizes: --dim {','.join(f'{size}=N' for size in lacking)}"


def _is_drawable(dtype: str, shape: Sequence[int | str]) -> bool:
    return all(isinstance(dim, int) for dim in shape) and dtype not in ("string", "sequence", "optional", "map")


def _draw(random: np.random.Generator, dtype: str, shape: Sequence[Any]) -> np.ndarray:
    import numpy as np

    from tilestitch.runtime.dtypes import numpy_dtype

    whole = dtype == "bool" or dtype.startswith(("int", "uint"))
    values = random.integers(0, 2, shape) if whole else random.standard_normal(shape)
    return np.asarray(values).astype(numpy_dtype(dtype))


def _dims(shape: Sequence[int | str] | None) -> str:
    return "of unknown shape" if shape is None else "x".join(str(dim) for dim in shape) or "scalar"
