"""Clobbers the vector registers between a reduction and its epilogue.

LLVM hoists the constants of an epilogue, such as the coefficients of an exponential, out of all loops, and considers a
use in the epilogue's loop as frequent as one in the reduction, which is no deeper. Of a tile that fills the registers,
some accumulators are then spilled in each step of the reduction: 15 of 28 for 14 rows by 2 vectors with a GELU. With
all registers clobbered in between, constants are loaded after that.

Reductions that are deeper than their epilogues do not need it: blocks of the reduction, gates, taps of convolutions.
"""

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, StringImm
from tvm.script.ir_builder import tirx as T

from tilestitch.passes.plan.cpu.isa import Isa

EMPTY = "tilestitch_empty_vector_registers"
_NAMES = {"avx512": "xmm", "avx2": "xmm", "sse": "xmm", "neon": "v"}
"""Names of registers; the lower part of a register stands for all of it."""


def empty_registers() -> None:
    """Clobber all vector registers here, without an instruction."""
    T.evaluate(T.call_extern("void", EMPTY))


def with_emptying(func: Any, isa: Isa) -> Any:
    """Return `func` with the function that `empty_registers` calls as part of its module, if it does."""
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
    """Return the LLVM text of the function: empty inline assembly that clobbers all vector registers."""
    name = _NAMES.get(isa.name)
    overwritten = ",".join(f"~{{{name}{number}}}" for number in range(isa.vector_registers)) if name else ""
    return f"""define linkonce_odr hidden void @{EMPTY}() alwaysinline {{
  call void asm sideeffect "", "{overwritten}"()
  ret void
}}
"""
