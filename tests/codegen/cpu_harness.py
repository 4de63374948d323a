"""Builds one kernel template into a shared object and calls it from numpy, one task at a time."""

from __future__ import annotations

import ctypes
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.cpu.target import CpuTarget, host_target
from tilestitch.codegen.cpu.toolchain.build import _codegen, lower
from tilestitch.codegen.cpu.toolchain.link import link

Emit = Callable[[list[Any], Any, Any], None]


def prim_func(arguments: Sequence[tuple[tuple[int, ...], str]], emit: Emit) -> Any:
    """A kernel whose body is ``emit(buffers, task, scratch)``."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("kernel")
        T.func_attr({"tirx.noalias": True, "global_symbol": "kernel"})
        args = T.arg("args", T.handle())
        task = T.arg("task", T.int64())
        scratch = T.arg("scratch", T.handle())
        buffers = []
        for index, (shape, dtype) in enumerate(arguments):
            kind = PointerType(PrimType(dtype))
            pointer = tirx.Var(f"p{index}", kind)
            T.bind(tirx.tvm_struct_get(args, index, 15, kind), var=pointer)
            buffers.append(T.decl_buffer(shape, dtype, data=pointer))
        emit(buffers, task, scratch)
    return builder.get()


def build(function: Any, target: CpuTarget | None = None) -> Any:
    """Lowers a kernel to an LLVM module."""
    cpu = target or host_target()
    return _codegen(lower(function, "kernel", cpu), cpu)


def aligned(array: Any) -> Any:
    """A copy of ``array`` that begins at a cache line, as the runtime places every buffer."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class Kernel:
    """A loaded kernel: ``kernel(*arrays)`` runs all tasks, shuffled, each with a workspace full of NaN."""

    def __init__(self, module: Any, tasks: int, scratch_bytes: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        root = Path(self.folder.name)
        module.write_to_file(str(root / "k.o"), "o")
        (root / "k.so").write_bytes(link([(root / "k.o").read_bytes()], ["kernel"]))
        self.function = ctypes.CDLL(str(root / "k.so")).kernel
        self.function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
        self.tasks = tasks
        self.scratch_bytes = scratch_bytes

    def arguments(self, arrays: Sequence[Any]) -> Any:
        table = np.zeros((len(arrays), 2), np.int64)
        table[:, 1] = [array.ctypes.data for array in arrays]
        return table

    def workspace(self) -> Any:
        raw = np.full(self.scratch_bytes + 192, 0xFF, np.uint8)
        start = -raw.ctypes.data % 64 + 64
        return raw, raw.ctypes.data + start, start

    def run(self, *arrays: Any) -> list[Any]:
        """Runs all tasks on aligned copies of the arrays, which it returns."""
        copies = [aligned(array) for array in arrays]
        self(*copies)
        return copies

    def __call__(self, *arrays: Any) -> None:
        table = self.arguments(arrays)
        order = list(range(self.tasks))
        random.Random(0).shuffle(order)
        raw, pointer, start = self.workspace()
        for task in order:
            self.function(table.ctypes.data, task, pointer)
        assert (raw[:start] == 0xFF).all(), "a task wrote before its workspace"
        assert (raw[start + self.scratch_bytes :] == 0xFF).all(), "a task wrote past its workspace"
