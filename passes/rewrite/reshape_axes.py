"""Arithmetic of reshapes: the correspondence of axes, and how reshapes commute with permutations."""

from collections.abc import Sequence

from .driver import elements


def axis_groups(source: Sequence[int], target: Sequence[int]) -> list[tuple[range, range]] | None:
    """Return the finest pairs of neighbouring source axes and target axes with equal numbers of elements, in order.

    None for shapes without elements, where the pairs would not be unique, and where none are certain. Axes of size 1
    belong to the preceding group.
    """
    if elements(source) != elements(target) or elements(source) == 0:
        return None
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        first_i, first_j = i, j
        a, b = 1, 1
        if i < len(source):
            a, i = source[i], i + 1
        if j < len(target):
            b, j = target[j], j + 1
        while a != b:
            if a < b and i < len(source):
                a, i = a * source[i], i + 1
            elif j < len(target):
                b, j = b * target[j], j + 1
            else:  # a size of 0 or 1 counts as 1 when they are compared
                return None
        while i < len(source) and source[i] == 1 and not (j < len(target) and target[j] == 1):
            i += 1
        while j < len(target) and target[j] == 1 and not (i < len(source) and source[i] == 1):
            j += 1
        groups.append((range(first_i, i), range(first_j, j)))
    return groups


def permuted_reshape(
    shape: Sequence[int], perm: Sequence[int], target: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return `(shape2, perm2)` with reshape(transpose(x, perm), target) = transpose(reshape(x, shape2), perm2), x of
    `shape`.

    None if the reshape merges axes that are not adjacent, in the same order, in x.
    """
    groups = axis_groups([shape[p] for p in perm], target)
    if groups is None:
        return None
    blocks: list[tuple[int, range]] = []  # start of each run of the group's axes in x, and its target axes
    for sources, targets in groups:
        origin = [perm[i] for i in sources]
        if origin != list(range(origin[0], origin[0] + len(origin))) if origin else False:
            return None
        blocks.append((origin[0] if origin else len(shape), targets))
    order = sorted(range(len(blocks)), key=lambda b: (blocks[b][0], b))
    axes = [t for b in order for t in blocks[b][1]]  # target axes in the order of x
    shape2 = tuple(target[t] for t in axes)
    perm2 = tuple(axes.index(t) for t in range(len(target)))
    return shape2, perm2
