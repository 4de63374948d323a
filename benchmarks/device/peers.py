"""How PyTorch runs a module: eager, captured in a CUDA graph, and compiled; and its time, kernels and memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

MODES = ("eager", "graph", "compile", "max-autotune")
DTYPES = ("float32", "tf32", "bfloat16")


def prepared(module: Any, inputs: Sequence[Any], dtype: str) -> tuple[Any, list[Any]]:
    """Module and inputs on the GPU in `dtype`; tf32 is float32 whose GEMMs may use TF32."""
    import torch

    allowed = dtype == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
    wanted = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    moved = [x.cuda().to(wanted) if x.is_floating_point() else x.cuda() for x in inputs]
    return module.cuda().to(wanted).eval(), moved


def runner(module: Any, inputs: Sequence[Any], mode: str) -> Callable[[], Any]:
    """A function that runs the module on these inputs, warmed up, compiled or captured."""
    import torch

    if mode == "compile":
        module = torch.compile(module)
    elif mode == "max-autotune":
        module = torch.compile(module, mode="max-autotune")  # which replays CUDA graphs

    def call() -> Any:
        with torch.no_grad():
            return module(*inputs)

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    return captured(call) if mode == "graph" else call


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """`call` as the replay of a CUDA graph."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def measured(call: Callable[[], Any], repeats: int = 30) -> dict[str, Any]:
    """Median, 10th and 90th percentile by events, kernels a run by the profiler, peak memory."""
    import torch

    for _ in range(5):
        call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end))
    cuts = statistics.quantiles(times, n=10)
    return {
        "us": statistics.median(times),
        "p10_us": cuts[0],
        "p90_us": cuts[-1],
        "kernels": kernels(call),
        "peak_MiB": torch.cuda.max_memory_allocated() / 2**20,
    }


def kernels(call: Callable[[], Any]) -> int:
    """How many kernels one run launches."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as run:
        call()
        torch.cuda.synchronize()
    is_device = torch.autograd.DeviceType.CUDA
    return sum(event.count for event in run.key_averages() if event.device_type == is_device and "Mem" not in event.key)
