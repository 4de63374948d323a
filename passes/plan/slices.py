"""Batch slicing as plan data: launches that process a batch a few images at a time."""

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
    """Consecutive native groups, and for how many images at a time they run; 0: for all of them."""

    groups: tuple[str, ...]
    most: Size


@dataclass(frozen=True)
class Slices:
    """The symbol that counts images, and the runs over slices: they cover all native groups of a plan, in order, each
    within one segment.
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
        """Return for each launch the first and last launch of its run, after which all of them are done for all images;
        `order`: the groups.
        """
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
