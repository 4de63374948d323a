"""Data of `ts_resize` (`codegen/cpu/resize.c`): how sizes of a program follow from words that kernels store, what is
required of them, and which words of launches change with them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from tilestitch.runtime.buffers import address_of
from tilestitch.runtime.required import AT_MOST, rules_of
from tilestitch.runtime.size_table import SizeTable
from tilestitch.runtime.sizes import Size
from tilestitch.runtime.sizing import Sizing

_EQUAL, _ROOM = 3, 4  # after the kinds of requirements


@dataclass(frozen=True)
class Word:
    """An element of an int64 array, which kernels or `ts_resize` store."""

    array: np.ndarray
    index: int

    @property
    def address(self) -> int:
        return address_of(self.array) + 8 * self.index

    def __int__(self) -> int:
        return int(self.array[self.index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Word) and self.address == other.address


class Resizing:
    """The sizes of one program in a table of launches. `sources`: where each of its symbols is stored. `extra`: sizes
    that the program itself does not have. `failed`: a word that is set where something required does not hold.
    """

    def __init__(self, sizing: Sizing, sources: Mapping[str, Word], extra: Sequence[Size], failed: np.ndarray) -> None:
        symbols = sizing.program.symbols
        names = [symbol.name for symbol in symbols]
        self.table = table = SizeTable(names, [*sizing.sizes, *extra]) if extra else sizing.table
        self._operations = np.array(table.operations, np.int64).reshape(-1, 3)
        count = len(table.numbers)
        self.values = np.zeros(count + len(symbols) + len(self._operations), np.int64)
        self.values[:count] = table.numbers
        self.known = np.zeros(max(1, len(symbols)), np.int64)
        self._words = [sources[symbol.name] for symbol in symbols]  # keeps their arrays
        rows = [(word.address, symbol.low, symbol.high) for word, symbol in zip(self._words, symbols)]
        self._symbols = np.array(rows, np.int64).reshape(-1, 3)
        self._rules = [*rules_of(sizing.requirements, table), *self._checks(sizing)]
        self._tasks: list[tuple[int, int, int, int]] = []
        self._patches: list[tuple[int, int, int, int]] = []
        self.rooms: dict[Any, tuple[int, int]] = {}
        self._failed = failed
        self._kept: list[Any] = []

    def word(self, size: Size) -> Word:
        """Return where a size is stored."""
        return Word(self.values, self.table.place(size))

    def equal(self, one: Word, other: Word) -> None:
        """Require two words to be equal."""
        self._kept += (one.array, other.array)
        self._rules.append((_EQUAL, one.address, other.address, 0, 0, 0, 0))

    def at_most(self, one: Size, other: Size) -> None:
        """Require a size to be at most another."""
        zero = self.table.place(0)
        self._rules.append((AT_MOST, self.table.place(one), zero, self.table.place(other), zero, 0, 0))

    def room(self, key: Any, size: Size, most: int) -> None:
        """Require a size to be at most a number."""
        self.rooms[key] = (self.table.place(size), most)
        self._rules.append((_ROOM, self.table.place(size), most, 0, 0, 0, 0))

    def tasks(self, address: int, tasks: Size) -> None:
        """Store a launch's number of tasks at an address."""
        self._tasks.append((address, 0, self.table.place(tasks), self.table.place(0)))

    def pointer(self, address: int, base: int, first: Size, second: Size) -> None:
        """Store an address, `base` and two sizes added up, at another address."""
        self._patches.append((address, base, self.table.place(first), self.table.place(second)))

    def finish(self) -> int:
        """Return the address of the data, which stays there as long as this object."""
        self._rule_rows = np.array(self._rules, np.int64).reshape(-1, 7)
        self._patch_rows = np.array([*self._tasks, *self._patches], np.int64).reshape(-1, 4)
        parts = (self._symbols, self._operations, self._rule_rows, self._patch_rows)
        sized = (word for part in parts for word in (part.ctypes.data, len(part)))
        self._header = np.array(
            [
                address_of(self.values), len(self.table.numbers), *sized, len(self._tasks), address_of(self.known),
                address_of(self._failed), 0,
            ],
            np.int64,
        )  # fmt: skip
        return address_of(self._header)

    def forget(self) -> None:
        """Let the next `ts_resize` store everything anew."""
        self._header[-1] = 0

    def _checks(self, sizing: Sizing) -> list[tuple[int, ...]]:
        place, zero = self.table.place, self.table.place(0)
        found: list[tuple[int, ...]] = []
        for check in sizing.program.checks:
            left, right = place(check.left), place(check.right)
            found.append((AT_MOST, left, zero, right, zero, 0, 0))
            if check.relation == "==":
                found.append((AT_MOST, right, zero, left, zero, 0, 0))
        return found


def native_sizes(sizing: Sizing, resize: int) -> Callable[[Sequence[int]], np.ndarray | None]:
    """Return what computes a program's table by `ts_resize`; None where something required does not hold, and for a
    thread while another one is there.
    """
    lock, failed, given = Lock(), np.zeros(1, np.int32), np.zeros(len(sizing.program.symbols), np.int64)
    words = {symbol.name: Word(given, place) for place, symbol in enumerate(sizing.program.symbols)}
    resizing = Resizing(sizing, words, (), failed)
    args = np.array([0, resizing.finish()], np.int64)
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(resize)

    def values(symbols: Sequence[int]) -> np.ndarray | None:
        if not lock.acquire(blocking=False):
            return None
        try:
            given[:] = symbols
            run(address_of(args), 0, None)
            found = None if failed[0] else resizing.values.copy()
            failed[0] = 0
            return found
        finally:
            lock.release()

    return values
