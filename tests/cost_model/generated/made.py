"""Records of a machine that is made up: what its kernels take is a law of work and schedule that no model is told."""

from __future__ import annotations

from random import Random

from tilestitch.cost_model.devices import CpuDevice
from tilestitch.cost_model.facts import Arithmetic, Choices, KernelFacts, Part, Traffic, kernel_of
from tilestitch.cost_model.on_cpu import predict_on_cpu
from tilestitch.cost_model.records import Machine, Record

CPU = CpuDevice(vector_bytes=64, l1_bytes=48 << 10, l2_bytes=2 << 20)
DEVICE = "a made up CPU (avx512, 1 thread)"
BEST_ROWS = 6
"""Rows of a tile that suit the machine; twice and half as many are half as fast."""


def kernel(m: int, n: int, k: int, rows: int) -> KernelFacts:
    """A GEMM in tiles of so many rows."""
    reads = Traffic("x", 4 * m * k, 4 * m * k), Traffic("w", 4 * n * k, 4 * n * k, "weight")
    names = ("schedule.rows", "schedule.vectors", "schedule.lanes", "shape.m", "shape.n", "shape.k")
    choices = Choices(names, (rows, 2, 16, m, n, k))
    return kernel_of(Part(
        "contraction", "float32", reads, (Traffic("y", 4 * m * n, 4 * m * n),),
        (Arithmetic("fma", "float32", m * n * k),), m * n, tasks=1, lanes=16, template="cpu_gemm", choices=choices,
    ))  # fmt: skip


def records(count: int, seed: int, slower: float = 1.0, device: str = DEVICE) -> list[Record]:
    """Of `count` shapes, each with a few schedules, in models of four families."""
    random, found = Random(seed), []
    for number in range(count):
        m, n, k = (random.choice((16, 33, 64, 100, 128, 256)) for _ in range(3))
        for rows in random.sample((1, 2, 4, 6, 8, 12, 14), 4):
            facts = kernel(m, n, k, rows)
            ratio = max(rows, BEST_ROWS) / min(rows, BEST_ROWS)
            us = predict_on_cpu(facts, CPU).latency_us * 1.7 * ratio * random.uniform(1.0, 1.05) * slower
            machine = Machine(device, "Linux 6", "tilestitch 1")
            model = f"{'abcd'[number % 4]}-{number}"
            found.append(Record(machine, f"{m} {n} {k}", f'{{"rows":{rows}}}', facts, us, 5, model))
    return found
