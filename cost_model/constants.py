"""Everything that the analytical model takes a machine for beside its row in the table of devices, and where from.

`benchmarks/device/refit.py` compares these with what was measured. Where no source is named, a figure is a judgement.
"""

from __future__ import annotations

from dataclasses import dataclass

from .devices import Device

OVERLAP = 0.9
"""No kernel hides arithmetic under memory, or memory under arithmetic, entirely."""

# -- GPUs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GpuRates:
    """What GPUs of one compute capability reach.

    bandwidth_share: of the nominal DRAM bandwidth; arithmetic_share: of nominal arithmetic in contractions; mma_share:
    the same of tensor cores by instructions of a warp. l2_bytes_per_cycle: of each SM, if all read the L2 cache.
    """

    bandwidth_share: float
    arithmetic_share: float
    l2_bytes_per_cycle: float
    source: str
    mma_share: float = 1.0


_NEUSIGHT = (
    "shares: the 99th percentile of achieved over nominal rates in kernels that NeuSight (ASPLOS 2025) measured with "
    "PyTorch, element-wise ones larger than eight times the L2 cache, and float32 batched GEMMs; "
)
_JIA = (
    "L2: the load throughput of the chip that Jia et al. give (Dissecting the NVIDIA Turing T4 GPU, 2019: P100 1624, "
    "V100 2155, T4 1270 GB/s), over SMs and the boost clock of devices.json; cards of lower clocks would make it up to "
    "an eighth more. No measurement of NeuSight's contradicts it, and none is near: batched GEMMs ask for 8.0 (P100), "
    "9.2 (V100) and 9.4 (T4) bytes a cycle and SM at most, and element-wise kernels that fit the cache take as long as "
    "a launch"
)

GPU_RATES = {
    60: GpuRates(0.76, 0.91, 19.6, _NEUSIGHT + _JIA),
    61: GpuRates(0.75, 0.64, 20.0, _NEUSIGHT + "L2: judged from sm_60; batched GEMMs ask for 13.1 at least"),
    70: GpuRates(0.92, 0.79, 17.6, _NEUSIGHT + _JIA),
    75: GpuRates(0.77, 0.64, 20.0, _NEUSIGHT + _JIA),
    80: GpuRates(0.90, 0.88, 31.0, _NEUSIGHT + "L2: two thirds of the nominal 5120 bytes a cycle of the chip"),
    89: GpuRates(0.85, 0.70, 25.0, "judgement: the figures of sm_80 less a reserve"),
    90: GpuRates(
        0.90, 0.79, 25.0,
        "shares: read once on an H200, a copy of 8.6 GB at 4.3 TB/s and a bfloat16 GEMM of 8192 at 769 to 798 TFLOP/s, "
        "both by PyTorch; L2: two thirds of the nominal 5120 bytes a cycle of the chip; mma.sync: Luo et al., "
        "Dissecting the NVIDIA Hopper GPU (2025)",
        mma_share=0.62,
    ),
}  # fmt: skip
"""By compute capability, times ten."""

OTHER_GPU = GpuRates(0.85, 0.70, 25.0, "judgement: the figures of sm_80 and sm_90 less a reserve", mma_share=0.62)
"""Newer ones, whose tensor cores have faster instructions than those of a warp, as Hopper's have."""

GPU_LAUNCH_US = 1.3
"""A kernel node of a CUDA graph after the one that it depends on has drained: the figure that Hazy Research gives for
an H100 (Look Ma, No Bubbles, 2025)."""
GPU_GRID_BARRIER_US = 2.6
"""AStitch (ASPLOS 2022), 2.53 to 2.72 us on a V100 full of blocks; to be measured on newer GPUs."""
GPU_HAND_OVER_US = 0.9
"""From the last result that a block stores until another has read it: atomic, look, and read, each of them a trip to
the L2 cache; to be measured."""
GPU_ROW_US = 0.3
"""Of a row that a team reads from the L2 cache and stores, without its reductions."""
GPU_BARRIER_US = 0.04
"""__syncthreads with the memory latency that it exposes."""
GPU_START_CYCLES = 1500
"""Of a block: indices, the first operands, and results after the last of them have been used."""
GPU_STEP_CYCLES = 40
"""Of a step of a tile beside its fetch and its arithmetic: the barrier between those that fetch and those that use."""
GPU_DRAM_LATENCY_US, GPU_L2_LATENCY_US = 0.6, 0.3
"""Until a load under traffic is back."""
GPU_BYTES_IN_FLIGHT = 32
"""Of a thread: two outstanding loads of 16 bytes."""
GPU_SM_L2_BYTES_PER_CYCLE = 48
"""That one SM reads from the L2 cache, of the 64 of its port, where others leave it alone."""
GPU_LANES, GPU_SPECIAL_LANES = 128, 16
"""Of an SM in a cycle: float32 operations, special functions."""
GPU_SPECIAL_PER_CALL = 2
GPU_HALF_RATE_WARPS, GPU_FULL_RATE_WARPS = 3, 16
"""Warps of an SM that reach half of a rate which no number of them would reach, and warps that reach all there is."""
GPU_STAGED_CYCLES = 8
"""Of a lane for an evaluation before an operand of a contraction, `scalar` in facts."""
GPU_SCHEDULERS = 4
"""Of an SM, each with a quarter of its units: CUDA C++ Programming Guide."""
GPU_REGISTER_UNIT, WARP = 256, 32
GPU_RESERVED_SHARED_BYTES = 1024
"""Of every block, from compute capability 8.0 on: CUDA C++ Programming Guide."""
RESIDENT_L2_SHARE = 0.5
"""Of the L2 cache that what kernels hand each other may fill and still be found there."""


def rates_of(gpu: Device) -> GpuRates:
    return GPU_RATES.get(gpu.capability, OTHER_GPU)


# -- CPUs --------------------------------------------------------------------------------------------------------------

CPU_CONTRACTION_SHARE = 0.9
"""Of nominal arithmetic that contractions reach."""
SCALAR_CYCLES = 1
"""Of a `scalar` step. A concat of 2, 4 and 8 operands before a GEMM takes 2.4, 4.4 and 8.1 cycles an element, a gather
1.1 and a padding 1.3, where ReLU takes 0.25 (AMD Zen 4 at about 2.9 GHz, one thread, 24 November 2026).
"""


# -- quick bounds (`bounds.py`) ----------------------------------------------------------------------------------------

OPERATIONS_PER_BYTE = 2
"""Vector arithmetic in the time of moving a byte to memory and back, for a core of a CPU of today."""
LAUNCH_OPERATIONS, LAUNCH_BYTES = 20_000, 40_000
"""Such operations, and bytes that move, in the time of one launch with its barrier."""
