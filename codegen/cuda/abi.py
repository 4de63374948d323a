"""The calling convention of CUDA kernels, and the frame of a kernel function.

A kernel is `extern "C" __global__ void NAME(T0 *p0, T1 *p1, ...)`: one pointer for each argument, or one
`const __grid_constant__ CUtensorMap`; no scalars. Kernels over open sizes find the values of the symbols in their last
argument. Pointers are of `storage_dtype`, at least 16-byte aligned, and never
alias one another where a kernel writes. They are `__restrict__`, but for memory that thread blocks exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, PointerType, PrimType, StringImm, TensorLoad
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.tirx import TensorMapType

from tilestitch.codegen.buffers import Parameter, buffer_source, store
from tilestitch.codegen.compute.dtypes import Expr, storage_bits, storage_dtype
from tilestitch.codegen.compute.sizes import ReadSizes, integer, reading, symbols_in_force, with_natural_quotients
from tilestitch.codegen.launch import (
    CountersArg,
    KernelArg,
    PackedArg,
    SizesArg,
    StatusArg,
    TemporaryArg,
    TensorMapArg,
    ValueArg,
)  # fmt: skip
from tilestitch.compiler.ir.sizes import Size, is_open, largest
from tilestitch.passes.plan.launches.cuda.emitted import shared_array
from tilestitch.passes.plan.own_kernels import KERNEL_NAME

__all__ = [
    "CountersArg", "CudaLaunch", "KernelArg", "PackedArg", "Parameter", "StatusArg", "TemporaryArg", "TensorMapArg",
    "ValueArg", "barrier", "buffer_source", "fault", "faults_from", "kernel_function", "shared_buffer", "store",
]  # fmt: skip

Dim3 = tuple[int, int, int]

EXCHANGED = "tilestitch.exchanged"
"""Attribute of a kernel whose thread blocks wait for each other: the pointers to memory that they exchange."""
COPIES = ("ts_load_16", "ts_cp_async_16", "ts_ticket_prefetch", "ts_sm90_copy", "ts_sm90_share")
"""Functions of device code that read global memory at a given address."""
_ADDRESS_OF = tvm.ir.Op.get("tirx.address_of")
BLOCKS_PER_SM = "tirx.launch_bounds_min_blocks_per_sm"
"""Attribute of a kernel with the number of blocks that an SM must hold."""
STATIC_SHARED = "tilestitch.static_shared_bytes"
"""Attribute of a kernel with the static shared memory of its arrays."""
SYMBOL = KERNEL_NAME
"""Name of the function in a kernel given as text; the build replaces it by the symbol."""


@dataclass(frozen=True)
class Emission:
    """How to emit a kernel as a part of another one: `parameters` belong to its arguments. `begins`: it waits for
    others' stores by itself (`before.begin`).
    """

    parameters: tuple[Parameter, ...]
    body: Body
    begins: bool = False


@dataclass(frozen=True)
class CudaLaunch:
    """One kernel launch: `grid` blocks of `block` threads, `shared_bytes` of dynamic shared memory a block.

    kind: begins the symbol's name. func: the kernel as a PrimFunc of `kernel_function`, or as CUDA text whose
    `extern "C" __global__` function is called `SYMBOL`; the text gets the prelude of `text.PRELUDE` before it.
    faults: messages of the faults that the kernel may store in its status word; fault number i is stored as i + 1.
    fault_origins: the ONNX nodes of each, where faults are of several.
    cooperative: all blocks must be resident together. elastic: the kernel computes the same with any smaller grid along
    x, so that fewer resident blocks do. cluster: blocks of a thread block cluster. portable: not if the
    kernel uses features of one architecture only (`CudaTarget.specific`), so that no PTX for newer GPUs can be made.
    emission: for kernels that stitched groups can contain. overlaps: as `Launch` has it. owner: the plug-in that
    brought the kernel. limited: sizes that must be less than `INT32_ELEMENTS`, which a run is to check.
    """

    kind: str
    func: Any
    grid: Dim3
    block: Dim3
    args: tuple[KernelArg, ...]
    origins: tuple[str, ...] = ()
    shared_bytes: int = 0
    faults: tuple[str, ...] = ()
    fault_origins: tuple[tuple[str, ...], ...] = ()
    cooperative: bool = False
    elastic: bool = False
    cluster: Dim3 = (1, 1, 1)
    portable: bool = True
    overlaps: tuple[int, ...] = ()
    emission: Emission | None = field(default=None, compare=False, repr=False)
    owner: str = ""
    limited: tuple[Size, ...] = ()

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return prod(self.block)

    @property
    def messages(self) -> tuple[str, ...]:
        """Messages of the faults; with the nodes where the launch's are not those of each fault."""
        if not self.fault_origins:
            return self.faults
        return tuple(f"{text} ({', '.join(own)})" for text, own in zip(self.faults, self.fault_origins, strict=True))

    @property
    def static_shared_bytes(self) -> int:
        """Static shared memory of the kernel's arrays, each rounded up to `SHARED_ALIGNMENT`; 0 for CUDA text."""
        return 0 if isinstance(self.func, str) else int(self.func.attrs.get(STATIC_SHARED, 0))


