"""Dimensions that are joined at typical sizes, as they are at all sizes."""

from __future__ import annotations

from collections.abc import Sequence

from tilestitch.compiler.ir.sizes import Size, is_open


def joined(extents: Sequence[int], typical: Sequence[int], shape: Sequence[Size]) -> tuple[Size, ...] | None:
    """Products of runs of `shape`, such that those of `typical` are `extents`; None if there are no such runs."""
    pairs = [(a, b) for a, b in zip(typical, shape, strict=True) if a != 1 or is_open(b)]
    result: list[Size] = []
    for extent in extents:
        before: int = 1
        after: Size = 1
        while before != extent and pairs:
            one, other = pairs.pop(0)
            before, after = before * one, after * other
        if before != extent:
            return None
        result.append(after)
    return None if pairs else tuple(result)
