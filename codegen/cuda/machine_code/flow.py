"""Machine code of a kernel as data: its instructions in order, in nvdisasm's notation, its control flow and loops.

A loop is a strongly connected component of the instructions. Nested loops are found by removing the edges back to its
entry. So code after a kernel's end that jumps back into its middle does not make a loop of what is in between.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

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


_JUMPS = frozenset({"BRA", "JMP"})
_ENDS = frozenset({"EXIT", "RET", "BRX", "JMX", "KILL"})
_MAYBE = frozenset({"BRA.DIV", "BRA.CONV"})
"""Jumps without a predicate that are conditional nevertheless."""

Edges = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class Loop:
    """`members`: numbers of its instructions. `depth`: 1 for an outermost loop. `leaf`: it contains no other loop."""

    members: frozenset[int]
    depth: int
    leaf: bool


@dataclass(frozen=True)
class Flow:
    """`successors`: of every instruction, by number."""

    successors: Edges

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """All loops, outer ones before those in them."""
        return tuple(_loops(self.successors, frozenset(self.successors), 1))


def flow_of(instructions: Sequence[Instruction]) -> Flow:
    numbers = {instruction.address: number for number, instruction in enumerate(instructions)}
    ends = _reconvergence(instructions)
    return Flow({n: _successors(instructions, n, numbers, ends) for n in range(len(instructions))})


def _successors(
    instructions: Sequence[Instruction], number: int, numbers: Mapping[int, int], ends: Mapping[str, Sequence[int]]
) -> tuple[int, ...]:
    instruction = instructions[number]
    following = (number + 1,) if number + 1 < len(instructions) else ()
    name, always = instruction.name, instruction.predicate in ("", "@PT", "@UPT")
    if name in _ENDS:
        return () if always else following
    if name == "BSYNC":
        return _after_meeting(instructions, number, numbers, ends) or following
    if name not in _JUMPS and name != "WARPSYNC":
        return following
    place = instruction.place
    to = None if place is None else numbers.get(place)
    if to is None:
        return following if name == "WARPSYNC" else ()
    certain = always and name in _JUMPS and "," not in instruction.operands and instruction.opcode not in _MAYBE
    return (to,) if certain else tuple(dict.fromkeys((*following, to)))


def _reconvergence(instructions: Sequence[Instruction]) -> dict[str, list[int]]:
    """Return where threads continue after reconverging at a barrier register, by its name."""
    ends: dict[str, list[int]] = {}
    for instruction in instructions:
        if instruction.name == "BSSY" and instruction.place is not None:
            ends.setdefault(instruction.operands.partition(",")[0], []).append(instruction.place)
    return {name: sorted(set(places)) for name, places in ends.items()}


def _after_meeting(
    instructions: Sequence[Instruction], number: int, numbers: Mapping[int, int], ends: Mapping[str, Sequence[int]]
) -> tuple[int, ...]:
    """Return the next address for the barrier register of a BSYNC."""
    address = instructions[number].address
    ahead = (place for place in ends.get(instructions[number].operands, ()) if place > address)
    return tuple(numbers[place] for place in islice(ahead, 1) if place in numbers)


# -- loops -------------------------------------------------------------------------------------------------------------


def _loops(successors: Edges, members: frozenset[int], depth: int) -> list[Loop]:
    found: list[Loop] = []
    for part in _connected(successors, members):
        if len(part) == 1 and not set(successors[min(part)]) & part:
            continue
        headers = _headers(successors, members, part)
        without = {n: tuple(s for s in successors[n] if s in part and s not in headers) for n in part}
        inner = _loops(without, part, depth + 1)
        found += [Loop(part, depth, not inner), *inner]
    return found


def _headers(successors: Edges, members: frozenset[int], part: frozenset[int]) -> frozenset[int]:
    """Return the entries of a loop from outside; its first instruction if it is all there is."""
    entered = {after for n in members - part for after in successors[n] if after in part}
    return frozenset(entered or {min(part)})


def _connected(successors: Edges, members: frozenset[int]) -> list[frozenset[int]]:
    """Return the strongly connected components (Tarjan), without recursion: kernels have tens of thousands of
    instructions.
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    waiting: set[int] = set()
    parts: list[frozenset[int]] = []
    for root in sorted(members):
        if root in index:
            continue
        work = [(root, iter(successors[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        waiting.add(root)
        while work:
            node, rest = work[-1]
            after = next((s for s in rest if s in members and (s not in index or s in waiting)), None)
            if after is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    parts.append(_popped(stack, node))
                    waiting -= parts[-1]
            elif after in index:
                low[node] = min(low[node], index[after])
            else:
                index[after] = low[after] = len(index)
                stack.append(after)
                waiting.add(after)
                work.append((after, iter(successors[after])))
    return parts


def _popped(stack: list[int], last: int) -> frozenset[int]:
    """Pop the elements of a stack down to `last` and return them."""
    found = [stack.pop()]
    while found[-1] != last:
        found.append(stack.pop())
    return frozenset(found)


@dataclass(frozen=True)
class MachineCode:
    """A kernel's instructions. architecture: `sm_90a`."""

    symbol: str
    architecture: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def flow(self) -> Flow:
        return flow_of(self.instructions)
