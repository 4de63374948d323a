"""The files that a plug-in consists of, and the hash of their contents."""

import hashlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from tilestitch.passes.errors import PluginError

IGNORED_SUFFIXES = frozenset({".pyc", ".pyo"})


def content_hash(cls: type) -> str:
    """Return the SHA-256 (hex) of all files of the top-level package that defines `cls` (data files included), or of
    its module and the files that the module lists in `DATA_FILES`, by relative paths.

    Raises PluginError if there are none: then nothing could record what was run.
    """
    sha = hashlib.sha256()
    for label, content in _contents(cls):
        sha.update(f"{label}\0{len(content)}\0".encode() + content)
    return sha.hexdigest()


def qualified(cls: type) -> str:
    """Return `MODULE:CLASS`."""
    return f"{cls.__module__}:{cls.__qualname__}"


def belongs_to(cls: type, module: str) -> bool:
    """Return whether a module is in the package that defines `cls`, or is that module."""
    return module.partition(".")[0] == cls.__module__.partition(".")[0]


def _roots(cls: type) -> list[Path]:
    top = sys.modules.get(cls.__module__.partition(".")[0])
    return [Path(p) for p in getattr(top, "__path__", [])]


def _contents(cls: type) -> Iterator[tuple[str, bytes]]:
    """Yield labels and contents; for a class without a file, as in a notebook, its own source."""
    files = _files(cls)
    for label, path in files:
        try:
            yield label, path.read_bytes()
        except OSError as error:
            problem = f"{path} cannot be read ({error.strerror})"
            raise PluginError(f"plug-in {qualified(cls)}: {problem}; mend the path or the file") from None
    if not files:
        try:
            yield cls.__qualname__, inspect.getsource(cls).encode()
        except (OSError, TypeError):
            problem = "has no source, so no artifact could say what it was"
            raise PluginError(f"plug-in {qualified(cls)} {problem}; put it into a module") from None


def _files(cls: type) -> list[tuple[str, Path]]:
    roots = _roots(cls)
    if roots:
        found = ((p.relative_to(root).as_posix(), p) for root in roots for p in root.rglob("*"))
        return sorted((label, p) for label, p in found if _counts(label) and p.is_file())
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if not file:
        return []
    module = Path(file)
    data = getattr(sys.modules[cls.__module__], "DATA_FILES", ())
    return [(module.name, module), *((str(name), module.parent / str(name)) for name in data)]


def _counts(label: str) -> bool:
    path = Path(label)
    return "__pycache__" not in path.parts and path.suffix not in IGNORED_SUFFIXES
