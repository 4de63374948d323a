"""Resources of a compiled kernel, read from its cubin.

A cubin is an ELF file. For each kernel `NAME` it has a section `.nv.info.NAME`, `.nv.shared.NAME` if there is static
shared memory, and in `.nv.info` the registers and the frame of every function. An attribute there is its format (byte),
its number (byte), and 16 bits: a value, or the size of what follows. (Format and numbers as the CUDA binary utilities
show them; they have been the same since sm_50.)
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from tilestitch.codegen.errors import CodegenError
from tilestitch.cost_model.devices import Device

_HAS_PAYLOAD = 4
_FRAME_SIZE, _REGISTER_COUNT = 0x11, 0x2F
_REGISTER_UNIT, _SHARED_UNIT, _WARP = 256, 128, 32
_SYSTEM_SHARED_BYTES = 1024
"""Shared memory of each block that CUDA reserves, from compute capability 8.0 on."""


@dataclass(frozen=True)
class KernelResources:
    """`registers`: of a thread. `shared_bytes`: static shared memory of a block. `local_bytes`: a thread's stack, for
    spilled registers and arrays with run-time indices.
    """

    registers: int
    shared_bytes: int
    local_bytes: int

    def blocks_per_sm(self, device: Device, threads: int, dynamic_shared_bytes: int) -> int:
        """Return how many blocks of `threads` threads one SM holds at a time; 0 if a block does not fit.

        Allocation units: NVIDIA's occupancy calculator (registers in units of 256 a warp, shared memory of 128 bytes).
        """
        warps = ceil(threads / _WARP)
        shared = ceil((self.shared_bytes + dynamic_shared_bytes) / _SHARED_UNIT) * _SHARED_UNIT
        if shared > device.shared_bytes_per_block or threads > 1024:
            return 0
        if device.capability >= 80:
            shared += _SYSTEM_SHARED_BYTES
        limits = [device.blocks_per_sm, device.threads_per_sm // (warps * _WARP)]
        if self.registers:
            a_warp = ceil(self.registers * _WARP / _REGISTER_UNIT) * _REGISTER_UNIT
            limits.append(device.registers_per_sm // a_warp // warps)
        if shared:
            limits.append(device.shared_bytes_per_sm // shared)
        return min(limits)


def kernel_resources(cubin: bytes) -> dict[str, KernelResources]:
    """Return the resources of every kernel of a cubin by its symbol. Raises CodegenError if it is not one."""
    try:
        return _read(cubin)
    except (struct.error, IndexError, ValueError, UnicodeDecodeError) as error:
        raise CodegenError(
            f"the compiler's cubin cannot be read ({error}); report it with the compiler's version"
        ) from error


@dataclass(frozen=True)
class Section:
    """A section of an ELF file; one without contents in the file (`.bss`) has a size only."""

    name: str
    size: int
    data: bytes


def _read(cubin: bytes) -> dict[str, KernelResources]:
    found_sections = sections(cubin)
    by_name = {section.name: section for section in found_sections}
    symbols = _symbol_names(by_name[".symtab"].data, by_name[".strtab"].data)
    registers, frames = dict[str, int](), dict[str, int]()
    for number, payload in _attributes(by_name[".nv.info"].data):
        if number in (_REGISTER_COUNT, _FRAME_SIZE):
            symbol, value = struct.unpack("<II", payload)
            (registers if number == _REGISTER_COUNT else frames)[symbols[symbol]] = value
    # From sm_90 on the section includes what CUDA reserves.
    kept = _SYSTEM_SHARED_BYTES if ".nv.shared.reserved.0" in by_name else 0
    found = {}
    for section in found_sections:
        if not section.name.startswith(".nv.info."):
            continue
        kernel = section.name.removeprefix(".nv.info.")
        shared = by_name.get(f".nv.shared.{kernel}")
        found[kernel] = KernelResources(registers[kernel], shared.size - kept if shared else 0, frames.get(kernel, 0))
    return found


def sections(elf: bytes) -> list[Section]:
    """Return all sections of an ELF file. Raises ValueError, struct.error or IndexError if it is not one."""
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError("not a 64-bit ELF file")
    (offset,) = struct.unpack_from("<Q", elf, 40)
    size, count, names_index = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, offset + i * size) for i in range(count)]
    names = headers[names_index]
    table = elf[names[4] : names[4] + names[5]]
    return [Section(_name(table, h[0]), h[5], elf[h[4] : h[4] + h[5]] if h[1] != 8 else b"") for h in headers]


def _symbol_names(table: bytes, names: bytes) -> list[str]:
    return [_name(names, struct.unpack_from("<I", table, at)[0]) for at in range(0, len(table), 24)]


def _name(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        format_, number, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if format_ == _HAS_PAYLOAD:
            yield number, data[at : at + size]
            at += size
