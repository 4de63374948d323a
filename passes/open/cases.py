"""Schedules for regions of a range: the decision table of a group of open size.

One expression, such as the rows of a GEMM, determines the region. The group is scheduled anew at some of its values,
powers of two from one end of the range to the other; every schedule found is predicted at each of them. Few regions are
kept, as more would hardly be faster, and their borders are found by bisection.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, product
from math import inf, log
from typing import TypeAlias

from tilestitch.compiler.ir import Graph, Node
from tilestitch.compiler.ir.sizes import Size, at, bounds_of, is_open, symbols_of
from tilestitch.compiler.ir.substitute import data_at, nodes_at
from tilestitch.cost_model.devices import CpuDevice
from tilestitch.cost_model.facts import KernelFacts, Part
from tilestitch.cost_model.on_cpu import one_core
from tilestitch.cost_model.protocol import AnyDevice, LatencyModel, latency_us
from tilestitch.passes.errors import PassError
from tilestitch.passes.plan import Group, GroupKind
from tilestitch.passes.plan.cases import Case, Cases, Predicted
from tilestitch.passes.plan.cpu.anchors import AnchoredSchedule, plan_of
from tilestitch.passes.plan.cpu.gemm import GemmShape
from tilestitch.passes.plan.cpu.operands import Matmul, conv_of
from tilestitch.passes.plan.cpu.schedules import CpuConvSchedule, CpuGemmSchedule
from tilestitch.passes.plan.gemm.anchored import AnchoredGroup
from tilestitch.passes.plan.gemm.check import why_not_scheduled
from tilestitch.passes.plan.gemm.contractions import gemm_of
from tilestitch.passes.plan.gemm.gemm import Gemm
from tilestitch.passes.plan.gemm.tiles import OpenGemvTile
from tilestitch.passes.plan.parts import Roles
from tilestitch.passes.plan.roles import legal_roles
from tilestitch.passes.plan.schedules import GemmSchedule, OpenGemmSchedule, Schedule
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.plan.view import GroupView, look_up
from tilestitch.passes.schedule.cases import Shared, kept_of, why_not_shared
from tilestitch.passes.schedule.cpu.gemm import choose_gemm_of_panels
from tilestitch.passes.schedule.cpu.tasks import unevenness
from tilestitch.passes.schedule.cuda.gpu import Gpu
from tilestitch.passes.schedule.device import device_of
from tilestitch.passes.schedule.facts import scheduled_facts
from tilestitch.passes.schedule.kernels import schedule_group
from tilestitch.passes.schedule.structure import Known, structure_of
from tilestitch.passes.schedule.work import work_of

from .cuda import split_gemm
from .extents import is_of_open_size
from .lift import lifted
from .typical import typical_sizes

MOST_REGIONS = 4
"""Most regions of a group: each is another kernel to compile and to ship."""
LEAST_GAIN = log(1.1)
"""Least gain of a further region, summed over all sampled sizes: this much at one of them, for example."""
LARGEST = 1 << 14
"""Largest value considered: beyond, there is work for every core, and one region."""
MANY = 1 << 10
"""Up to this, each power of two is sampled, beyond it each power of four."""
HALVINGS = 5
MOST_LOSS = log(1.01)
"""Largest slowdown of a case, at one size, relative to the schedule for all sizes."""

MOST_KEPT = 1 << 21
"""Most partial sums of split reductions: a few groups side by side, such as projections of one input, have memory of
their own, as that of temporaries is limited (`TEMPORARY_BYTES`).
"""

LEAST_US = 1e-3
"""Least predicted time, as logarithms are compared."""

Sizes: TypeAlias = Mapping[str, int]
Found: TypeAlias = Cases | Schedule | None
"""A decision table, or another schedule for all sizes; None if nothing is better than the group's own."""
_KNOWN: Known[Found] = Known()


