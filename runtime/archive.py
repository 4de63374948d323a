"""Reader and writer of the artifact's container: a zip file in one canonical form. Members are stored or deflated, and
their data begins on 64-byte boundaries.

Given the members' bytes there is exactly one valid file, so the reader can require every byte outside them to equal
what the writer would have written. Any zip tool can read the result. Numbers and fields are those of PKWARE's APPNOTE,
sections 4.3 and 4.5.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import secrets
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from .errors import ArtifactIntegrityError, ArtifactLayoutError, ArtifactWriteError, NotAnArtifactError

ALIGNMENT = 64
_LIMIT = 0xFFFFFFFF
_LOCAL, _CENTRAL, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_END64, _LOCATOR64 = b"PK\x06\x06", b"PK\x06\x07"
_DATE = (1980 - 1980) << 9 | 1 << 5 | 1  # the first day that zip can express
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")
_NAME_LIMIT = 255
_MEMBER_LIMIT = 4096
_STORED, _DEFLATED = 0, 8
LEVEL = 9
"""zlib compression level of deflated members."""
MOST_INFLATED = 128
"""Largest ratio of a member's inflated size to its size in the file. Data that deflates better is stored; a larger
ratio is refused when read.
"""


@dataclass(frozen=True)
class Member:
    """A member of the archive: `size` bytes at `offset` of the file. They are its data, or, if deflated, inflate to
    `inflated` bytes of data. `crc32` is that of the data.
    """

    name: str
    size: int
    crc32: int
    header_offset: int
    inflated: int | None = None

    @property
    def offset(self) -> int:
        return self.header_offset + len(_local_header(self))


# --- the canonical bytes ---------------------------------------------------------------------------------------------


def _common_fields(member: Member) -> bytes:
    size = min(member.size, _LIMIT)
    method, whole = (_STORED, size) if member.inflated is None else (_DEFLATED, member.inflated)
    version = 45 if _is_large(member) else 20
    return struct.pack("<HHHHHIII", version, 0, method, 0, _DATE, member.crc32, size, whole)


def _is_large(member: Member) -> bool:
    return member.size >= _LIMIT or member.header_offset >= _LIMIT


def _local_header(member: Member) -> bytes:
    """Return the local file header, its extra field padded so that the data is aligned."""
    name = member.name.encode("ascii")
    large = struct.pack("<HHQQ", 1, 16, member.size, member.size) if member.size >= _LIMIT else b""
    unpadded = member.header_offset + 30 + len(name) + len(large) + 6
    padding = struct.pack("<HHH", 0xD935, 2 + -unpadded % ALIGNMENT, ALIGNMENT) + bytes(-unpadded % ALIGNMENT)
    extra = large + padding
    return _LOCAL + _common_fields(member) + struct.pack("<HH", len(name), len(extra)) + name + extra


def _central_entry(member: Member) -> bytes:
    name = member.name.encode("ascii")
    large = b""
    if member.size >= _LIMIT:
        large += struct.pack("<QQ", member.size, member.size)
    if member.header_offset >= _LIMIT:
        large += struct.pack("<Q", member.header_offset)
    extra = struct.pack("<HH", 1, len(large)) + large if large else b""
    attributes = 0o100644 << 16
    rest = struct.pack(
        "<HHHHHII", len(name), len(extra), 0, 0, 0, attributes, min(member.header_offset, _LIMIT)
    )  # fmt: skip
    return _CENTRAL + struct.pack("<H", 3 << 8 | 45) + _common_fields(member) + rest + name + extra


def _directory(members: Iterable[Member], start: int) -> bytes:
    """Return everything after the members' data: the central directory and its end records."""
    entries = [_central_entry(member) for member in members]
    size, count = sum(map(len, entries)), len(entries)
    end64 = b""
    if start >= _LIMIT:
        end64 = _END64 + struct.pack("<QHHIIQQQQ", 44, 3 << 8 | 45, 45, 0, 0, count, count, size, start)
        end64 += _LOCATOR64 + struct.pack("<IQI", 0, start + size, 1)
    end = _END + struct.pack("<HHHHIIH", 0, 0, count, count, size, min(start, _LIMIT), 0)
    return b"".join(entries) + end64 + end


# --- writing ---------------------------------------------------------------------------------------------------------


