"""Latency models: what the analytical one must get right in direction, and that any other can stand in for it."""

import math
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings

from tests.cost_model.kernels import kernels
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.constants import GPU_LAUNCH_US, GPU_RATES
from tilestitch.cost_model.devices import CpuDevice, Device, devices, find_device
from tilestitch.cost_model.facts import Arithmetic, KernelFacts, Launch, Part, Tail, Traffic, kernel_of
from tilestitch.cost_model.models import RandomModel
from tilestitch.cost_model.on_gpu import resident_blocks
from tilestitch.cost_model.protocol import AnyDevice, Bound, LatencyModel, latency_us

MB = 1 << 20
A100, H100, CPU = find_device("a100"), find_device("h100"), CpuDevice(cores=4)
TILES = CpuDevice(cores=4, vector_bytes=64, tile_bytes_per_cycle=1024)
COPY = Part(
    "injective", "float32", (Traffic("x", 400 * MB, 400 * MB),), (Traffic("y", 400 * MB, 400 * MB),),
    (Arithmetic("alu", "float32", 100 * MB),), elements=100 * MB, tasks=100_000, threads=256, registers=32,
)  # fmt: skip
GEMM = replace(COPY, kind="contraction", arithmetic=(Arithmetic("fma", "float32", 1 << 36),))
MODEL = AnalyticalModel()
EVERYWHERE: tuple[AnyDevice, ...] = (*devices(), CPU, TILES)
NEARLY = 1 + 1e-9
ANYWHERE = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


def time_us(part: Part, device: AnyDevice) -> float:
    return latency_us(MODEL, kernel_of(part), device)


def bound(part: Part, device: AnyDevice) -> Bound:
    return MODEL.predict([kernel_of(part)], device)[0].bound


def scaled(part: Part, factor: float) -> Part:
    def shrink(t: Traffic) -> Traffic:
        return replace(
            t, bytes_requested=int(t.bytes_requested * factor), footprint_bytes=int(t.footprint_bytes * factor)
        )

    return replace(part, reads=tuple(map(shrink, part.reads)), writes=tuple(map(shrink, part.writes)))


# -- whatever the kernel -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [MODEL, RandomModel(3)])
@ANYWHERE
@given(kernels)
def test_predictions_are_finite_positive_repeatable_and_within_their_interval(
    model: LatencyModel, kernel: KernelFacts
) -> None:
    assert isinstance(model, LatencyModel)
    for device in EVERYWHERE:
        (first, again) = model.predict([kernel, replace(kernel)], device)
        assert first == again
        assert 0 < first.low_us <= first.latency_us * NEARLY and first.latency_us <= first.high_us * NEARLY
        assert first.high_us < math.inf


@ANYWHERE
@given(kernels)
def test_no_gpu_is_faster_than_its_data_sheet(kernel: KernelFacts) -> None:
    """DRAM brings weights, and what exceeds the L2 cache; tensor cores or ordinary units multiply; launches cost."""
    for device in devices():
        least_us = GPU_LAUNCH_US + least_seconds(kernel, device) * 1e6
        assert latency_us(MODEL, kernel, device) * NEARLY >= least_us


def least_seconds(kernel: KernelFacts, device: Device) -> float:
    seconds = kernel.fma / (max(device.peak_flops.values()) / 2)
    for launch in kernel.sequence:
        moved = {t.value: 0 for part in launch.parts for t in part.traffic}
        for t in (t for part in launch.parts for t in part.traffic):
            moved[t.value] = max(moved[t.value], t.footprint_bytes)
        weights = {t.value for part in launch.parts for t in part.traffic if t.role == "weight"}
        others = sum(nbytes for value, nbytes in moved.items() if value not in weights)
        bytes_ = max(others - device.l2_bytes, sum(moved[w] for w in weights) if launch is kernel.sequence[0] else 0)
        seconds = max(seconds, bytes_ / device.dram_bytes_per_second)
    return seconds


@ANYWHERE
@given(kernels)
def test_a_joined_kernel_takes_no_less_than_any_of_its_parts_alone(kernel: KernelFacts) -> None:
    for device in EVERYWHERE:
        whole_us = latency_us(MODEL, kernel, device)
        assert all(whole_us * NEARLY >= latency_us(MODEL, kernel_of(part), device) for part in kernel.parts)


def test_a_tail_takes_no_less_beside_a_part_that_leaves_its_blocks_less_room() -> None:
    wide = Part("injective", "float32", threads=1024)
    narrow = Part("injective", "float32", tasks=131, tail=Tail(rows=0, nbytes=MB, blocks=41))
    for device in devices():
        joined = KernelFacts((Launch(((wide, narrow),)),))
        assert latency_us(MODEL, joined, device) * NEARLY >= latency_us(MODEL, kernel_of(narrow), device)


