"""CUDA text to machine code by NVRTC, in separate processes: NVRTC compiles one program at a time per process.

Run as a module it is such a process: it reads one JSON object a line, the fields of a `Job`, compiles it and answers
with one line, `{"error": null or the log}`.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from tilestitch.codegen.cuda.toolchain.spills import cubin_of
from tilestitch.codegen.errors import CodegenError

OPTIONS = ("--std=c++17", "-default-device")


class NvrtcError(Exception):
    """The compiler refused a text; the message is its log."""


class NvrtcMissingError(Exception):
    """NVRTC or its headers are not installed, or do not support an architecture."""


@cache
def version() -> tuple[int, int]:
    """Return NVRTC's version. Raises NvrtcMissingError if it is not installed."""
    _, major, minor = _bindings().nvrtcVersion()
    return int(major), int(minor)


@cache
def architectures() -> frozenset[int]:
    """Return the compute capabilities (times ten) that NVRTC compiles for."""
    _, numbers = _bindings().nvrtcGetSupportedArchs()
    return frozenset(int(n) for n in numbers)


@cache
def include_folder() -> Path:
    """Return the CUDA headers of the wheel nvidia-cuda-runtime."""
    try:
        import nvidia
    except ImportError:
        raise NvrtcMissingError(_ADVICE) from None
    for root in nvidia.__path__:
        for header in sorted(Path(root).glob("*/include/cuda_fp16.h"), reverse=True):
            return header.parent
    raise NvrtcMissingError(_ADVICE)


_ADVICE = "NVRTC and the CUDA headers are not installed; pip install 'tilestitch[cuda-compiler]'"


def _bindings() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise NvrtcMissingError(f"{_ADVICE} ({error})") from None
    return nvrtc


def compile_text(source: str, architecture: str, ptx: str | None = None) -> bytes:
    """Return the cubin for `sm_90a`, without spills and registers that cost a block if possible, or the PTX for
    `compute_90`. `ptx`: path to which the PTX of a cubin is written, too.

    Raises NvrtcError with the compiler's log.
    """
    if not architecture.startswith("sm_"):
        return _compiled(source, architecture, ())

    def compiled(text: str, options: tuple[str, ...]) -> bytes:
        return _compiled(text, architecture, options, None if options or text != source else ptx)

    return cubin_of(source, architecture, compiled)


def _compiled(source: str, architecture: str, options: tuple[str, ...], ptx: str | None = None) -> bytes:
    nvrtc = _bindings()
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    include = include_folder()
    flags = [f"--gpu-architecture={architecture}", f"-I{include}", f"-I{include / 'cccl'}", *OPTIONS, *options]
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise NvrtcError(
                _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode().strip("\0")
            )
        text = _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).rstrip(b"\0")
        if ptx:
            Path(ptx).write_bytes(text)
        is_cubin = architecture.startswith("sm_")
        return _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program) if is_cubin else text
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _text(size: Callable[[Any], Any], get: Callable[[Any, bytes], Any], program: Any) -> bytes:
    _, count = size(program)
    buffer = bytes(bytearray(b" " * count))
    get(program, buffer)
    return buffer


@dataclass(frozen=True)
class Job:
    """One text to compile for one architecture into a file. If that exists, an earlier job wrote it as its `ptx`."""

    source: str
    architecture: str
    output: Path
    ptx: Path | None = None


class _Worker:
    def __init__(self) -> None:
        # The package is found as in this process, even if it is not installed. TVM, which takes a second to import, is
        # not needed.
        path = f"import sys; sys.path[:] = {sys.path!r}; sys.modules['tvm'] = None"
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"{path}; from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def compile(self, job: Job) -> str | None:
        """Return the error log, None if there was none."""
        assert self.process.stdin is not None and self.process.stdout is not None
        request = {k: str(v) for k, v in vars(job).items() if v}
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            return f"the compiler's process ended with exit code {self.process.wait()}"
        error: str | None = json.loads(answer)["error"]
        return error

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compile_jobs(jobs: Sequence[Job], processes: int, done: Callable[[int], None]) -> list[str | None]:
    """Compile all jobs; returns the compiler's log for each that failed. `done(n)`: called with the number of finished
    ones.
    """
    if not jobs:
        return []
    workers = [_Worker() for _ in range(max(1, min(processes, len(jobs))))]
    idle: SimpleQueue[_Worker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def run(job: Job) -> str | None:
        worker = idle.get()
        try:
            return worker.compile(job)
        finally:
            idle.put(worker)

    results: list[str | None] = []
    try:
        with ThreadPoolExecutor(len(workers)) as pool:
            for result in pool.map(run, jobs):
                results.append(result)
                done(len(results))
    finally:
        for worker in workers:
            worker.close()
    return results


def serve(requests: IO[str] | None = None) -> None:
    """Answer requests, one a line, until there are no more."""
    for line in requests or sys.stdin:
        request = json.loads(line)
        output = Path(request.pop("output"))
        error = None
        try:
            if not output.exists():
                output.write_bytes(compile_text(**request))
        except (NvrtcError, NvrtcMissingError, CodegenError, OSError) as problem:
            error = str(problem)
        sys.stdout.write(json.dumps({"error": error}) + "\n")
        sys.stdout.flush()
