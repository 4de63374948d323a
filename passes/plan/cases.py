"""A decision table: schedules of a group for intervals of sizes, one of which a run selects.

The cases of a group are consecutive intervals of one expression over the graph's symbols, such as the rows of a GEMM.
The schedules and the crossover points are chosen at planning time; a run only compares the expression's value with
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tilestitch.compiler.ir.sizes import Size, bounds_of, is_open
from tilestitch.passes.errors import PlanError
from tilestitch.runtime.cases import MOST_CASES
from tilestitch.runtime.jsonfields import Fields

from .open_sizes import open_size
from .schedules import Schedule, schedule_from_json, schedule_to_json


@dataclass(frozen=True)
class Predicted:
    """Predicted times for `sizes` of the graph's symbols, at which the table's expression is `value`.

    alone_us: of the one schedule that the group would have for all sizes.
    """

    value: int
    sizes: tuple[tuple[str, int], ...]
    us: float
    alone_us: float

    def to_json(self) -> list[Any]:
        return [self.value, dict(self.sizes), self.us, self.alone_us]

    @staticmethod
    def from_json(data: Any, where: str) -> Predicted:
        if not (isinstance(data, list) and len(data) == 4 and type(data[0]) is int and isinstance(data[1], Mapping)):
            raise PlanError(f"{where} is not [value, sizes, us, alone_us]; write the plan again")
        if not all(type(us) in (int, float) for us in data[2:]) or not all(type(n) is int for n in data[1].values()):
            raise PlanError(f"{where} has a size or time that is no number; write the plan again")
        return Predicted(data[0], tuple(sorted(data[1].items())), float(data[2]), float(data[3]))


@dataclass(frozen=True)
class Case:
    """The schedule for values from `low` up to, but excluding, `high` (None: unbounded). `predicted`: the predictions
    it was chosen by; for information only.
    """

    low: int
    high: int | None
    schedule: Schedule
    predicted: tuple[Predicted, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "low": self.low, "high": self.high, "schedule": schedule_to_json(self.schedule),
            "predicted": [each.to_json() for each in self.predicted],
        }  # fmt: skip

    @staticmethod
    def from_json(data: Any, where: str) -> Case:
        fields = Fields(data, where)
        high = fields.take("high")
        if high is not None and (type(high) is not int or high < 1):
            raise PlanError(f"{where}.high is {high!r}, neither a size nor null; write the plan again")
        case = Case(
            fields.integer("low"), high, schedule_from_json(fields.take("schedule"), f"{where}.schedule"),
            fields.sequence("predicted", Predicted.from_json),
        )  # fmt: skip
        fields.done()
        return case


@dataclass(frozen=True)
class Cases:
    """`size` is the expression whose value selects the case."""

    size: Size
    cases: tuple[Case, ...]

    @property
    def starts(self) -> tuple[int, ...]:
        """The values at which the second case and each later one begin."""
        return tuple(case.low for case in self.cases[1:])

    def at(self, value: int) -> Case:
        """Return the case for a value of the expression. Raises PlanError if there is none."""
        for case in self.cases:
            if case.low <= value and (case.high is None or value < case.high):
                return case
        raise PlanError(f"no case is for {self.size} = {value}; write the plan again")

    def why_not(self) -> str | None:
        """Return what is wrong with the table (gaps, overlaps, unreachable cases); None if nothing is."""
        if not is_open(self.size):
            return f"its cases depend on {self.size}, which is no open size"
        if not 2 <= len(self.cases) <= MOST_CASES + 1:
            return f"it has {len(self.cases)} cases; there may be 2 to {MOST_CASES + 1}"
        if self.cases[0].low or self.cases[-1].high is not None:
            return "its cases do not begin at 0, or the last one has an end"
        low, high = bounds_of(self.size)
        for one, other in pairwise(self.cases):
            if one.high != other.low:
                return f"a case ends at {one.high} and the next begins at {other.low}; they leave a gap, or overlap"
            if not low < other.low <= high or other.low <= one.low:
                return f"{self.size} is {low} to {high}, so that no size tells the cases from {other.low} on apart"
            if one.schedule == other.schedule:
                return f"the cases before and after {other.low} have one schedule"
        return None

    def to_json(self) -> dict[str, Any]:
        return {"size": self.size, "cases": [case.to_json() for case in self.cases]}

    @staticmethod
    def from_json(data: Any, where: str) -> Cases:
        fields = Fields(data, where)
        size = open_size(fields.take("size"), f"{where}.size")
        cases = Cases(size, fields.sequence("cases", Case.from_json))
        fields.done()
        return cases
