"""Simplification of what lies between two quantised values: scales are merged, redundant dequantise/quantise pairs
removed, and rounding is moved last.

Zero points and ranges are integer constants here, so that everything but the scales is exact. Reordering factors
changes results by rounding, and is done only where no intermediate value can be infinite: they stem from integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.compiler.ir.magnitudes import LARGEST, magnitude
from tilestitch.compiler.ir.types import to_numpy_dtype
from tilestitch.passes.contract import PassContext, PassResult

from .driver import Pattern, Replacement, apply_patterns, emit_like, is_sized, produced_by, single_reader, splat
from .quantised import BYTES
from .reassociation import product_in_any_order

MOST_COUNTED = 2.0**30
"""Largest float whose integer, plus a zero point, fits 32 bits."""
NEAR = 1e-4
"""Largest deviation from 1 of a factor that leaves rounded bytes unchanged."""
ROUNDED = 2.0**-21
"""Largest relative error from rounding a number and a few factors."""
MOST_SCALES = 4
"""Most consecutive scales that are merged."""
MOST_SCALED = 1e30
"""Largest intermediate factor of an integer: float32 represents such numbers with all digits."""
MOST_COPIED = 4096
"""Most elements of a constant that is duplicated for one of several readers."""
SMALL = ("int8", "uint8", "int16", "uint16")


@dataclass(frozen=True)
class Requantise:
    """Shorten the requantisation of integer sums."""

    name: ClassVar[str] = "requantise"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        own = () if context.target.is_gpu else CPU_PATTERNS
        count = sum(apply_patterns(graph, patterns) for patterns in (*PATTERNS, *own))
        return PassResult.counted(graph, count, "rewrites")


# -- what values are ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Clamped:
    """The float32 value minimum(maximum(round(x) + zero, low), high); `zero` is 0 if nothing is added."""

    x: Value
    zero: int
    low: int
    high: int

    @staticmethod
    def of(graph: Graph, value: Value) -> _Clamped | None:
        """Return `value` in this form, if its intermediate values have no other readers; else None."""
        minimum = produced_by(value, "minimum")
        maximum = None if minimum is None else _read_once(graph, minimum.inputs[0], "maximum")
        if minimum is None or maximum is None or value.dtype != "float32":
            return None
        high, low = _whole(minimum.inputs[1]), _whole(maximum.inputs[1])
        inner, zero = maximum.inputs[0], 0
        shifted = _read_once(graph, inner, "add")
        if shifted is not None:
            known = _whole(shifted.inputs[1])
            if known is None:
                return None
            inner, zero = shifted.inputs[0], known
        rounded = _read_once(graph, inner, "round")
        if rounded is None or low is None or high is None or low > high:
            return None
        return _Clamped(rounded.inputs[0], zero, low, high)

    def fits(self, dtype: str) -> bool:
        """Return whether the range fits an integer dtype."""
        info = np.iinfo(dtype)
        return info.min <= self.low and self.high <= info.max

    def covers(self, dtype: str) -> bool:
        info = np.iinfo(dtype)
        return info.min == self.low and self.high == info.max


def _read_once(graph: Graph, value: Value, op: str) -> Node | None:
    """Return the producer of a value with a single reader, if its operator is `op`."""
    return produced_by(value, op) if single_reader(graph, value) else None


def _whole(value: Value) -> int | None:
    """Return a constant's integer value, if it is small enough for exact float32 arithmetic; else None."""
    number = splat(value)
    if number is None or isinstance(number, bool) or not abs(number) < 1 << 16 or number != int(number):
        return None
    return int(number)


def _same_shape(a: Value, b: Value) -> bool:
    return a.tensor_type.shape == b.tensor_type.shape


def _number(graph: Graph, number: int, dtype: str) -> Value:
    return graph.constant(np.asarray(number, to_numpy_dtype(dtype)))


def _integers_of(value: Value) -> tuple[Value, int] | None:
    """Return (q, zero) of a value that is q - zero as float32; None for others."""
    cast = produced_by(value, "cast")
    if cast is None or value.dtype != "float32":
        return None
    less = produced_by(cast.inputs[0], "sub")
    if less is None:
        return (cast.inputs[0], 0) if cast.inputs[0].dtype in SMALL else None
    widened, zero = produced_by(less.inputs[0], "cast"), _whole(less.inputs[1])
    if widened is None or zero is None or less.output.dtype != "int32" or widened.inputs[0].dtype not in SMALL:
        return None
    return widened.inputs[0], zero


# -- patterns ----------------------------------------------------------------------------------------------------------


