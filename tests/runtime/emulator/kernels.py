"""CUDA texts of the tests, in the style that TVM writes and by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilestitch.runtime.emulator import EmulatorOptions, Kernels

PRELUDE = """\
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#define uint unsigned int
"""


def kernel(parameters: str, body: str, before: str = "") -> str:
    """A kernel called `kernel`; its body begins in line 5 if `before` has no lines."""
    return f'{PRELUDE}{before}extern "C" __global__ void __launch_bounds__(1024) kernel({parameters}) {{\n{body}\n}}\n'


def run(
    text: str,
    arrays: Sequence[Any],
    grid: int | tuple[int, int, int] = 1,
    block: int | tuple[int, int, int] = 32,
    options: EmulatorOptions | None = None,
    **more: Any,
) -> None:
    """Run the kernel called `kernel` on arrays, in place."""
    shape = (grid, 1, 1) if isinstance(grid, int) else grid
    threads = (block, 1, 1) if isinstance(block, int) else block
    Kernels({"kernel": text}, options).launch("kernel", shape, threads, arrays, **more)


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)
