"""Forecasts of whole models: kernels with their times and what bounds them, the total, and the memory needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tilestitch.compiler.errors import ForecastError
from tilestitch.compiler.ir import Graph, Value
from tilestitch.compiler.ir.types import is_static_tensor
from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.cost_model.counts import bytes_of
from tilestitch.cost_model.library.data import Kernel
from tilestitch.cost_model.library.model import EAGER_GAP_SHARE, Timed, in_sequence_us, shipped_model
from tilestitch.passes.contract import PassContext
from tilestitch.passes.pipeline import run_pipeline
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.planner import make_plan
from tilestitch.passes.schedule.facts import group_facts
from tilestitch.passes.schedule.makespan import plan_us

from .gpus import Gpu
from .pytorch import Launch, compiled, eager

Runtime = Literal["tilestitch", "pytorch", "compiled"]
RUNTIMES: tuple[Runtime, ...] = ("tilestitch", "pytorch", "compiled")
MODE = "zero_shot"


@dataclass(frozen=True)
class KernelForecast:
    """One kernel. `bound`: what it mostly waits for."""

    name: str
    nodes: tuple[str, ...]
    us: float
    low_us: float
    high_us: float
    bound: str

    def to_json(self) -> dict[str, Any]:
        times = {key: round(getattr(self, key), 3) for key in ("us", "low_us", "high_us")}
        return {"name": self.name, "onnx_nodes": list(self.nodes), **times, "bound": self.bound}


@dataclass(frozen=True)
class Forecast:
    """A model on a GPU. `weights_bytes`, `values_bytes`: peak memory of weights, and of inputs, outputs and
    intermediate values.
    """

    gpu: Gpu
    runtime: Runtime
    kernels: tuple[KernelForecast, ...]
    total_us: float
    low_us: float
    high_us: float
    weights_bytes: int
    values_bytes: int

    @property
    def fits(self) -> bool:
        """Whether the GPU's memory holds it all."""
        return self.weights_bytes + self.values_bytes <= self.gpu.device.memory_bytes

    def to_json(self) -> dict[str, Any]:
        times = {key: round(getattr(self, key), 3) for key in ("total_us", "low_us", "high_us")}
        memory = {
            "weights_bytes": self.weights_bytes,
            "values_bytes": self.values_bytes,
            "device_bytes": self.gpu.device.memory_bytes,
            "fits": self.fits,
        }
        kernels = [kernel.to_json() for kernel in self.kernels]
        return {"device": self.gpu.name, "runtime": self.runtime, **times, "memory": memory, "kernels": kernels}


def forecast(graph: Graph, gpu: Gpu, runtime: Runtime, precision: str = "fp32") -> Forecast:
    """Forecast a model from the frontend's graph. Raises ForecastError where no forecast is possible."""
    if runtime == "tilestitch":
        _check_sizes(graph)
        return _ours(graph, gpu, precision)
    if precision != "fp32":
        raise ForecastError(f"PyTorch was measured in float32 only; leave out --precision {precision}")
    if gpu.is_share:
        raise ForecastError(f"PyTorch was measured on whole GPUs only; leave out /{gpu.device.sm_count} of {gpu.name}")
    return _pytorch(graph, gpu, runtime)


def _check_sizes(graph: Graph) -> None:
    opened = next((value for value in graph.inputs if not is_static_tensor(value.type)), None)
    if opened is not None:
        raise ForecastError(
            f"input {opened.name} is {opened.type}, and how long it takes depends on its sizes; give them with --shape "
            f"{opened.name}=1x128, say"
        )


# -- our plan ----------------------------------------------------------------------------------------------------------


