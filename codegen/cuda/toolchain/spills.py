"""Recompiles kernels that spill registers needlessly.

The assembler weighs the registers of a thread against the number of blocks that an SM holds by their shared memory. For
about one tiled kernel in a hundred it targets the next number of blocks, is a register short, and spills. The same text
with launch bounds that do not bind is weighed differently; and a kernel of which an SM need hold only one block has no
reason to save registers.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tilestitch.codegen.cuda.toolchain.resources import kernel_resources

Compile = Callable[[str, tuple[str, ...]], bytes]
"""Function that returns the cubin of a text, compiled with further options."""

MOST_REGISTERS = 255
"""Most registers of a thread, on every GPU."""
WAYS = (("", f"--maxrregcount={MOST_REGISTERS}"), (", 1", ""))
"""Alternatives, in order: text added to launch bounds without a number of blocks, and an option. Where blocks must be
resident together their number is fixed.
"""
_FREE_BOUNDS = re.compile(r"__launch_bounds__\((\d+)\)")


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


def _spilled_bytes(cubin: bytes) -> int:
    return sum(found.local_bytes for found in kernel_resources(cubin).values())
