"""Random ONNX models with one to three open dimensions, and shape arithmetic as exporters write it, for fuzzing.

All values are float32 of moderate size: what could grow goes through tanh, so that rounding differently changes little.
A shape is known here as polynomials over the dimensions and over quotients of such, which grow with every dimension;
therefore sizes lie between those at the ends of the ranges, and equal ones are seen to be equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.open_models.fixture import OpenFixture
from tests.open_models.sizes import Feeds, Ranges, Sizes
from tests.open_models.styles import INT64, STYLES, Style

MAX_ELEMENTS, MAX_RANK = 20_000, 4
HIGHS = (2, 5, 13, 16, 24)
UNARY = ("Tanh", "Sigmoid", "Relu", "Abs", "Neg", "Erf", "Sin", "Softplus")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")


@dataclass(frozen=True)
class Quotient:
    """Of a size and a constant, rounded down."""

    size: Size
    divisor: int


Factor = str | Quotient
Terms = frozenset[tuple[tuple[Factor, ...], int]]


@dataclass(frozen=True)
class Size:
    """A sum of products: factors, in an order of their own, and how often. No term is no size at all: 0."""

    terms: Terms

    def __add__(self, other: Size) -> Size:
        return _sum([*self.terms, *other.terms])

    def __mul__(self, other: Size) -> Size:
        return _sum([(tuple(sorted((*a, *b), key=repr)), m * n) for a, m in self.terms for b, n in other.terms])

    def at(self, sizes: Sizes) -> int:
        return sum(count * prod(_factor_at(factor, sizes) for factor in factors) for factors, count in self.terms)

    @property
    def fixed(self) -> int | None:
        """The number that it is for all sizes."""
        return self.at({}) if all(not factors for factors, _ in self.terms) else None


def _factor_at(factor: Factor, sizes: Sizes) -> int:
    return sizes[factor] if isinstance(factor, str) else factor.size.at(sizes) // factor.divisor


def _sum(terms: list[tuple[tuple[Factor, ...], int]]) -> Size:
    found: dict[tuple[Factor, ...], int] = {}
    for factors, count in terms:
        found[factors] = found.get(factors, 0) + count
    return Size(frozenset((factors, count) for factors, count in found.items() if count))


def number(value: int) -> Size:
    return _sum([((), value)])


def quotient(size: Size, divisor: int) -> Size:
    fixed = size.fixed
    return number(fixed // divisor) if fixed is not None else _sum([((Quotient(size, divisor),), 1)])


ONE = number(1)


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[Size, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)


@st.composite
def open_models(draw: st.DrawFn, max_steps: int = 10) -> OpenFixture:
    """One or two inputs, whose shapes mix open dimensions and fixed sizes, and up to `max_steps` steps."""
    names = draw(st.sampled_from([("n",), ("n", "m"), ("n", "m"), ("batch", "past", "new")]))
    ranges: Ranges = {name: (1, draw(st.sampled_from(HIGHS))) for name in names}
    growing = _Growing(draw, ranges)
    for index in range(draw(st.integers(1, 2))):
        growing.input(f"x{index}")
    for _ in range(draw(st.integers(3, max_steps))):
        growing.step()
    return growing.finished()


class _Growing:
    """A model under way, and the values that steps choose from."""

    def __init__(self, draw: st.DrawFn, ranges: Ranges) -> None:
        self.draw, self.ranges = draw, ranges
        self.b: Style = draw(st.sampled_from(STYLES))(seed=draw(st.integers(0, 99)))
        self.lows: Sizes = {name: low for name, (low, _) in ranges.items()}
        self.highs: Sizes = {name: high for name, (_, high) in ranges.items()}
        self.symbols = [_sum([((name,), 1)]) for name in ranges]
        self.inputs: list[Tensor] = []
        self.values: list[Tensor] = []
        self.used: set[str] = set()

    def choose(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def input(self, name: str) -> None:
        fixed = [number(size) for size in (1, 3, 4, 8)]
        shape = [self.choose(*self.symbols), *(self.choose(*self.symbols, *fixed) for _ in range(self.choose(0, 1, 2)))]
        self.inputs.append(Tensor(name, tuple(self.draw(st.permutations(shape)))))
        self.values.append(self.inputs[-1])

    def step(self) -> None:
        x = self.choose(*self.values)
        made = self.choose(*(STEPS if x.rank else STEPS_OF_NUMBERS))(self, x)
        if made is not None and made.rank <= MAX_RANK and self.elements(made) <= MAX_ELEMENTS:
            self.used.add(x.name)
            self.values.append(made)

    def elements(self, x: Tensor) -> int:
        return prod(size.at(self.highs) for size in x.shape)

    def emit(self, op: str, shape: tuple[Size, ...], *operands: str, **attributes: Any) -> Tensor:
        return Tensor(self.b.op(op, *operands, **attributes), shape)

    def tame(self, x: Tensor) -> Tensor:
        return self.emit("Tanh", x.shape, x.name)

    def axis_of(self, x: Tensor, suits: Callable[[Size], bool] = lambda size: True) -> int | None:
        axes = [axis for axis, size in enumerate(x.shape) if suits(size)]
        return self.choose(*axes) if axes else None

    def size_of(self, x: Tensor, axis: int) -> str | int:
        """As exporters write it: a number where it is fixed, most of the time."""
        fixed = x.shape[axis].fixed
        return fixed if fixed is not None and self.choose(True, True, False) else self.b.size(x.name, axis)

    def finished(self) -> OpenFixture:
        b = self.b
        ends = [x for x in self.values if x.name not in self.used] or self.values[-1:]
        for index, end in enumerate(ends):
            b.nodes.append(helper.make_node("Identity", [end.name], [f"y{index}"], name=f"/y{index}"))
        given = [helper.make_tensor_value_info(x.name, TensorProto.FLOAT, _declared(x)) for x in self.inputs]
        results = [
            helper.make_tensor_value_info(f"y{index}", TensorProto.FLOAT, [None] * end.rank)
            for index, end in enumerate(ends)
        ]
        declared = {dim for x in self.inputs for dim in _declared(x)}
        ranges = {name: range_ for name, range_ in self.ranges.items() if name in declared}
        return OpenFixture(b.model("open", given, results, b.opset), ranges, _feeds(self.inputs))


def _declared(x: Tensor) -> list[str | int]:
    return [size.fixed if size.fixed is not None else _name(size) for size in x.shape]


def _name(size: Size) -> str:
    ((factors, _),) = size.terms
    return str(factors[0])


def _feeds(inputs: list[Tensor]) -> Callable[[Sizes, np.random.Generator], Feeds]:
    def feeds(sizes: Sizes, random: np.random.Generator) -> Feeds:
        return {
            x.name: random.uniform(-2, 2, tuple(size.at(sizes) for size in x.shape)).astype(np.float32) for x in inputs
        }

    return feeds


# --- steps: each makes one value of another, or none where it does not suit -------------------------------------------

Step = Callable[[_Growing, Tensor], "Tensor | None"]


def _replaced(x: Tensor, axis: int, size: Size) -> tuple[Size, ...]:
    return (*x.shape[:axis], size, *x.shape[axis + 1 :])


def _unary(g: _Growing, x: Tensor) -> Tensor:
    return g.emit(g.choose(*UNARY), x.shape, x.name)


def _broadcast(a: Tensor, b: Tensor) -> tuple[Size, ...] | None:
    rank = max(a.rank, b.rank)
    shapes = [(ONE,) * (rank - x.rank) + x.shape for x in (a, b)]
    pairs = list(zip(*shapes, strict=True))
    if any(one != other and ONE not in (one, other) for one, other in pairs):
        return None
    return tuple(other if one == ONE else one for one, other in pairs)


def _binary(g: _Growing, x: Tensor) -> Tensor | None:
    y = g.choose(*(y for y in g.values if _broadcast(x, y) is not None))
    shape = _broadcast(x, y)
    if shape is None:
        return None
    g.used.add(y.name)
    return g.tame(g.emit(g.choose(*BINARY), shape, x.name, y.name))


def _outer(g: _Growing, x: Tensor) -> Tensor | None:
    """Two rows, or the same one twice, against each other: open dimensions broadcast both ways."""
    y = g.choose(*g.values)
    row = g.emit("Unsqueeze", (*x.shape, ONE), x.name, g.b.ints(x.rank))
    shape = _broadcast(row, y)
    if shape is None:
        return None
    g.used.add(y.name)
    return g.tame(g.emit(g.choose(*BINARY), shape, row.name, y.name))


def _dense(g: _Growing, x: Tensor) -> Tensor | None:
    width = x.shape[-1].fixed if x.rank > 1 else None
    if width is None:
        return None
    columns = g.choose(1, 4, 8)
    shape = (*x.shape[:-1], number(columns))
    return g.tame(g.emit("MatMul", shape, x.name, g.b.weight(width, columns)))


def _scores(g: _Growing, x: Tensor) -> Tensor | None:
    """x by x transposed, maybe masked, softmax, and back: queries and keys are open where x is."""
    if x.rank < 2:
        return None
    b, rows = g.b, x.shape[-2]
    perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    scores = b.op("MatMul", x.name, b.op("Transpose", x.name, perm=perm))
    if g.choose(True, False):
        place = b.arange(b.size(x.name, x.rank - 2))
        below = b.op("LessOrEqual", b.outer(place, 0), b.outer(place, 1))
        scores = b.op("Where", below, scores, b.number(-1e9))
    weights = g.emit("Softmax", (*x.shape[:-1], rows), scores, axis=-1)
    return weights if g.choose(True, False) else g.tame(g.emit("MatMul", x.shape, weights.name, x.name))


def _softmax(g: _Growing, x: Tensor) -> Tensor:
    return g.emit("Softmax", x.shape, x.name, axis=g.choose(-1, *range(x.rank)))


def _layer_norm(g: _Growing, x: Tensor) -> Tensor | None:
    width = x.shape[-1].fixed
    if width is None:
        mean = g.b.mean(x.name, [x.rank - 1])
        return g.tame(g.emit("Sub", x.shape, x.name, mean))
    scale, shift = g.b.around_one(width), g.b.weight(width, scale=0.1)
    return g.emit("LayerNormalization", x.shape, x.name, scale, shift, axis=-1, epsilon=0.1)


def _reduced(g: _Growing, x: Tensor) -> Tensor | None:
    axis = g.axis_of(x)
    if axis is None:
        return None
    keep = g.choose(0, 1)
    shape = _replaced(x, axis, ONE) if keep else (*x.shape[:axis], *x.shape[axis + 1 :])
    if g.choose(True, False):
        return Tensor(g.b.mean(x.name, [axis], keep), shape)
    return g.tame(g.emit("ReduceSum", shape, x.name, g.b.ints(axis), keepdims=keep))


def _running(g: _Growing, x: Tensor) -> Tensor:
    axis = g.choose(*range(x.rank))
    return g.tame(g.emit("CumSum", x.shape, x.name, g.b.constant(np.int64(axis)), reverse=g.choose(0, 1)))


def _joined(g: _Growing, x: Tensor) -> Tensor | None:
    """As a cache that grows: sizes along one axis add up. Or as a list that is joined."""
    axis = g.axis_of(x)
    if axis is None:
        return None
    suits = [y for y in g.values if y.rank == x.rank and _replaced(y, axis, ONE) == _replaced(x, axis, ONE)]
    y = g.choose(*suits)
    g.used.add(y.name)
    shape = _replaced(x, axis, x.shape[axis] + y.shape[axis])
    if g.choose(True, True, False):
        return g.emit("Concat", shape, x.name, y.name, axis=axis)
    return g.emit("ConcatFromSequence", shape, g.b.op("SequenceConstruct", x.name, y.name), axis=axis)


def _part(g: _Growing, x: Tensor) -> Tensor | None:
    """From a constant on, up to the size of another value, or the last so many."""
    axis = g.axis_of(x)
    if axis is None:
        return None
    b, size, low = g.b, x.shape[axis], x.shape[axis].at(g.lows)
    ends = [(y, at) for y in g.values for at, end in enumerate(y.shape) if size == end or _within(g, end, size)]
    if ends and g.choose(True, False):
        y, at = g.choose(*ends)
        end = b.vector(b.size(y.name, at))
        return g.emit("Slice", _replaced(x, axis, y.shape[at]), x.name, b.ints(0), end, b.ints(axis))
    if low < 2:
        return None
    bounds = (1, INT64.max) if g.choose(True, False) else (INT64.min, -1)
    return g.emit("Slice", _replaced(x, axis, size + number(-1)), x.name, *map(b.ints, bounds), b.ints(axis))


def _within(g: _Growing, part: Size, whole: Size) -> bool:
    """One of what the other adds up from."""
    return part.terms < whole.terms and all(count > 0 for _, count in whole.terms)


def _every_other(g: _Growing, x: Tensor) -> Tensor | None:
    axis = g.axis_of(x)
    if axis is None:
        return None
    b, shape = g.b, _replaced(x, axis, quotient(x.shape[axis] + ONE, 2))
    return g.emit("Slice", shape, x.name, b.ints(0), b.ints(INT64.max), b.ints(axis), b.ints(2))


def _first_half(g: _Growing, x: Tensor) -> Tensor | None:
    """Up to its own size divided by two."""
    axis = g.axis_of(x, lambda size: size.at(g.lows) >= 2)
    if axis is None:
        return None
    b = g.b
    middle = b.op("Div", b.size(x.name, axis), b.constant(np.int64(2)))
    return g.emit(
        "Slice", _replaced(x, axis, quotient(x.shape[axis], 2)), x.name, b.ints(0), b.vector(middle), b.ints(axis)
    )  # fmt: skip


def _picked(g: _Growing, x: Tensor) -> Tensor | None:
    """Rows at positions that count along an axis, from its end backwards; or one row."""
    axis = g.axis_of(x)
    if axis is None:
        return None
    b = g.b
    if g.choose(True, False):
        row = b.constant(np.int64(g.choose(0, -1)))
        return g.emit("Gather", (*x.shape[:axis], *x.shape[axis + 1 :]), x.name, row, axis=axis)
    return g.emit("Gather", x.shape, x.name, _backwards(b, x, axis), axis=axis)


def _backwards(b: Style, x: Tensor, axis: int) -> str:
    size = b.size(x.name, axis)
    return b.op("Sub", b.op("Sub", size, b.constant(np.int64(1))), b.arange(size))


def _written(g: _Growing, x: Tensor) -> Tensor:
    """Its rows, from the last one on, in place of it; in a vector, which writes elements, or they are added."""
    b, tamed = g.b, g.tame(x).name
    if x.rank > 1:
        return g.emit("ScatterND", x.shape, x.name, b.outer(_backwards(b, x, 0), 1), tamed)
    reduction = g.choose("none", "add")
    return g.tame(g.emit("ScatterElements", x.shape, x.name, _backwards(b, x, 0), tamed, axis=0, reduction=reduction))


def _padded(g: _Growing, x: Tensor) -> Tensor:
    pads = [g.choose(0, 1, 2) for _ in range(2 * x.rank)]
    shape = tuple(size + number(pads[axis] + pads[axis + x.rank]) for axis, size in enumerate(x.shape))
    return g.emit("Pad", shape, x.name, g.b.ints(*pads), mode="constant")


def _transposed(g: _Growing, x: Tensor) -> Tensor:
    perm = g.draw(st.permutations(range(x.rank)))
    return g.emit("Transpose", tuple(x.shape[axis] for axis in perm), x.name, perm=perm)


def _merged(g: _Growing, x: Tensor) -> Tensor | None:
    """Two axes become one: its size is left to Reshape, or is a product of sizes."""
    if x.rank < 2:
        return None
    axis = g.choose(*range(x.rank - 1))
    sizes: list[str | int] = [g.size_of(x, other) for other in range(x.rank)]
    shape = (*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])
    whole: str | int = -1
    if g.choose(True, False):
        whole = g.b.op("Mul", *(g.b.size(x.name, axis + other) for other in range(2)))
    return Tensor(g.b.reshape(x.name, *sizes[:axis], whole, *sizes[axis + 2 :]), shape)


def _split(g: _Growing, x: Tensor) -> Tensor | None:
    """An axis of even size becomes two, as heads do."""
    axis = g.axis_of(x, lambda size: size.fixed is not None and size.fixed % 2 == 0)
    if axis is None:
        return None
    size = x.shape[axis].fixed
    assert size is not None
    sizes: list[str | int] = [g.size_of(x, other) for other in range(x.rank)]
    inner: str | int = g.choose(-1, size // 2)
    shape = (*x.shape[:axis], number(2), number(size // 2), *x.shape[axis + 1 :])
    return Tensor(g.b.reshape(x.name, *sizes[:axis], 2, inner, *sizes[axis + 1 :]), shape)


def _back(g: _Growing, x: Tensor) -> Tensor | None:
    """The shape of another value with as many elements."""
    whole = reduce(Size.__mul__, x.shape, ONE)
    same = [y for y in g.values if reduce(Size.__mul__, y.shape, ONE) == whole and y.rank]
    if not same:
        return None
    y = g.choose(*same)
    return g.emit("Reshape", y.shape, x.name, g.b.op("Shape", y.name))


def _expanded(g: _Growing, x: Tensor) -> Tensor | None:
    """A new axis of the size of another value's."""
    y = g.choose(*(y for y in g.values))
    axis = g.axis_of(y)
    if axis is None:
        return None
    place = g.choose(*range(x.rank + 1))
    row = g.b.op("Unsqueeze", x.name, g.b.ints(place))
    sizes: list[str | int] = [g.choose(-1, g.size_of(x, other)) for other in range(x.rank)]
    sizes.insert(place, g.b.size(y.name, axis))
    shape = (*x.shape[:place], y.shape[axis], *x.shape[place:])
    return Tensor(g.b.expand(row, *sizes), shape)


