"""Compiled kernels on disk by the hash of what they were made from. Damaged entries count as missing."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_DIGEST_BYTES = 32


def default_folder() -> Path:
    """Where this platform wants a user's caches."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tilestitch" / "cuda"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tilestitch" / "cuda"


@dataclass(frozen=True)
class KernelCache:
    """`folder` None: nothing is kept."""

    folder: Path | None

    def _path(self, key: str) -> Path | None:
        return None if self.folder is None else self.folder / key[:2] / key

    def read(self, key: str) -> bytes | None:
        """The bytes stored under `key`, None if there are none or they are damaged."""
        path = self._path(key)
        if path is None:
            return None
        try:
            entry = path.read_bytes()
        except OSError:
            return None
        data = entry[_DIGEST_BYTES:]
        return data if hashlib.sha256(data).digest() == entry[:_DIGEST_BYTES] else None

    def write(self, key: str, data: bytes) -> None:
        """Store atomically. A folder that cannot be written is no error: the cache only saves time."""
        path = self._path(key)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(hashlib.sha256(data).digest() + data)
            Path(file.name).replace(path)
        except OSError:
            return


NO_CACHE = KernelCache(None)


def key_of(*parts: str) -> str:
    """Hex digits of what determines a compiled kernel."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
