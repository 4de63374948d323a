"""The elements of operands and results that each thread block of a kernel accesses.

A kernel has a domain: the index of a result, and the reduction indices. A tile is a set of boxes of the domain, and
accesses are functions of it (`Relation`). Values that the relation does not cover are assumed to be read, or stored, by
every tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.accesses import Followed, Place
from tilestitch.compiler.ir.affine import Affine, Integer, Variable, variable, variables_of
from tilestitch.passes.plan.sync.grid import Coordinates, Grid

from .boxes import Box, Range, Ranges, pieces, positions

Tiles = Callable[[Coordinates], Iterator[Ranges]]
"""A function from a tile's coordinates to its boxes of the domain."""


class _Unclamped(Followed):
    """Keeps positions outside an operand as they are: there are no elements."""

    def part(self, position: Integer, size: int) -> Integer:
        return position


@dataclass
class Relation:
    """The accesses of a kernel as functions of its domain's variables, and the tile that each block computes.

    places: for every value covered, the indices at which it is read or stored.
    """

    grid: Grid
    domain: tuple[Integer, ...]
    tiles: Tiles
    reads: dict[Value, dict[Place, None]] = field(default_factory=dict)
    writes: dict[Value, dict[Place, None]] = field(default_factory=dict)
    _boxes: dict[object, tuple[Box, ...]] = field(default_factory=dict)
    _axes: dict[object, bytes] = field(default_factory=dict)

    def follow(self, value: Value, index: Place, sources: Sequence[Value]) -> None:
        """Record all reads of `sources` to compute `value` at an index."""
        followed = _Unclamped(list(self.domain), sources)
        followed.follow(value, index)
        for found, place in followed.places:
            self.reads.setdefault(found, {})[place] = None

    def store(self, value: Value, index: Place) -> None:
        self.writes.setdefault(value, {})[index] = None

    def read_by(self, place: Coordinates, value: Value) -> frozenset[Box]:
        """Return the elements of `value` that a tile reads."""
        return self._touched(place, value, self.reads.get(value))

    def written_by(self, place: Coordinates, value: Value) -> frozenset[Box]:
        """Return the elements of `value` that a tile stores."""
        return self._touched(place, value, self.writes.get(value))

    def _touched(self, place: Coordinates, value: Value, known: Mapping[Place, None] | None) -> frozenset[Box]:
        if known is None:
            return frozenset({tuple(bytes([1]) * size for size in value.shape)})
        found: set[Box] = set()
        for ranges in self.tiles(place):
            for index in known:
                found.update(self._boxes_of(value, index, ranges))
        return frozenset(found)

    def _boxes_of(self, value: Value, index: Place, ranges: Ranges) -> tuple[Box, ...]:
        own = {v: span for v, span in zip(self._variables, ranges, strict=True) if v is not None}
        wanted = {v: own[v] for expr in index for v in variables_of(expr) if v in own}
        key = (value, index, tuple(wanted.items()))
        if key not in self._boxes:
            self._boxes[key] = tuple(
                tuple(self._axis(expr, piece, size) for expr, size in zip(index, value.shape, strict=True))
                for piece in pieces(index, wanted)
            )
        return self._boxes[key]

    def _axis(self, expr: Integer, ranges: Mapping[Variable, Range], size: int) -> bytes:
        own = tuple((v, ranges[v]) for v in variables_of(expr) if v in ranges)
        key = expr, own, size
        if key not in self._axes:
            self._axes[key] = positions(expr, dict(own), size).astype(np.uint8).tobytes()
        return self._axes[key]

    @cached_property
    def _variables(self) -> tuple[Variable | None, ...]:
        return tuple(_variable(expr) for expr in self.domain)


def _variable(expr: Integer) -> Variable | None:
    """Return the variable of a dimension; None if it has a single index."""
    if isinstance(expr, Affine):
        (found,) = expr.terms
        assert isinstance(found, Variable)
        return found
    return None


def domain(sizes: Sequence[int]) -> tuple[Integer, ...]:
    """Return variables that range over a tensor of these sizes."""
    return tuple(variable(f"d{axis}", size) for axis, size in enumerate(sizes))


def combined(*parts: Iterator[Ranges] | Sequence[Ranges]) -> Iterator[Ranges]:
    """Yield all combinations of boxes of some dimensions with boxes of the next ones."""
    for chosen in product(*map(list, parts)):
        yield tuple(span for ranges in chosen for span in ranges)
