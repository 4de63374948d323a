"""Stages in one launch whose blocks draw tiles from a counter, and wait for the tiles that they read.

Tickets are numbers of tiles, stage after stage. A block that waits for a tile waits for one that was drawn earlier, by
a block that runs: so the launch ends, however few of its blocks are resident, and in whatever order they start.

Memory of the launch's own holds how many tickets were drawn, how many runs have ended, and the semaphores. Every block
draws one ticket beyond the last tile. The one that draws the last of these sets the tickets to 0 and counts the run:
all others have ended their tiles by then. Semaphores count on from run to run, and are compared by their difference
from where the run began, which is exact however often they have wrapped around.

Before a tile, the threads of its block look at a semaphore each until all posts have come: an acquire, and a barrier
of the block after it. After a tile, a barrier of the block, and one thread's release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.compute.indexing import ravel, unravel
from tilestitch.codegen.cuda.abi import (
    CountersArg,
    CudaLaunch,
    Emission,
    KernelArg,
    Parameter,
    Thread,
    faults_from,
    kernel_function,
    pooled,
    shared_buffer,
    within,
)
from tilestitch.codegen.cuda.conditions import below
from tilestitch.codegen.cuda.gemm.partition import locate
from tilestitch.codegen.cuda.pieces import named, registers, repeated, when
from tilestitch.codegen.cuda.stitched import apart, only, private
from tilestitch.passes.plan.gemm.partition import Partition
from tilestitch.passes.plan.launches.cuda.emitted import COUNTER_BYTES
from tilestitch.passes.plan.launches.cuda.tickets import OWN_WORDS, shared_of
from tilestitch.passes.plan.schedules import TicketSchedule
from tilestitch.passes.plan.sync.edges import Bound, Grouping, TileEdge, semaphores_at
from tilestitch.passes.plan.sync.grid import Grid


@dataclass(frozen=True)
class TicketPart:
    """A part as launches of its own, and which tile each of their blocks computes. checks: launches that look at the
    indices that it reads by.
    """

    launches: tuple[CudaLaunch, ...]
    grids: tuple[Grid, ...]
    checks: tuple[CudaLaunch, ...] = ()


@dataclass(frozen=True)
class _Step:
    """A launch of a part. checks: what the block of its first tile looks at before."""

    launch: CudaLaunch
    grid: Grid
    checks: tuple[CudaLaunch, ...]


def lower_tickets(
    parts: Sequence[TicketPart], schedule: TicketSchedule, inner: Mapping[str, int], origins: tuple[str, ...]
) -> CudaLaunch:
    """The launch of parts, in an order in which none needs a later one. `inner`: values that only the parts need, and
    their bytes.
    """

    def own(launch: CudaLaunch, number: int) -> CudaLaunch:
        return private(apart(launch, str(number)), inner)

    steps = [
        _Step(own(launch, number), grid, () if at else tuple(own(check, number) for check in part.checks))
        for number, part in enumerate(parts)
        for at, (launch, grid) in enumerate(zip(part.launches, part.grids, strict=True))
    ]
    return _Tickets(steps, schedule).launch(origins)


class _Tickets:
    """One launch of all parts."""

    def __init__(self, steps: Sequence[_Step], schedule: TicketSchedule) -> None:
        self.steps, self.schedule = steps, schedule
        launches = [launch for step in steps for launch in (step.launch, *step.checks)]
        self.threads = max(launch.threads for launch in launches)
        self.firsts = [0, *accumulate(step.grid.blocks for step in steps)]
        self.starts, count = semaphores_at(schedule.edges)
        self.words = OWN_WORDS + count
        self.parameters: dict[KernelArg, Parameter] = {}
        self.faults: list[str] = []
        self.first_fault: dict[int, int] = {}  # by the id of a launch
        for launch in launches:
            for arg, parameter in zip(launch.args, _emission(launch).parameters, strict=True):
                self.parameters.setdefault(arg, replace(parameter, arg=arg))
            self.first_fault[id(launch)] = len(self.faults)
            self.faults += (f"{fault} ({', '.join(launch.origins)})" for fault in launch.faults)

    def launch(self, origins: tuple[str, ...]) -> CudaLaunch:
        counters = Parameter(CountersArg(COUNTER_BYTES * self.words, "tickets"), "uint32", self.words)
        grid, block = (self.schedule.blocks, 1, 1), (self.threads, 1, 1)
        parameters = [*self.parameters.values(), counters]
        func = kernel_function(parameters, grid, block, self._body)
        launches = [step.launch for step in self.steps]
        return CudaLaunch(
            "tickets", func, grid, block, tuple(p.arg for p in parameters), origins,
            max(shared_of(launch.shared_bytes, launch.static_shared_bytes) for launch in launches),
            faults=tuple(self.faults), portable=all(launch.portable for launch in launches),
        )  # fmt: skip

    def _body(self, buffers: list[Any], thread: Thread) -> None:
        given, memory = dict(zip(self.parameters, buffers, strict=False)), buffers[-1]
        lane, held, ticket = thread.thread[0], shared_buffer(1, "int32"), registers(1, "int32")
        words, place = T.address_of(memory[0]), T.address_of(held[0])
        runs, total = T.bind(T.call_extern("uint32", "ts_ticket_runs", words)), self.firsts[-1]

        def draw() -> None:
            T.buffer_store(ticket, T.call_extern("int32", "ts_ticket_draw", words, total, place), [0])

        draw()
        with T.While(ticket[0] < total):
            self._tile(0, len(self.steps), T.bind(ticket[0]), lane, given, memory, runs)
            draw()

    def _tile(
        self, first: int, end: int, ticket: Expr, lane: Expr, given: Mapping[KernelArg, Any], memory: Any, runs: Expr
    ) -> None:
        """The tile of a ticket: of one of the launches from number `first` up to `end`, which is found by halving."""
        if end - first == 1:
            self._step(first, ticket - self.firsts[first], lane, given, memory, runs)
            return
        middle = (first + end) // 2
        with T.If(ticket < self.firsts[middle]):
            with T.Then():
                self._tile(first, middle, ticket, lane, given, memory, runs)
            with T.Else():
                self._tile(middle, end, ticket, lane, given, memory, runs)

    def _step(
        self, number: int, block: Expr, lane: Expr, given: Mapping[KernelArg, Any], memory: Any, runs: Expr
    ) -> None:
        step = self.steps[number]
        # The limits tell TVM that no remainder is negative, and that indices fit 32 bits.
        block = T.bind(T.min(T.max(block, 0), step.grid.blocks - 1)) if step.grid.blocks > 1 else 0
        place = _located(step.grid, block)
        awaited = [edge for edge in self.schedule.edges if edge.consumer == number]
        for edge in awaited:
            self._wait(edge, place, lane, memory, runs)
        if awaited:
            T.evaluate(T.tvm_storage_sync("shared"))
        if step.checks:
            with when(None if isinstance(block, int) else tirx.EQ(block, 0)):
                for check in step.checks:
                    with repeated(check.grid[0]) as turn:
                        self._compute(check, turn, lane, given)
        self._compute(step.launch, block, lane, given)
        posted = dict.fromkeys(edge.semaphores for edge in self.schedule.edges if edge.producer == number)
        for groupings in posted:
            counts = tuple(grouping.count for grouping in groupings)
            own = ravel([0 if g.count == 1 else g.of(at) for g, at in zip(groupings, place, strict=True)], counts)
            word = named(own + (OWN_WORDS + self.starts[number, groupings]))
            T.evaluate(T.call_extern("void", "ts_ticket_post", T.address_of(memory[word])))

    def _compute(self, launch: CudaLaunch, block: Expr, lane: Expr, given: Mapping[KernelArg, Any]) -> None:
        threads = launch.threads
        scopes = within(threads, self.threads), pooled(launch.shared_bytes), faults_from(self.first_fault[id(launch)])
        with scopes[0], scopes[1], scopes[2], only(lane, threads, self.threads):
            width, height, _ = launch.block
            across = T.bind(lane % width) if height > 1 else lane
            along = T.bind(lane // width) if height > 1 else 0
            thread = Thread((block, 0, 0), (across, along, 0))
            _emission(launch).body([given[arg] for arg in launch.args], thread)

    def _wait(self, edge: TileEdge, place: Sequence[Expr], lane: Expr, memory: Any, runs: Expr) -> None:
        """The threads of a block look at a semaphore each, and at the next ones if there are more."""
        firsts, extents = [], []
        for low, high, count in zip(edge.first, edge.last, edge.counts, strict=True):
            first, last = _inside(low, place, count), _inside(high, place, count)
            firsts.append(first)
            known = isinstance(first, int) and isinstance(last, int)
            extents.append(max(0, last - first + 1) if known else named(T.max(last - first + 1, 0)))
        total, most = named(_product(extents)), _most(edge)
        start = OWN_WORDS + self.starts[edge.producer, edge.semaphores]
        rounds = -(-most // self.threads) if isinstance(total, int) else (total + (self.threads - 1)) // self.threads
        with repeated(1 if most <= self.threads else rounds) as turn:
            number = named(turn * self.threads + lane)
            counted = isinstance(total, int) and isinstance(rounds, int)
            there = below(number, total, rounds * self.threads) if counted else number < total
            with when(there):
                at = [named(f + own) for f, own in zip(firsts, _unraveled(number, extents), strict=True)]
                posts = _posts(edge.semaphores, at)
                word = T.address_of(memory[named(ravel(at, edge.counts) + start)])
                T.evaluate(T.call_extern("void", "ts_ticket_await", word, runs, posts))


def _emission(launch: CudaLaunch) -> Emission:
    assert launch.emission is not None, "a plan has no tickets for kernels that cannot be emitted again"
    return launch.emission


def _located(grid: Grid, block: Expr) -> tuple[Expr, ...]:
    """Which tile a block computes, as `Grid.place` says."""
    if not grid.tile_rows:
        *lead, last = unravel(block, grid.dims)
        last = grid.dims[-1] - 1 - last if grid.falling else last
        return tuple(named(at) for at in (*lead, last))
    parts, batch, rows, columns = grid.dims
    return locate(Partition(batch, rows, columns, parts, 1, grid.tile_rows), block)


def _inside(bound: Bound, place: Sequence[Expr], count: int) -> Expr:
    """A bound, inside of a dimension of so many semaphores: what lies below 0 is 0, so that nothing negative is divided
    and no floor is needed.
    """
    if bound.constant is not None:
        return min(max(bound.constant, 0), count - 1)
    total = T.max(bound.dividend(place), 0)
    return named(T.min(tirx.truncdiv(total, tirx.IntImm("int32", bound.divisor)), count - 1))


def _product(extents: Sequence[Expr]) -> Expr:
    total: Expr = 1
    for extent in extents:
        total = extent if isinstance(total, int) and total == 1 else total * extent
    return total


def _most(edge: TileEdge) -> int:
    """Semaphores that a tile waits for at most, as far as the bounds' constants tell."""
    most = 1
    for low, high, count in zip(edge.first, edge.last, edge.counts, strict=True):
        first, last = low.constant, high.constant
        most *= count if first is None or last is None else min(last, count - 1) - max(0, first) + 1
    return most


def _unraveled(number: Expr, extents: Sequence[Expr]) -> list[Expr]:
    """The index of a number in extents that may be known at run time only."""
    index: list[Expr] = []
    for extent in reversed(extents):
        if isinstance(extent, int) and extent == 1:
            index.insert(0, 0)
            continue
        index.insert(0, number % extent)
        number = named(number // extent)
    return index


def _posts(groupings: Sequence[Grouping], at: Sequence[Expr]) -> Expr:
    """How many posts a semaphore gets in a run."""
    posts: Expr = 1
    for grouping, own in zip(groupings, at, strict=True):
        usual, last = grouping.posts(0), grouping.posts(grouping.count - 1)
        posts = posts * (usual if usual == last else T.Select(tirx.EQ(own, grouping.count - 1), last, usual))
    return posts
