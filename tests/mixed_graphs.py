"""Random graphs over nearly all primitives, of several dtypes, for fuzzing.

What rounding differently could change by a lot is not asked of values that were rounded: comparisons, conversions to
integers, sorting and the like take *exact* values only, which are inputs, integers, and what is merely selected or
moved; and half floats that were rounded once, which every kernel must round in the same way before it compares them.
Floats stay of moderate size, and no step amplifies an error by much: sums are of small terms, and what could grow goes
through tanh. Inputs may hold NaN, infinities and the largest integers; one of them may have no elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.strategies import DIMS
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.compiler.ir.types import to_numpy_dtype

FLOATS, INTEGERS = ("float32", "float32", "float16"), ("int32", "int64")
SMOOTH = ("neg", "abs", "tanh", "sin", "cos", "atan", "erf", "asinh")
STEPS = ("neg", "abs", "floor", "ceil", "round", "trunc", "sign")
MAX_ELEMENTS = 20_000
CONSTANTS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, float("inf"), float("-inf"), float("nan"))


@st.composite
def mixed_graphs(draw: st.DrawFn, max_steps: int = 12) -> Graph:
    """A graph of one to three inputs and up to `max_steps` steps, most of one or two primitives."""
    growing = _Growing(draw)
    empty = draw(st.sampled_from((False,) * 7 + (True,)))
    for number in range(draw(st.integers(1, 3))):
        dtype = draw(st.sampled_from((*FLOATS, *INTEGERS, "bool")))
        shape = tuple(draw(st.lists(DIMS, min_size=1, max_size=3)))
        if empty and number == 0:
            shape = draw(st.sampled_from([(0,), (0, *shape[1:]), (*shape[:-1], 0)]))
        growing.remember(growing.graph.add_input(f"x{number}", TensorType(dtype, shape)), exact=True)
    for number in range(draw(st.integers(4, max_steps))):
        growing.origin = f"Node_{number}"
        growing.step()
    graph, made = growing.graph, [v for v in growing.values if v.producer is not None]
    unused = [v for v in made if not v.uses] or growing.values[-1:]
    also = draw(st.lists(st.sampled_from(made), max_size=1)) if made else []
    graph.outputs = list(dict.fromkeys([*unused, *also]))
    return graph


class _Growing:
    """A graph under way: the values that steps choose from, and which of them are exact."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw, self.graph, self.origin = draw, Graph("mixed"), ""
        self.values: list[Value] = []
        self.exact: set[Value] = set()
        self.rounded: set[Value] = set()
        """Half floats that are the rounded result of one operation with exact operands, and moves of such."""

    def choose(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def remember(self, value: Value, exact: bool) -> None:
        if value.tensor_type.num_elements <= MAX_ELEMENTS:
            self.values.append(value)
            producer = value.producer
            if producer is not None and any(v in self.rounded for v in producer.inputs):
                self.rounded.add(value)
            if exact or value.dtype in (*INTEGERS, "bool"):
                self.exact.add(value)

    def emit(self, op: str, *operands: Any, **attrs: Any) -> Value:
        """A node; operands that are arrays become constants, numbers become constants of the first operand's dtype."""
        dtype = next((v.dtype for v in operands if isinstance(v, Value)), "float32")
        values = [v if isinstance(v, Value) else self.constant(v, dtype) for v in operands]
        return self.graph.emit(op, *values, origins=[self.origin], **attrs)

    def constant(self, data: Any, dtype: str) -> Value:
        return self.graph.constant(data if isinstance(data, np.ndarray) else np.full((), data, to_numpy_dtype(dtype)))

    def numbers(self, shape: tuple[int, ...], dtype: str, low: float = -1.0, high: float = 1.0) -> np.ndarray:
        random = np.random.default_rng(self.draw(st.integers(0, 99)))
        if dtype in INTEGERS:
            return random.integers(int(low), int(high) + 1, shape).astype(dtype)
        return random.uniform(low, high, shape).astype(to_numpy_dtype(dtype))

    def step(self) -> None:
        x = self.choose(*self.values)
        if 0 in x.shape:
            steps: tuple[Step, ...] = (_of_nothing,)
        elif x.dtype == "bool":
            steps = (_logic, _choice, _choice, _move, _view, _to_number)
        elif x.dtype in INTEGERS:
            steps = (
                _integer,
                _integer,
                _known_integers,
                _known_integers,
                _positions,
                _compare,
                _choice,
                _reduce,
                _move,
                _view,
                _to_number,
                _take,
                _scatter,
            )
        else:
            steps = (
                _smooth, _smooth, _pair, _pair, _number, _reduce, _reduce, _rows, _view, _view, _move, _move, _gemm,
                _gemm, _siblings, _window, _running, _take, _scatter, _compare, _stepped, _choice, _to_number,
                _sorted, _special, _special, _rounded_once, _rounded_once,
            )  # fmt: skip
        known = len(self.values)
        for _ in range(3):  # not every step is possible with every value
            if len(self.values) == known:
                self.choose(*steps)(self, x)

    def partner(self, x: Value) -> Value:
        """A value of the dtype of `x` that broadcasts with it without growing the result much."""
        fitting = [v for v in self.values if v.dtype == x.dtype and _broadcast_elements(x, v) <= MAX_ELEMENTS]
        return self.choose(*fitting)

    def axis(self, x: Value) -> int:
        return self.draw(st.integers(0, len(x.shape) - 1))


Step = Callable[[_Growing, Value], None]


def _broadcast_elements(a: Value, b: Value) -> int:
    try:
        return int(np.prod(np.broadcast_shapes(a.shape, b.shape)))
    except ValueError:
        return MAX_ELEMENTS + 1


def _keeps(g: _Growing, *values: Value) -> bool:
    return all(v in g.exact for v in values)


# -- element by element ------------------------------------------------------------------------------------------------


def _smooth(g: _Growing, x: Value) -> None:
    kind = g.choose(*SMOOTH, "exp", "sinh", "cosh", "tan", "asin", "acos", "atanh", "sqrt", "log", "acosh", "pow")
    if kind in SMOOTH:
        g.remember(g.emit(kind, x), exact=kind in ("neg", "abs") and _keeps(g, x))
        return
    small = g.emit("tanh", x)
    if kind in ("exp", "sinh", "cosh", "tan", "asin", "acos", "atanh"):
        g.remember(g.emit(kind, g.emit("mul", small, 0.75)), exact=False)
        return
    positive = g.emit("add", g.emit("abs", small), 1.25 if kind == "acosh" else 0.5)
    result = g.emit("pow", positive, g.choose(0.5, 2.0, 3.0, -1.0, 1.5)) if kind == "pow" else g.emit(kind, positive)
    g.remember(result, exact=False)


def _pair(g: _Growing, x: Value) -> None:
    y, kind = g.partner(x), g.choose("add", "sub", "mul", "div", "maximum", "minimum")
    if kind == "div":
        y = g.emit("add", g.emit("abs", y), 1.0)
    result = g.emit(kind, *g.choose((x, y), (y, x)) if kind != "div" else (x, y))
    extreme = kind in ("maximum", "minimum")
    g.remember(result if extreme else g.emit("tanh", result), exact=extreme and _keeps(g, x, y))


def _number(g: _Growing, x: Value) -> None:
    number = g.constant(g.choose(0.0, 1.0, -1.5, 0.5, 2.0), x.dtype)
    if g.draw(st.booleans()):
        number = g.constant(g.numbers((x.shape[-1] if x.shape else 1,), x.dtype), x.dtype)
    kind = g.choose("add", "sub", "mul", "maximum", "minimum")
    extreme = kind in ("maximum", "minimum")
    g.remember(g.emit(kind, *g.choose((x, number), (number, x))), exact=extreme and _keeps(g, x))


def _positions(g: _Growing, x: Value) -> None:
    if x.shape:
        g.remember(g.emit("iota", shape=x.shape, axis=g.axis(x), dtype=x.dtype), exact=True)


def _stepped(g: _Growing, x: Value) -> None:
    if not _keeps(g, x):
        return
    kind = g.choose(*STEPS, "is_nan", "is_inf", "bit_cast", "mod", "fmod")
    attrs: dict[str, Any] = {"is_inf": {"positive": True, "negative": False}}.get(kind, {})
    if kind == "bit_cast":  # neither the bits of a NaN nor the sign of a zero are defined everywhere
        x, attrs = g.emit("abs", g.emit("cast", _defined(g, x), to="float32")), {"to": "int32"}
    g.remember(g.emit(kind, x, *([0.75] if kind in ("mod", "fmod") else []), **attrs), exact=True)


def _special(g: _Growing, x: Value) -> None:
    """Arithmetic with zeros, infinities, NaN, and chains of constants that overflow."""
    if not _keeps(g, x) or x in g.rounded:
        g.remember(g.emit("mul", x, 0.0), exact=False)
        return
    if x.dtype == "float32" and g.draw(st.booleans()):
        for factor in g.choose((1e30, 1e30, 1e-30, 1e-30), (1e-30, 1e-30, 1e30, 1e30)):
            x = g.emit("mul", x, factor)
        g.remember(x, exact=False)
        return
    kind, number = g.choose("add", "sub", "mul", "mul", "div", "maximum", "minimum", "pow"), g.choose(*CONSTANTS)
    result = g.emit(kind, x, number) if g.draw(st.booleans()) else g.emit(kind, g.constant(number, x.dtype), x)
    g.remember(result, exact=kind in ("maximum", "minimum"))


def _rounded_once(g: _Growing, x: Value) -> None:
    """A half float whose rounding decides what comparisons and steps say of it."""
    if x.dtype != "float16" or not _keeps(g, x) or x in g.rounded:
        return
    result = g.emit(g.choose("add", "sub", "mul"), x, g.choose(1e-5, -1e-5, 0.1, 1.0, 3.0))
    g.remember(result, exact=True)
    if result in g.exact:
        g.rounded.add(result)


def _defined(g: _Growing, x: Value) -> Value:
    """`x` with moderate numbers where it is NaN, infinite or large: what conversions to integers are defined for."""
    sound = g.emit("less", g.emit("abs", x), 100.0)
    return g.emit("select", sound, x, g.constant(3.0, x.dtype))


def _of_nothing(g: _Growing, x: Value) -> None:
    """What can be made of a tensor without elements, which may well have elements."""
    axis = x.shape.index(0)
    kind = g.choose("unary", "pair", "sum", "pad", "concat", "compare", "matmul", "reshape")
    if kind == "pad":
        pads = tuple(1 if a == axis else 0 for a in range(len(x.shape)))
        g.remember(g.emit("pad", x, before=pads, after=pads[::-1], mode="constant"), exact=_keeps(g, x))
    elif kind == "concat":
        same = [v for v in g.values if v.dtype == x.dtype and _without(v, axis) == _without(x, axis)]
        g.remember(g.emit("concat", x, g.choose(*same), axis=axis), exact=False)
    elif kind == "compare" and x.dtype != "bool":
        g.remember(g.emit("less", x, g.partner(x)), exact=True)
    elif kind == "matmul" and len(x.shape) > 1 and x.dtype in FLOATS:
        g.remember(g.emit("matmul", x, g.numbers((x.shape[-1], 3), x.dtype)), exact=False)
    elif kind == "sum" and x.dtype != "bool":
        g.remember(g.emit("reduce_sum", x, axes=(axis,), keepdims=g.draw(st.booleans())), exact=False)
    elif kind == "pair" and x.dtype != "bool":
        g.remember(g.emit("maximum", x, g.partner(x)), exact=_keeps(g, x))
    elif kind == "unary" and x.dtype != "bool":
        g.remember(g.emit("neg", x), exact=_keeps(g, x))
    else:
        g.remember(g.emit("reshape", x, shape=g.choose((1, *x.shape), (*x.shape, 1), (0,))), exact=_keeps(g, x))


def _compare(g: _Growing, x: Value) -> None:
    y = g.partner(x) if g.draw(st.booleans()) else g.constant(1, x.dtype)
    if y.is_constant or _keeps(g, x, y):
        if _keeps(g, x):
            g.remember(g.emit(g.choose("equal", "less", "less_equal"), x, y), exact=True)


def _logic(g: _Growing, x: Value) -> None:
    kind = g.choose("logical_not", "logical_and", "logical_or", "logical_xor")
    g.remember(g.emit(kind, x) if kind == "logical_not" else g.emit(kind, x, g.partner(x)), exact=True)


def _choice(g: _Growing, x: Value) -> None:
    conditions = [v for v in g.values if v.dtype == "bool"]
    others = [v for v in g.values if v.dtype != "bool"]
    if not conditions or not others:
        return
    condition, a = g.choose(*conditions), g.choose(*others)
    b = g.partner(a) if g.draw(st.booleans()) else g.constant(-3, a.dtype)
    try:
        shape = np.broadcast_shapes(condition.shape, a.shape, b.shape)
    except ValueError:
        return
    if np.prod(shape) <= MAX_ELEMENTS:
        g.remember(g.emit("select", condition, a, b), exact=_keeps(g, a) and (b.is_constant or _keeps(g, b)))


def _integer(g: _Growing, x: Value) -> None:
    kind = g.choose(
        "add", "sub", "mul", "div", "mod", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor",
        "neg", "abs", "sign", "bitwise_not", "shift_left", "shift_right", "pow",
    )  # fmt: skip
    if kind in ("neg", "abs", "sign", "bitwise_not"):
        g.remember(g.emit(kind, x), exact=True)
    elif kind in ("shift_left", "shift_right", "pow"):
        g.remember(g.emit(kind, x, g.choose(0, 1, 3, 5)), exact=True)
    else:
        limits = np.iinfo(x.dtype)
        extremes = (0, 1, -1, limits.max, limits.min, 1 << (limits.bits - 2))
        y = g.partner(x) if g.draw(st.booleans()) else g.constant(g.choose(-3, 2, 7, *extremes), x.dtype)
        g.remember(g.emit(kind, x, y), exact=True)


def _known_integers(g: _Growing, x: Value) -> None:
    """A constant that kernels know next to what they do not, and arithmetic that overflows for one or the other."""
    if not x.shape:
        return
    limits, axis = np.iinfo(x.dtype), g.axis(x)
    extremes = (0, 1, 4, limits.max, limits.min, 1 << (limits.bits - 2))
    known = g.constant(np.full((1,) * len(x.shape), g.choose(*extremes), x.dtype), x.dtype)
    known = g.emit("broadcast_to", known, shape=tuple(1 if a == axis else d for a, d in enumerate(x.shape)))
    joined = g.emit("concat", *g.choose((x, known), (known, x)), axis=axis)
    g.remember(g.emit(g.choose("add", "sub", "mul"), joined, g.choose(5, *extremes)), exact=True)


def _to_number(g: _Growing, x: Value) -> None:
    """Conversions; large integers are brought into range first."""
    to = g.choose(*FLOATS, *INTEGERS, "bool")
    if x.dtype in INTEGERS and to in FLOATS:
        x = g.emit("mod", x, 7)
    if x.dtype in FLOATS and to not in FLOATS:
        if not _keeps(g, x):
            return
        x = x if to == "bool" else _defined(g, x)
    g.remember(g.emit("cast", x, to=to), exact=to == "float32" and (_keeps(g, x) or x.dtype in INTEGERS))


# -- over dimensions ---------------------------------------------------------------------------------------------------


def _reduce(g: _Growing, x: Value) -> None:
    rank = len(x.shape)
    if rank == 0:
        return
    axes = tuple(sorted(g.draw(st.sets(st.integers(0, rank - 1), min_size=1))))
    keepdims = g.draw(st.booleans())
    kind = g.choose("reduce_sum", "reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "arg_max", "arg_min")
    if kind.startswith("arg"):
        if _keeps(g, x):
            last = g.draw(st.booleans())
            g.remember(g.emit(kind, x, axis=axes[0], keepdims=keepdims, select_last=last), exact=True)
        return
    if kind == "reduce_sum" and x.dtype in FLOATS:
        x = g.emit("mul", x, 1 / np.prod([x.shape[a] for a in axes]))
    if kind == "reduce_prod" and x.dtype in FLOATS:
        x = g.emit("tanh", x)
    moves = kind in ("reduce_max", "reduce_min")
    g.remember(g.emit(kind, x, axes=axes, keepdims=keepdims), exact=moves and _keeps(g, x))


def _rows(g: _Growing, x: Value) -> None:
    """Softmax or layer normalisation: several reductions that depend on each other."""
    if not x.shape:
        return
    axes = (g.axis(x),)
    if g.draw(st.booleans()):
        e = g.emit("exp", g.emit("sub", x, g.emit("reduce_max", x, axes=axes, keepdims=True)))
        g.remember(g.emit("div", e, g.emit("reduce_sum", e, axes=axes, keepdims=True)), exact=False)
        return
    scale = 1 / x.shape[axes[0]]
    mean = g.emit("mul", g.emit("reduce_sum", x, axes=axes, keepdims=True), scale)
    centred = g.emit("sub", x, mean)
    variance = g.emit("mul", g.emit("reduce_sum", g.emit("mul", centred, centred), axes=axes, keepdims=True), scale)
    g.remember(g.emit("div", centred, g.emit("sqrt", g.emit("add", variance, 0.25))), exact=False)


def _running(g: _Growing, x: Value) -> None:
    if not x.shape:
        return
    axis = g.axis(x)
    small = g.emit("mul", x, 1 / x.shape[axis])
    exclusive, reverse = g.draw(st.booleans()), g.draw(st.booleans())
    result = g.emit("cumulative", small, axis=axis, reducer="sum", exclusive=exclusive, reverse=reverse)
    g.remember(result, exact=False)


def _sorted(g: _Growing, x: Value) -> None:
    if not x.shape:
        return
    axis = g.axis(x)
    k, largest = g.draw(st.integers(1, x.shape[axis])), g.draw(st.booleans())
    node = g.graph.add("top_k", [x], {"k": k, "axis": axis, "largest": largest}, origins=[g.origin])
    g.remember(node.outputs[0], exact=_keeps(g, x))
    if _keeps(g, x):
        g.remember(node.outputs[1], exact=True)


def _gemm(g: _Growing, x: Value) -> None:
    if len(x.shape) < 2:
        return
    size = g.choose(1, 3, 16, 33)
    rivals = [v for v in g.values if v.dtype == x.dtype and v.shape[:-1] == x.shape[:-1] and v is not x]
    if rivals and g.draw(st.booleans()):  # x^T y, both known only at run time
        y = g.choose(*rivals)
        result = g.emit("matmul", g.emit("mul", x, 1 / x.shape[-2]), y, trans_a=True)
    else:
        trans = g.draw(st.booleans())
        shape = (size, x.shape[-1]) if trans else (x.shape[-1], size)
        result = g.emit(
            "matmul", x, g.numbers(shape, x.dtype) / np.asarray(x.shape[-1], to_numpy_dtype(x.dtype)), trans_b=trans
        )
    g.remember(result, exact=False)


def _siblings(g: _Growing, x: Value) -> None:
    """GEMMs by several matrices with the like after them: brought together, moved, or left."""
    if len(x.shape) < 2:
        return
    widths = g.choose((4, 4), (8, 8, 8), (8, 4), (16, 3, 4))
    unary, biased = g.choose("tanh", "neg", ""), [g.draw(st.booleans()) for _ in widths]
    made = []
    for width, bias in zip(widths, biased, strict=True):
        trans = g.draw(st.booleans())
        shape = (width, x.shape[-1]) if trans else (x.shape[-1], width)
        scale = np.asarray(x.shape[-1], to_numpy_dtype(x.dtype))
        y = g.emit("matmul", x, g.numbers(shape, x.dtype) / scale, trans_b=trans)
        y = g.emit("add", y, g.numbers(g.choose((width,), (1,)), x.dtype)) if bias else y
        made.append(g.emit(unary, y) if unary else y)
    if g.draw(st.booleans()) and len(set(widths)) == 1:
        made = [g.emit("tanh", g.emit("mul", made[0], made[1])), *made[2:]]
    elif g.draw(st.booleans()):
        made = [g.emit("reshape", y, shape=(*y.shape[:-1], y.shape[-1] // 4, 4)) for y in made if y.shape[-1] % 4 == 0]
    for y in made:
        g.remember(y, exact=False)


def _window(g: _Growing, x: Value) -> None:
    """Convolution or pooling over the last dimension or two."""
    if len(x.shape) < 3:
        return
    spatial = len(x.shape) - 2
    kernel = tuple(g.choose(1, 2, 3) for _ in range(spatial))
    before, after = (tuple(g.choose(k // 2, k // 2, 0, 1, 3) for k in kernel) for _ in range(2))
    dilations = tuple(g.choose(1, 1, 2) for _ in range(spatial))
    extents = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations))
    padding = tuple(b + a for b, a in zip(before, after))
    window = {
        "strides": tuple(g.choose(1, 1, 2) for _ in range(spatial)), "before": before, "after": after,
        "dilations": dilations, "layout": "NCX",
    }  # fmt: skip
    if any(d + p < e for d, p, e in zip(x.shape[2:], padding, extents)):
        return
    if g.draw(st.booleans()):
        result = g.emit("window_reduce", x, reducer=g.choose("sum", "max"), kernel=kernel, **window)
        g.remember(g.emit("mul", result, 1 / np.prod(kernel)), exact=False)
        return
    channels = x.shape[1]
    if g.draw(st.booleans()):
        weight = g.numbers((channels, 2, *kernel), x.dtype) / np.asarray(channels * np.prod(kernel))
        if any((d - 1) * s + e - p < 1 for d, s, e, p in zip(x.shape[2:], window["strides"], extents, padding)):
            return
        result = g.emit(
            "conv_transpose",
            x,
            weight.astype(to_numpy_dtype(x.dtype)),
            groups=1,
            output_padding=(0,) * spatial,
            **window,
        )
        g.remember(result, exact=False)
        return
    groups = g.choose(1, channels)
    out = groups * g.choose(1, 2, 5)
    weight = g.numbers((out, channels // groups, *kernel), x.dtype) / (channels // groups * np.prod(kernel))
    g.remember(g.emit("conv", x, weight.astype(to_numpy_dtype(x.dtype)), groups=groups, **window), exact=False)


# -- moving ------------------------------------------------------------------------------------------------------------


def _view(g: _Growing, x: Value) -> None:
    shape, kind = x.shape, g.choose("reshape", "transpose", "slice", "broadcast_to")
    if kind == "reshape":
        halves = [d // 2 for d in shape[:1] if d % 2 == 0]
        targets = [(int(np.prod(shape)),), (1, *shape), (*shape, 1), *((h, 2, *shape[1:]) for h in halves)]
        attrs: dict[str, Any] = {"shape": g.choose(*targets)}
    elif kind == "transpose":
        attrs = {"perm": tuple(g.draw(st.permutations(range(len(shape)))))}
    elif kind == "broadcast_to":
        attrs = {"shape": (g.draw(DIMS), *shape) if len(shape) < 4 else shape}
    else:
        steps = tuple(g.choose(1, 1, 2, -1) for _ in shape)
        starts = tuple(d - 1 if s < 0 else g.draw(st.integers(0, d - 1)) for d, s in zip(shape, steps))
        most = [start + 1 if s < 0 else (d - start + s - 1) // s for d, start, s in zip(shape, starts, steps)]
        attrs = {"starts": starts, "steps": steps, "sizes": tuple(g.draw(st.integers(1, m)) for m in most)}
    g.remember(g.emit(kind, x, **attrs), exact=_keeps(g, x))


def _move(g: _Growing, x: Value) -> None:
    if not x.shape:
        return
    axis = g.axis(x)
    if g.draw(st.booleans()):
        same = [v for v in g.values if v.dtype == x.dtype and _without(v, axis) == _without(x, axis)]
        y = g.choose(*same)
        g.remember(g.emit("concat", x, y, axis=axis), exact=_keeps(g, x, y))
        return
    mode = g.choose("constant", "edge", "reflect", "wrap")
    most = 2 if mode in ("constant", "edge") else min(2, min(x.shape) - 1)
    pads = tuple(g.draw(st.integers(0, most)) for _ in x.shape)
    g.remember(g.emit("pad", x, before=pads, after=pads[::-1], mode=mode), exact=_keeps(g, x))


def _without(value: Value, axis: int) -> tuple[Any, ...]:
    return (len(value.shape), *value.shape[:axis], *value.shape[axis + 1 :])


def _indices(g: _Growing, size: int, shape: tuple[int, ...]) -> np.ndarray:
    return g.numbers(shape, g.choose(*INTEGERS), low=-size, high=size - 1)


def _take(g: _Growing, x: Value) -> None:
    """Gathers at places known when compiling, or at run time."""
    if not x.shape:
        return
    axis, kind = g.axis(x), g.choose("constant", "elements", "points", "run time")
    size = x.shape[axis]
    if kind == "points":
        places = np.stack([_indices(g, d, (3,)).astype(np.int64) for d in x.shape[: axis + 1]], axis=1)
        result = g.emit("gather_nd", x, places, batch_dims=0)
    elif kind == "elements":
        result = g.emit("gather_elements", x, _indices(g, size, x.shape), axis=axis)
    elif kind == "constant":
        shape = tuple(g.draw(st.lists(st.sampled_from([1, 2, 5]), max_size=2)))
        result = g.emit("gather", x, _indices(g, size, shape), axis=axis)
    else:
        known = [v for v in g.values if v.dtype in INTEGERS and v.tensor_type.num_elements <= 17]
        if not known:
            return
        result = g.emit("gather", x, g.emit("mod", g.choose(*known), size), axis=axis)
    g.remember(result, exact=_keeps(g, x))


def _scatter(g: _Growing, x: Value) -> None:
    """Updates at different places, or sums and extremes at any."""
    if not x.shape:
        return
    axis = g.axis(x)
    reduction = g.choose("none", "add", "max", "min")
    if g.draw(st.booleans()):
        count = 1 if reduction == "none" else 4
        places = np.stack([_indices(g, d, (count,)).astype(np.int64) for d in x.shape[: axis + 1]], axis=1)
        updates = g.numbers((count, *x.shape[axis + 1 :]), x.dtype)
        result = g.emit("scatter_nd", x, places, updates, reduction=reduction)
        g.remember(result, exact=reduction != "add" and _keeps(g, x))
        return
    shape = tuple(1 if d == axis else s for d, s in enumerate(x.shape))
    updates = g.numbers(shape, x.dtype)
    result = g.emit(
        "scatter_elements", x, _indices(g, x.shape[axis], shape), updates, axis=axis, reduction=reduction
    )  # fmt: skip
    g.remember(result, exact=reduction != "add" and _keeps(g, x))
