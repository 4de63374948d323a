"""A1: what the card can do at most: bandwidths by size, GEMM rates of the library, fp32 and special-function rates."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.device.case import Case, Setup
from benchmarks.device.gpu import Gpu

SIZES_MIB = (4, 16, 32, 48, 64, 128, 512, 4096)
TRAFFIC = {"copy": 2, "read": 1, "write": 1}
"""Bytes moved for each byte of the buffer."""

GEMM_SIZES = (2048, 4096, 8192)
GEMM_DTYPES = ("float32", "tf32", "float16", "bfloat16", "float8_e4m3fn")


def bandwidth(setup: Setup, kernel: str, mib: int) -> dict[str, Any]:
    """One buffer again and again: sizes below the L2 cache's show its bandwidth."""
    gpu = Gpu(setup.kernels("ceilings"))
    nbytes = setup.room(mib << 20)
    source, target = gpu.buffer(nbytes), gpu.buffer(nbytes)
    words = gpu.upload(np.array([nbytes // 16], np.int64))
    function = gpu.function(kernel)
    best = None
    for blocks in (2, 4, 8):
        grid = blocks * gpu.multiprocessors
        median = gpu.time_us(partial(gpu.launch, function, grid, 256, (source, target, words)))
        if best is None or median < best[0]:
            best = (median, blocks)
    assert best is not None
    return {"us": best[0], "GB_per_s": TRAFFIC[kernel] * nbytes / best[0] / 1e3, "blocks_per_sm": best[1]}


def driver_copy(setup: Setup, mib: int) -> dict[str, Any]:
    gpu = Gpu(setup.kernels("ceilings"))
    nbytes = setup.room(mib << 20)
    source, target = gpu.buffer(nbytes), gpu.buffer(nbytes)
    median = gpu.time_us(lambda: gpu.call("cuMemcpyDtoDAsync", target, source, nbytes, gpu.stream))
    return {"us": median, "GB_per_s": 2 * nbytes / median / 1e3}


def rate(setup: Setup, kernel: str, operations: int, rounds: int = 4096) -> dict[str, Any]:
    """`operations` a thread and round."""
    gpu = Gpu(setup.kernels("ceilings"))
    result = gpu.buffer(4)
    size = gpu.upload(np.array([rounds], np.int64))
    grid, block = 8 * gpu.multiprocessors, 256
    median = gpu.time_us(lambda: gpu.launch(gpu.function(kernel), grid, block, (result, result, size)))
    return {"us": median, "Tops_per_s": operations * rounds * grid * block / median / 1e6}


def gemm(dtype: str, size: int) -> dict[str, Any]:
    """A square GEMM of fresh random matrices through PyTorch; rotates among operands that exceed the L2 cache."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    storage = getattr(torch, "float32" if dtype == "tf32" else dtype)
    sets = max(2, (256 << 20) // (2 * size * size * storage.itemsize))
    operands = [(_random(torch, size, storage), _random(torch, size, storage)) for _ in range(min(sets, 8))]
    if dtype.startswith("float8"):
        one = torch.ones((), device="cuda")
        operands = [(a, b.t().contiguous().t()) for a, b in operands]

        def gemm(a: Any, b: Any) -> Any:
            return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    else:
        gemm = torch.matmul
    median = torch_time_us(lambda number: gemm(*operands[number % len(operands)]))
    return {"us": median, "TFLOP_per_s": 2 * size**3 / median / 1e6}


def _random(torch: Any, size: int, dtype: Any) -> Any:
    return torch.randn(size, size, device="cuda").to(dtype)


def torch_time_us(work: Any, repeats: int = 30, warmup: int = 5) -> float:
    """The median time by events of `work(number)`."""
    import statistics

    import torch

    for number in range(warmup):
        work(number)
    times = []
    for number in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work(number)
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end))
    return statistics.median(times)


def cases(part: str, setup: Setup) -> Iterator[Case]:
    yield Case(part, {"what": "cuMemcpyDtoD", "MiB": 4096}, partial(driver_copy, setup, 4096))
    for kernel in TRAFFIC:
        for mib in reversed(SIZES_MIB):
            yield Case(part, {"what": kernel, "MiB": mib}, partial(bandwidth, setup, kernel, mib))
    yield Case(part, {"what": "fp32 fma"}, partial(rate, setup, "fma32", 16))
    yield Case(part, {"what": "ex2"}, partial(rate, setup, "ex2", 8))
    for dtype in GEMM_DTYPES:
        for size in reversed(GEMM_SIZES):
            yield Case(part, {"what": f"gemm {dtype}", "n": size}, partial(gemm, dtype, size), needs=("torch",))
