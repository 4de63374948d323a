"""Latency from first principles: a roofline under measured ceilings, whole waves of blocks, and fixed costs.

    latency = launches + barriers + longer + (1 - OVERLAP) * shorter      of the times of memory and of arithmetic

Sources. Structure: Williams et al., Roofline (CACM 2009); waves times latency of a wave and the fixed launch cost:
FusionStitching (arXiv 2009.10924) sections 4 and 5; grid barriers: AStitch (ASPLOS 2022), 2.53 to 2.72 us on a V100.
Ceilings: the 99th percentile of achieved over nominal rates in the kernels that NeuSight (ASPLOS 2025) measured with
PyTorch: element-wise kernels larger than eight times the L2 cache, and fp32 batched matrix products; other GPUs get the
figures of the A100 less a reserve. Occupancy: CUDA C++ Programming Guide.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from .cpu import CpuDevice
from .devices import Device
from .protocol import AnyDevice, KernelFacts

ITEMSIZE = {"float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "float16": 2, "bfloat16": 2, "int16": 2,
            "uint16": 2, "int8": 1, "uint8": 1, "bool": 1}  # fmt: skip
"""Bytes of one element; every other dtype has four."""

MEASURED_CEILINGS = {80: (0.90, 0.88), 75: (0.77, 0.64), 70: (0.92, 0.79), 61: (0.75, 0.64), 60: (0.76, 0.91)}
"""By compute capability: the share of nominal bandwidth, and of nominal arithmetic in products, that kernels reach."""
CEILINGS = (0.85, 0.70)

OVERLAP = 0.9  # no kernel hides one behind the other entirely; a judgement, not a measurement
GPU_LAUNCH_US = 2.0  # a dependent kernel node of a CUDA graph, after the one before it has drained
GPU_GRID_BARRIER_US = 2.6  # AStitch, on a V100 full of blocks; to be measured on newer GPUs
GPU_HAND_OVER_US = 0.9  # atomic, look, and first read behind it: three trips to the L2 cache; to be measured
GPU_ROW_US = 0.3  # of a row that a team reads from the L2 cache and stores, without its reductions
GPU_SM_L2_BYTES_PER_CYCLE = 48
GPU_BARRIER_US = 0.04  # __syncthreads with the memory latency that it exposes
GPU_MEMORY_LATENCY_S = 600e-9
GPU_BYTES_IN_FLIGHT = 32  # a thread: two outstanding loads of 16 bytes
GPU_L2_RATE = 3.0  # times the bandwidth of DRAM
GPU_LANES, GPU_SPECIAL_LANES = 128, 16  # of an SM a cycle: float32 operations, special functions
SPECIAL_PER_CALL = 2
CPU_CONTRACTION_CEILING = 0.7
STAGED_CYCLES = 8  # a recommendation model on one AVX-512 core lost 7.5 ms to 2.7 million of them
REGISTER_UNIT, WARP = 256, 32


@dataclass(frozen=True)
class AnalyticalModel:
    """Roofline with waves, occupancy, launches and barriers. Good for choosing between plans, not for promises."""

    @property
    def name(self) -> str:
        return "analytical"

    def latency_us(self, kernel: KernelFacts, device: AnyDevice) -> float:
        if isinstance(device, CpuDevice):
            return _on_cpu(kernel, device)
        if isinstance(device, Device):
            return _on_gpu(kernel, device)
        raise ValueError(f"the analytical model knows CpuDevice and Device, not {type(device).__name__}")


def _overlapped(a: float, b: float) -> float:
    return max(a, b) + (1 - OVERLAP) * min(a, b)


# -- CPU ---------------------------------------------------------------------------------------------------------------


def _on_cpu(kernel: KernelFacts, cpu: CpuDevice) -> float:
    rounds = ceil(max(1, kernel.tasks) / cpu.cores)
    busy = max(1.0, kernel.tasks / rounds)  # cores at work on average: the last round may leave some idle
    seconds = _overlapped(_cpu_memory_s(kernel, cpu, busy), _cpu_arithmetic_s(kernel, cpu) / busy)
    return kernel.launches * cpu.launch_us + seconds * 1e6


def _cpu_arithmetic_s(kernel: KernelFacts, cpu: CpuDevice) -> float:
    """Seconds of one core."""
    lanes = cpu.lanes(ITEMSIZE.get(kernel.dtype, 4))
    ceiling = CPU_CONTRACTION_CEILING if kernel.kind in ("contraction", "attention") else 1.0
    cycles = kernel.fma / (lanes * cpu.fma_per_cycle * ceiling) + kernel.cheap / lanes
    cycles += kernel.transcendental * cpu.transcendental_cycles / lanes + kernel.staged * STAGED_CYCLES
    return cycles / cpu.clock_hz


def _cpu_memory_s(kernel: KernelFacts, cpu: CpuDevice, busy: float) -> float:
    footprint = kernel.footprint_bytes
    shared_rate = min(cpu.dram_bytes_per_second, busy * cpu.llc_bytes_per_second)
    if footprint <= cpu.l2_bytes * busy:
        rate = busy * cpu.l2_bytes_per_second
    elif footprint <= cpu.llc_bytes:
        rate = busy * cpu.llc_bytes_per_second
    else:
        rate = shared_rate
    again = max(0, kernel.bytes_requested - footprint)
    seconds = footprint / rate + again / (busy * cpu.l2_bytes_per_second)
    if kernel.shared_bytes > cpu.l2_bytes // 2:  # the row leaves the cache between its reduction and its next use
        seconds += 2 * kernel.shared_bytes * kernel.tasks / shared_rate
    return seconds


# -- GPU ---------------------------------------------------------------------------------------------------------------


def resident_blocks(kernel: KernelFacts, gpu: Device) -> int:
    """Blocks of the kernel that one SM holds at a time; 0 if a block does not fit at all."""
    warps = ceil(max(1, kernel.threads) / WARP)
    registers = warps * ceil(max(16, kernel.registers) * WARP / REGISTER_UNIT) * REGISTER_UNIT
    limits = [gpu.blocks_per_sm, gpu.threads_per_sm // (warps * WARP), gpu.registers_per_sm // registers]
    if kernel.shared_bytes > gpu.shared_bytes_per_block:
        return 0
    if kernel.shared_bytes:
        limits.append(gpu.shared_bytes_per_sm // kernel.shared_bytes)
    return max(0, min(limits))


def _on_gpu(kernel: KernelFacts, gpu: Device) -> float:
    resident = resident_blocks(kernel, gpu)
    spilled = resident == 0
    resident = max(1, resident)
    blocks = max(1, kernel.tasks)
    waves = ceil(blocks / (gpu.sm_count * resident))
    memory_s = _gpu_memory_s(kernel, gpu, min(blocks, gpu.sm_count * resident), spilled)
    # The SMs that the fullest one keeps waiting: 133 blocks on 132 SMs take as long as 264.
    balance = blocks / (ceil(blocks / gpu.sm_count) * gpu.sm_count)
    arithmetic_s = _gpu_arithmetic_s(kernel, gpu) / balance
    if kernel.tail_rows:
        barriers_us = _gpu_tail_us(kernel, gpu)
    else:
        barriers_us = kernel.barriers * GPU_BARRIER_US * waves + kernel.grid_barriers * GPU_GRID_BARRIER_US
    return kernel.launches * GPU_LAUNCH_US + barriers_us + _overlapped(memory_s, arithmetic_s) * 1e6


def _gpu_tail_us(kernel: KernelFacts, gpu: Device) -> float:
    """Microseconds from the last result of a product to the last row behind it, which one block computes."""
    rows_us = kernel.tail_rows * (GPU_ROW_US + kernel.barriers * GPU_BARRIER_US)
    bytes_us = kernel.tail_bytes / (GPU_SM_L2_BYTES_PER_CYCLE * gpu.clock_hz) * 1e6
    return GPU_HAND_OVER_US + max(rows_us, bytes_us)


def _gpu_memory_s(kernel: KernelFacts, gpu: Device, active_blocks: int, spilled: bool) -> float:
    bandwidth = gpu.dram_bytes_per_second * MEASURED_CEILINGS.get(gpu.capability, CEILINGS)[0]
    # Little's law: too few threads in flight cannot hide the latency of memory.
    in_flight = active_blocks * kernel.threads * GPU_BYTES_IN_FLIGHT
    l2_rate = min(GPU_L2_RATE * bandwidth, 2 * in_flight / GPU_MEMORY_LATENCY_S)
    dram_rate = min(bandwidth, in_flight / GPU_MEMORY_LATENCY_S)
    # What the last blocks move is part of the tail.
    in_tail = kernel.tail_bytes * min(kernel.tail_blocks, gpu.sm_count)
    footprint = max(0, kernel.footprint_bytes - in_tail)
    rate = l2_rate if footprint <= gpu.l2_bytes // 2 else dram_rate
    again = kernel.bytes_requested - kernel.footprint_bytes
    again = max(0, again) + (2 * kernel.shared_bytes * kernel.tasks if spilled else 0)
    return footprint / rate + again / l2_rate


def _gpu_arithmetic_s(kernel: KernelFacts, gpu: Device) -> float:
    """Seconds if all SMs are busy."""
    sm_rate = gpu.sm_count * gpu.clock_hz
    seconds = (kernel.cheap + kernel.staged * STAGED_CYCLES) / (sm_rate * GPU_LANES)
    seconds += kernel.transcendental * SPECIAL_PER_CALL / (sm_rate * GPU_SPECIAL_LANES)
    if kernel.fma:
        peak = gpu.peak_flops.get(kernel.dtype, gpu.peak_flops["float32"])
        seconds += 2 * kernel.fma / (peak * MEASURED_CEILINGS.get(gpu.capability, CEILINGS)[1])
    return seconds
