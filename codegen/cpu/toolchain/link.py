"""A static linker for kernels: relocatable ELF64 objects in, one shared library out. No system linker is needed.

It supports what a kernel library needs and refuses the rest with a `LinkError`: code, read-only data, data and
zero-initialised data are merged; symbols are resolved among the objects, or must be functions of libc or libm; the
dynamic loader relocates pointers, in memory that is read-only afterwards. The same input gives the same bytes.

The file is laid out so that every address is also the offset in the file:

    read-only    ELF header, program headers, hash table, dynamic symbols and their names, relocations, read-only data
    executable   code, stubs for calls into other libraries
    relro        dynamic section, global offset table, data that only the loader writes
    writable     data; then, beyond the end of the file, zero-initialised data
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tilestitch.codegen.cpu.toolchain.elf import (
    MACHINES,
    SHF_ALLOC,
    SHF_EXECINSTR,
    SHF_WRITE,
    SHN_ABS,
    SHN_COMMON,
    SHN_UNDEF,
    STB_GLOBAL,
    STB_LOCAL,
    STT_GNU_IFUNC,
    ObjectFile,
    Relocation,
    Section,
    Symbol,
    read_object,
)
from tilestitch.codegen.cpu.toolchain.relocate import ARCHITECTURES, Target
from tilestitch.codegen.errors import LinkError

_MATH = """
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp10 exp2 expm1 fabs fdim floor fma
    fmax fmin fmod frexp hypot ldexp lgamma log log10 log1p log2 logb lrint lround modf nearbyint nextafter pow
    remainder rint round roundeven scalbn sin sincos sinh sqrt tan tanh tgamma trunc
"""

LIBM = frozenset(name + suffix for name in _MATH.split() for suffix in ("", "f"))
"""Functions that kernels may call in libm.so.6."""

LIBC = frozenset({"abort", "bzero", "clock_gettime", "memcmp", "memcpy", "memmove", "memset", "syscall"})
"""Functions that kernels and the executor may call in libc.so.6."""

_HEADER_BYTES = 64 + 7 * 56  # the ELF header and at most seven program headers
_RELRO = 2  # which segment has what only the loader writes

_Reference: TypeAlias = str | tuple[int, int]
"""A symbol: its name when it is global, else its object's number and its own number."""


def link(objects: Sequence[bytes], exports: Sequence[str], aliases: Mapping[str, str] | None = None) -> bytes:
    """Link relocatable objects into a shared library whose dynamic symbols are `exports`. `aliases`: further names of
    symbols that the objects define.

    Raises `LinkError` for damaged or unsupported objects, and for symbols that are missing or defined twice.
    """
    if not objects:
        raise LinkError("there is no object file to link; the model has no native kernels")
    files = [read_object(data, f"object {index}") for index, data in enumerate(objects)]
    return _Linker(files, exports, aliases or {}).run()


@dataclass
class _Part:
    """One output section: bytes at an address."""

    name: str
    type: int
    flags: int
    size: int = 0
    alignment: int = 8
    address: int = 0
    link: str = ""
    info: int = 0
    entry_bytes: int = 0
    members: list[tuple[int, int, Section, int]] = field(default_factory=list)  # (object, number, section, offset)

    def add(self, object_index: int, number: int, section: Section) -> None:
        offset = _align(self.size, section.alignment)
        self.members.append((object_index, number, section, offset))
        self.alignment = max(self.alignment, section.alignment)
        self.size = offset + section.size


