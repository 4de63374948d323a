"""Synchronisation policies: which tiles of a producer share a semaphore, and what the tiles of a consumer wait for.

A policy is a frozen dataclass with a `name` and a method `semaphores`; the waits follow from the dependence analysis
(`dependence`). A policy may also specify the waits itself (`edge`): they are checked in any case.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from tilestitch.passes.errors import SyncPolicyError
from tilestitch.passes.plan.sync.edges import Bound, Grouping, TileEdge
from tilestitch.passes.plan.sync.grid import Grid

from .bounds import bounds_of, hulls
from .dependence import Needs, tile_name

PARTS = 0
"""The dimension of a GEMM's grid that counts parts of a sum: a tile is stored when all have arrived."""


TIES_OF_TILES = ("tickets", "launches")
"""Ties of groups with tile-level waits. The first is the default of a policy requested by name."""


@runtime_checkable
class Policy(Protocol):
    """The interface of policies; see the module's docstring."""

    name: ClassVar[str]

    def semaphores(self, producer: Grid, needs: Needs) -> tuple[Grouping, ...] | None:
        """Return how tiles share semaphores along each dimension of the producer's grid; None if the policy does not
        apply.
        """
        ...


@dataclass(frozen=True)
class TileSync:
    """One semaphore per tile: a consumer begins as soon as its own tiles are stored."""

    name: ClassVar[str] = "tile"

    def semaphores(self, producer: Grid, needs: Needs) -> tuple[Grouping, ...] | None:
        return _of_tiles(producer)


@dataclass(frozen=True)
class RowSync:
    """One semaphore per `rows` neighbouring rows of tiles: fewer to check where whole rows are needed."""

    name: ClassVar[str] = "row"
    rows: int = 1

    def semaphores(self, producer: Grid, needs: Needs) -> tuple[Grouping, ...] | None:
        if not producer.tile_rows:
            return None
        *outer, rows, columns = _of_tiles(producer)
        return (*outer, Grouping(rows.size, self.rows), Grouping(columns.size, columns.size))


@dataclass(frozen=True)
class StridedTileSync:
    """Tiles of a row that are needed together and evenly spaced share a semaphore: slices of one projection."""

    name: ClassVar[str] = "strided"

    def semaphores(self, producer: Grid, needs: Needs) -> tuple[Grouping, ...] | None:
        if not producer.tile_rows:
            return None
        columns = producer.dims[-1]
        places = np.array([place[-1] for place in producer.places()], np.int64)
        wanted = [np.unique(places[kind]) for kind in needs.kinds if len(kind)]
        for modulus in (m for m in range(1, columns) if columns % m == 0):
            if all(_repeats(each, modulus, columns) for each in wanted):
                return (*_of_tiles(producer)[:-1], Grouping(columns, 1, modulus))
        return None


