"""Compiles the emulated device and kernels with the host's C++ compiler, and caches the results by their contents'
hash.
"""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from .errors import EmulatorBuildError, EmulatorUnsupportedError, NoCompilerError
from .options import EmulatorOptions
from .translate import translation_unit

_FOLDER = Path(__file__).parent
_INCLUDE = _FOLDER / "include"
_COMMON = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-fwrapv")
_KERNEL = (
    *_COMMON, "-O1", "-g1", "-w", "-fno-exceptions", "-fno-rtti", "-fno-math-errno", "-ffp-contract=off",
    "-fno-stack-protector",
)  # fmt: skip
# Under the thread sanitizer's instrumentation every memory access calls a function; we define those functions.
_CHECKED = {
    "gcc": ("-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0", "--param=tsan-distinguish-volatile=1"),
    "clang": (
        "-fsanitize=thread", "-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm", "-tsan-distinguish-volatile=1",
        "-mllvm", "-tsan-instrument-read-before-write=1",
    ),
}  # fmt: skip

# An access to a vector is one access; otherwise the compiler may split it by element, which a GPU's does not.
_WHOLE_VECTORS = ("-fno-tree-sra",)


def build_device(options: EmulatorOptions) -> Path:
    """Build the emulated device as a shared library and return its path."""
    compiler = _compiler(options)
    sources = sorted((_FOLDER / "native").glob("*.cc"))
    contents = [path.read_bytes() for path in sorted((_FOLDER / "native").iterdir()) if path.is_file()]
    command = [compiler, *_COMMON, "-O2", "-shared", "-Wl,-z,defs"]
    target = _cache_folder(options) / f"device-{_hash(_version(compiler), _headers(), *command, *contents)}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory(prefix="tilestitch-") as folder:
            unit, output = Path(folder) / "device.cc", Path(folder) / target.name
            unit.write_text("".join(f'#include "{path}"\n' for path in sources))  # one unit: quicker, and calls inlined
            _run([*command, f"-Wl,-soname,{target.name}", str(unit), "-o", str(output)])
            _publish(output, target)
    return target


def build_kernels(sources: Mapping[str, str], options: EmulatorOptions) -> Path:
    """Build a shared library of the kernels, whose CUDA texts are given by name, and return its path.

    Raises EmulatorBuildError if there is no compiler or it refuses a kernel, EmulatorUnsupportedError for what the
    emulator does not support.
    """
    device = build_device(options)
    compiler = _compiler(options)
    unit = translation_unit(sources)
    family = "clang" if "clang" in _version(compiler) else "gcc"
    flags = [
        *_KERNEL,
        *(_fused() if options.fused else ()),
        *(_CHECKED[family] if options.checked else ()),
        *(_WHOLE_VECTORS if options.on_requests else ()),
    ]
    name = _hash(device.name, _headers(), *flags, unit)
    target = _cache_folder(options) / f"kernels-{name}.so"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(prefix="tilestitch-") as folder:
        text, objects, output = (Path(folder) / n for n in ("kernels.cc", "kernels.o", target.name))
        text.write_text(unit)
        includes = [f"-I{path}" for path in (*_precompiled(compiler, family, flags, target.parent), _INCLUDE)]
        _run([compiler, *flags, *includes, "-c", str(text), "-o", str(objects)])
        _run([compiler, "-shared", str(objects), str(device), f"-Wl,-rpath,{device.parent}", "-o", str(output)])
        _publish(output, target)
    return target


def _fused() -> tuple[str, ...]:
    """Later flags count; g++ fuses with the second alone. Processors of other kinds have fused multiply-adds anyway."""
    return ("-ffp-contract=fast", "-fexpensive-optimizations", *(("-mfma",) if platform.machine() == "x86_64" else ()))


def locate(library: Path, offset: int) -> tuple[str, int] | None:
    """Return the source and line of an offset into a library of kernels, or None if they cannot be found."""
    return locate_all(library, [offset])[0]


