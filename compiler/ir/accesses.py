"""Access relations: where element-wise operators, data movement and views read their operands, as functions of the
result's index.

Indices are traced symbolically from stored values back to values in memory, as quasi-affine expressions of the
iteration variables. An index that depends on data, or is clamped at an edge, is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from .affine import Affine, Integer, Variable, bounds, linear_in, variable, variables_of
from .errors import UndecidedError
from .graph import Node, Value
from .indexing import broadcast_index, pull_view, ravel, reshape_index
from .ops import Kind, is_elementwise, kind_of
from .sizes import Size

Place = tuple[Integer, ...]


@dataclass(frozen=True)
class Access:
    """Access to `value` in memory. `strides`: the step of the address, in elements, with each iteration variable; None
    if not affine.

    `offset`: the address where all variables are zero. `steps`: the stride of each variable by itself; None for a
    variable without a constant stride, because of data or a quotient. `share`: fraction of the iterations that read
    this operand, where each reads one of several.
    """

    value: Value
    strides: tuple[int, ...] | None
    offset: int
    steps: tuple[int | None, ...]
    share: float = 1.0


@dataclass(frozen=True)
class Walk:
    """All accesses of a kernel to memory, in the order of evaluation.

    `cuts`: (dimension, position) where one operand of a concat ends and the next begins.
    """

    accesses: tuple[Access, ...]
    cuts: frozenset[tuple[int, int]]


class Followed:
    """Traces indices back through nodes; `places` collects each (value, index) that is read from memory, once, and
    `shares` the fraction of iterations.

    `sources`: the values in memory.
    """

    def __init__(self, variables: Sequence[Integer], sources: Iterable[Value]) -> None:
        self.variables, self.sources = list(variables), frozenset(sources)
        self.places: list[tuple[Value, Place]] = []
        self.shares: list[float] = []
        self._share = 1.0
        self.cuts: set[tuple[int, int]] = set()
        self._behind: dict[Variable, frozenset[Variable]] = {}
        self._seen: set[tuple[Value, Place]] = set()
        self._unknown: dict[Hashable, Integer] = {}

    def follow(self, value: Value, index: Place) -> None:
        """Trace all reads for computing `value` at `index`, operands before their readers."""
        stack: list[tuple[Value, Place, bool]] = [(value, index, True)]
        while stack:
            at, place, fresh = stack.pop()
            key = (at, place)
            if key in self._seen:
                continue
            operands = self._operands(at, place) if fresh else None
            if operands:
                stack.append((at, place, False))
                stack.extend((operand, inner, True) for operand, inner in operands)
                continue
            self._seen.add(key)
            self._visit(at, place, operands is None)

    def _operands(self, value: Value, index: Place) -> list[tuple[Value, Place]]:
        """Return the operands, with indices, that an element of `value` needs; none for data movement, whose rule reads
        by itself.
        """
        node = value.producer
        if value in self.sources or value.data is not None or node is None:
            return []
        if is_elementwise(node.op):
            return [(x, broadcast_index(index, x.shape)) for x in node.inputs]
        if kind_of(node.op) is Kind.VIEW:
            return [(node.inputs[0], pull_view(node, index))]
        return []

    def _visit(self, value: Value, index: Place, done: bool) -> None:
        if value in self.sources:
            self.places.append((value, index))
            self.shares.append(self._share)
            return
        node = value.producer
        if done or value.data is not None or node is None:
            return
        rule = _MOVEMENT.get(node.op)
        if rule is not None:
            rule(self, node, index)

    def unknown(self, size: int, of: Place, how: Hashable) -> Integer:
        """Return an unknown index into an axis of `size` elements that depends on `of`.

        It is the same one for the same `how` to find it from `of`: sums of sums that read one padded value, level by
        level, read it at few places rather than at twice as many from level to level.
        """
        key = (size, of, how)
        if key not in self._unknown:
            found = self._unknown[key] = variable(f"u{len(self._unknown)}", size)
            if isinstance(found, Affine):
                self._behind.update((v, self._all_behind(of)) for v in variables_of(found))
        return self._unknown[key]

    def _all_behind(self, place: Place) -> frozenset[Variable]:
        """Return the iteration variables on which an index depends, directly or through unknown indices."""
        mine = {v for position in place for v in variables_of(position)}
        return frozenset(v for one in mine for v in self._behind.get(one, (one,)))

    def of_share(self, share: float, value: Value, index: Place) -> None:
        """Trace into one of several operands, which this fraction of the elements comes from."""
        before, self._share = self._share, self._share * share
        self.follow(value, index)
        self._share = before

    def access(self, value: Value, index: Place, share: float = 1.0) -> Access:
        place = ravel(index, value.shape)
        found = linear_in(place, self.variables)
        if found is not None:
            return Access(value, *found, found[0], share)
        assert isinstance(place, Affine)
        alone = {v: place.terms.get(v, 0) for position in self.variables for v in variables_of(position)}
        jumping = self._all_behind(tuple(Affine({atom: 1}, 0) for atom in place.terms if atom not in alone))
        known = {v: None if v in jumping else step for v, step in alone.items()}
        steps = (next((known[v] for v in variables_of(position)), 0) for position in self.variables)
        return Access(value, None, 0, tuple(steps), share)

    def inside(self, position: Integer, size: int) -> Integer:
        """Return an index clamped to an axis."""
        low, high = bounds(position)
        return position if low >= 0 and high < size else self.unknown(size, (position,), "clamped")

    def part(self, position: Integer, size: int) -> Integer:
        """Return an index into one of several operands, or between padding; where it lies outside, the operand is not
        read.

        Its range is intersected with the operand's, so that nested concats yield few paths rather than all
        combinations.
        """
        low, high = bounds(position)
        if low >= 0 and high < size:
            return position
        first, last = max(low, 0), min(high, size - 1)
        return first + self.unknown(last - first + 1, (position,), ("part", size))

    def cut(self, position: Integer, limit: int) -> bool:
        """Record that different memory is read below `limit` and from there on; return whether one variable can tell,
        which goes there in steps of 1.
        """
        strides, constant = linear_in(position, self.variables) or ((), 0)
        moving = [d for d, stride in enumerate(strides) if stride]
        found = len(moving) == 1 and strides[moving[0]] == 1
        if found:
            self.cuts.add((moving[0], limit - constant))
        return found


def _concat(followed: Followed, node: Node, index: Place) -> None:
    axis, start = node.attrs["axis"], 0
    parts: list[tuple[int, Value]] = []
    for operand in node.inputs:
        if operand.shape[axis]:
            parts.append((start, operand))
            start += operand.shape[axis]
    _pick(followed, parts, index, axis, start)


def _pick(followed: Followed, parts: list[tuple[int, Value]], index: Place, axis: int, whole: int) -> None:
    """Trace into the parts that may hold the element, by bisection as the generated code does."""
    position = index[axis]
    if len(parts) == 1:
        start, operand = parts[0]
        local, share = followed.part(position - start, operand.shape[axis]), operand.shape[axis] / whole
        followed.of_share(share, operand, (*index[:axis], local, *index[axis + 1 :]))
        return
    middle = len(parts) // 2
    limit = parts[middle][0]
    followed.cut(position, limit)
    low, high = bounds(position)
    if low < limit:
        _pick(followed, parts[:middle], index, axis, whole)
    if high >= limit:
        _pick(followed, parts[middle:], index, axis, whole)


def _pad(followed: Followed, node: Node, index: Place) -> None:
    x, mode = node.inputs[0], node.attrs["mode"]
    if mode == "constant":
        if len(node.inputs) > 1:
            followed.follow(node.inputs[1], (0,) * len(node.inputs[1].shape))
        if prod(x.shape) == 0:
            return
    source: list[Integer] = []
    for i, before, after, size in zip(index, node.attrs["before"], node.attrs["after"], x.shape, strict=True):
        if before == 0 and after == 0:
            source.append(i)
            continue
        low, high = bounds(i - before)
        if mode == "constant" and (low >= size or high < 0):
            return
        if mode == "wrap":
            source.append((i - before) % size)
        elif mode == "constant":
            source.append(followed.part(i - before, size))
        elif mode == "edge":
            source.append(followed.inside(i - before, size))
        else:
            source.append(0 if size == 1 else followed.unknown(size, (i,), ("reflected", before, after)))
    followed.follow(x, tuple(source))


def _gather(followed: Followed, node: Node, index: Place) -> None:
    (x, indices), axis = node.inputs, node.attrs["axis"]
    rank = len(indices.shape)
    if not x.shape[axis]:
        return
    followed.follow(indices, index[axis : axis + rank])
    picked = followed.unknown(x.shape[axis], index[axis : axis + rank], indices)
    followed.follow(x, (*index[:axis], picked, *index[axis + rank :]))


def _gather_elements(followed: Followed, node: Node, index: Place) -> None:
    (x, indices), axis = node.inputs, node.attrs["axis"]
    if not x.shape[axis]:
        return
    followed.follow(indices, index)
    picked = followed.unknown(x.shape[axis], index, indices)
    followed.follow(x, (*index[:axis], picked, *index[axis + 1 :]))


def _gather_nd(followed: Followed, node: Node, index: Place) -> None:
    (x, indices), batch = node.inputs, node.attrs["batch_dims"]
    depth, prefix = indices.shape[-1], len(indices.shape) - 1
    sizes = x.shape[batch : batch + depth]
    if 0 in sizes:
        return
    outer = index[:prefix]
    for d in range(depth):
        followed.follow(indices, (*outer, d))
    picked = [followed.unknown(size, outer, (indices, d)) for d, size in enumerate(sizes)]
    followed.follow(x, (*outer[:batch], *picked, *index[prefix:]))


def _nothing(followed: Followed, node: Node, index: Place) -> None:
    """Do nothing: the operator has no operands."""


_MOVEMENT: dict[str, Callable[[Followed, Node, Place], None]] = {
    "concat": _concat, "pad": _pad, "iota": _nothing, "sizes": _nothing,
    "gather": _gather, "gather_elements": _gather_elements, "gather_nd": _gather_nd,
}  # fmt: skip


# -- iteration spaces --------------------------------------------------------------------------------------------------

Indices = Callable[[Sequence[Integer]], Sequence[Place]]
"""`indices(variables)`: the index of each value at a point of the iteration space."""


class _Inside(Followed):
    """Tracer that assumes no index lies in padding whose edges are cuts, and records these."""

    def part(self, position: Integer, size: int) -> Integer:
        cut = self.cut(position, 0) and self.cut(position, size)
        return position if cut else super().part(position, size)


def walk_of(
    values: Sequence[Value], inputs: Iterable[Value], extents: Sequence[int], indices: Indices,
    follow: type[Followed] = Followed,
) -> Walk:  # fmt: skip
    """Return the accesses of computing and storing `values`, with iteration variables over `extents`.

    `inputs` are the values that are read from memory.
    """
    variables = [variable(f"i{d}", size) for d, size in enumerate(extents)]
    followed = follow(variables, inputs)
    found: list[Access] = []
    for value, index in zip(values, indices(variables), strict=True):
        found.append(followed.access(value, index))
        known = len(followed.places)
        followed.follow(value, index)
        read = zip(followed.places[known:], followed.shares[known:], strict=True)
        found += [followed.access(v, place, share) for (v, place), share in read]
    return Walk(tuple(found), frozenset(followed.cuts))


def merge(extents: Sequence[int], kinds: Sequence[bool], accesses: Sequence[Access]) -> tuple[list[int], list[bool]]:
    """Merge neighbouring dimensions of one kind that every access traverses as one."""
    sizes, merged = [extents[-1]], [kinds[-1]]
    for d in reversed(range(len(extents) - 1)):
        joint = all(a.strides is not None and a.strides[d] == a.strides[d + 1] * extents[d + 1] for a in accesses)
        if joint and kinds[d] == kinds[d + 1]:
            sizes[0] *= extents[d]
        else:
            sizes.insert(0, extents[d])
            merged.insert(0, kinds[d])
    return sizes, merged


def walk_over(extents: Sequence[int], inputs: Sequence[Value], outputs: Sequence[Value]) -> Walk:
    """Return the accesses of element-wise work in loops over these extents, whose product is the size of the
    outputs.
    """
    return walk_of(outputs, inputs, extents, lambda i: [reshape_index(i, extents, v.shape) for v in outputs], _Inside)


def merged_accesses(extents: Sequence[Size], inputs: Sequence[Value], outputs: Sequence[Value]) -> tuple[Access, ...]:
    """Return the accesses of element-wise work in loops over these extents, products of neighbouring dimensions of the
    first output, whose sizes may be open. Those that do not traverse an extent as one count as not affine. None are
    returned if there are no such products, if different memory is read within a dimension, or if it depends on sizes.
    """
    sizes = tuple(d for d in outputs[0].shape if d != 1) or (1,)
    runs = _runs(sizes, extents)
    try:
        walk = walk_of(outputs, inputs, sizes, lambda i: [reshape_index(i, sizes, v.shape) for v in outputs], _Inside)
    except UndecidedError:
        return ()
    if runs is None or walk.cuts:
        return ()
    return tuple(_merged(access, sizes, runs) for access in walk.accesses)


def _merged(access: Access, sizes: Sequence[Size], runs: Sequence[range]) -> Access:
    """Return an access in loops over runs of dimensions."""
    strides = access.strides
    if strides is None or any(strides[d] != strides[d + 1] * sizes[d + 1] for run in runs for d in run[:-1]):
        return replace(access, strides=None, steps=(None,) * len(runs))
    merged = tuple(strides[run[-1]] if run else 0 for run in runs)
    return replace(access, strides=merged, steps=merged)


def _runs(sizes: Sequence[Size], extents: Sequence[Size]) -> list[range] | None:
    """Return the neighbouring dimensions of which each extent is the product; None if one is no such product."""
    runs, end = [], 0
    for extent in extents:
        start, size = end, 1
        while size != extent and end < len(sizes):
            size, end = size * sizes[end], end + 1
        if size != extent:
            return None
        runs.append(range(start, end))
    return runs if end == len(sizes) else None


def elementwise_walk(
    inputs: Sequence[Value], outputs: Sequence[Value], inside: bool = False
) -> tuple[tuple[int, ...], Walk]:
    """Return the iteration space of element-wise work, with as few dimensions as the accesses allow, and the accesses
    in it.

    `inside`: those outside padding, separated by cuts.
    """
    sizes, follow = tuple(d for d in outputs[0].shape if d != 1) or (1,), _Inside if inside else Followed
    walk = walk_of(outputs, inputs, sizes, lambda i: [reshape_index(i, sizes, v.shape) for v in outputs], follow)
    extents = tuple(merge(sizes, [False] * len(sizes), walk.accesses)[0])
    if len(extents) != len(sizes):
        walk = walk_of(
            outputs, inputs, extents, lambda i: [reshape_index(i, extents, v.shape) for v in outputs], follow
        )
    return extents, walk