class ArchiveWriter:
    """Writer of members, one after the other, to a seekable binary file; `finish` writes the directory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._members: list[Member] = []
        self._position = 0

    def add(self, name: str, size: int, chunks: Iterable[bytes | memoryview], deflates: bytes | None = None) -> None:
        """Write a member of `size` bytes; `deflates` is its inflated data if it is deflated. Raises `ValueError` for a
        name that is not fit for a member or a wrong size.
        """
        if not is_member_name(name) or any(member.name == name for member in self._members):
            raise ValueError(f"{name!r} is no fit name for a new member")
        empty = Member(name, size, 0, self._position)
        self._file.seek(empty.offset)
        crc32, written = 0, 0
        for chunk in chunks:
            crc32 = zlib.crc32(chunk, crc32)
            written += len(chunk)
            self._file.write(chunk)
        if written != size:
            raise ValueError(f"member {name!r} has {written} bytes, {size} were announced")
        member = Member(name, size, crc32, self._position)
        if deflates is not None:
            member = replace(member, crc32=zlib.crc32(deflates), inflated=len(deflates))
        self._write_at(self._position, _local_header(member))
        self._members.append(member)
        self._position = member.offset + size

    def finish(self) -> None:
        self._write_at(self._position, _directory(self._members, self._position))

    def _write_at(self, offset: int, data: bytes) -> None:
        self._file.seek(offset)
        self._file.write(data)


def deflated(data: bytes) -> bytes | None:
    """Return the deflated bytes of `data`, or None if it should be stored: it would not shrink, or shrink so much that
    the reader would refuse it.
    """
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(data) + packer.flush()
    return packed if why_not_inflated(len(packed), len(data)) is None else None


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` when the block ends without an error, and is removed otherwise.

    Raises `ArtifactWriteError` when the disk is full, the folder is missing, and the like.
    """
    with atomic_files(path) as (file,):
        yield file


@contextlib.contextmanager
def atomic_files(*paths: str | os.PathLike[str]) -> Iterator[tuple[BinaryIO, ...]]:
    """Open new files that replace `paths` when the block ends without an error and all are on disk; on any earlier
    failure none of them does.

    Raises `ArtifactWriteError` as `atomic_file` does.
    """
    targets = [Path(path) for path in paths]
    for target in targets:
        reason = irreplaceable(target)
        if reason is not None:
            raise ArtifactWriteError(reason, file=str(target), remedy="name another file")
    try:
        with contextlib.ExitStack() as stack:
            files: list[BinaryIO] = []
            temporaries = [t.with_name(f".{t.name}.{secrets.token_hex(4)}.tmp") for t in targets]
            for temporary in temporaries:
                stack.enter_context(removed_on_error(temporary))
                files.append(stack.enter_context(open(temporary, "xb")))
            yield tuple(files)
            for file in files:
                file.flush()
                os.fsync(file.fileno())
            for temporary, target in zip(temporaries, targets, strict=True):
                os.replace(temporary, target)
        for folder in dict.fromkeys(target.parent for target in targets):
            _sync_folder(folder)
    except OSError as error:
        raise ArtifactWriteError(
            f"cannot be written: {error.strerror or error}",
            file=", ".join(map(str, targets)),
            remedy="free disk space or name another place; no file was left behind",
        ) from error


