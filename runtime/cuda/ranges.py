"""NVTX ranges, by which Nsight Systems and other profilers show what a launch computes.

The package `nvtx` writes them; without it there are none, and without a profiler they cost next to nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

DOMAIN = "tilestitch"


def has_ranges() -> bool:
    """Return whether the package `nvtx` is installed."""
    return importlib.util.find_spec("nvtx") is not None


def ranges() -> Callable[[str, tuple[str, ...]], AbstractContextManager[Any]]:
    """Return a function that opens the range for a launch, given its kernel and its ONNX nodes."""
    if not has_ranges():
        return lambda symbol, origins: nullcontext()
    annotate: Callable[..., AbstractContextManager[Any]] = importlib.import_module("nvtx").annotate
    return lambda symbol, origins: annotate(f"{', '.join(origins) or '(no ONNX node)'} [{symbol}]", domain=DOMAIN)
