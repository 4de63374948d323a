"""Outputs with bytes before and after them that nothing may write."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilestitch.runtime import Module
from tilestitch.runtime.buffers import aligned_bytes

_MARGIN = 4096
_PATTERN = 0xA5


class Guarded:
    """Arrays like these, aligned as kernels want them, each between two margins."""

    def __init__(self, like: Mapping[str, np.ndarray]) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._margins: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for name, array in like.items():
            memory = aligned_bytes(array.nbytes + 2 * _MARGIN)
            memory[...] = _PATTERN
            self._margins[name] = memory[:_MARGIN], memory[_MARGIN + array.nbytes :]
            self.arrays[name] = memory[_MARGIN : _MARGIN + array.nbytes].view(array.dtype).reshape(array.shape)

    def check(self) -> None:
        for name, margins in self._margins.items():
            written = [int(np.count_nonzero(margin != _PATTERN)) for margin in margins]
            assert written == [0, 0], f"{written} bytes before and after {name} were written"


def run_guarded(module: Module, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What `module.run(feeds)` gives; fails if it writes outside of its outputs."""
    guarded = Guarded(module.run(feeds))
    results = module.run(feeds, out=guarded.arrays)
    guarded.check()
    return results
