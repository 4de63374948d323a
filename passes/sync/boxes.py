"""Sets of elements as boxes: a set of positions along each axis of a tensor, and all their combinations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from math import prod

import numpy as np

from tilestitch.compiler.ir.affine import Affine, Atom, Integer, Quotient, Variable, variables_of

Range = tuple[int, int]
Ranges = tuple[Range, ...]
Box = tuple[bytes, ...]
"""For each axis, a byte of 0 or 1 per position."""

MOST_POINTS = 1 << 22
"""Most combinations of variables that one position depends on; beyond, the range from the least to the largest is
taken.
"""
MOST_PIECES = 1 << 10
"""Most pieces into which a box is split so that each is a box of the tensor, too; beyond, fewer cover it."""


def interval_boxes(interval: Range, sizes: Sequence[int]) -> Iterator[Ranges]:
    """Yield boxes that cover the row-major positions of a tensor of these sizes in [first, end)."""
    first, end = interval
    if first >= end:
        return
    if not sizes:
        yield ()
        return
    each = prod(sizes[1:])
    row, last = first // each, end // each
    if first > row * each or row == last:
        inner = first - row * each, min(end - row * each, each)
        for rest in interval_boxes(inner, sizes[1:]):
            yield ((row, row + 1), *rest)
        yield from interval_boxes(((row + 1) * each, end), sizes)
        return
    yield ((row, last), *((0, size) for size in sizes[1:]))
    yield from interval_boxes((last * each, end), sizes)


def positions(expr: Integer, ranges: Mapping[Variable, Range], size: int) -> np.ndarray:
    """Return which positions along an axis of `size` an index takes; those outside are ignored."""
    found = np.zeros(size, np.bool_)
    if isinstance(expr, int):
        if 0 <= expr < size:
            found[expr] = True
        return found
    variables = list(variables_of(expr))
    spans = [ranges.get(v, (0, v.extent)) for v in variables]
    if prod(end - first for first, end in spans) > MOST_POINTS:
        low, high = expr.bounds
        found[max(0, low) : min(size, high + 1)] = True
        return found
    values = np.unique(_evaluate(expr, _axes(variables, spans)))
    found[values[(values >= 0) & (values < size)]] = True
    return found


def pieces(place: Sequence[Integer], ranges: Mapping[Variable, Range]) -> list[Mapping[Variable, Range]]:
    """Return the ranges of the variables, split where the elements at `place` take several boxes to describe."""
    seen: dict[Variable, int] = {}
    for expr in place:
        for variable in variables_of(expr):
            seen[variable] = seen.get(variable, 0) + 1
    shared = [v for v, count in seen.items() if count > 1]
    cuts = [_cuts(v, place, ranges.get(v, (0, v.extent))) for v in shared]
    if not shared or prod(map(len, cuts)) > MOST_PIECES:
        return [ranges]
    return [{**ranges, **dict(zip(shared, chosen, strict=True))} for chosen in product(*cuts)]


def _cuts(variable: Variable, place: Sequence[Integer], span: Range) -> list[Range]:
    """Return the ranges in which no quotient of the variable changes."""
    first, end = span
    values = np.arange(first, end)
    changes = np.zeros(max(0, end - first - 1), np.bool_)
    for quotient in (q for expr in place for q in _quotients(expr)):
        if list(variables_of(quotient.dividend)) == [variable]:
            changes |= np.diff(_atom(quotient, {variable: values})) != 0
    at = [first, *(np.flatnonzero(changes) + first + 1).tolist(), end]
    return list(pairwise(at))


def _quotients(expr: Integer) -> Iterator[Quotient]:
    for atom in () if isinstance(expr, int) else expr.terms:
        if isinstance(atom, Quotient):
            yield atom
            yield from _quotients(atom.dividend)


def _axes(variables: Sequence[Variable], spans: Sequence[Range]) -> dict[Variable, np.ndarray]:
    """Return the values of each variable along a separate axis."""
    count = len(variables)
    return {
        v: np.arange(*span, dtype=np.int64).reshape([-1 if i == axis else 1 for i in range(count)])
        for axis, (v, span) in enumerate(zip(variables, spans, strict=True))
    }


def _evaluate(expr: Affine, values: Mapping[Variable, np.ndarray]) -> np.ndarray:
    total = np.asarray(expr.constant, np.int64)
    for atom, coefficient in expr.terms.items():
        total = total + coefficient * _atom(atom, values)
    return total


def _atom(atom: Atom, values: Mapping[Variable, np.ndarray]) -> np.ndarray:
    if isinstance(atom, Variable):
        return values[atom]
    return _evaluate(atom.dividend, values) // atom.divisor
