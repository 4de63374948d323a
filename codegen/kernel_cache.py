"""Disk cache of compiled kernels, keyed by the hash of their inputs. Damaged entries count as missing."""

import contextlib
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from tilestitch.runtime.archive import removed_on_error

LIMIT_BYTES = 1 << 30
FOLDERS = 256
"""Number of subfolders for entries, by the first two digits of their keys."""
_DIGEST_BYTES = 32


def default_folder() -> Path:
    """Return this platform's folder for a user's caches. Raises RuntimeError for a user without a home."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tilestitch" / "kernels"
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification requires relative paths to be ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "tilestitch" / "kernels"


@dataclass(frozen=True)
class KernelCache:
    """A cache of about `limit_bytes` in `folder`, with least-recently-used eviction. `folder` None: nothing is kept."""

    folder: Path | None
    limit_bytes: int = LIMIT_BYTES

    def why_not_kept(self) -> str | None:
        """Return why nothing can be written, or None; existing entries can be read all the same."""
        if self.folder is None:
            return None
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # its contents are executed
        except OSError as error:
            return f"the folder {self.folder} cannot be made ({error.strerror})"
        return None if os.access(self.folder, os.W_OK | os.X_OK) else f"the folder {self.folder} cannot be written"

    def read(self, key: str) -> bytes | None:
        """Return the bytes stored under `key`, None if there are none or they are damaged."""
        path = self._path(key)
        if path is None:
            return None
        try:
            entry = _regular(path)
        except OSError:
            return None
        if entry is None:
            return None
        data = entry[_DIGEST_BYTES:]
        if _digest(key, data) != entry[:_DIGEST_BYTES]:
            return None
        with contextlib.suppress(OSError):  # a folder that can only be read: `why_not_kept` reports it
            os.utime(path)
        return data

    def write(self, key: str, data: bytes) -> None:
        """Store atomically. Failures are ignored: the cache only saves time."""
        path = self._path(key)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                written = Path(file.name)
                with removed_on_error(written):
                    file.write(_digest(key, data) + data)
                    file.close()
                    written.replace(path)
            self._trim(path.parent)
        except OSError:
            return

    def _trim(self, folder: Path) -> None:
        """Evict the least recently used entries of one subfolder if it exceeds its share of the limit, until a quarter
        of that is free. Checking all subfolders after each kernel would take too long.
        """
        share = self.limit_bytes // FOLDERS
        entries = sorted(_entries(folder))
        total = sum(size for _, size, _ in entries)
        if total <= share:
            return
        for _, size, path in entries:
            if total <= share * 3 // 4:
                return
            Path(path).unlink(missing_ok=True)  # another process may have removed it
            total -= size

    def _path(self, key: str) -> Path | None:
        return None if self.folder is None else self.folder / key[:2] / key


NO_CACHE = KernelCache(None)


def key_of(*parts: str) -> str:
    """Return the hexadecimal hash of what determines a compiled kernel."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def code_generator() -> str:
    """Return the hexadecimal hash of what turns kernels into machine code: TVM and LLVM by their versions, ours by its
    sources.
    """
    versions = [f"{name} {metadata.version(name)}" for name in ("apache-tvm", "apache-tvm-ffi")]
    sources = (path for folder in _SOURCES for path in sorted(folder.rglob("*.py")))
    return key_of(*versions, *(path.read_text(encoding="utf-8") for path in sources))


_CODEGEN = Path(__file__).parent
_SOURCES = (_CODEGEN, _CODEGEN.parent / "passes" / "plan")


def _entries(folder: Path) -> Iterator[tuple[int, int, str]]:
    """Yield time of the last use in ns, bytes and path of each entry; other things than files are skipped."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                facts = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # another process has removed it
            if stat.S_ISREG(facts.st_mode):
                yield facts.st_mtime_ns, facts.st_size, entry.path


def _regular(path: Path) -> bytes | None:
    """Return the bytes of a file; None for other things, such as a pipe, on which this would block, and for files of
    other users than root, which would run with this user's rights.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
        facts = os.fstat(file.fileno())
        ours = not hasattr(os, "geteuid") or facts.st_uid in (os.geteuid(), 0)
        return file.read() if stat.S_ISREG(facts.st_mode) and ours else None


def _digest(key: str, data: bytes) -> bytes:
    return hashlib.sha256(key.encode() + data).digest()
