"""Which argument an access to memory goes to, by registers that are written one, two or four at a time."""

from __future__ import annotations

import pytest

from tilestitch.codegen.cuda.machine_code.flow import INSTRUCTION_BYTES, Instruction, MachineCode
from tilestitch.codegen.cuda.machine_code.parameters import accessed

FIRST, SECOND = 0x160, 0x168


def code(*lines: tuple[str, str]) -> MachineCode:
    instructions = (Instruction(n * INSTRUCTION_BYTES, *line) for n, line in enumerate((*lines, ("EXIT", ""))))
    return MachineCode("k", "sm_80", tuple(instructions))


@pytest.mark.parametrize(
    "written",
    [
        ("IMAD.WIDE.U32", "R14,R14,-0x55555555,RZ"),
        ("CS2R", "R14,SRZ"),
        ("LDG.E.64", "R14,[R2.64]"),
        ("LDS.128", "R12,[R4]"),
    ],
)
def test_the_second_register_of_a_pair_is_written_too(written: tuple[str, str]) -> None:
    """R15 was the upper half of an address; as an index it is none."""
    found = accessed(
        code(
            ("IADD3.X", f"R15,R3,c[0x0][0x{SECOND + 4:x}],RZ,P0,!PT"),
            written,
            ("IMAD.WIDE", f"R20,R15,R9,c[0x0][0x{FIRST:x}]"),
            ("LDG.E", "R1,[R20.64]"),
        )
    )
    assert found[3] == {FIRST}


def test_an_address_that_is_moved_stays_one() -> None:
    found = accessed(
        code(
            ("IMAD.WIDE", f"R20,R15,R9,c[0x0][0x{FIRST:x}]"),
            ("IADD3", "R22,P0,R20,0x100,RZ"),
            ("IADD3.X", "R23,RZ,R21,RZ,P0,!PT"),
            ("LDG.E", "R1,[R22.64]"),
        )
    )
    assert found[3] == {FIRST}
