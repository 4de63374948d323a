"""Launches that go through the images of a batch a few at a time, as plan data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilestitch.compiler.ir.sizes import Size
from tilestitch.passes.errors import PlanError
from tilestitch.runtime.jsonfields import Fields, sequence, string

from .open_sizes import open_size


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

    @staticmethod
    def from_json(data: Any, where: str) -> Slices:
        fields = Fields(data, where)
        slices = Slices(fields.string("symbol"), fields.sequence("runs", _run_from_json))
        fields.done()
        return slices

    def spans(self, order: Sequence[str]) -> list[tuple[int, int]]:
        """For each launch the first and the last one that are done for all images when it is; `order`: the groups."""
        place = {name: number for number, name in enumerate(order)}
        spans = [(number, number) for number in range(len(order))]
        for run in self.runs:
            if run.most != 0:
                ends = place[run.groups[0]], place[run.groups[-1]]
                spans[ends[0] : ends[1] + 1] = [ends] * len(run.groups)
        return spans


def _run_from_json(data: Any, where: str) -> Run:
    if not isinstance(data, list) or len(data) != 2:
        raise PlanError(f"{where} is no pair of names of groups and how many images they are run for")
    groups = sequence(data[0], f"{where}[0]", string)
    if not groups:
        raise PlanError(f"{where} has no groups")
    return Run(groups, open_size(data[1], f"{where}[1]"))
