"""The MLPs whose GEMMs are timed one after the other and tied, and the ways in which they are tied."""

from __future__ import annotations

from math import prod

TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 1280, 1536, 2048, 4096)
MLPS = {"gpt3, 1 of 8": (12288, 4 * 12288 // 8), "llama 65B, 1 of 8": (8192, 22016 // 8)}
"""Width and this card's share of the hidden width."""
APART = "apart"
FORMS = {
    APART: "off", "pdl": "kernel/launches", "rows": "row/launches", "tiles": "tile/launches", "drawn": "row/tickets",
    "auto": "auto",
}  # fmt: skip
"""By name what `sync` is. pdl: the second kernel begins early and waits for the whole of the first, so that only what
comes before that overlaps. drawn: one launch."""


def gates(name: str) -> bool:
    return name.startswith("llama")


def flops(name: str, tokens: int) -> int:
    return 2 * (3 if gates(name) else 2) * tokens * prod(MLPS[name])


def moved_bytes(name: str, tokens: int) -> int:
    """Weights, inputs and outputs once, in float16."""
    width, hidden = MLPS[name]
    return 2 * ((3 if gates(name) else 2) * width * hidden + 2 * tokens * width)
