"""Reader of ELF64 relocatable objects, as LLVM writes them for x86-64 and aarch64, limited to what the linker needs."""

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tilestitch.codegen.errors import LinkError

SHT_PROGBITS, SHT_SYMTAB, SHT_RELA, SHT_NOBITS = 1, 2, 4, 8
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR, SHF_TLS = 1, 2, 4, 0x400
STB_LOCAL, STB_GLOBAL = 0, 1
STT_GNU_IFUNC = 10
SHN_UNDEF, SHN_ABS, SHN_COMMON = 0, 0xFFF1, 0xFFF2
EM_X86_64, EM_AARCH64 = 62, 183
MACHINES = {EM_X86_64: "x86-64", EM_AARCH64: "aarch64"}

_FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")


class Relocation(NamedTuple):
    """Relocation: at `offset` of its section, insert the address of symbol number `symbol` plus `addend` as `kind`
    says.
    """

    offset: int
    kind: int
    symbol: int
    addend: int


class Symbol(NamedTuple):
    """A symbol. `section` is a section number of the same object, or one of SHN_UNDEF, SHN_ABS, SHN_COMMON."""

    name: str
    binding: int
    kind: int
    section: int
    value: int
    size: int


@dataclass(frozen=True)
class Section:
    """A section that is loaded into memory. `data` is empty for zero-initialised ones (`is_zero`); `size` is in
    bytes.
    """

    name: str
    flags: int
    is_zero: bool
    data: bytes
    size: int
    alignment: int
    relocations: tuple[Relocation, ...]


@dataclass(frozen=True)
class ObjectFile:
    """The loaded sections of an object by number, and all of its symbols. `name` is for messages."""

    name: str
    machine: int
    sections: dict[int, Section]
    symbols: tuple[Symbol, ...]


class _Header(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


def read_object(data: bytes, name: str) -> ObjectFile:
    """Read a relocatable object. Raises `LinkError` for other data, and for sections that a kernel library cannot
    have.
    """
    try:
        return _read(data, name)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise LinkError(f"{name} is a damaged object file ({error}); build it again") from error


def _read(data: bytes, name: str) -> ObjectFile:
    if data[:6] != b"\x7fELF\x02\x01":
        raise LinkError(f"{name} is no little-endian ELF64 object; compile for x86_64 or aarch64 Linux")
    header = _FILE_HEADER.unpack_from(data)
    kind, machine, table, count, names = header[1], header[2], header[6], header[12], header[13]
    if kind != 1 or machine not in MACHINES:
        raise LinkError(f"{name} is no relocatable object of {' or '.join(MACHINES.values())}")
    headers = [
        _Header(*_SECTION_HEADER.unpack_from(data, table + index * _SECTION_HEADER.size)) for index in range(count)
    ]
    symbols = tuple(_symbols(data, headers))
    sections = dict(_loaded_sections(data, headers, _content(data, headers[names]), name))
    for loaded in sections.values():
        _check(loaded, len(symbols))
    for symbol in symbols:
        if symbol.section in sections and symbol.value + symbol.size > sections[symbol.section].size:
            raise ValueError(f"symbol {symbol.name!r} ends beyond its section")
    return ObjectFile(name, machine, sections, symbols)


def _content(data: bytes, section: _Header) -> bytes:
    if section.offset + section.size > len(data):
        raise ValueError("a section ends beyond the file")
    return data[section.offset : section.offset + section.size]


def _loaded_sections(
    data: bytes, headers: Sequence[_Header], names: bytes, name: str
) -> Iterator[tuple[int, Section]]:  # fmt: skip
    relocations = {
        section.info: tuple(_relocations(_content(data, section))) for section in headers if section.type == SHT_RELA
    }
    for index, section in enumerate(headers):
        section_name = _text(names, section.name)
        if not _is_loaded(section, section_name, name):
            continue
        is_zero = section.type == SHT_NOBITS
        yield index, Section(
            section_name, section.flags, is_zero, b"" if is_zero else _content(data, section), section.size,
            max(section.alignment, 1), relocations.get(index, ()),
        )  # fmt: skip


def _check(section: Section, symbols: int) -> None:
    if section.alignment > 4096 or section.alignment & (section.alignment - 1) or section.size > 1 << 40:
        raise ValueError(f"section {section.name} has an impossible size or alignment")
    for relocation in section.relocations:
        if relocation.symbol >= symbols or relocation.offset + 4 > section.size:
            raise ValueError(f"section {section.name} has a relocation of something that is not there")


def _is_loaded(section: _Header, section_name: str, name: str) -> bool:
    if not section.flags & SHF_ALLOC or section_name == ".eh_frame":
        return False
    if section_name.startswith(".note"):
        return False
    if section.flags & SHF_TLS:
        raise LinkError(f"{name}: thread-local data ({section_name}) is not supported; use the kernel's scratch memory")
    if section.type not in (SHT_PROGBITS, SHT_NOBITS):
        raise LinkError(f"{name}: section {section_name} of type {section.type} (constructors?) is not supported")
    if section.flags & SHF_WRITE and section.flags & SHF_EXECINSTR:
        raise LinkError(f"{name}: section {section_name} is writable and executable; kernels must not be")
    return True


def _relocations(data: bytes) -> Iterator[Relocation]:
    for offset, info, addend in _RELA.iter_unpack(data):
        yield Relocation(offset, info & 0xFFFFFFFF, info >> 32, addend)


def _symbols(data: bytes, headers: Sequence[_Header]) -> Iterator[Symbol]:
    table = next((section for section in headers if section.type == SHT_SYMTAB), None)
    if table is None:
        return
    names = _content(data, headers[table.link])
    for name, info, _, section, value, size in _SYMBOL.iter_unpack(_content(data, table)):
        yield Symbol(_text(names, name), info >> 4, info & 15, section, value, size)


def _text(names: bytes, offset: int) -> str:
    return names[offset : names.index(b"\0", offset)].decode()


def object_bytes(module: Any) -> bytes:
    """Return the relocatable object compiled from `module`.

    LLVM writes it to memory: on a full disk it would end the process.
    """
    descriptor = os.memfd_create("tilestitch-object", os.MFD_CLOEXEC)
    with open(descriptor, "rb") as file:
        module.write_to_file(f"/proc/self/fd/{descriptor}", "o")
        return file.read()