def test_a_band_takes_no_less_than_its_first_stage_whose_tails_have_more_room_alone() -> None:
    first = Part("injective", "float32", tasks=131, threads=128, tail=Tail(rows=0, nbytes=400_000, blocks=200))
    second = Part("contraction", "float32", registers=255, tail=Tail(rows=2, nbytes=3, blocks=24))
    joined = KernelFacts((Launch(((first,), (second,)), tie="band"),))
    for device in devices():
        assert latency_us(MODEL, joined, device) * NEARLY >= latency_us(MODEL, kernel_of(first), device)


def test_a_tensor_that_one_part_barely_touches_is_as_large_as_the_other_makes_it() -> None:
    """Whether what a launch moves fits the L2 cache does not depend on the order of its parts."""
    large, none = (Part("injective", "float32", writes=(Traffic("b", nbytes, nbytes),)) for nbytes in (2 * MB, 0))
    for device in EVERYWHERE:
        joined_us = latency_us(MODEL, KernelFacts((Launch(((large,), (none,)), tie="band"),)), device)
        assert joined_us * NEARLY >= latency_us(MODEL, kernel_of(large), device)


@ANYWHERE
@given(kernels, kernels)
def test_launches_one_after_the_other_add_up(first: KernelFacts, second: KernelFacts) -> None:
    both = KernelFacts(first.sequence + second.sequence)
    for device in EVERYWHERE:
        apart_us = latency_us(MODEL, first, device) + latency_us(MODEL, second, device)
        assert latency_us(MODEL, both, device) == pytest.approx(apart_us)


# -- memory ------------------------------------------------------------------------------------------------------------


def test_a_large_copy_takes_what_the_measured_bandwidth_allows() -> None:
    seconds = 800 * MB / (A100.dram_bytes_per_second * 0.90)
    assert time_us(COPY, A100) == pytest.approx(seconds * 1e6, rel=0.05)
    assert bound(COPY, A100) == "dram"


def test_weights_come_from_dram_however_small_and_activations_from_the_l2_cache() -> None:
    """A GEMV of batch one: 16 MB of weights, which other layers have driven out since the last run."""
    reads = (Traffic("w", 16 * MB, 16 * MB, "weight"), Traffic("x", 16384, 16384))
    gemv = Part("contraction", "float32", reads, (Traffic("y", 4096, 4096),), tasks=264, threads=256, registers=32)
    floor_us = 16 * MB / H100.dram_bytes_per_second * 1e6
    assert time_us(gemv, H100) > floor_us and bound(gemv, H100) == "dram"
    warm = replace(gemv, reads=tuple(replace(t, role="activation") for t in reads))
    assert time_us(warm, H100) < 0.8 * time_us(gemv, H100)


def test_gpus_of_one_chip_have_one_l2_cache_whatever_their_memory() -> None:
    small = scaled(replace(COPY, tasks=2000, arithmetic=()), 1 / 64)
    h200 = find_device("h200")
    assert bound(small, H100) == "l2" and time_us(small, H100) == time_us(small, h200)
    assert time_us(COPY, H100) > 1.3 * time_us(COPY, h200)


def test_a_few_threads_wait_for_memory_and_many_do_not() -> None:
    few = replace(scaled(COPY, 1 / 64), tasks=8, threads=64)
    assert bound(few, H100) == "latency"
    assert time_us(few, H100) > 20 * time_us(replace(few, tasks=2000, threads=256), H100)


def test_what_stays_in_a_cache_moves_faster() -> None:
    copy = replace(COPY, arithmetic=())
    small, large = (time_us(scaled(copy, f), CPU) - CPU.launch_us for f in (1 / 1024, 1 / 4))
    assert large > 2 * 256 * small


# -- arithmetic --------------------------------------------------------------------------------------------------------


def test_a_large_gemm_takes_what_the_measured_arithmetic_allows() -> None:
    seconds = 2 * (1 << 36) / (A100.peak_flops["float32"] * 0.88)
    assert time_us(GEMM, A100) == pytest.approx(seconds * 1e6, rel=0.05)
    assert bound(GEMM, A100) == "fma"


def test_tensor_cores_multiply_float32_as_tfloat32_where_there_are_any() -> None:
    tf32 = replace(GEMM, arithmetic=(Arithmetic("mma", "tfloat32", 1 << 36),))
    assert time_us(tf32, A100) < 0.2 * time_us(GEMM, A100)
    v100 = find_device("v100")
    assert time_us(tf32, v100) == pytest.approx(time_us(GEMM, v100)), "Volta has none for tfloat32"


