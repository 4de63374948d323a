"""Index arithmetic of views: between shapes of equal element count, forwards and backwards.

An index is a tuple with one entry a dimension. Entries are Python integers, or expressions of any type with `+`, `*`,
`//` and `%` with integers: `affine.Affine`, or what a code generator writes.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from .graph import Node
from .polynomial import exact_quotient
from .sizes import Size, is_open, largest

Index = tuple[Any, ...]
Simplify = Callable[[Any], Any]
Ravel = Callable[[Sequence[Any], Sequence[int]], Any]


def ravel(index: Sequence[Any], shape: Sequence[int]) -> Any:
    """Return the row-major position of an index."""
    position: Any = 0
    for entry, size in zip(index, shape, strict=True):
        position = entry if isinstance(position, int) and position == 0 else position * size + entry
    return position


def unravel(position: Any, shape: Sequence[int]) -> Index:
    """Return the index of a row-major position. A size of 0 divides as 1 does: an empty tensor has no positions."""
    index: list[Any] = []
    for axis, size in enumerate(shape):
        if size == 1:
            index.append(0)
            continue
        stride = prod(largest(d, 1) for d in shape[axis + 1 :])
        entry = position if stride == 1 else position // stride
        inner = all(d == 1 for d in shape[:axis])
        index.append(entry if inner else entry % largest(size, 1))
    return tuple(index)


def same(expr: Any) -> Any:
    """Return the expression: the identity, for expressions that are always simplified."""
    return expr


def reshape_index(
    index: Sequence[Any], source: Sequence[int], target: Sequence[int], simplify: Simplify = same, ravel: Ravel = ravel
) -> Index:
    """Return the index in shape `target` of the element that has `index` in shape `source`; both have the same number
    of elements.

    Blocks of dimensions with equal products are handled separately, so dimensions that are equal in both keep their
    index.
    """
    if prod(source) == 0:
        kept = iter([i for i, d in zip(index, source, strict=True) if d != 1])
        alike = [d for d in source if d != 1] == [d for d in target if d != 1]
        return tuple(next(kept) if alike and d != 1 else 0 for d in target)
    result: list[Any] = [0] * len(target)
    for source_axes, target_axes in blocks_of_reshape(source, target):
        if len(source_axes) == len(target_axes) == 1:
            result[target_axes[0]] = index[source_axes[0]]
            continue
        entries = _across(
            [index[a] for a in source_axes], [source[a] for a in source_axes], [target[a] for a in target_axes], ravel
        )
        for axis, entry in zip(target_axes, entries, strict=True):
            result[axis] = entry if isinstance(entry, int) else simplify(entry)
    return tuple(result)


def _across(index: Sequence[Any], source: Sequence[Any], target: Sequence[Any], ravel: Ravel) -> Index:
    """Return the index in `target` of the element that has `index` in `source`. Where the last sizes are open and one
    divides the other, only that one is split: a row of [c * t, n] is one in [c, t * n] without division by n.
    """
    *outer, last = source
    *others, end = target
    split: list[Any]
    if outer and others and (is_open(last) or is_open(end)):
        if (count := exact_quotient(end, last)) is not None:
            split = [count, last]
            *before, row = _across(index[:-1], outer, [*others, count], ravel)
            return (*before, ravel([row, index[-1]], split))
        if (count := exact_quotient(last, end)) is not None:
            split = [count, end]
            row, entry = unravel(index[-1], split)
            return (*_across([*index[:-1], row], [*outer, count], others, ravel), entry)
    return unravel(ravel(index, source), target)


def blocks_of_reshape(source: Sequence[int], target: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the shortest pairs of consecutive axes (without those of size 1) whose extents have equal products."""
    left = [a for a, d in enumerate(source) if d != 1]
    right = [a for a, d in enumerate(target) if d != 1]
    blocks = []
    i = j = 0
    while i < len(left):
        first, second = [left[i]], [right[j]]
        p, q = source[left[i]], target[right[j]]
        i, j = i + 1, j + 1
        while p != q:
            if _comes_first(p, q, i < len(left), j < len(right)):
                first.append(left[i])
                p *= source[left[i]]
                i += 1
            else:
                second.append(right[j])
                q *= target[right[j]]
                j += 1
        blocks.append((first, second))
    return blocks


def _comes_first(p: Size, q: Size, more_left: bool, more_right: bool) -> bool:
    """Return whether the first of two products is to be extended until both are equal. With open sizes, one that
    divides the other is; in the end they become equal either way.
    """
    if not is_open(p) and not is_open(q):
        return p < q
    if not (more_left and more_right):
        return more_left
    return exact_quotient(p, q) is None


def broadcast_index(index: Sequence[Any], shape: Sequence[int]) -> Index:
    """Return the index into an operand of `shape` that is broadcast to a result at `index`."""
    tail = index[len(index) - len(shape) :]
    return tuple(0 if size == 1 else i for i, size in zip(tail, shape, strict=True))


def forward_index(view: Node, index: Sequence[Any], simplify: Simplify = same, ravel: Ravel = ravel) -> Index:
    """Return the result's index, in a reshape or transpose, of the operand's element at `index`."""
    source, target = view.inputs[0].shape, view.output.shape
    if view.op == "transpose":
        return tuple(index[p] for p in view.attrs["perm"])
    if view.op == "reshape":
        return reshape_index(index, source, target, simplify, ravel)
    raise ValueError(f"{view.op} is no bijective view; only reshape and transpose are")


def pull_view(view: Node, index: Sequence[Any], simplify: Simplify = same, ravel: Ravel = ravel) -> Index:
    """Return the operand's index of the element that a view has at `index`."""
    source, target = view.inputs[0].shape, view.output.shape
    if view.op == "transpose":
        result: list[Any] = [0] * len(source)
        for i, p in zip(index, view.attrs["perm"], strict=True):
            result[p] = i
        return tuple(result)
    if view.op == "reshape":
        return reshape_index(index, target, source, simplify, ravel)
    if view.op == "broadcast_to":
        return broadcast_index(index, source)
    if view.op == "slice":
        steps = zip(index, view.attrs["starts"], view.attrs["steps"], strict=True)
        return tuple(
            start if size == 1 else start + i * step for (i, start, step), size in zip(steps, target, strict=True)
        )
    raise ValueError(f"{view.op} is no view")
