"""Instruction mix of a kernel: of its busiest loop, or of all its instructions if it has none.

A warp scheduler issues one instruction per cycle. So a kernel without loops takes at least its instructions times its
warps over the schedulers, and in a loop that multiplies, other instructions compete for issue slots.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from .flow import MATRIX, Instruction, Loop, MachineCode
from .lint import main_loops

GROUPS: Mapping[str, frozenset[str]] = {
    "matrix": MATRIX,
    "float": frozenset({"FFMA", "FADD", "FMUL", "FMNMX", "DFMA", "DADD", "DMUL", "HFMA2", "HADD2", "HMUL2", "HMNMX2"}),
    "special": frozenset({"MUFU"}),
    "global": frozenset({"LDG", "LDGSTS", "STG", "RED", "REDG", "ATOMG", "ATOM", "UTMALDG", "UTMASTG"}),
    "shared": frozenset({"LDS", "LDSM", "STS", "STSM", "ATOMS"}),
}
"""Groups of instructions. All others compute indices, control the flow, or move and convert values."""

OTHER = "other"


@dataclass(frozen=True)
class Mix:
    """`instructions`: of the whole kernel. `in_loop`: of its busiest loop; 0: it has none. `groups`: number of
    instructions of each of GROUPS, and others, in that loop, or in the whole kernel if there is none.
    """

    instructions: int
    in_loop: int
    groups: Mapping[str, int]

    def per_byte(self, threads: int, nbytes: int) -> float | None:
        """Return the instructions per moved byte for so many threads; None if there is a loop."""
        return None if self.in_loop or not nbytes else self.instructions * threads / nbytes


def mix_of(code: MachineCode) -> Mix:
    """Return the instruction mix, without padding."""
    there = [n for n, i in enumerate(code.instructions) if i.name != "NOP" and not _ends_here(code, n)]
    loop = busiest_loop(code)
    counted = there if loop is None else sorted(loop.members)
    counts = Counter(_group(code.instructions[n]) for n in counted)
    return Mix(len(there), 0 if loop is None else len(loop.members), dict(sorted(counts.items())))


def busiest_loop(code: MachineCode) -> Loop | None:
    """Return the main loop with most matrix instructions, then most work; None if all only wait."""

    def work(loop: Loop) -> tuple[int, int]:
        groups = Counter(_group(code.instructions[n]) for n in loop.members)
        return groups["matrix"], sum(groups.values()) - groups[OTHER]

    found = max(main_loops(code), key=work, default=None)
    return found if found is not None and work(found)[1] > 1 else None


def _group(instruction: Instruction) -> str:
    if instruction.name == "HFMA2" and "-RZ,RZ" in instruction.operands:
        return OTHER  # no multiplication: this is how a constant is loaded to a register
    return next((group for group, names in GROUPS.items() if instruction.name in names), OTHER)


def _ends_here(code: MachineCode, number: int) -> bool:
    """Return whether it is the jump to itself that follows a kernel's last instruction."""
    return code.flow.successors[number] == (number,)
