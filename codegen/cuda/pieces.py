"""Pieces of kernels: names for indices, loops that are written out or not, branches, registers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, storage_bits


def named(index: Expr) -> Expr:
    """Return a variable that holds an index."""
    return index if isinstance(index, (int, tirx.Var, tirx.IntImm)) else T.bind(index)


@contextmanager
def unrolled(extent: int) -> Iterator[Expr]:
    """A loop that the CUDA compiler writes out, so that arrays indexed by it stay in registers."""
    if extent == 1:
        yield 0
        return
    with T.attr(tirx.IntImm("int32", 0), "pragma_unroll_explicit", 0), T.unroll(extent) as index:
        yield index


@contextmanager
def repeated(extent: Expr) -> Iterator[Expr]:
    """A loop that stays one."""
    if isinstance(extent, int) and extent == 1:
        yield 0
        return
    with T.serial(extent) as index:
        yield index


@contextmanager
def when(condition: Expr | None) -> Iterator[None]:
    """A branch; none for the condition None, which is true."""
    with nullcontext() if condition is None else _branch(condition):
        yield


@contextmanager
def _branch(condition: Expr) -> Iterator[None]:
    with T.If(condition), T.Then():
        yield


def zero(dtype: str) -> Expr:
    return tirx.const(0, dtype)


def registers(count: int, dtype: str) -> Any:
    """Return an array of one thread; it must be indexed by constants and unrolled loops only."""
    return T.alloc_buffer((count,), dtype, scope="local")


def run(start: Expr, lanes: int) -> Expr:
    """So many neighbours from `start` on, as an index of a buffer."""
    return start if lanes == 1 else T.ramp(start, 1, lanes)


MOVE_BITS = 128
"""That one instruction loads or stores."""


def move(source: Any, source_at: Expr, target: Any, target_at: Expr, count: int) -> None:
    """Copy `count` neighbours from one buffer to another of the same dtype, 16 bytes at a time if they are so many.

    Both places are multiples of `count`, or of so many elements as 16 bytes have.
    """
    lanes = min(count, MOVE_BITS // storage_bits(source.dtype))
    for first in range(0, count, lanes):
        value = source[run(_aligned(source_at, first, lanes), lanes)]
        T.buffer_store(target, value, [run(_aligned(target_at, first, lanes), lanes)])


def _aligned(at: Expr, offset: int, lanes: int) -> Expr:
    """As a multiple of the lanes: so TVM sees that the address is aligned, and emits one access."""
    if isinstance(at, int) or lanes == 1:
        return at + offset
    return named(at // lanes + offset // lanes) * lanes
