"""Backends by the name of a target."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import CacheWarning, OptionError

if TYPE_CHECKING:
    from tilestitch.codegen.backend import Backend
    from tilestitch.codegen.kernel_cache import KernelCache

TARGETS = "give cpu, cpu:NAME, cuda:sm_90a, cuda:h200, or emulator"


def backend_of(target: str, threads: int, cache: str | os.PathLike[str] | bool, nvcc: str | None) -> Backend:
    """Return the backend of a target.

    `threads`: for which tasks are sized, or processes that compile CUDA. `cache`, `nvcc`: as in `compile_model`.
    Raises OptionError for an unknown kind of target, and TargetError for a name that its backend does not understand.
    """
    kind = target.split(":", 1)[0]
    if kind == "cpu":
        from tilestitch.codegen.cpu.backend import CpuBackend
        from tilestitch.codegen.cpu.target import parse_target

        return CpuBackend(parse_target(target), threads, kernel_cache(cache))
    if kind in ("cuda", "emulator"):
        from tilestitch.codegen.cuda.backend import CudaBackend
        from tilestitch.codegen.cuda.target import parse_cuda_target
        from tilestitch.codegen.cuda.toolchain.compile import BuildOptions

        text_only = kind == "emulator"
        kept = kernel_cache(False if text_only else cache)
        return CudaBackend(parse_cuda_target(target), BuildOptions(threads, kept, nvcc, text_only=text_only))
    raise OptionError(f"there is no target {target!r}; {TARGETS}")


def kernel_cache(cache: str | os.PathLike[str] | bool) -> KernelCache:
    """Return the cache of compiled kernels. Warns where nothing can be stored."""
    from tilestitch.codegen.kernel_cache import NO_CACHE, KernelCache, default_folder

    name = os.fspath(cache) if isinstance(cache, os.PathLike) else cache
    if not isinstance(name, (bool, str)) or name in ("", "off") or (isinstance(name, str) and "\0" in name):
        raise OptionError(f"cache is {cache!r}; name a folder, or give True for the usual one or False for none")
    if name is False:
        return NO_CACHE
    try:
        found = KernelCache(default_folder() if name is True else Path(name))
        problem = found.why_not_kept()
    except RuntimeError as error:
        found, problem = NO_CACHE, str(error)
    if problem is not None:
        advice = "name another folder (cache=…, --cache DIR), or none (cache=False, --cache off)"
        warnings.warn(f"compiled kernels are not kept: {problem}; {advice}", CacheWarning, stacklevel=5)
    return found
