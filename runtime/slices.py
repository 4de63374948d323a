"""Launches that go through the images of a batch a few at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import ArtifactSchemaError
from .jsonfields import Fields, integer, size
from .sizes import Size

__all__ = ["Slices"]


@dataclass(frozen=True)
class Slices:
    """How the launches of a step go through a dimension that the symbol counts, the images of a batch mostly: `runs`
    of launches that follow each other, each with their number, and for how many images at a time they are run, so that
    what is computed for these is read again while it is in the cache. 0: for all images.

    Of values that the symbol has a part in, one image lies after the other, each as large as the next.
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
