"""Tile dependences: a consumer's tile needs those tiles of a producer that store what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.passes.plan.sync.grid import Coordinates

from .boxes import Box
from .footprints import Relation


@dataclass(frozen=True)
class Needs:
    """For each block of the consumer, by its number, the sorted numbers of the producer's blocks that it needs.

    Blocks with equal needs share an array: `kinds` has the arrays, `kind` the index of each block's array.
    """

    kinds: tuple[np.ndarray, ...]
    kind: tuple[int, ...]

    def of(self, block: int) -> np.ndarray:
        return self.kinds[self.kind[block]]


def all_of(producers: int, consumers: int) -> Needs:
    """Return the needs where every block of one kernel needs all of another's."""
    return Needs((np.arange(producers),), (0,) * consumers)


def needs_of(producer: Relation, consumer: Relation, values: Sequence[Value]) -> Needs:
    """Return what the consumer needs of the producer for `values`, which the one stores and the other reads."""
    each = [_needs(producer, consumer, value) for value in values]
    if len(each) == 1:
        return each[0]
    known: dict[tuple[int, ...], int] = {}
    kind = tuple(known.setdefault(found, len(known)) for found in zip(*(one.kind for one in each), strict=True))
    joined = (np.concatenate([one.kinds[k] for one, k in zip(each, kinds, strict=True)]) for kinds in known)
    return Needs(tuple(np.unique(numbers) for numbers in joined), kind)


def _needs(producer: Relation, consumer: Relation, value: Value) -> Needs:
    written = [producer.written_by(place, value) for place in producer.grid.places()]
    wanted: dict[frozenset[Box], int] = {}
    kind = tuple(wanted.setdefault(consumer.read_by(place, value), len(wanted)) for place in consumer.grid.places())
    boxes = _Boxes(written, len(value.shape))
    return Needs(tuple(boxes.meeting(read) for read in wanted), kind)


class _Boxes:
    """The boxes that each block stores, with equal sets along an axis examined once."""

    def __init__(self, written: Sequence[frozenset[Box]], rank: int) -> None:
        self.rank = rank
        sets: list[dict[bytes, int]] = [{} for _ in range(rank)]
        numbers, owners = [], []
        for block, boxes in enumerate(written):
            for box in boxes:
                numbers.append([sets[axis].setdefault(taken, len(sets[axis])) for axis, taken in enumerate(box)])
                owners.append(block)
        self.numbers = np.array(numbers, np.int64).reshape(len(owners), rank)
        self.owners = np.array(owners, np.int64)
        self.axes = [_Sets.of(list(axis)) for axis in sets]

    def meeting(self, boxes: frozenset[Box]) -> np.ndarray:
        """Return the blocks that store any element of `boxes`."""
        found = np.zeros(len(self.owners), np.bool_)
        for box in boxes:
            hit = np.ones(len(self.owners), np.bool_)
            for axis, taken in enumerate(box):
                hit &= self.axes[axis].meeting(taken)[self.numbers[:, axis]]
            found |= hit
        return np.unique(self.owners[found])


@dataclass(frozen=True)
class _Sets:
    """Sets of positions along an axis, indexed by position. Each block stores few positions, so that this is much
    smaller than a matrix of sets and positions where both number thousands.

    positions, holders: every position of every set, ordered by position. starts: where the entries of each position
    begin.
    """

    count: int
    positions: np.ndarray
    holders: np.ndarray
    starts: np.ndarray

    @staticmethod
    def of(sets: Sequence[bytes]) -> _Sets:
        matrix = np.array([np.frombuffer(taken, np.uint8) for taken in sets]).reshape(len(sets), -1)
        positions, holders = np.nonzero(np.ascontiguousarray(matrix.T))
        starts = np.searchsorted(positions, np.arange(matrix.shape[1] + 1))
        return _Sets(len(sets), positions, holders, starts)

    def meeting(self, taken: bytes) -> np.ndarray:
        """Return whether each set contains any of the positions taken."""
        wanted = np.frombuffer(taken, np.bool_)
        found, at = np.zeros(self.count, np.bool_), np.flatnonzero(wanted)
        if not len(at):
            return found
        if at[-1] - at[0] + 1 == len(at):
            found[self.holders[self.starts[at[0]] : self.starts[at[-1] + 1]]] = True
        else:
            found[self.holders[wanted[self.positions]]] = True
        return found


def tile_name(place: Coordinates) -> str:
    return f"({', '.join(map(str, place))})"