def test_hopper_reaches_its_rate_by_instructions_of_a_warpgroup_only() -> None:
    times = [time_us(replace(GEMM, reads=(), writes=(), arithmetic=(Arithmetic(unit, "float16", 1 << 36),)), H100)
             for unit in ("mma", "wgmma")]  # fmt: skip
    rates = GPU_RATES[90]
    assert times[0] / times[1] == pytest.approx(rates.arithmetic_share / rates.mma_share, rel=0.05)


def test_one_block_too_many_costs_a_whole_round_of_the_sms() -> None:
    full, more = (replace(GEMM, tasks=t, reads=(), writes=(), threads=1024) for t in (A100.sm_count, A100.sm_count + 1))
    assert time_us(more, A100) == pytest.approx(2 * time_us(full, A100), rel=0.02)


def test_a_single_task_leaves_the_other_cores_idle() -> None:
    alone, shared = (time_us(replace(GEMM, tasks=t), CPU) for t in (1, 400))
    assert alone == pytest.approx(4 * shared, rel=0.02)


# -- launches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [A100, CPU], ids=["gpu", "cpu"])
def test_more_work_more_barriers_and_more_launches_never_take_less(device: AnyDevice) -> None:
    least = time_us(COPY, device)
    more = [
        scaled(COPY, 2), replace(COPY, barriers=8), replace(COPY, shared_bytes=64 * MB),
        *(replace(COPY, arithmetic=(Arithmetic(unit, "float32", 1 << 36),)) for unit in ("fma", "alu", "special")),
    ]  # fmt: skip
    assert all(time_us(part, device) >= least for part in more)
    assert latency_us(MODEL, kernel_of(COPY, COPY), device) == pytest.approx(2 * least)


def test_a_launch_that_does_nothing_is_bound_by_being_launched() -> None:
    assert bound(Part("injective", "float32"), H100) == "launch"
    assert time_us(Part("injective", "float32"), H100) == GPU_LAUNCH_US


def test_a_small_stage_beside_a_large_one_has_no_more_threads_than_alone() -> None:
    """Sixteen blocks in a launch of 256 x 1024 threads are sixteen blocks."""
    small = replace(scaled(COPY, 1 / 32), tasks=16, threads=64)
    large = replace(scaled(COPY, 1 / 1024), tasks=256, threads=1024)
    joined = KernelFacts((Launch(((small,), (large,))),))
    assert latency_us(MODEL, joined, H100) > time_us(small, H100)


def test_occupancy_is_limited_by_threads_registers_and_shared_memory() -> None:
    def resident(**changes: int) -> int:
        return resident_blocks(Launch(((replace(COPY, **changes),),)), A100)  # type: ignore[arg-type]

    assert resident(threads=1024) == 2
    assert resident(threads=1024, registers=64) == 1
    third = A100.shared_bytes_per_sm // 3
    assert resident(shared_bytes=third - 1024) == 3 and resident(shared_bytes=third) == 2, "the system has its share"
    assert resident(shared_bytes=third - 2048, static_shared_bytes=2000) == 2
    assert resident(shared_bytes=A100.shared_bytes_per_block + 1) == 0


# -- machines ----------------------------------------------------------------------------------------------------------


def test_rates_of_a_machine_name_their_source_and_are_shares() -> None:
    for rates in GPU_RATES.values():
        assert len(rates.source) > 40
        assert all(0 < share <= 1 for share in (rates.bandwidth_share, rates.arithmetic_share, rates.mma_share))
    assert 90 in GPU_RATES


def test_the_control_depends_on_its_seed_and_on_the_kernel_only() -> None:
    copy, gemm = kernel_of(COPY), kernel_of(GEMM)
    assert latency_us(RandomModel(1), copy, A100) == latency_us(RandomModel(1), copy, A100)
    times = {latency_us(RandomModel(s), k, A100) for s, k in product(range(10), (copy, gemm))}
    assert len(times) == 20 and all(1 <= us <= 100 for us in times)


def test_a_device_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="knows CpuDevice and Device"):
        MODEL.predict([kernel_of(COPY)], "H100")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one core"):
        CpuDevice(cores=0)


def test_tile_registers_multiply_bytes_twice_as_fast_as_pairs() -> None:
    """A CPU without them has its vectors, which are slower."""

    def us(dtype: str, device: AnyDevice = TILES) -> float:
        work = Arithmetic("mma", dtype, 1 << 40)
        return time_us(replace(GEMM, arithmetic=(work,)), device)

    assert us("bfloat16") == pytest.approx(2 * us("int8"), rel=0.05)  # besides what memory takes
    assert us("int8", replace(TILES, tile_bytes_per_cycle=0)) > 4 * us("int8")
