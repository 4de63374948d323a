"""When a search ends: after so much work, the same on every machine, or after some time, if that is asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import inf

from tilestitch.passes.fusion.search.space import Space

PATTERNS = 3
"""As much work as a climb is, all patterns of a graph, and climbs from these, are so many times; roughly."""


@dataclass(frozen=True)
class Budget:
    """work: that may be done in `space`. ends_s: of `time.monotonic`; what a search finds that time ends differs from
    run to run.
    """

    space: Space
    work: float = inf
    ends_s: float = inf

    @staticmethod
    def of(space: Space, work: int | None, seconds: float) -> Budget:
        """work: None for as much as it takes."""
        return Budget(space, inf if work is None else work, time.monotonic() + seconds)

    @property
    def is_spent(self) -> bool:
        return self.space.work >= self.work or self.is_late

    @property
    def is_ample(self) -> bool:
        """Whether it would do for `PATTERNS` times as much work as was done so far."""
        return self.work - self.space.work >= PATTERNS * self.space.work and not self.is_late

    @property
    def is_late(self) -> bool:
        return self.ends_s < inf and time.monotonic() > self.ends_s
