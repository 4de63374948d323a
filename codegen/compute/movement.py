"""Injective data movement: which element of which operand, by the indices of the result.

No rule reads outside its operands, whatever the run-time indices: those are clamped. Whether they are in range is
checked separately (`index_checks`), so that reading needs no branch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm_ffi import StructuralKey

from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.compiler.ir.sizes import Size, bounds_of, is_open, largest, surely
from tilestitch.passes.plan.access.positions import INT32_ELEMENTS
from tilestitch.passes.plan.index_checks import IndexCheck, are_places, index_checks

from .dtypes import Bind, Expr, immediate, revealed
from .elementwise import convert
from .indexing import Index, Simplify, ravel
from .sizes import integer, may_be_0

Read = Callable[[Value, Sequence[Expr]], Expr]


@dataclass(frozen=True)
class Access:
    """Arguments of a rule: the node, the index in its result, and functions to read, bind and simplify.

    `cut(position, limit)` notes that different memory is read below `limit` and from there on. `once(key, make)`
    memoises by key within the scope. `dtype`: of the result, perhaps as integers.
    """

    node: Node
    index: Index
    read: Read
    bind: Bind
    simplify: Simplify
    cut: Callable[[Expr, int], None]
    index_dtype: str
    once: Callable[[object, Callable[[], Expr]], Expr]
    dtype: str

    def is_inside(self, i: Expr, size: int) -> bool:
        """Return whether `i` is known to lie in [0, size)."""
        if isinstance(i, int):
            return 0 <= i < size
        return _known(self.simplify(tirx.all(i >= 0, i < size))) is True


Rule = Callable[[Access], Expr]


def choose(condition: Expr, a: Expr, b: Expr, dtype: str) -> Expr:
    """Select, also for bools."""
    if dtype == "bool":
        return tirx.Or(tirx.And(condition, a), tirx.And(tirx.Not(condition), b))
    return tirx.Select(condition, a, b)


def clamp(i: Expr, size: int) -> Expr:
    """Return `i` clamped to [0, size)."""
    if isinstance(i, int) and not is_open(size):
        return min(max(i, 0), size - 1)
    dtype = "int64" if isinstance(i, int) else str(i.ty.dtype)
    return T.max(T.min(i, integer(size - 1, dtype)), tirx.IntImm(dtype, 0))


def _known(condition: Expr) -> bool | None:
    """Return the truth of a condition that is decided at code generation, else None."""
    if isinstance(condition, bool):
        return condition
    return bool(condition.value) if isinstance(condition, tirx.IntImm) else None


def _concat(access: Access) -> Expr:
    node, axis = access.node, access.node.attrs["axis"]
    position, start = _place(access, axis, [operand.shape[axis] for operand in node.inputs]), 0
    parts: list[tuple[int, Value]] = []
    for operand in node.inputs:
        if is_open(operand.shape[axis]) or operand.shape[axis]:
            parts.append((start, operand))
            start += operand.shape[axis]
    return _pick(access, parts, position, axis)


def _place(access: Access, axis: int, sizes: Sequence[Size], first: Size = 0) -> Expr:
    """Return the position along an axis of a concatenation of these sizes, after `first` others. Where a size may be 0,
    or its order to a number or size is open, it is a run-time expression.
    """
    i = access.index[axis]
    if not (isinstance(i, int) or is_open(i)):
        return i
    borders = accumulate(sizes, initial=first)
    known = not any(map(may_be_0, sizes)) and all(_is_decided(i, border) for border in borders)
    return i if known else integer(i, access.index_dtype)


def _is_decided(i: Size, border: Size) -> bool:
    """Return whether a position is certainly before a border, or certainly not."""
    return surely(lambda: i < border) or surely(lambda: i >= border)


def _pick(access: Access, parts: list[tuple[int, Value]], position: Expr, axis: int) -> Expr:
    """Return the element from the part that contains `position`, by bisection, which keeps the chain of selects
    short.
    """
    if len(parts) == 1:
        start, operand = parts[0]
        local = access.simplify(position - start)
        if not access.is_inside(local, operand.shape[axis]):
            local = clamp(local, operand.shape[axis])
        return access.read(operand, (*access.index[:axis], local, *access.index[axis + 1 :]))
    middle = len(parts) // 2
    access.cut(position, parts[middle][0])
    before = position < parts[middle][0]
    before = before if isinstance(before, bool) else access.simplify(before)
    known = _known(before)
    if known is not None:
        return _pick(access, parts[:middle] if known else parts[middle:], position, axis)
    first = _pick(access, parts[:middle], position, axis)
    second = _pick(access, parts[middle:], position, axis)
    return choose(before, first, second, access.dtype)


def _pad(access: Access) -> Expr:
    node, mode = access.node, access.node.attrs["mode"]
    x = node.inputs[0]
    if mode == "constant":
        return _pad_constant(access, x)
    source = [
        i if b == 0 and a == 0 else access.simplify(_mirrored(_one_place(access, i), b, a, size, mode))
        for i, b, a, size in zip(access.index, node.attrs["before"], node.attrs["after"], x.shape, strict=True)
    ]
    return access.read(x, source)


def _one_place(access: Access, i: Expr) -> Expr:
    """Return a variable for an index that was mirrored or wrapped before: substituted, it would double with each
    pad.
    """
    if isinstance(i, int):
        return i
    bends: list[Expr] = []
    tvm_ffi.structural_walk(i, [(bend, bends.append) for bend in (tirx.Min, tirx.Mod, tirx.FloorMod)])
    return access.once(("place", StructuralKey(i)), lambda: access.bind(i)) if bends else i


def _mirrored(i: Expr, before: int, after: int, size: int, mode: str) -> Expr:
    position = i - before
    if mode == "edge":
        return clamp(position, size)
    if size == 1:
        return 0
    period = size if mode == "wrap" else largest(1, 2 * (size - 1))
    most = max(1, bounds_of(size)[0] - 1)
    if is_open(size) and mode == "reflect" and surely(lambda: before <= most and after <= most):
        # Reflected once at most, which takes no quotient.
        distance = abs(position) if isinstance(position, int) else T.max(position, -position)
        return T.min(distance, period - distance)
    if is_open(size):
        position = position + before * period  # quotients by open sizes must have non-negative dividends
    position = position % period
    if mode == "wrap":
        return position
    if isinstance(position, int):
        return min(position, period - position)
    return T.min(position, period - position)


def _pad_constant(access: Access, x: Value) -> Expr:
    node, dtype = access.node, access.dtype
    fill = (
        access.read(node.inputs[1], (0,) * len(node.inputs[1].shape)) if len(node.inputs) > 1 else immediate(0, dtype)
    )
    if prod(x.shape) == 0:
        return fill
    conditions: list[Expr] = []
    source: list[Expr] = []
    for axis, (b, a, size) in enumerate(zip(node.attrs["before"], node.attrs["after"], x.shape, strict=True)):
        i = access.index[axis]
        if b == 0 and a == 0:
            source.append(i)
            continue
        i = _place(access, axis, (size,), b)
        position = access.simplify(i - b) if not isinstance(i, int) else i - b
        inside = [position >= 0] if b != 0 else []
        inside += [position < size] if a != 0 else []
        known = [_known(c if isinstance(c, bool) else access.simplify(c)) for c in inside]
        if False in known:
            return fill
        conditions += [c for c, k in zip(inside, known, strict=True) if k is None]
        source.append(clamp(position, size) if None in known else position)
    value = access.read(x, source)
    return choose(tirx.all(*conditions), value, fill, dtype) if conditions else value


def _iota(access: Access) -> Expr:
    dtype = access.node.attrs["dtype"]
    i = access.index[access.node.attrs["axis"]]
    if isinstance(i, int) or is_open(i):
        return _size(i, dtype)
    return convert(i, access.index_dtype, dtype, access.bind)


def _sizes(access: Access) -> Expr:
    """Return the size at the index; by a chain of selects where the index is known only at run time."""
    attrs = access.node.attrs
    position = access.simplify(ravel(access.index, attrs["shape"]))
    values = [_size(value, attrs["dtype"]) for value in attrs["values"]]
    if isinstance(position, int | tirx.IntImm):
        return values[int(position)]
    result = values[-1]
    for number, value in enumerate(values[:-1]):
        result = choose(tirx.EQ(position, integer(number, str(position.ty.dtype))), value, result, attrs["dtype"])
    return result


def _size(value: Size | bool, dtype: str) -> Expr:
    return integer(value, dtype) if is_open(value) else immediate(value, dtype)


def _wrapped(access: Access, raw: Expr, check: IndexCheck) -> Expr:
    """Return an index as a position in [0, size): negative ones count from the end, others are clamped, unless that is
    known to have no effect.

    Computed once for all reads there, so that adjacent reads can be recognised.
    """
    raw, size = revealed(raw), check.size
    raw = access.bind(raw if bounds_of(size)[1] < INT32_ELEMENTS else T.cast(raw, "int64"))
    zero = tirx.IntImm(str(raw.ty.dtype), 0)

    def position() -> Expr:
        if are_places(check):
            return access.bind(T.cast(raw, access.index_dtype))
        inside = clamp(tirx.Select(raw < zero, raw + integer(size, str(raw.ty.dtype)), raw), size)
        return access.bind(T.cast(inside, access.index_dtype))

    return access.once(("position", StructuralKey(raw), size), position)


def _position(access: Access, at: Sequence[Expr]) -> Expr:
    """Return the position given by the only index at `at`."""
    (check,) = index_checks(access.node)
    return _wrapped(access, access.read(check.indices, at), check)


def _empty(access: Access, sizes: Sequence[int]) -> Expr | None:
    """Return the result where run-time indices address an empty operand; None if it is not empty."""
    return immediate(0, access.dtype) if 0 in sizes else None


def _gather(access: Access) -> Expr:
    (x, indices), axis = access.node.inputs, access.node.attrs["axis"]
    rank = len(indices.shape)
    nothing = _empty(access, [x.shape[axis]])
    if nothing is not None:
        return nothing
    position = _position(access, access.index[axis : axis + rank])
    return access.read(x, (*access.index[:axis], position, *access.index[axis + rank :]))


def _gather_elements(access: Access) -> Expr:
    x, axis = access.node.inputs[0], access.node.attrs["axis"]
    nothing = _empty(access, [x.shape[axis]])
    if nothing is not None:
        return nothing
    position = _position(access, access.index)
    return access.read(x, (*access.index[:axis], position, *access.index[axis + 1 :]))


def _gather_nd(access: Access) -> Expr:
    (x, indices), batch = access.node.inputs, access.node.attrs["batch_dims"]
    depth, prefix = indices.shape[-1], len(indices.shape) - 1
    nothing = _empty(access, x.shape[batch : batch + depth])
    if nothing is not None:
        return nothing
    outer = access.index[:prefix]
    checks = index_checks(access.node)
    picked = [_wrapped(access, access.read(indices, (*outer, d)), check) for d, check in enumerate(checks)]
    return access.read(x, (*outer[:batch], *picked, *access.index[prefix:]))


RULES: Mapping[str, Rule] = {
    "concat": _concat, "pad": _pad, "iota": _iota, "sizes": _sizes,
    "gather": _gather, "gather_elements": _gather_elements, "gather_nd": _gather_nd,
}  # fmt: skip
"""The rule of every injective primitive that moves data."""
