"""Choice of the launches of an open graph that process a few images of a batch at a time, and of the number of images.

Successive kernels pass all images through memory once these exceed the last-level cache. Run for a few images at a
time, they find the previous kernel's results in the cache; but weights are read again for each few. So kernels with
large results and few weights, such as the first ones of a convolutional network, are sliced together; the best division
of the launches minimises the memory traffic per image.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilestitch.compiler.ir import Graph, Node, Value
from tilestitch.compiler.ir.sizes import (
    Size,
    Symbol,
    at,
    bounds_of,
    divisor_of,
    largest,
    perhaps_empty,
    symbols_of,
    typical,
)
from tilestitch.passes.plan import Group, Segment, StitchPlan, WhyNot
from tilestitch.passes.plan.slices import Run, Slices
from tilestitch.passes.schedule.cpu.tiles import LAST_CACHE_BYTES
from tilestitch.runtime.launch_check import ARGUMENT_ALIGNMENT

from .images import SAME, images_of, why_not_by_image

LEAST_SAVED = 0.1
"""Least relative reduction of memory traffic."""
LAUNCH_BYTES = 20_000
"""Memory traffic equivalent to the overhead of a launch."""
LONGEST_RUN = 96
STORED = 2
"""Memory transfers per stored byte: it is fetched before it is written, and written back."""


@dataclass(frozen=True)
class _Stage:
    """A group in launch order. `reads` and `stores` are values with images; `same_bytes`: weights, and other operands
    without images. `keeps_apart`: it computes each image separately.
    """

    name: str
    keeps_apart: bool
    reads: tuple[str, ...]
    stores: tuple[str, ...]
    same_bytes: int


@dataclass(frozen=True)
class _Room:
    """Determinants of the number of images at a time: the stage that touches most bytes per image, the bytes available
    for images, and the multiple to round to.
    """

    stage: int
    room_bytes: int
    granule: int


def sliced(
    graph: Graph, groups: Sequence[Group], segments: Sequence[Segment], aliases: Mapping[str, str],
    sizes: Mapping[str, int],
) -> Slices | WhyNot | None:  # fmt: skip
    """Return the best division of launches; None where nothing has images. `sizes`: typical ones, of the symbols."""
    found = [divided(graph, symbol, groups, segments, aliases, sizes) for symbol in _batches(graph)]
    refused = next((one for one in found if isinstance(one, WhyNot)), None)
    best = max((one for one in found if isinstance(one, Divided)), key=lambda one: len(one.slices.runs), default=None)
    return refused if best is None else best.slices


@dataclass(frozen=True)
class Divided:
    """The best division of launches, and the bytes of memory traffic saved per image."""

    slices: Slices
    saved_bytes: float


def divided(
    graph: Graph, symbol: Symbol, groups: Sequence[Group], segments: Sequence[Segment],
    aliases: Mapping[str, str], sizes: Mapping[str, int], count: int | None = None,
) -> Divided | WhyNot | None:  # fmt: skip
    """Return the best division by `symbol`; None where nothing is computed. Groups of other nodes end runs, as host
    steps do. `count`: number of images; None: more than the cache holds.
    """
    division = _Division(graph, symbol, aliases, sizes, count)
    refused = division.refusal(graph)
    if refused is not None:
        return refused
    division.enter({group.name: group for group in groups if division.has(group)}, segments)
    return division.best(graph.name)


def _batches(graph: Graph) -> Iterator[Symbol]:
    """Yield the symbols that are the first dimension of some input."""
    for symbol in graph.symbols:
        if any(images_of(value, symbol) not in (None, SAME) for value in graph.inputs):
            yield symbol


def why_not_sliced(plan: StitchPlan, graph: Graph, slices: Slices) -> str | None:
    """Return why launches cannot be sliced as a plan says; None if they can."""
    symbol = next((symbol for symbol in graph.symbols if symbol.name == slices.symbol), None)
    if symbol is None:
        return f"its slices are of {slices.symbol!r}, which is no symbol of the graph"
    if plan.target.is_gpu:
        return "launches of a GPU have no slices"
    native = {group.name: group for group in plan.groups}
    if [name for run in slices.runs for name in run.groups] != [name for name in plan.launch_order if name in native]:
        return "the runs of its slices have other groups than the plan, or in another order"
    place = {name: number for number, segment in enumerate(plan.segments) for name in segment.groups}
    division = _Division(graph, symbol, plan.buffers.aliases, {s.name: max(s.low, 1) for s in graph.symbols})
    refused = division.refusal(graph)
    for run in slices.runs:
        if len({place[name] for name in run.groups}) > 1:
            return f"the run of slices that begins with group {run.groups[0]} goes over the end of a segment"
        if run.most == 0:
            continue
        if refused is not None:
            return refused.reason
        if bounds_of(run.most)[0] < 1:
            return f"slices from group {run.groups[0]} on are of {run.most} images"
        for stage in (division.stage(native[name]) for name in run.groups):
            granule = math.lcm(*map(division.granule, (*stage.reads, *stage.stores)))
            if not stage.keeps_apart:
                return f"group {stage.name} has slices, but does not compute each image by itself"
            if divisor_of(run.most) % granule:
                return f"group {stage.name} has slices of {run.most} images, which are no multiples of {granule}"
    return None


class _Division:
    """Division of one graph's launches by images of one batch."""

    def __init__(
        self, graph: Graph, symbol: Symbol, aliases: Mapping[str, str], sizes: Mapping[str, int],
        count: int | None = None,
    ) -> None:  # fmt: skip
        self.symbol, self.aliases, self.count = symbol, aliases, count
        self.values: dict[str, Value] = {v.name: v for v in graph.inputs}
        self.values.update((v.name, v) for node in graph.nodes for v in node.outputs)
        self.inputs = {v.name for v in graph.inputs}
        self.nodes: dict[str, Node] = {node.name: node for node in graph.nodes}
        self.one = {**sizes, symbol.name: 1}
        self.stages: list[_Stage | None] = []  # None for host steps, and between segments
        self.last_use: dict[str, int] = {v.name: 1 << 62 for v in graph.outputs}
        self.image_bytes: dict[str, int] = {}
        self.granules: dict[str, int] = {}

    def has(self, group: Group) -> bool:
        """Return whether a group consists of the graph's nodes."""
        return all(name in self.nodes for name in group.nodes)

    def refusal(self, graph: Graph) -> WhyNot | None:
        """Return why the images cannot be processed in parts."""
        symbol = self.symbol
        if symbol.low > 1 and not symbol.or_empty:
            return WhyNot(graph.name, "slices", f"{symbol} is never 1, so some images could be left in the end")
        claim = next((claim for claim in graph.claims if symbol in symbols_of([claim.size])), None)
        if claim is not None:
            return WhyNot(graph.name, "slices", f"{claim} holds for all images, and may not for some of them")
        return None

    def enter(self, groups: Mapping[str, Group], segments: Sequence[Segment]) -> None:
        for segment in segments:
            for name in segment.groups:
                self.stages.append(self.stage(groups[name]) if name in groups else None)
            self.stages.append(None)
        for number, stage in enumerate(self.stages):
            for name in (*stage.reads, *stage.stores) if stage else ():
                self.last_use[name] = max(number, self.last_use.get(name, 0))

    def stage(self, group: Group) -> _Stage:
        nodes = [self.nodes[name] for name in group.nodes]
        roots = [self.aliases.get(name, name) for name in group.inputs]
        images = {n: images_of(self.values[n], self.symbol) for n in (*group.inputs, *roots, *group.outputs)}
        apart = None not in images.values() and all(why_not_by_image(node, self.symbol) is None for node in nodes)
        reads = tuple(dict.fromkeys(n for n in roots if images[n] not in (None, SAME)))
        stores = tuple(n for n in group.outputs if images[n] not in (None, SAME))
        same = {v.name: v for node in nodes for v in node.inputs if v.is_constant}
        same_bytes = sum(typical(v.tensor_type.nbytes, self.one) for v in same.values())
        same_bytes += sum(self.bytes_of(n) for n in roots if images[n] == SAME)
        return _Stage(group.name, apart, reads, stores, same_bytes)

    def bytes_of(self, name: str) -> int:
        """Return the bytes of one image of a value."""
        if name not in self.image_bytes:
            self.image_bytes[name] = typical(self.values[name].tensor_type.nbytes, self.one)
        return self.image_bytes[name]

    def best(self, graph: str) -> Divided | WhyNot | None:
        """Return the division with the least memory traffic per image, by dynamic programming from the end."""
        count = len(self.stages)
        cheapest: list[tuple[float, int, _Room | None]] = [(0.0, 0, None), *[(math.inf, 0, None)] * count]
        for begin in range(count):
            for end, moved, room in self.parts_from(begin):
                total = cheapest[begin][0] + moved
                if total < cheapest[end][0]:
                    cheapest[end] = (total, begin, room)
        whole, least = sum(map(self.moved_alone, self.stages)), cheapest[count][0]
        if whole - least < LEAST_SAVED * whole:
            reason = "memory would move hardly less if launches went through a few images at a time"
            return WhyNot(graph, "slices", reason, {"bytes": whole, "in_slices": round(least)}) if whole else None
        runs: list[Run] = []
        end = count
        while end:
            _, begin, room = cheapest[end]
            names = tuple(stage.name for stage in self.stages[begin:end] if stage)
            if names:
                runs.append(Run(names, self.images(room) if room else 0))
            end = begin
        return Divided(Slices(self.symbol.name, tuple(reversed(runs))), whole - least)

    def moved_alone(self, stage: _Stage | None) -> int:
        """Return the memory traffic per image of a stage that processes all images at once."""
        if stage is None:
            return 0
        read, stored = (sum(map(self.bytes_of, names)) for names in (stage.reads, stage.stores))
        stays = self.count is not None and (read + stored) * self.count <= LAST_CACHE_BYTES
        return 0 if stays else read + STORED * stored

    def parts_from(self, begin: int) -> Iterator[tuple[int, float, _Room | None]]:
        """Yield the parts that begin at a stage: the end of each, memory traffic per image, and the number of images at
        a time; None for all, as in a part of one stage.
        """
        yield begin + 1, self.moved_alone(self.stages[begin]), None
        moved = same_bytes = peak = 0
        granule, largest_at = 1, begin
        known: set[str] = set()
        stored: set[str] = set()
        for number, stage in enumerate(self.stages[begin : begin + LONGEST_RUN], begin):
            if stage is None or not stage.keeps_apart:
                return
            same_bytes += stage.same_bytes
            moved += sum(self.bytes_of(name) for name in stage.reads if name not in known)
            moved += STORED * sum(self.bytes_of(name) for name in stage.stores)
            known.update(stage.reads, stage.stores)
            stored.update(stage.stores)
            done = [name for name in (*stage.reads, *stage.stores) if name in stored and self.last_use[name] == number]
            moved -= STORED * sum(map(self.bytes_of, done))
            stored.difference_update(done)
            granule = math.lcm(granule, *map(self.granule, (*stage.reads, *stage.stores)))
            touched = sum(self.bytes_of(name) for name in (*stage.reads, *stage.stores))
            if touched > peak:
                peak, largest_at = touched, number
            keeps_weights = same_bytes <= LAST_CACHE_BYTES // 2
            room = LAST_CACHE_BYTES - (same_bytes if keeps_weights else 0)
            images = room // max(1, peak) // granule * granule
            if images < 1:
                return
            if number > begin and peak:
                again = (0 if keeps_weights else same_bytes) + LAUNCH_BYTES * (number + 1 - begin)
                yield number + 1, moved + again / images, _Room(largest_at, room, granule)

    def images(self, room: _Room) -> Size:
        """Return the number of images at a time."""
        stage = self.stages[room.stage]
        assert stage is not None
        values = [self.values[name] for name in (*stage.reads, *stage.stores)]
        touched: Size = sum(at(value.tensor_type.nbytes, {self.symbol.name: 1}) for value in values)
        # Computed at every size, also where other dimensions are 0 and there is nothing to compute.
        return largest(1, room.room_bytes // largest(1, perhaps_empty(touched * room.granule))) * room.granule

    def granule(self, name: str) -> int:
        """Return the multiple of images at which slices of a value must begin, to keep the alignment that kernels
        assume.
        """
        if name not in self.granules:
            self.granules[name] = 1 if name in self.inputs else self.granule_of(self.values[name])
        return self.granules[name]

    def granule_of(self, value: Value) -> int:
        each = divisor_of(at(value.tensor_type.nbytes, {self.symbol.name: 1}))
        return ARGUMENT_ALIGNMENT // math.gcd(ARGUMENT_ALIGNMENT, each)
