"""Algebraic simplification: neutral elements, strength reduction, chains of constants, idempotent pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilestitch.compiler.ir import Graph, Kind, Node, Value, kind_of, reference
from tilestitch.compiler.ir.magnitudes import magnitude
from tilestitch.compiler.ir.sizes import surely
from tilestitch.compiler.ir.types import dtype_kind, is_float, is_integer, to_numpy_dtype
from tilestitch.passes.contract import PassContext, PassResult

from .driver import (
    Pattern,
    Replacement,
    apply_patterns,
    emit_like,
    is_sized,
    is_splat,
    is_tensor,
    produced_by,
    result_fits,
    single_reader,
    splat,
    transposed,
)
from .reassociation import SMALLEST_NORMAL, product_in_any_order, sum_in_any_order


@dataclass(frozen=True)
class Algebra:
    """Simplify algebraically. With `reassociate`, floats may change by rounding (about one unit in the last place).

    Without it, only exact rewrites are applied (apart from signs of zeros and NaN payloads).
    """

    reassociate: bool = True
    name: ClassVar[str] = "algebra"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        patterns = dict(EXACT)
        if self.reassociate:
            for op, more in ROUNDING.items():
                patterns[op] = [*patterns.get(op, []), *more]
        return PassResult.counted(graph, apply_patterns(graph, patterns), "rewrites")


def _neutral(number: float) -> Pattern:
    """Rewrite op(x, number) to x, where the result has x's shape."""

    def pattern(graph: Graph, node: Node) -> Replacement | None:
        x, constant = node.inputs
        if is_splat(constant, number) and is_tensor(x) and x.type == node.output.type:
            return [x]
        return None

    return pattern


def _neutral_bool(neutral: bool) -> Pattern:
    """Rewrite op(x, neutral) to x, and op(x, not neutral) to the constant."""

    def pattern(graph: Graph, node: Node) -> Replacement | None:
        x, constant = node.inputs
        known = splat(constant)
        if not isinstance(known, bool) or not is_sized(node.output):
            return None
        if known == neutral and x.type == node.output.type:
            return [x]
        if known == neutral and not is_sized(x):
            return None
        small = x if known == neutral else graph.constant(np.asarray(known), name=constant.name)
        return [emit_like(graph, node, "broadcast_to", small, shape=node.output.shape)]

    return pattern


def times_minus_one(graph: Graph, node: Node) -> Replacement | None:
    x, constant = node.inputs
    if is_splat(constant, -1) and x.type == node.output.type and dtype_kind(x.dtype) != "uint":
        return [emit_like(graph, node, "neg", x)]
    return None


def power_of_constant(graph: Graph, node: Node) -> Replacement | None:
    x, exponent = node.inputs
    number = splat(exponent)
    if number is None or not is_tensor(x) or x.type != node.output.type:
        return None
    if number == 1:
        return [x]
    if number == 2:
        return [emit_like(graph, node, "mul", x, x)]
    if number == 3:
        return [emit_like(graph, node, "mul", emit_like(graph, node, "mul", x, x), x)]
    if not is_float(x.dtype):
        return None
    one = graph.constant(1.0, dtype=x.dtype)
    if number == -1:
        return [emit_like(graph, node, "div", one, x)]
    if number not in (0.5, -0.5) or not _is_positive_or_nan(x):
        return None
    root = emit_like(graph, node, "sqrt", x)
    return [root if number == 0.5 else emit_like(graph, node, "div", one, root)]


def _is_positive_or_nan(x: Value) -> bool:
    """Return whether no element can have a negative sign: the square root of -0.0 or -inf differs from a power of
    0.5.
    """
    if x.data is not None:
        return is_float(x.dtype) and not bool(np.signbit(x.data.astype(np.float64)).any())
    node = x.producer
    if node is None:
        return False
    if node.op in ("abs", "exp"):
        return True
    if node.op == "mul" and node.inputs[0] is node.inputs[1]:
        return True
    if node.op in ("add", "mul", "div", "reduce_sum", "reshape", "cast"):
        return is_float(x.dtype) and all(_is_positive_or_nan(v) for v in node.inputs)
    return False


def double_negation(graph: Graph, node: Node) -> Replacement | None:
    inner = produced_by(node.inputs[0], "neg")
    return [inner.inputs[0]] if inner else None


