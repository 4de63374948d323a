"""Budget of a search: an amount of work, the same on every machine, or a time, if requested."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import inf

from tilestitch.passes.fusion.search.space import Space

PATTERNS = 3
"""Approximate ratio of the work for all patterns of a graph, and climbs from these, to that of one climb."""


@dataclass(frozen=True)
class Budget:
    """`work`: limit for `space`. `ends_s`: deadline by `time.monotonic`; a search ended by time is not reproducible."""

    space: Space
    work: float = inf
    ends_s: float = inf

    @staticmethod
    def of(space: Space, work: int | None, seconds: float) -> Budget:
        """Return a budget. `work`: None for no limit."""
        return Budget(space, inf if work is None else work, time.monotonic() + seconds)

    @property
    def is_spent(self) -> bool:
        return self.space.work >= self.work or self.is_late

    @property
    def is_ample(self) -> bool:
        """Whether it suffices for `PATTERNS` times the work done so far."""
        return self.work - self.space.work >= PATTERNS * self.space.work and not self.is_late

    @property
    def is_late(self) -> bool:
        return self.ends_s < inf and time.monotonic() > self.ends_s
