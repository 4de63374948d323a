"""What travels to the machine with the GPU: one archive beside the repository; and how it is opened there."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = ROOT / "benchmarks" / "device" / "bundle.tar.xz"
FOLDERS = ("runtime", "compiler", "cost_model", "passes", "codegen")
"""Of the package `tilestitch`, at the repository's root."""

MEASURES = ("benchmarks/device", "runtime", "compiler/ir")
"""What a measurement runs on the machine with the GPU."""

STAMP = "digest"


def pack(folder: Path, files: Iterable[Path], archive: Path) -> None:
    """Write these files of the folder to the archive; the same files give the same bytes."""
    unfinished = archive.with_name(f"{archive.name}.part")
    with tarfile.open(unfinished, "w:xz", preset=6) as tar:
        for path in sorted(files):
            info = tarfile.TarInfo(str(path.relative_to(folder)))
            info.size = path.stat().st_size
            with open(path, "rb") as file:
                tar.addfile(info, file)
    os.replace(unfinished, archive)


def unpacked(archive: Path) -> Path:
    """The folder beside the archive with its files, unpacked once. Raises `FileNotFoundError` without an archive."""
    if not archive.exists():
        raise FileNotFoundError(f"{archive} is not there; make it with: python -m benchmarks.device.bundle")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    folder = archive.with_name(f"{archive.name}.unpacked")
    stamp = folder / STAMP
    if stamp.exists() and stamp.read_text() == digest:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    stamp.write_text(digest)
    return folder


def travelling_bytes(archive: Path) -> tuple[int, int]:
    """Of the archive, and of the files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    tracked = [ROOT / name for name in listed.split("\0") if name]
    return archive.stat().st_size, sum(path.lstat().st_size for path in tracked if path.exists())


def digest_of(*paths: Path) -> str:
    """Of the contents of files, and of all Python and CUDA files of folders."""
    found = hashlib.sha256()
    for path in paths:
        inside = sorted(p for p in path.rglob("*") if p.suffix in (".py", ".cu", ".cuh", ".json"))
        for file in inside if path.is_dir() else [path]:
            found.update(file.read_bytes())
    return found.hexdigest()[:16]


def sources_digest() -> str:
    """Of all that measures: failures under other sources are tried again."""
    return digest_of(*(ROOT / name for name in MEASURES))


def make_importable() -> None:
    """Let this process and those it starts import `tilestitch` as it would be installed, through links."""
    folder = ROOT / "build" / "device" / "packages"
    inside = folder / "tilestitch"
    inside.mkdir(parents=True, exist_ok=True)
    for target in (*(ROOT / name for name in FOLDERS), ROOT / "package" / "__init__.py"):
        link = inside / target.name
        if not link.is_symlink():
            link.symlink_to(target)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT)])
