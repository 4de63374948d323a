"""From launches to machine code: CUDA text by TVM, cubin and PTX by NVRTC; equal kernels once, and cached."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tvm

from tilestitch.codegen.cuda.abi import SYMBOL, CudaLaunch
from tilestitch.codegen.cuda.target import CudaTarget
from tilestitch.codegen.cuda.toolchain import nvrtc
from tilestitch.codegen.cuda.toolchain.spills import REGISTERS, cubin_of
from tilestitch.codegen.cuda.toolchain.text import kernel_text
from tilestitch.codegen.errors import KernelError, TargetError, first_error
from tilestitch.codegen.kernel_cache import NO_CACHE, KernelCache, key_of
from tilestitch.runtime.archive import atomic_file
from tilestitch.runtime.members import cubin_member, cuda_source_member, ptx_member

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class BuildOptions:
    """`processes`: number of concurrent compilations. `cache`: of compiled kernels. `nvcc`: path of the CUDA compiler
    to use instead of NVRTC; None for NVRTC. `text_only`: compile nothing, for the emulated device, which uses the text.
    """

    processes: int = 1
    cache: KernelCache = NO_CACHE
    nvcc: str | None = None
    text_only: bool = False


@dataclass(frozen=True)
class CudaKernels:
    """`members` of the artifact by name, the symbol of each launch in the order of the launches, and the kernels'
    `sources` by symbol.
    """

    members: Mapping[str, bytes]
    symbols: tuple[str, ...]
    sources: Mapping[str, str]

    def source_members(self) -> dict[str, bytes]:
        """Return the CUDA text of every kernel as members of the artifact."""
        return {cuda_source_member(symbol): text.encode() for symbol, text in self.sources.items()}


def compile_kernels(
    launches: Sequence[CudaLaunch],
    target: CudaTarget,
    options: BuildOptions,
    progress: Progress,
    digests: Sequence[str] = (),
) -> CudaKernels:
    """Compile the kernels of all launches for all architectures of the target, and PTX for newer GPUs. `digests` of the
    launches' signatures end the symbols; kernels that go into no artifact need none.

    Raises KernelError, naming the kernel, its ONNX nodes and the path of its text, if a compiler refuses one;
    TargetError if the compiler is missing or does not know an architecture.
    """
    if not options.text_only:
        _check(target, options)
    symbols: list[str] = []
    sources: dict[str, str] = {}
    owners: dict[str, CudaLaunch] = {}
    texts: dict[int, str] = {}
    ends = digests or [""] * len(launches)
    for number, (launch, end) in enumerate(zip(launches, ends, strict=True)):
        progress("write CUDA", number, len(launches))
        _check_shared(launch, target)
        if id(launch.func) not in texts:
            texts[id(launch.func)] = _text(launch, target)
        text = texts[id(launch.func)]
        symbol = f"{launch.kind}_{hashlib.sha256(text.encode()).hexdigest()[:16]}{end}"
        symbols.append(symbol)
        if symbol not in sources:
            sources[symbol] = text.replace(SYMBOL, symbol)
            owners[symbol] = launch
    if options.text_only:
        return CudaKernels({}, tuple(symbols), sources)
    wanted = [*target.architectures]
    if all(launch.portable for launch in owners.values()):
        wanted.append(target.compute)
    built = _compile_all(sources, owners, wanted, options, progress)
    members: dict[str, bytes] = {}
    for architecture in wanted:
        name = cubin_member if architecture.startswith("sm_") else ptx_member
        for number, symbol in enumerate(sources):
            members[name(architecture, number)] = built[symbol, _compiled_for(architecture, owners[symbol])]
    return CudaKernels(members, tuple(symbols), sources)


def _check(target: CudaTarget, options: BuildOptions) -> None:
    if options.nvcc is not None:
        if shutil.which(options.nvcc) is None:
            raise TargetError(f"there is no CUDA compiler {options.nvcc!r}; give the path of nvcc, or use NVRTC")
        return
    try:
        nvrtc.include_folder()
        known = nvrtc.architectures()
    except nvrtc.NvrtcMissingError as error:
        raise TargetError(f"target {target.name}: {error}") from None
    missing = [a for a in target.architectures if int("".join(filter(str.isdigit, a))) not in known]
    if missing:
        major, minor = nvrtc.version()
        raise TargetError(
            f"target {target.name}: NVRTC {major}.{minor} does not compile for {', '.join(missing)}, only for "
            f"{', '.join(f'sm_{n}' for n in sorted(known))}; install another version of nvidia-cuda-nvrtc"
        )


def _check_shared(launch: CudaLaunch, target: CudaTarget) -> None:
    """Raise an error for a launch with too much shared memory, which only the GPU's driver would otherwise detect."""
    needed, most = launch.shared_bytes + launch.static_shared_bytes, target.device.shared_bytes_per_block
    if needed > most:
        reason = f"a block takes {needed} bytes of shared memory, and {target.name} allows {most}"
        raise KernelError.refused(launch.kind, reason, launch.owner, launch.origins)