def locate_all(library: Path, offsets: Sequence[int]) -> list[tuple[str, int] | None]:
    """Return the source and line of each of several offsets, as `locate` does."""
    program = shutil.which("addr2line")
    if program is None or not offsets:
        return [None] * len(offsets)
    command = [program, "-a", "-i", "-e", str(library)]  # -a: the address, then its places, the innermost first
    given = "\n".join(map(hex, offsets))
    result = subprocess.run(command, capture_output=True, text=True, check=False, input=given)
    found: list[tuple[str, int] | None] = []
    for text in re.split(r"^0x[0-9a-f]+$", result.stdout, flags=re.MULTILINE)[1:]:
        places = re.findall(r"([^/\s]+)\.cu:(\d+)", text)
        found.append((places[-1][0], int(places[-1][1])) if places else None)
    return found if len(found) == len(offsets) else [None] * len(offsets)


def _compiler(options: EmulatorOptions) -> str:
    names = [options.compiler] if options.compiler else ["g++", "clang++"]
    for name in names:
        if found := shutil.which(name):
            return found
    raise NoCompilerError(
        f"device 'emulator' compiles kernels with a C++ compiler, and there is no {' or '.join(names)}; install one "
        "(Debian, Ubuntu: apt install g++), or name it with EmulatorOptions(compiler=…)"
    )


@cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout.splitlines()[0]


@cache
def _headers() -> str:
    paths = sorted(path for path in _INCLUDE.rglob("*") if path.is_file())
    return _hash(*(path.read_bytes() for path in paths))


def _hash(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:32]


def _cache_folder(options: EmulatorOptions) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = options.cache or Path(base) / "tilestitch" / "emulator"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EmulatorBuildError(
            f"the emulator's cache folder {folder} cannot be made ({error.strerror}); choose another with "
            "XDG_CACHE_HOME, in Python with EmulatorOptions(cache=…)"
        ) from error
    return folder.resolve()


def _publish(built: Path, target: Path) -> None:
    """Put a file in place atomically, also when other processes do the same."""
    partial = target.with_suffix(f".{os.getpid()}.partial")
    try:
        shutil.copyfile(built, partial)
        partial.replace(target)
    except OSError as error:
        raise EmulatorBuildError(f"{target} cannot be written ({error}); free some space") from error


def _precompiled(compiler: str, family: str, flags: Sequence[str], cache: Path) -> list[Path]:
    """Return a folder with the precompiled header, which halves the compile time of a kernel. A compiler falls back on
    the header itself where the precompiled one does not fit. Empty for clang, which has another way.
    """
    if family != "gcc":
        return []
    folder = cache / f"header-{_hash(_version(compiler), _headers(), *flags)}"
    if not (folder / "emulator.h.gch").exists():
        with tempfile.TemporaryDirectory(prefix="tilestitch-") as temporary:
            output = Path(temporary) / "emulator.h.gch"
            _run(
                [compiler, *flags, f"-I{_INCLUDE}", "-x", "c++-header", str(_INCLUDE / "emulator.h"), "-o", str(output)]
            )
            folder.mkdir(exist_ok=True)
            _publish(output, folder / output.name)
    return [folder]


def _run(command: Sequence[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise _refused(result.stderr, command[0])


def _refused(log: str, compiler: str) -> EmulatorBuildError | EmulatorUnsupportedError:
    missing = sorted(
        set(re.findall(r"(?:no member named )?[‘'](\w+)[’'](?: is not a member of| in namespace) [‘']emu_ptx[’']", log))
    )
    if missing:
        names = ", ".join(name.replace("_", ".") for name in missing)
        return EmulatorUnsupportedError(f"the emulator does not stand in for the PTX instruction {names}")
    full = os.strerror(errno.ENOSPC)
    if full in log:
        folder = tempfile.gettempdir()
        return EmulatorBuildError(
            f"{Path(compiler).name} cannot write to {folder}: {full}; free disk space, or name another folder with "
            "TMPDIR"
        )
    errors = [line for line in log.splitlines() if "error" in line] or log.splitlines() or ["no reason given"]
    return EmulatorBuildError(
        f"{Path(compiler).name} refused a kernel: {errors[0]}; if the kernel uses CUDA that the emulator lacks, "
        "report it, else compile the model again"
    )
