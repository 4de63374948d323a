"""D1 to D3: large operators, ours and PyTorch's, each in a process of its own; and whether ours are right.

Both are timed the same way, in streams that are kept busy until all is queued; PyTorch replays a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.device.b1_right import Exact, seeded_graph
from benchmarks.device.cards import told_for
from benchmarks.device.case import Case, Setup
from benchmarks.device.feeds import feeds_of, poisoned, random_like, relative_error, seeded_weights
from benchmarks.device.gpu import Gpu
from benchmarks.device.interpreters import graph_constants, graph_function
from benchmarks.device.limits import tolerance
from benchmarks.device.ours import queued, stripped
from benchmarks.device.peers import captured
from benchmarks.device.sizes import BY_NAME, in_torch
from benchmarks.device.timing import Timer, torch_stream
from tilestitch.runtime import load

MOST_REFERENCE_ELEMENTS = 1 << 29
"""Of a float64 tensor of the reference: 4 GiB each."""


def time_ours(setup: Setup, entry: dict[str, Any]) -> dict[str, Any]:
    gpu, size = Gpu(setup.kernels("launch")), BY_NAME[entry["name"]]
    with stripped(setup.bundle / f"{entry['name']}.tsm") as module:
        _, run = queued(gpu, module, size.inputs)
        times = Timer(gpu, setup).times(run)
    predicted_us = told_for(gpu.device.name, entry["predicted_us"])
    return {**times, **size.rates(times["device_us"]), "predicted_us": predicted_us}


def time_torch(setup: Setup, name: str) -> dict[str, Any]:
    import torch

    size, gpu = BY_NAME[name], Gpu(setup.kernels("launch"))
    kind, rng = getattr(torch, size.dtype), np.random.default_rng(2)
    shapes = (*size.inputs.values(), *size.weights.values())
    operands = [torch.from_numpy(random_like(rng, "float32", shape)).cuda().to(kind) for shape in shapes]
    with torch.no_grad(), torch_stream(gpu):
        times = Timer(gpu, setup).times(captured(partial(in_torch(size), *operands)))
    return {**times, **size.rates(times["device_us"])}


def check(setup: Setup, entry: dict[str, Any]) -> dict[str, Any]:
    """Ours against the same graph in float64."""
    graph, path, n = seeded_graph(setup, entry), setup.bundle / f"{entry['name']}.tsm", Exact("cuda")
    with load(path, device="cuda", weights=seeded_weights(path), verify=False) as module:
        feeds = feeds_of(module, np.random.default_rng(3))
        results = list(module.run(feeds, out=poisoned(module)).values())
    weights = {name: n.array(data) for name, data in graph_constants(graph).items()}
    expected = graph_function(graph, n)([n.array(feeds[value.name]) for value in graph.inputs], weights)
    error = relative_error(zip(results, (y.cpu().numpy() for y in expected), strict=True))
    return setup.judged(error, tolerance(entry))


def _key(name: str, by: str) -> dict[str, Any]:
    size = BY_NAME[name]
    shape = [*size.shape, *(size.output[-1:] if size.operator == "gemv" else ())]
    return {"operator": size.operator, "shape": shape, "dtype": size.dtype, "by": by}


def ours(part: str, setup: Setup) -> Iterator[Case]:
    for entry in setup.listing("sizes"):
        run = partial(time_ours, setup, entry)
        yield Case(part, _key(entry["name"], "tilestitch"), run, fingerprint=entry["digest"])


def peers(part: str, setup: Setup) -> Iterator[Case]:
    for entry in setup.listing("sizes"):
        yield Case(part, _key(entry["name"], "torch"), partial(time_torch, setup, entry["name"]), needs=("torch",))


def right(part: str, setup: Setup) -> Iterator[Case]:
    """Those whose reference fits, with the weights that both make of the same seed: where there are none. S1 tells
    whether kernels over open sizes are right.
    """
    for entry in setup.listing("sizes"):
        size = BY_NAME[entry["name"]]
        scores = size.flops // (2 * size.output[-1])
        if not (size.weights or size.symbols) and scores <= MOST_REFERENCE_ELEMENTS:
            run = partial(check, setup, entry)
            yield Case(part, _key(entry["name"], "tilestitch"), run, needs=("torch",), fingerprint=entry["digest"])
