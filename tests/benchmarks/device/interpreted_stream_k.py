"""Stream-K GEMMs in Triton's interpreter, which must be asked for before Triton is imported: TRITON_INTERPRET=1."""

from __future__ import annotations

import torch

from benchmarks.device import stream_k

TILE = stream_k.Tile(16, 32, 32, 4, 2)
close = torch.testing.assert_close


def multiplies(programs: int, tokens: int, width: int, columns: int) -> None:
    x, w = torch.randn(tokens, width).half(), (torch.randn(width, columns) / width**0.5).half()
    expected = torch.nn.functional.gelu(x.float() @ w.float(), approximate="tanh")
    for _ in range(2):  # the first run leaves all flags as it found them
        close(stream_k.gemm(x, w, TILE, gelu=True, programs=programs).float(), expected, atol=3e-3, rtol=3e-3)


def gates() -> None:
    both = torch.randn(5, 74).half()
    expected = torch.nn.functional.silu(both[:, :37].float()) * both[:, 37:].float()
    close(stream_k.gated(both).float(), expected, atol=3e-3, rtol=3e-3)


def main() -> None:
    for programs in (1, 2, 5, 16):
        for sizes in ((1, 64, 48), (33, 100, 70), (64, 64, 64)):
            multiplies(programs, *sizes)
    gates()


if __name__ == "__main__":
    main()
