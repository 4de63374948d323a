"""Turns of tuners on a device that they share: one at a time measures, since what runs beside it would slow it down."""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

WAIT_S, POLL_S = 1.0, 0.002


@dataclass(frozen=True)
class Turn:
    """The file that a tuner locks while it measures; without one, its device is its own. The lock ends with the
    process, however that ends.
    """

    path: Path | None = None

    @contextmanager
    def wanted(self) -> Iterator[Callable[[], bool]]:
        """Give a function that returns whether the turn has come, after a second at most. The turn ends with the
        block.
        """
        if self.path is None:
            yield lambda: True
            return
        with self.path.open("rb") as file:
            yield partial(_locked, file)


def _locked(file: IO[bytes]) -> bool:
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(POLL_S)
        else:
            return True
