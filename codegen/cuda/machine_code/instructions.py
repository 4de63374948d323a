"""One instruction of machine code as data, in nvdisasm's notation."""

import re
from dataclasses import dataclass

INSTRUCTION_BYTES = 16
"""Size of an instruction since compute capability 7.0."""

_ADDRESS = re.compile(r"(?:^|,)(0x[0-9a-f]+)$")
_WIDTH = re.compile(r"\.(64|96|128|256|[US](?:8|16))\b")
MATRIX = frozenset({"HMMA", "IMMA", "DMMA", "BMMA", "QMMA", "OMMA", "HGMMA", "IGMMA", "QGMMA", "BGMMA", "UTCHMMA"})
GLOBAL_LOADS = frozenset({"LDG", "LDGSTS"})
GLOBAL_STORES = frozenset({"STG", "REDG", "RED"})
LOCAL = frozenset({"LDL", "STL"})


@dataclass(frozen=True)
class Instruction:
    """address: in bytes from the kernel's first instruction. opcode: with its modifiers (`LDG.E.128.CONSTANT`)."""

    address: int
    opcode: str
    operands: str = ""
    predicate: str = ""

    @property
    def name(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> tuple[str, ...]:
        return tuple(self.opcode.split(".")[1:])

    @property
    def place(self) -> int | None:
        """The address that the last operand names."""
        match = _ADDRESS.search(self.operands)
        return int(match[1], 16) if match else None

    @property
    def access_bytes(self) -> int:
        """Bytes that a load or store moves per thread."""
        match = _WIDTH.search(self.opcode)
        bits = match[1].lstrip("US") if match else "32"
        return int(bits) // 8

    @property
    def is_matrix(self) -> bool:
        return self.name in MATRIX

    def __str__(self) -> str:
        return " ".join(part for part in (self.predicate, self.opcode, self.operands) if part)
