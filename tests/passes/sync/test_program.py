"""The proof of tile synchronisation in the abstract, against a model checker that looks at every interleaving."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.passes.sync.model_checker import fault, fault_of_queues
from tilestitch.passes.sync.program import Program, Task, why_not

PROGRAMS = 1000


def random_program(seed: int) -> Program:
    """A few tasks of one to three launches, which wait for what they need, mostly; some then have a fault or two."""
    random = np.random.default_rng(seed)
    count, semaphores = int(random.integers(2, 6)), int(random.integers(1, 4))
    posted = [int(random.integers(semaphores)) for _ in range(count)]
    totals = np.bincount(posted, minlength=semaphores)
    needs = [frozenset(np.flatnonzero(random.random(task) < 0.5).tolist()) for task in range(count)]
    tasks = []
    for number in range(count):
        wanted = dict.fromkeys(posted[other] for other in needs[number])
        before = np.bincount(posted[:number], minlength=semaphores)
        waits = tuple((s, int(before[s] if random.random() < 0.8 else totals[s])) for s in wanted)
        tasks.append(Task(f"t{number}", waits, ((posted[number], 1),), needs[number]))
    cuts = sorted(random.choice(count, int(random.integers(0, 3)), replace=True).tolist())
    launches = [tuple(range(a, b)) for a, b in zip([0, *cuts], [*cuts, count], strict=True) if a < b]
    order = [(a, b, str(random.choice(["full", "begun"]))) for b in range(len(launches)) for a in range(b)
             if random.random() < 0.95]  # fmt: skip
    for _ in range(int(random.choice([0, 0, 1, 2]))):
        _spoil(random, tasks, launches)
    return Program(tuple(tasks), tuple(launches), tuple(order))


def _spoil(random: np.random.Generator, tasks: list[Task], launches: list[tuple[int, ...]]) -> None:
    at = int(random.integers(len(tasks)))
    task, kind = tasks[at], int(random.integers(5))
    if kind == 0:
        tasks[at] = replace(task, waits=task.waits[1:])
    elif kind == 1:
        tasks[at] = replace(task, posts=())
    elif kind == 2:
        tasks[at] = replace(task, waits=tuple((s, max(1, value - 1)) for s, value in task.waits))
    elif kind == 3:
        tasks[at] = replace(task, posts=tuple((s, number + 1) for s, number in task.posts))
    else:
        place = int(random.integers(len(launches)))
        launches[place] = tuple(random.permutation(launches[place]).tolist())


def test_the_proof_and_the_model_checker_agree() -> None:
    """What is accepted neither races nor waits for ever in any interleaving, and what is refused does in some."""
    said: dict[tuple[bool, str | None], int] = {}
    for seed in range(PROGRAMS):
        program = random_program(seed)
        accepted, found = why_not(program) is None, fault(program)
        assert accepted == (found is None), (seed, program, why_not(program), found)
        said[accepted, found] = said.get((accepted, found), 0) + 1
    assert min(said[True, None], said[False, "race"], said[False, "deadlock"]) > PROGRAMS // 20, said


def test_what_is_accepted_may_have_any_number_of_queues_whose_blocks_are_resident_together() -> None:
    """Tasks as many apart as there are blocks; with fewer resident, one may wait for the queue of a block that has not
    begun.
    """
    programs = [p for seed in range(PROGRAMS) if len((p := random_program(seed)).launches) == 1 and why_not(p) is None]
    fewer = []
    for program in programs:
        for queues in (1, 2, 3, len(program.tasks)):
            assert fault_of_queues(program, queues, queues) is None, (program, queues)
        fewer.append(fault_of_queues(program, 2, 1))
    assert len(programs) > 100 and set(fewer) == {None, "deadlock"}


# -- single faults -----------------------------------------------------------------------------------------------------

WRITER = Task("writer", posts=((0, 1),))
READER = Task("reader", waits=((0, 1),), needs=frozenset({0}))
SOUND = Program((WRITER, READER), ((0, 1),), words=1)


def apart(*order: tuple[int, int, str]) -> Program:
    return Program((WRITER, READER), ((0,), (1,)), order, words=1)


def test_what_is_sound_is_accepted() -> None:
    for program in (SOUND, apart((0, 1, "begun")), apart((0, 1, "full"))):
        assert why_not(program) is None and fault(program) is None


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (replace(SOUND, tasks=(WRITER, replace(READER, waits=()))), "reader reads what writer stores"),
        (
            replace(SOUND, tasks=(replace(WRITER, posts=()), READER)),
            "reader waits for 1 posts of semaphore 0, and only 0",
        ),
        (replace(SOUND, tasks=(WRITER, replace(READER, waits=((0, 2),)))), "waits for 2 posts of semaphore 0"),
        (replace(SOUND, launches=((1, 0),)), "reader waits for 1 posts"),
        (replace(SOUND, launches=((0,),)), "reader is never drawn"),
        (replace(SOUND, launches=((0, 1, 1),)), "reader is drawn twice"),
        (replace(SOUND, tasks=(replace(WRITER, posts=((1, 1),)), READER)), "writer uses semaphore 1 of 1"),
        (replace(SOUND, tasks=(replace(WRITER, posts=((0, 1 << 31),)), READER)), "2147483648 posts in a run"),
        (replace(SOUND, tasks=(WRITER, replace(READER, waits=((0, 0),)))), "waits for 0"),
        (apart(), "only 0 surely come"),
        (apart((1, 0, "full")), "launch 0 is ordered 'full' after launch 1"),
        (apart((0, 1, "programmatic")), "ordered 'programmatic'"),
        (
            Program((WRITER, WRITER, replace(READER, needs=frozenset({0}))), ((0, 1, 2),), words=1),
            "reader reads what writer stores",
        ),
        (
            Program((WRITER, replace(READER, waits=(), needs=frozenset({0}))), ((0,), (1,)), ((0, 1, "begun"),), 1),
            "reader reads what writer stores",
        ),
    ],
)
def test_a_planted_fault_is_refused(program: Program, said: str) -> None:
    problem = why_not(program)
    assert problem is not None and said in problem


def test_what_is_waited_for_through_others_is_covered() -> None:
    """The last task waits for the second one only, which has waited for the first."""
    second = Task("second", waits=((0, 1),), posts=((1, 1),), needs=frozenset({0}))
    third = Task("third", waits=((1, 1),), needs=frozenset({0, 1}))
    program = Program((WRITER, second, third), ((0, 1, 2),))
    assert why_not(program) is None and fault(program) is None
