"""A7: the two GEMMs of an MLP through cuBLAS in one CUDA graph, at a few tokens and at many."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.device.case import Case, Setup
from benchmarks.device.pair_models import MLPS, TOKENS, flops, gates, moved_bytes
from benchmarks.device.peers import captured, measured

DTYPE = "float16"


def pair(name: str, tokens: int) -> dict[str, Any]:
    """gpt3: GELU(x A) B; llama: (SiLU(x G) * (x U)) D. Bytes: weights, inputs and outputs once."""
    import torch

    width, hidden = MLPS[name]
    kind = getattr(torch, DTYPE)

    def weight(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, device="cuda", dtype=kind) / rows**0.5

    x = torch.randn(tokens, width, device="cuda", dtype=kind)
    up, gate, down = weight(width, hidden), weight(width, hidden), weight(hidden, width)
    f = torch.nn.functional
    gated = gates(name)

    def call() -> Any:
        inner = f.silu(x @ gate) * (x @ up) if gated else f.gelu(x @ up, approximate="tanh")
        return inner @ down

    result = measured(captured(call))
    return {
        **result,
        "TFLOP_per_s": flops(name, tokens) / result["us"] / 1e6,
        "GB_per_s": moved_bytes(name, tokens) / result["us"] / 1e3,
    }


def cases(part: str, setup: Setup) -> Iterator[Case]:
    for name in MLPS:
        for tokens in TOKENS:
            yield Case(
                part, {"mlp": name, "tokens": tokens, "by": "cublas"}, partial(pair, name, tokens), needs=("torch",)
            )
