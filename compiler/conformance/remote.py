"""Engine for other CPUs than this machine's: artifacts are compiled here and run by a Python on such a machine or an
emulator, which sees the same files.

 `qemu-aarch64-static -L ROOT ROOT/usr/bin/python3` is one, `ssh -T board python3` another.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from onnx import ModelProto

from tilestitch.compiler.conformance import serve
from tilestitch.compiler.conformance.engines import Prepare, Run
from tilestitch.compiler.conformance.serve import decode, encode


class RemoteError(Exception):
    """Error of the other Python, or its end."""


class Remote:
    """A process that runs artifacts. `command` starts its Python, which must import numpy and `tilestitch.runtime`."""

    def __init__(self, command: str) -> None:
        self._command = [*shlex.split(command), str(serve.__file__)]
        self._process: subprocess.Popen[str] | None = None

    def load(self, path: Path, threads: int) -> None:
        self._ask({"load": str(path), "threads": threads})

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run on inputs in order, and return the outputs in order."""
        answer = self._ask({"run": [encode(value) for value in inputs]})
        return [decode(value) for value in answer["values"]]

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended: then there is no answer
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RemoteError(f"{shlex.join(self._command)} ended with {process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RemoteError(f"{answer['error']}: {answer['message']}")
        return answer


def remote(target: str, command: str, threads: int = 1) -> Prepare:
    """Return an engine that compiles for `target` and runs the artifacts in the Python that `command` starts."""
    from tilestitch.compiler.driver import compile_model

    process = Remote(command)

    def prepare(model: ModelProto) -> Run:
        compiled = compile_model(model, target)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.tsm"
            compiled.save(path)
            process.load(path, threads)
        return process.run

    return prepare
