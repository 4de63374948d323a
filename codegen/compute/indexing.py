"""Index arithmetic: between shapes of equal element count, forwards and backwards through views.

An index is a tuple with one entry a dimension, each a Python int or a TIR integer expression.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import tvm.sym
from tvm import tirx

from tilestitch.compiler.ir.graph import Node

from .dtypes import Expr

Index = tuple[Any, ...]
Simplify = Callable[[Expr], Expr]


def ravel(index: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """Row-major position of an index."""
    entries: list[tuple[Expr, int]] = []
    for i, size in zip(index, shape, strict=True):
        entry, extent = i, size
        while entries and (joined := _dividend(entries[-1][0], entry, extent)) is not None:
            entry, extent = joined, extent * entries.pop()[1]
        entries.append((entry, extent))
    position: Expr = 0
    for entry, size in entries:
        position = entry if isinstance(position, int) and position == 0 else position * size + entry
    return position


def _dividend(quotient: Expr, remainder: Expr, size: int) -> Expr | None:
    """What was divided by `size` to give both, the quotient perhaps reduced to a remainder itself; None if nothing was.

    The simplifier knows that x // 28 * 28 + x % 28 is x. But it reduces what is divided for a remainder only, (x + 32)
    % 28 to (x + 4) % 28, and then does not see any more that both belong together.
    """
    if not isinstance(remainder, tirx.FloorMod) or not _is_number(remainder.b, size):
        return None
    reduced = quotient.b if isinstance(quotient, tirx.FloorMod) else None
    quotient = quotient if reduced is None else quotient.a
    if not isinstance(quotient, tirx.FloorDiv) or not _is_number(quotient.b, size):
        return None
    divided = quotient.a
    if isinstance(divided, tirx.FloorMod) and isinstance(divided.b, tirx.IntImm) and int(divided.b.value) % size == 0:
        divided = divided.a
    apart = tvm.sym.Analyzer().simplify(divided - remainder.a)
    if not isinstance(apart, tirx.IntImm) or int(apart.value) % size:
        return None
    return quotient.a if reduced is None else tirx.FloorMod(quotient.a, reduced * size)


def _is_number(expr: Expr, number: int) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr.value) == number


def unravel(position: Expr, shape: Sequence[int]) -> Index:
    """The index of a row-major position."""
    index: list[Expr] = []
    stride = prod(shape)
    for axis, size in enumerate(shape):
        stride //= max(size, 1)
        if size == 1:
            index.append(0)
            continue
        entry = position if stride == 1 else position // stride
        inner = all(d == 1 for d in shape[:axis])
        index.append(entry if inner else entry % size)
    return tuple(index)


def reshape_index(index: Sequence[Expr], source: Sequence[int], target: Sequence[int], simplify: Simplify) -> Index:
    """The index in shape `target` of the element that has `index` in shape `source`; both have as many elements.

    Runs of dimensions with equal products are handled apart: dimensions which are the same in both keep their index.
    """
    if prod(source) == 0:
        kept = iter([i for i, d in zip(index, source, strict=True) if d != 1])
        same = [d for d in source if d != 1] == [d for d in target if d != 1]
        return tuple(next(kept) if same and d != 1 else 0 for d in target)
    result: list[Expr] = [0] * len(target)
    for source_axes, target_axes in _blocks(source, target):
        if len(source_axes) == len(target_axes) == 1:
            result[target_axes[0]] = index[source_axes[0]]
            continue
        position = ravel([index[a] for a in source_axes], [source[a] for a in source_axes])
        entries = unravel(position, [target[a] for a in target_axes])
        for axis, entry in zip(target_axes, entries, strict=True):
            result[axis] = entry if isinstance(entry, int) else simplify(entry)
    return tuple(result)


def _blocks(source: Sequence[int], target: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Runs of axes (without those of size 1) whose products agree, as short as possible."""
    left = [a for a, d in enumerate(source) if d != 1]
    right = [a for a, d in enumerate(target) if d != 1]
    blocks = []
    i = j = 0
    while i < len(left):
        first, second = [left[i]], [right[j]]
        p, q = source[left[i]], target[right[j]]
        i, j = i + 1, j + 1
        while p != q:
            if p < q:
                first.append(left[i])
                p *= source[left[i]]
                i += 1
            else:
                second.append(right[j])
                q *= target[right[j]]
                j += 1
        blocks.append((first, second))
    return blocks


def broadcast_index(index: Sequence[Expr], shape: Sequence[int]) -> Index:
    """The index of an operand of `shape` that is broadcast to a result at `index`."""
    tail = index[len(index) - len(shape) :]
    return tuple(0 if size == 1 else i for i, size in zip(tail, shape, strict=True))


def forward_index(view: Node, index: Sequence[Expr], simplify: Simplify = lambda e: e) -> Index:
    """Where a reshape or transpose puts the element that its operand has at `index` (push)."""
    source, target = view.inputs[0].shape, view.output.shape
    if view.op == "transpose":
        return tuple(index[p] for p in view.attrs["perm"])
    if view.op == "reshape":
        return reshape_index(index, source, target, simplify)
    raise ValueError(f"{view.op} is no bijective view; only reshape and transpose are")


def pull_view(view: Node, index: Sequence[Expr], simplify: Simplify) -> Index:
    """Which element of its operand a view shows at `index`."""
    source, target = view.inputs[0].shape, view.output.shape
    if view.op == "transpose":
        result: list[Expr] = [0] * len(source)
        for i, p in zip(index, view.attrs["perm"], strict=True):
            result[p] = i
        return tuple(result)
    if view.op == "reshape":
        return reshape_index(index, target, source, simplify)
    if view.op == "broadcast_to":
        return broadcast_index(index, source)
    if view.op == "slice":
        steps = zip(index, view.attrs["starts"], view.attrs["steps"], strict=True)
        return tuple(
            start if size == 1 else start + i * step for (i, start, step), size in zip(steps, target, strict=True)
        )
    raise ValueError(f"{view.op} is no view")
