"""Takes everything out of the vector registers between a reduction and its epilogue.

LLVM loads the constants of an epilogue, the coefficients of an exponential for instance, before all loops that they do
not change in, and takes a use in the epilogue's loop for as frequent as one in the reduction, which is no deeper. Of a
tile that fills the registers, some accumulators are in memory then, in each step of the reduction: 15 of 28 for 14 rows
by 2 vectors with a GELU, which takes 1.07 to 1.09 times as long (197 x 768 by 768 x 3072, AMD Zen 4, one thread, CPU
time, 28 November 2026). Where all registers are overwritten between the two, constants are loaded after that.

Reductions in a loop more than their epilogues need none of it: blocks of the reduction, gates, taps of convolutions.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, StringImm
from tvm.script.ir_builder import tirx as T

from tilestitch.passes.plan.cpu.isa import Isa

EMPTY = "tilestitch_empty_vector_registers"
_NAMES = {"avx512": "xmm", "avx2": "xmm", "sse": "xmm", "neon": "v"}
"""What registers are called; the lower part of a register stands for all of it."""


def empty_registers() -> None:
    """Nothing stays in a vector register here. It takes no instruction of its own."""
    T.evaluate(T.call_extern("void", EMPTY))


def with_emptying(func: Any, isa: Isa) -> Any:
    """`func` with what `empty_registers` calls as part of its module, if it does."""
    found: list[Any] = []

    def see(call: Any) -> Any:
        if getattr(call.op, "name", "") == "tirx.call_extern" and getattr(call.args[0], "value", "") == EMPTY:
            found.append(call)
        return call

    tvm_ffi.structural_map(func.body, [(Call, see)])
    if not found:
        return func
    return func.with_body(tirx.AttrStmt(T.int32(0), "pragma_import_llvm", StringImm(_text(isa)), func.body))


def _text(isa: Isa) -> str:
    """LLVM's text of the function: inline assembly without instructions that overwrites all vector registers."""
    name = _NAMES.get(isa.name)
    overwritten = ",".join(f"~{{{name}{number}}}" for number in range(isa.vector_registers)) if name else ""
    return f"""define linkonce_odr hidden void @{EMPTY}() alwaysinline {{
  call void asm sideeffect "", "{overwritten}"()
  ret void
}}
"""
