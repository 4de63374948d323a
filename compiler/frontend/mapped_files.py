"""Files of external data that a model's tensors are mapped from, and whether these have changed since.

Weights are read from the mapping when an artifact is written. A file that was rewritten in place since then would give
other weights, or kill the process if it became shorter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MappedFile:
    """A file as it was when it was mapped. `changed_ns`: the status change time of file `inode` of `device`, which
    programs cannot set back, unlike the time of the last write.
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
        """Whether the file may have been written to; a changed mode or link counts, too. A deleted or replaced file
        still exists for those that map it; writes after a renaming are not noticed.
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
    """Collect the files that are mapped within the context."""
    files = set[MappedFile]()
    token = _MAPPED.set(files)
    try:
        yield files
    finally:
        _MAPPED.reset(token)


def note_mapped(path: Path) -> None:
    """Record that a tensor is about to be mapped from a file."""
    files = _MAPPED.get()
    if files is not None:
        files.add(MappedFile.of(path))
