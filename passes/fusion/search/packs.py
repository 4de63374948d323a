"""Packing of independent kernels into launches: hill climbing over whole launches."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.fusion.cost.launches import Launch, Launches
from tilestitch.passes.fusion.stages import Kernels
from tilestitch.passes.plan import Group

Neighbours = Mapping[str, Iterable[str]]


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
        self, launches: Iterable[Sequence[str]], launch_of: Callable[[str], Sequence[str]],
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


NEAR = 48
"""Largest distance, in launch order, of kernels that are considered together."""
JOINED_SHARE = 4
"""Once one in this many launches has been joined, most options are of launches that are no more, and are dropped."""
LEAST_GAIN_US = 1e-9
MOST_ROUNDS = 10

Move = tuple[float, list[list[str]], list[Launch]]
"""Cost of launches relative to those that they replace, their kernels by name, and the launches."""


class Packs:
    """Kernels as launches. No launch depends on itself, and the longest chain of launches does not grow."""

    def __init__(
        self, kernels: Kernels, fitting: Callable[[Group], bool], model: LatencyModel, *, forced: bool = False
    ) -> None:
        """Initialise. `fitting`: which kernels may be packed. `forced`: join launches even if that is not faster."""
        self.kernels, self.forced = kernels, forced
        self.fitting = [n for n in kernels.order if n in kernels.groups and fitting(kernels.groups[n])]
        self.place = {name: i for i, name in enumerate(self.fitting)}
        self.launches = Launches(kernels, self.place, model)
        self.home: dict[str, Launch] = {name: self.launches.of([name]) for name in self.fitting}
        self.before = Depths(kernels.order, kernels.producers, kernels.readers)
        self.after = Depths(reversed(kernels.order), kernels.readers, kernels.producers)
        self.steps = max(self.before.of.values(), default=0)
        self._idle: set[str] = set()
        """Kernels for which no move saves anything."""

    def climb(self) -> list[Launch]:
        """Join pairs of launches, the best first; then move kernels between launches while that helps. Returns the
        packs.
        """
        self._join_pairs()
        for _ in range(0 if self.forced else MOST_ROUNDS):
            if not sum(map(self._move, self.fitting)):
                break
        packs = {launch for launch in self.home.values() if len(launch.names) > 1}
        return sorted(packs)

    def _join_pairs(self) -> None:
        """Join the best pair of launches until none saves anything."""
        options = [option for a, b in self._first_pairs() if (option := self._option(a, b)) is not None]
        heapq.heapify(options)
        count, joined = len(self.fitting), 0
        while options:
            _, _, a, b = heapq.heappop(options)
            if not (self._is_live(a) and self._is_live(b)):
                continue
            whole = self.launches.joined(a, b)
            if not self._put([whole]):
                continue
            joined += 1
            if joined * JOINED_SHARE > count:
                options = [option for option in options if self._is_live(option[2]) and self._is_live(option[3])]
                heapq.heapify(options)
                count, joined = count - joined, 0
            pairs = (self._option(*sorted((whole, other))) for other in self._near(whole))
            for option in filter(None, pairs):
                heapq.heappush(options, option)

    # -- pairs ---------------------------------------------------------------------------------------------------

    def _first_pairs(self) -> Iterator[tuple[Launch, Launch]]:
        for number, first in enumerate(self.fitting):
            for second in self.fitting[number + 1 : number + NEAR]:
                yield self.home[first], self.home[second]

    def _near(self, launch: Launch) -> list[Launch]:
        """Return the launches with a kernel near one of `launch`."""
        found = dict.fromkeys(self.home[n] for name in launch.names for n in self._around(self.place[name], NEAR - 1))
        return [other for other in found if other is not launch]

    def _around(self, place: int, after: int) -> list[str]:
        return self.fitting[max(0, place - NEAR + 1) : place + after + 1]

    def _option(self, a: Launch, b: Launch) -> tuple[float, list[str], Launch, Launch] | None:
        """Return the option of joining two launches, smaller is better; None if they cannot be joined, or nothing is
        saved.
        """
        latency_us = self.launches.latency_us(a, b)
        if latency_us is None:
            return None
        gain = self.launches.alone_us(a) + self.launches.alone_us(b) - latency_us
        return (-gain, sorted(a.names + b.names), a, b) if self.forced or gain > LEAST_GAIN_US else None

    def _is_live(self, launch: Launch) -> bool:
        return self.home[launch.names[0]] is launch

    # -- moves ---------------------------------------------------------------------------------------------------

    def _move(self, name: str) -> bool:
        """Make the best move of a kernel: alone, or to another launch."""
        if name in self._idle:
            return False
        options = sorted(self._moves(name), key=lambda option: option[:2])
        if not options:
            self._idle.add(name)
        return any(self._put(new) for _, _, new in options)

    def _moves(self, name: str) -> Iterator[Move]:
        mine, one, place = self.home[name], self.launches.of([name]), self.place[name]
        rest = [self.launches.of([n for n in mine.names if n != name])] if mine is not one else []
        for other in dict.fromkeys(self.home[n] for n in self.fitting[max(0, place - NEAR) : place + NEAR]):
            a, b = (other, one) if other < one else (one, other)
            latency_us = None if other is mine else self.launches.latency_us(a, b)
            if latency_us is None:
                continue
            gain = self._gain_us([mine, other], [*map(self.launches.alone_us, rest), latency_us])
            if gain > LEAST_GAIN_US:
                yield _move_to([*rest, self.launches.joined(a, b)], gain)
        gain = self._gain_us([mine], list(map(self.launches.alone_us, (*rest, one)))) if rest else 0.0
        if gain > LEAST_GAIN_US:
            yield _move_to([*rest, one], gain)

    def _gain_us(self, old: Sequence[Launch], new: Sequence[float]) -> float:
        """Return the microseconds saved by launches of latencies `new` in place of `old`."""
        before = sum(map(self.launches.alone_us, sorted(old, key=lambda launch: sorted(launch.names))))
        return before - sum(new)

    # -- changing ------------------------------------------------------------------------------------------------

    def _put(self, new: Sequence[Launch]) -> bool:
        """Replace launches by `new`, if these can be ordered without a longer chain."""
        before = {name: self.home[name] for launch in new for name in launch.names}
        parted = self._pieces(new, before)
        self._enter(parted)
        self._settle(parted)
        self._enter(new)
        if not self._settle(new):
            self.home.update(before)
            self.before.undo()
            self.after.undo()
            return False
        self.before.keep()
        self.after.keep()
        for launch in new:
            for name in launch.names:
                self._idle.difference_update(self._around(self.place[name], NEAR))
        return True

    def _pieces(self, new: Sequence[Launch], before: dict[str, Launch]) -> list[Launch]:
        """Return the remaining parts of the launches that `new` splits."""
        found = []
        for launch in new:
            by_home: dict[Launch, list[str]] = {}
            for name in launch.names:
                by_home.setdefault(before[name], []).append(name)
            found += [self.launches.of(names) for home, names in by_home.items() if len(names) < len(home.names)]
        return found

    def _enter(self, launches: Iterable[Launch]) -> None:
        for launch in launches:
            self.home.update((name, launch) for name in launch.names)

    def _settle(self, launches: Iterable[Launch]) -> bool:
        names = [launch.names for launch in launches]
        fits = self.before.settle(names, self._names_at, lambda name, depth: depth + self.after.of[name] > self.steps)
        return fits and self.after.settle(names, self._names_at)

    def _names_at(self, name: str) -> Sequence[str]:
        """Return the kernels of the launch of a kernel, or of a host step."""
        return self.home[name].names if name in self.home else (name,)


def _move_to(new: list[Launch], gain: float) -> Move:
    return -gain, [sorted(launch.names) for launch in new], new
