"""Error of a result against a reference, and its tolerance."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

TOLERANCES = {
    "float64": 1e-6,
    "complex128": 1e-6,
    "float32": 1e-4,
    "complex64": 1e-4,
    "tf32": 1e-2,
    "float16": 1e-2,
    "bfloat16": 4e-2,
    "float8_e4m3fn": 0.13,
    "float8_e4m3fnuz": 0.13,
    "float8_e5m2": 0.26,
    "float8_e5m2fnuz": 0.26,
    "float8_e8m0fnu": 1.0,
    "float4_e2m1fn": 0.5,
}
"""By precision of the arithmetic: largest difference relative to the reference's largest magnitude. TF32 has the
mantissa of float16.
"""


AMPLIFIED = 2
"""Quantisation can turn a difference in the last bits into whole steps, and later layers can amplify these. Where the
reference itself moves under such a change, this many times as much is allowed.
"""


@dataclass(frozen=True)
class Tolerance:
    """A difference of up to `atol` + `rtol` times the reference's largest magnitude is allowed; `rule` is the origin of
    both.
    """

    rtol: float
    atol: float
    rule: str


EXACT = Tolerance(0.0, 0.0, "exact")


@dataclass(frozen=True)
class Limits:
    """Determinants of a value's tolerance: the arithmetic that leads to it, as `explain` gives it (None: only its own
    data type counts), and the user's overrides. `moved`: how far the reference moved, relative to its largest
    magnitude, when the last bits of what it quantises were changed.
    """

    arithmetic: Mapping[str, Any] | None = None
    rtol: float | None = None
    atol: float | None = None
    moved: float = 0.0

    def of(self, dtype: str) -> Tolerance:
        """Return the tolerance for a value of this data type."""
        if (self.rtol is not None or self.atol is not None) and dtype not in ("bool", "string"):
            given = " and ".join(f"--{name}" for name in ("rtol", "atol") if getattr(self, name) is not None)
            return Tolerance(self.rtol or 0.0, self.atol or 0.0, given)
        ruled = _inexact(dtype, self.arithmetic or {}) if dtype in TOLERANCES else _exact(dtype, self.arithmetic or {})
        if AMPLIFIED * self.moved > ruled.rtol and ruled != EXACT:
            changed = (
                f"what a change of the last bits before quantisation makes of it, {AMPLIFIED} times {self.moved:.1e}"
            )
            ruled = Tolerance(AMPLIFIED * self.moved, ruled.atol, changed)
        return ruled


def _inexact(dtype: str, arithmetic: Mapping[str, Any]) -> Tolerance:
    """Return the tolerance of floats: by the coarsest precision on the way, and the steps of quantisation."""
    inside = arithmetic.get("precision", "exact")
    coarsest = max(dtype, inside, key=lambda precision: TOLERANCES.get(precision, 0.0))
    rtol, rule = TOLERANCES[coarsest], coarsest
    if coarsest == inside != dtype:
        rule += f" inside, in ONNX node {arithmetic['node']}"
    bits, step = arithmetic.get("bits", 0), arithmetic.get("step")
    if bits and 1 / _levels(bits) > rtol:
        rtol, rule = 1 / _levels(bits), f"one step of quantisation to {bits} bits inside, 1/{_levels(bits)}"
    if step is not None:
        rule += f", and one step of its own quantisation, {step:.3g}"
    return Tolerance(rtol, step or 0.0, rule)


def _exact(dtype: str, arithmetic: Mapping[str, Any]) -> Tolerance:
    """Return the tolerance of integers, booleans and strings: exact, except for quantised integers."""
    step = arithmetic.get("step")
    if step is None or dtype in ("bool", "string"):
        return EXACT
    return Tolerance(0.0, step, "one step of its own quantisation")


def _levels(bits: int) -> int:
    """Return the number of steps from zero to the largest magnitude of signed integers of so many bits."""
    return int(max(1, 2 ** (bits - 1) - 1))


@dataclass(frozen=True)
class Difference:
    """Comparison of one value. `error` and `tolerance` are relative to the reference's largest magnitude.

    `ok`: whether the error is within `tolerance`, which `rule` gave.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    error: float
    tolerance: float
    ok: bool
    rule: str = ""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        return {**fields, "error": self.error if np.isfinite(self.error) else None, "shape": list(self.shape)}