class _Linker:
    def __init__(self, files: Sequence[ObjectFile], exports: Sequence[str], aliases: Mapping[str, str]) -> None:
        self.files = files
        self.exports = sorted(set(exports))
        machines = {file.machine for file in files}
        if len(machines) > 1:
            raise LinkError(
                f"objects of {' and '.join(sorted(MACHINES[m] for m in machines))} cannot be linked together"
            )
        self.machine = files[0].machine
        self.architecture = ARCHITECTURES[self.machine]
        self.definitions = _definitions(files)
        self.definitions |= {alias: self.definitions[name] for alias, name in aliases.items()}
        self.imports: list[str] = []
        self.slots: dict[_Reference, int] = {}  # GOT slot number of a symbol
        self.stubs: dict[str, int] = {}  # stub number of an imported function
        self.pointers: list[
            tuple[int, int, Relocation, _Reference]
        ] = []  # object, section: where the loader puts addresses
        self.section_address: dict[tuple[int, int], int] = {}

    def run(self) -> bytes:
        missing = [name for name in self.exports if name not in self.definitions]
        if missing:
            raise LinkError(f"no object defines {', '.join(missing)}; name only functions that were compiled")
        self._collect_references()
        parts = self._make_parts()
        self._place(parts)
        image = bytearray(self._file_bytes)
        self._write_sections(image)
        self._write_tables(image)
        section_offset, section_table = self._section_table(len(image))
        headers = self._headers(section_offset, len(self.parts) + 2)
        image[: len(headers)] = headers
        return bytes(image) + section_table

    # --- what is referred to ---

    def _references(self) -> Iterator[tuple[int, int, Relocation, _Reference]]:
        for index, file in enumerate(self.files):
            for number, section in file.sections.items():
                for relocation in section.relocations:
                    if relocation.kind:
                        symbol = file.symbols[relocation.symbol]
                        reference = symbol.name if symbol.binding != STB_LOCAL else (index, relocation.symbol)
                        yield index, number, relocation, reference

    def _collect_references(self) -> None:
        imports: set[str] = set()
        unknown: set[str] = set()
        for index, number, relocation, reference in self._references():
            formula = self.architecture.formulas.get(relocation.kind)
            section = self.files[index].sections[number]
            if formula is None:
                raise LinkError(
                    f"object {index}, section {section.name}: relocation kind {relocation.kind} of "
                    f"{MACHINES[self.machine]} is "
                    "not supported; compile position-independent code of the small code model"
                )
            is_import = isinstance(reference, str) and reference not in self.definitions
            if isinstance(reference, str) and is_import:
                (imports if reference in LIBC or reference in LIBM else unknown).add(reference)
            if formula.target is Target.SYMBOL and is_import:
                raise LinkError(f"{section.name} refers to data of another library: {reference}; compile with -fPIC")
            if formula.target is Target.POINTER:
                if not section.flags & SHF_WRITE:
                    raise LinkError(
                        f"the read-only section {section.name} holds an absolute address; compile with -fPIC"
                    )
                self.pointers.append((index, number, relocation, reference))
            if formula.target is Target.SLOT or (formula.target is Target.CALL and is_import):
                self.slots.setdefault(reference, len(self.slots))
            if formula.target is Target.CALL and isinstance(reference, str) and is_import:
                self.stubs.setdefault(reference, len(self.stubs))
        if unknown:
            raise LinkError(
                f"undefined: {', '.join(sorted(unknown))}; kernels may call only each other, libm and a few "
                "functions of libc"
            )
        self.imports = sorted(imports)

    # --- layout ---

    def _make_parts(self) -> list[list[_Part]]:
        """Return the output sections, by segment."""
        names = [*self.imports, *self.exports]
        self.strings, self.string_offsets = _string_table([*names, "libc.so.6", "libm.so.6"])
        self.needed = [
            library
            for library, functions in (("libc.so.6", LIBC), ("libm.so.6", LIBM))
            if not functions.isdisjoint(self.imports)
        ]
        symbols = 1 + len(names)
        rela_bytes = 24 * (len(self.slots) + len(self.pointers))
        self.hash = _Part(".hash", 5, SHF_ALLOC, 4 * (2 + max(len(names), 1) + symbols), link=".dynsym", entry_bytes=4)
        self.dynsym = _Part(".dynsym", 11, SHF_ALLOC, 24 * symbols, link=".dynstr", info=1, entry_bytes=24)
        self.dynstr = _Part(".dynstr", 3, SHF_ALLOC, len(self.strings), 1)
        self.rela = _Part(".rela.dyn", 4, SHF_ALLOC, rela_bytes, link=".dynsym", entry_bytes=24)
        rodata = _Part(".rodata", 1, SHF_ALLOC)
        text = _Part(".text", 1, SHF_ALLOC | SHF_EXECINSTR)
        self.plt = _Part(".plt", 1, SHF_ALLOC | SHF_EXECINSTR, self.architecture.stub_bytes * len(self.stubs), 16)
        dynamic_bytes = 16 * (len(self.needed) + 12)
        self.dynamic = _Part(".dynamic", 6, SHF_ALLOC | SHF_WRITE, dynamic_bytes, link=".dynstr", entry_bytes=16)
        self.got = _Part(".got", 1, SHF_ALLOC | SHF_WRITE, 8 * len(self.slots))
        relro = _Part(".data.rel.ro", 1, SHF_ALLOC | SHF_WRITE)
        data = _Part(".data", 1, SHF_ALLOC | SHF_WRITE)
        bss = _Part(".bss", 8, SHF_ALLOC | SHF_WRITE)
        for index, file in enumerate(self.files):
            for number, section in file.sections.items():
                if section.flags & SHF_EXECINSTR:
                    text.add(index, number, section)
                elif not section.flags & SHF_WRITE:
                    rodata.add(index, number, section)
                elif section.is_zero:
                    bss.add(index, number, section)
                else:
                    (relro if section.name.startswith(".data.rel.ro") else data).add(index, number, section)
        return [
            [self.hash, self.dynsym, self.dynstr, self.rela, rodata],
            [text, self.plt],
            [self.dynamic, self.got, relro],
            [data, bss],
        ]

    def _place(self, parts: list[list[_Part]]) -> None:
        """Give every part its address. Segments begin on pages of their own, so that each has its own protection.

        The RELRO segment fills its last page: the loader protects all of that, and where the system's pages are smaller
        than the architecture's largest ones, the rest would not be mapped.
        """
        page = self.architecture.page_bytes
        address = _HEADER_BYTES
        self.segments: list[tuple[int, int, int]] = []  # (start, end in the file, end in memory)
        for index, segment in enumerate(parts):
            start = 0 if index == 0 else _align(address, page)
            address = max(start, address) if index == 0 else start
            for part in segment:
                if part.name == ".bss":
                    break
                part.address = _align(address, part.alignment)
                address = part.address + part.size
            file_end = address
            if segment[-1].name == ".bss":
                segment[-1].address = _align(address, segment[-1].alignment)
                address = segment[-1].address + segment[-1].size
            if index == _RELRO:
                address = _align(address, page)
            self.segments.append((start, file_end, address))
        start, file_end, _ = self.segments[-1]
        self._file_bytes = file_end if file_end > start else self.segments[_RELRO][1]
        self.parts = [part for segment in parts for part in segment if part.size or part.name in (".text", ".dynamic")]
        for part in self.parts:
            for object_index, number, _, offset in part.members:
                self.section_address[object_index, number] = part.address + offset

    def _address(self, reference: _Reference) -> int:
        index, symbol = self.definitions[reference] if isinstance(reference, str) else self._local(reference)
        if symbol.section not in self.files[index].sections:
            raise LinkError(
                f"object {index}: {symbol.name or 'a symbol'} lies in a section that is not loaded; build it again"
            )
        return self.section_address[index, symbol.section] + symbol.value

    def _local(self, reference: tuple[int, int]) -> tuple[int, Symbol]:
        return reference[0], self.files[reference[0]].symbols[reference[1]]

    # --- contents ---

    def _write_sections(self, image: bytearray) -> None:
        for (index, number), address in self.section_address.items():
            section = self.files[index].sections[number]
            image[address : address + len(section.data)] = section.data
        for name, stub in self.stubs.items():
            address = self.plt.address + stub * self.architecture.stub_bytes
            code = self.architecture.stub(address, self._slot(name))
            image[address : address + len(code)] = code
        for index, number, relocation, reference in self._references():
            formula = self.architecture.formulas[relocation.kind]
            if formula.target is Target.POINTER:
                continue
            place = self.section_address[index, number] + relocation.offset
            target = self._target_address(formula.target, reference)
            formula.patch(image, place, target + relocation.addend, place)

    def _slot(self, reference: _Reference) -> int:
        return self.got.address + 8 * self.slots[reference]

    def _target_address(self, target: Target, reference: _Reference) -> int:
        if target is Target.SLOT:
            return self._slot(reference)
        if isinstance(reference, str) and reference in self.stubs:
            return self.plt.address + self.stubs[reference] * self.architecture.stub_bytes
        return self._address(reference)

    def _write_tables(self, image: bytearray) -> None:
        def put(part: _Part, data: bytes) -> None:
            if len(data) > part.size:
                raise AssertionError(f"{part.name} has {len(data)} bytes, {part.size} were planned")
            image[part.address : part.address + len(data)] = data

        put(self.dynstr, self.strings)
        put(self.dynsym, self._dynamic_symbols())
        put(self.hash, _hash_table([*self.imports, *self.exports]))
        put(self.rela, b"".join(_pack_relocation(*entry) for entry in self._dynamic_relocations()))
        put(self.dynamic, b"".join(struct.pack("<QQ", *entry) for entry in self._dynamic_entries()))

    def _dynamic_symbols(self) -> bytes:
        function, global_ = 2, STB_GLOBAL << 4
        entries = [bytes(24)]
        for name in self.imports:
            entries.append(struct.pack("<IBBHQQ", self.string_offsets[name], global_ | function, 0, SHN_UNDEF, 0, 0))
        for name in self.exports:
            _, symbol = self.definitions[name]
            address = self._address(name)
            part = next(i for i, p in enumerate(self.parts) if p.address <= address <= p.address + p.size)
            info = global_ | (symbol.kind & 15)
            entries.append(struct.pack("<IBBHQQ", self.string_offsets[name], info, 0, part + 1, address, symbol.size))
        return b"".join(entries)

    def _dynamic_relocations(self) -> Iterator[tuple[int, int, int]]:
        """Yield (place, symbol << 32 | kind, addend), relative ones first as loaders prefer."""
        relocations = []
        places = [(self._slot(reference), reference, 0, self.architecture.dynamic_slot) for reference in self.slots]
        for index, number, relocation, reference in self.pointers:
            place = self.section_address[index, number] + relocation.offset
            places.append((place, reference, relocation.addend, self.architecture.dynamic_pointer))
        for place, reference, addend, kind in places:
            if isinstance(reference, str) and reference not in self.definitions:
                relocations.append((place, (1 + self.imports.index(reference)) << 32 | kind, addend))
            else:
                relocations.append((place, self.architecture.dynamic_relative, self._address(reference) + addend))
        yield from sorted(relocations, key=lambda entry: (entry[1] >> 32 != 0, entry[0]))

    def _dynamic_entries(self) -> Iterator[tuple[int, int]]:
        for library in self.needed:
            yield 1, self.string_offsets[library]  # DT_NEEDED
        yield 4, self.hash.address
        yield 5, self.dynstr.address
        yield 6, self.dynsym.address
        yield 10, self.dynstr.size
        yield 11, 24
        if self.rela.size:
            yield 7, self.rela.address
            yield 8, self.rela.size
            yield 9, 24
        yield 30, 8  # DT_FLAGS: bind now
        yield 0x6FFFFFFB, 1  # DT_FLAGS_1: the same
        yield 0, 0

    def _headers(self, section_table: int, section_count: int) -> bytes:
        """Return the ELF header and the program headers."""
        read, write, execute = 4, 2, 1
        rights = (read, read | execute, read | write, read | write)
        page = self.architecture.page_bytes
        headers: list[tuple[int, ...]] = [
            (1, right, start, start, start, file_end - start, memory_end - start, page)
            for right, (start, file_end, memory_end) in zip(rights, self.segments, strict=True)
            if memory_end > start
        ]
        dynamic = self.dynamic
        headers.append((2, read | write, *[dynamic.address] * 3, dynamic.size, dynamic.size, 8))
        relro_start, _, relro_end = self.segments[_RELRO]
        relro_bytes = relro_end - relro_start
        headers.append((0x6474E552, read, *[relro_start] * 3, relro_bytes, relro_bytes, 1))
        headers.append((0x6474E551, read | write, 0, 0, 0, 0, 0, 16))  # the stack is not executable
        ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
        sections = (64, section_count, max(section_count - 1, 0))
        numbers = (3, self.machine, 1, 0, 64, section_table, 0, 64, 56, len(headers), *sections)
        elf = struct.pack("<16sHHIQQQIHHHHHH", ident, *numbers)
        return elf + b"".join(struct.pack("<IIQQQQQQ", *header) for header in headers)

    def _section_table(self, file_bytes: int) -> tuple[int, bytes]:
        """Return the names and headers of sections, for tools (the loader does not need them), and the headers' offset
        in the file.
        """
        names, offsets = _string_table([*(part.name for part in self.parts), ".shstrtab"])
        numbers = {part.name: number for number, part in enumerate(self.parts, 1)}
        layout = "<IIQQQQIIQQ"
        table = [bytes(64)]
        for part in self.parts:
            place = (part.address, part.address, part.size)
            more = (numbers.get(part.link, 0), part.info, part.alignment, part.entry_bytes)
            table.append(struct.pack(layout, offsets[part.name], part.type, part.flags, *place, *more))
        table.append(struct.pack(layout, offsets[".shstrtab"], 3, 0, 0, file_bytes, len(names), 0, 0, 1, 0))
        start = _align(file_bytes + len(names), 8)
        return start, names.ljust(start - file_bytes, b"\0") + b"".join(table)


