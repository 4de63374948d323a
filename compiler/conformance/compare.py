"""Comparison of results: same structure, dtype and shape, and values within the tolerance of the dtype."""

from collections.abc import Sequence
from typing import Any

import numpy as np

# Relative and absolute tolerance of inexact dtypes; every other dtype must agree exactly.
TOLERANCES = {
    "float64": (1e-3, 1e-5),
    "float32": (1e-3, 1e-5),
    "complex64": (1e-3, 1e-5),
    "complex128": (1e-3, 1e-5),
    "float16": (1e-2, 1e-3),
    "bfloat16": (2.0**-6, 1e-2),
    "float8_e4m3fn": (0.13, 1e-2),
    "float8_e4m3fnuz": (0.13, 1e-2),
    "float8_e5m2": (0.13, 1e-2),
    "float8_e5m2fnuz": (0.13, 1e-2),
}


class Mismatch(Exception):
    """A result differs from what was expected. `aspect` is structure, dtype, shape or value."""

    def __init__(self, aspect: str, detail: str) -> None:
        self.aspect = aspect
        super().__init__(f"{aspect}: {detail}")


def compare(actual: Sequence[Any], expected: Sequence[Any], rtol: float = 0.0, atol: float = 0.0) -> None:
    """Raise Mismatch unless ACTUAL is EXPECTED; RTOL and ATOL widen the tolerances of inexact dtypes, never narrow."""
    if len(actual) != len(expected):
        raise Mismatch("structure", f"{len(actual)} values instead of {len(expected)}")
    for index, (got, want) in enumerate(zip(actual, expected)):
        _compare_value(f"output {index}", got, want, rtol, atol)


def _compare_value(where: str, got: Any, want: Any, rtol: float, atol: float) -> None:
    if want is None or got is None:
        if got is not want:
            raise Mismatch("structure", f"{where} is {_kind(got)} instead of {_kind(want)}")
    elif isinstance(want, (list, tuple)):
        if not isinstance(got, (list, tuple)):
            raise Mismatch("structure", f"{where} is {_kind(got)} instead of a sequence")
        if len(got) != len(want):
            raise Mismatch("structure", f"{where} is a sequence of {len(got)} instead of {len(want)}")
        for index, (one, other) in enumerate(zip(got, want)):
            _compare_value(f"{where}[{index}]", one, other, rtol, atol)
    else:
        _compare_array(where, np.asarray(got), np.asarray(want), rtol, atol)


def _compare_array(where: str, got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> None:
    if _dtype(got) != _dtype(want):
        raise Mismatch("dtype", f"{where} is {_dtype(got)} instead of {_dtype(want)}")
    if got.shape != want.shape:
        raise Mismatch("shape", f"{where} is {got.shape} instead of {want.shape}")
    off = _differing(got, want, rtol, atol)
    if off.any():
        raise Mismatch(
            "value", f"{where}, {_dtype(want)}: {int(off.sum())} of {off.size} off, {_worst(got, want, off)}"
        )


def _differing(got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> np.ndarray:
    name = _dtype(want)
    if name == "string":
        return np.asarray(got.astype(object) != want.astype(object))
    if name not in TOLERANCES:
        return np.asarray(got != want)
    relative, absolute = TOLERANCES[name]
    with np.errstate(all="ignore"):
        close = np.isclose(_wide(got), _wide(want), max(relative, rtol), max(absolute, atol), equal_nan=True)
    return ~np.asarray(close)


def _worst(got: np.ndarray, want: np.ndarray, off: np.ndarray) -> str:
    first = tuple(int(axis[0]) for axis in np.nonzero(np.atleast_1d(off)))[: got.ndim]
    text = f"first at {first}: {got[first]} instead of {want[first]}"
    if _dtype(want) == "string":
        return text
    with np.errstate(all="ignore"):
        gaps = np.abs(_wide(got) - _wide(want))
    return f"{text}, largest difference {np.max(gaps, where=~np.isnan(gaps), initial=0):.3g}"


def _wide(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.kind == "c" else array.astype(np.float64)


def _dtype(array: np.ndarray) -> str:
    return "string" if array.dtype.kind in "OUST" else array.dtype.name


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    return "a sequence" if isinstance(value, (list, tuple)) else "a tensor"
