"""Data-flow analysis of which kernel arguments an access to global memory may address.

Registers carry the set of arguments that their address may derive from. A loaded value is not an address; every other
result may derive from its operands. Joins take unions, so the result is conservative. Values written under a predicate
are tracked separately while the predicate lives, since the compiler likes to use one register for two addresses that
way.
"""

import re
from collections.abc import Iterator, Mapping

from .flow import GLOBAL_LOADS, GLOBAL_STORES, Instruction, MachineCode

Arguments = frozenset[int]
"""Offsets of arguments in constant memory."""

_State = Mapping[tuple[str, str], Arguments]
"""By register, and the predicate under which it was written; `""`: unpredicated."""
_REGISTER = re.compile(r"\bU?R\d+\b")
_PREDICATE = re.compile(r"U?P\d")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_CONSTANT = re.compile(r"c\[0x0\]\[0x([0-9a-f]+)\]")
_NOTHING: Arguments = frozenset()
_ACCESSES = GLOBAL_LOADS | GLOBAL_STORES | {"ATOMG", "ATOM"}
_NO_ADDRESSES = frozenset({"LDG", "LDS", "LDL", "LDSM", "ATOMG", "ATOM", "ATOMS", "S2R", "S2UR", "CS2R", "SHFL", "I2F"})
_LOADS = frozenset({"LDG", "LDS", "LDL"})
_NO_RESULTS = GLOBAL_STORES | {
    "LDGSTS",
    "STS",
    "STL",
    "BAR",
    "BRA",
    "BSSY",
    "BSYNC",
    "EXIT",
    "MEMBAR",
    "CCTL",
    "WARPSYNC",
}


def accessed(code: MachineCode) -> Mapping[int, Arguments]:
    """Return, for each access to global memory, by its number, the arguments that it may address."""
    states: dict[int, _State] = {0: {}}
    pending, first = [0], _first_argument(code.architecture)
    while pending:
        number = pending.pop()
        after = _step(states[number], code.instructions[number], first)
        for successor in code.flow.successors[number]:
            joined = _join(states.get(successor), after)
            if joined is not states.get(successor):
                states[successor] = joined
                pending.append(successor)
    return {
        number: _address(states[number], instruction)
        for number, instruction in enumerate(code.instructions)
        if instruction.name in _ACCESSES and number in states
    }


def _first_argument(architecture: str) -> int:
    """Return where arguments begin in constant memory."""
    capability = int("".join(filter(str.isdigit, architecture)))
    return 0x160 if capability < 90 else 0x210 if capability < 100 else 0x380


def _join(known: _State | None, more: _State) -> _State:
    """Return `known` itself if nothing is new."""
    if known is None or known is more:
        return more
    joined = {place: _entry(known, place) | _entry(more, place) for place in {*known, *more}}
    return known if joined == known else joined


def _entry(state: _State, place: tuple[str, str]) -> Arguments:
    """Return what a register holds under a predicate: its unpredicated value, unless it was written under it."""
    return state.get(place, state.get((place[0], ""), _NOTHING))


def _step(state: _State, instruction: Instruction, first: int) -> _State:
    if instruction.name in _NO_RESULTS or not instruction.operands:
        return state
    target, _, sources = instruction.operands.partition(",")
    state = _forgotten(state, [target, sources.partition(",")[0]])
    if not _REGISTER.fullmatch(target):
        return state
    found = _NOTHING
    if instruction.name not in _NO_ADDRESSES:
        offsets = (int(text, 16) for text in _CONSTANT.findall(sources))
        found = frozenset(offset & ~7 for offset in offsets if offset >= first)
        found |= _held(state, _REGISTER.findall(sources), instruction.predicate)
    for register in _results(instruction, target):
        state = _with(state, register, instruction.predicate, found)
    return state


def _results(instruction: Instruction, target: str) -> Iterator[str]:
    """Return the registers that an instruction writes: pairs and more have the name of the first."""
    file, first = target.rstrip("0123456789"), int(target.lstrip("UR"))
    wide = "WIDE" in instruction.modifiers or (instruction.name == "CS2R" and "32" not in instruction.modifiers)
    count = instruction.access_bytes // 4 if instruction.name in _LOADS else 2 if wide else 1
    return (f"{file}{first + number}" for number in range(max(1, count)))


def _with(state: _State, register: str, predicate: str, found: Arguments) -> _State:
    """Return the state after a write to a register."""
    held = {place for place in state if place[0] == register}
    if not (held or found):
        return state  # registers without an address, most of them, are not in the state
    if predicate:
        return {**state, (register, predicate): found}
    kept = {place: arguments for place, arguments in state.items() if place not in held}
    return {**kept, (register, ""): found} if found else kept


def _forgotten(state: _State, targets: list[str]) -> _State:
    """Return the state after a write to predicates: values tracked separately for them hold for all."""
    written = {target for target in targets if _PREDICATE.fullmatch(target)}
    ended = [place for place in state if place[1].lstrip("@!") in written]
    if not ended:
        return state
    left = {place: arguments for place, arguments in state.items() if place not in ended}
    for place in ended:
        left[place[0], ""] = left.get((place[0], ""), _NOTHING) | state[place]
    return left


def _held(state: _State, registers: list[str], predicate: str) -> Arguments:
    """Return what registers may hold where a predicate is true."""
    found = _NOTHING
    for register in registers:
        own = state.get((register, predicate)) if predicate else None
        known = [own] if own is not None else [a for place, a in state.items() if place[0] == register]
        found = found.union(*known)
    return found


def _address(state: _State, instruction: Instruction) -> Arguments:
    """Return the possible arguments of an access's address, which is in the last brackets; for a copy to shared memory
    that is its source.
    """
    places = _BRACKETS.findall(instruction.operands)
    return _held(state, _REGISTER.findall(places[-1]), instruction.predicate) if places else _NOTHING
