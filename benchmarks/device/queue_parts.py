"""The parts of the queue, in the order of their worth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """`budget_s`: what it gets at most in one call. `needs`: packages besides numpy, cuda-bindings and NVRTC."""

    name: str
    module: str
    budget_s: float
    question: str
    needs: tuple[str, ...] = ()


PARTS = (
    Part("A1", "benchmarks.device.a1_ceilings", 75, "Ceilings: bandwidths by size, GEMM rates, ex2", ("torch",)),
    Part("A2", "benchmarks.device.a2_launch", 45, "Launch costs: stream, graph chain, edges of each kind, branches"),
    Part("A3", "benchmarks.device.a3_sync", 45, "Costs of barriers and hand-overs: grid, semaphore, cluster, mbarrier"),
    Part("A4", "benchmarks.device.a4_order", 45, "Are blocks placed in launch order? Can a waiting kernel starve?"),
    Part("A6p", "benchmarks.device.a6_patterns", 120, "Peers on patterns: softmax, norms, attention", ("torch", "jax")),
    Part("A6m", "benchmarks.device.a6_models", 480, "Peers on models: eager, compiled, CUDA graphs", ("torch",)),
    Part("A7", "benchmarks.device.a7_pairs", 60, "cuBLAS pairs of an MLP in one CUDA graph", ("torch",)),
    Part("A5", "benchmarks.device.a5_concurrency", 60, "Kernels side by side; green contexts"),
    Part("B1", "benchmarks.device.b1_ours", 400, "Our artifacts: right, and against JAX", ("jax", "torch")),
    Part("B4", "benchmarks.device.b4_peers", 480, "Our models against PyTorch's modes, in turns", ("torch",)),
    Part("B3", "benchmarks.device.b3_gemm", 200, "Hopper's products: every tile, right, against cuBLAS", ("torch",)),
    Part("C1", "benchmarks.device.c1_emulator", 120, "Does the GPU do what the emulated device does?"),
    Part("B2", "benchmarks.device.b2_sanitizer", 300, "compute-sanitizer over the cases"),
)  # fmt: skip

BY_NAME = {part.name: part for part in PARTS}
