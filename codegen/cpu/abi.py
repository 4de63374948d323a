"""The calling convention of kernels: their arguments, and the frame of a kernel function.

A kernel is `void NAME(const Arg *args, int64_t task, void *scratch)`; an `Arg` is 16 bytes with the pointer at byte 8.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.buffers import Parameter, buffer_source, store
from tilestitch.codegen.compute.dtypes import Expr, storage_dtype
from tilestitch.codegen.compute.sizes import ReadSizes, reading, symbols_in_force, with_natural_quotients
from tilestitch.codegen.launch import KernelArg, PackedArg, SizesArg, StatusArg, TemporaryArg, ValueArg
from tilestitch.compiler.ir.sizes import largest

__all__ = [
    "KernelArg", "KernelLaunch", "PackedArg", "Parameter", "StatusArg", "TemporaryArg", "ValueArg", "buffer_source",
    "kernel_function", "store",
]  # fmt: skip

ARGUMENT_POINTER = 15  # TVM's number of the field of `Arg` that holds the pointer
DECLARED_SIZES = 1 << 10
"""Declared number of sizes, whatever it is, so that kernels that read the same ones are equal."""


@dataclass(frozen=True)
class KernelLaunch:
    """One launch: the kernel as TIR, or as `ctext.CText`, the number of its tasks, its arguments, and its resources.

    `kind` begins the symbol's name. `faults` are the messages of the faults that the kernel may store in its status
    word: fault number i is stored as i + 1. `packed`: its tasks and those of the previous launch form one list.
    `owner`: the plug-in of the kernel.
    """

    kind: str
    func: Any
    tasks: int
    args: tuple[KernelArg, ...]
    origins: tuple[str, ...] = ()
    scratch_bytes: int = 0
    faults: tuple[str, ...] = ()
    packed: bool = False
    owner: str = ""


Body = Callable[[list[Any], Expr, Expr], None]
"""`body(buffers, task, scratch)` emits one task; buffers are flat, of `storage_dtype`, in the parameters' order."""


def kernel_function(parameters: Sequence[Parameter], body: Body) -> Any:
    """Return the PrimFunc whose task `body` emits."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("kernel")
        T.func_attr({"calling_conv": 2, "tirx.noalias": True})
        args = T.arg("args", T.handle())
        task = T.arg("task", T.int64())
        scratch = T.arg("scratch", T.handle())
        symbols = symbols_in_force()
        read: ReadSizes | None = None
        with ExitStack() as stack:
            if symbols:
                sizes = Parameter(SizesArg(), "int64", DECLARED_SIZES)
                read = stack.enter_context(reading(symbols, _buffer(args, len(parameters), sizes)))
            buffers = [_buffer(args, i, p) for i, p in enumerate(parameters)]
            body(buffers, task, scratch)
    return builder.get() if read is None else with_natural_quotients(read.pruned(builder.get()), read)


def _buffer(args: Expr, number: int, parameter: Parameter) -> Any:
    dtype = storage_dtype(parameter.dtype)
    kind = PointerType(PrimType(dtype))
    pointer = tirx.Var(f"p{number}", kind)
    T.bind(tirx.tvm_struct_get(args, number, ARGUMENT_POINTER, kind), var=pointer)
    return T.decl_buffer((largest(1, parameter.size),), dtype, data=pointer)
