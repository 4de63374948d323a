"""Loads and runs mutants of an artifact: `python -m tests.mutants.run_artifacts FILE DEVICE FIRST COUNT`.

Each is executed, or refused with an error of ours; the caller's arrays stay as they were.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.mutants.artifacts import mutant
from tests.mutants.isolation import work
from tilestitch.runtime import Module, load
from tilestitch.runtime.dtypes import numpy_dtype
from tilestitch.runtime.errors import TilestitchRuntimeError
from tilestitch.runtime.sizes import SizeError, names, parse, value_of

MOST_ELEMENTS = 1 << 20


def execute(data: bytes, device: str) -> None:
    with load(data, device=device, num_threads=1) as loaded:
        run(loaded)


def check(data: bytes, device: str) -> None:
    try:
        execute(data, device)
    except TilestitchRuntimeError as error:
        str(error).encode()


def run(loaded: Module) -> None:
    feeds = {info.name: _array(info.type) for info in loaded.inputs}
    if any(array is None for array in feeds.values()):
        return
    before = {name: array.copy() for name, array in feeds.items()}
    for _ in range(2):
        loaded.run(feeds)
    for name, array in feeds.items():
        assert np.array_equal(array, before[name], equal_nan=array.dtype.kind == "f"), f"input {name!r} was written to"


def _array(type_: Any) -> Any:
    """Small numbers of a type; None for one that there are no small arrays of."""
    shape, dtype = getattr(type_, "shape", None), getattr(type_, "dtype", "string")
    if shape is None or dtype == "string":
        return None
    sizes = tuple(map(_size, shape))
    if min(sizes, default=0) < 0 or np.prod([float(size) for size in sizes]) > MOST_ELEMENTS:
        return None
    return np.random.default_rng(0).integers(0, 2, sizes).astype(numpy_dtype(dtype))


def _size(size: int | str) -> int:
    """A size of which every symbol is 3."""
    try:
        return value_of(size, dict.fromkeys(names(parse(str(size))), 3))
    except SizeError:
        return 3


if __name__ == "__main__":
    path, device, first, count = sys.argv[1:]
    data = Path(path).read_bytes()
    work(int(first), int(count), lambda: execute(data, device), lambda seed: check(mutant(data, seed), device))