def differences(
    names: Sequence[str],
    got: Sequence[Any],
    want: Sequence[Any],
    limits: Sequence[Limits],
    jittered: Callable[[], Sequence[Sequence[Any]]],
) -> list[Difference]:
    """Compare values in pairs. `jittered` returns the reference's results with the last bits of quantised tensors
    changed, several times; it is called if a value that depends on quantisation differs by more than a step.
    """
    found = [difference(*one) for one in zip(names, got, want, limits, strict=True)]
    quantised = [(limit.arithmetic or {}).get("bits") for limit in limits]
    given = any(limit.rtol is not None or limit.atol is not None for limit in limits)
    if given or not any(bits and not one.ok for bits, one in zip(quantised, found)):
        return found
    runs = jittered()
    moved = [max(difference("", run[i], one, Limits(rtol=0.0)).error for run in runs) for i, one in enumerate(want)]
    wider = [
        replace(limit, moved=error) if bits and np.isfinite(error) else limit
        for limit, bits, error in zip(limits, quantised, moved)
    ]
    return [difference(*one) for one in zip(names, got, want, wider, strict=True)]


def difference(name: str, got: Any, want: Any, limits: Limits = Limits()) -> Difference:
    """Compare GOT with WANT."""
    if want is None or got is None or isinstance(want, (list, tuple)) or isinstance(got, (list, tuple)):
        return _structured(name, got, want, limits)
    if isinstance(want, dict) or isinstance(got, dict):
        return _mapped(name, got, want, limits)
    got, want = np.asarray(got), np.asarray(want)
    dtype = _dtype(want)
    tolerance = limits.of(dtype)

    def verdict(gap: float, largest: float, note: str = "") -> Difference:
        scale = largest or 1.0
        allowed = tolerance.rtol * scale + tolerance.atol
        return Difference(name, dtype, want.shape, gap / scale, allowed / scale, gap <= allowed, tolerance.rule, note)

    if _dtype(got) != dtype:
        return verdict(np.inf, 1.0, f"dtype is {_dtype(got)}")
    if got.shape != want.shape:
        return verdict(np.inf, 1.0, f"shape is {got.shape}")
    if dtype in ("bool", "string"):
        off = int(np.count_nonzero(got != want))
        return verdict(off / max(1, want.size), 1.0, f"{off} elements differ" if off else "")
    return verdict(*_gap(got, want))


def _structured(name: str, got: Any, want: Any, limits: Limits) -> Difference:
    """Compare sequences and empty optionals by their worst element."""
    same = isinstance(got, (list, tuple)) and isinstance(want, (list, tuple)) and len(got) == len(want)
    if got is None and want is None:
        return Difference(name, "nothing", (), 0.0, 0.0, True)
    if not same:
        return Difference(name, "sequence", (), float("inf"), 0.0, False, note="structure differs")
    parts = [difference(f"{name}[{index}]", a, b, limits) for index, (a, b) in enumerate(zip(got, want))]
    worst = max(parts, key=lambda part: (not part.ok, part.error), default=None)
    if worst is None:
        return Difference(name, "sequence", (0,), 0.0, 0.0, True)
    return Difference(name, "sequence", (len(parts),), worst.error, worst.tolerance, worst.ok, worst.rule, worst.note)


def _mapped(name: str, got: Any, want: Any, limits: Limits) -> Difference:
    """Compare maps: equal keys in any order, and values as one array."""
    if not (isinstance(got, dict) and isinstance(want, dict) and got.keys() == want.keys()):
        return Difference(name, "map", (), float("inf"), 0.0, False, note="structure differs")
    keys = list(want)
    values = difference(name, _values(got, keys), _values(want, keys), limits)
    return replace(values, dtype="map")


def _values(of: dict[Any, Any], keys: Sequence[Any]) -> np.ndarray:
    """Return the values of these keys; floats as float32, the only kind that ZipMap, which makes all maps, produces."""
    values = np.array([of[key] for key in keys])
    return values.astype(np.float32) if values.dtype.kind == "f" else values


def _gap(got: np.ndarray, want: np.ndarray) -> tuple[float, float, str]:
    """Return the largest difference, the largest magnitude of the expected values, and a note."""
    if want.dtype.kind in "iu":
        return _integer_gap(got, want)
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    got, want = got.astype(wide), want.astype(wide)
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True) or not np.isfinite(got[finite]).all():
        return np.inf, 1.0, "infinities or NaNs are elsewhere"
    if not finite.any():
        return 0.0, 0.0, ""
    return float(np.abs(got[finite] - want[finite]).max()), float(np.abs(want[finite]).max()), ""


def _integer_gap(got: np.ndarray, want: np.ndarray) -> tuple[float, float, str]:
    """Return the gap of integers without float64, which cannot represent all 64-bit ones: a difference that wraps is
    right as unsigned.
    """
    off = int(np.count_nonzero(got != want))
    gaps = np.where(got > want, got - want, want - got).view(f"u{want.dtype.itemsize}")
    largest = max(abs(int(want.max())), abs(int(want.min()))) if want.size else 0
    return float(gaps.max(initial=0)), float(largest), f"{off} elements differ" if off else ""


def _dtype(array: np.ndarray) -> str:
    return "string" if array.dtype.kind in "OUST" else array.dtype.name
