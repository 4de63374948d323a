"""Files that commands read and write, checked before any work is done."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from tilestitch.compiler.cli.errors import UsageError

_DUMPED = re.compile(r"final\.(dot|onnx)|\d+-.*\.tsir")
"""Names of the files that --dump-ir writes."""


def existing(path: str) -> Path:
    """Return PATH as a Path; raises UsageError when there is no such file."""
    if not path:
        raise UsageError("the name of a file is empty; give one")
    if not os.path.exists(path):
        raise UsageError(f"{path}: no such file")
    if os.path.isdir(path):
        raise UsageError(f"{path} is a folder; name a file")
    return Path(path)


def writable(path: str, taken: Sequence[str | Path | None] = ()) -> Path:
    """Return PATH as a Path; raises UsageError when it cannot be written, or is one of the files TAKEN, which the same
    command reads or writes.
    """
    from tilestitch.runtime.archive import irreplaceable

    if not path:
        raise UsageError("the name of the file to write is empty; give one")
    target = Path(path)
    if target.is_dir() or path.endswith(os.sep):
        raise UsageError(f"{path} is a folder; name a file in it")
    if not target.parent.is_dir():
        raise UsageError(f"{path}: the folder {target.parent} does not exist; make it first")
    if not os.access(target.parent, os.W_OK):
        raise UsageError(f"{path}: the folder {target.parent} cannot be written to; name a file in another")
    reason = irreplaceable(target)
    if reason is not None:
        raise UsageError(f"{path} {reason}; name another file")
    for other in (path for path in taken if path):
        if _same(target, Path(other)):
            same = "" if path == str(other) else f" is the same file as {other}, and"
            raise UsageError(f"{path}{same} is read or written by this command already; name another file")
    return target


def writable_folder(path: str, taken: Sequence[str | Path | None] = ()) -> Path:
    """Return a folder for dumps as a Path, created if necessary; raises UsageError when it is a file, or a dump would
    replace one of the files TAKEN.
    """
    if not path:
        raise UsageError("the name of the folder for dumps is empty; give one")
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{path} is a file; name a folder")
    made_in = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not (made_in.is_dir() and os.access(made_in, os.W_OK)):
        raise UsageError(f"{path}: {made_in} cannot be written to; name another folder")
    for other in (path for path in taken if path):
        if any(_is_dump(folder, file) for file in (Path(other).absolute(), Path(other).resolve())):
            raise UsageError(
                f"a dump into {path} could replace {other}, which this command reads or writes too; name another folder"
            )
    return folder


def _is_dump(folder: Path, file: Path) -> bool:
    """Return whether a dump into FOLDER, or into a subfolder of a set of shapes, may write FILE."""
    inside = _same(folder, file.parent) or _same(folder, file.parent.parent)
    return inside and _DUMPED.fullmatch(file.name) is not None


def _same(one: Path, other: Path) -> bool:
    """Return whether both name one file, also through links, or with different case on a case-insensitive file
    system.
    """
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.resolve() == other.resolve()
