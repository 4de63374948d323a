"""Types of host steps: what is known of a result at compile time, and the join of two types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tilestitch.compiler.frontend.builder import dtype_of, normalize_axis
from tilestitch.compiler.frontend.context import Context
from tilestitch.compiler.ir import UNKNOWN, AnyRankTensor, IRError, OptionalType, SequenceType, TensorType, Type, Value

Dim = int | str
TensorLike = TensorType | AnyRankTensor


def join_types(a: Type, b: Type) -> Type:
    """Return the least type that covers both: dimensions or ranks that differ become unknown.

    Raises IRError if there is none: dtypes differ, or one is a sequence and the other a tensor.
    """
    if a == b:
        return a
    if isinstance(a, OptionalType) or isinstance(b, OptionalType):
        return _join_optionals(a, b)
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return SequenceType(join_types(a.element, b.element))
    if isinstance(a, (TensorType, AnyRankTensor)) and isinstance(b, (TensorType, AnyRankTensor)) and a.dtype == b.dtype:
        if isinstance(a, AnyRankTensor) or isinstance(b, AnyRankTensor) or a.rank != b.rank:
            return AnyRankTensor(a.dtype)
        return TensorType(a.dtype, tuple(x if x == y else UNKNOWN for x, y in zip(a.shape, b.shape, strict=True)))
    raise IRError(f"one value cannot be of type {a} and of type {b}")


def _join_optionals(a: Type, b: Type) -> Type:
    inner = [t.element if isinstance(t, OptionalType) else t for t in (a, b)]
    known = [t for t in inner if t is not None]
    if not known:
        return OptionalType(None)
    return OptionalType(known[0] if len(known) == 1 else join_types(known[0], known[1]))


def join_all(types: Iterable[Type]) -> Type:
    """Return the join of one or more types."""
    first, *rest = types
    for other in rest:
        first = join_types(first, other)
    return first


def stacked(size: Dim, element: Type) -> Type:
    """Return the tensor type of `size` elements along a new first axis."""
    if isinstance(element, TensorType):
        return TensorType(element.dtype, (size, *element.shape))
    if isinstance(element, AnyRankTensor):
        return element
    raise IRError(f"values of type {element} cannot be stacked to a tensor")


def unknown_tensor(dtype: str, rank: int | None) -> TensorLike:
    """Return a tensor type of which at most the rank is known."""
    return AnyRankTensor(dtype) if rank is None else TensorType(dtype, (UNKNOWN,) * rank)


def rank_or_none(value: Value) -> int | None:
    return value.type.rank if isinstance(value.type, TensorType) else None


def length_of(value: Value) -> int | None:
    """Return the number of elements of a vector operand, if it is known."""
    if not isinstance(value.type, TensorType) or not value.type.is_static:
        return None
    return value.type.num_elements


def with_unknown(value: Value, axes: Iterable[int] | None) -> TensorLike:
    """Return the type of `value` with these axes unknown (None: all); negative axes count from the end."""
    if not isinstance(value.type, TensorType):
        return AnyRankTensor(dtype_of(value))
    rank = value.type.rank
    open_axes = set(range(rank)) if axes is None else {a + rank if a < 0 else a for a in axes}
    return value.type.with_shape(tuple(UNKNOWN if i in open_axes else d for i, d in enumerate(value.type.shape)))


def resized(value: Value, changes: Mapping[int, Any], size_of: Callable[[int, Any], int]) -> TensorLike:
    """Return the type of `value` with `size_of(size, change)` along the changed axes where the size is known, else
    unknown.
    """
    if not isinstance(value.type, TensorType):
        return AnyRankTensor(dtype_of(value))
    shape = list(value.type.shape)
    for axis, change in changes.items():
        place = normalize_axis(axis, len(shape))
        size = shape[place]
        shape[place] = size_of(size, change) if isinstance(size, int) else UNKNOWN
    return value.type.with_shape(tuple(shape))


def constant_ints(value: Value | None) -> tuple[int, ...] | None:
    """Return the numbers in a constant operand, None if it is absent or not constant."""
    if value is None or value.data is None:
        return None
    return tuple(int(v) for v in value.data.reshape(-1))


def ints_operand(ctx: Context, index: int, attribute: str) -> Value | None:
    """Return an operand that older opsets give as an attribute of ints; None if there is neither."""
    given = ctx.optional(index)
    if given is not None or not ctx.has_attr(attribute):
        return given
    value = ctx.attr(attribute)
    return ctx.constant(value, "int64")


def present(ctx: Context, *names: str) -> dict[str, Any]:
    """Return those of the node's attributes that are given, by name."""
    return {name: ctx.attr(name) for name in names if ctx.has_attr(name)}


def operands(ctx: Context, values: Sequence[Value | None]) -> list[Value]:
    """Return the operands of a host step: absent ones at the end are left off, others become `host.none`."""
    given = list(values)
    while given and given[-1] is None:
        given.pop()
    return [ctx.none() if v is None else v for v in given]


def tensor_step(
    ctx: Context, name: str, values: Sequence[Value | None], types: Sequence[Type], /, **attrs: Any
) -> tuple[Value, ...]:
    """Emit a host step on tensors, evaluated at once if all its operands are constants."""
    folds = all(v is None or v.is_constant for v in values)
    if folds:
        return fold_step(ctx, name, values, attrs)
    return ctx.host(name, operands(ctx, values), types, **attrs)


def fold_step(ctx: Context, name: str, values: Sequence[Value | None], attrs: dict[str, Any]) -> tuple[Value, ...]:
    """Evaluate a host step on constants. Raises IRError if the operator has no result for them."""
    from tilestitch.compiler.ir import reference
    from tilestitch.runtime.host import HostError

    try:
        results = reference("host." + name)([None if v is None else v.data for v in values], attrs)
    except HostError as error:
        raise IRError(str(error)) from error
    return tuple(ctx.constant(r, name=name) for r in results)
