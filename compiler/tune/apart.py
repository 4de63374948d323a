"""A function in a process of its own: a GPU can be used in no process that was forked from one which has used it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeVar, cast

from tilestitch.compiler.cli.errors import UsageError
from tilestitch.compiler.errors import TuningError
from tilestitch.runtime.errors import DeviceError, ExecutionError, InputError

from .shares import CONTEXT

Result = TypeVar("Result")
_EXPECTED = (DeviceError, ExecutionError, InputError, UsageError, TuningError)
"""Errors that are raised as such; all others are faults of ours."""


@dataclass(frozen=True)
class _Raised:
    kind: type[Exception]
    message: str


def apart(call: Callable[[], Result]) -> Result:
    """Return the result of a function that is called in a forked process.

    Raises the errors that users are to see as they are, with their messages, and TuningError for all others, and for a
    process that ends by itself.
    """
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_answer, args=(call, theirs, ours))
    process.start()
    theirs.close()
    try:
        found = ours.recv()
        process.join()
    except EOFError:
        process.join()
        raise TuningError(
            f"the process that used the GPU ended with code {process.exitcode}; report this as a bug"
        ) from None
    finally:
        process.kill()  # if an interrupt ended the waiting
        process.join()
        ours.close()
    if isinstance(found, _Raised):
        raise found.kind(found.message)
    return cast(Result, found)


def _answer(call: Callable[[], object], pipe: Connection, of_parent: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    of_parent.close()
    try:
        found = call()
    except Exception as error:  # noqa: BLE001 - raised by the parent
        kind = next((each for each in _EXPECTED if isinstance(error, each)), TuningError)
        unexpected = f"{type(error).__name__}: {error}; report this as a bug"
        found = _Raised(kind, str(error) if isinstance(error, kind) else unexpected)
    with suppress(BrokenPipeError):  # the parent was killed
        pipe.send(found)
