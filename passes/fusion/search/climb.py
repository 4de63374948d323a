"""Hill climbing over whole plans by the full estimate, from the plans of the beam search."""

from collections.abc import Iterator, Sequence
from itertools import combinations

from tilestitch.passes.fusion.bitsets import bits
from tilestitch.passes.fusion.search.cover import LEAST_GAIN, Cover, Move, placing
from tilestitch.passes.fusion.search.space import Budget

MOST_ROUNDS = 20
MOST_JOINED = 6
"""Most consecutive joins of a kernel that may each make the plan slower."""


def climb(cover: Cover, patterns: Sequence[int], budget: Budget, *, joining: bool = False) -> Cover:
    """Improve a plan until no move of an atom, and none of `patterns` as a kernel, makes anything faster.

    `joining`: also try joining several kernels in a row, which takes longer. When `budget` is spent the plan stays as
    it is then.
    """
    open_ = cover.space.native
    for _ in range(MOST_ROUNDS):
        cover.touched = 0
        for atom in bits(open_):
            if not budget.is_spent:
                _improve(cover, atom, budget)
        for mask in patterns:
            if not budget.is_spent and mask & open_:
                cover.change(placing(cover, mask))
        for part in sorted(p for p, mask in cover.kernels.items() if mask & open_ and joining):
            if part in cover.kernels and not budget.is_spent:
                cover = _joined_on(cover, part) or cover
        open_ = cover.touched | cover.space.neighbours(cover.touched)
        if not open_:
            break
    return cover


def _joined_on(cover: Cover, part: int) -> Cover | None:
    """Return the fastest plan encountered while a kernel joins its neighbours, the least bad one first, even if that is
    slower.
    """
    trial, best = cover, None
    change_us = best_us = 0.0
    for _ in range(MOST_JOINED):
        options = [(other, trial.change_us(Move((part, other), (part | other,)))) for other in trial.neighbours(part)]
        possible = sorted((us, other) for other, us in options if us is not None)
        if not possible:
            break
        if trial is cover:  # most kernels have no neighbour that they can join
            trial = cover.copy()
        us, other = possible[0]
        trial.change(Move((part, other), (part | other,)), forced=True)
        part = trial.home[next(bits((part | other) & trial.stored))]
        change_us += us
        if change_us < best_us - LEAST_GAIN * cover.space.latency_us(trial.kernels[part], part):
            best, best_us = trial.copy(), change_us
    return best


def _improve(cover: Cover, atom: int, budget: Budget) -> None:
    """Make the first move of an atom that helps, until none does, or `budget` is spent."""
    tried: set[Move] = set()
    while not budget.is_spent and _make_move(cover, atom, budget, tried):
        pass


def _make_move(cover: Cover, atom: int, budget: Budget, tried: set[Move]) -> bool:
    """Make the first move of an atom that is not among those tried and helps; return whether there is one."""
    for move in moves(cover, atom):
        if budget.is_spent:
            return False
        if move not in tried:
            tried.add(move)
            if cover.change(move):
                return True
    return False


def moves(cover: Cover, atom: int) -> Iterator[Move]:
    """Yield the moves of an atom and of the kernels that compute it."""
    if cover.stored >> atom & 1:
        yield from _moves_of_stored(cover, atom)
    else:
        yield from _moves_of_inner(cover, atom)


def _moves_of_stored(cover: Cover, atom: int) -> Iterator[Move]:
    mine, one = cover.home[atom], 1 << atom
    rest, inner = mine & ~one, _inner(cover, atom)
    for other in cover.neighbours(mine):
        yield Move((mine, other), (mine | other,))
        yield Move((mine, other), ((mine | other) & ~one,))
    for other in cover.beside(atom):
        yield Move((mine, other), (rest | inner, other | one))
        if inner and rest:
            yield Move((mine, other), (rest, other | one))
    if rest:
        yield Move((mine,), (rest, one))
        yield Move((mine,), (rest | inner, one))
    yield Move((mine,), (rest,))
    if cover.space.results & one:  # it is stored in any case
        return
    readers = cover.readers(atom)
    # Only cheap atoms are computed by several kernels: the remaining readers would compute this one, too.
    if len(readers) == 2 or cover.space.copyable & one:
        for first, second in combinations(readers, 2):
            yield Move((mine, first, second), (rest, first | second))


def _moves_of_inner(cover: Cover, atom: int) -> Iterator[Move]:
    one, inner = 1 << atom, _inner(cover, atom)
    yield Move((), (one,))
    for mine in sorted(cover.computing[atom]):
        yield Move((mine,), (mine | one,))
        yield Move((mine,), (mine | inner, one))
        for other in cover.beside(atom):
            if other != mine:
                yield Move((mine, other), (mine | inner, other | one))
    for other in cover.beside(atom):
        yield Move((other,), (other | one,))


def _inner(cover: Cover, atom: int) -> int:
    """Return the operands of an atom that are not stored."""
    return cover.space.before[atom] & ~cover.stored
