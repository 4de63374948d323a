"""Launches that run at the same time on the emulated device: what orders them, where they run, and what is a race."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from tilestitch.cost_model.laws.makespan import Span, Work, spans
from tilestitch.runtime.emulator import (
    EmulatorOptions,
    KernelFaultError,
    KernelLaunch,
    Kernels,
    Multiprocessors,
    Ran,
)

SOURCES = {
    "add": 'extern "C" __global__ void add(const float* x, float* y) {'
           " int i = blockIdx.x * 32 + threadIdx.x; y[i] = x[i] + 1.0f; }",
    "mirror": 'extern "C" __global__ void mirror(const float* x, float* y) {'
              " __shared__ float row[32]; row[threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x]; __syncthreads();"
              " y[blockIdx.x * 32 + threadIdx.x] = row[31 - threadIdx.x]; }",
    "first": 'extern "C" __global__ void first(const float* x, float* y) {'
             " y[blockIdx.x * 32 + threadIdx.x] = x[0]; }",
    "pause": 'extern "C" __global__ void pause(const int* rounds) {'
             " for (int i = 0; i < rounds[0]; ++i) __nanosleep(100); }",
    "sum": 'extern "C" __global__ void sum(const float* x, float* y) { atomicAdd(y, x[threadIdx.x]); }',
}  # fmt: skip
BLOCKS, SIZE = 4, 128
ORDERS = ("in_order", "reversed", "random", "adversarial")


@cache
def kernels() -> Kernels:
    return Kernels(SOURCES)


def launch(symbol: str, *arrays: np.ndarray, blocks: int = BLOCKS, **more: object) -> KernelLaunch:
    return KernelLaunch(symbol, (blocks, 1, 1), (32, 1, 1), arrays, **more)  # type: ignore[arg-type]


def run(launches: Sequence[KernelLaunch], edges: Sequence[tuple[int, int]], **options: object) -> list[Ran]:
    return kernels().run(launches, edges, EmulatorOptions(**options))  # type: ignore[arg-type]


def arrays(count: int) -> list[np.ndarray]:
    return [np.arange(SIZE, dtype=np.float32), *(np.zeros(SIZE, np.float32) for _ in range(count - 1))]


# -- races -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("order", ORDERS)
def test_a_diamond_computes_the_same_in_any_order(order: str, seed: int) -> None:
    x, a, b, c, d = arrays(5)
    both = [launch("add", x, a), launch("mirror", a, b), launch("add", a, c), launch("mirror", c, d)]
    run(both, [(0, 1), (0, 2), (2, 3)], block_order=order, seed=seed)
    mirrored = (x + 1).reshape(-1, 32)[:, ::-1].ravel()
    np.testing.assert_array_equal(b, mirrored)
    np.testing.assert_array_equal(c, x + 2)
    np.testing.assert_array_equal(d, mirrored + 1)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", ["read after write", "write after read", "write after write", "shared read"])
def test_without_its_edge_a_pair_races_in_every_order(case: str, order: str) -> None:
    """Whatever ran first: what a launch read or wrote is known to the others until it is overwritten."""
    x, a, b, c = arrays(4)
    pairs = {
        "read after write": [launch("add", x, a), launch("add", a, b)],
        "write after read": [launch("add", a, b), launch("add", x, a)],
        "write after write": [launch("add", x, a), launch("mirror", x, a)],
        "shared read": [launch("first", a, b), launch("add", a, c), launch("add", x, a)],
    }
    launches = pairs[case]
    every = [(i, j) for j in range(len(launches)) for i in range(j)]
    for seed in range(3):
        run(launches, every, block_order=order, seed=seed)
        for missing in [(i, j) for i, j in every if case != "shared read" or j == 2]:
            left = [edge for edge in every if edge != missing and not (case == "shared read" and edge == (0, 1))]
            with pytest.raises(KernelFaultError, match="an edge between the launches is missing") as found:
                run(launches, left, block_order=order, seed=seed)
            assert found.value.launch in missing


def test_an_edge_orders_what_is_after_it_too() -> None:
    x, a, b = arrays(3)
    chain = [launch("add", x, a), launch("add", b, b), launch("add", a, x)]
    run(chain, [(0, 1), (1, 2)], block_order="random")
    np.testing.assert_array_equal(x[:3], [2, 3, 4])


def test_launches_that_read_the_same_or_write_apart_do_not_race() -> None:
    x, a = arrays(2)
    halves = [launch("add", x, a[:64], blocks=2), launch("mirror", x[64:], a[64:], blocks=2)]
    run(halves, [], block_order="adversarial")
    np.testing.assert_array_equal(a[:64], x[:64] + 1)


def test_atomics_of_several_launches_do_not_race() -> None:
    x, total = arrays(2)
    run([launch("sum", x, total, blocks=1)] * 3, [], block_order="adversarial")
    assert total[0] == 3 * x[:32].sum()


def test_an_argument_of_another_launch_is_out_of_bounds() -> None:
    x, a = arrays(2)
    with pytest.raises(KernelFaultError, match="out of bounds"):
        run([launch("add", x, a[:64], blocks=2), launch("add", x[:32], a[64:], blocks=2)], [])


def test_edges_go_from_earlier_launches_to_later_ones() -> None:
    x, a = arrays(2)
    for edge in [(0, 0), (1, 0), (0, 2), (-1, 1)]:
        with pytest.raises(ValueError, match="it goes from an earlier to a later"):
            run([launch("add", x, a)] * 2, [edge])
    assert run([], []) == []


# -- start order -------------------------------------------------------------------------------------------------------

HELD = Multiprocessors(count=1, threads=256, registers=8192, shared_bytes=16384, blocks=7)


def random_launches(seed: int, multiprocessors: int) -> tuple[list[KernelLaunch], list[Work], list[tuple[int, int]]]:
    """Launches of blocks that wait a known number of rounds, as the device and as the law see them."""
    rng = random.Random(seed)
    launches, works, edges = [], [], []
    for number in range(rng.randrange(2, 12)):
        threads, registers = rng.choice([32, 64, 96, 128]), rng.choice([16, 40, 64])
        shared, rounds = rng.choice([0, 2048, 5000, 12000]), rng.randrange(1, 9)
        needs = (threads, threads * registers, shared, 1)
        limits = (HELD.threads, HELD.registers, HELD.shared_bytes, HELD.blocks)
        held = min(there // needed for there, needed in zip(limits, needs) if needed) * multiprocessors
        blocks = rng.randrange(1, 3 * held)
        priority = rng.choice([0, 0, 0, 2])
        launches.append(KernelLaunch("pause", (blocks, 1, 1), (threads, 1, 1), [np.array([rounds], np.int32)], shared,
                                     priority=priority, registers=registers))  # fmt: skip
        room = tuple(needed / there / multiprocessors for there, needed in zip(limits, needs))
        works.append(Work(0.0, float(rounds * -(-blocks // held)), blocks, held, room))
        edges += [(before, number) for before in range(number) if rng.random() < 0.2]
    return launches, works, edges


def both(seed: int, multiprocessors: int) -> tuple[list[Ran], list[Span]]:
    """What the device did, and what the law says; a round is a microsecond."""
    launches, works, edges = random_launches(seed, multiprocessors)
    held = Multiprocessors(multiprocessors, HELD.threads, HELD.registers, HELD.shared_bytes, HELD.blocks)
    ran = run(launches, edges, multiprocessors=held, resident_blocks=1000, checked=False)
    return ran, spans(works, edges, [one.priority for one in launches])


@pytest.mark.parametrize("seed", range(40))
def test_one_multiprocessor_starts_and_ends_launches_when_the_makespan_law_says(seed: int) -> None:
    ran, law = both(seed, 1)
    assert [(one.started, one.ended) for one in ran] == [(span.start_us, span.end_us) for span in law]


def test_several_multiprocessors_start_launches_in_the_order_of_the_makespan_law() -> None:
    """Nearly: the law counts room over the whole device, where a block needs all its room on one multiprocessor, and
    lets no small lots of a kernel's blocks start.
    """
    alike = pairs = 0
    for seed in range(40):
        ran, law = both(seed, 4)
        for j in range(len(ran)):
            for i in range(j):
                sign = np.sign(ran[i].started - ran[j].started)
                pairs += 1
                alike += bool(sign == np.sign(law[i].start_us - law[j].start_us))
    assert alike / pairs > 0.95


def test_blocks_of_higher_priority_start_first() -> None:
    def pause(priority: int) -> KernelLaunch:
        return KernelLaunch("pause", (1, 1, 1), (256, 1, 1), [np.array([3], np.int32)], priority=priority)

    ran = run([pause(0), pause(0), pause(1)], [], multiprocessors=HELD)
    assert [one.started for one in ran] == [3, 6, 0]
