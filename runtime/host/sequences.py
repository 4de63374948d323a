"""Sequences (Python lists) and optionals (None, or the value itself). Lists are never changed in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from .common import Attrs, HostError, HostFn, ints, normalized_axis, optional_operand, scalar_int

ALIASING = frozenset({
    "Identity", "Optional", "OptionalGetElement", "SequenceAt", "SequenceConstruct", "SequenceErase", "SequenceInsert",
})  # fmt: skip
"""Operators of this module whose results may contain their operands themselves."""


def _position(position: Any, length: int, last: int) -> int:
    """Return a position counted from the front, from 0 to `last`."""
    where = scalar_int(position)
    if not -length <= where <= last:
        raise HostError(f"position {where} is out of range for a sequence of {length}")
    return where + length if where < 0 else where


def _construct(inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    return [list(inputs)]


def _empty(inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    return [[]]


def _at(inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    sequence, position = inputs
    return [sequence[_position(position, len(sequence), len(sequence) - 1)]]


def _insert(inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    sequence, item = inputs[:2]
    given = optional_operand(inputs, 2)
    where = len(sequence) if given is None else _position(given, len(sequence), len(sequence))
    return [[*sequence[:where], item, *sequence[where:]]]


def _erase(inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    sequence, given = inputs[0], optional_operand(inputs, 1)
    where = _position(-1 if given is None else given, len(sequence), len(sequence) - 1)
    return [[*sequence[:where], *sequence[where + 1 :]]]


def _length(inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    return [np.asarray(len(inputs[0]), np.int64)]


def _concat_from(inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    (sequence,) = inputs
    if not sequence:
        raise HostError("ConcatFromSequence of an empty sequence")
    stacked = bool(attrs.get("new_axis", 0))
    axis = normalized_axis(attrs["axis"], sequence[0].ndim + stacked)
    try:
        return [np.stack(sequence, axis) if stacked else np.concatenate(sequence, axis)]
    except ValueError as error:
        shapes = ", ".join(str(x.shape) for x in sequence)
        raise HostError(f"tensors of shapes {shapes} do not join along axis {axis}") from error


def _split_to(inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    x, split = inputs[0], optional_operand(inputs, 1)
    axis = normalized_axis(attrs.get("axis", 0), x.ndim)
    size = x.shape[axis]
    if split is None and not attrs.get("keepdims", 1):
        return [[np.asarray(np.take(x, i, axis), x.dtype) for i in range(size)]]
    sizes = _split_sizes(size, split)
    if sum(sizes) != size or min(sizes, default=0) < 0:
        raise HostError(f"sizes {sizes} do not add up to the {size} elements of axis {axis}")
    ends, before = accumulate(sizes), (slice(None),) * axis
    return [[x[before + (slice(end - length, end),)].copy() for end, length in zip(ends, sizes)]]


def _split_sizes(size: int, split: Any) -> tuple[int, ...]:
    if split is None:
        return (1,) * size
    if np.ndim(split):
        return ints(split)
    chunk = scalar_int(split)
    if chunk < 1:
        raise HostError(f"chunks of {chunk} elements")
    return tuple(min(chunk, size - start) for start in range(0, size, chunk))


def _identity(inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    return [inputs[0]]


def _optional(inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    return [optional_operand(inputs, 0)]


def _get_element(inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    if inputs[0] is None:
        raise HostError("OptionalGetElement of an empty optional; test it with OptionalHasElement first")
    return [inputs[0]]


def _has_element(inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    return [np.asarray(optional_operand(inputs, 0) is not None)]


def _none(inputs: Sequence[Any], attrs: Attrs) -> list[None]:
    """Return the value of an absent optional operand, output or ONNX optional."""
    return [None]


TABLE: Mapping[str, HostFn] = {
    "none": _none,
    "SequenceConstruct": _construct, "SequenceEmpty": _empty, "SequenceAt": _at, "SequenceInsert": _insert,
    "SequenceErase": _erase, "SequenceLength": _length,
    "ConcatFromSequence": _concat_from, "SplitToSequence": _split_to,
    "Identity": _identity, "Optional": _optional,
    "OptionalGetElement": _get_element, "OptionalHasElement": _has_element,
}  # fmt: skip