@dataclass(frozen=True)
class Thread:
    """Indices of a thread's block and its own, int32; indices along axes of size 1 are 0."""

    block: tuple[Expr, Expr, Expr]
    thread: tuple[Expr, Expr, Expr]


Body = Callable[[list[Any], Thread], None]
"""`body(buffers, thread)` emits one thread's work; buffers are flat, of `storage_dtype`, in the parameters' order."""


def kernel_function(
    parameters: Sequence[Parameter], grid: Dim3, block: Dim3, body: Body, blocks_per_sm: int | None = None,
    changing: Collection[KernelArg] = (),
) -> Any:  # fmt: skip
    """Return the PrimFunc of a kernel; threads of one block are at most 1024.

    blocks_per_sm: how many blocks an SM must hold, which bounds the registers of a thread. changing: arguments that
    other kernels write while this one runs.
    """
    assert 1 <= prod(block) <= 1024, block
    symbols = symbols_in_force()
    read: ReadSizes | None = None
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("kernel")
        bound = {} if blocks_per_sm is None else {BLOCKS_PER_SM: blocks_per_sm}
        T.func_attr({"calling_conv": 2, "tirx.noalias": True, "tirx.is_global_func": True, **bound})
        every = [*parameters, *([Parameter(SizesArg(), "int64", len(symbols))] if symbols else [])]
        pointers = [T.arg(f"p{i}", tirx.Var(f"p{i}", _kind(p))) for i, p in enumerate(every)]
        with _counting() as declared, ExitStack() as stack:
            if symbols:
                values = T.decl_buffer((len(symbols),), "int64", data=pointers[-1])
                read = stack.enter_context(reading(symbols, values))
            buffers = [_buffer(p, pointer) for p, pointer in zip(parameters, pointers[: len(parameters)], strict=True)]
            _launched(list(zip(("blockIdx", "threadIdx"), (grid, block), strict=True)), buffers, body)
    func = builder.get().with_attr(STATIC_SHARED, declared.nbytes)
    func = func if read is None else with_natural_quotients(func, read)
    if any(isinstance(p.arg, CountersArg) for p in parameters):
        written = _written(func)
        exchanged = [hash(b) in written or p.arg in changing for b, p in zip(buffers, parameters, strict=True)]
        func = func.with_attr(EXCHANGED, [f"p{i}" for i, is_exchanged in enumerate(exchanged) if is_exchanged])
    return func


def _buffer(parameter: Parameter, pointer: Any) -> Any:
    """Return the body's view of an argument."""
    if isinstance(parameter.arg, TensorMapArg):
        return T.address_of(pointer)
    return T.decl_buffer((largest(1, parameter.size),), storage_dtype(parameter.dtype), data=pointer)


def _written(func: Any) -> set[int]:
    """Return hashes of the buffers that a kernel stores to, or whose addresses it passes to functions that may."""
    found: set[int] = set()

    def store(node: Any) -> None:
        found.add(hash(node.buffer))

    def call(node: Any) -> None:
        function = node.args[0] if node.args else None
        if not isinstance(function, StringImm) or function.value.startswith(COPIES):
            return
        addresses = (arg.args[0] for arg in node.args if isinstance(arg, Call) and arg.op.same_as(_ADDRESS_OF))
        found.update(hash(at.source) for at in addresses if isinstance(at, TensorLoad))

    tvm_ffi.structural_walk(func.body, [(tirx.BufferStore, store), (Call, call)])
    return found


def _kind(parameter: Parameter) -> Any:
    if isinstance(parameter.arg, TensorMapArg):
        return PointerType(TensorMapType())
    return PointerType(PrimType(storage_dtype(parameter.dtype)), "global")