class Sized:
    """The nodes of an open graph at given sizes, by name."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = {node.name: node for node in graph.nodes}
        self._known: dict[tuple[tuple[str, ...], tuple[tuple[str, int], ...]], dict[str, Node]] = {}
        self._near: dict[tuple[tuple[str, int], ...], dict[str, int] | None] = {}

    def near(self, given: Sizes) -> dict[str, int] | None:
        """Return typical sizes including the given ones; None if the graph's claims admit none."""
        key = tuple(sorted(given.items()))
        if key not in self._near:
            try:
                self._near[key] = typical_sizes(self.graph, given)
            except PassError:
                self._near[key] = None
        return self._near[key]

    def at(self, sizes: Sizes, group: Group) -> dict[str, Node]:
        """Return the nodes of a group, which alone are copied: most groups are looked at at a dozen sizes."""
        key = group.nodes, tuple(sizes.items())
        if key not in self._known:
            self._known[key] = nodes_at([self.nodes[name] for name in group.nodes], sizes)
        return self._known[key]


@dataclass(frozen=True)
class Point:
    """Sizes at which schedules are compared, and the value of the deciding expression there."""

    value: int
    sizes: Sizes


def with_cases(
    groups: Sequence[Group], graph: Graph, typical: Sizes, target: TargetInfo, model: LatencyModel,
    most: int | None = None,
) -> tuple[Group, ...]:  # fmt: skip
    """Return the groups of an open graph, scheduled for all sizes, with cases, or with another schedule for all of
    them, if these are predicted to gain. `most`: of cases, by default MOST_REGIONS. `typical`: the sizes at which they
    were scheduled.
    """
    most = MOST_REGIONS if most is None else most
    if most < 2:
        return tuple(groups)
    sized = Sized(graph)
    nodes = sized.nodes
    found = []
    for group in groups:
        if is_of_open_size(group, nodes):
            chooser = _Chooser(group, sized, nodes, typical, target, model, most)
            structure = structure_of(nodes, group, target)
            if structure is None:
                better = chooser.found()
            else:
                key = structure.key, graph.symbols, graph.claims, tuple(typical.items()), most
                _, better = _KNOWN.of(replace(structure, key=key), model, chooser.found)
            group = _cased(group, better, typical)
        found.append(group)
    return tuple(found)


def _cased(group: Group, found: Found, typical: Sizes) -> Group:
    if found is None:
        return group
    if not isinstance(found, Cases):
        return replace(group, schedule=found)
    value = at(found.size, typical)
    assert not is_open(value)
    return replace(group, schedule=found.at(value).schedule, cases=found)


def deciding_size(view: GroupView, group: Group, target: TargetInfo) -> Size | None:
    """Return the expression that determines a group's region; None if it has no regions."""
    if group.kind is not GroupKind.CONTRACTION or group.stages or group.schedule is None:
        return None
    anchored = AnchoredGroup.of(view)
    gemm: Gemm | GemmShape | None = None
    if target.is_gpu:
        gemm = gemm_of(anchored)
    elif isinstance(group.schedule, CpuConvSchedule):
        shape = conv_of(anchored)
        return shape.batch if is_open(shape.batch) and not any(map(is_open, shape.output)) else None
    elif anchored.is_matmul:
        gemm = Matmul(anchored).gemm
    if gemm is None:
        return None
    return next((size for size in (gemm.m, gemm.n, gemm.k, gemm.batch) if is_open(size)), None)


