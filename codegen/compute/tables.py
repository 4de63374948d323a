"""Lookups of 8-bit integers in tables of 256 entries: a load from a pseudo-buffer for the table.

There is no such memory. The name of the buffer encodes the table, and the target's lowering replaces the load by an
instruction or a function (`codegen/cpu/toolchain/tables.py`).
"""

from functools import lru_cache
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .dtypes import Bind, Expr

PREFIX = "table_"
ENTRIES = 256


def looked_up(x: Expr, dtype: str, table: str, to: str, bind: Bind) -> Expr:
    """Return the table's entry, as `to`, at the bits of an integer of `dtype`."""
    place = x if dtype == "uint8" else T.reinterpret("uint8", x)
    entry = tirx.BufferLoad(_buffer(table), [T.cast(bind(place), "int32")])
    return entry if to == "uint8" else T.reinterpret(to, bind(entry))


def table_of(load: Any) -> bytes | None:
    """Return the table of a load; None for other loads."""
    name = str(getattr(load.source, "name", ""))
    return bytes.fromhex(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None


@lru_cache(maxsize=256)
def _buffer(table: str) -> Any:
    return tirx.decl_buffer((ENTRIES,), "uint8", f"{PREFIX}{table}")
