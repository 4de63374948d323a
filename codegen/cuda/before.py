"""Where a tile waits for the tiles that it reads: after it has asked for what no other kernel stores.

A kernel whose tiles wait can say itself where: by `begin`, before its first access to what others store. So the weights
of a GEMM are on their way while the tile waits for its rows. Kernels that are launches of their own wait for nothing,
and `begin` is nothing in them.
"""

from __future__ import annotations

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
    """wait: emits the wait. changing: names of the values that others store meanwhile."""

    wait: Callable[[], None]
    changing: Collection[str]
    begun: bool = False


_WAITING: ContextVar[_Waiting | None] = ContextVar("waiting", default=None)


@contextmanager
def waiting(wait: Callable[[], None], changing: Collection[str]) -> Iterator[None]:
    """What is emitted inside calls `begin`, once."""
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
    """Emit a kernel once more, which waits first, or where it says. wait: emits that, with a barrier of the kernel's
    threads after it; None for nothing to wait for.
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
    """What a kernel whose blocks walk over tiles emits for each of them.

    wait: `wait(place, lane, threads)` has so many threads, which then must meet, wait for the tile; None for nothing to
    wait for. post: `post(place)`, by one thread when all have stored the tile; None if nothing waits for it. shows:
    whether those that wait read it by copies of tensors. changing: names of the values that others store meanwhile.
    """

    wait: Callable[[Sequence[Expr], Expr, int], None] | None
    post: Callable[[Sequence[Expr]], None] | None
    shows: bool
    changing: Collection[str]

    def is_early(self, operand: OperandLayout) -> bool:
        """As the function of this name."""
        early = self.wait is not None and operand.memory is not None
        return early and operand.memory is not None and operand.memory.root.name not in self.changing


ALONE = Walk(None, None, False, ())
"""Of a kernel that is a launch of its own."""
_WALK: ContextVar[Walk] = ContextVar("walk", default=ALONE)


def emit_walking(emission: Emission, buffers: list[Any], thread: Thread, walk: Walk) -> None:
    """Emit a kernel once more whose blocks walk over tiles."""
    token = _WALK.set(walk)
    try:
        emission.body(buffers, thread)
    finally:
        _WALK.reset(token)


def walk() -> Walk:
    """Of the kernel that is being emitted."""
    return _WALK.get()


def show() -> None:
    """What the thread has written, or has seen of others, is there for copies of tensors."""
    T.evaluate(T.call_extern("void", "ts_ticket_show"))


def begin() -> None:
    """What others store is there from here on. All threads of the kernel come here, and they do once."""
    state = _WAITING.get()
    if state is not None:
        assert not state.begun, "a tile would wait twice"
        state.begun = True
        state.wait()


def is_early(operand: OperandLayout) -> bool:
    """Return whether pieces of an operand may, and should, be asked for before `begin`: nothing stores to the memory
    that it lies in meanwhile. Never where there is nothing to wait for.
    """
    state = _WAITING.get()
    if state is None or state.begun or operand.memory is None:
        return False
    return operand.memory.root.name not in state.changing