def _ours(graph: Graph, gpu: Gpu, precision: str) -> Forecast:
    device, model = gpu.device, ANALYTICAL
    target = TargetInfo("cuda", 1, gpu.planned_for, (device.architecture,), device.sm_count, is_share=gpu.is_share)
    options = {"planner": "stitch", "precision": precision, "search": True}
    context = PassContext(target, options=options, cost_model=model)
    graph = run_pipeline(graph, context)
    plan = make_plan(graph, context)
    if plan.bodies or plan.host_groups:
        names = [group.name for group in plan.host_groups] or list(plan.bodies)
        raise ForecastError(
            f"{', '.join(names[:4])} would run on the host, which is not forecast; tilestitch compile says why, and "
            "--shape NAME=1x128 often helps"
        )
    nodes = {node.name: node for node in graph.nodes}
    facts = {group.name: group_facts(nodes, group, target) for group in plan.groups}
    found = dict(zip(facts, model.predict(list(facts.values()), device), strict=True))
    kernels = tuple(
        KernelForecast(g.name, tuple(g.origins), p.latency_us, p.low_us, p.high_us, p.bound)
        for g, p in zip(plan.groups, found.values(), strict=True)
    )

    def total_us(which: str) -> float:
        return plan_us(plan, facts, {name: getattr(p, which) for name, p in found.items()}, device)

    weights = bytes_of(graph.constants)
    values = plan.buffers.arena_bytes + bytes_of((*graph.inputs, *graph.outputs))
    total, low, high = total_us("latency_us"), total_us("low_us"), total_us("high_us")
    return Forecast(gpu, "tilestitch", kernels, total, low, high, weights, values)


# -- PyTorch -----------------------------------------------------------------------------------------------------------


def _pytorch(graph: Graph, gpu: Gpu, runtime: Runtime) -> Forecast:
    model = shipped_model()
    launches = eager(graph) if runtime == "pytorch" else compiled(graph)
    times = model.times([launch.kernel for launch in launches], model.expected(gpu.sheet))
    us = in_sequence_us(times)
    kernels = []
    for launch, one_us, bound in zip(launches, us, _bounds(launches, times, gpu)):
        name = launch.kernel.kernel_class
        spread = model.spread("elementwise" if name == "copy" else name, MODE)
        kernels.append(_kernel(launch, float(one_us), spread.low, spread.high, bound))
    total, spread = float(us.sum()), model.spread("model" if runtime == "pytorch" else "fused", MODE)
    return Forecast(
        gpu, runtime, tuple(kernels), total, total * spread.low, total * spread.high,
        bytes_of(graph.constants), _most_alive(graph, launches),
    )  # fmt: skip


def _kernel(launch: Launch, us: float, low: float, high: float, bound: str) -> KernelForecast:
    return KernelForecast(launch.kernel.op, launch.nodes, us, us * low, us * high, bound)


def _bounds(launches: Sequence[Launch], times: Timed, gpu: Gpu) -> list[str]:
    """Return what dominates each kernel: its launch, arithmetic, or DRAM."""
    found = []
    for number, launch in enumerate(launches):
        kernel = launch.kernel
        if EAGER_GAP_SHARE * times.gap_us[number] > times.body_us[number]:
            found.append("launch")
        elif kernel.kernel_class in ("bmm", "linear", "conv"):
            flops, nbytes = _work(kernel)
            flops_us, dram_us = flops / (gpu.sheet.fp32_gflops * 1e3), nbytes / (gpu.sheet.dram_bandwidth_gb_s * 1e3)
            found.append("fma" if flops_us > dram_us else "dram")
        else:
            found.append("dram")
    return found


def _work(kernel: Kernel) -> tuple[float, float]:
    """Return the operations and bytes of a GEMM or a convolution in float32, each operand and result counted once."""
    if kernel.kernel_class == "conv":
        batch, channels_in, channels_out, *taps, height, width, _ = map(float, kernel.sizes)
        pixels, weights = batch * height * width, channels_in * channels_out * np.prod(taps)
        return float(2 * pixels * weights), float(4 * (pixels * (channels_in + channels_out) + weights))
    batch, m, n, k = map(float, kernel.sizes)
    return 2 * batch * m * n * k, 4 * batch * (m * n + n * k + m * k)


def _most_alive(graph: Graph, launches: Sequence[Launch]) -> int:
    """Return the peak bytes of values: inputs and outputs throughout, others from their launch to their last reader."""
    lasting = {*graph.inputs, *graph.outputs, *graph.constants}
    last: dict[Value, int] = {value: number for number, launch in enumerate(launches) for value in launch.reads}
    change = np.zeros(len(launches) + 1, np.int64)
    for number, launch in enumerate(launches):
        for value in set(launch.writes) - lasting:
            change[number] += value.tensor_type.nbytes
            change[last.get(value, number) + 1] -= value.tensor_type.nbytes
    return bytes_of((*graph.inputs, *graph.outputs)) + int(np.max(np.cumsum(change), initial=0))
