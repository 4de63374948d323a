"""How often Python looks for cyclic garbage during a compilation."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

RARE = (50_000, 20, 50)
"""Thresholds of the garbage collector: with these all objects are visited after fifty million new ones."""


class _Blocks:
    """The blocks that run, in all threads, and the thresholds before the first of them."""

    def __init__(self) -> None:
        self.lock, self.count, self.usual = threading.Lock(), 0, gc.get_threshold()


_BLOCKS = _Blocks()


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect cyclic garbage less often within the block: a compilation makes millions of live objects, and visiting
    them repeatedly takes up to a quarter of planning. The last of several blocks at once restores what was before.
    """
    with _BLOCKS.lock:
        if not _BLOCKS.count:
            _BLOCKS.usual = gc.get_threshold()
            gc.set_threshold(*RARE)
        _BLOCKS.count += 1
    try:
        yield
    finally:
        with _BLOCKS.lock:
            _BLOCKS.count -= 1
            if not _BLOCKS.count:
                gc.set_threshold(*_BLOCKS.usual)
