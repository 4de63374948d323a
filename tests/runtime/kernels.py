"""Small kernels made by hand with TVM, linked into a library with the executor: what the tests of the runtime run."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import tvm
import tvm.s_tir.pipeline
from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.tirx import transform

from tests.runtime.signed import plain
from tilestitch.codegen.cpu.backend import EXECUTOR_EXPORTS, executor_object
from tilestitch.codegen.cpu.toolchain.link import link

ARCHITECTURE = "aarch64" if platform.machine() in ("aarch64", "arm64") else "x86_64"
TRIPLE = f"{ARCHITECTURE}-linux-gnu"
CPU = "generic" if ARCHITECTURE == "aarch64" else "x86-64"
SIZE, CHUNK = 64, 8
TASKS = SIZE // CHUNK
_POINTER = 15  # tvm_struct_get's field kind for the pointer of an argument


def compile_kernel(name: str, body: Callable[[Callable[..., Any], Any, Any], None], triple: str = TRIPLE) -> bytes:
    """The object of a kernel; `body(buffer, task, scratch)` emits its statements, where `buffer(i, dtype, shape)` is
    argument i.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name(name)
        T.func_attr({"calling_conv": 2, "tirx.noalias": True})
        args = T.arg("args", T.handle())
        task = T.arg("task", T.int64())
        scratch = T.arg("scratch", T.handle("float32"))

        def buffer(index: int, dtype: str, shape: tuple[int, ...]) -> Any:
            pointer = PointerType(PrimType(dtype))
            data = tirx.Var(f"arg{index}", pointer)
            T.Bind(tirx.tvm_struct_get(args, index, _POINTER, pointer), var=data)
            return T.decl_buffer(shape, dtype, data=data)

        body(buffer, task, scratch)
    cpu = CPU if triple == TRIPLE else "generic"
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "mtriple": triple})
    module = tvm.IRModule({name: builder.get().with_attr("global_symbol", name)})
    passes = [
        transform.BindTarget(target.with_host(target)), transform.FlattenBuffer(), transform.BF16ComputeLegalize(),
        transform.NarrowDataType(32), transform.VectorizeLoop(True), transform.UnrollLoop(), transform.StmtSimplify(),
        transform.RemoveNoOp(), transform.FP8ComputeLegalize(), transform.FP8StorageLegalize(),
        transform.BF16StorageLegalize(), transform.LowerIntrin(),
    ]  # fmt: skip
    built = sys.modules["tvm.tirx.build"].codegen_build(tvm.ir.transform.Sequential(passes)(module), target)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.o")
        built.write_to_file(str(path), "o")
        return path.read_bytes()


def _neighbours(buffer: Callable[..., Any], task: Any, scratch: Any) -> None:
    """y[i] = x[i] + 2 x[i + 1], around the end, modulo 1009: each element needs what another task wrote before."""
    x, y = buffer(0, "int32", (SIZE,)), buffer(1, "int32", (SIZE,))
    with T.serial(0, CHUNK) as i:
        at = task * CHUNK + i
        T.buffer_store(y, tirx.floormod(x[at] + x[tirx.floormod(at + 1, SIZE)] * 2, 1009), [at])


def _neighbours_serial(buffer: Callable[..., Any], task: Any, scratch: Any) -> None:
    """The same in one task."""
    x, y = buffer(0, "int32", (SIZE,)), buffer(1, "int32", (SIZE,))
    with T.serial(0, SIZE) as at:
        T.buffer_store(y, tirx.floormod(x[at] + x[tirx.floormod(at + 1, SIZE)] * 2, 1009), [at])


def _increment(buffer: Callable[..., Any], task: Any, scratch: Any) -> None:
    """y[i] = x[i] + 1 for four float32."""
    x, y = buffer(0, "float32", (4,)), buffer(1, "float32", (4,))
    with T.serial(0, 4) as i:
        T.buffer_store(y, x[i] + T.float32(1), [i])


def _exponential(buffer: Callable[..., Any], task: Any, scratch: Any) -> None:
    """y[i] = exp(x[i]) for four float32: a call of libm."""
    x, y = buffer(0, "float32", (4,)), buffer(1, "float32", (4,))
    with T.serial(0, 4) as i:
        T.buffer_store(y, tirx.call_pure_extern("float32", "expf", x[i]), [i])


def _halve(buffer: Callable[..., Any], task: Any, scratch: Any) -> None:
    """y[i] = x[i] / 2 for four float16."""
    x, y = buffer(0, "float16", (4,)), buffer(1, "float16", (4,))
    with T.serial(0, 4) as i:
        T.buffer_store(y, x[i] * T.float16(0.5), [i])