def _pack_relocation(place: int, info: int, addend: int) -> bytes:
    try:
        return struct.pack("<QQq", place, info, addend)
    except struct.error as error:
        raise LinkError(f"a pointer to an impossible address ({addend}); build the objects again") from error


def _definitions(files: Sequence[ObjectFile]) -> dict[str, tuple[int, Symbol]]:
    """Return where each global symbol is defined: a strong definition before weak ones, else the first."""
    found: dict[str, tuple[int, Symbol]] = {}
    for index, file in enumerate(files):
        for symbol in file.symbols:
            if symbol.binding == STB_LOCAL or symbol.section == SHN_UNDEF:
                continue
            if symbol.section in (SHN_ABS, SHN_COMMON) or symbol.kind == STT_GNU_IFUNC:
                raise LinkError(
                    f"object {index}: {symbol.name} is absolute, common or indirect, which is not supported"
                )
            before = found.get(symbol.name)
            if before and before[1].binding == symbol.binding == STB_GLOBAL:
                raise LinkError(f"{symbol.name} is defined in object {before[0]} and in object {index}; rename one")
            if not before or (symbol.binding == STB_GLOBAL and before[1].binding != STB_GLOBAL):
                found[symbol.name] = (index, symbol)
    return found


def _hash_table(names: Sequence[str]) -> bytes:
    """Return the System V hash table of dynamic symbols 1, 2, …: bucket heads, then for each symbol the next in its
    bucket.
    """
    buckets = [0] * max(len(names), 1)
    chain = [0] * (len(names) + 1)
    for symbol, name in enumerate(names, 1):
        bucket = _elf_hash(name) % len(buckets)
        chain[symbol] = buckets[bucket]
        buckets[bucket] = symbol
    return struct.pack(f"<{2 + len(buckets) + len(chain)}I", len(buckets), len(chain), *buckets, *chain)


def _elf_hash(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value


def _string_table(names: Iterable[str]) -> tuple[bytes, dict[str, int]]:
    table = bytearray(b"\0")
    offsets = {}
    for name in names:
        offsets[name] = len(table)
        table += name.encode() + b"\0"
    return bytes(table), offsets


def _align(value: int, alignment: int) -> int:
    return (value + alignment - 1) // alignment * alignment
