"""Partitioning of a grid of register tiles into tasks, by the estimated completion time of the last thread."""

from collections.abc import Callable

DRAW_CYCLES = 600.0
"""Cycles to draw a task and enter the kernel."""

HAND_OVER_CYCLES = 5000.0
"""Cycles until other threads take part: two microseconds, between polling and sleeping threads."""

UNEVENNESS = 0.2
"""Fraction of a task by which the slowest thread is expected to finish later."""

MAX_PARTS = 96

SHAPES = 1024
"""Number of shapes whose schedules are cached: a model has few distinct layers, and candidate fusions share shapes."""


def makespan(tasks: float, task_cycles: float, threads: int) -> float:
    """Return the cycles until all tasks are done, when each thread draws the next as soon as it is free. Smaller tasks
    count as less than one.
    """
    cost = task_cycles + DRAW_CYCLES
    if threads == 1 or tasks <= 1:
        return tasks * cost
    return -(-tasks // threads) * cost + UNEVENNESS * cost + HAND_OVER_CYCLES


def unevenness(tasks: int, threads: int) -> float:
    """Return the expected time of the slowest thread relative to an even distribution of equal tasks: at most 1 +
    UNEVENNESS, with one task per thread.
    """
    if threads == 1 or tasks <= 1:
        return 1.0
    return 1.0 + UNEVENNESS / -(-tasks // threads)


def block_sizes(extent: int) -> list[int]:
    """Return candidate block sizes, largest first: those that split `extent` as evenly as possible, and powers of two
    below.
    """
    even = {-(-extent // parts) for parts in range(1, min(extent, MAX_PARTS) + 1)}
    return sorted(even | {1 << bit for bit in range(min(even, default=1).bit_length() - 1)}, reverse=True)


def choose_blocks(
    rows: int, columns: int, repeats: int, threads: int, cycles: Callable[[int, int], float | None]
) -> tuple[int, int]:
    """Return the rows and columns per task in a grid of `rows` x `columns` tiles that occurs `repeats` times.

    `cycles(block rows, block columns)` is the cost of one task, None where the block is not allowed.
    """
    best = cheapest_blocks(rows, columns, repeats, threads, cycles)
    return (1, 1) if best is None else best[1:]


def cheapest_blocks(
    rows: int, columns: int, repeats: int, threads: int, cycles: Callable[[int, int], float | None]
) -> tuple[float, int, int] | None:
    """Return the cycles until all tasks are done, and the rows and columns per task; None if no block is allowed."""
    best: tuple[float, int, int] | None = None
    for height in block_sizes(rows):
        for width in block_sizes(columns):
            cost = cycles(height, width)
            if cost is None:
                continue
            total = repeats * _one_after_the_other(rows, columns, height, width, cycles)
            tasks = round(total / (cost + DRAW_CYCLES), 6)  # equal ones give a whole number
            candidate = (makespan(tasks, cost, threads), -height, -width)
            if best is None or candidate < best:
                best = candidate
    return None if best is None else (best[0], -best[1], -best[2])


def _one_after_the_other(
    rows: int, columns: int, height: int, width: int, cycles: Callable[[int, int], float | None]
) -> float:
    """Return the cycles of all tasks of a grid in one thread; the last ones of a row or column may be smaller."""
    total = 0.0
    for tall, below in ((height, rows // height), (rows % height, 1)):
        for wide, beside in ((width, columns // width), (columns % width, 1)):
            if tall and wide:
                total += below * beside * ((cycles(tall, wide) or 0.0) + DRAW_CYCLES)
    return total
