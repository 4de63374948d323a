"""Launches that process a few images of a batch at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import ArtifactSchemaError
from .jsonfields import Fields, integer, size
from .sizes import Size


@dataclass(frozen=True)
class Slices:
    """How the launches of a step iterate over a dimension whose size is the symbol, mostly a batch: `runs` of
    successive launches, each with their number and the images per iteration, so that intermediate results are read
    again while they are in the cache. 0: all images at once.

    Values that depend on the symbol have their images one after the other, all of the same size.
    """

    symbol: str
    runs: tuple[tuple[int, Size], ...]

    def to_json(self) -> dict[str, Any]:
        return {"symbol": self.symbol, "runs": [list(run) for run in self.runs]}

    @staticmethod
    def from_json(data: Any, where: str) -> Slices:
        fields = Fields(data, where)
        slices = Slices(fields.string("symbol"), fields.sequence("runs", _run_from_json))
        fields.done()
        return slices


def _run_from_json(data: Any, where: str) -> tuple[int, Size]:
    if not isinstance(data, list) or len(data) != 2:
        raise ArtifactSchemaError(f"{where} is no pair of a number of launches and how many images they are for")
    return integer(data[0], where, 1), size(data[1], where)