def _repeats(wanted: np.ndarray, modulus: int, size: int) -> bool:
    """Return whether tiles that are multiples of `modulus` apart are either all wanted or all not."""
    return len(np.unique(wanted % modulus)) * (size // modulus) == len(wanted)


@dataclass(frozen=True)
class KernelSync:
    """One semaphore: a consumer begins when the whole producer has ended."""

    name: ClassVar[str] = "kernel"

    def semaphores(self, producer: Grid, needs: Needs) -> tuple[Grouping, ...] | None:
        return tuple(Grouping(size, size) for size in producer.dims)


POLICIES: tuple[Policy, ...] = (TileSync(), RowSync(), StridedTileSync(), KernelSync())


def policy_named(name: str) -> Policy:
    """Return the built-in policy with this name. Raises SyncPolicyError if there is none."""
    for policy in POLICIES:
        if policy.name == name:
            return policy
    known = ", ".join(["auto", "model", "model/queues", "off", *(p.name for p in POLICIES)])
    raise SyncPolicyError(f"there is no synchronisation {name!r}; give one of {known}")


@dataclass(frozen=True)
class Wanted:
    """policies: candidates for edges. forced: chains are tied whether it pays or not. whole: so is the whole model.
    forms: permitted ties of chains. queues: blocks of a whole model have their own queues.
    """

    policies: tuple[Policy, ...]
    forced: bool
    whole: bool = False
    forms: tuple[str, ...] = TIES_OF_TILES[:1]
    queues: bool = False


def wanted_sync(option: object) -> Wanted | None:
    """Return the meaning of `sync`: off (None), auto, model, a policy or the name of one; `/tickets` or `/launches`
    after a name selects the form of chains, `/queues` after model that blocks draw nothing. Raises SyncPolicyError
    otherwise.
    """
    if option in (None, "off"):
        return None
    if isinstance(option, Wanted):
        return option
    if option in ("model", "model/queues"):
        return Wanted(POLICIES, forced=True, whole=True, queues=option != "model")
    if not isinstance(option, str):
        if not isinstance(option, Policy):
            raise SyncPolicyError(f"sync is {option!r}; give auto, model, off, the name of a policy, or a policy")
        return Wanted((option,), forced=True)
    name, form = form_of(option)
    forms = (form,) if form else TIES_OF_TILES if name == "auto" else TIES_OF_TILES[:1]
    return Wanted(POLICIES if name == "auto" else (policy_named(name),), forced=name != "auto", forms=forms)


def form_of(option: str) -> tuple[str, str]:
    """Return the text before the form of chains, and the form, "" if there is none."""
    name, slash, form = option.rpartition("/") if "/" in option.rpartition("}")[2] else (option, "", "")
    if slash and name in ("off", "model"):
        raise SyncPolicyError(f"sync is {option!r}, but {name} has no form {form!r}; give off, model or model/queues")
    if slash and form not in TIES_OF_TILES:
        raise SyncPolicyError(f"sync is {option!r}: there is no form {form!r}; give one of {', '.join(TIES_OF_TILES)}")
    return name, form


def wanted_policy(policy: Policy, form: str = "") -> Wanted:
    """Return the setting for a user-defined policy and a form of chains."""
    return Wanted((policy,), forced=True, forms=(form or TIES_OF_TILES[0],))


def _of_tiles(producer: Grid) -> tuple[Grouping, ...]:
    """Return one semaphore per tile, shared by all parts of the tile."""
    sums = producer.tile_rows != 0
    return tuple(Grouping(size, size if sums and axis == PARTS else 1) for axis, size in enumerate(producer.dims))


# -- edges -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """Two parts of a launch, by number, name and grid, and what the second needs of the first."""

    numbers: tuple[int, int]
    names: tuple[str, str]
    producer: Grid
    consumer: Grid
    needs: Needs


def edge_of(pair: Pair, policy: Policy) -> TileEdge | None:
    """Return the edge of a policy; None if the policy does not apply to this dependence.

    Raises SyncPolicyError, naming the tile that would race, for a policy that waits for too little.
    """
    groupings = policy.semaphores(pair.producer, pair.needs)
    if groupings is None:
        return None
    _check_groupings(pair, policy, groupings)
    edge = _edge(pair, policy, tuple(groupings))
    problem = why_not_enough(pair, edge)
    if problem is not None:
        raise SyncPolicyError(f"policy {policy.name}: {problem}; wait for more, or leave the policy to `auto`")
    return edge


def _edge(pair: Pair, policy: Policy, groupings: tuple[Grouping, ...]) -> TileEdge:
    """Return the edge, with the policy's own bounds if it has any, after checking that they fit the semaphores."""
    own = getattr(policy, "bounds", None)
    if own is None:
        bounds = bounds_of(pair.needs, pair.producer, pair.consumer, groupings)
        return TileEdge(*pair.numbers, policy.name, groupings, *bounds)
    found = own(pair.producer, pair.consumer)
    if not (_all_are(tuple, found) and len(found) == 2 and all(_all_are(Bound, side) for side in found)):
        raise SyncPolicyError(f"policy {policy.name}: `bounds` gives {found!r}; give two tuples of `Bound`")
    edge = TileEdge(*pair.numbers, policy.name, groupings, *found)
    problem = why_no_bounds(edge, pair.consumer)
    if problem is not None:
        raise SyncPolicyError(f"policy {policy.name}, bounds of {pair.names[1]}: {problem}; repair the policy")
    return edge


def _all_are(kind: type, found: object) -> bool:
    """Return whether `found` is a sequence of such objects only."""
    return isinstance(found, tuple | list) and all(isinstance(each, kind) for each in found)


def _check_groupings(pair: Pair, policy: Policy, groupings: Sequence[Grouping]) -> None:
    if not _all_are(Grouping, groupings):
        raise SyncPolicyError(f"policy {policy.name}: `semaphores` gives {groupings!r}; give a tuple of `Grouping`")
    problem = why_no_groupings(pair.producer, groupings)
    if problem is not None:
        raise SyncPolicyError(f"policy {policy.name}, semaphores of {pair.names[0]}: {problem}; repair the policy")


def why_no_groupings(producer: Grid, groupings: Sequence[Grouping]) -> str | None:
    """Return why these groupings do not fit a grid; None if they do."""
    if tuple(g.size for g in groupings) != producer.dims:
        return f"they are for {tuple(g.size for g in groupings)} tiles, and there are {producer.dims}"
    return next((reason for g in groupings if (reason := g.why_not()) is not None), None)


def why_no_bounds(edge: TileEdge, consumer: Grid) -> str | None:
    """Return why the bounds of an edge do not fit its semaphores and the consumer's grid; None if they do."""
    if not len(edge.first) == len(edge.last) == len(edge.semaphores):
        return f"there are bounds for {len(edge.first)} and {len(edge.last)} dimensions, not {len(edge.semaphores)}"
    odd = next((p for b in (*edge.first, *edge.last) if (p := b.why_not(consumer.dims)) is not None), None)
    if odd is None and edge.none_along is not None:
        return f"no tile waits for anything along dimension {edge.none_along}"
    return odd


def why_not_enough(pair: Pair, edge: TileEdge) -> str | None:
    """Return the first tile that would not wait for one that it reads; None if all do."""
    first, last = hulls(pair.needs, pair.producer, edge.semaphores)
    for block, place in enumerate(pair.consumer.places()):
        needed = pair.needs.of(block)
        if not len(needed):
            continue
        for axis, (low, high) in enumerate(zip(edge.first, edge.last, strict=True)):
            if low.at(place) <= first[block, axis] and last[block, axis] <= high.at(place):
                continue
            waited = range(low.at(place), high.at(place) + 1)
            groups = edge.semaphores[axis]
            racing = next(int(n) for n in needed if groups.of(pair.producer.place(int(n))[axis]) not in waited)
            return (
                f"tile {tile_name(place)} of {pair.names[1]} reads what tile {tile_name(pair.producer.place(racing))} "
                f"of {pair.names[0]} stores, and does not wait for it"
            )
    return None
