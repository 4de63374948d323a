"""Cast between every pair of dtypes, as the ONNX standard specifies it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .common import Attrs, HostError, HostFn, computing, numpy_dtype, widen

# Largest finite value of the 8-bit floats that `saturate` concerns.
_LARGEST = {"float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0, "float8_e5m2": 57344.0, "float8_e5m2fnuz": 57344.0}


def cast_array(x: np.ndarray, to: str, saturate: bool = True, round_mode: str = "up") -> np.ndarray:
    """Return `x` as dtype `to`. Floats are truncated to integers; NaN and values outside an integer's range give an
    unspecified integer.

    `saturate` clamps to the finite range of the float8 types, infinities too; otherwise out of range gives NaN or inf.
    `round_mode` (up, down, nearest) is for float8_e8m0fnu, which holds powers of two.
    Raises `HostError` for a string that is not a number.
    """
    with computing():
        if to == "string":
            return _to_string(x)
        if x.dtype.kind in "OUS":
            x = _from_string(x, to)
        if to == "float8_e8m0fnu" and x.dtype.name != to:
            return _to_e8m0(x, saturate, round_mode)
        if to in _LARGEST and saturate and x.dtype.name != to:
            wide = widen(x) if x.dtype.kind != "f" else x
            limit = _LARGEST[to]
            return np.clip(wide.astype(np.float32) if wide.dtype.kind != "f" else wide, -limit, limit).astype(
                numpy_dtype(to)
            )
        return _astype(x, to)


def _astype(x: np.ndarray, to: str) -> np.ndarray:
    target = numpy_dtype(to)
    if x.dtype.kind == "c" and target.kind != "c":
        x = x.real
    if target.kind == "b":
        return widen(x) != 0
    if x.dtype == target:
        return np.array(x)
    wide = widen(x)  # exact; and not all pairs of small dtypes convert directly
    if target.kind == "u" and wide.dtype.kind == "f" and target.itemsize < 8:
        # A negative float has no unsigned value; going through int64 makes it wrap on every machine alike.
        wide = wide.astype(np.int64)
    return wide.astype(target)


def _to_e8m0(x: np.ndarray, saturate: bool, round_mode: str) -> np.ndarray:
    """Return the exponent of each float32 as float8_e8m0fnu, rounded by `round_mode`; the sign is dropped, and 0
    becomes the least power.
    """
    bits = np.ascontiguousarray(widen(x).astype(np.float32)).view(np.uint32)
    exponent = ((bits >> 23) & 0xFF).astype(np.int32)
    fraction = bits & 0x7FFFFF
    special = exponent == 0xFF
    if round_mode == "up":
        exponent = exponent + (fraction > 0)
    elif round_mode == "nearest":
        # A tie goes up, but for subnormal numbers, where it goes down to the least power.
        exponent = exponent + ((fraction > 0x400000) | ((fraction == 0x400000) & (exponent > 0)))
    elif round_mode != "down":
        raise HostError(f"round_mode {round_mode!r} is none of up, down, nearest")
    if saturate:
        exponent = np.minimum(exponent, 0xFE)
    result = np.where(special, 0xFF, exponent).astype(np.uint8).reshape(x.shape)
    return result.view(numpy_dtype("float8_e8m0fnu"))


def _to_string(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind in "OUS":
        return x.astype(object)
    result = np.empty(x.shape, object)
    result.reshape(-1)[:] = [_text(v) for v in x.reshape(-1)]
    return result


def _text(value: Any) -> str:
    """Return the shortest decimal that reads back as the value; NaN, INF and -INF in the standard's spelling."""
    if value.dtype.kind in "biu":
        return str(value)
    number = float(value)
    if number != number:
        return "NaN"
    if number in (float("inf"), float("-inf")):
        return "INF" if number > 0 else "-INF"
    return str(value)


def _from_string(x: np.ndarray, to: str) -> np.ndarray:
    target = numpy_dtype(to)
    integral = target.kind in "iub" or to in ("int4", "uint4", "int2", "uint2")
    try:
        numbers: list[Any] = [_parse_int(s) if integral else float(s) for s in x.reshape(-1).tolist()]
    except ValueError as error:
        raise HostError(f"Cast to {to}: {error}; the string is no number") from error
    if to == "uint64":
        return np.array([n & 0xFFFFFFFFFFFFFFFF for n in numbers], np.uint64).reshape(x.shape)
    wide = np.int64 if integral else np.float64
    return np.array(numbers, wide).reshape(x.shape)


def _parse_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(float(text))


def _cast(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    result = cast_array(inputs[0], attrs["to"], bool(attrs.get("saturate", True)), attrs.get("round_mode") or "up")
    return [np.asarray(result)]


TABLE: Mapping[str, HostFn] = {"cast": _cast}
