"""M1 to M4: whole models, ours and others': PyTorch eager, as a CUDA graph, compiled and auto-tuned; XLA on our graphs.

Weights are random, which times do not depend on. Each engine runs in a process of its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.device.b1_right import seeded_graph
from benchmarks.device.cards import told_for
from benchmarks.device.case import LONG_S, Case, Setup
from benchmarks.device.feeds import random_like
from benchmarks.device.gpu import Gpu
from benchmarks.device.interpreters import graph_constants, graph_function, namespace
from benchmarks.device.ours import queued, stripped
from benchmarks.device.peers import DTYPES, measured, prepared, runner
from benchmarks.device.timing import Timer, torch_stream

NAMES = ("bert_base", "resnet50", "gpt2_small", "gpt2_decode", "vit_b16", "mobilenetv2", "googlenet", "inception_v3")
BRANCHY = ("dien", "nasnet_a_cells", "experts_4", "experts_16", "two_towers")
"""Models of branches; with one batch, since they are made for one."""
BATCHES = (1, 8)
PEER_DTYPES = {"fp32": "float32", "tf32": "tf32", "bf16": "bfloat16"}
"""What PyTorch calls the precisions that models are compiled in."""

CALLS, REPEATS = 20, 7


def time_ours(setup: Setup, entry: dict[str, Any]) -> dict[str, Any]:
    """Times, and the time of every launch, to fit cost models by."""
    gpu = Gpu(setup.kernels("launch"))
    with stripped(setup.bundle / f"{entry['name']}.tsm") as module:
        given, run = queued(gpu, module)
        times = Timer(gpu, setup).times(run)
        profile = [[launch.symbol, round(launch.microseconds, 2)] for launch in module.profile(given)]
    predicted_us = told_for(gpu.device.name, entry["predicted_us"])
    return {**times, "launches": len(profile), "predicted_us": predicted_us, "profile": profile}


def build(name: str, batch: int) -> tuple[Any, list[Any]]:
    """PyTorch's module and its inputs on the host."""
    import torch

    from benchmarks.device.decode import Decode, decode_inputs
    from benchmarks.models import ALL, SEED, randomise

    torch.manual_seed(SEED)
    if name == "gpt2_decode":
        return Decode(), decode_inputs(batch)
    module = ALL[name].build()
    randomise(module)
    inputs = [x.repeat(batch, *[1] * (x.dim() - 1)) for x in ALL[name].inputs().values()]
    return module, [torch.randn_like(x) if x.is_floating_point() else x for x in inputs]


def time_torch(setup: Setup, name: str, batch: int, dtype: str, mode: str) -> dict[str, Any]:
    """As ours is timed; and PyTorch's count of kernels and memory."""
    gpu = Gpu(setup.kernels("launch"))
    module, inputs = prepared(*build(name, batch), dtype)
    with torch_stream(gpu):
        call = runner(module, inputs, mode)
        counted = measured(call)
        return {**Timer(gpu, setup).times(call), "kernels": counted["kernels"], "peak_MiB": counted["peak_MiB"]}


def time_jax(setup: Setup, entry: dict[str, Any]) -> dict[str, Any]:
    """Wall clock of runs queued back to back, a run: XLA has no stream of ours."""
    import jax

    graph, n = seeded_graph(setup, entry), namespace("jax")
    rng = np.random.default_rng(2)
    inputs = [jax.device_put(random_like(rng, v.dtype, v.shape)) for v in graph.inputs]
    weights = {name: jax.device_put(data) for name, data in graph_constants(graph).items()}
    function = jax.jit(graph_function(graph, n))
    jax.block_until_ready(function(inputs, weights))
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            result = function(inputs, weights)
        jax.block_until_ready(result)
        times.append((time.perf_counter_ns() - start) / 1e3 / CALLS)
    return {"queued_us": statistics.median(times)}


def _key(name: str, batch: int, dtype: str, by: str) -> dict[str, Any]:
    return {"model": name, "batch": batch, "dtype": dtype, "by": by}


def ours(part: str, setup: Setup) -> Iterator[Case]:
    for entry in setup.listing("models"):
        key = _key(entry["model"], 1, PEER_DTYPES[entry["precision"]], "tilestitch")
        yield Case(part, key, partial(time_ours, setup, entry), fingerprint=entry["digest"])


def jax(part: str, setup: Setup) -> Iterator[Case]:
    for entry in setup.listing("models"):
        if entry["reference"]:
            key = _key(entry["model"], 1, PEER_DTYPES[entry["precision"]], "jax")
            yield Case(part, key, partial(time_jax, setup, entry), LONG_S, ("jax",), entry["digest"])


def quick_peers(part: str, setup: Setup) -> Iterator[Case]:
    yield from _torch(part, setup, ("graph", "eager"), 40.0)


def slow_peers(part: str, setup: Setup) -> Iterator[Case]:
    yield from _torch(part, setup, ("compile", "max-autotune"), LONG_S)


def _torch(part: str, setup: Setup, modes: tuple[str, ...], limit_s: float) -> Iterator[Case]:
    for mode in modes:
        for batch in BATCHES:
            for dtype in DTYPES:
                for name in NAMES if batch > 1 else NAMES + BRANCHY:
                    run = partial(time_torch, setup, name, batch, dtype, mode)
                    yield Case(part, _key(name, batch, dtype, f"torch {mode}"), run, limit_s, ("torch",))
