"""The analytical model's assumptions about machines beyond the table of devices, with sources.

`benchmarks/device/refit.py` compares these with what was measured. Where no source is named, a figure is a judgement.
"""

from dataclasses import dataclass

from .devices import Device

OVERLAP = 0.9
"""Fraction of the shorter of arithmetic and memory time that is hidden: no kernel overlaps them entirely."""

# -- GPUs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GpuRates:
    """Rates that GPUs of one compute capability reach.

    bandwidth_share: of the nominal DRAM bandwidth; arithmetic_share: of nominal arithmetic in contractions; mma_share:
    the same of tensor cores with warp instructions. l2_bytes_per_cycle: per SM, if all read the L2 cache.
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
"""Rates by compute capability, times ten."""

OTHER_GPU = GpuRates(0.85, 0.70, 25.0, "judgement: the figures of sm_80 and sm_90 less a reserve", mma_share=0.62)
"""Rates of newer GPUs, whose tensor cores, like Hopper's, have faster instructions than those of a warp."""

GPU_LAUNCH_US = 1.3
"""Time from the end of a kernel node of a CUDA graph to the start of its successor: the figure of Hazy Research for an
H100 (Look Ma, No Bubbles, 2025).
"""
GPU_GRID_BARRIER_US = 2.6
"""Duration of a grid barrier: AStitch (ASPLOS 2022), 2.53 to 2.72 us on a V100 full of blocks; to be measured on newer
GPUs.
"""
GPU_HAND_OVER_US = 0.9
"""Time from the last result that a block stores until another has read it: atomic, poll, and read, each a round trip to
the L2 cache; to be measured.
"""
GPU_ROW_US = 0.3
"""Time per row that a team reads from the L2 cache and stores, without its reductions."""
GPU_BARRIER_US = 0.04
"""Duration of __syncthreads with the memory latency that it exposes."""
GPU_START_CYCLES = 1500
"""Fixed cycles of a block: indices, the first operands, and results after the last operands were used."""
GPU_STEP_CYCLES = 40
"""Cycles of a tile's step besides its loads and arithmetic: the barrier between producers and consumers."""
GPU_DRAM_LATENCY_US, GPU_L2_LATENCY_US = 0.6, 0.3
"""Latency of a load under traffic."""
GPU_BYTES_IN_FLIGHT = 32
"""Bytes in flight per thread: two outstanding loads of 16 bytes."""
GPU_SM_L2_BYTES_PER_CYCLE = 48
"""Bytes per cycle that one SM reads from the L2 cache when others are idle, of the 64 of its port."""
GPU_LANES, GPU_SPECIAL_LANES = 128, 16
"""Operations per cycle of an SM: float32 operations, special functions."""
GPU_SPECIAL_PER_CALL = 2
GPU_HALF_RATE_WARPS, GPU_FULL_RATE_WARPS = 3, 16
"""Warps per SM that reach half of the asymptotic rate, and warps that reach the actual maximum."""
GPU_STAGED_CYCLES = 8
"""Lane cycles of a prologue evaluation on an operand of a contraction, `scalar` in facts."""
GPU_SCHEDULERS = 4
"""Schedulers per SM, each with a quarter of its units: CUDA C++ Programming Guide."""
GPU_REGISTER_UNIT, WARP = 256, 32
GPU_RESERVED_SHARED_BYTES = 1024
"""Shared memory reserved per block, from compute capability 8.0 on: CUDA C++ Programming Guide."""
RESIDENT_L2_SHARE = 0.5
"""Fraction of the L2 cache that data passed between kernels may fill and still be found there."""


def rates_of(gpu: Device) -> GpuRates:
    return GPU_RATES.get(gpu.capability, OTHER_GPU)


# -- CPUs --------------------------------------------------------------------------------------------------------------

CPU_CONTRACTION_SHARE = 0.9
"""Fraction of nominal arithmetic that contractions reach."""
SCALAR_CYCLES = 1
"""Cycles of a `scalar` step. A concat of 2, 4 and 8 operands before a GEMM takes 2.4, 4.4 and 8.1 cycles per element, a
gather 1.1 and a padding 1.3, where ReLU takes 0.25 (AMD Zen 4 at about 2.9 GHz, one thread, 24 November 2026).
"""


# -- quick bounds (`bounds.py`) ----------------------------------------------------------------------------------------

OPERATIONS_PER_BYTE = 2
"""Vector operations in the time of moving a byte to memory and back, for a core of a current CPU."""
LAUNCH_OPERATIONS, LAUNCH_BYTES = 20_000, 40_000
"""Such operations, and bytes moved, in the time of one launch with its barrier."""
