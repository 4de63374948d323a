"""Words in which kernels report faults, such as an index out of range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from tilestitch.runtime.errors import ExecutionError
from tilestitch.runtime.program import Launch


class Faults:
    """The words of so many launches."""

    def __init__(self, count: int) -> None:
        self._words = np.zeros(count, np.int32)
        self._start = self._words.ctypes.data
        self._launches: Sequence[Launch | None] = ()
        self._reports = False

    def have(self, launches: Sequence[Launch | None]) -> None:
        """Set the launches; None for one that is no kernel of the model."""
        self._launches = launches
        self._reports = any(launch is not None and launch.faults for launch in launches)

    def address(self, number: int) -> int:
        """Return the address of a launch's word."""
        return self._start + 4 * number

    def check(self) -> None:
        """Raise `ExecutionError` where a kernel has reported a fault since the last call."""
        if self._reports and self._words.any():
            self._raise()

    def _raise(self) -> NoReturn:
        number = int(np.flatnonzero(self._words)[0])
        launch, fault = self._launches[number], int(self._words[number]) - 1
        self._words[...] = 0
        assert launch is not None
        message = launch.faults[fault] if 0 <= fault < len(launch.faults) else f"fault {fault}"
        where = ", ".join(launch.origins) or launch.symbol
        raise ExecutionError(f"ONNX node {where}: {message}; check the values of the model's inputs")
