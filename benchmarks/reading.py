"""How fast the machine reads memory beyond all caches: a compiled loop, by some threads at once."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

import numpy as np

NBYTES = 256 << 20
AHEAD = (0, 4096)
"""Bytes after what is read that are asked for."""

_TEXT = """
typedef long vector __attribute__((vector_size(64)));
long read_all(const char *from, long nbytes, long ahead) {
  vector a = {0}, b = {0}, c = {0}, d = {0};
  for (long i = 0; i < nbytes; i += 256) {
    const vector *at = (const vector *)(from + i);
    if (ahead)
      for (long line = 0; line < 256; line += 64) __builtin_prefetch(from + i + ahead + line);
    a ^= at[0]; b ^= at[1]; c ^= at[2]; d ^= at[3];
  }
  a ^= b ^ c ^ d;
  return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];
}
"""


class Reading:
    """Memory in usual and in large pages, each thread's share of it beside the others'."""

    def __init__(self, threads: int) -> None:
        self.nbytes = NBYTES // threads // 256 * 256 * threads
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)
        self._memory = {"usual": _memory(large=False), "large": _memory(large=True)}

    def ways(self) -> dict[str, Callable[[], object]]:
        return {
            f"{pages} {ahead}": partial(self._read, memory.ctypes.data, ahead)
            for pages, memory in self._memory.items() for ahead in AHEAD
        }  # fmt: skip

    def _read(self, start: int, ahead: int) -> None:
        share = self.nbytes // self._threads
        if self._threads == 1:
            _loop()(start, share, ahead)
            return
        list(self._pool.map(lambda number: _loop()(start + number * share, share, ahead), range(self._threads)))


def _memory(large: bool) -> np.ndarray:
    pages = mmap.mmap(-1, NBYTES)
    pages.madvise(mmap.MADV_HUGEPAGE if large else mmap.MADV_NOHUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    memory[:] = 1  # pages that nothing was written to are all one
    return memory


@cache
def _loop() -> Callable[[int, int, int], int]:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "reading.c"), Path(folder, "reading.so")
        source.write_text(_TEXT)
        subprocess.run(["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", library, source], check=True)
        function = ctypes.CDLL(str(library)).read_all
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_long, ctypes.c_long), ctypes.c_long
    return function