def absolute_twice(graph: Graph, node: Node) -> Replacement | None:
    inner = produced_by(node.inputs[0], "abs", "neg")
    if inner is None:
        return None
    if inner.op == "abs":
        return [inner.output]
    return [emit_like(graph, node, "abs", inner.inputs[0])]


def idempotent(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite maximum(maximum(x, c), c) to maximum(x, c), and the like."""
    x, c = node.inputs
    if x is c:
        return [x]
    inner = produced_by(x, node.op)
    if inner is None or not c.is_constant or not inner.inputs[1].is_constant or x.type != node.output.type:
        return None
    a, b = splat(c), splat(inner.inputs[1])
    return [x] if a is not None and a == b else None


def rounding_twice(graph: Graph, node: Node) -> Replacement | None:
    inner = produced_by(node.inputs[0], "floor", "ceil", "round", "trunc")
    return [inner.output] if inner else None


def add_of_negative(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite x + (-y) to x - y, and x - (-y) to x + y."""
    x, y = node.inputs
    inner = produced_by(y, "neg")
    if inner is not None:
        return [emit_like(graph, node, "sub" if node.op == "add" else "add", x, inner.inputs[0])]
    return None


def divide_by_power_of_two(graph: Graph, node: Node) -> Replacement | None:
    return _divide_by_constant(graph, node, exact=True)


def divide_by_constant(graph: Graph, node: Node) -> Replacement | None:
    return _divide_by_constant(graph, node, exact=False)


def _divide_by_constant(graph: Graph, node: Node, *, exact: bool) -> Replacement | None:
    """Rewrite x / c to x * (1/c): exact for powers of two, else only for float32 and float64; 1/c must be normal. A
    single quotient stays exact, as a scale from which zero points are rounded.
    """
    x, c = node.inputs
    if not exact and is_tensor(node.output) and all(d == 1 for d in node.output.tensor_type.shape):
        return None
    if c.data is None or not is_tensor(x) or x.dtype not in ("float16", "bfloat16", "float32", "float64"):
        return None
    wide = c.data.astype(np.float64)
    if wide.size == 0 or not np.isfinite(wide).all() or (wide == 0).any():
        return None
    mantissas, _ = np.frexp(wide)
    if exact != bool((np.abs(mantissas) == 0.5).all()) or (not exact and x.dtype not in ("float32", "float64")):
        return None
    with np.errstate(all="ignore"):
        inverse = (1.0 / wide).astype(c.data.dtype)
    magnitude = np.abs(inverse.astype(np.float64))
    if not np.isfinite(magnitude).all() or (magnitude < SMALLEST_NORMAL[x.dtype]).any():
        return None
    return [emit_like(graph, node, "mul", x, graph.constant(inverse, name=c.name))]


def chain_of_constants(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite (x op a) op b to x op (a op b) for add and mul, and (x - a) + b to x + (b - a) for integers, where the
    combined constant has no more elements than either.

    For floats only where no overflow or underflow of intermediate results appears or disappears: see `reassociation`.
    """
    x, b = node.inputs
    if not is_tensor(x) or b.data is None or not single_reader(graph, x):
        return None
    differs = is_integer(x.dtype) and node.op == "add" and produced_by(x, "sub") is not None
    inner = produced_by(x, "sub" if differs else node.op)
    if inner is None:
        return None
    y, a = inner.inputs
    if a.data is None or y.is_constant or not (is_float(x.dtype) or is_integer(x.dtype)):
        return None
    combined = _combined(graph, "sub", b, a) if differs else _combined(graph, node.op, a, b)
    if combined is None or not result_fits([y, combined], node.output.tensor_type.shape):
        return None
    value = graph.emit(node.op, y, combined, origins=(*inner.origins, *node.origins), insert_before=node)
    return [value]


def _combined(graph: Graph, op: str, a: Value, b: Value) -> Value | None:
    assert a.data is not None and b.data is not None
    shape = np.broadcast_shapes(a.data.shape, b.data.shape)
    if int(np.prod(shape)) > max(a.data.size, b.data.size):
        return None
    dtype = to_numpy_dtype(a.dtype)
    with np.errstate(all="ignore"):
        if is_integer(a.dtype):
            data = reference(op)([a.data, b.data], {})[0]
        else:
            first, second = (v.astype(np.float64) for v in (a.data, b.data))
            same = (
                sum_in_any_order(first, second) if op == "add" else product_in_any_order(first, second, a.dtype)
            )  # fmt: skip
            data = (first + second if op == "add" else first * second).astype(dtype)
            if not same or not np.isfinite(data.astype(np.float64)).all():
                return None
    return graph.constant(np.asarray(data, dtype=dtype), name=b.name)


def no_nan(graph: Graph, node: Node) -> Replacement | None:
    """Remove the replacement of NaN in values that stem from integers."""
    condition, _, x = node.inputs
    asked = produced_by(condition, "is_nan")
    if asked is None or asked.inputs[0] is not x or x.type != node.output.type:
        return None
    return [x] if magnitude(x) < float("inf") else None


def outer_product(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite a matmul with a single product per sum to a multiplication, which can be part of any kernel."""
    left, right = node.inputs
    sized = all(is_sized(value) and value.dtype == node.output.dtype for value in node.inputs)
    if not sized or min(len(left.shape), len(right.shape)) < 2:
        return None
    trans_a, trans_b = bool(node.attrs.get("trans_a")), bool(node.attrs.get("trans_b"))
    if left.shape[-2 if trans_a else -1] != 1:
        return None
    column = _swapped(graph, node, left) if trans_a else left
    row = _swapped(graph, node, right) if trans_b else right
    return [emit_like(graph, node, "mul", column, row)]


def _swapped(graph: Graph, node: Node, value: Value) -> Value:
    """Return a one-row matrix as a one-column matrix, or vice versa."""
    *others, first, second = range(len(value.shape))
    return transposed(graph, node, value, (*others, second, first))


EXACT: dict[str, list[Pattern]] = {
    "add": [_neutral(0), add_of_negative],
    "sub": [_neutral(0), add_of_negative],
    "mul": [_neutral(1), times_minus_one],
    "div": [_neutral(1), divide_by_power_of_two],
    "pow": [power_of_constant],
    "neg": [double_negation],
    "abs": [absolute_twice],
    "maximum": [idempotent],
    "minimum": [idempotent],
    "bitwise_or": [_neutral(0), idempotent],
    "bitwise_and": [idempotent],
    "bitwise_xor": [_neutral(0)],
    "shift_left": [_neutral(0)],
    "shift_right": [_neutral(0)],
    "logical_and": [_neutral_bool(True), idempotent],
    "logical_or": [_neutral_bool(False), idempotent],
    "select": [no_nan],
    "matmul": [outer_product],
    **{op: [rounding_twice] for op in ("floor", "ceil", "round", "trunc")},
}

LEAST_FACTOR = 2.0**-3
"""Factors from here to 1 neither overflow nor lose more than the last digits of small half floats, whichever operand
they scale. The square root of attention's scale is larger for up to 4096 elements of a head.
"""


def scale_of_kept_keys(graph: Graph, node: Node) -> Replacement | None:
    """Rewrite q @ view(k * s) to (q * s) @ view(k), where k is in memory anyway.

    Exporters scale queries and keys each by the square root of attention's scale. Where the keys are a cache, that
    would process all of its rows in each step, or copy them.
    """
    queries, keys = node.inputs
    factor, views = 1.0, list[Node]()
    while single_reader(graph, keys) and (made := keys.producer) is not None:
        if made.op == "mul" and (scaled := _scaled(made)) is not None:
            keys, factor = scaled[0], factor * scaled[1]
        elif kind_of(made.op) is Kind.VIEW:
            views.append(made)
            keys = made.inputs[0]
        else:
            return None
    if factor == 1 or not LEAST_FACTOR <= abs(factor) <= 1:
        return None
    if surely(lambda: queries.tensor_type.num_elements > keys.tensor_type.num_elements):
        return None
    for view in reversed(views):
        keys = graph.emit(view.op, keys, origins=view.origins, insert_before=node, **view.attrs)
    scale = graph.constant(np.asarray(factor, to_numpy_dtype(queries.dtype)), queries.dtype)
    return [emit_like(graph, node, "matmul", emit_like(graph, node, "mul", queries, scale), keys, **node.attrs)]


def _scaled(node: Node) -> tuple[Value, float] | None:
    """Return the operand, no constant, that has its product's shape, and the float that multiplies it, if so."""
    for x, factor in (node.inputs, node.inputs[::-1]):
        number = splat(factor)
        if x.data is None and isinstance(number, float) and x.type == node.output.type:
            return x, number
    return None


ROUNDING: dict[str, list[Pattern]] = {
    "matmul": [scale_of_kept_keys],
    "add": [chain_of_constants],
    "mul": [chain_of_constants],
    "div": [divide_by_constant],
}
