"""Compiles kernels again whose registers went to memory although there were more.

The assembler weighs the registers of a thread against the blocks that an SM holds by the shared memory that it sees.
About one kernel of tiles in a hundred comes out a register short of the next number of blocks, and the assembler then
keeps a value in memory for it. The same text under a bound that binds nothing is weighed in another way; and a kernel
of which an SM need hold only one block has no reason to save.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tilestitch.codegen.cuda.toolchain.resources import kernel_resources

Compile = Callable[[str, tuple[str, ...]], bytes]
"""The cubin of a text, by the compiler with further options."""

MOST_REGISTERS = 255
"""Of a thread, on every GPU."""
WAYS = (("", f"--maxrregcount={MOST_REGISTERS}"), (", 1", ""))
"""To compile again, one after the other: what comes into launch bounds that say nothing of blocks, and an option.
Where blocks must be resident together their number is said, and stays as it is.
"""
_FREE_BOUNDS = re.compile(r"__launch_bounds__\((\d+)\)")


def without_spills(source: str, compile_: Compile) -> bytes:
    """Return the cubin of a text by the first way that keeps all in registers, or by the one that spills least.

    Arrays with run-time indices stay in memory whatever the way.
    """
    best = compile_(source, ())
    for blocks, option in WAYS:
        if not _spilled_bytes(best):
            return best
        text = _FREE_BOUNDS.sub(rf"__launch_bounds__(\1{blocks})", source)
        best = min(best, compile_(text, (option,) if option else ()), key=_spilled_bytes)
    return best


def _spilled_bytes(cubin: bytes) -> int:
    return sum(found.local_bytes for found in kernel_resources(cubin).values())
