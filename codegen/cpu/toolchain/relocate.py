"""How x86-64 and aarch64 code refers to addresses: the relocations that LLVM emits for position-independent code.

A formula is named by what it computes, in the letters of the ELF standards: S address of the symbol, A addend, P place,
G address of the symbol's slot in the global offset table (GOT), L address of a stub that jumps to the symbol, Page(x) =
x without its low 12 bits.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from tilestitch.codegen.cpu.toolchain.elf import EM_AARCH64, EM_X86_64
from tilestitch.codegen.errors import LinkError


class Target(Enum):
    """Target of a relocation."""

    SYMBOL = "S"  # the symbol itself, which must be in the library
    CALL = "L"  # the symbol, or a stub when it is in another library
    SLOT = "G"  # the symbol's slot in the GOT
    POINTER = "pointer"  # an absolute 64-bit address, which the dynamic loader fills in


Patch = Callable[[bytearray, int, int, int], None]
"""`patch(image, offset, target_address, place_address)` changes the image; the addend is part of the target address."""


@dataclass(frozen=True)
class Formula:
    """How one kind of relocation is applied."""

    target: Target
    patch: Patch


@dataclass(frozen=True)
class Architecture:
    """Architecture-specific parameters of the linker. `dynamic_*` are the kinds of relocations left to the dynamic
    loader.
    """

    formulas: dict[int, Formula]
    page_bytes: int
    stub_bytes: int
    stub: Callable[[int, int], bytes]  # (address of the stub, address of the slot) -> code
    dynamic_slot: int
    dynamic_pointer: int
    dynamic_relative: int


def _no_patch(image: bytearray, offset: int, target: int, place: int) -> None:
    """Do nothing: the dynamic loader writes the address; see `Target.POINTER`."""


def _relative32(image: bytearray, offset: int, target: int, place: int) -> None:
    _put(image, offset, "<i", target - place)


def _relative64(image: bytearray, offset: int, target: int, place: int) -> None:
    _put(image, offset, "<q", target - place)


def _put(image: bytearray, offset: int, layout: str, value: int) -> None:
    try:
        struct.pack_into(layout, image, offset, value)
    except struct.error as error:
        raise LinkError(f"an address is too far away: {value} bytes; split the model into fewer kernels") from error


def _x86_stub(stub: int, slot: int) -> bytes:
    return b"\xff\x25" + struct.pack("<i", slot - (stub + 6)) + b"\xcc\xcc"  # jmp *slot(%rip); int3; int3


# --- aarch64: immediates inside instructions -------------------------------------------------------------------------


def _set_bits(image: bytearray, offset: int, value: int, bits: int, position: int) -> None:
    (word,) = struct.unpack_from("<I", image, offset)
    mask = (1 << bits) - 1
    struct.pack_into("<I", image, offset, word & ~(mask << position) | (value & mask) << position)


def _signed(value: int, bits: int) -> int:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise LinkError(
            f"an address is too far away: {value} does not fit {bits} bits; split the model into fewer kernels"
        )
    return value


def _branch(bits: int, position: int) -> Patch:
    def patch(image: bytearray, offset: int, target: int, place: int) -> None:
        _set_bits(image, offset, _signed(target - place, bits + 2) >> 2, bits, position)

    return patch


def _adr(image: bytearray, offset: int, value: int) -> None:
    _set_bits(image, offset, value, 2, 29)
    _set_bits(image, offset, value >> 2, 19, 5)


def _adr_bytes(image: bytearray, offset: int, target: int, place: int) -> None:
    _adr(image, offset, _signed(target - place, 21))


def _adr_page(image: bytearray, offset: int, target: int, place: int) -> None:
    _adr(image, offset, _signed((target >> 12) - (place >> 12), 21))


def _low12(scale_bits: int) -> Patch:
    def patch(image: bytearray, offset: int, target: int, place: int) -> None:
        if target & ((1 << scale_bits) - 1):
            raise LinkError(
                f"address {target:#x} is not aligned to {1 << scale_bits} bytes, as its load instruction demands"
            )
        _set_bits(image, offset, (target & 0xFFF) >> scale_bits, 12 - scale_bits, 10)

    return patch


def _aarch64_stub(stub: int, slot: int) -> bytes:
    # adrp x16, slot; ldr x17, [x16, #low12(slot)]; br x17; nop
    code = bytearray(struct.pack("<4I", 0x90000010, 0xF9400211, 0xD61F0220, 0xD503201F))
    _adr_page(code, 0, slot, stub)
    _low12(3)(code, 4, slot, stub + 4)
    return bytes(code)


# --- tables ----------------------------------------------------------------------------------------------------------

ARCHITECTURES = {
    EM_X86_64: Architecture(
        formulas={
            1: Formula(Target.POINTER, _no_patch),  # R_X86_64_64: S + A
            2: Formula(Target.CALL, _relative32),  # R_X86_64_PC32: S + A - P
            4: Formula(Target.CALL, _relative32),  # R_X86_64_PLT32: L + A - P
            9: Formula(Target.SLOT, _relative32),  # R_X86_64_GOTPCREL: G + A - P
            24: Formula(Target.SYMBOL, _relative64),  # R_X86_64_PC64: S + A - P
            41: Formula(Target.SLOT, _relative32),  # R_X86_64_GOTPCRELX
            42: Formula(Target.SLOT, _relative32),  # R_X86_64_REX_GOTPCRELX
        },
        page_bytes=0x1000,
        stub_bytes=8,
        stub=_x86_stub,
        dynamic_slot=6,  # R_X86_64_GLOB_DAT
        dynamic_pointer=1,  # R_X86_64_64
        dynamic_relative=8,  # R_X86_64_RELATIVE
    ),
    EM_AARCH64: Architecture(
        formulas={
            257: Formula(Target.POINTER, _no_patch),  # R_AARCH64_ABS64: S + A
            260: Formula(Target.SYMBOL, _relative64),  # R_AARCH64_PREL64: S + A - P
            261: Formula(Target.SYMBOL, _relative32),  # R_AARCH64_PREL32: S + A - P
            274: Formula(Target.SYMBOL, _adr_bytes),  # R_AARCH64_ADR_PREL_LO21: S + A - P
            275: Formula(Target.SYMBOL, _adr_page),  # R_AARCH64_ADR_PREL_PG_HI21: Page(S + A) - Page(P)
            276: Formula(Target.SYMBOL, _adr_page),  # R_AARCH64_ADR_PREL_PG_HI21_NC
            277: Formula(Target.SYMBOL, _low12(0)),  # R_AARCH64_ADD_ABS_LO12_NC: low 12 bits of S + A
            278: Formula(Target.SYMBOL, _low12(0)),  # R_AARCH64_LDST8_ABS_LO12_NC
            279: Formula(Target.SYMBOL, _branch(14, 5)),  # R_AARCH64_TSTBR14
            280: Formula(Target.SYMBOL, _branch(19, 5)),  # R_AARCH64_CONDBR19
            282: Formula(Target.CALL, _branch(26, 0)),  # R_AARCH64_JUMP26: S + A - P
            283: Formula(Target.CALL, _branch(26, 0)),  # R_AARCH64_CALL26
            284: Formula(Target.SYMBOL, _low12(1)),  # R_AARCH64_LDST16_ABS_LO12_NC
            285: Formula(Target.SYMBOL, _low12(2)),  # R_AARCH64_LDST32_ABS_LO12_NC
            286: Formula(Target.SYMBOL, _low12(3)),  # R_AARCH64_LDST64_ABS_LO12_NC
            299: Formula(Target.SYMBOL, _low12(4)),  # R_AARCH64_LDST128_ABS_LO12_NC
            311: Formula(Target.SLOT, _adr_page),  # R_AARCH64_ADR_GOT_PAGE: Page(G) - Page(P)
            312: Formula(Target.SLOT, _low12(3)),  # R_AARCH64_LD64_GOT_LO12_NC: low 12 bits of G
        },
        page_bytes=0x10000,
        stub_bytes=16,
        stub=_aarch64_stub,
        dynamic_slot=1025,  # R_AARCH64_GLOB_DAT
        dynamic_pointer=257,  # R_AARCH64_ABS64
        dynamic_relative=1027,  # R_AARCH64_RELATIVE
    ),
}