def _launched(extents: list[tuple[str, Dim3]], buffers: list[Any], body: Body) -> None:
    """Bind the thread indices, axis by axis, and emit the body inside."""
    found: list[Expr] = []
    pending = [(f"{name}.{axis}", size) for name, sizes in extents for axis, size in zip("xyz", sizes, strict=True)]

    def enter(number: int) -> None:
        if number == len(pending):
            body(buffers, Thread((found[0], found[1], found[2]), (found[3], found[4], found[5])))
            return
        tag, size = pending[number]
        if size == 1 and tag != "threadIdx.x":
            found.append(0)
            enter(number + 1)
            return
        with T.launch_thread(tag, integer(size, "int32") if is_open(size) else size) as index:
            found.append(index)
            enter(number + 1)

    enter(0)


@dataclass
class _Declared:
    """Static shared memory of a kernel's arrays while it is emitted."""

    nbytes: int = 0


_DECLARED: ContextVar[_Declared | None] = ContextVar("declared", default=None)


@contextmanager
def _counting() -> Iterator[_Declared]:
    declared = _Declared()
    token = _DECLARED.set(declared)
    try:
        yield declared
    finally:
        _DECLARED.reset(token)


def declared_bytes() -> int:
    """Return the static shared memory declared so far in the current kernel."""
    declared = _DECLARED.get()
    assert declared is not None, "no kernel is being emitted"
    return declared.nbytes


@dataclass(frozen=True)
class Within:
    """State while a kernel is emitted as a part of another: whether its threads are fewer than the block's."""

    threads: int
    block_threads: int


_WITHIN: ContextVar[Within | None] = ContextVar("within", default=None)


@contextmanager
def within(threads: int, block_threads: int) -> Iterator[None]:
    """Emit code within the context for the first `threads` threads of a block."""
    token = _WITHIN.set(Within(threads, block_threads))
    try:
        yield
    finally:
        _WITHIN.reset(token)


def part_of_block() -> Within | None:
    """Return the threads of a block for which a kernel is emitted, if they are not all."""
    scope = _WITHIN.get()
    return None if scope is None or scope.threads == scope.block_threads else scope


_FIRST_FAULT: ContextVar[int] = ContextVar("first_fault", default=0)


@contextmanager
def faults_from(first: int) -> Iterator[None]:
    """Number the faults of code emitted within the context from `first` on: it is part of a kernel that has others."""
    token = _FIRST_FAULT.set(first)
    try:
        yield
    finally:
        _FIRST_FAULT.reset(token)


def fault(status: Any, number: int = 0) -> None:
    """Record a fault of the kernel: its number among `CudaLaunch.faults`."""
    T.buffer_store(status, T.int32(_FIRST_FAULT.get() + number + 1), [0])


def barrier() -> None:
    """Synchronise all threads of the kernel's block: `__syncthreads()` unless it is part of another kernel."""
    scope = part_of_block()
    if scope is None:
        T.evaluate(T.tvm_storage_sync("shared"))
    else:
        T.evaluate(T.call_extern("void", "ts_grid_part_barrier", scope.threads))


@dataclass
class _Pool:
    """Dynamic shared memory used in place of static: the bytes in use."""

    nbytes: int


_POOL: ContextVar[_Pool | None] = ContextVar("pool", default=None)


@contextmanager
def pooled(first_bytes: int) -> Iterator[None]:
    """Allocate arrays within the context in dynamic shared memory, after `first_bytes` that are used anyway. So parts
    of a kernel that never run concurrently share memory.
    """
    token = _POOL.set(_Pool(shared_array(first_bytes, 1)))
    try:
        yield
    finally:
        _POOL.reset(token)


def shared_buffer(elements: int, dtype: str) -> Any:
    """Allocate static shared memory of one block, at most 48 KiB in total; in a pool, dynamic shared memory."""
    declared, pool, itemsize = _DECLARED.get(), _POOL.get(), storage_bits(dtype) // 8
    assert declared is not None, "no kernel is being emitted"
    nbytes = shared_array(elements, itemsize)
    if pool is None:
        declared.nbytes += nbytes
        return T.alloc_buffer((elements,), dtype, scope="shared")
    start, pool.nbytes = pool.nbytes, pool.nbytes + nbytes
    memory = T.alloc_buffer((pool.nbytes,), "uint8", scope="shared.dyn")
    return T.decl_buffer((elements,), dtype, data=memory.data, scope="shared.dyn", elem_offset=start // itemsize)
