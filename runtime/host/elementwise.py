"""Element-wise operators. Floats below 32 bits are computed in float32; integers wrap around; nothing warns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .common import Attrs, HostFn, computing, narrow, numpy_dtype, widen, width_bits


def _unary(function: Callable[[Any], Any]) -> HostFn:
    def run(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
        (x,) = inputs
        with computing():
            return [narrow(function(widen(x)), x.dtype)]

    return run


def _binary(function: Callable[[Any, Any], Any]) -> HostFn:
    def run(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
        a, b = inputs
        with computing():
            return [narrow(function(widen(a), widen(b)), a.dtype)]

    return run


def _comparison(function: Callable[[Any, Any], Any]) -> HostFn:
    def run(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
        a, b = inputs
        with computing():
            return [narrow(function(widen(a), widen(b)), np.dtype(bool))]

    return run


def _erf(x: np.ndarray) -> np.ndarray:
    """Return erf from the C library, correct to about the last bit, since numpy has none."""
    return np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if np.asarray(a).dtype.kind not in "iu":
        return np.true_divide(a, b)
    quotient = np.floor_divide(a, b)
    if np.asarray(a).dtype.kind == "u":
        return quotient
    rounded_down = (a - quotient * b != 0) & ((a < 0) != (b < 0)) & (b != 0)
    return quotient + rounded_down


def _power(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    base, exponent = inputs
    with computing():
        return [narrow(_power_of(widen(base), widen(exponent)), base.dtype)]


def _power_of(base: np.ndarray, exponent: np.ndarray) -> Any:
    integral = base.dtype.kind in "iu" and exponent.dtype.kind in "iu"
    if not integral:
        # For a scalar exponent of 0.5 numpy takes the square root, which differs for -inf and for -0.
        return np.power(base, np.broadcast_to(exponent, np.broadcast_shapes(base.shape, exponent.shape)).copy())
    if exponent.dtype.kind == "u" or not (exponent < 0).any():
        return np.power(base, exponent.astype(np.uint64 if base.dtype == np.uint64 else np.int64))
    # numpy refuses negative powers of integers; the quotient 1 / base^n towards zero is 0 unless |base| is 1.
    positive = _power_of(base, np.maximum(exponent, 0))
    odd = (exponent & 1) != 0
    inverse = np.where(base == 1, 1, np.where(base == -1, np.where(odd, -1, 1), 0))
    return np.where(exponent < 0, inverse, positive)


def _is_inf(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    x = widen(inputs[0])
    found = np.zeros(x.shape, bool)
    if attrs["positive"]:
        found = found | np.isposinf(x)
    if attrs["negative"]:
        found = found | np.isneginf(x)
    return [np.asarray(found)]


def _is_nan(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    return [np.asarray(np.isnan(widen(inputs[0])))]


def _bit_cast(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    return [np.array(inputs[0], order="C", copy=True).view(numpy_dtype(attrs["to"]))]


def _look_up(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    table = np.frombuffer(bytes.fromhex(attrs["table"]), np.uint8).view(numpy_dtype(attrs["to"]))
    return [table[np.ascontiguousarray(inputs[0]).view(np.uint8)].reshape(inputs[0].shape)]


def _shift(function: Callable[[Any, Any], Any]) -> HostFn:
    def run(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
        a, b = inputs
        width = width_bits(a.dtype)
        value, amount = widen(a), widen(b)
        outside = (amount < 0) | (amount >= width)
        if not outside.any():
            return [narrow(function(value, amount.astype(value.dtype)), a.dtype)]
        shifted = function(value, np.where(outside, 0, amount).astype(value.dtype))
        # All bits are shifted out, and only copies of the sign bit come in from the left.
        sign = np.where((value < 0) & (function is np.right_shift), -1, 0).astype(value.dtype)
        return [narrow(np.where(outside, sign, shifted), a.dtype)]

    return run


def _select(inputs: Sequence[Any], attrs: Attrs) -> list[np.ndarray]:
    condition, a, b = inputs
    return [np.where(condition, a, b)]


_UNARY: Mapping[str, Callable[[Any], Any]] = {
    "neg": np.negative, "abs": np.abs, "sign": np.sign,
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc, "sqrt": np.sqrt,
    "exp": np.exp, "log": np.log, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "erf": _erf,
    "logical_not": np.logical_not, "bitwise_not": np.invert,
}  # fmt: skip

_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide, "mod": np.mod, "fmod": np.fmod,
    "maximum": np.maximum, "minimum": np.minimum,
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
}  # fmt: skip

TABLE: Mapping[str, HostFn] = {
    **{name: _unary(function) for name, function in _UNARY.items()},
    **{name: _binary(function) for name, function in _BINARY.items()},
    "equal": _comparison(np.equal), "less": _comparison(np.less), "less_equal": _comparison(np.less_equal),
    "shift_left": _shift(np.left_shift), "shift_right": _shift(np.right_shift),
    "pow": _power, "is_inf": _is_inf, "is_nan": _is_nan, "bit_cast": _bit_cast, "look_up": _look_up, "select": _select,
}  # fmt: skip
