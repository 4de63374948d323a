"""Launches that overlap, whose blocks wait for the tiles of others that they read.

A launch begins when all blocks of the launches that it waits for have begun: each of these signals first of all
(`griddepcontrol.launch_dependents`), and the edge to the launch is programmatic. So a block only waits for blocks that
are resident or finished, however few the device holds, and all launches terminate.

The launches of a group share memory for semaphores (see `semaphores`), and for each launch two words: the numbers of
its finished blocks, and of finished runs. Its last block counts the run: all others have read the number of runs by
then. It then waits until the preceding launches have ended (`griddepcontrol.wait`), so that whatever waits for this
launch waits for those, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.cuda.abi import (
    BLOCKS_PER_SM,
    CountersArg,
    CudaLaunch,
    Emission,
    KernelArg,
    Parameter,
    Thread,
    barrier,
    kernel_function,
)
from tilestitch.codegen.cuda.before import Walk, emit_waiting, emit_walking, show
from tilestitch.codegen.cuda.pieces import named
from tilestitch.codegen.cuda.semaphores import located, post, wait_for
from tilestitch.codegen.cuda.stitched import apart, private
from tilestitch.codegen.launch import TemporaryArg, TensorMapArg, ValueArg
from tilestitch.passes.plan.launches.cuda.emitted import COUNTER_BYTES
from tilestitch.passes.plan.launches.cuda.stitched import PART_WORDS, overlaps_of, words_of
from tilestitch.passes.plan.schedules import LaunchesSchedule
from tilestitch.passes.plan.sync.edges import semaphores_at
from tilestitch.passes.plan.sync.grid import Grid


@dataclass(frozen=True)
class TiedPart:
    """A part as a launch of its own, its tiles, and the values that it stores. `walks`: a block computes several tiles
    rather than one.
    """

    launch: CudaLaunch
    grid: Grid
    stored: frozenset[str]
    walks: bool

    @property
    def copied(self) -> frozenset[str]:
        """The values that it reads by tensor copies."""
        return frozenset(_value(arg.over) for arg in self.launch.args if isinstance(arg, TensorMapArg))


def lower_tied(
    parts: Sequence[TiedPart], schedule: LaunchesSchedule, inner: Mapping[str, int]
) -> tuple[CudaLaunch, ...]:
    """Return the launches of parts, each after those that it waits for. `inner`: values internal to the parts, and
    their bytes.
    """
    words = words_of(schedule, len(parts))
    memory = Parameter(CountersArg(COUNTER_BYTES * words, "tied", shared=True), "uint32", words)
    changing = frozenset().union(*(part.stored for part in parts))
    copied = frozenset().union(*(part.copied for part in parts))
    launches = []
    for number, part in enumerate(parts):
        plain = private(apart(part.launch, str(number)), inner, set(inner) - part.stored)
        shows = bool(copied & part.stored)
        tied = _Tied(number, plain, part.grid, schedule, len(parts), part.walks, shows)
        launches.append(tied.launch(memory, changing - part.stored))
    return tuple(launches)


@dataclass(frozen=True)
class _Tied:
    """The launch of part `number`. `shows`: others read what it stores by tensor copies."""

    number: int
    plain: CudaLaunch
    grid: Grid
    schedule: LaunchesSchedule
    parts: int
    walks: bool
    shows: bool

    def launch(self, memory: Parameter, changing: frozenset[str]) -> CudaLaunch:
        pairs = zip(self.plain.args, self.emission.parameters, strict=True)
        parameters = [*(replace(parameter, arg=arg) for arg, parameter in pairs), memory]
        others = [arg for arg in self.plain.args if _value(arg) in changing]

        def body(buffers: list[Any], thread: Thread) -> None:
            self._body(buffers, thread, changing)

        bound = self.plain.func.attrs.get(BLOCKS_PER_SM)
        each = None if bound is None else int(bound)
        func = kernel_function(parameters, self.plain.grid, self.plain.block, body, each, changing=others)
        args, overlaps = (*self.plain.args, memory.arg), overlaps_of(self.schedule, self.number)
        return replace(self.plain, func=func, args=args, overlaps=overlaps, emission=None)

    @property
    def emission(self) -> Emission:
        assert self.plain.emission is not None, "a plan ties no kernels that cannot be emitted again"
        return self.plain.emission

    def _body(self, buffers: list[Any], thread: Thread, changing: frozenset[str]) -> None:
        *given, memory = buffers
        edges, starts = self.schedule.edges, semaphores_at(self.schedule.edges)[0]
        awaited = [edge for edge in edges if edge.consumer == self.number]
        posted = dict.fromkeys(edge.semaphores for edge in edges if edge.producer == self.number)
        own, first = T.address_of(memory[PART_WORDS * self.number]), PART_WORDS * self.parts
        if posted:
            T.evaluate(T.call_extern("void", "ts_tied_begin"))
        runs = T.bind(T.call_extern("uint32", "ts_tied_runs", own)) if awaited else None

        def look(place: Sequence[Expr], lane: Expr, threads: int) -> None:
            for edge in awaited:
                wait_for(edge, place, lane, threads, memory, first + starts[edge.producer, edge.semaphores], runs)

        def posts(place: Sequence[Expr], *, alone: bool) -> None:
            for groupings in posted:
                post(groupings, place, memory, first + starts[self.number, groupings], alone=alone)

        if self.walks:
            say = partial(posts, alone=True) if posted else None
            emit_walking(self.emission, given, thread, Walk(look if awaited else None, say, self.shows, changing))
        else:
            place = located(self.grid, thread.block[0])

            def wait() -> None:
                width, height, _ = self.plain.block
                lane = named(thread.thread[1] * width + thread.thread[0]) if height > 1 else thread.thread[0]
                look(place, lane, self.plain.threads)
                barrier()

            emit_waiting(self.emission, given, thread, wait if awaited else None, changing)
            if self.shows:
                show()
            posts(place, alone=False)
        if awaited:
            T.evaluate(T.call_extern("void", "ts_tied_end", own))


def _value(arg: KernelArg) -> str:
    """Return the value of an argument; "" for none."""
    match arg:
        case ValueArg(value):
            return value
        case TemporaryArg(name):
            return name
    return ""
