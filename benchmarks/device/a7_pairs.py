"""A7: the two GEMMs of an MLP in one CUDA graph, at a few tokens and at many: through cuBLAS, and by Stream-K."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from benchmarks.device.case import LIMIT_S, Case, Setup
from benchmarks.device.limits import TOLERANCE
from benchmarks.device.pair_models import MLPS, TOKENS, flops, gates, moved_bytes
from benchmarks.device.peers import captured, measured

DTYPE = "float16"
TUNED_S = 2 * LIMIT_S
"""The first case of each kind compiles six tiles, twice."""


def pair(name: str, tokens: int, by: str) -> dict[str, Any]:
    """gpt3: GELU(x A) B; llama: (SiLU(x G) * (x U)) D. Bytes: weights, inputs and outputs once."""
    import torch

    width, hidden = MLPS[name]
    kind = getattr(torch, DTYPE)

    def weight(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, device="cuda", dtype=kind) / rows**0.5

    x = torch.randn(tokens, width, device="cuda", dtype=kind)
    up = weight(width, 2 * hidden if gates(name) else hidden)
    result = BY[by](x, up, weight(hidden, width), gates(name))
    return {
        **result,
        "TFLOP_per_s": flops(name, tokens) / result["us"] / 1e6,
        "GB_per_s": moved_bytes(name, tokens) / result["us"] / 1e3,
    }


def by_cublas(x: Any, up: Any, down: Any, gated: bool) -> dict[str, Any]:
    """Gates have a matrix of their own, the left half of `up`."""
    import torch

    f = torch.nn.functional
    gate, up = (half.contiguous() for half in up.chunk(2, 1)) if gated else (None, up)

    def call() -> Any:
        inner = f.silu(x @ gate) * (x @ up) if gated else f.gelu(x @ up, approximate="tanh")
        return inner @ down

    return measured(captured(call))


def by_stream_k(x: Any, up: Any, down: Any, gated: bool) -> dict[str, Any]:
    """With the fastest tile for each of the two GEMMs, each timed by itself. Raises where the result is not that of
    PyTorch.
    """
    import torch

    from benchmarks.device import stream_k

    def first(tile: stream_k.Tile) -> Any:
        return stream_k.gated(stream_k.gemm(x, up, tile)) if gated else stream_k.gemm(x, up, tile, gelu=True)

    inner = first(stream_k.TILES[-1])
    tiles = [
        _fastest(stream_k.TILES, first), _fastest(stream_k.TILES, lambda tile: stream_k.gemm(inner, down, tile))
    ]  # fmt: skip

    def call() -> Any:
        return stream_k.gemm(first(tiles[0]), down, tiles[1])

    f = torch.nn.functional
    both = x.float() @ up.float()
    expected = f.silu(both.chunk(2, 1)[0]) * both.chunk(2, 1)[1] if gated else f.gelu(both, approximate="tanh")
    expected = expected.half().float() @ down.float()
    for _ in range(2):  # what the first run leaves, the second one finds
        error = float((call().float() - expected).norm() / expected.norm())
        if not error <= TOLERANCE[DTYPE]:
            raise ValueError(f"Stream-K is wrong: {error:.1e} of the norm, at most {TOLERANCE[DTYPE]:.0e}")
    return {**measured(captured(call)), "error": error, "tiles": [asdict(tile) for tile in tiles]}


def _fastest(tiles: Sequence[Any], call: Callable[[Any], Any]) -> Any:
    """A tile that does not fit into shared memory is out of the race."""
    import torch
    import triton

    found: list[tuple[float, int, Any]] = []
    for tile in tiles:
        with suppress(triton.runtime.errors.OutOfResources):
            call(tile)
            torch.cuda.synchronize()
            found.append((measured(captured(partial(call, tile)), 10)["us"], len(found), tile))
    return min(found)[2]


BY = {"cublas": by_cublas, "stream-k": by_stream_k}


def cases(part: str, setup: Setup) -> Iterator[Case]:
    for by in BY:
        for name in MLPS:
            for tokens in TOKENS:
                key = {"mlp": name, "tokens": tokens, "by": by}
                limit_s, needs = (LIMIT_S, ("torch",)) if by == "cublas" else (TUNED_S, ("torch", "triton"))
                yield Case(part, key, partial(pair, name, tokens, by), limit_s, needs)
