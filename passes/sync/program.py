"""An abstract model of tile synchronisation: tasks that wait for and post to semaphores, and the proof of their
soundness.

Each launch draws its tasks in order, with one or more resident blocks. `why_not` tells why a program might race or
deadlock; one that passes does neither, in whatever order blocks start and run.

A wait is satisfiable if enough posts are certain: from tasks drawn earlier in the same launch, and from launches whose
blocks have certainly begun. By induction over the order, then, no task waits forever, as the first unfinished task
waits only for tasks drawn before it. A need is covered if the wait cannot complete without it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from tilestitch.passes.plan.sync.edges import MOST_POSTS

ORDERS = ("full", "begun")
"""full: a launch starts when another has ended; begun: when all blocks of another have begun, as with a programmatic
edge of a CUDA graph (tied to launch completion).
"""


@dataclass(frozen=True)
class Task:
    """waits: pairs (semaphore, value), until this many posts have arrived; posts: pairs (semaphore, count), at the end.
    needs: numbers of tasks that must have ended before it reads.
    """

    name: str
    waits: tuple[tuple[int, int], ...] = ()
    posts: tuple[tuple[int, int], ...] = ()
    needs: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Program:
    """`launches` list the numbers of their tasks in drawing order. order: (before, after, kind) of launches. words: the
    number of semaphores for which there is memory.
    """

    tasks: tuple[Task, ...]
    launches: tuple[tuple[int, ...], ...]
    order: tuple[tuple[int, int, str], ...] = ()
    words: int = 1 << 30

    @cached_property
    def totals(self) -> Mapping[int, int]:
        """The number of posts that each semaphore receives in a run."""
        found: dict[int, int] = {}
        for task in self.tasks:
            for semaphore, number in task.posts:
                found[semaphore] = found.get(semaphore, 0) + number
        return found

    @cached_property
    def launch_of(self) -> tuple[int, ...]:
        """The launch of each task."""
        of = {task: number for number, tasks in enumerate(self.launches) for task in tasks}
        return tuple(of[number] for number in range(len(self.tasks)))


def why_not(program: Program) -> str | None:
    """Return what may go wrong; None if nothing can."""
    checks = (_why_incomplete, _why_no_memory, _why_out_of_order, _why_stuck, _why_racing)
    return next((reason for check in checks if (reason := check(program)) is not None), None)


def _why_incomplete(program: Program) -> str | None:
    drawn = sorted(task for launch in program.launches for task in launch)
    if drawn == list(range(len(program.tasks))):
        return None
    twice = next((b for a, b in pairwise(drawn) if a == b), None)
    if twice is not None:
        return f"{program.tasks[twice].name} is drawn twice"
    lacking = next(number for number in range(len(program.tasks)) if number not in set(drawn))
    return f"{program.tasks[lacking].name} is never drawn"


def _why_no_memory(program: Program) -> str | None:
    for task in program.tasks:
        for semaphore, number in (*task.waits, *task.posts):
            if not 0 <= semaphore < program.words:
                return f"{task.name} uses semaphore {semaphore} of {program.words}"
            if number < 1:
                return f"{task.name} posts or waits for {number} at semaphore {semaphore}"
    odd = next((s for s, total in program.totals.items() if total >= MOST_POSTS), None)
    return None if odd is None else f"semaphore {odd} gets {program.totals[odd]} posts in a run, {MOST_POSTS} or more"


def _why_out_of_order(program: Program) -> str | None:
    for before, after, kind in program.order:
        if kind not in ORDERS or not 0 <= before < after < len(program.launches):
            return f"launch {after} is ordered {kind!r} after launch {before}"
    return None


def _begun(program: Program) -> list[set[int]]:
    """Return for each launch those of which all blocks have begun, or ended, when it starts."""
    found: list[set[int]] = [set() for _ in program.launches]
    for after in range(len(program.launches)):
        for before, to, _ in program.order:
            if to == after:
                found[after] |= {before, *found[before]}
    return found


def _ended(program: Program) -> list[set[int]]:
    """Return for each launch those that have certainly ended when it starts."""
    found: list[set[int]] = [set() for _ in program.launches]
    for after in range(len(program.launches)):
        for before, to, kind in program.order:
            if to != after:
                continue
            found[after] |= found[before]
            if kind == "full":
                found[after].add(before)
    return found


def _why_stuck(program: Program) -> str | None:
    begun = _begun(program)
    for number, launch in enumerate(program.launches):
        posted: dict[int, int] = {}
        for other in begun[number]:
            _add_posts(program, program.launches[other], posted)
        for task in launch:
            for semaphore, value in program.tasks[task].waits:
                if posted.get(semaphore, 0) < value:
                    return (
                        f"{program.tasks[task].name} waits for {value} posts of semaphore {semaphore}, and only "
                        f"{posted.get(semaphore, 0)} surely come without it"
                    )
            _add_posts(program, (task,), posted)
    return None


def _add_posts(program: Program, tasks: Sequence[int], posted: dict[int, int]) -> None:
    for task in tasks:
        for semaphore, number in program.tasks[task].posts:
            posted[semaphore] = posted.get(semaphore, 0) + number


def _why_racing(program: Program) -> str | None:
    ended = _ended(program)
    known: set[tuple[int, object, frozenset[int]]] = set()
    for number, task in enumerate(program.tasks):
        alike = program.launch_of[number], task.waits, task.needs
        if alike in known:
            continue
        known.add(alike)
        after = ended[program.launch_of[number]]
        surely = {n for n in task.needs if program.launch_of[n] in after or _awaited(program, task, n)}
        for needed in sorted(task.needs - surely):
            if number not in held_by(program, needed, ended):
                return f"{task.name} reads what {program.tasks[needed].name} stores, and does not wait for it"
    return None


def _awaited(program: Program, task: Task, needed: int) -> bool:
    """Return whether some wait of the task cannot complete without the posts of the task that it needs."""
    waits = dict(sorted(task.waits, key=lambda wait: wait[1]))
    return any(
        program.totals[semaphore] - number < waits.get(semaphore, 0)
        for semaphore, number in program.tasks[needed].posts
    )  # fmt: skip


def held_by(program: Program, task: int, ended: Sequence[set[int]]) -> set[int]:
    """Return the tasks that cannot end as long as `task` has not, however many blocks are resident: `task`, and those
    that wait for it directly or indirectly.
    """
    left = set(range(len(program.tasks))) - {task}
    posted: dict[int, int] = {}
    while True:
        waiting = {program.launch_of[number] for number in (*left, task)}
        free = [
            number for number in left
            if not ended[program.launch_of[number]] & waiting
            and all(posted.get(semaphore, 0) >= value for semaphore, value in program.tasks[number].waits)
        ]  # fmt: skip
        if not free:
            return {task, *left}
        left.difference_update(free)
        _add_posts(program, free, posted)