def _placed(g: _Growing, x: Tensor) -> Tensor | None:
    """Positions along an axis, as small numbers, are added."""
    axis = g.axis_of(x)
    if axis is None:
        return None
    b = g.b
    places = b.op("Cast", b.arange(b.size(x.name, axis)), to=TensorProto.FLOAT)
    places = b.op("Sin", b.outer(places, *range(1, x.rank - axis)) if axis < x.rank - 1 else places)
    return g.tame(g.emit("Add", x.shape, x.name, places))


def _filled(g: _Growing, x: Tensor) -> Tensor:
    value = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.5])
    filled = g.b.op("ConstantOfShape", g.b.op("Shape", x.name), value=value)
    return g.tame(g.emit("Add", x.shape, x.name, filled))


def _repeated(g: _Growing, x: Tensor) -> Tensor | None:
    """Along one axis as often as another has elements."""
    y = g.choose(*g.values)
    axis, other = g.axis_of(x), g.axis_of(y)
    if axis is None or other is None:
        return None
    times: list[str | int] = [1] * x.rank
    times[axis] = g.b.size(y.name, other)
    shape = _replaced(x, axis, x.shape[axis] * y.shape[other])
    return g.emit("Tile", shape, x.name, g.b.vector(*times))


def _convolved(g: _Growing, x: Tensor) -> Tensor | None:
    """Along the last of three axes, with steps of one or two."""
    channels = x.shape[1].fixed if x.rank == 3 else None
    if channels is None:
        return None
    stride = g.choose(1, 2)
    length = x.shape[2] if stride == 1 else quotient(x.shape[2] + ONE, 2)
    weight = g.b.weight(4, channels, 3, scale=0.3)
    shape = (x.shape[0], number(4), length)
    return g.tame(g.emit("Conv", shape, x.name, weight, kernel_shape=[3], strides=[stride], pads=[1, 1]))


STEPS: tuple[Step, ...] = (
    _unary, _binary, _binary, _outer, _dense, _dense, _scores, _softmax, _layer_norm, _reduced, _running, _joined,
    _joined, _part, _part, _every_other, _first_half, _picked, _padded, _transposed, _merged, _merged, _split, _back,
    _back, _expanded, _placed, _filled, _repeated, _convolved, _written,
)  # fmt: skip
STEPS_OF_NUMBERS: tuple[Step, ...] = (_unary, _binary, _expanded)
"""For values without axes."""