def irreplaceable(path: Path) -> str | None:
    """Return why a new file must not replace `path` (it is a device, a pipe or the like), or None if it may."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None  # there is none; any other problem shows when it is written
    return None if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else "is a device, a pipe or a socket, and no regular file"


@contextlib.contextmanager
def removed_on_error(path: Path) -> Iterator[None]:
    """Remove a file if the block that writes it fails, for a full disk or an interrupt."""
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- reading ---------------------------------------------------------------------------------------------------------


def mapped_file(path: str | os.PathLike[str]) -> memoryview:
    """Map a file read-only and return its bytes. The mapping lives as long as views of it. Raises `NotAnArtifactError`
    when it cannot be read, is empty, or is no regular file.
    """
    # open() would take an integer as a descriptor, and close it, too
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        raise NotAnArtifactError(f"{path!r} is no path of a file", remedy="give the path of a .tsm file, or its bytes")
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would block until something writes to it
            raise NotAnArtifactError("cannot be read: no regular file", file=os.fspath(path), remedy="name a file")
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise NotAnArtifactError("the file is empty", file=os.fspath(path))
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise NotAnArtifactError(
            f"cannot be read: {error.strerror}", file=os.fspath(path), remedy="check the path and its permissions"
        ) from error


def is_member_name(name: str) -> bool:
    """Return whether a member may have this name: a relative path of plain characters, without `.`, `..` or empty
    parts.
    """
    return len(name) <= _NAME_LIMIT and _NAME.fullmatch(name) is not None


def why_not_inflated(size: int, inflated: int) -> str | None:
    """Return why a member of `size` bytes must not be inflated to `inflated` bytes, or None if it may be."""
    if inflated >= _LIMIT:
        return "has 4 GiB or more"
    if inflated <= size:
        return "is no smaller for being deflated"
    if inflated > MOST_INFLATED * size:
        return f"would be inflated to more than {MOST_INFLATED} times its bytes"
    return None


def member_data(data: memoryview, member: Member) -> memoryview:
    """Return a member's data: a view of the archive's bytes if it is stored, else inflated, never beyond the size in
    its header. Raises `ArtifactIntegrityError` when its bytes are not such data.
    """
    view = data[member.offset : member.offset + member.size]
    if member.inflated is None:
        return view
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        whole = unpacker.decompress(view, member.inflated + 1)
    except zlib.error as error:
        raise ArtifactIntegrityError(f"the member cannot be inflated ({error})", member=member.name) from error
    if not unpacker.eof or unpacker.unused_data or len(whole) != member.inflated or zlib.crc32(whole) != member.crc32:
        raise ArtifactIntegrityError("the member is not what its header says once it is inflated", member=member.name)
    return memoryview(whole)


def read_directory(data: memoryview, file: str) -> dict[str, Member]:
    """Return the members of an archive, in file order.

    Raises `NotAnArtifactError` for a file that is no zip or is truncated, `ArtifactLayoutError` for every deviation
    from the canonical form.
    `file` is its name for messages.
    """
    if len(data) < 4 or bytes(data[:4]) != _LOCAL:
        raise NotAnArtifactError("this is not a tilestitch artifact", file=file, remedy="name a .tsm file")
    start, count = _read_end(data, file)
    members: dict[str, Member] = {}
    position, expected_offset = start, 0
    for _ in range(count):
        member, position = _read_entry(data, position, file)
        if member.name in members:
            raise ArtifactLayoutError("the member is there twice", file=file, member=member.name)
        if member.header_offset != expected_offset or member.size > len(data):
            raise ArtifactLayoutError("the member is not where it must be", file=file, member=member.name)
        header = _local_header(member)
        if bytes(data[expected_offset : expected_offset + len(header)]) != header:
            raise ArtifactLayoutError("the member's header is damaged", file=file, member=member.name)
        members[member.name] = member
        expected_offset = member.offset + member.size
    if expected_offset != start or bytes(data[start:]) != _directory(members.values(), start):
        raise ArtifactLayoutError("the archive's directory is damaged", file=file)
    return members


def _read_end(data: memoryview, file: str) -> tuple[int, int]:
    """Return the offset of the central directory and its number of entries."""
    end = len(data) - 22
    if end < 0 or bytes(data[end : end + 4]) != _END:
        raise NotAnArtifactError("the file is cut off, or something was appended to it", file=file)
    _, _, _, count, _, start, _ = struct.unpack_from("<HHHHIIH", data, end + 4)
    if start == _LIMIT and end >= 76 and bytes(data[end - 20 : end - 16]) == _LOCATOR64:
        _, position, _ = struct.unpack_from("<IQI", data, end - 16)
        if position + 56 > end or bytes(data[position : position + 4]) != _END64:
            raise ArtifactLayoutError("the archive's directory is damaged", file=file)
        *_, start = struct.unpack_from("<QHHIIQQQQ", data, position + 4)
    if start > end or not 0 < count <= _MEMBER_LIMIT:
        raise ArtifactLayoutError("the archive's directory is damaged", file=file)
    return start, count


def _read_entry(data: memoryview, position: int, file: str) -> tuple[Member, int]:
    """Return the directory entry at `position` and the offset of the next one."""
    if position + 46 > len(data) or bytes(data[position : position + 4]) != _CENTRAL:
        raise ArtifactLayoutError("the archive's directory is damaged", file=file)
    _, flags, method, _, _, crc32, size, whole = struct.unpack_from("<HHHHHIII", data, position + 6)
    name_bytes, extra_bytes, comment_bytes, _, _, _, offset = struct.unpack_from("<HHHHHII", data, position + 28)
    start = position + 46
    name = bytes(data[start : start + name_bytes]).decode("utf-8", "replace")
    if not is_member_name(name):
        raise ArtifactLayoutError(
            "the member's name is not allowed (absolute, outside, or of odd characters)", file=file, member=name
        )
    if method not in (_STORED, _DEFLATED) or flags:
        raise ArtifactLayoutError(
            "the member is encrypted or oddly compressed; members are stored or deflated", file=file, member=name
        )
    reason = why_not_inflated(size, whole) if method == _DEFLATED else None
    if reason is not None:
        raise ArtifactLayoutError(f"the member is deflated, but it {reason}", file=file, member=name)
    extra = bytes(data[start + name_bytes : start + name_bytes + extra_bytes])
    numbers = struct.unpack_from(f"<{max(len(extra) - 4, 0) // 8}Q", extra, min(4, len(extra)))
    if size == _LIMIT and len(numbers) >= 2:
        size, numbers = numbers[0], numbers[2:]
    if offset == _LIMIT and numbers:
        offset = numbers[0]
    member = Member(name, size, crc32, offset, whole if method == _DEFLATED else None)
    return member, start + name_bytes + extra_bytes + comment_bytes
