"""Latency of an exported model beside other engines: ONNX Runtime, OpenVINO, and Inductor of the PyTorch module."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from benchmarks.turns import markdown
from benchmarks.zoo.checking import Found, newest

Call = Callable[[], object]
Make = Callable[[Path, Mapping[str, np.ndarray]], Call]
SECONDS = 1.0
"""Of measured runs of each engine, roughly."""


def raced(path: Path, session: Any, inputs: Mapping[str, np.ndarray], peers: Sequence[str]) -> Found:
    """Median CPU times of ours and of the peers on one thread, in milliseconds, and why a peer does not take it."""
    from tilestitch.compiler.cli.bench import interleaved
    from tilestitch.compiler.cli.output import Progress

    ways: dict[str, Call] = {"ours": lambda: session.run(inputs)}
    found: Found = {}
    for peer in peers:
        try:
            ways[peer] = MAKERS[peer](path, inputs)
            ways[peer]()
        except Exception as error:  # noqa: BLE001  # whatever an engine raises about a model that it does not take
            ways.pop(peer, None)
            found[f"{peer}_failure"] = " ".join(str(error).split())[:200]
    start = time.process_time()
    ways["ours"]()
    rounds = max(5, min(100, int(SECONDS / (time.process_time() - start + 1e-5))))
    with Progress() as progress:  # of all threads: OpenVINO runs a model in a thread of its own
        times = interleaved(ways, rounds, 3, progress, time.process_time_ns)
    return found | {f"{name}_ms": round(median(values) / 1e3, 4) for name, values in times.items()}


def session_of(engine: str) -> Make:
    """An engine that runs the exported model."""

    def make(path: Path, inputs: Mapping[str, np.ndarray]) -> Call:
        from tilestitch.compiler.cli import rivals

        run = rivals.RACERS[engine](path, 1)
        return lambda: run(inputs)

    return make


def inductor(path: Path, _inputs: Mapping[str, np.ndarray]) -> Call:
    """The PyTorch module that PATH was exported from, compiled by Inductor with its weights frozen."""
    import torch
    import torch._inductor.config as config

    from benchmarks.zoo.catalogue import sample_of

    sample = sample_of(path.stem.partition(".")[0])
    torch.set_num_threads(1)
    config.freezing = True
    compiled, values = torch.compile(sample.module), tuple(sample.inputs.values())

    def call() -> None:
        with torch.no_grad():
            compiled(*values)

    return call


MAKERS: dict[str, Make] = {
    "onnxruntime": session_of("onnxruntime"), "openvino": session_of("openvino"), "inductor": inductor,
}  # fmt: skip


def tabulated(folder: Path) -> str:
    """A Markdown table of the newest results in FOLDER: times of the peers over ours, least of a row's best first."""
    found = {name: row(stages) for name, stages in newest(folder).items() if "ours_ms" in stages.get("peers", {})}
    rows = sorted(found.items(), key=lambda one: min(one[1]["ratios"].values()))
    lines = [(name, f"{one['ours_ms']:.3g}", *(cell(one, peer) for peer in MAKERS)) for name, one in rows]
    means = [mean([one["ratios"][peer] for one in found.values() if peer in one["ratios"]]) for peer in MAKERS]
    return markdown(("model", "ours, ms", *MAKERS), [*lines, ("geometric mean", "", *means)])


def row(stages: Mapping[str, Found]) -> Found:
    """What a table says of a model: our time, and each peer's over that of ours beside it."""
    ratios = {
        peer: one[f"{peer}_ms"] / one["ours_ms"]
        for one in (stages.get("peers", {}), stages.get("inductor", {}))
        for peer in MAKERS
        if f"{peer}_ms" in one
    }
    refused = [peer for peer in MAKERS if any(f"{peer}_failure" in one for one in stages.values())]
    return {"ours_ms": stages["peers"]["ours_ms"], "ratios": ratios, "refused": refused}


def cell(found: Found, peer: str) -> str:
    ratio = found["ratios"].get(peer)
    return f"{ratio:.2f}" if ratio else "fails" if peer in found["refused"] else ""


def mean(ratios: Sequence[float]) -> str:
    return f"{geometric_mean(ratios):.2f}" if ratios else ""
