"""A case in a process of its own, forked from one that has imported what is slow to import and never touched the GPU.

A fault that spoils a process's CUDA context, a hang, or a crash then costs that case alone.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from benchmarks.device.case import Case

POLL_S = 0.01
KILL_S = 20.0
"""What the system may take to end a killed process; the driver stops its kernels first."""

LONGEST_ERROR = 600
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Outcome:
    """How a case ended. state: `measured`; `failed` with an error; `crashed`, which ended its process; `hung` for
    longer than its limit; `cut` by the end of the call.
    """

    case: Case
    state: str
    took_s: float
    row: dict[str, Any]
    error: str = ""


@dataclass
class Running:
    """A case under way. `is_cut`: its time ends with the call's, before its own limit."""

    case: Case
    pid: int
    result: IO[bytes]
    started: float
    deadline: float
    is_cut: bool = False

    def outcome(self) -> Outcome | None:
        """How it ended; None while it runs. Kills it after its deadline."""
        done, status = os.waitpid(self.pid, os.WNOHANG)
        took_s = time.monotonic() - self.started
        if done:
            _kill_group(self.pid)  # what the case itself started; its own number may be another process's by now
            return self._ended(os.waitstatus_to_exitcode(status), took_s)
        if time.monotonic() < self.deadline:
            return None
        _kill(self.pid)
        gone = _reap(self.pid, KILL_S)
        self.result.close()
        error = f"took longer than {took_s:.0f} s" + ("" if gone else ", and its process cannot be ended")
        return Outcome(self.case, "cut" if self.is_cut else "hung", took_s, {}, error)

    def _ended(self, code: int, took_s: float) -> Outcome:
        self.result.seek(0)
        text = self.result.read()
        self.result.close()
        if not text:
            what = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return Outcome(self.case, "crashed", took_s, {}, f"its process ended with {what}")
        try:
            told = json.loads(text)
        except ValueError:
            return Outcome(self.case, "crashed", took_s, {}, "its process ended while it told its result")
        if "error" in told:
            return Outcome(self.case, "failed", took_s, {}, told["error"])
        return Outcome(self.case, "measured", took_s, told["row"])


def start(case: Case, log: Path, limit_s: float | None = None) -> Running:
    """Run the case; `limit_s` where the call ends before the case's own limit. What it prints goes to `log`."""
    result = tempfile.TemporaryFile()  # noqa: SIM115 - the outcome closes it
    sys.stdout.flush()
    sys.stderr.flush()
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(case, result, log)
    limit = case.limit_s if limit_s is None else limit_s
    return Running(case, pid, result, started, started + limit, limit < case.limit_s)


def _child(case: Case, result: IO[bytes], log: Path) -> NoReturn:
    """Never returns into the queue's code, and runs no handlers of its exit."""
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
        print(f"== {case.name}", flush=True)
        faulthandler.disable()  # another library may have put its own handlers over these
        faulthandler.enable(2)
        faulthandler.dump_traceback_later(max(0.1, case.limit_s - 1), file=2)  # where it hangs
        result.write(_told(case).encode())
        result.flush()
    finally:
        os._exit(0)


def _told(case: Case) -> str:
    """The row that the case measures or the error that it raises, as JSON."""
    try:
        return json.dumps({"row": dict(case.run())})
    except BaseException as error:  # noqa: BLE001 - the queue writes every kind down
        traceback.print_exc()
        return json.dumps({"error": f"{type(error).__name__}: {error}"[:LONGEST_ERROR]})


def _kill(pid: int) -> None:
    """End the process, and those that it started."""
    _kill_group(pid)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _reap(pid: int, timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(POLL_S)
    return False
