"""Numbers of launches before and after each kernel, maintained while launches are joined and split."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

Neighbours = Mapping[str, Iterable[str]]
Launch = Sequence[str]
"""The kernels that one launch computes."""


class Depths:
    """Length, in launches, of the longest path to each kernel; equal for all kernels of one launch.

    `before`, `after`: for each kernel, those that it waits for, and those that wait for it. With the two exchanged, and
    the order reversed, it is the length of the longest path from it.
    """

    def __init__(self, order: Iterable[str], before: Neighbours, after: Neighbours) -> None:
        self.before, self.after = before, after
        self.of: dict[str, int] = {}
        for name in order:
            self.of[name] = max((self.of[n] + 1 for n in before[name]), default=0)
        self._undo: list[tuple[str, int]] = []

    def settle(
        self, launches: Iterable[Launch], launch_of: Callable[[str], Launch],
        beyond: Callable[[str, int], bool] = lambda name, depth: False,
    ) -> bool:  # fmt: skip
        """Update the depths after `launches` have changed.

        Returns False at once if one of these depends on itself, or if a kernel's depth is `beyond` the limit.
        """
        work = [(self.of[launch[0]], launch[0], launch) for launch in launches]
        waiting, settled = {first for _, first, _ in work}, set[str]()
        first_ones = set(waiting)
        heapq.heapify(work)
        while work:
            _, first, launch = heapq.heappop(work)
            waiting.discard(first)
            depth = max((self.of[n] + 1 for name in launch for n in self.before[name]), default=0)
            changed = [name for name in launch if self.of[name] != depth]
            if any(beyond(name, depth) for name in changed) or (changed and first in settled):
                return False
            settled.update({first} & first_ones)
            for name in changed:
                self._undo.append((name, self.of[name]))
                self.of[name] = depth
            for reader in (r for name in changed for r in self.after[name]):
                after = launch_of(reader)
                if after[0] not in waiting:
                    waiting.add(after[0])
                    heapq.heappush(work, (self.of[after[0]], after[0], after))
        return True

    def keep(self) -> None:
        """Commit the changes."""
        self._undo.clear()

    def undo(self) -> None:
        """Restore the depths of the last `keep`."""
        for name, depth in reversed(self._undo):
            self.of[name] = depth
        self._undo.clear()
