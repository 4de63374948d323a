"""B4: our artifacts of whole models against PyTorch running the same modules, in turns: eager, captured, compiled.

Both engines get the same inputs on the GPU, at the same precision. A time is the wall clock of runs queued back to
back, a run. Weights differ (ours are random, made from a seed), which times do not depend on.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.device.b1_ours import CALLS, FOLDER, in_turns, new_stream, seeded_weights
from benchmarks.device.peers import MODES, prepared, runner
from benchmarks.device.record import Recorder, run_part
from tilestitch.runtime import Module, load

PEER_DTYPES = {"fp32": "float32", "tf32": "tf32", "bf16": "bfloat16"}
"""What PyTorch calls the precisions that models are compiled in."""


def compare(entry: dict[str, Any], mode: str) -> dict[str, Any]:
    """Our time and PyTorch's in one of its modes."""
    import torch

    from benchmarks.device.a6_models import build

    try:
        built, inputs = build(entry["model"], 1)
        module, moved = prepared(built, inputs, PEER_DTYPES[entry["precision"]])
        peer = runner(module, moved, mode)
        path = FOLDER / f"{entry['name']}.tsm"
        with load(path, device="cuda", weights=seeded_weights(path), verify=False) as artifact:
            given = dict(zip((info.name for info in artifact.inputs), (x.cuda() for x in inputs), strict=True))
            times = in_turns({"ours": our_engine(artifact, given), mode: partial(_peer, peer)})
        return {"ours_us": times["ours"], "pytorch_us": times[mode], "pytorch_over_ours": times[mode] / times["ours"]}
    finally:
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()


def our_engine(module: Module, given: dict[str, Any]) -> Callable[[], None]:
    """A function that queues CALLS runs on a stream of its own, and waits for them."""
    outputs, stream = module.run(given, on_device=True), new_stream()

    def run() -> None:
        for _ in range(CALLS):
            module.run(given, out=outputs, stream=stream)
        next(iter(outputs.values())).device.synchronize()

    return run


def _peer(call: Callable[[], Any]) -> None:
    import torch

    for _ in range(CALLS):
        call()
    torch.cuda.synchronize()


def measure(recorder: Recorder) -> None:
    listed = json.loads((FOLDER / "bundle.json").read_text())
    models = [entry for entry in listed if entry["kind"] == "model"]
    for mode in MODES:
        for entry in models:
            key = {"model": entry["model"], "precision": entry["precision"], "mode": mode}
            recorder.measure(key, partial(compare, entry, mode))


if __name__ == "__main__":
    run_part("B4", measure)
