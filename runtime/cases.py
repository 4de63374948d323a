"""Launches with a kernel for each region of a range of sizes, and the choice between them at run time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

from .errors import ArtifactSchemaError
from .jsonfields import Fields, integer
from .sizes import Size

MOST_CASES = 16
"""Limit for one launch, not counting its own kernel."""

L = TypeVar("L")


@dataclass(frozen=True)
class Cases(Generic[L]):
    """Alternatives to a launch: alternative i is run where `size`, an expression over the program's symbols, is at
    least `starts[i]` and less than the next start. Below the first start the launch itself is run.

    `launches` have the arguments of the launch, and no cases.
    """

    size: Size
    starts: tuple[int, ...]
    launches: tuple[L, ...]

    def at(self, launch: L, of: Callable[[Size], int]) -> L:
        """Return the launch for the sizes that `of` gives: `launch`, whose cases these are, or one of the
        alternatives.
        """
        number = bisect_right(self.starts, of(self.size))
        return self.launches[number - 1] if number else launch

    def to_json(self, kernel: Callable[[L], Mapping[str, Any]]) -> dict[str, Any]:
        """Return the cases as JSON data. `kernel` gives a launch as JSON data without what all have in common."""
        kernels = [dict(kernel(launch)) for launch in self.launches]
        return {"size": self.size, "from": list(self.starts), "kernels": kernels}


def cases_from_json(data: Any, where: str, kernel: Callable[[Fields], L]) -> Cases[L]:
    """Return the cases of JSON data, the inverse of `Cases.to_json`. Raises `ArtifactSchemaError`, also where starts do
    not ascend.
    """
    fields = Fields(data, where)

    def launch(data: Any, where: str) -> L:
        own = Fields(data, where)
        found = kernel(own)
        own.done()
        return found

    cases = Cases(
        fields.size("size"),
        fields.sequence("from", lambda start, at: integer(start, at, 1)),
        fields.sequence("kernels", launch),
    )
    fields.done()
    starts = cases.starts
    if not 1 <= len(starts) <= MOST_CASES or len(starts) != len(cases.launches):
        raise ArtifactSchemaError(
            f"{where} has {len(starts)} starts and {len(cases.launches)} kernels; as many of both, from 1 to "
            f"{MOST_CASES}"
        )
    if any(one >= other for one, other in pairwise(starts)):
        raise ArtifactSchemaError(f"{where} has the starts {list(starts)}, which do not ascend")
    return cases
