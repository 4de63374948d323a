"""Looking up 8-bit integers in tables of 256 entries: a load from a buffer that stands for the table.

There is no such memory. The name of the buffer says what the table holds, and the target's lowering puts an instruction
or a function in place of the load (`codegen/cpu/toolchain/tables.py`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .dtypes import Expr

if TYPE_CHECKING:
    from .elementwise import Operation

PREFIX = "table_"
ENTRIES = 256


def rule(op: Operation) -> Expr:
    """The entry at an element's bits."""
    (x,) = op.operands
    attrs = op.node.attrs
    place = x if op.dtype == "uint8" else T.reinterpret("uint8", x)
    entry = tirx.BufferLoad(_buffer(attrs["table"]), [T.cast(op.bind(place), "int32")])
    return entry if attrs["to"] == "uint8" else T.reinterpret(attrs["to"], op.bind(entry))


def table_of(load: Any) -> bytes | None:
    """The entries of the table that a load is from; None of other loads."""
    name = str(getattr(load.source, "name", ""))
    return bytes.fromhex(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None


@lru_cache(maxsize=256)
def _buffer(table: str) -> Any:
    return tirx.decl_buffer((ENTRIES,), "uint8", f"{PREFIX}{table}")
