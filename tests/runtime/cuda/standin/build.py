"""Builds the stand-in's library with the host's compiler; keeps it by its contents' hash."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

NATIVE = Path(__file__).parent / "native"
GPUS = "H200"


def missing() -> str | None:
    """Why the library cannot be built here; None if it can."""
    if shutil.which("g++") is None:
        return "the stand-in for the CUDA driver is built with g++, which is not here"
    if _header() is None:
        return "the stand-in for the CUDA driver needs cuda.h: pip install nvidia-cuda-runtime"
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        return "the stand-in for the CUDA driver needs cuda-bindings: pip install 'tilestitch[cuda]'"
    return None


def takes_ptx() -> bool:
    """Whether the stand-in compiles PTX."""
    return _of_wheels("include/nvJitLink.h") is not None and _of_wheels("lib/libnvJitLink.so.*") is not None


def _header() -> Path | None:
    """The folder with cuda.h of NVIDIA's wheels."""
    found = _of_wheels("include/cuda.h")
    return None if found is None else found.parent


def _of_wheels(pattern: str) -> Path | None:
    """A file of NVIDIA's wheels for CUDA 13."""
    found = importlib.util.find_spec("nvidia")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        for path in sorted(Path(folder).glob(f"cu13/{pattern}")):
            return path
    return None


def build(gpus: str = GPUS, idle: bool = False) -> Path:
    """`libcuda.so.1` with these GPUs, of those in native/device.cc: `H200,H200`, or empty for a machine without one.

    `idle`: graphs that are launched do nothing at all, to measure what is around the driver's calls. Raises
    `RuntimeError` where `missing` says why.
    """
    reason, header = missing(), _header()
    if reason is not None or header is None:
        raise RuntimeError(reason)
    sources = sorted(NATIVE.glob("*.cc"))
    command = ["g++", "-std=c++17", "-O1", "-g1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-Wl,-z,defs"]
    command += [f'-DSTANDIN_GPUS="{gpus}"', f"-I{header}", *(["-DSTANDIN_IDLE"] if idle else [])]
    if takes_ptx():
        command += [f'-DSTANDIN_NVJITLINK="{_of_wheels("lib/libnvJitLink.so.*")}"']
    digest = hashlib.sha256(" ".join(command).encode())
    for path in sorted(NATIVE.iterdir()):
        digest.update(path.read_bytes())
    library = _cache() / digest.hexdigest()[:16] / "libcuda.so.1"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            output = Path(folder) / library.name
            subprocess.run([*command, *map(str, sources), "-o", str(output)], check=True)
            output.replace(library)
    return library


def _cache() -> Path:
    return Path(__file__).resolve().parents[4] / "build" / "standin"
