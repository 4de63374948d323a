"""The point where a tile waits for the tiles that it reads: after prefetching what no other kernel stores.

A kernel whose tiles wait can place the wait itself: by `begin`, before its first access to what others store. So the
weights of a GEMM are on their way while the tile waits for its rows. In kernels that are launches of their own, `begin`
does nothing.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.cuda.abi import Emission, Thread
from tilestitch.passes.plan.gemm.gemm import OperandLayout


@dataclass
class _Waiting:
    """`wait`: emits the wait. `changing`: names of the values that others store meanwhile."""

    wait: Callable[[], None]
    changing: Collection[str]
    begun: bool = False


_WAITING: ContextVar[_Waiting | None] = ContextVar("waiting", default=None)


@contextmanager
def waiting(wait: Callable[[], None], changing: Collection[str]) -> Iterator[None]:
    """Require that the code emitted within the context calls `begin` exactly once."""
    state = _Waiting(wait, changing)
    token = _WAITING.set(state)
    try:
        yield
    finally:
        _WAITING.reset(token)
    assert state.begun, "a tile would not wait for what it reads"


def emit_waiting(
    emission: Emission, buffers: list[Any], thread: Thread, wait: Callable[[], None] | None, changing: Collection[str]
) -> None:
    """Emit a kernel as a part that waits first, or at its `begin`. `wait`: emits the wait and a barrier of the kernel's
    threads; None if there is nothing to wait for.
    """
    if wait is not None and emission.begins:
        with waiting(wait, changing):
            emission.body(buffers, thread)
        return
    if wait is not None:
        wait()
    emission.body(buffers, thread)


@dataclass(frozen=True)
class Walk:
    """Code that a kernel whose blocks walk over tiles emits for each tile.

    `wait(place, lane, threads)`: has so many threads, which must synchronise afterwards, wait for the tile; None for no
    wait. `post(place)`: by one thread when all have stored the tile; None if nothing waits for it. `shows`: whether
    waiting tiles read it by tensor copies. `changing`: names of the values that others store meanwhile.
    """

    wait: Callable[[Sequence[Expr], Expr, int], None] | None
    post: Callable[[Sequence[Expr]], None] | None
    shows: bool
    changing: Collection[str]

    def is_early(self, operand: OperandLayout) -> bool:
        """Return what the function `is_early` does, for a walk."""
        early = self.wait is not None and operand.memory is not None
        return early and operand.memory is not None and operand.memory.root.name not in self.changing


ALONE = Walk(None, None, False, ())
"""The walk of a kernel that is a launch of its own."""
_WALK: ContextVar[Walk] = ContextVar("walk", default=ALONE)


def emit_walking(emission: Emission, buffers: list[Any], thread: Thread, walk: Walk) -> None:
    """Emit a kernel, whose blocks walk over tiles, as a part."""
    token = _WALK.set(walk)
    try:
        emission.body(buffers, thread)
    finally:
        _WALK.reset(token)


def walk() -> Walk:
    """Return the walk of the kernel being emitted."""
    return _WALK.get()


def show() -> None:
    """Make the thread's writes, and those of others that it has observed, visible to tensor copies."""
    T.evaluate(T.call_extern("void", "ts_ticket_show"))


def begin() -> None:
    """Wait here for what others store. All threads of the kernel come here exactly once."""
    state = _WAITING.get()
    if state is not None:
        assert not state.begun, "a tile would wait twice"
        state.begun = True
        state.wait()


def is_early(operand: OperandLayout) -> bool:
    """Return whether pieces of an operand may, and should, be prefetched before `begin`: nothing stores to its memory
    meanwhile. False if there is nothing to wait for.
    """
    state = _WAITING.get()
    if state is None or state.begun or operand.memory is None:
        return False
    return operand.memory.root.name not in state.changing
