"""GPT-2 small for one new token with cached keys and values: plain PyTorch, so that all peers get the same."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LAYERS, WIDTH, HEADS, VOCABULARY, POSITIONS = 12, 768, 12, 50257, 1024


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, 1, WIDTH], past [2, B, HEADS, T, WIDTH / HEADS]; gives x and the past with the new token."""
        batch = x.shape[0]
        q, k, v = (part.view(batch, 1, HEADS, -1).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        now = torch.cat([past, torch.stack([k, v])], 3)
        y = nn.functional.scaled_dot_product_attention(q, now[0], now[1])
        x = x + self.project(y.transpose(1, 2).reshape(batch, 1, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.after(x)), approximate="tanh")), now


class Decode(nn.Module):
    """token [B, 1], past [LAYERS, 2, B, HEADS, T, WIDTH / HEADS] -> logits [B, 1, VOCABULARY], the past of T + 1."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, token: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tokens(token) + self.positions.weight[past.shape[4]]
        caches = []
        for layer, own in zip(self.layers, past):
            x, cache = layer(x, own)
            caches.append(cache)
        return self.norm(x) @ self.tokens.weight.T, torch.stack(caches)


def decode_inputs(batch: int, cached: int = 128) -> list[Tensor]:
    past = torch.randn(LAYERS, 2, batch, HEADS, cached, WIDTH // HEADS)
    return [torch.randint(0, VOCABULARY, (batch, 1)), past]
