"""Checks of machine code. Findings are data, with the kernel, the address and the reason.

* `local_memory`: registers that did not fit, or arrays with run-time indices, in a thread's memory.
* `fence_in_loop`: a memory barrier of the whole GPU, or an L1 cache thrown away, in a loop that multiplies or moves
  data, or in one that waits: waiting is done with relaxed loads, and synchronised once afterwards.
* `stale_load`: a load past the caches' coherence (`LDG.CONSTANT`) of memory that the same kernel writes.
* `narrow_load`, `narrow_store`: the widest access is narrower than what the template asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from .flow import GLOBAL_LOADS, GLOBAL_STORES, LOCAL, Instruction, Loop, MachineCode
from .parameters import accessed


@dataclass(frozen=True)
class Widths:
    """Bytes of a thread's widest access to global memory; 0: none."""

    load_bytes: int = 0
    store_bytes: int = 0


@dataclass(frozen=True)
class Finding:
    """`address`: of the instruction in the kernel; None if the finding concerns the whole kernel."""

    rule: str
    symbol: str
    architecture: str
    reason: str
    address: int | None = None

    def __str__(self) -> str:
        where = "" if self.address is None else f" at {self.address:#x}"
        return f"{self.symbol} ({self.architecture}){where}: {self.reason} [{self.rule}]"


def lint(code: MachineCode, promised: Widths | None = None) -> tuple[Finding, ...]:
    """Return the findings for a kernel. `promised`: the accesses that its template emits, if known."""
    found = [*_local_memory(code), *_fences(code), *_stale_loads(code)]
    if promised is not None:
        found += _narrow(code, promised)
    return tuple(found)


def widths(code: MachineCode) -> Widths:
    """Return the widest accesses of a kernel; copies to shared memory by the copy engine count as 16 bytes."""
    return Widths(_widest(code, GLOBAL_LOADS | {"UTMALDG"}), _widest(code, GLOBAL_STORES | {"UTMASTG"}))


def _widest(code: MachineCode, names: frozenset[str]) -> int:
    return max(
        (16 if i.name.startswith("UTMA") else i.access_bytes for i in code.instructions if i.name in names), default=0
    )


def main_loops(code: MachineCode) -> tuple[Loop, ...]:
    """Return the loops that dominate the time: the smallest around matrix instructions, and the innermost ones."""
    loops = code.flow.loops
    smallest: dict[int, Loop] = {}
    for loop in loops:  # outer ones come first
        smallest.update({n: loop for n in loop.members if code.instructions[n].is_matrix})
    return tuple(loop for loop in loops if loop.leaf or loop in smallest.values())


def _finding(code: MachineCode, rule: str, instruction: Instruction, reason: str) -> Finding:
    return Finding(rule, code.symbol, code.architecture, f"{instruction}: {reason}", instruction.address)


def _local_memory(code: MachineCode) -> Iterator[Finding]:
    touched = [i for i in code.instructions if i.name in LOCAL]
    if touched:
        reason = f"one of {len(touched)} accesses to a thread's own memory: give it fewer registers to keep"
        yield _finding(code, "local_memory", touched[0], reason)


def _is_gpu_fence(instruction: Instruction) -> bool:
    if instruction.name == "MEMBAR":
        return bool({"GPU", "SYS", "VC"} & set(instruction.modifiers))
    return instruction.opcode.startswith("CCTL.IVALL")


def _fences(code: MachineCode) -> Iterator[Finding]:
    for number in sorted({n for loop in main_loops(code) for n in _working_part(code, loop)}):
        instruction = code.instructions[number]
        if _is_gpu_fence(instruction):
            reason = "in a main loop: synchronise after it, or with less"
            yield _finding(code, "fence_in_loop", instruction, reason)


def _working_part(code: MachineCode, loop: Loop) -> range | frozenset[int]:
    """Return the part of a loop to check. A loop that both multiplies and stores results iterates over tiles, with its
    steps unrolled: then only the part from the first to the last matrix instruction counts, as results are stored once
    per tile.
    """
    matrix = [n for n in loop.members if code.instructions[n].is_matrix]
    stores = any(code.instructions[n].name in GLOBAL_STORES for n in loop.members)
    return range(min(matrix), max(matrix)) if matrix and stores else loop.members


def _stale_loads(code: MachineCode) -> Iterator[Finding]:
    suspects = [n for n, i in enumerate(code.instructions) if i.name in GLOBAL_LOADS and "CONSTANT" in i.modifiers]
    if not suspects or not any(_is_gpu_fence(i) for i in code.instructions):
        return  # no results of other blocks are waited for
    places = accessed(code)
    written = {p for n, i in enumerate(code.instructions) if i.name in _WRITES for p in places.get(n, ())}
    for number in suspects:
        if written & places.get(number, frozenset()):
            yield _finding(
                code,
                "stale_load",
                code.instructions[number],
                "reads what the kernel writes, past the caches' coherence",
            )


_WRITES = GLOBAL_STORES | {"ATOMG", "ATOM"}


def _narrow(code: MachineCode, promised: Widths) -> Iterator[Finding]:
    found = widths(code)
    for rule, is_, wanted in (
        ("narrow_load", found.load_bytes, promised.load_bytes),
        ("narrow_store", found.store_bytes, promised.store_bytes),
    ):
        if is_ < wanted:
            reason = (
                f"the widest access is of {is_} bytes, not {wanted} as the template asked: is it aligned in the text?"
            )
            yield Finding(rule, code.symbol, code.architecture, reason)
