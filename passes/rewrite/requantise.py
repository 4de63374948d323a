"""What lies between two quantised values takes fewer steps: scales become one, a value that was quantised is not made a
float to become what it was, and rounding comes last.

Zero points and ranges are constants of integers here, so that all but the scales is exact. Where factors change places,
results change by rounding, and only where no number that occurs can be infinite: they stem from integers.
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
"""What a float may be whose integer, and a zero point besides, is to fit into 32 bits."""
NEAR = 1e-4
"""What a factor may be from 1 that leaves bytes what they are, when rounded."""
ROUNDED = 2.0**-21
"""Of a number, what its rounding, and that of a few factors, may make of it."""
MOST_SCALES = 4
"""Scales one after the other that are taken together."""
MOST_SCALED = 1e30
"""What they may multiply an integer by on the way: float32 has such numbers, and keeps all of their digits."""
MOST_COPIED = 4096
"""Elements of a constant that is made anew for one of several readers."""
SMALL = ("int8", "uint8", "int16", "uint16")


@dataclass(frozen=True)
class Requantise:
    """Shorten what requantises sums of integers."""

    name: ClassVar[str] = "requantise"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        own = () if context.target.is_gpu else CPU_PATTERNS
        count = sum(apply_patterns(graph, patterns) for patterns in (*PATTERNS, *own))
        return PassResult(graph, count > 0, (f"{count} rewrites",) if count else ())


# -- what values are ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Clamped:
    """minimum(maximum(round(x) + zero, low), high), float32; `zero` is 0 if nothing is added."""

    x: Value
    zero: int
    low: int
    high: int

    @staticmethod
    def of(graph: Graph, value: Value) -> _Clamped | None:
        """Return what `value` is, where only this reads what lies between."""
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
        """Return whether these are numbers of an integer dtype."""
        info = np.iinfo(dtype)
        return info.min <= self.low and self.high <= info.max

    def covers(self, dtype: str) -> bool:
        info = np.iinfo(dtype)
        return info.min == self.low and self.high == info.max


def _read_once(graph: Graph, value: Value, op: str) -> Node | None:
    """Return the producer of a value that has one reader, if it is `op`."""
    return produced_by(value, op) if single_reader(graph, value) else None


def _whole(value: Value) -> int | None:
    """Return the integer that a constant is, small enough for float32 to count on."""
    number = splat(value)
    if number is None or isinstance(number, bool) or not abs(number) < 1 << 16 or number != int(number):
        return None
    return int(number)


def _same_shape(a: Value, b: Value) -> bool:
    return a.tensor_type.shape == b.tensor_type.shape


def _number(graph: Graph, number: int, dtype: str) -> Value:
    return graph.constant(np.asarray(number, to_numpy_dtype(dtype)))


def _integers_of(value: Value) -> tuple[Value, int] | None:
    """(q, zero) of q - zero as float32."""
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
    """Return the largest of dequantised bytes is the largest byte, dequantised: scales are positive."""
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
    """q - zero as float32."""
    if zero:
        wide = emit_like(graph, node, "cast", q, to="int32")
        q = emit_like(graph, node, "sub", wide, _number(graph, zero, "int32"))
    return emit_like(graph, node, "cast", q, to="float32")


def _meets_all(node: Node) -> bool:
    """Return whether every window meets an element, so that none is of padding only."""
    attrs = node.attrs
    sides = zip(attrs["before"], attrs["after"], attrs["kernel"], strict=True)
    return all(d == 1 for d in attrs["dilations"]) and all(0 <= b < k and 0 <= a < k for b, a, k in sides)


def the_same_bytes(graph: Graph, node: Node) -> Replacement | None:
    """Return the bytes that are dequantised and quantised by the same scale and zero point are what they were."""
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
    """Return whether the product of some scales is 1, and what integers become on the way neither too large nor too
    small.
    """
    steps = np.cumprod(scales) if scales else np.ones(1)
    ordinary = (np.abs(steps) > 1 / MOST_SCALED) & (np.abs(steps) < MOST_SCALED)
    return bool(ordinary.all() and abs(steps[-1] - 1) <= NEAR)


def _within(graph: Graph, node: Node, x: Value, low: int, high: int) -> Value:
    raised = emit_like(graph, node, "maximum", x, _number(graph, low, x.dtype))
    return emit_like(graph, node, "minimum", raised, _number(graph, high, x.dtype))


def distributed(graph: Graph, node: Node) -> Replacement | None:
    """(a * x + b * y) * c is x * (a * c) + y * (b * c), for constants, of which one may stand for y."""
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
    """(x, constant) whose product is `value` times a number; no x if that is a constant; None if that takes a step."""
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
    """sums * f + bias is (sums + q) * f, where the bias is q scales of the sums up to rounding: a convolution's sums
    begin with q then, and the scaled number may be rounded as it is scaled.
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
    """bias / scale, where these are integers up to the rounding of both; int64."""
    if bias.size == 0 or scale.size == 0 or not (np.isfinite(bias).all() and np.isfinite(scale).all()):
        return None
    wide, step = bias.astype(np.float64), scale.astype(np.float64)
    if not (np.abs(step) > 1 / MOST_SCALED).all():
        return None
    whole = np.rint(wide / step)
    near = np.abs(whole * step - wide) <= ROUNDED * np.abs(wide)
    return whole.astype(np.int64) if near.all() and (np.abs(whole) < MOST_COUNTED).all() else None


def _most_of_sums(conv: Node) -> float:
    """Return what no sum of a convolution of integers exceeds."""
    x, w = conv.inputs
    terms = prod(w.shape) // max(1, w.shape[0 if conv.attrs["layout"] == "NCX" else -1])
    return magnitude(x) * magnitude(w) * terms


def scaled_first(graph: Graph, node: Node) -> Replacement | None:
    """max(x, 0) * c is max(x * c, 0), for c > 0."""
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
    """Return what is kept above the zero point anyway need not be made positive before it is rounded."""
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
    """Return the conversion to an integer rounds by itself: what comes between, zero points and ranges, is applied to
    integers where all numbers are known to fit into 32 bits, and else ranges before.
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
        return None  # a NaN becomes 0, to which nothing is added
    rounded = emit_like(graph, node, "round", _within(graph, node, x, clamped.low, clamped.high))
    return [emit_like(graph, node, "cast", rounded, to=to)]


def whole_difference(graph: Graph, node: Node) -> Replacement | None:
    """Return a zero point is taken from integers, not from floats that are integers."""
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
"""In the order in which they are looked for: each hides what those before it look for."""
CPU_PATTERNS: tuple[dict[str, list[Pattern]], ...] = ({"add": [bias_of_integers]},)
"""After them, on CPUs, whose convolutions begin with constants."""