class _Chooser:
    """Builder of the decision table of one group."""

    def __init__(
        self, group: Group, sized: Sized, nodes: Mapping[str, Node], typical: Sizes, target: TargetInfo,
        model: LatencyModel, most: int,
    ) -> None:  # fmt: skip
        self._group, self._sized, self._nodes, self._most = group, sized, nodes, most
        self._typical, self._target, self._model = typical, target, model
        self._device = device_of(target)
        self._views: dict[tuple[tuple[str, int], ...], tuple[AnchoredGroup, Part]] = {}

    @cached_property
    def _roles(self) -> Roles:
        return legal_roles(look_up(self._nodes, self._group))

    def found(self) -> Found:
        size = deciding_size(look_up(self._nodes, self._group), self._group, self._target)
        if size is None:
            return None
        usual = self._group.schedule
        assert usual is not None
        points = [point for point in self._points(size) if self._computes(data_at(usual, point.sizes), point)]
        schedules = self._schedules(points) if len(points) > 1 else []
        if len(schedules) < 2:
            return None
        judged = [[self._judged(each, point) for each in schedules] for point in points]
        if bounds_of(size)[1] > points[-1].value:  # partial sums of any number of rows need memory of open size
            judged[-1] = [(inf, inf) if isinstance(each, OpenGemmSchedule) else found
                          for each, found in zip(schedules, judged[-1], strict=True)]  # fmt: skip
        times_us, costs = ([[pair[place] for pair in row] for row in judged] for place in (0, 1))
        chosen = regions(costs, self._most)
        if len(set(chosen)) < 2:
            gain = sum(row[0] - row[chosen[0]] for row in costs)
            return self._with_memory(size, [None], [schedules[chosen[0]]])[0] if gain >= LEAST_GAIN else None
        starts = [0]
        kept = [schedules[chosen[0]]]
        for number, (one, other) in enumerate(pairwise(chosen)):
            if one != other:
                starts.append(self._border(size, points[number], points[number + 1], schedules[one], schedules[other]))
                kept.append(schedules[other])
        ends = [*starts[1:], None]
        kept = self._with_memory(size, ends, kept)
        predicted = [
            Predicted(p.value, tuple(sorted(p.sizes.items())), round(row[c], 3), round(row[0], 3))
            for p, row, c in zip(points, times_us, chosen, strict=True)
        ]
        cases = tuple(
            Case(
                low, high, schedule, tuple(p for p in predicted if low <= p.value and (high is None or p.value < high))
            )
            for low, high, schedule in zip(starts, ends, kept, strict=True)
        )
        return Cases(size, cases)

    def _points(self, size: Size) -> list[Point]:
        """Return sizes with increasing values of the expression, including the typical ones."""
        found: dict[int, Sizes] = {}
        for given in (*sweep(self._sized.graph, size), self._typical):
            sizes = self._sized.near(given)
            if sizes is None:
                continue
            value = at(size, sizes)
            assert not is_open(value)
            if value > 0:
                found.setdefault(value, sizes)
        return [Point(value, found[value]) for value in sorted(found)]

    def _schedules(self, points: Sequence[Point]) -> list[Schedule]:
        """Return the schedule for all sizes, followed by those that are chosen at some point and may replace it."""
        group = self._group
        assert group.schedule is not None
        found = {group.schedule: True}
        usual = self._shared(group.schedule)
        for each in (each for point in points for each in self._chosen(point)):
            if each not in found:
                found[each] = why_not_shared(usual, self._shared(each)) is None
        return [each for each, may_be in found.items() if may_be]

    def _with_memory(self, size: Size, ends: Sequence[int | None], schedules: Sequence[Schedule]) -> list[Schedule]:
        """Give the schedules of cases, if one splits a reduction, the memory that the largest of these needs."""
        if not any(isinstance(schedule, OpenGemmSchedule) for schedule in schedules):
            return list(schedules)
        gemm = self._gemm()
        needed = [
            kept_of(gemm, schedule, bounds_of(size)[1] if end is None else end - 1)
            for schedule, end in zip(schedules, ends, strict=True) if isinstance(schedule, OpenGemmSchedule)
        ]  # fmt: skip
        elements, counters = (max(each) for each in zip(*needed, strict=True))
        gemms = (schedule for schedule in schedules if isinstance(schedule, GemmSchedule))
        return [OpenGemmSchedule(g.tile, g.split_k, kept_elements=elements, counters=counters) for g in gemms]

    def _gemm(self) -> Gemm:
        gemm = gemm_of(AnchoredGroup.of(look_up(self._nodes, self._group)))
        assert gemm is not None
        return gemm

    def _most_rows(self, schedule: OpenGemmSchedule) -> int:
        """Return the largest number of rows whose partial sums are no more than MOST_KEPT."""
        return MOST_KEPT // (kept_of(self._gemm(), schedule, 1)[0] or 1)

    def _shared(self, schedule: Schedule) -> Shared:
        if isinstance(schedule, OpenGemmSchedule):  # `_with_memory` makes its memory that of all
            schedule = GemmSchedule(schedule.tile)
        return Shared.of(self._nodes, replace(self._group, schedule=schedule), self._target, self._roles)

    def _chosen(self, point: Point) -> Iterator[Schedule]:
        """Yield the schedules, lifted to all sizes, that are chosen at a point."""
        nodes, target = self._sized.at(point.sizes, self._group), self._target
        schedules = [schedule_group(nodes, replace(self._group, schedule=None), target, self._model).schedule]
        usual = self._group.schedule
        if isinstance(usual, CpuGemmSchedule):
            shape = Matmul(self._view(point)).gemm
            schedules.append(choose_gemm_of_panels(shape, usual.vectors, target.core, target.threads))
        for schedule in schedules:
            group = lifted(replace(self._group, schedule=schedule), nodes, self._nodes, target, self._model)
            if isinstance(group, Group) and group.schedule is not None:
                yield group.schedule
            split = self._split(schedule, nodes) if target.is_gpu else None
            if split is not None:
                yield split

    def _split(self, schedule: Schedule | None, nodes: Mapping[str, Node]) -> OpenGemmSchedule | None:
        """Return a schedule for few rows whose reduction is split, if there is one."""
        view, gpu = look_up(self._nodes, self._group), Gpu.of(self._target)
        split = split_gemm(schedule, look_up(nodes, self._group), view, gpu, self._model)
        legal = split is not None and why_not_scheduled(AnchoredGroup.of(view), split, gpu.machine) is None
        return split if legal else None

    def _judged(self, schedule: Schedule, point: Point) -> tuple[float, float]:
        """Return the predicted microseconds, and the logarithm to compare: for GEMMs on CPUs of the time including the
        wait for the last thread.
        """
        facts = self._facts(schedule, point)
        if facts is None:
            return inf, inf
        us = self._latency_us(facts, self._device)
        return us, log(self._uneven_us(us, facts) if isinstance(schedule, CpuGemmSchedule) else us)

    def _facts(self, schedule: Schedule, point: Point) -> KernelFacts | None:
        """Return the facts; None if the schedule does not apply at these sizes. Tiles for few rows apply to no more
        rows: the model does not cover their speed there.
        """
        there = data_at(schedule, point.sizes)
        if not self._computes(there, point):
            return None
        if isinstance(schedule, GemmSchedule) and isinstance(schedule.tile, OpenGemvTile):
            gemm = gemm_of(self._view(point))
            if gemm is None or gemm.m > schedule.tile.bm:
                return None
        if isinstance(schedule, OpenGemmSchedule):
            gemm = gemm_of(self._view(point))
            if gemm is None or gemm.m > self._most_rows(schedule):
                return None
        anchored, work = self._seen(point)
        nodes, group = self._sized.at(point.sizes, self._group), replace(self._group, schedule=there)
        return scheduled_facts(nodes, group, self._target, anchored.roles, work)

    def _latency_us(self, facts: KernelFacts, device: AnyDevice) -> float:
        return max(latency_us(self._model, facts, device), LEAST_US)

    def _uneven_us(self, us: float, facts: KernelFacts) -> float:
        """Return the time including the wait for the last thread, which is longer the fewer tasks each thread has,
        unless one thread alone is faster. Kernels of convolutions take long to compile: another one must gain more than
        that.
        """
        threads, device = self._target.threads, self._device
        uneven_us = us * unevenness(facts.tasks, threads)
        if uneven_us == us:
            return us
        assert isinstance(device, CpuDevice), device
        return min(uneven_us, self._latency_us(facts, one_core(device)))

    def _computes(self, schedule: Schedule, point: Point) -> bool:
        """Return whether the group could have the schedule if it had only these sizes, so that it can be predicted. If
        a row is also a column, for instance, it would have another kernel.
        """
        if not isinstance(schedule, AnchoredSchedule):
            return True
        return not isinstance(plan_of(self._view(point), schedule), str)

    def _view(self, point: Point) -> AnchoredGroup:
        return self._seen(point)[0]

    def _seen(self, point: Point) -> tuple[AnchoredGroup, Part]:
        """Return the group at these sizes, and its work, shared by all schedules."""
        key = tuple(point.sizes.items())
        if key not in self._views:
            view = look_up(self._sized.at(point.sizes, self._group), self._group)
            anchored = AnchoredGroup.of(view)
            self._views[key] = anchored, work_of(view.nodes, view.outputs, anchored.roles)
        return self._views[key]

    def _border(self, size: Size, low: Point, high: Point, before: Schedule, after: Schedule) -> int:
        """Return the value from which on `after` is faster than `before`, or from which on that has too many partial
        sums; at `low` it is not, at `high` it is.
        """
        for _ in range(HALVINGS):
            middle = {name: (low.sizes[name] + high.sizes[name]) // 2 for name in low.sizes}
            sizes = self._sized.near(middle)
            if sizes is None:
                break
            value = at(size, sizes)
            assert not is_open(value)
            if not low.value < value < high.value:
                break
            point = Point(value, sizes)
            (_, later), (_, sooner) = (self._judged(each, point) for each in (after, before))
            if later < sooner:
                high = point
            else:
                low = point
        return min(high.value, self._most_rows(before) + 1) if isinstance(before, OpenGemmSchedule) else high.value


def sweep(graph: Graph, size: Size) -> Iterator[Sizes]:
    """Yield values of the symbols in an expression: powers of two between the ends of their ranges, one symbol after
    the other, the last one first.
    """
    inside = [symbol for symbol in graph.symbols if symbol in symbols_of([size])]
    held = {symbol.name: symbol.low for symbol in inside}
    for symbol in reversed(inside):
        high = min(symbol.high, LARGEST)
        powers = [1 << place for place in range(LARGEST.bit_length()) if 1 << place <= MANY or place % 2 == 0]
        for each in (symbol.low, *(power for power in powers if symbol.low < power < high), high):
            given = {**held, symbol.name: each}
            value = at(size, {**{s.name: s.low for s in graph.symbols}, **given})
            if is_open(value) or value > LARGEST:
                return
            yield given
        held[symbol.name] = high


def regions(costs: Sequence[Sequence[float]], most: int = MOST_REGIONS) -> list[int]:
    """Return the candidate for each point, with the least sum of `costs[point][candidate]` plus LEAST_GAIN for each
    change between adjacent points, with fewer than `most` changes. Ties go to the first candidate, that for all sizes;
    another one is never used where it costs more by MOST_LOSS.
    """
    count = len(costs[0])
    costs = [[cost if cost <= row[0] + MOST_LOSS else inf for cost in row] for row in costs]
    best = {(each, 1): (costs[0][each], [each]) for each in range(count)}
    for row in costs[1:]:
        following: dict[tuple[int, int], tuple[float, list[int]]] = {}
        for ((last, parts), (cost, path)), each in product(best.items(), range(count)):
            key = each, parts + (each != last)
            total = cost + row[each] + (LEAST_GAIN if each != last else 0.0)
            if key[1] <= most and total < following.get(key, (inf, []))[0]:
                following[key] = total, [*path, each]
        best = following
    return min(best.values(), key=lambda found: found[0])[1]
