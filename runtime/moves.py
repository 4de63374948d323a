"""Iterations of native code: what moves from one to the next, and what can be repeated in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .launches import RecordTime


@dataclass(frozen=True)
class Move:
    """Address of value `number` in the second iteration: `shift_bytes` after that of `source` in the first. After that
    it moves by `stride_bytes` each time, or by `toggle`, the exclusive or of two alternating addresses.
    """

    number: int
    source: int
    shift_bytes: int
    stride_bytes: int = 0
    toggle: int = 0


class Repeated(Protocol):
    """Many iterations of a segment in one native call, prepared for one way in which addresses move."""

    def hold(self, values: list[Any]) -> None:
        """Fix the addresses of those of these values that are not None: they stay there in all runs from now on."""

    def run(self, values: list[Any], most: int, record: RecordTime | None) -> int:
        """Execute up to `most` iterations on the program's current values, or until the condition is false after one.
        Returns their number.
        """


@runtime_checkable
class Repeatable(Protocol):
    """A segment of which one native call can execute many iterations."""

    def repeated(self, moves: Sequence[Move], condition: int | None, count: np.ndarray | None) -> Repeated:
        """Return the iterations. `condition`: the number of the value that ends them when it is false. `count`: an
        int64 outside the program's values that is incremented in each iteration.
        """
