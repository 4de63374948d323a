"""The specialisations of a model: for the given sizes, and for regions of the dimensions that these leave open.

The runtime takes the first specialisation that fits: favoured sizes come first, and the regions after them are
disjoint. Kernels are for sizes of at least 1: where a dimension may be 0, that is a region of its own, and so are the
sizes of a dimension at which another tensor in the model is empty.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, islice, product
from typing import TYPE_CHECKING, Any, Protocol

from tilestitch.compiler.ir import Graph, Kind, Node, TensorType, Type, Value, kind_of
from tilestitch.compiler.ir.ops import DATA_MOVEMENT
from tilestitch.compiler.ir.sizes import is_empty_without, size_of, symbols_of
from tilestitch.compiler.ir.symbol_uses import symbols_of_values
from tilestitch.passes.errors import PlanMismatchError
from tilestitch.passes.plan.open_sizes import Scope

from .errors import OptionError

if TYPE_CHECKING:
    from tilestitch.compiler.frontend import ImportedModel
    from tilestitch.passes.plan import StitchPlan

ShapeSet = Mapping[str, Sequence[int]]
Range = tuple[int, int]
"""The least and the largest size, both inclusive."""
Region = Mapping[str, Range]
"""Ranges of open dimensions by name; others have the default range."""


class Convert(Protocol):
    """Converts a model for sizes; with `whole` also for those at which a tensor in it has no elements."""

    def __call__(self, shapes: ShapeSet, region: Region | None, whole: bool = False, /) -> ImportedModel: ...


MOST_EMPTY = 4
"""Most specialisations for dimensions of size 0 that are added unasked, and for some of 1 with some of 0."""
MOST_BARE = 24
"""Most such specialisations without a node left to compute, of models of at most MOST_NODES: they compile quickly."""
MOST_EMPTY_TRIED = 96
"""Most sets of dimensions of size 0 for which a model is converted to see whether it allows that."""
MOST_JOINED = 8
"""Most specialisations for dimensions of size 1 that are added unasked."""
MOST_NODES = 256
"""Most nodes of all of these together: each takes as long to compile as the first."""
MOST_LEFT_OUT = 4
"""Most specialisations for sizes at which a tensor is empty, next to others that exclude these."""
FEW_NODES = 32
"""Most nodes that may be left to compute where a dimension that is not a cache's is 0: most models are empty then, or
fail.
"""


@dataclass(frozen=True)
class Variant:
    """The input of one specialisation. `region`: None where open dimensions are left to the host, for the reason
    `refused` if that was not requested; `added`: dimensions whose size in it was not given; `favoured`: whether its
    sizes are also part of a later variant; `whole`: whether they include those at which a tensor is empty; `needed`:
    whether a variant that the user requested leaves sizes to it.
    """

    shapes: ShapeSet
    region: Region | None
    imported: ImportedModel
    added: tuple[str, ...] = ()
    favoured: bool = False
    refused: str = ""
    whole: bool = False
    needed: bool = False

    @property
    def asked(self) -> bool:
        """Whether the user requested it."""
        return not self.added

    @property
    def scope(self) -> Scope | None:
        """Its scope in the plan; None for a model that leaves nothing open."""
        if not (self.shapes or self.region or self.refused or self.imported.graph.symbols):
            return None
        shapes = {name: tuple(shape) for name, shape in self.shapes.items()}
        dims = None if self.region is None else dict(self.region)
        return Scope(shapes, dims, self.added, self.favoured, self.refused, self.whole)

    def symbols(self) -> list[dict[str, Any]]:
        """Return the sizes that it is compiled for, as JSON data. `default`: no range was given for this dimension."""
        given, graph = self.region or {}, self.imported.graph
        asked = symbols_of_values(graph.inputs)  # others are sizes that only a run can tell
        ranges = [(s.name, s.low, s.high) for s in graph.symbols if s in asked]
        ranges += [(name, *range_) for name, range_ in sorted(given.items()) if range_[0] == range_[1]]
        return [
            {"name": name, "low": low, "high": high, "default": name not in given or name in self.added}
            for name, low, high in ranges
        ]

    def options(self) -> dict[str, Any]:
        """Return the options of `compile_model` for this variant alone."""
        dims = {name: list(range_) for name, range_ in (self.region or {}).items()}
        return {"shapes": {name: list(shape) for name, shape in self.shapes.items()}, "dims": dims or None}


def variants(
    convert: Convert,
    shape_sets: Sequence[ShapeSet],
    regions: Sequence[Region | None],
    favoured: int = 0,
    refused: str = "",
) -> Iterator[Variant]:
    """Yield the model converted for each set of shapes and each region, and before it the variants that take
    precedence: few elements along dimensions where those are computed differently; dimensions of size 1 that are
    broadcast with a size that only a run can tell. After it come other dimensions of size 1 that are broadcast; those
    of size 0 that no region covers, where the model allows that; and one of each.

    `favoured`: number of regions, the first ones, that are part of later ones.
    """
    for shapes, (number, region) in product(shape_sets, enumerate(regions)):
        first = Variant(shapes, region, convert(shapes, region), (), number < favoured, refused)
        if region is None or number < favoured:
            yield first
        else:
            yield from _of_few(convert, first, region)
            ones = list(islice(_of_size_1(convert, first, region), MOST_JOINED))
            zeros = _few_of(_of_size_0(convert, first, region), first)
            zeros_and_ones = _few_of(_of_sizes_0_and_1(convert, ones), first)
            # Whether they equal a size that only a run can tell is seen too late to take another specialisation.
            early = [replace(one, favoured=True) for one in ones if not first.imported.met.isdisjoint(one.added)]
            late = [one for one in ones if first.imported.met.isdisjoint(one.added)]
            yield from _with_left_out(convert, (*early, first, *late, *zeros, *zeros_and_ones))


def replayed(convert: Convert, scopes: Sequence[Scope]) -> Iterator[Variant]:
    """Yield the model converted for the scopes of plans. Raises PlanMismatchError for one that has no such sizes."""
    from tilestitch.compiler.frontend import FrontendError

    for scope in scopes:
        try:
            imported = convert(scope.shapes, scope.dims, scope.whole)
        except FrontendError as error:
            raise PlanMismatchError(
                f"the plan is for {scope}, for which this model is not compiled: {error}; give the model that the "
                "plan was made for, or leave out --plan"
            ) from error
        yield Variant(scope.shapes, scope.dims, imported, scope.added, scope.favoured, scope.refused, scope.whole)


def scopes_of(
    plans: Sequence[StitchPlan], shape_sets: Sequence[ShapeSet], regions: Sequence[Region | None], favoured: int
) -> list[Scope]:
    """Return the scopes of plans, given that `regions`, the first `favoured` of which are favoured, were requested, or
    nothing.

    Raises OptionError where the plans are for something else.
    """
    asked = [
        Scope({name: tuple(shape) for name, shape in shapes.items()}, region, (), number < favoured)
        for shapes, (number, region) in product(shape_sets, enumerate(regions))
    ]
    known = [plan.scope for plan in plans if plan.scope is not None]
    if len(known) < len(plans):
        if len(asked) != len(plans):
            raise OptionError(
                f"the plan is for {len(plans)} sets of sizes, but {len(asked)} are given; give those that it is for"
            )
        return [_as_far_as_known(plan, scope) for plan, scope in zip(plans, asked, strict=True)]
    wanted = [scope for scope in known if not scope.added]
    if asked != [Scope({}, None)] and [*map(_as_requested, asked)] != [*map(_as_requested, wanted)]:
        raise OptionError(
            f"the plan is for {_listed(wanted)}, but {_listed(asked)} is asked for; leave out sizes (--shape, --dim, "
            "--favour), which the plan has, or leave out the plan"
        )
    return known


def _as_far_as_known(plan: StitchPlan, asked: Scope) -> Scope:
    """Return the scope of a plan, or the best guess for one that does not tell."""
    return plan.scope or (replace(asked, dims=asked.dims or {}) if plan.symbols else asked)


def _as_requested(scope: Scope) -> Scope:
    """Return the scope as a user would state it."""
    return replace(scope, dims=scope.dims or {}, refused="")


def _listed(scopes: Sequence[Scope]) -> str:
    return "; ".join(f"{scope} (favoured)" if scope.favoured else str(scope) for scope in scopes)


def _of_few(convert: Convert, first: Variant, region: Region) -> Iterator[Variant]:
    """Yield small sizes that the first variant includes but computes differently."""
    for name, most in first.imported.few.items():
        narrow = {**region, name: (region.get(name, (1, most))[0], most)}
        yield Variant(first.shapes, narrow, convert(first.shapes, narrow), (name,), favoured=True)


def _of_size_1(convert: Convert, first: Variant, region: Region) -> Iterator[Variant]:
    """Yield the sizes of 1 in broadcasts, where the first variant assumes equal sizes."""
    from tilestitch.compiler.frontend import FrontendError

    most = MOST_NODES // max(1, _computed_nodes(first.imported.graph))
    joined = [name for name in first.imported.joined if _goes_up_from_1(region.get(name))]
    leaders = {name: name for name in joined}
    leaders |= {name: s.name for s in first.imported.graph.symbols for name in first.imported.empty_with([s.name])}
    together = Counter(leaders[name] for name in joined)
    seen = [_inputs(first)]
    pairs = [  # two that meet no third one are 1 together in the first variant
        (a, b) for a, b in combinations(joined, 2) if leaders[a] != leaders[b] or together[leaders[a]] > 2
    ]
    for names in islice((*((name,) for name in joined), *pairs), most):
        narrow = {**region, **dict.fromkeys(names, (1, 1))}
        try:
            variant = Variant(first.shapes, narrow, convert(first.shapes, narrow), names)
        except FrontendError:  # elsewhere they are broadcast with other sizes
            continue
        if _inputs(variant) not in seen:
            seen.append(_inputs(variant))
            yield variant


def _inputs(variant: Variant) -> list[Type]:
    """Return the input types: a variant with those of an earlier one is never run."""
    return [value.type for value in variant.imported.graph.inputs]


def _with_left_out(convert: Convert, variants: Iterable[Variant]) -> Iterator[Variant]:
    """Yield each variant, followed by the sizes that it excludes; as a whole variant if these would be too many."""
    from tilestitch.compiler.frontend import FrontendError

    room = MOST_LEFT_OUT
    for variant in variants:
        left = list(_of_left_out(convert, variant))
        overlaps = any(each.region == variant.region for each in left)
        if len(left) <= room and (variant.asked or not overlaps):
            room -= len(left)
            yield from (variant, *left)
            continue
        try:
            imported = convert(variant.shapes, variant.region, True)
        except FrontendError:  # the model forbids the excluded sizes
            yield variant
        else:
            yield replace(variant, imported=imported, whole=True)


def _of_left_out(convert: Convert, variant: Variant) -> Iterator[Variant]:
    """Yield the sizes that a variant excludes because a tensor is empty there, where the model allows them. They are
    disjoint: where one dimension has such sizes, later ones may have any.
    """
    from tilestitch.compiler.frontend import FrontendError

    highs = {symbol.name: symbol.high for symbol in variant.imported.graph.symbols}
    region = dict(variant.region or {})
    ranges = [(name, range_) for name, ranges in variant.imported.emptied.items() for range_ in ranges]
    for name, (low, high) in ranges:
        try:
            imported = convert(variant.shapes, {**region, name: (low, high)}, True)
        except FrontendError:  # the model forbids these sizes, or a branch or loop of it that a run may leave out
            both = _with_forbidden(convert, variant, name, high)
            if both is not None:
                yield both
                return
        else:
            left = replace(variant, region={**region, name: (low, high)}, imported=imported, whole=True)
            added = tuple(dict.fromkeys((*variant.added, name)))
            left = replace(left, added=added, needed=variant.asked)
            yield left
            yield from _of_left_out(convert, left)
        region[name] = (high + 1, highs.get(name, high + 1))  # one of a single size is no symbol


def _with_forbidden(convert: Convert, variant: Variant, name: str, high: int) -> Variant | None:
    """Return all sizes of a variant with those up to `high` that it excludes, for runs that take no branch and no loop
    that forbids them. None if the model forbids them elsewhere.
    """
    from tilestitch.compiler.frontend import FrontendError

    if next(iter(variant.imported.graph.subgraphs()), None) is None:
        return None
    try:
        imported = convert(variant.shapes, variant.region, True)
    except FrontendError:
        return None
    if all(symbol.low > high for symbol in imported.graph.symbols if symbol.name == name):
        return None
    added = tuple(dict.fromkeys((*variant.added, name)))
    return replace(variant, imported=imported, whole=True, added=added, needed=variant.asked)


def _goes_up_from_1(range_: Range | None) -> bool:
    return range_ is None or range_[0] == 1 < range_[1]


def _few_of(variants: Iterable[Variant], first: Variant) -> Iterator[Variant]:
    """Limit the variants to MOST_EMPTY and, where the first variant has few nodes, MOST_BARE in which nothing is
    computed.
    """
    if _computed_nodes(first.imported.graph) > MOST_NODES:
        yield from islice(variants, MOST_EMPTY)
        return
    room = {True: MOST_EMPTY, False: MOST_BARE}
    for variant in variants:
        computes = _computed_nodes(variant.imported.graph) > 0
        if room[computes]:
            room[computes] -= 1
            yield variant


def _of_size_0(convert: Convert, first: Variant, region: Region) -> Iterator[Variant]:
    """Yield the variants in which one dimension, any caches, any two dimensions, or any caches and another are 0."""
    graph = first.imported.graph
    caches = [name for name in caches_of(graph) if name not in region]
    others = [symbol.name for symbol in graph.symbols if symbol.name not in (*region, *caches)]

    def together() -> Iterator[tuple[str, ...]]:  # far too many to list, if there are dozens of caches
        return chain.from_iterable(combinations(caches, count) for count in range(1, len(caches) + 1))

    with_others = ((*names, other) for names in together() for other in others)
    sets = chain(together(), ((name,) for name in others), combinations(others, 2), with_others)
    for names in islice(sets, MOST_EMPTY_TRIED):
        yield from _empty(convert, first, region, names, all(name in caches for name in names))


def _of_sizes_0_and_1(convert: Convert, ones: Sequence[Variant]) -> Iterator[Variant]:
    """Yield variants with broadcast dimensions of size 1 while one to three other dimensions are 0."""
    open_sizes = [[s.name for s in one.imported.graph.symbols if s.name not in (one.region or {})] for one in ones]
    sets = (
        (one, names)
        for count in (1, 2, 3)
        for one, others in zip(ones, open_sizes, strict=True)
        for names in combinations(others, count)
    )
    seen: list[list[Type]] = []
    for one, names in islice(sets, MOST_EMPTY_TRIED):
        for variant in _empty(convert, one, one.region or {}, names, False):
            if _inputs(variant) not in seen:
                seen.append(_inputs(variant))
                yield replace(variant, added=(*one.added, *variant.added))


def _empty(convert: Convert, first: Variant, region: Region, names: Sequence[str], caches: bool) -> Iterator[Variant]:
    """Yield the variant in which these open dimensions are 0, if the model allows it and few nodes have elements then.
    `caches`: also if many do.
    """
    from tilestitch.compiler.frontend import FrontendError

    same = [name for name in first.imported.empty_with(names) if name not in region]
    empty = {**region, **dict.fromkeys((*names, *same), (0, 0))}
    try:
        imported = convert(first.shapes, empty)
    except FrontendError:
        return
    if caches or _computed_nodes(imported.graph) <= FEW_NODES:
        yield Variant(first.shapes, empty, imported, (*names, *same))


def _is_empty(type_: Type) -> bool:
    return isinstance(type_, TensorType) and 0 in type_.shape


def _computed_nodes(graph: Graph) -> int:
    """Return the number of nodes with non-empty results, as far as that is known."""
    return sum(not all(_is_empty(value.type) for value in node.outputs) for node in graph.nodes)


# -- what is open ------------------------------------------------------------------------------------------------------


def regions_of(dims: Region | None, replays: bool) -> list[Region | None]:
    """Return the ranges of open dimensions, split where one includes 0; the region without a 0 comes first. [None]
    where a plan is replayed and no range is given.

    Raises OptionError for an invalid range.
    """
    if dims is None:
        return [None] if replays else [{}]
    cuts = [[(name, each) for each in _cut(name, given)] for name, given in dims.items()]
    return [dict(region) for region in product(*cuts)]


def favoured_regions(favour: Sequence[Mapping[str, int]], regions: Sequence[Region | None]) -> list[Region]:
    """Return the regions of favoured points, which get kernels of their own; dimensions that a point does not name stay
    open.

    Raises OptionError for an invalid point, or one outside all regions.
    """
    return [_favoured(point, regions[0]) for point in favour]


def _favoured(point: Mapping[str, int], region: Region | None) -> Region:
    region = region or {}
    try:
        sizes = {name: operator.index(size) for name, size in point.items()}
    except (AttributeError, TypeError):
        raise OptionError(f"favour: {point!r} is no mapping from names of dimensions to sizes") from None
    for name, size in sizes.items():
        if size < 1:
            raise OptionError(f"favour: {name}={size} is less than 1; favour a size of at least 1")
        low, high = region.get(name, (1, size))
        if not low <= size <= high:
            raise OptionError(f"favour: {name}={size} is not in {low}..{high}; favour a size of the range")
    return {**region, **{name: (size, size) for name, size in sizes.items()}}


def _cut(name: str, given: Any) -> list[Range]:
    try:
        low, high = (operator.index(size) for size in given)
    except (TypeError, ValueError):
        raise OptionError(f"dims: {given!r} is no range of {name!r}; give its least and its largest size") from None
    if not 0 <= low <= high:
        raise OptionError(f"dims: {low}..{high} is no range of {name!r}; it rises from 0 or more")
    return [(1, high), (0, 0)] if low == 0 < high else [(low, high)]


def caches_of(graph: Graph) -> list[str]:
    """Return the symbols that are the length of an input to which the model concatenates or appends, or which it pads
    up to another size: it may be empty at first.
    """
    symbols: dict[object, str] = {size_of(symbol): symbol.name for symbol in graph.symbols}
    found: dict[str, None] = {}
    for node in graph.nodes:
        for value, axis in _grown(graph, node):
            name = symbols.get(value.tensor_type.shape[axis])
            if name is not None and _is_moved_input(graph, value):
                found[name] = None
    return list(found)


def _grown(graph: Graph, node: Node) -> Iterator[tuple[Value, int]]:
    """Yield what a node concatenates, appends to, or pads until it is as long as something else, with the axis."""
    if node.op == "concat":
        yield from ((value, node.attrs["axis"]) for value in node.inputs)
    if node.op == "append":
        yield from ((value, node.attrs["axis"]) for value in graph.inputs if value.name == node.attrs["cache"])
    if node.op != "pad":
        return
    value = node.inputs[0]
    sizes = zip(value.tensor_type.shape, node.attrs["after"], node.output.tensor_type.shape, strict=True)
    for axis, (size, after, whole) in enumerate(sizes):
        for symbol in symbols_of([size]) & symbols_of([after]):
            if not isinstance(whole, str) and size == size_of(symbol) and not is_empty_without(whole, symbol.name):
                yield value, axis


def _is_moved_input(graph: Graph, value: Value) -> bool:
    """Return whether its elements are those of an input of the graph, moved."""
    while (node := value.producer) is not None and node.inputs:
        if kind_of(node.op) is not Kind.VIEW and node.op not in DATA_MOVEMENT:
            return False
        value = node.inputs[0]
    return value in graph.inputs


# -- what is given -----------------------------------------------------------------------------------------------------


def shape_sets_of(shapes: ShapeSet | Sequence[ShapeSet] | None) -> list[ShapeSet]:
    """Return the given sets of input sizes as integers; one empty set if none is given. Raises OptionError."""
    several = shapes if isinstance(shapes, list | tuple) else () if shapes is None else (shapes,)
    return [_shape_set(one) for one in several] or [{}]


def _shape_set(given: Any) -> ShapeSet:
    try:
        return {name: tuple(operator.index(size) for size in shape) for name, shape in given.items()}
    except (AttributeError, TypeError):
        raise OptionError(
            f"shapes: {given!r} is no mapping from names of inputs to sequences of integers; give "
            "{'x': (1, 3, 224, 224)}, or a list of several such"
        ) from None