def _pick(buffer: Callable[..., Any], task: Any, scratch: Any) -> None:
    """y[i] = x[index[i]] for four float32; status 1 for an index that is too small, 2 for one that is too large."""
    x, index = buffer(0, "float32", (4,)), buffer(1, "int64", (4,))
    y, status = buffer(2, "float32", (4,)), buffer(3, "int32", (1,))
    with T.serial(0, 4) as i:
        with T.If(index[i] < T.int64(0)), T.Then():
            T.buffer_store(status, T.int32(1), [0])
        with T.If(index[i] > T.int64(3)), T.Then():
            T.buffer_store(status, T.int32(2), [0])
        T.buffer_store(y, x[T.max(T.int64(0), T.min(index[i], T.int64(3)))], [i])


def _reverse(buffer: Callable[..., Any], task: Any, scratch: Any) -> None:
    """y = x backwards, chunk by chunk, by way of the scratch memory."""
    x, y = buffer(0, "float32", (SIZE,)), buffer(1, "float32", (SIZE,))
    store = T.decl_buffer((CHUNK,), "float32", data=scratch)
    with T.serial(0, CHUNK) as i:
        T.buffer_store(store, x[task * CHUNK + i], [i])
    with T.serial(0, CHUNK) as i:
        T.buffer_store(y, store[i], [SIZE - 1 - (task * CHUNK + i)])


_MANY = 1 << 30


def _sized_increment(buffer: Callable[..., Any], task: Any, scratch: Any) -> None:
    """y[i] = x[i] + 1 for sizes[0] * sizes[1] float32, 32 in a task."""
    x, sizes, y = buffer(0, "float32", (_MANY,)), buffer(1, "int64", (2,)), buffer(2, "float32", (_MANY,))
    with T.serial(0, 32) as i:
        at = task * 32 + i
        with T.If(at < sizes[0] * sizes[1]), T.Then():
            T.buffer_store(y, x[at] + T.float32(1), [at])


def _sized_reverse(buffer: Callable[..., Any], task: Any, scratch: Any) -> None:
    """Row `task` of y is that of x backwards, by way of the scratch memory; a row has sizes[1] float32."""
    x, sizes, y = buffer(0, "float32", (_MANY,)), buffer(1, "int64", (2,)), buffer(2, "float32", (_MANY,))
    store = T.decl_buffer((_MANY,), "float32", data=scratch)
    with T.serial(T.int64(0), sizes[1]) as i:
        T.buffer_store(store, x[task * sizes[1] + i], [i])
    with T.serial(T.int64(0), sizes[1]) as i:
        T.buffer_store(y, store[i], [task * sizes[1] + (sizes[1] - 1 - i)])


def _sized_append(buffer: Callable[..., Any], task: Any, scratch: Any) -> None:
    """Row `task` of y is that of x, sizes[1] float32, then that of z, sizes[2] float32."""
    x, z, sizes = buffer(0, "float32", (_MANY,)), buffer(1, "float32", (_MANY,)), buffer(2, "int64", (3,))
    y = buffer(3, "float32", (_MANY,))
    with T.serial(T.int64(0), sizes[1]) as i:
        T.buffer_store(y, x[task * sizes[1] + i], [task * (sizes[1] + sizes[2]) + i])
    with T.serial(T.int64(0), sizes[2]) as i:
        T.buffer_store(y, z[task * sizes[2] + i], [task * (sizes[1] + sizes[2]) + sizes[1] + i])


_BODIES = {
    "neighbours": _neighbours, "neighbours_serial": _neighbours_serial, "increment": _increment,
    "exponential": _exponential, "halve": _halve, "pick": _pick,
    "reverse": _reverse, "sized_increment": _sized_increment, "sized_reverse": _sized_reverse,
    "sized_append": _sized_append,
}  # fmt: skip


@cache
def kernel_object(name: str, triple: str = TRIPLE, symbol: str = "") -> bytes:
    return compile_kernel(symbol or name, _BODIES[name], triple)


@cache
def kernel_library(triple: str = TRIPLE, symbols: frozenset[str] = frozenset()) -> bytes:
    """A library with all of the kernels above, those of them that `symbols` are signed names of, and the executor."""
    names = {**{name: name for name in _BODIES}, **{s: plain(s) for s in sorted(symbols) if plain(s) in _BODIES}}
    objects = [kernel_object(name, triple, symbol) for symbol, name in names.items()]
    return link([*objects, executor_object(triple)], [*EXECUTOR_EXPORTS, *names])
