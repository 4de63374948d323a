"""The relations of GPU kernels, by the template of their schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.accesses import Place
from tilestitch.compiler.ir.affine import Integer
from tilestitch.compiler.ir.indexing import forward_index, ravel, reshape_index, unravel
from tilestitch.passes.plan.access.row_loops import full_outputs
from tilestitch.passes.plan.access.windows import direct_extents
from tilestitch.passes.plan.attention.operands import attention_of
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.contractions import ConvShape, conv_shape, gemm_of, shares_right
from tilestitch.passes.plan.gemm.gemv import with_large_right
from tilestitch.passes.plan.gemm.tiles import GemvTile, WgmmaTile
from tilestitch.passes.plan.index_checks import pending_checks, read_for
from tilestitch.passes.plan.parts import Part, Roles
from tilestitch.passes.plan.roles import legal_roles
from tilestitch.passes.plan.schedules import (
    AttentionSchedule,
    DirectSchedule,
    ElementwiseSchedule,
    GemmSchedule,
    RowSchedule,
    Schedule,
)
from tilestitch.passes.plan.sync.grid import Coordinates, Grid, grid_of, grids_of
from tilestitch.passes.plan.view import GroupView

from .boxes import Range, Ranges, interval_boxes
from .footprints import Relation, Tiles, combined, domain

Spans = Callable[[Coordinates], Iterator[tuple[int, Range, Range, Range]]]
"""The pieces of a contraction's tile: batch, rows, columns and steps of the reduction."""


def relations_of(view: GroupView, schedule: Schedule | None, blocks: Sequence[int]) -> tuple[Relation, ...]:
    """Return the relations of a kernel's launches, given their numbers of blocks.

    Where the tile of a block is unknown, or there are several launches, every block is assumed to read and store
    everything. Indices that are checked before use are read by every block, too.
    """
    grids = grids_of(view, schedule, blocks)
    known = relation_of(view, schedule) if len(grids) == 1 else None
    if known is None or known.grid != grids[0]:
        return tuple(Relation(grid, (), _everything) for grid in grids)
    pending = pending_checks(view.nodes)
    for value in read_for([check for checks in pending.values() for check in checks], view.inputs):
        known.reads.pop(value, None)
    return (known,)


def _everything(place: Coordinates) -> Iterator[Ranges]:
    yield ()


def relation_of(view: GroupView, schedule: Schedule | None) -> Relation | None:
    """Return the relation of a kernel; None if its blocks are not one tile each."""
    grid = grid_of(view, schedule)
    if grid is None:
        return None
    match schedule:
        case GemmSchedule(tile=WgmmaTile()) if not AnchoredGroup.of(view).is_matmul:
            return None  # its tiles are patches of pixels
        case GemmSchedule():
            return _gemm(view, schedule, grid)
        case AttentionSchedule():
            return _attention(view, schedule, grid)
        case DirectSchedule():
            return _direct(view, schedule, grid)
        case ElementwiseSchedule(threads=threads, lanes=lanes, vectors=vectors):
            return _elementwise(view, threads * lanes * vectors, grid)
        case RowSchedule(rows=rows):
            return _rows(view, rows, grid)
    return None


def _run(number: int, each: int, total: int) -> Range:
    """Return the `number`-th run of `each` neighbours; the last may be shorter."""
    return number * each, min((number + 1) * each, total)


# -- contractions ------------------------------------------------------------------------------------------------------


