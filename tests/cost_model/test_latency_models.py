"""Latency models: what the analytical one must get right in direction, and that any other can stand in for it."""

import math
from dataclasses import replace

import pytest

from tilestitch.cost_model.analytical import AnalyticalModel, resident_blocks
from tilestitch.cost_model.cpu import CpuDevice
from tilestitch.cost_model.devices import devices, find_device
from tilestitch.cost_model.protocol import AnyDevice, KernelFacts, LatencyModel, Traffic
from tilestitch.cost_model.random_model import RandomModel

MB = 1 << 20
A100, CPU = find_device("a100"), CpuDevice(cores=4)
COPY = KernelFacts(
    kind="injective", dtype="float32", reads=(Traffic("x", 400 * MB, 400 * MB),),
    writes=(Traffic("y", 400 * MB, 400 * MB),), fma=0, cheap=100 * MB, transcendental=0, elements=100 * MB,
    tasks=100_000, threads=256, shared_bytes=0, registers=32, barriers=0,
)  # fmt: skip
PRODUCT = replace(COPY, kind="contraction", fma=1 << 36, cheap=0)
MODEL = AnalyticalModel()


def scaled(kernel: KernelFacts, factor: float) -> KernelFacts:
    def shrink(traffic: Traffic) -> Traffic:
        return Traffic(traffic.value, int(traffic.bytes_requested * factor), int(traffic.footprint_bytes * factor))

    return replace(kernel, reads=tuple(map(shrink, kernel.reads)), writes=tuple(map(shrink, kernel.writes)))


@pytest.mark.parametrize("model", [MODEL, RandomModel(3)])
@pytest.mark.parametrize("device", [*devices(), CPU], ids=lambda d: d.name)
@pytest.mark.parametrize("kernel", [COPY, PRODUCT, scaled(COPY, 0), replace(COPY, tasks=0, elements=0)])
def test_predictions_are_finite_positive_and_repeatable(
    model: LatencyModel, device: AnyDevice, kernel: KernelFacts
) -> None:
    assert isinstance(model, LatencyModel)
    latency = model.latency_us(kernel, device)
    assert 0 < latency < math.inf and latency == model.latency_us(replace(kernel), device)


def test_a_large_copy_takes_what_the_measured_bandwidth_allows() -> None:
    seconds = 800 * MB / (A100.dram_bytes_per_second * 0.90)
    assert MODEL.latency_us(COPY, A100) == pytest.approx(seconds * 1e6, rel=0.05)


def test_a_large_product_takes_what_the_measured_arithmetic_allows() -> None:
    seconds = 2 * PRODUCT.fma / (A100.peak_flops["float32"] * 0.88)
    assert MODEL.latency_us(PRODUCT, A100) == pytest.approx(seconds * 1e6, rel=0.05)


@pytest.mark.parametrize("device", [A100, CPU], ids=["gpu", "cpu"])
def test_more_work_more_barriers_and_more_launches_never_take_less(device: AnyDevice) -> None:
    least = MODEL.latency_us(COPY, device)
    for more in (
        scaled(COPY, 2), replace(COPY, launches=2), replace(COPY, barriers=8), replace(COPY, fma=1 << 36),
        replace(COPY, transcendental=1 << 36), replace(COPY, cheap=1 << 36), replace(COPY, shared_bytes=64 * MB),
    ):  # fmt: skip
        assert MODEL.latency_us(more, device) >= least


def test_one_block_too_many_costs_a_whole_round_of_the_sms() -> None:
    full, more = (replace(PRODUCT, tasks=t, reads=(), writes=()) for t in (A100.sm_count, A100.sm_count + 1))
    assert MODEL.latency_us(more, A100) == pytest.approx(2 * MODEL.latency_us(full, A100), rel=0.02)


def test_a_single_task_leaves_the_other_cores_idle() -> None:
    alone, shared = (MODEL.latency_us(replace(PRODUCT, tasks=t), CPU) for t in (1, 400))
    assert alone == pytest.approx(4 * shared, rel=0.02)


def test_what_stays_in_a_cache_moves_faster() -> None:
    small, large = (MODEL.latency_us(replace(scaled(COPY, f), cheap=0), CPU) - CPU.launch_us for f in (1 / 1024, 1 / 4))
    assert large > 2 * 256 * small


def test_occupancy_is_limited_by_threads_registers_and_shared_memory() -> None:
    assert resident_blocks(replace(COPY, threads=1024), A100) == 2
    assert resident_blocks(replace(COPY, threads=1024, registers=64), A100) == 1
    assert resident_blocks(replace(COPY, shared_bytes=A100.shared_bytes_per_sm // 3), A100) == 3
    assert resident_blocks(replace(COPY, shared_bytes=A100.shared_bytes_per_block + 1), A100) == 0


def test_the_control_depends_on_its_seed_and_on_the_kernel_only() -> None:
    assert RandomModel(1).latency_us(COPY, A100) == RandomModel(1).latency_us(COPY, A100)
    latencies = {RandomModel(s).latency_us(k, A100) for s in range(10) for k in (COPY, PRODUCT)}
    assert len(latencies) == 20 and all(1 <= us <= 100 for us in latencies)


def test_a_device_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="knows CpuDevice and Device"):
        MODEL.latency_us(COPY, "H100")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one core"):
        CpuDevice(cores=0)
