"""Contexts for concurrent runs: threads or a stream, and memory, each used by one run at a time."""

from __future__ import annotations

import os
import threading

from .device import Backend, Worker
from .errors import ExecutionError
from .execution import Execution, SizedExecutions, executions
from .loaded import Loaded
from .program import Program
from .sizing import Bound

_forks = 0
"""Fork generation: how many forks separate this process from the first one."""


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class Context:
    """A worker and memory for one run at a time. Specialisations are bound when first used."""

    def __init__(self, loaded: Loaded, programs: tuple[Program, ...], worker: Worker) -> None:
        self._loaded = loaded
        self._programs = programs
        self._executions: dict[int, Execution | SizedExecutions] = {}
        self.worker = worker

    def execution(self, index: int, bound: Bound | None) -> Execution:
        """Return the execution of a specialisation; `bound` has the values of its symbols if it has any."""
        found = self._executions.get(index)
        if found is None:
            found = self._executions[index] = executions(self._programs[index], self._loaded, self.worker)
        if isinstance(found, Execution):
            return found
        if bound is None:
            raise ValueError("a program with symbols was executed without values of them")
        return found.of(bound)

    def close(self) -> None:
        self._executions.clear()
        self.worker.close()


class Pool:
    """Contexts, as many as the device has room for, made on demand; further runs wait.

    An idle context is taken and given back without a lock: `pop` and `append` of a list are atomic. A waiting run
    announces itself before it looks for an idle context; a run that gives one back looks for waiting runs afterwards.
    So one of them always sees the other.
    """

    def __init__(self, loaded: Loaded, programs: tuple[Program, ...], backend: Backend) -> None:
        self._loaded, self._programs, self._backend = loaded, programs, backend
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._forks = _forks
        self._changed = threading.Condition()
        self._idle: list[Context] = []
        self._waiting = 0
        self._made = 0
        self._freed = False

    def acquire(self) -> Context:
        """Return a context, to be given to `release` after the run. Raises `ExecutionError` when the module is
        closed.
        """
        if self._forks != _forks:
            self._reset()  # neither threads nor the holders of locks survive in a forked child
        if self._closed:  # otherwise runs would take from each other the contexts that `close` waits for
            raise _closed()
        try:
            return self._idle.pop()
        except IndexError:
            return self._wait() or self._make()

    def release(self, context: Context) -> None:
        self._idle.append(context)
        if self._waiting:
            with self._changed:
                self._changed.notify()
        if self._closed:
            self.close()

    def close(self) -> None:
        """Close all contexts, those in use when they are released, and after the last one the backend."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        contexts = []
        while (context := self._idle_context()) is not None:
            contexts.append(context)
            context.close()
        with self._changed:
            self._made -= len(contexts)
            last = self._made == 0 and not self._freed
            self._freed = self._freed or last
        if last:
            self._backend.close()

    def _idle_context(self) -> Context | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _wait(self) -> Context | None:
        """Wait for an idle context and return it, or None when there is room for one more, which is then counted."""
        with self._changed:
            self._waiting += 1
            try:
                while not self._closed:
                    context = self._idle_context()
                    if context is not None:
                        return context
                    if self._made < self._backend.max_workers:
                        self._made += 1
                        return None
                    self._changed.wait()
                raise _closed()
            finally:
                self._waiting -= 1

    def _make(self) -> Context:
        try:
            return Context(self._loaded, self._programs, self._backend.worker())
        except BaseException:
            with self._changed:
                self._made -= 1
                self._changed.notify()
            raise


def _closed() -> ExecutionError:
    return ExecutionError("the module is closed; load the artifact again")
