"""The widest accesses to global memory that a kernel's template emits, before compilation."""

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, StringImm, TensorLoad

from .lint import Widths

_COPIES = ("ts_load_16", "ts_cp_async_16", "ts_sm90_copy", "ts_sm90_share")
"""Functions of device code that load 16 bytes at a time, or make the copy engine do it."""


def asked(func: Any) -> Widths:
    """Return the widest accesses of a PrimFunc; nothing is known of a kernel that is given as text."""
    if isinstance(func, str):
        return Widths()
    loads, stores = [0], [0]

    def load(node: Any) -> None:
        loads.append(_bytes(node.source, node.indices))

    def store(node: Any) -> None:
        stores.append(_bytes(node.buffer, node.indices))

    def call(node: Any) -> None:
        function = node.args[0] if node.args else None
        if isinstance(function, StringImm) and function.value.startswith(_COPIES):
            loads.append(16)

    tvm_ffi.structural_walk(func.body, [(TensorLoad, load), (tirx.BufferStore, store), (Call, call)])
    return Widths(max(loads), max(stores))


def _bytes(buffer: Any, indices: Any) -> int:
    """Return the bytes of one access to global memory; 0 for other memory."""
    if buffer.scope() not in ("", "global"):
        return 0
    lanes = max((int(index.lanes) for index in indices if isinstance(index, tirx.Ramp)), default=1)
    dtype = tvm.DataType(str(buffer.dtype))
    return lanes * int(dtype.bits) * int(dtype.lanes) // 8
