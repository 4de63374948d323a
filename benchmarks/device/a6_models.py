"""A6, models: PyTorch eager, captured, compiled and auto-tuned, at batch 1 and 8 and three precisions.

The cheap modes of all models come first, then the compiled ones, the auto-tuned ones last: they take minutes each.
JAX runs the same graphs as we do, in B1.
"""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

from benchmarks.device.peers import DTYPES, MODES, measured, prepared, runner
from benchmarks.device.record import Recorder, run_part

NAMES = ("bert_base", "resnet50", "gpt2_small", "gpt2_decode", "vit_b16", "mobilenetv2", "googlenet", "inception_v3")
BATCHES = (1, 8)


def build(name: str, batch: int) -> tuple[Any, list[Any]]:
    """The module and its inputs on the host."""
    import torch

    from benchmarks.device.decode import Decode, decode_inputs
    from benchmarks.models import MODELS, SEED, randomise

    torch.manual_seed(SEED)
    if name == "gpt2_decode":
        return Decode(), decode_inputs(batch)
    module = MODELS[name].build()
    randomise(module)
    inputs = [x.repeat(batch, *[1] * (x.dim() - 1)) for x in MODELS[name].inputs().values()]
    return module, [torch.randn_like(x) if x.is_floating_point() else x for x in inputs]


def one(name: str, batch: int, dtype: str, mode: str) -> dict[str, Any]:
    import torch

    try:
        module, inputs = prepared(*build(name, batch), dtype)
        return measured(runner(module, inputs, mode))
    finally:
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()


def measure(recorder: Recorder) -> None:
    for mode in MODES:
        for dtype in DTYPES:
            for batch in BATCHES:
                for name in NAMES:
                    key = {"model": name, "batch": batch, "dtype": dtype, "mode": mode}
                    recorder.measure(key, partial(one, name, batch, dtype, mode))


if __name__ == "__main__":
    run_part("A6m", measure)