def _gemm(view: GroupView, schedule: GemmSchedule, grid: Grid) -> Relation:
    group, tile = AnchoredGroup.of(view), schedule.tile
    gemm = gemm_of(group)
    assert gemm is not None
    cut = with_large_right(gemm) if isinstance(tile, GemvTile) else gemm
    swapped = cut.a is gemm.b
    parts, _, _, _ = grid.dims
    steps = -(-cut.k // tile.bk)
    each = -(-steps // parts) * tile.bk

    def spans(place: Coordinates) -> Iterator[tuple[int, Range, Range, Range]]:
        part, batch, row, column = place
        rows = _run(row, tile.bm, cut.m)
        columns = _run(column, cut.units.within(tile.bn), cut.units.width)
        k = _run(part, each, cut.k)
        yield (batch, columns, rows, k) if swapped else (batch, rows, columns, k)

    return contraction_relation(view, grid, spans)


def contraction_relation(view: GroupView, grid: Grid, spans: Spans) -> Relation:
    """Return the relation of a contraction, given the rows, columns and steps of its tiles."""
    group = AnchoredGroup.of(view)
    return (_matmul if group.is_matmul else _conv)(view, group, grid, spans)


def _matmul(view: GroupView, group: AnchoredGroup, grid: Grid, spans: Spans) -> Relation:
    left, right, *chosen = group.anchor.inputs
    trans_a, trans_b = bool(group.anchor.attrs.get("trans_a")), bool(group.anchor.attrs.get("trans_b"))
    *lead, m, n = group.result.shape
    shared, width = shares_right(group.anchor), group.roles.gate_width or n
    k_size = left.shape[-2] if trans_a else left.shape[-1]

    def tiles(place: Coordinates) -> Iterator[Ranges]:
        for batch, rows, columns, k in spans(place):
            if shared:
                outer = interval_boxes(rows, (*lead, m))
            else:
                outer = iter([(*((at, at + 1) for at in unravel(batch, tuple(lead))), rows)])
            yield from combined(outer, [(columns, k)])

    variables = domain((*lead, m, width, k_size))
    *outer, row, column, k = variables
    relation = Relation(grid, variables, tiles)

    def at(value: Value, transposed: bool, first: Integer, second: Integer) -> Place:
        own = [0 if d == 1 else i for i, d in zip(outer[len(lead) - len(value.shape) + 2 :], value.shape, strict=False)]
        return (*own, *((second, first) if transposed else (first, second)))

    relation.follow(left, at(left, trans_a, row, k), view.inputs)
    for indices in chosen:
        relation.follow(indices, (outer[0],), view.inputs)
    if group.blocks is not None:
        return _with_epilogue(relation, group, (*outer, row, column))  # weights are constants
    gates = n // width
    for gate in range(gates):
        relation.follow(right, at(right, trans_b, k, column + gate * width), view.inputs)
    return _with_epilogue(relation, group, (*outer, row, column))


def _conv(view: GroupView, group: AnchoredGroup, grid: Grid, spans: Spans) -> Relation:
    shape = conv_shape(group.anchor)
    pixels = (shape.images, *shape.output)

    def tiles(place: Coordinates) -> Iterator[Ranges]:
        for number, first, second, k in spans(place):
            rows, channels = (first, second) if shape.channels_last else (second, first)
            own = (number * shape.group_out + channels[0], number * shape.group_out + channels[1])
            sizes = (*shape.kernel, shape.group_in) if shape.channels_last else (shape.group_in, *shape.kernel)
            ordered = (_taps_last(ranges, shape) for ranges in interval_boxes(k, sizes))
            group_range = ((number, number + 1),)
            yield from combined(interval_boxes(rows, pixels), [(own,)], ordered, [group_range])

    return _of_conv(view, group, grid, tiles)


def _taps_last(ranges: Ranges, shape: ConvShape) -> Ranges:
    """Return the ranges reordered to channel, then kernel positions."""
    return (ranges[-1], *ranges[:-1]) if shape.channels_last else ranges


def _of_conv(view: GroupView, group: AnchoredGroup, grid: Grid, tiles: Tiles) -> Relation:
    """Return the relation of a convolution; the domain is pixels, output channel, channel within the group, kernel
    positions, group.
    """
    shape, attrs = conv_shape(group.anchor), group.anchor.attrs
    x, w = group.anchor.inputs
    rank = len(shape.kernel)
    channels_out = shape.groups * shape.group_out
    variables = domain((shape.images, *shape.output, channels_out, shape.group_in, *shape.kernel, shape.groups))
    relation = Relation(grid, variables, tiles)
    image, *rest = variables
    position, out, own, taps, number = rest[:rank], rest[rank], rest[rank + 1], rest[rank + 2 : -1], rest[-1]
    channel = number * shape.group_in + own
    if not shape.transposed:
        each = zip(position, attrs["strides"], taps, attrs["dilations"], attrs["before"], strict=True)
        meets = [o * stride + tap * dilation - before for o, stride, tap, dilation, before in each]
        relation.follow(x, _pixel(shape, image, meets, channel), view.inputs)
    else:
        unknown = domain(shape.spatial)
        relation.follow(x, _pixel(shape, image, unknown, channel), view.inputs)
    relation.follow(w, tuple(domain(w.shape)), view.inputs)
    return _with_epilogue(relation, group, _pixel(shape, image, position, out))


def _pixel(shape: ConvShape, image: Integer, position: Sequence[Integer], channel: Integer) -> Place:
    return (image, *position, channel) if shape.channels_last else (image, channel, *position)


def _direct(view: GroupView, schedule: DirectSchedule, grid: Grid) -> Relation:
    group = AnchoredGroup.of(view)
    shape, sizes = conv_shape(group.anchor), direct_extents(group, schedule)
    total = prod(sizes)
    each = (*(1 for _ in sizes[:-2]), schedule.pixels, schedule.lanes)

    def tiles(place: Coordinates) -> Iterator[Ranges]:
        (block,) = place
        for box in interval_boxes(_run(block, schedule.threads, total), sizes):
            image, *rest = [(first * size, end * size) for (first, end), size in zip(box, each, strict=True)]
            *position, channels = rest if shape.channels_last else (*rest[1:], rest[0])
            whole = ((0, shape.group_in), *((0, size) for size in shape.kernel))
            groups = (channels[0] // shape.group_out, (channels[1] - 1) // shape.group_out + 1)
            yield (image, *position, channels, *whole, groups)

    return _of_conv(view, group, grid, tiles)


def _with_epilogue(relation: Relation, group: AnchoredGroup, index: Place) -> Relation:
    """Return the relation extended by the epilogue's reads and stores. index: of a result; in a group with gates, of a
    gate.
    """
    for value in group.outputs:
        source, views = before_views(group.roles, value)
        relation.follow(source, index, (*group.inputs, group.result))
        relation.store(value, through(views, index))
    relation.reads.pop(group.result, None)
    return relation


def before_views(roles: Roles, value: Value) -> tuple[Value, list[Node]]:
    """Return the value before the chain of views that ends in a stored one, and that chain."""
    views: list[Node] = []
    while value.producer is not None and roles.parts.get(value.producer) is Part.VIEW:
        views.insert(0, value.producer)
        value = value.producer.inputs[0]
    return value, views


def through(views: Sequence[Node], index: Place) -> Place:
    for view in views:
        index = forward_index(view, index)
    return index


# -- attention ---------------------------------------------------------------------------------------------------------


def _attention(view: GroupView, schedule: AttentionSchedule, grid: Grid) -> Relation:
    """Return the relation of attention: every tile of queries reads all keys; masks are ignored."""
    group, rows_each = AnchoredGroup.of(view), schedule.tile.bm
    what = attention_of(group)
    softmax, attrs = what.softmax, what.softmax.matmul.attrs
    variables = domain((what.batch, what.merged, softmax.queries, what.columns, softmax.keys, what.width))
    batch, merged, row, column, key, k = variables

    def tiles(place: Coordinates) -> Iterator[Ranges]:
        *lead, tile = place
        number = ravel(lead, grid.dims[:-1])
        rows = interval_boxes(_run(tile, rows_each, what.rows), (what.merged, softmax.queries))
        rest = ((0, what.columns), (0, softmax.keys), (0, what.width))
        return combined([((number, number + 1),)], rows, [rest])

    relation = Relation(grid, variables, tiles)
    head = batch * what.merged + merged
    query, keys, values = what.sources
    first, second = bool(attrs.get("trans_a")), bool(attrs.get("trans_b"))
    transposed = (not second, first) if softmax.swapped else (first, not second)
    relation.follow(query.value, query.index(head, row, k, transposed[0]), view.inputs)
    relation.follow(keys.value, keys.index(head, key, k, transposed[1]), view.inputs)
    values_transposed = bool(group.anchor.attrs.get("trans_b"))
    relation.follow(values.value, values.index(head, key, column, values_transposed), view.inputs)
    index = what.place(batch, merged * softmax.queries + row, column)
    _with_epilogue(relation, group, index)
    for value in _read_for_scores(group):
        relation.reads.pop(value, None)
    return relation


def _read_for_scores(group: AnchoredGroup) -> list[Value]:
    """Return the inputs that masks, scales and the like read at positions that are not analysed."""
    softmax = group.roles.softmax
    assert softmax is not None
    seen, stack = {softmax.matmul.output}, [group.anchor.inputs[0]]
    members = set(group.nodes)
    found: list[Value] = []
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.producer in members and value not in group.inputs:
            stack.extend(value.producer.inputs)
        else:
            found.append(value)
    return found


# -- rows and element-wise work ----------------------------------------------------------------------------------------


def _elementwise(view: GroupView, each: int, grid: Grid) -> Relation:
    sizes = tuple(d for d in view.stored[0].shape if d != 1) or (1,)
    total = prod(sizes)

    def tiles(place: Coordinates) -> Iterator[Ranges]:
        (block,) = place
        return interval_boxes(_run(block, each, total), sizes)

    variables = domain(sizes)
    relation = Relation(grid, variables, tiles)
    for value in view.stored:
        index = reshape_index(variables, sizes, value.shape)
        relation.follow(value, index, view.inputs)
        relation.store(value, index)
    return relation


def _rows(view: GroupView, each: int, grid: Grid) -> Relation:
    def intervals(place: Coordinates) -> Iterator[Range]:
        yield place[0] * each, (place[0] + 1) * each

    return rows_relation(view, grid, intervals)


def rows_relation(view: GroupView, grid: Grid, intervals: Callable[[Coordinates], Iterator[Range]]) -> Relation:
    """Return the relation of row-wise work, given the row numbers of its tiles; the last ones may not exist."""
    roles = legal_roles(view)
    assert roles.rows is not None, roles
    space = roles.rows
    kept = [axis for axis in range(len(space.shape)) if axis not in space.axes]
    rows = tuple(space.shape[axis] for axis in kept)
    total = prod(rows)

    def tiles(place: Coordinates) -> Iterator[Ranges]:
        for first, end in intervals(place):
            for ranges in interval_boxes((first, min(end, total)), rows):
                own = dict(zip(kept, ranges, strict=True))
                yield tuple(own.get(axis, (0, size)) for axis, size in enumerate(space.shape))

    variables = domain(space.shape)
    relation = Relation(grid, variables, tiles)
    reductions = [n for n, part in roles.parts.items() if part is Part.REDUCTION]
    results = [v for n in reductions for v in n.outputs]
    full, views = full_outputs(roles, view.stored), roles.viewed
    row = tuple(variables[axis] for axis in kept)
    for value in (*(n.inputs[0] for n in reductions), *(views.get(v, v) for v in full)):
        relation.follow(value, reshape_index(variables, space.shape, value.shape), (*view.inputs, *results))
    for value in view.stored:
        if value in full:
            source, chain = before_views(roles, value)
            relation.store(value, through(chain, reshape_index(variables, space.shape, source.shape)))
            continue
        index = reshape_index(row, rows, value.shape)
        relation.follow(value, index, (*view.inputs, *results))
        relation.store(value, index)
    for value in results:
        relation.reads.pop(value, None)
    return relation