def pool_of_bytes(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite the maximum of dequantised bytes to the dequantised maximum of the bytes: scales are positive."""
    product = produced_by(node.inputs[0], "mul")
    if node.attrs["reducer"] != "max" or product is None or not is_sized(product.output):
        return None
    whole, scale = product.inputs
    number, found = splat(scale), _integers_of(whole)
    if number is None or found is None or not 0 < number < LARGEST or not _meets_all(node):
        return None
    q, zero = found
    if q.dtype not in BYTES or not _same_shape(q, product.output):
        return None
    pooled = emit_like(graph, node, "window_reduce", q, **node.attrs)
    return [emit_like(graph, node, "mul", _dequantised(graph, node, pooled, zero), scale)]


def _dequantised(graph: Graph, node: Node, q: Value, zero: int) -> Value:
    """Return q - zero as float32."""
    if zero:
        wide = emit_like(graph, node, "cast", q, to="int32")
        q = emit_like(graph, node, "sub", wide, _number(graph, zero, "int32"))
    return emit_like(graph, node, "cast", q, to="float32")


def _meets_all(node: Node) -> bool:
    """Return whether every window contains an element that is not padding."""
    attrs = node.attrs
    sides = zip(attrs["before"], attrs["after"], attrs["kernel"], strict=True)
    return all(d == 1 for d in attrs["dilations"]) and all(0 <= b < k and 0 <= a < k for b, a, k in sides)


def the_same_bytes(graph: Graph, node: Node) -> Replacement | None:
    """Replace bytes that are dequantised and quantised with the same scale and zero point by the original bytes."""
    to = node.output.dtype
    clamped = _Clamped.of(graph, node.inputs[0]) if to in BYTES else None
    if clamped is None or not clamped.covers(to):
        return None
    value, scales = clamped.x, list[float]()
    while (product := produced_by(value, "mul")) is not None and len(scales) < MOST_SCALES:
        number = splat(product.inputs[1])
        if number is None:
            return None
        value = product.inputs[0]
        scales.insert(0, float(number))
    found = _integers_of(value)
    if found is None or not _is_one(scales):
        return None
    q, zero = found
    return [q] if zero == clamped.zero and q.type == node.output.type else None


def _is_one(scales: list[float]) -> bool:
    """Return whether the product of some scales is 1, and intermediate values become neither too large nor too
    small.
    """
    steps = np.cumprod(scales) if scales else np.ones(1)
    ordinary = (np.abs(steps) > 1 / MOST_SCALED) & (np.abs(steps) < MOST_SCALED)
    return bool(ordinary.all() and abs(steps[-1] - 1) <= NEAR)


def _within(graph: Graph, node: Node, x: Value, low: int, high: int) -> Value:
    raised = emit_like(graph, node, "maximum", x, _number(graph, low, x.dtype))
    return emit_like(graph, node, "minimum", raised, _number(graph, high, x.dtype))


def distributed(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite (a * x + b * y) * c to x * (a * c) + y * (b * c), for constants, one of which may take the place of y."""
    total, factor = node.inputs
    number = splat(factor)
    added = _read_once(graph, total, "add")
    if added is None or number is None or isinstance(number, bool) or number == 0 or node.output.dtype != "float32":
        return None
    if node.output.type != total.type or not magnitude(node.output) < LARGEST:
        return None
    parts = [_times(graph, x, float(number)) for x in added.inputs]
    if any(part is None for part in parts):
        return None
    terms = [
        constant if x is None else emit_like(graph, node, "mul", x, constant)
        for x, constant in (part for part in parts if part is not None)
    ]
    return [emit_like(graph, node, "add", *terms)]


def _times(graph: Graph, value: Value, number: float) -> tuple[Value | None, Value] | None:
    """Return (x, constant) whose product is `value` times a number, without x if `value` is constant; None if that
    would take another operation.
    """
    if value.data is not None:
        return None if (scaled := _scaled(graph, value, number)) is None else (None, scaled)
    product = _read_once(graph, value, "mul")
    if product is None or product.inputs[1].data is None:
        return None
    scaled = _scaled(graph, product.inputs[1], number)
    return None if scaled is None else (product.inputs[0], scaled)


def _scaled(graph: Graph, value: Value, number: float) -> Value | None:
    assert value.data is not None
    if value.data.size > MOST_COPIED and not single_reader(graph, value):
        return None
    data = value.data.astype(np.float64)
    if not product_in_any_order(data, np.asarray(number), value.dtype):
        return None
    scaled = (data * number).astype(value.data.dtype)
    return graph.constant(scaled, name=value.name) if np.isfinite(scaled).all() else None


def bias_of_integers(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite sums * f + bias to (sums + q) * f, where the bias is q times the sums' scale up to rounding: a
    convolution's accumulators can be initialised with q, and rounding can be combined with scaling.
    """
    product, bias = produced_by(node.inputs[0], "mul"), node.inputs[1]
    if product is None or bias.data is None or product.inputs[1].data is None or not is_sized(node.output):
        return None
    cast = _read_once(graph, product.output, "mul") and _read_once(graph, product.inputs[0], "cast")
    if cast is None or not node.output.type == product.output.type == product.inputs[0].type:
        return None
    sums, begun = cast.inputs[0], np.zeros((), np.int64)
    less = _read_once(graph, sums, "sub")
    if less is not None and less.inputs[1].data is not None:
        sums, begun = less.inputs[0], -less.inputs[1].data.astype(np.int64)
    conv = _read_once(graph, sums, "conv")
    if conv is None or conv.output.dtype != "int32" or sums.type != cast.inputs[0].type:
        return None
    whole = _whole_multiples(bias.data, product.inputs[1].data)
    if whole is None or not _most_of_sums(conv) + np.abs(whole + begun).max(initial=0) < 1 << 31:
        return None
    begin = graph.constant((whole + begun).astype(np.int32), name=bias.name)
    begun_sums = emit_like(graph, node, "cast", emit_like(graph, node, "add", sums, begin), to="float32")
    return [emit_like(graph, node, "mul", begun_sums, product.inputs[1])]


def _whole_multiples(bias: np.ndarray, scale: np.ndarray) -> np.ndarray | None:
    """Return bias / scale as int64, where these are integers up to the rounding of both; else None."""
    if bias.size == 0 or scale.size == 0 or not (np.isfinite(bias).all() and np.isfinite(scale).all()):
        return None
    wide, step = bias.astype(np.float64), scale.astype(np.float64)
    if not (np.abs(step) > 1 / MOST_SCALED).all():
        return None
    whole = np.rint(wide / step)
    near = np.abs(whole * step - wide) <= ROUNDED * np.abs(wide)
    return whole.astype(np.int64) if near.all() and (np.abs(whole) < MOST_COUNTED).all() else None


def _most_of_sums(conv: Node) -> float:
    """Return an upper bound on the sums of an integer convolution."""
    x, w = conv.inputs
    terms = prod(w.shape) // max(1, w.shape[0 if conv.attrs["layout"] == "NCX" else -1])
    return magnitude(x) * magnitude(w) * terms


def scaled_first(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite max(x, 0) * c to max(x * c, 0), for c > 0."""
    raised, factor = node.inputs
    number = splat(factor)
    relu = _read_once(graph, raised, "maximum")
    if relu is None or number is None or splat(relu.inputs[1]) != 0 or not 0 < number < LARGEST:
        return None
    if not node.output.type == raised.type == relu.inputs[0].type or not magnitude(node.output) < LARGEST:
        return None
    product = emit_like(graph, node, "mul", relu.inputs[0], factor)
    return [emit_like(graph, node, "maximum", product, relu.inputs[1])]


def in_range_already(graph: Graph, node: Node) -> Replacement | None:
    """Remove a maximum with 0 before rounding, where the value is clamped at the zero point anyway."""
    clamped = _Clamped.of(graph, node.output)
    if clamped is None or clamped.low < clamped.zero:
        return None
    relu = _read_once(graph, clamped.x, "maximum")
    if relu is None or splat(relu.inputs[1]) != 0 or not relu.inputs[0].type == relu.output.type == node.output.type:
        return None
    value = emit_like(graph, node, "round", relu.inputs[0])
    if clamped.zero:
        value = emit_like(graph, node, "add", value, _number(graph, clamped.zero, value.dtype))
    return [_within(graph, node, value, clamped.low, clamped.high)]


def rounded_last(graph: Graph, node: Node) -> Replacement | None:
    """Rely on the rounding of the conversion to integers: zero points and ranges in between are applied to integers
    where all values are known to fit 32 bits; otherwise ranges are applied before.
    """
    to = node.output.dtype
    clamped = _Clamped.of(graph, node.inputs[0]) if to in SMALL else None
    if clamped is None or not single_reader(graph, node.inputs[0]) or not clamped.fits(to):
        return None
    zero, x = clamped.zero, clamped.x
    if not _same_shape(x, node.output):
        return None
    if magnitude(x) < MOST_COUNTED:
        wide = emit_like(graph, node, "cast", emit_like(graph, node, "round", x), to="int32")
        if zero:
            wide = emit_like(graph, node, "add", wide, _number(graph, zero, "int32"))
        return [emit_like(graph, node, "cast", _within(graph, node, wide, clamped.low, clamped.high), to=to)]
    if zero:
        return None  # NaN becomes 0, to which nothing is added
    rounded = emit_like(graph, node, "round", _within(graph, node, x, clamped.low, clamped.high))
    return [emit_like(graph, node, "cast", rounded, to=to)]


def whole_difference(graph: Graph, node: Node) -> Replacement | None:
    """Subtract a zero point from integers, rather than from integral floats."""
    x, zero = node.inputs
    found, number = _integers_of(x), _whole(zero)
    if found is None or number is None or found[1] or node.output.type != x.type:
        return None
    return [_dequantised(graph, node, found[0], number)]


PATTERNS: tuple[dict[str, list[Pattern]], ...] = (
    {"sub": [whole_difference]},
    {"window_reduce": [pool_of_bytes]},
    {"cast": [the_same_bytes]},
    {"mul": [scaled_first, distributed]},
    {"minimum": [in_range_already]},
    {"cast": [rounded_last]},
)
"""The patterns, in the order in which they are applied: each hides what those before it match."""
CPU_PATTERNS: tuple[dict[str, list[Pattern]], ...] = ({"add": [bias_of_integers]},)
"""Further patterns on CPUs, where the sums of convolutions can be initialised with constants."""
