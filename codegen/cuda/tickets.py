"""Stages in one launch whose blocks draw tiles from a counter, and wait for the tiles that they read.

Tickets are numbers of tiles, stage after stage. A block that waits for a tile waits for one that was drawn earlier, by
a running block: so the launch terminates, however few of its blocks are resident, and in whatever order they start.

The launch's own memory holds the number of drawn tickets, the number of finished runs, and the semaphores (see
`semaphores`). Every block draws one ticket beyond the last tile. The one that draws the last of these resets the
tickets and counts the run: all others have finished their tiles by then.

If every block has a queue of its own, its tiles are as far apart as there are blocks, and nothing is drawn. A block may
then wait for a tile late in another's queue, so all blocks must be resident together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.cuda.abi import (
    CountersArg,
    CudaLaunch,
    Emission,
    KernelArg,
    Parameter,
    Thread,
    barrier,
    faults_from,
    kernel_function,
    pooled,
    shared_buffer,
    within,
)
from tilestitch.codegen.cuda.before import emit_waiting
from tilestitch.codegen.cuda.pieces import registers, repeated, when
from tilestitch.codegen.cuda.semaphores import located, post, wait_for
from tilestitch.codegen.cuda.stitched import apart, only, private
from tilestitch.passes.plan.launches.cuda.emitted import COUNTER_BYTES
from tilestitch.passes.plan.launches.cuda.stitched import OWN_WORDS, shared_of
from tilestitch.passes.plan.schedules import TicketSchedule
from tilestitch.passes.plan.sync.edges import semaphores_at
from tilestitch.passes.plan.sync.grid import Grid


@dataclass(frozen=True)
class TicketPart:
    """A part as launches of its own, with the tile of each of their blocks. `stored`: names of the values that it
    stores. `checks`: launches that check its indices.
    """

    launches: tuple[CudaLaunch, ...]
    grids: tuple[Grid, ...]
    stored: frozenset[str]
    checks: tuple[CudaLaunch, ...] = ()


@dataclass(frozen=True)
class _Step:
    """A launch of a part. `checks`: run by the block of its first tile beforehand. `changing`: names of the values that
    other parts store.
    """

    launch: CudaLaunch
    grid: Grid
    checks: tuple[CudaLaunch, ...]
    changing: frozenset[str]

    @property
    def begins(self) -> bool:
        """Whether it places its wait itself: never before its indices are checked."""
        return _emission(self.launch).begins and not self.checks


def lower_tickets(
    parts: Sequence[TicketPart], schedule: TicketSchedule, inner: Mapping[str, int], origins: tuple[str, ...]
) -> CudaLaunch:
    """Return the launch of parts, in topological order. `inner`: values internal to the parts, and their bytes."""

    def own(launch: CudaLaunch, number: int) -> CudaLaunch:
        return private(apart(launch, str(number)), inner)

    stored = frozenset().union(*(part.stored for part in parts))
    steps = [
        _Step(
            own(launch, number),
            grid,
            () if at else tuple(own(check, number) for check in part.checks),
            stored - part.stored,
        )
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
        self.fault_origins: list[tuple[str, ...]] = []
        self.first_fault: dict[int, int] = {}  # by the id of a launch
        for launch in launches:
            for arg, parameter in zip(launch.args, _emission(launch).parameters, strict=True):
                self.parameters.setdefault(arg, replace(parameter, arg=arg))
            self.first_fault[id(launch)] = len(self.faults)
            self.faults += launch.faults
            self.fault_origins += launch.fault_origins or [launch.origins] * len(launch.faults)

    def launch(self, origins: tuple[str, ...]) -> CudaLaunch:
        counters = Parameter(CountersArg(COUNTER_BYTES * self.words, "tickets"), "uint32", self.words)
        grid, block = (self.schedule.blocks, 1, 1), (self.threads, 1, 1)
        parameters = [*self.parameters.values(), counters]
        bound = self.schedule.blocks_per_sm if self.schedule.blocks_per_sm > 1 else None
        func = kernel_function(parameters, grid, block, self._body, bound)
        launches = [step.launch for step in self.steps]
        return CudaLaunch(
            "tickets", func, grid, block, tuple(p.arg for p in parameters), origins,
            max(shared_of(launch.shared_bytes, launch.static_shared_bytes) for launch in launches),
            faults=tuple(self.faults), fault_origins=tuple(self.fault_origins),
            portable=all(launch.portable for launch in launches),
            cooperative=self.schedule.queues, elastic=self.schedule.queues,
        )  # fmt: skip

    def _body(self, buffers: list[Any], thread: Thread) -> None:
        given, memory = dict(zip(self.parameters, buffers, strict=False)), buffers[-1]
        lane, held, ticket = thread.thread[0], shared_buffer(1, "int32"), registers(1, "int32")
        words, place = T.address_of(memory[0]), T.address_of(held[0])
        runs, total = T.bind(T.call_extern("uint32", "ts_ticket_runs", words)), self.firsts[-1]

        def draw() -> None:
            T.buffer_store(ticket, T.call_extern("int32", "ts_ticket_draw", words, total, place), [0])

        def after() -> None:
            if self.schedule.queues:
                T.buffer_store(ticket, T.call_extern("int32", "ts_ticket_next", ticket[0]), [0])
            else:
                draw()

        if self.schedule.queues:
            T.buffer_store(ticket, thread.block[0], [0])
        else:
            draw()
        with T.While(ticket[0] < total):
            self._tile(0, len(self.steps), T.bind(ticket[0]), lane, given, memory, runs)
            after()
        if self.schedule.queues:
            T.evaluate(T.call_extern("void", "ts_ticket_over", words))

    def _tile(
        self, first: int, end: int, ticket: Expr, lane: Expr, given: Mapping[KernelArg, Any], memory: Any, runs: Expr
    ) -> None:
        """Emit the tile of a ticket: of one of the launches from number `first` up to `end`, found by bisection."""
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
        place = located(step.grid, block)
        awaited = [edge for edge in self.schedule.edges if edge.consumer == number]
        threads = step.launch.threads if step.begins else self.threads

        def wait() -> None:
            for edge in awaited:
                start = OWN_WORDS + self.starts[edge.producer, edge.semaphores]
                wait_for(edge, place, lane, threads, memory, start, runs)
            barrier()

        if awaited and not step.begins:
            wait()
        if step.checks:
            with when(None if isinstance(block, int) else tirx.EQ(block, 0)):
                for check in step.checks:
                    with repeated(check.grid[0]) as turn:
                        self._compute(check, turn, lane, given)
        self._compute(step.launch, block, lane, given, wait if awaited and step.begins else None, step.changing)
        posted = dict.fromkeys(edge.semaphores for edge in self.schedule.edges if edge.producer == number)
        for groupings in posted:
            post(groupings, place, memory, OWN_WORDS + self.starts[number, groupings])

    def _compute(
        self, launch: CudaLaunch, block: Expr, lane: Expr, given: Mapping[KernelArg, Any],
        wait: Callable[[], None] | None = None, changing: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        threads = launch.threads
        scopes = (
            within(threads, self.threads),
            pooled(launch.shared_bytes),
            faults_from(self.first_fault[id(launch)]),
        )
        with scopes[0], scopes[1], scopes[2], only(lane, threads, self.threads):
            width, height, _ = launch.block
            across = T.bind(lane % width) if height > 1 else lane
            along = T.bind(lane // width) if height > 1 else 0
            thread = Thread((block, 0, 0), (across, along, 0))
            emit_waiting(_emission(launch), [given[arg] for arg in launch.args], thread, wait, changing)


def _emission(launch: CudaLaunch) -> Emission:
    assert launch.emission is not None, "a plan has no tickets for kernels that cannot be emitted again"
    return launch.emission
