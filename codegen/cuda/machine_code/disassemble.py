"""Machine code of cubins by nvdisasm, from its wheel or from a CUDA installation.

Kernels are disassembled together, as one sequence of instructions per architecture: starting the program takes longer
than reading many kernels.
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tilestitch.codegen.cuda.toolchain.resources import sections
from tilestitch.codegen.errors import DisassemblerError

from .flow import INSTRUCTION_BYTES, Instruction, MachineCode

PROGRAM = "nvdisasm"
_TEXT = ".text."


@cache
def find_disassembler() -> str:
    """Return the path of nvdisasm. Raises DisassemblerError if there is none."""
    found = next(_of_wheels(), None) or shutil.which(PROGRAM)
    if found is None:
        raise DisassemblerError("nvdisasm is not installed; pip install 'tilestitch[cuda-compiler]'")
    return found


def _of_wheels() -> Iterator[str]:
    try:
        import nvidia
    except ImportError:
        return
    for root in nvidia.__path__:
        yield from map(str, sorted(Path(root).glob(f"*/bin/{PROGRAM}"), reverse=True))


def disassemble(cubins: Iterable[tuple[str, bytes]]) -> list[MachineCode]:
    """Return every kernel of some cubins, which come with their architectures (`sm_90a`).

    Raises DisassemblerError if there is no disassembler or it does not understand a kernel; CodegenError if something
    is no cubin.
    """
    texts: dict[str, dict[str, bytes]] = {}
    for architecture, cubin in cubins:
        for section in sections(cubin):
            if section.name.startswith(_TEXT):
                texts.setdefault(architecture, {})[section.name.removeprefix(_TEXT)] = section.data
    return [code for architecture, kernels in texts.items() for code in _disassembled(architecture, kernels)]


def _disassembled(architecture: str, kernels: Mapping[str, bytes]) -> list[MachineCode]:
    rows = _run(architecture, b"".join(kernels.values()))
    found, start = [], 0
    for symbol, text in kernels.items():
        count = len(text) // INSTRUCTION_BYTES
        mine = rows[start : start + count]
        found.append(
            MachineCode(symbol, architecture, tuple(_instruction(row, n, start) for n, row in enumerate(mine)))
        )
        start += count
    return found


def _run(architecture: str, text: bytes) -> list[Mapping[str, str]]:
    """Return the rows of nvdisasm's JSON for a sequence of instructions."""
    with tempfile.NamedTemporaryFile(prefix="tilestitch-", suffix=".bin") as file:
        file.write(text)
        file.flush()
        command = [find_disassembler(), "-json", "-b", architecture.replace("sm_", "SM"), file.name]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        listing: Any = json.loads(answer.stdout)
        rows: list[Mapping[str, str]] = listing[1][0]["sass-instructions"]
    except (ValueError, LookupError) as error:
        reason = answer.stderr.strip() or f"exit code {answer.returncode}"
        raise DisassemblerError(
            f"{command[0]} does not read machine code for {architecture}: {reason}; "
            "install a newer one: pip install --upgrade nvidia-cuda-nvdisasm"
        ) from error
    if len(rows) != len(text) // INSTRUCTION_BYTES:
        raise DisassemblerError(f"{command[0]} left instructions for {architecture} out; install another version of it")
    return rows


def _instruction(row: Mapping[str, str], number: int, start: int) -> Instruction:
    """Return an instruction with addresses, also in jumps, relative to the kernel's start."""
    found = Instruction(number * INSTRUCTION_BYTES, row["opcode"], row.get("operands", ""), row.get("predicate", ""))
    place = found.place
    if place is None or found.name not in ("BRA", "JMP", "BSSY", "WARPSYNC", "CALL"):
        return found
    here = hex(place - start * INSTRUCTION_BYTES)
    return Instruction(
        found.address, found.opcode, found.operands[: found.operands.rindex("0x")] + here, found.predicate
    )
