"""Building blocks of kernels: bound indices, loops unrolled or not, branches, registers."""

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
    """Open a loop that the CUDA compiler unrolls, so that arrays indexed by it stay in registers."""
    if extent == 1:
        yield 0
        return
    with T.attr(tirx.IntImm("int32", 0), "pragma_unroll_explicit", 0), T.unroll(extent) as index:
        yield index


@contextmanager
def repeated(extent: Expr) -> Iterator[Expr]:
    """Open a loop that is not unrolled."""
    if isinstance(extent, int) and extent == 1:
        yield 0
        return
    with T.serial(extent) as index:
        yield index


@contextmanager
def when(condition: Expr | None) -> Iterator[None]:
    """Open a branch; none for the condition None, which is true."""
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
    """Return `lanes` neighbours from `start` on, as an index of a buffer."""
    return start if lanes == 1 else T.ramp(start, 1, lanes)


MOVE_BITS = 128
"""Bits that one instruction loads or stores."""


def move(source: Any, source_at: Expr, target: Any, target_at: Expr, count: int) -> None:
    """Copy `count` neighbours from one buffer to another of the same dtype, 16 bytes at a time if possible.

    Both positions are multiples of `count`, or of the number of elements in 16 bytes.
    """
    lanes = min(count, MOVE_BITS // storage_bits(source.dtype))
    for first in range(0, count, lanes):
        value = source[run(_aligned(source_at, first, lanes), lanes)]
        T.buffer_store(target, value, [run(_aligned(target_at, first, lanes), lanes)])


def _aligned(at: Expr, offset: int, lanes: int) -> Expr:
    """Return a position as a multiple of the lanes, so that TVM recognises the alignment and emits one access."""
    if isinstance(at, int) or lanes == 1:
        return at + offset
    return named(at // lanes + offset // lanes) * lanes
