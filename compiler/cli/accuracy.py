"""How far a result is from a reference, and how far it may be."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

# Largest difference over the reference's largest magnitude, for inexact dtypes; the others must agree exactly.
TOLERANCES = {
    "float64": 1e-4,
    "float32": 1e-4,
    "complex128": 1e-4,
    "complex64": 1e-4,
    "float16": 1e-2,
    "bfloat16": 4e-2,
    "float8_e4m3fn": 0.13,
    "float8_e4m3fnuz": 0.13,
    "float8_e5m2": 0.26,
    "float8_e5m2fnuz": 0.26,
}

LOWERED = {"tf32": TOLERANCES["float16"], "fp16": TOLERANCES["float16"], "bf16": TOLERANCES["bfloat16"]}
"""Of inexact outputs where the model was compiled with less precision: TF32 has the mantissa of float16."""


@dataclass(frozen=True)
class Difference:
    """Of one value. `error` is relative to the largest magnitude of the reference.

    `ok` whether it is within `tolerance`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    error: float
    tolerance: float
    ok: bool
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        return {**fields, "error": self.error if np.isfinite(self.error) else None, "shape": list(self.shape)}


def difference(name: str, got: Any, want: Any, tolerance: float | None = None) -> Difference:
    """Compares GOT with WANT; TOLERANCE takes the place of the dtype's own."""
    if want is None or got is None or isinstance(want, (list, tuple)) or isinstance(got, (list, tuple)):
        return _structured(name, got, want, tolerance)
    got, want = np.asarray(got), np.asarray(want)
    dtype = _dtype(want)
    allowed = TOLERANCES.get(dtype, 0.0) if tolerance is None or dtype not in TOLERANCES else tolerance

    def verdict(error: float, note: str = "") -> Difference:
        return Difference(name, dtype, want.shape, error, allowed, error <= allowed, note)

    if _dtype(got) != dtype:
        return verdict(np.inf, f"dtype is {_dtype(got)}")
    if got.shape != want.shape:
        return verdict(np.inf, f"shape is {got.shape}")
    if dtype not in TOLERANCES:
        off = int(np.count_nonzero(got != want))
        return verdict(off / max(1, want.size), f"{off} elements differ" if off else "")
    return verdict(*_relative(got, want))


def _structured(name: str, got: Any, want: Any, tolerance: float | None) -> Difference:
    """Sequences and empty optionals: the worst element speaks for all."""
    same = isinstance(got, (list, tuple)) and isinstance(want, (list, tuple)) and len(got) == len(want)
    if got is None and want is None:
        return Difference(name, "nothing", (), 0.0, 0.0, True)
    if not same:
        return Difference(name, "sequence", (), float("inf"), 0.0, False, "structure differs")
    parts = [difference(f"{name}[{index}]", a, b, tolerance) for index, (a, b) in enumerate(zip(got, want))]
    worst = max(parts, key=lambda part: (not part.ok, part.error), default=None)
    if worst is None:
        return Difference(name, "sequence", (0,), 0.0, 0.0, True)
    return Difference(name, "sequence", (len(parts),), worst.error, worst.tolerance, worst.ok, worst.note)


def _relative(got: np.ndarray, want: np.ndarray) -> tuple[float, str]:
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    got, want = got.astype(wide), want.astype(wide)
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True) or not np.isfinite(got[finite]).all():
        return np.inf, "infinities or NaNs are elsewhere"
    if not finite.any():
        return 0.0, ""
    largest = float(np.abs(want[finite]).max())
    gap = float(np.abs(got[finite] - want[finite]).max())
    return gap if largest == 0 else gap / largest, ""


def _dtype(array: np.ndarray) -> str:
    return "string" if array.dtype.kind in "OUST" else array.dtype.name
