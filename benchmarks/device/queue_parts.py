"""The parts of the queue, in the order of their worth."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.device.case import Case, Setup


@dataclass(frozen=True)
class Part:
    """`cases` names a function of the folder, `MODULE:FUNCTION`, from a setup to cases.

    budget_s: what the part gets before all others had their turn. jobs: cases at a time, more than one where nothing is
    timed.
    """

    name: str
    cases: str
    budget_s: float
    question: str
    jobs: int = 1

    def make(self, setup: Setup) -> list[Case]:
        module, _, function = self.cases.partition(":")
        make: Callable[[str, Setup], Iterable[Case]]
        make = getattr(importlib.import_module(f"benchmarks.device.{module}"), function)
        return list(make(self.name, setup))


PARTS = (
    Part("S0", "s0_smoke:cases", 60, "One case of each kernel family: what the emulated device recorded?", 4),
    Part("B1", "b1_right:cases", 150, "Our kernels, all families and types, against float64", 4),
    Part("B3", "b3_gemm:planned", 150, "Hopper's GEMMs and convolutions, tiles as planned: right, and how fast?"),
    Part("D1", "d1_sizes:ours", 70, "Large operators of ours: GB/s and TFLOP/s"),
    Part("D2", "d1_sizes:peers", 50, "The same operators through PyTorch"),
    Part("A1", "a1_ceilings:cases", 60, "Ceilings: bandwidths by size, GEMM rates, ex2"),
    Part("A2", "a2_launch:cases", 30, "Launch costs: stream, graph chain, edges of each kind, branches"),
    Part("A3", "a3_sync:cases", 30, "Costs of barriers and hand-overs: grid, semaphore, cluster, mbarrier"),
    Part("A4", "a4_order:cases", 45, "Are blocks placed in launch order? Can a waiting kernel starve?"),
    Part("S1", "s1_open:cases", 40, "Kernels over open dimensions, at all sizes of a case, none among them", 4),
    Part("M1", "m_models:ours", 60, "Whole models of ours: device, wall clock, host"),
    Part("M5", "m5_orders:cases", 60, "Models with branches: as planned against one launch at a time"),
    Part("D3", "d1_sizes:right", 40, "Are large operators of ours right, where indices are large?"),
    Part("C1", "c1_emulator:cases", 60, "Do Hopper's asynchronous units do what the emulated device does?", 4),
    Part("B4", "b3_gemm:peers", 60, "The GEMMs and convolutions of B3 through cuBLAS and cuDNN"),
    Part("M2", "m_models:quick_peers", 120, "The same models through PyTorch, eager and as a CUDA graph"),
    Part("B5", "b3_gemm:others", 240, "Hopper's GEMMs and convolutions, every other tile"),
    Part("A5", "a5_concurrency:cases", 60, "Kernels side by side; on partitions, how isolated?"),
    Part("A8", "a8_tied:cases", 120, "GEMM pairs of an MLP, ours: apart, programmatic edges only, tile by tile"),
    Part("A7", "a7_pairs:cases", 120, "Pairs of an MLP in one CUDA graph: cuBLAS, and Stream-K in Triton"),
    Part("A6", "a6_patterns:cases", 120, "PyTorch and JAX on softmax, norms, GELU, attention"),
    Part("A9", "a9_shares:cases", 60, "On a share of the multiprocessors: the plan for it against that for the whole"),
    Part("B2", "b2_sanitizer:cases", 200, "compute-sanitizer over the cases"),
    Part("M3", "m_models:jax", 200, "The same models through XLA, on our graphs"),
    Part("M4", "m_models:slow_peers", 400, "The same models through torch.compile, also with max-autotune"),
)  # fmt: skip

BY_NAME = {part.name: part for part in PARTS}
