"""Recompiles kernels that spill registers needlessly, or of which an SM holds a block less for the sake of a few.

The assembler weighs the registers of a thread against the number of blocks that an SM holds by their shared memory. For
about one tiled kernel in a hundred it targets the next number of blocks, is a register short, and spills. The same text
with launch bounds that do not bind is weighed differently; and a kernel of which an SM need hold only one block has no
reason to save registers.

Nor does it save a few registers for another block, if nothing asks for a number of blocks: float32 GEMMs in tiles of
128 x 128 took 130 to 133, and an SM held one block of 256 threads where 128 allow two.
"""

import re
from collections.abc import Callable
from dataclasses import replace

from tilestitch.codegen.cuda.toolchain.resources import kernel_resources, sections
from tilestitch.cost_model.devices import representative

Compile = Callable[[str, tuple[str, ...]], bytes]
"""Function that returns the cubin of a text, compiled with further options."""

MOST_REGISTERS = 255
"""Most registers of a thread, on every GPU."""
WAYS = (("", f"--maxrregcount={MOST_REGISTERS}"), (", 1", ""))
"""Alternatives, in order: text added to launch bounds without a number of blocks, and an option. Where blocks must be
resident together their number is fixed.
"""
FEW_REGISTERS = 8
"""So many registers a thread can perhaps do without."""
FEW_BLOCKS = 3
"""Most blocks of an SM to which another one adds so much that it is tried."""
FEW_MORE = 1.03
"""How many times as long the code may be."""
_FREE_BOUNDS = re.compile(r"__launch_bounds__\((\d+)\)")


REGISTERS = (WAYS, FEW_REGISTERS, FEW_BLOCKS, FEW_MORE)
"""What a cubin depends on, besides its text and the compiler."""


def cubin_of(source: str, architecture: str, compile_: Compile) -> bytes:
    """Return the best cubin of a text."""
    return with_another_block(source, without_spills(source, compile_), architecture, compile_)


def without_spills(source: str, compile_: Compile) -> bytes:
    """Return the cubin of a text by the first way without spills, or by the one that spills least.

    Arrays with run-time indices stay in local memory in any case.
    """
    best = compile_(source, ())
    for blocks, option in WAYS:
        if not _spilled_bytes(best):
            return best
        text = _FREE_BOUNDS.sub(rf"__launch_bounds__(\1{blocks})", source)
        best = min(best, compile_(text, (option,) if option else ()), key=_spilled_bytes)
    return best


def with_another_block(source: str, cubin: bytes, architecture: str, compile_: Compile) -> bytes:
    """Return the cubin of a text with a few registers less, if an SM then holds one more block, and nothing else is
    lost; else the given one.
    """
    registers = _registers_for_more(source, cubin, architecture)
    if registers is None:
        return cubin
    other = compile_(source, (f"--maxrregcount={registers}",))
    is_as_good = _spilled_bytes(other) <= _spilled_bytes(cubin) and _code_bytes(other) <= FEW_MORE * _code_bytes(cubin)
    return other if is_as_good else cubin


def _registers_for_more(source: str, cubin: bytes, architecture: str) -> int | None:
    """Return the registers of a thread at which an SM holds one more block, if those are few less; None for kernels
    that fix their number of blocks, or whose shared memory is known at their launch only.
    """
    bounds, found = _FREE_BOUNDS.search(source), list(kernel_resources(cubin).values())
    if bounds is None or len(found) != 1 or "extern __shared__" in source:
        return None
    device, threads = representative(int(re.sub(r"\D", "", architecture))), int(bounds[1])
    before = found[0].blocks_per_sm(device, threads, 0)
    for registers in range(found[0].registers - 1, found[0].registers - FEW_REGISTERS - 1, -1):
        if before <= FEW_BLOCKS and replace(found[0], registers=registers).blocks_per_sm(device, threads, 0) > before:
            return registers
    return None


def _code_bytes(cubin: bytes) -> int:
    return sum(section.size for section in sections(cubin) if section.name.startswith(".text."))


def _spilled_bytes(cubin: bytes) -> int:
    return sum(found.local_bytes for found in kernel_resources(cubin).values())
