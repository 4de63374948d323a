"""Models of many branches: a stack of NASNet-A cells, mixtures of experts, two towers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def conv_bn(cin: int, cout: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.ReLU(), nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))


def separable(width: int, kernel: int) -> nn.Module:
    """NASNet's: twice a depthwise and a pointwise convolution."""
    layers: list[nn.Module] = []
    for _ in range(2):
        depthwise = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width, bias=False)
        layers += [nn.ReLU(), depthwise, nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width)]
    return nn.Sequential(*layers)


class NormalCell(nn.Module):
    """The normal cell of NASNet-A: five sums of two branches each, of the last two cells' results."""

    def __init__(self, before: int, last: int, width: int) -> None:
        super().__init__()
        self.fit_before, self.fit_last = conv_bn(before, width), conv_bn(last, width)
        self.branches = nn.ModuleList(separable(width, kernel) for kernel in (3, 3, 5, 5, 3))
        self.pool = nn.AvgPool2d(3, 1, 1, count_include_pad=False)

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        p, h = self.fit_before(before), self.fit_last(last)
        three_h, three_p, five_h, five_p, other_three_p = self.branches
        sums = (
            three_h(h) + h, three_p(p) + five_h(h), self.pool(h) + p, self.pool(p) + self.pool(p),
            five_p(p) + other_three_p(p),
        )  # fmt: skip
        return torch.cat([p, *sums], 1)


class NasnetCells(nn.Module):
    """Two stages of normal cells with the widths and sizes of NASNet-A (4 @ 1056) for images of 224x224."""

    def __init__(self, width: int = 44, cells: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 8, 1, bias=False), nn.BatchNorm2d(width))
        self.stages, cin = nn.ModuleList(), width
        for stage in range(2):
            own = width << stage
            widths = [cin, cin] + [6 * own] * cells
            self.stages.append(nn.ModuleList(NormalCell(widths[i], widths[i + 1], own) for i in range(cells)))
            cin = 6 * own
        self.shrink = nn.MaxPool2d(2)
        self.head = nn.Linear(cin, 1000)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        for number, stage in enumerate(self.stages):
            before = last = x if number == 0 else self.shrink(x)
            for cell in stage:
                before, last = last, cell(before, last)
            x = last
        return self.head(torch.relu(x).mean((2, 3)))


class Experts(nn.Module):
    """A mixture-of-experts layer in which every expert sees every token, weighted by the softmax of a gate."""

    def __init__(self, experts: int, width: int = 512, hidden: int = 1024) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
            for _ in range(experts)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        weights = torch.softmax(self.gate(tokens), -1)
        return sum(weights[:, i : i + 1] * expert(tokens) for i, expert in enumerate(self.experts))


def tower(cin: int) -> nn.Module:
    return nn.Sequential(nn.Linear(cin, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 128))


class TwoTowers(nn.Module):
    """A retrieval model: what a user and what an item are, by a tower each, and how well these fit."""

    def __init__(self, users: int = 20_000, items: int = 20_000, width: int = 64, features: int = 128) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        self.user_tower, self.item_tower = tower(width + features), tower(width + features)

    def forward(self, user: Tensor, user_features: Tensor, item: Tensor, item_features: Tensor) -> Tensor:
        u = self.user_tower(torch.cat([self.users(user), user_features], -1))
        v = self.item_tower(torch.cat([self.items(item), item_features], -1))
        return torch.sigmoid((nn.functional.normalize(u) * nn.functional.normalize(v)).sum(-1))
