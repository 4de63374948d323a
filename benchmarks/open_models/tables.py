"""What is no picture and no text for a transformer: a recommender with open batch, a tagger with open length."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.open_models.torch_export import exported
from tests.open_models.sizes import Feeds, Sizes

FIELDS, ITEMS, BAG, WORDS = 26, 10_000, 4, 10_000


class Dlrm(nn.Module):
    """Sums of embeddings for each categorical field, an MLP for the numbers, their pairwise dot products, an MLP."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(ITEMS, width, mode="sum") for _ in range(FIELDS))
        self.bottom = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU()
        )
        pairs = (FIELDS + 1) * FIELDS // 2
        self.top = nn.Sequential(
            nn.Linear(width + pairs, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1), nn.Sigmoid()
        )
        rows, columns = torch.tril_indices(FIELDS + 1, FIELDS + 1, -1)
        self.register_buffer("rows", rows)
        self.register_buffer("columns", columns)

    def forward(self, numbers: Tensor, items: Tensor) -> Tensor:
        """Numbers [B, 13], items [B, FIELDS, BAG]; the probability of a click [B, 1]."""
        dense = self.bottom(numbers)
        vectors = torch.stack([dense, *(bag(items[:, field]) for field, bag in enumerate(self.bags))], 1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2))
        return self.top(torch.cat([dense, dots[:, self.rows, self.columns]], 1))


def clicks(sizes: Sizes, random: np.random.Generator) -> Feeds:
    batch = sizes["batch"]
    return {
        "numbers": random.standard_normal((batch, 13), np.float32),
        "items": random.integers(0, ITEMS, (batch, FIELDS, BAG)),
    }


class Tagger(nn.Module):
    """Two bidirectional LSTM layers over words, and scores of tags for each."""

    def __init__(self, width: int = 128, hidden: int = 256, tags: int = 17) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.memory = nn.LSTM(width, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(2 * hidden, tags)

    def forward(self, words: Tensor) -> Tensor:
        return torch.log_softmax(self.tags(self.memory(self.words(words))[0]), -1)


def sentences(sizes: Sizes, random: np.random.Generator) -> Feeds:
    return {"words": random.integers(0, WORDS, (sizes["batch"], sizes["length"]))}


MODELS = {
    "dlrm": exported(
        Dlrm, {"numbers": {0: "batch"}, "items": {0: "batch"}}, {"batch": (1, 2048)}, clicks, {"batch": 3},
        {"click": {0: "batch"}},
    ),
    "lstm_tagger": exported(
        Tagger, {"words": {0: "batch", 1: "length"}}, {"batch": (1, 16), "length": (1, 256)}, sentences,
        {"batch": 2, "length": 7}, {"scores": {0: "batch", 1: "length"}},
    ),
}  # fmt: skip
