"""Which files of external data a model's tensors are mapped from, and whether these are still as they were.

Weights are read from the mapping when an artifact is written. A file that was written anew in place since then would
give other weights, or end the process where it became shorter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MappedFile:
    """A file as it was when it was mapped. changed_ns: when the file `inode` of `device` was last changed, which no
    program can set back, as it can the time of the last write.
    """

    path: Path
    device: int
    inode: int
    size_bytes: int
    changed_ns: int

    @staticmethod
    def of(path: Path) -> MappedFile:
        found = path.stat()
        return MappedFile(path.resolve(), found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)

    @property
    def is_changed(self) -> bool:
        """Whether the file may have been written to: also a new mode or link counts. One that was deleted or replaced
        is still there for those that map it; if it was renamed, and written to then, that is not seen.
        """
        try:
            found = MappedFile.of(self.path)
        except OSError:
            return False
        same_file = (found.device, found.inode) == (self.device, self.inode)
        return same_file and (found.size_bytes, found.changed_ns) != (self.size_bytes, self.changed_ns)


_MAPPED: ContextVar[set[MappedFile] | None] = ContextVar("mapped", default=None)


@contextmanager
def noting_mapped_files() -> Iterator[set[MappedFile]]:
    """The files that are mapped while this lasts."""
    files = set[MappedFile]()
    token = _MAPPED.set(files)
    try:
        yield files
    finally:
        _MAPPED.reset(token)


def note_mapped(path: Path) -> None:
    """A tensor is about to be mapped from a file."""
    files = _MAPPED.get()
    if files is not None:
        files.add(MappedFile.of(path))
