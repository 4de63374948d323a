"""Resize along axes of open size: tables of input positions and weights are computed at run time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.sizes import Size

from .. import found_sizes
from ..builder import dtype_of
from ..context import Context
from ..found_sizes import Element
from .indexing import along_axis


def places_dtype(mode: str, nearest_mode: str) -> str:
    """Return the dtype in which positions are computed. For interpolation that of ONNX Runtime and PyTorch: in an image
    of 400 columns their weights differ from exact ones by 4e-5. Which element is nearest must not depend on rounding:
    it is computed from the sizes, as in PyTorch, or from the scale where that is not their quotient. Before operator
    set 11 it follows ONNX Runtime's use of the scale.
    """
    return "float64" if mode == "nearest" and nearest_mode != BEFORE_11 else "float32"


@dataclass(frozen=True)
class OpenAxis:
    """An axis resized from `size` to `out`. `scale`: as the model gives or computes it; None: the quotient of both
    sizes. `window`: start and end of the crop, as parts of the axis; None: the whole axis.
    """

    size: Size
    out: Size
    scale: float | Value | None
    window: tuple[float | Value, float | Value] | None = None


LARGEST_DENOMINATOR = 1 << 12

BEFORE_11 = "before_11"
"""The `nearest_mode` of operator sets without one, as ONNX Runtime implements them: float32 positions are rounded up
along an axis that shrinks, and down along others.
"""


def scaled_size(ctx: Context, size: Size, scale: float | Value) -> Size:
    """Return the floor of the float32 product of an open size and a scale.

    A known scale is taken for the simplest fraction that rounds to it, as 0.7 is 7 / 10: products that are not integers
    are further from one than the rounding error, and those that are round to it. Where the latter depends on the size,
    as the scale is too far below the fraction, it is computed at run time.
    """
    if isinstance(scale, Value):
        return _told(ctx, size, scale)
    exact = Fraction(float(np.float32(scale)))
    simple = _simplest(exact)
    if simple is None:
        return size * exact.numerator // exact.denominator
    if (simple - exact) / simple > Fraction(1, 1 << 25):
        return _told(ctx, size, ctx.constant(scale, "float32"))
    return size * simple.numerator // simple.denominator


def _told(ctx: Context, size: Size, scale: Value) -> Size:
    product = ctx.mul(ctx.cast(ctx.size(size), "float32"), scale)
    return found_sizes.sizes_of(ctx, [Element(ctx.cast(ctx.emit("floor", product), "int64"), 0)])[0]


def _simplest(exact: Fraction) -> Fraction | None:
    limits = (1 << bits for bits in range(LARGEST_DENOMINATOR.bit_length()))
    near = (exact.limit_denominator(limit) for limit in limits)
    return next((fraction for fraction in near if np.float32(float(fraction)) == float(exact)), None)


def resampled(ctx: Context, x: Value, axis: int, how: OpenAxis, sampling: Mapping[str, object]) -> Value:
    """Return x resampled along one axis. `sampling`: mode, coordinates, nearest_mode, cubic_a and exclude_outside."""
    places = _places(ctx, how, sampling)
    last = ctx.size(how.size - 1)
    if sampling["mode"] == "nearest":
        rounded = ctx.cast(_nearest(ctx, places, how, str(sampling["nearest_mode"])), "int64")
        return ctx.gather(x, ctx.clamp(rounded, 0, last), axis)
    taps = (0, 1) if sampling["mode"] == "linear" else (-1, 0, 1, 2)
    first = ctx.emit("floor", places)
    terms: list[tuple[Value, Value]] = []
    for tap in taps:
        place = ctx.add(first, tap)
        distance = ctx.emit("abs", ctx.sub(place, places))
        weight = _linear(ctx, distance) if len(taps) == 2 else _cubic(ctx, distance, sampling["cubic_a"], tap)
        terms.append((ctx.cast(place, "int64"), weight))
    if sampling["exclude_outside"]:
        terms = _inside_only(ctx, terms, last)
    return reduce(ctx.add, (_term(ctx, x, axis, place, weight, last) for place, weight in terms))


def outside_crop(ctx: Context, how: OpenAxis, sampling: Mapping[str, object]) -> Value:
    """Return which positions are outside the axis, where its crop extends beyond it."""
    places = _places(ctx, how, sampling)
    last = ctx.cast(ctx.size(how.size - 1), dtype_of(places))
    return ctx.emit("logical_or", ctx.less(places, 0.0), ctx.less(last, places))


def _term(ctx: Context, x: Value, axis: int, place: Value, weight: Value, last: Value) -> Value:
    factor = along_axis(ctx, ctx.cast(weight, dtype_of(x)), axis, ctx.rank(x))
    return ctx.mul(ctx.gather(x, ctx.clamp(place, 0, last), axis), factor)


def _places(ctx: Context, how: OpenAxis, sampling: Mapping[str, object]) -> Value:
    """Return real-valued input positions of the output positions."""
    dtype = places_dtype(str(sampling["mode"]), str(sampling["nearest_mode"]))
    return _source_places(ctx, how, str(sampling["coordinates"]), dtype)


def _source_places(ctx: Context, how: OpenAxis, coordinates: str, dtype: str) -> Value:
    place = ctx.cast(ctx.iota(how.out), dtype)
    size, out = ctx.cast(ctx.size(how.size), dtype), ctx.cast(ctx.size(how.out), dtype)
    given = how.scale if isinstance(how.scale, Value) or how.scale is None else ctx.constant(how.scale, dtype)
    scale = ctx.div(out, size) if given is None else ctx.cast(given, dtype)
    length = out if given is None else _unless_rounded(ctx, ctx.mul(size, scale), out)

    def scaled(at: Value) -> Value:
        return ctx.div(ctx.mul(at, size), length) if dtype == "float64" else ctx.div(at, scale)

    if coordinates == "align_corners":
        steps = ctx.maximum(ctx.sub(length, 1.0), 1e-30)
        return ctx.select(ctx.equal(length, 1.0), 0.0, ctx.div(ctx.mul(place, ctx.sub(size, 1.0)), steps))
    if how.window is not None:
        start, end = (e if isinstance(e, Value) else ctx.constant(e, dtype) for e in how.window)
        return _cropped(ctx, place, (ctx.cast(start, dtype), ctx.cast(end, dtype)), ctx.sub(size, 1.0), length)
    if coordinates == "asymmetric":
        return scaled(place)
    middle = scaled(ctx.add(place, 0.5))
    if coordinates == "tf_half_pixel_for_nn":
        return middle
    half_pixel = ctx.sub(middle, 0.5)
    if coordinates == "pytorch_half_pixel":
        return ctx.select(ctx.equal(length, 1.0), 0.0, half_pixel)
    if coordinates == "half_pixel_symmetric":
        missing = ctx.sub(1.0, ctx.div(out, length))
        return ctx.add(half_pixel, ctx.mul(ctx.div(size, 2.0), missing))
    return half_pixel


def _cropped(ctx: Context, place: Value, window: tuple[Value, Value], last: Value, length: Value) -> Value:
    """Return positions between both ends of a window; a single one is in its middle."""
    start, end = (ctx.mul(edge, last) for edge in window)
    steps = ctx.maximum(ctx.sub(length, 1.0), 1e-30)
    across = ctx.add(start, ctx.div(ctx.mul(place, ctx.mul(ctx.sub(window[1], window[0]), last)), steps))
    return ctx.select(ctx.equal(length, 1.0), ctx.mul(ctx.add(start, end), 0.5), across)


def _unless_rounded(ctx: Context, length: Value, out: Value) -> Value:
    """Return the length, or the size if they are equal up to rounding."""
    is_size = ctx.equal(ctx.cast(length, "float32"), ctx.cast(out, "float32"))
    return ctx.select(is_size, out, length)


def _nearest(ctx: Context, places: Value, how: OpenAxis, mode: str) -> Value:
    if mode != BEFORE_11:
        return _ROUNDINGS[mode](ctx, places)
    assert how.scale is not None  # those operator sets have scales only
    down, up = ctx.emit("floor", places), ctx.emit("ceil", places)
    if isinstance(how.scale, Value):
        return ctx.select(ctx.less(how.scale, 1.0), up, down)
    return up if how.scale < 1 else down


_ROUNDINGS: Mapping[str, Callable[[Context, Value], Value]] = {
    "round_prefer_floor": lambda ctx, x: ctx.emit("ceil", ctx.sub(x, 0.5)),
    "round_prefer_ceil": lambda ctx, x: ctx.emit("floor", ctx.add(x, 0.5)),
    "floor": lambda ctx, x: ctx.emit("floor", x),
    "ceil": lambda ctx, x: ctx.emit("ceil", x),
}


def _linear(ctx: Context, distance: Value) -> Value:
    return ctx.sub(1.0, distance)


def _cubic(ctx: Context, x: Value, a: object, tap: int) -> Value:
    """Return the cubic weight of a tap; the taps next to a position are at most 1 away from it, the others 1 to 2."""
    assert isinstance(a, float)
    if tap in (0, 1):
        return ctx.add(ctx.mul(ctx.mul(ctx.sub(ctx.mul(x, a + 2), a + 3), x), x), 1.0)
    return ctx.sub(ctx.mul(ctx.add(ctx.mul(ctx.sub(ctx.mul(x, a), 5 * a), x), 8 * a), x), 4 * a)


def _inside_only(ctx: Context, terms: list[tuple[Value, Value]], last: Value) -> list[tuple[Value, Value]]:
    """Return the taps without weight outside the image, the others normalised to sum up to 1."""
    kept = []
    for place, weight in terms:
        inside = ctx.emit("logical_and", ctx.less_equal(0, place), ctx.less_equal(place, last))
        kept.append((place, ctx.select(inside, weight, 0.0)))
    total = reduce(ctx.add, (weight for _, weight in kept))
    total = ctx.select(ctx.equal(total, 0.0), 1.0, total)
    return [(place, ctx.div(weight, total)) for place, weight in kept]
