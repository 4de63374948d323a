"""Launches that go through the images of a batch a few at a time, as plan data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilestitch.compiler.ir.sizes import Size


@dataclass(frozen=True)
class Run:
    """Native groups that follow each other, and for how many images at a time they are run; 0: for all of them."""

    groups: tuple[str, ...]
    most: Size


@dataclass(frozen=True)
class Slices:
    """What `symbol` counts, and the runs that go through it: they have all native groups of a plan, in their order, and
    each is of one segment.
    """

    symbol: str
    runs: tuple[Run, ...]

    def to_json(self) -> dict[str, Any]:
        return {"symbol": self.symbol, "runs": [[list(run.groups), run.most] for run in self.runs]}

    def spans(self, order: Sequence[str]) -> list[tuple[int, int]]:
        """For each launch the first and the last one that are done for all images when it is; `order`: the groups."""
        place = {name: number for number, name in enumerate(order)}
        spans = [(number, number) for number in range(len(order))]
        for run in self.runs:
            if run.most != 0:
                ends = place[run.groups[0]], place[run.groups[-1]]
                spans[ends[0] : ends[1] + 1] = [ends] * len(run.groups)
        return spans