def _text(launch: CudaLaunch, target: CudaTarget) -> str:
    try:
        return kernel_text(launch.func, target)
    except _TVM_ERRORS as error:
        raise KernelError.refused(launch.kind, _last_line(str(error)), launch.owner, launch.origins) from error


_TVM_ERRORS = (tvm.error.InternalError, ValueError, TypeError, RuntimeError, IndexError, AttributeError, KeyError)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("File ")]
    return lines[-1] if lines else "no reason given"


def _compile_all(
    sources: Mapping[str, str],
    owners: Mapping[str, CudaLaunch],
    architectures: Sequence[str],
    options: BuildOptions,
    progress: Progress,
) -> dict[tuple[str, str], bytes]:
    compiler = _compiler_name(options)
    pairs = [(s, _compiled_for(a, launch)) for a in architectures for s, launch in owners.items()]
    keys = {(s, a): key_of(sources[s], a, compiler) for s, a in pairs}
    built = {pair: data for pair, key in keys.items() if (data := options.cache.read(key)) is not None}
    missing = [pair for pair in keys if pair not in built]
    known = len(built)
    with tempfile.TemporaryDirectory(prefix="tilestitch-") as folder:
        jobs = [nvrtc.Job(sources[s], a, *(Path(folder) / f"{s}.{n}" for n in (a, _virtual(a)))) for s, a in missing]
        run = nvrtc.compile_jobs if options.nvcc is None else _nvcc_jobs(options.nvcc)
        logs = run(jobs, options.processes, lambda done: progress("compile CUDA", known + done, len(keys)))
        for (symbol, architecture), job, log in zip(missing, jobs, logs, strict=True):
            if log is not None:
                launch, kept = owners[symbol], _keep(symbol, sources[symbol])
                reason = f"{architecture}: {first_error(log)}"
                raise KernelError.refused(symbol, reason, launch.owner, launch.origins, kept)
            built[symbol, architecture] = job.output.read_bytes()
            options.cache.write(keys[symbol, architecture], built[symbol, architecture])
    return built


def _compiled_for(architecture: str, launch: CudaLaunch) -> str:
    """Return the architecture that a kernel is compiled for: a portable one uses nothing that only sm_90a has, and that
    of sm_90 has the PTX for newer GPUs, too. (The suffixes of later architectures change what CUDA's headers do.)
    """
    return "sm_90" if architecture == "sm_90a" and launch.portable else architecture


def _virtual(architecture: str) -> str:
    return architecture.replace("sm_", "compute_")


def _compiler_name(options: BuildOptions) -> str:
    if options.nvcc is None:
        return f"nvrtc {nvrtc.version()} {' '.join(nvrtc.OPTIONS)} {REGISTERS}"
    answer = subprocess.run([options.nvcc, "--version"], capture_output=True, text=True, check=False)
    return f"nvcc {answer.stdout} {REGISTERS}"


def _nvcc_jobs(nvcc: str) -> Callable[[Sequence[nvrtc.Job], int, Callable[[int], None]], list[str | None]]:
    """Compile as `nvrtc.compile_jobs` does, by nvcc."""
    from concurrent.futures import ThreadPoolExecutor

    def by_nvcc(job: nvrtc.Job, source: str, options: tuple[str, ...]) -> bytes:
        text = job.output.with_name(job.output.name + ".cu")
        text.write_text(source, encoding="utf-8")
        kind = "-cubin" if job.architecture.startswith("sm_") else "-ptx"
        command = [nvcc, kind, f"-arch={job.architecture}", "-O3", "-std=c++17", str(text), "-o", str(job.output)]
        answer = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if answer.returncode:
            raise nvrtc.NvrtcError(answer.stderr or f"exit code {answer.returncode}")
        if not job.output.exists():
            raise TargetError(f"the CUDA compiler {nvcc!r} succeeded and wrote no code; give the path of nvcc")
        return job.output.read_bytes()

    def compile_one(job: nvrtc.Job) -> str | None:
        compile_ = partial(by_nvcc, job)
        try:
            if job.architecture.startswith("sm_"):
                job.output.write_bytes(cubin_of(job.source, job.architecture, compile_))
            else:
                compile_(job.source, ())
        except nvrtc.NvrtcError as error:
            return str(error)
        return None

    def run(jobs: Sequence[nvrtc.Job], processes: int, done: Callable[[int], None]) -> list[str | None]:
        results: list[str | None] = []
        with ThreadPoolExecutor(processes) as pool:
            for result in pool.map(compile_one, jobs):
                results.append(result)
                done(len(results))
        return results

    return run


def _keep(symbol: str, text: str) -> str:
    """Store the text of a refused kernel for the report, and return its path."""
    path = Path(tempfile.gettempdir()) / f"tilestitch-{symbol}.cu"
    with atomic_file(path) as file:  # replaces a link that another user may have put there
        file.write(text.encode())
    return str(path)
