"""What a call of the queue leaves behind, within what is brought back from a lent machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

MOST_FILES = 8
MOST_BYTES = 16 << 20
"""Of a file."""

MOST_FOLDERS = 2
"""Above a file."""

MOST_LOG_BYTES = 8 << 20
LEFT_OUT = b"\n== the middle of this log is left out ==\n"


def shorten(log: Path) -> None:
    """Leave the beginning and the end of a log that has grown too long. Others may be writing to it."""
    size = log.stat().st_size if log.exists() else 0
    if size <= MOST_LOG_BYTES:
        return
    part = MOST_LOG_BYTES // 4
    with open(log, "r+b") as file:
        file.seek(size - part)
        end = file.read()
        file.truncate(part)
        file.seek(part)
        file.write(LEFT_OUT + end)


def left_behind(root: Path) -> Iterator[str]:
    """Why files under `root` would stay on the machine; nothing where all come back."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    if len(files) > MOST_FILES:
        yield f"{root} has {len(files)} files, of which {MOST_FILES} come back"
    for path in files:
        parts = path.relative_to(root).parts
        if path.stat().st_size > MOST_BYTES:
            yield f"{path} has {path.stat().st_size / 2**20:.1f} MiB; {MOST_BYTES >> 20} MiB come back"
        if len(parts) > MOST_FOLDERS + 1:
            yield f"{path} is more than {MOST_FOLDERS} folders down"
        if not all(re.fullmatch(r"[A-Za-z0-9._-]+", part) for part in parts):
            yield f"{path} has a name of more than letters, digits, '.', '_' and '-'"
