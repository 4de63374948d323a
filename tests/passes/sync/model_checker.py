"""A model checker of tiny programs: every state that any interleaving of blocks reaches, whatever blocks are resident.

A block of a launch starts when the launches that it is ordered after allow it, and draws tasks until none are left. A
task begins to read when its waits are over, and posts at its end. A state in which nothing can go on is a deadlock; a
task that begins to read while one that it needs has not ended is a race.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tilestitch.passes.sync.program import Program

Running = tuple[int, bool]
"""A task that a block has, and whether its waits are over."""


@dataclass(frozen=True)
class State:
    """drawn, begun: tasks and blocks of each launch so far. running: of all launches, sorted."""

    drawn: tuple[int, ...]
    begun: tuple[int, ...]
    running: tuple[Running, ...]
    ended: frozenset[int]


class Race(Exception):
    """A task reads what is not there yet."""


def fault(program: Program) -> str | None:
    """`race` or `deadlock` if any number of blocks, with any number resident at a time, comes to one; else None."""
    most = max(2, len(program.tasks))
    for resident in (1, 2, most):
        for blocks in product((1, 2, most), repeat=len(program.launches)):
            found = _Explorer(program, blocks, resident).fault()
            if found is not None:
                return found
    return None


def fault_of_queues(program: Program, queues: int, resident: int) -> str | None:
    """The same of a program of one launch, so many blocks of which have queues of their own: each is a launch of one
    block here, and so many of them are resident at a time.
    """
    (tasks,) = program.launches
    own = tuple(part for first in range(queues) if (part := tasks[first::queues]))
    return _Explorer(Program(program.tasks, own), (1,) * len(own), resident).fault()


@dataclass(frozen=True)
class _Explorer:
    program: Program
    blocks: tuple[int, ...]
    resident: int

    def fault(self) -> str | None:
        none = (0,) * len(self.program.launches)
        stack, seen = [State(none, none, (), frozenset())], set[State]()
        while stack:
            state = stack.pop()
            if state in seen:
                continue
            seen.add(state)
            try:
                further = list(self._further(state))
            except Race:
                return "race"
            if not further and len(state.ended) < len(self.program.tasks):
                return "deadlock"
            stack += further
        return None

    def _further(self, state: State) -> Iterator[State]:
        for launch in range(len(self.program.launches)):
            if self._may_start(state, launch):
                begun = _with(state.begun, launch)
                yield self._drawing(State(state.drawn, begun, state.running, state.ended), launch)
        for place, (task, reading) in enumerate(state.running):
            rest = state.running[:place] + state.running[place + 1 :]
            if reading:
                launch = self.program.launch_of[task]
                yield self._drawing(State(state.drawn, state.begun, rest, state.ended | {task}), launch)
            elif self._over(state, task):
                if not self.program.tasks[task].needs <= state.ended:
                    raise Race
                yield State(state.drawn, state.begun, tuple(sorted((*rest, (task, True)))), state.ended)

    def _may_start(self, state: State, launch: int) -> bool:
        if state.begun[launch] == self.blocks[launch] or len(state.running) == self.resident:
            return False
        for before, after, kind in self.program.order:
            if after != launch:
                continue
            if state.begun[before] < self.blocks[before]:
                return False
            if kind == "full" and not state.ended.issuperset(self.program.launches[before]):
                return False
        return True

    def _drawing(self, state: State, launch: int) -> State:
        """A block draws its next task, or ends if none are left."""
        tasks, at = self.program.launches[launch], state.drawn[launch]
        if at == len(tasks):
            return state
        running = tuple(sorted((*state.running, (tasks[at], False))))
        return State(_with(state.drawn, launch), state.begun, running, state.ended)

    def _over(self, state: State, task: int) -> bool:
        posted: dict[int, int] = {}
        for other in state.ended:
            for semaphore, number in self.program.tasks[other].posts:
                posted[semaphore] = posted.get(semaphore, 0) + number
        return all(posted.get(semaphore, 0) >= value for semaphore, value in self.program.tasks[task].waits)


def _with(counts: tuple[int, ...], place: int) -> tuple[int, ...]:
    return (*counts[:place], counts[place] + 1, *counts[place + 1 :])
