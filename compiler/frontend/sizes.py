"""Shape arithmetic: small integer tensors whose elements are sizes, as primitives compute with them.

A model computes target shapes from the shapes of its inputs. The results are expressions over their symbols, held by
`sizes` primitives, so that no arithmetic remains at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from tilestitch.compiler.ir import Node, TensorType, Value, reference
from tilestitch.compiler.ir.claims import may_be_natural
from tilestitch.compiler.ir.errors import UndecidedError
from tilestitch.compiler.ir.sizes import Size, bounds_of, is_open, largest, smallest
from tilestitch.compiler.ir.types import broadcast_shapes, is_float, is_integer, storage_bytes, to_numpy_dtype

from .fractional_sizes import EXACT, Fraction
from .symbols import quotient_of

MOST_ELEMENTS = 64
"""Longer tensors of integers are data, not shapes."""
MOST_FOLLOWED = 16
"""Longest chain of float operators that is traced back to sizes."""
_LEAST_BYTES = 4
"""Bytes of the smallest integers that can represent every size."""


def contents_of(value: Value) -> np.ndarray | None:
    """Return the elements of a small integer or bool tensor, as an array of objects; None if they are not known."""
    if value.data is not None:
        known = value.data.size <= MOST_ELEMENTS and value.data.dtype.kind in "iub"
        return np.array(value.data.tolist(), object).reshape(value.data.shape) if known else None
    node = value.producer
    if node is None or node.op != "sizes":
        return None
    return _objects(node.attrs["values"], node.attrs["shape"])


def computed(op: str, values: Sequence[Value], attrs: Mapping[str, Any]) -> np.ndarray | None:
    """Return the elements of the one result of a primitive whose operands are sizes; None if they are not known."""
    if not all(isinstance(value.type, TensorType) for value in values):
        return None  # of unknown rank
    if op in _ROUNDINGS and values[0].dtype in EXACT and values[0].data is None:
        return _rounded(op, values[0], attrs)
    if op in _DECIDES:
        decided = _decided(_DECIDES[op], values)
        if decided is not None:
            return decided
    if not any(v.producer is not None and v.producer.op == "sizes" for v in values):
        return None
    operands = [contents_of(value) for value in values]
    if any(is_float(value.dtype) for value in values) and op not in _MOVES and op != "cast":
        return None
    if any(operand is None for operand in operands):
        return None
    known = [operand for operand in operands if operand is not None]
    try:
        return _cast(known[0], values[0].dtype, attrs["to"]) if op == "cast" else _result(op, known, attrs)
    except UndecidedError:
        return None


def _result(op: str, operands: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> np.ndarray | None:
    if op in _MOVES:
        if op == "gather":
            operands = [operands[0], operands[1].astype(np.int64)]
        moved = reference(op)(list(operands), attrs)[0]
        return np.asarray(moved, object)
    if op in _FOLDS:
        axes, keepdims = tuple(attrs["axes"]), bool(attrs["keepdims"])
        return _folded(_FOLDS[op], operands[0], axes, keepdims)
    if op in _ELEMENTWISE:
        together = np.broadcast_arrays(*operands)
        elements = [_ELEMENTWISE[op](*each) for each in zip(*(a.reshape(-1) for a in together), strict=True)]
        return _objects(elements, together[0].shape)
    return None


def _decided(decides: bool, values: Sequence[Value]) -> np.ndarray | None:
    """Return the result of a conjunction or disjunction of a few elements if one operand alone decides it."""
    types = [value.type for value in values if isinstance(value.type, TensorType) and value.type.is_static]
    if len(types) < len(values):
        return None
    shape = TensorType("bool", broadcast_shapes(*(type_.shape for type_ in types))).static_shape
    known = (contents_of(value) for value in values)
    alone = any(each is not None and all(one is decides for one in each.reshape(-1)) for each in known)
    return np.full(shape, decides, object) if alone and prod(shape) <= MOST_ELEMENTS else None


def _rounded(op: str, value: Value, attrs: Mapping[str, Any]) -> np.ndarray | None:
    """Return integers rounded from floats that are computed from sizes, or such floats if integral."""
    to = attrs["to"] if op == "cast" else value.dtype
    if op == "cast" and (not is_integer(to) or storage_bytes(to) < _LEAST_BYTES):
        known = contents_of(value)
        return None if known is None else _cast(known, value.dtype, to)
    fractions = fractions_of(value)
    if fractions is None:
        return None
    elements = [_ROUNDINGS[op](fraction, value.dtype) for fraction in fractions.reshape(-1)]
    return None if any(element is None for element in elements) else _objects(elements, fractions.shape)


def fractions_of(value: Value) -> np.ndarray | None:
    """Return a few floats as an array of fractions of sizes; None if they are not known to be such."""
    return _fractions(value, MOST_FOLLOWED, {})


_Found: TypeAlias = "dict[Value, np.ndarray | None]"


def _fractions(value: Value, depth: int, found: _Found) -> np.ndarray | None:
    """Return floats as fractions of sizes, as an array of objects; None if they are not known to be such."""
    if value not in found:
        type_ = value.type
        small = isinstance(type_, TensorType) and type_.is_static and type_.num_elements <= MOST_ELEMENTS
        found[value] = _followed(value, depth, found) if small and depth and value.dtype in EXACT else None
    return found[value]


def _followed(value: Value, depth: int, found: _Found) -> np.ndarray | None:
    node = value.producer
    if node is None:
        return None if value.data is None else _known_fractions(value.data)
    if node.op == "sizes":
        return _whole(_objects(node.attrs["values"], node.attrs["shape"]))
    if node.op == "cast" and is_integer(node.inputs[0].dtype):
        known = contents_of(node.inputs[0])
        return None if known is None else _whole(known)
    if node.op == "gather":
        source, places = _fractions(node.inputs[0], depth - 1, found), contents_of(node.inputs[1])
        known_places = places is not None and not any(map(is_open, places.reshape(-1)))
        return _moved(node, [source, np.asarray(places, np.int64)]) if source is not None and known_places else None
    if node.op not in _MOVES and node.op not in _ON_FRACTIONS:
        return None
    operands: list[np.ndarray] = []
    for operand in node.inputs:
        fractions = _fractions(operand, depth - 1, found)
        if fractions is None:
            return None
        operands.append(fractions)
    if node.op in _MOVES:
        return _moved(node, operands)
    together = np.broadcast_arrays(*operands)
    elements = [_ON_FRACTIONS[node.op](*each) for each in zip(*(a.reshape(-1) for a in together), strict=True)]
    return None if any(element is None for element in elements) else _objects(elements, together[0].shape)


def _moved(node: Node, operands: list[np.ndarray]) -> np.ndarray:
    return np.asarray(reference(node.op)(operands, node.attrs)[0], object)


def _whole(sizes: np.ndarray) -> np.ndarray:
    return _objects([Fraction(size) for size in sizes.reshape(-1)], sizes.shape)


def _known_fractions(data: np.ndarray) -> np.ndarray | None:
    if not np.isfinite(data).all():
        return None
    ratios = [float(number).as_integer_ratio() for number in data.reshape(-1)]
    return _objects([Fraction(*ratio) for ratio in ratios], data.shape)


def _cast(operand: np.ndarray, dtype: str, to: str) -> np.ndarray | None:
    """Return a cast of sizes. Old converters cast sizes to floats and back, which is lossless for exactly representable
    ones.
    """
    if to == "bool":
        if dtype == "bool":
            return operand
        return _objects([not _equal(each, 0) for each in operand.reshape(-1)], operand.shape)
    if is_integer(to) and storage_bytes(to) < _LEAST_BYTES and not _fits(operand, to):
        return None
    if is_integer(to) and dtype in EXACT:
        most, sizes = EXACT[dtype], operand.reshape(-1)
        return operand if all(bounds_of(s)[0] >= -most and may_be_natural(most - s) for s in sizes) else None
    return operand if not is_float(dtype) and (is_integer(to) or to in EXACT) else None


def _fits(operand: np.ndarray, dtype: str) -> bool:
    """Return whether every element always fits integers of this dtype, without wrapping."""
    limits = ml_dtypes.iinfo(to_numpy_dtype(dtype))
    bounds = map(bounds_of, operand.reshape(-1))
    return all(limits.min <= low and high <= limits.max for low, high in bounds)


def _objects(elements: Sequence[Any], shape: Sequence[int]) -> np.ndarray:
    result = np.empty(len(elements), object)
    result[:] = elements
    return result.reshape(tuple(shape))


def _folded(fold: Callable[[Any, Any], Any], operand: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
    result = operand
    for axis in sorted(axes, reverse=True):
        lines = np.moveaxis(result, axis, -1)
        if not lines.shape[-1]:
            raise UndecidedError("the result of folding nothing")
        total = lines[..., 0]
        for i in range(1, lines.shape[-1]):
            pairs = zip(np.ravel(total), np.ravel(lines[..., i]), strict=True)
            total = _objects([fold(a, b) for a, b in pairs], lines.shape[:-1])
        result = _objects(list(np.ravel(total)), lines.shape[:-1])
        result = np.expand_dims(result, axis) if keepdims else result
    return result


def _quotient(a: Size, b: Size) -> Size:
    """Return an integer quotient, rounded towards zero."""
    if not is_open(b) and b != 0 and a // b * b == a:
        return a // b
    if bounds_of(a)[0] < 0 or bounds_of(b)[0] <= 0:
        raise UndecidedError(f"{a} >= 0 and {b} > 0")
    return quotient_of(a, b)


def _remainder(a: Size, b: Size) -> Size:
    if bounds_of(b)[0] <= 0:
        raise UndecidedError(f"{b} > 0")
    return a % b


def _equal(a: Size, b: Size) -> bool:
    if a == b:
        return True
    low, high = bounds_of(a - b)
    if low <= 0 <= high:
        raise UndecidedError(f"{a} == {b}")
    return False


def _magnitude(a: Size) -> Size:
    low, high = bounds_of(a)
    if low < 0 < high:
        raise UndecidedError(f"{a} >= 0")
    return a if low >= 0 else -a


def _sign(a: Size) -> Size:
    low, high = bounds_of(a)
    if low < 0 < high:
        raise UndecidedError(f"{a} >= 0")
    return smallest(a, 1) if low >= 0 else largest(a, -1)


_ROUNDINGS: Mapping[str, Callable[[Fraction, str], Size | None]] = {
    "floor": Fraction.floor, "ceil": Fraction.ceil, "cast": Fraction.truncated,
}  # fmt: skip
_ON_FRACTIONS: Mapping[str, Callable[..., Fraction | None]] = {
    "add": Fraction.plus, "sub": lambda a, b: a.plus(b.negated()), "mul": Fraction.times, "div": Fraction.over,
    "neg": Fraction.negated,
}  # fmt: skip
_MOVES = frozenset({"reshape", "transpose", "broadcast_to", "slice", "concat", "gather"})
_FOLDS: Mapping[str, Callable[[Any, Any], Any]] = {
    "reduce_sum": lambda a, b: a + b, "reduce_prod": lambda a, b: a * b,
    "reduce_max": largest, "reduce_min": smallest,
}  # fmt: skip
_DECIDES = {"logical_and": False, "logical_or": True}
"""What a conjunction or disjunction is as soon as one operand is it."""
_ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": _quotient,
    "mod": _remainder, "neg": lambda a: -a, "abs": _magnitude, "sign": _sign, "maximum": largest, "minimum": smallest,
    "equal": _equal, "less": lambda a, b: bool(a < b), "less_equal": lambda a, b: bool(a <= b),
    "logical_not": lambda a: not a, "logical_and": lambda a, b: a and b, "logical_or": lambda a, b: a or b,
    "select": lambda condition, a, b: a if condition else b,
}  # fmt: skip
