"""Networks written out in PyTorch: what no model library has, and structures that exporters turn into odd graphs."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.zoo.sample import Build, Sample


class Residual(nn.Module):
    """Group normalisation, SiLU, convolution, twice, with the time embedding between."""

    def __init__(self, cin: int, cout: int, time: int = 0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, cin), nn.GroupNorm(8, cout)
        self.conv1, self.conv2 = nn.Conv2d(cin, cout, 3, padding=1), nn.Conv2d(cout, cout, 3, padding=1)
        self.time = nn.Linear(time, cout) if time else None
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        if self.time is not None and time is not None:
            h = h + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Spatial(nn.Module):
    """Attention among all pixels, or of the pixels to a context."""

    def __init__(self, channels: int, context: int = 0) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.q = nn.Linear(channels, channels, bias=False)
        self.k, self.v = (nn.Linear(context or channels, channels, bias=False) for _ in "kv")
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        n, c, h, w = x.shape
        rows = self.norm(x).flatten(2).transpose(1, 2)
        source = rows if context is None else context

        def heads(t: Tensor) -> Tensor:
            return t.reshape(n, -1, 4, c // 4).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(heads(self.q(rows)), heads(self.k(source)), heads(self.v(source)))
        return x + self.out(mixed.transpose(1, 2).reshape(n, -1, c)).transpose(1, 2).reshape(n, c, h, w)


class UNet(nn.Module):
    """A diffusion model's denoiser with cross-attention."""

    def __init__(self, width: int = 64, context: int = 48) -> None:
        super().__init__()
        time = 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.down1, self.shrink = Residual(width, width, time), nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.down2, self.look, self.cross = (
            Residual(width, 2 * width, time),
            Spatial(2 * width),
            Spatial(2 * width, context),
        )
        self.middle = Residual(2 * width, 2 * width, time)
        self.up2, self.grow = Residual(4 * width, width, time), nn.Conv2d(width, width, 3, padding=1)
        self.up1, self.norm, self.last = (
            Residual(2 * width, width, time),
            nn.GroupNorm(8, width),
            nn.Conv2d(width, 4, 3, padding=1),
        )

    def forward(self, latent: Tensor, step: Tensor, context: Tensor) -> Tensor:
        frequencies = torch.exp(-math.log(10000) * torch.arange(self.width // 2) / (self.width // 2)).to(latent.dtype)
        angles = step[:, None].to(latent.dtype) * frequencies[None]
        time = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        x1 = self.down1(self.first(latent), time)
        x2 = self.cross(self.look(self.down2(self.shrink(x1), time)), context)
        h = self.up2(torch.cat([self.middle(x2, time), x2], 1), time)
        h = self.grow(F.interpolate(h, scale_factor=2.0, mode="nearest"))
        return self.last(F.silu(self.norm(self.up1(torch.cat([h, x1], 1), time))))


def unet() -> Sample:
    return Sample(
        UNet(),
        {"latent": torch.randn(2, 4, 32, 32), "step": torch.tensor([3, 700]), "context": torch.randn(2, 9, 48)},
        {"latent": {0: "batch"}, "step": {0: "batch"}, "context": {0: "batch"}},
    )


def vae_decoder() -> Sample:
    up = [nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(64, 64, 3, padding=1)]
    layers = [
        nn.Conv2d(4, 64, 3, padding=1),
        Residual(64, 64),
        Spatial(64),
        Residual(64, 64),
        *up,
        Residual(64, 32),
        nn.GroupNorm(8, 32),
        nn.SiLU(),
        nn.Conv2d(32, 3, 3, padding=1),
    ]
    return Sample(nn.Sequential(*layers), {"latent": torch.randn(1, 4, 24, 24)})


class Yolo(nn.Module):
    """A small backbone, two heads decoded with anchors, and the best boxes by top-k and gathers."""

    def __init__(self, classes: int = 6) -> None:
        super().__init__()

        def block(cin: int, cout: int, stride: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.SiLU())

        self.stem = nn.Sequential(block(3, 16, 2), block(16, 32, 2), block(32, 64, 2))
        self.deep = block(64, 128, 2)
        self.lateral = block(128, 64, 1)
        self.heads = nn.ModuleList([nn.Conv2d(128, 3 * (5 + classes), 1), nn.Conv2d(128, 3 * (5 + classes), 1)])
        self.anchors: Tensor
        self.register_buffer(
            "anchors", torch.tensor([[[10.0, 13.0], [16, 30], [33, 23]], [[30, 61], [62, 45], [59, 119]]])
        )
        self.classes = classes

    def decode(self, raw: Tensor, anchors: Tensor, stride: int) -> Tensor:
        n, _, h, w = raw.shape
        raw = raw.view(n, 3, 5 + self.classes, h, w).permute(0, 1, 3, 4, 2).sigmoid()
        gy, gx = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        grid = torch.stack((gx, gy), -1).to(raw.dtype)
        centre = (raw[..., :2] * 2 - 0.5 + grid) * stride
        size = (raw[..., 2:4] * 2) ** 2 * anchors[:, None, None]
        return torch.cat([centre, size, raw[..., 4:]], -1).reshape(n, -1, 5 + self.classes)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        fine = self.stem(image)
        coarse = self.deep(fine)
        merged = torch.cat(
            [fine, F.interpolate(self.lateral(coarse), scale_factor=2.0, mode="bilinear", align_corners=False)], 1
        )
        found = torch.cat(
            [
                self.decode(self.heads[0](merged), self.anchors[0], 8),
                self.decode(self.heads[1](coarse), self.anchors[1], 16),
            ],
            1,
        )
        scores = found[..., 4:5] * found[..., 5:]
        best, label = scores.max(-1)
        top, index = best.topk(20)
        boxes = torch.gather(found[..., :4], 1, index[..., None].expand(-1, -1, 4))
        return torch.cat([boxes, top[..., None]], -1), torch.gather(label, 1, index)


def super_resolution() -> Sample:
    layers = [
        nn.Conv2d(3, 56, 5, padding=2),
        nn.PReLU(56),
        nn.Conv2d(56, 16, 1),
        nn.PReLU(16),
        nn.Conv2d(16, 3 * 9, 3, padding=1),
        nn.PixelShuffle(3),
        nn.Hardtanh(0, 1),
    ]
    return Sample(
        nn.Sequential(*layers), {"image": torch.rand(1, 3, 50, 70)}, {"image": {0: "batch", 2: "height", 3: "width"}}
    )


class PointNet(nn.Module):
    """With its input transform, and one set abstraction by nearest neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = nn.Sequential(nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 128, 1))
        self.matrix = nn.Linear(128, 9)
        self.local = nn.Sequential(nn.Conv2d(6, 64, 1), nn.BatchNorm2d(64), nn.LeakyReLU(0.2), nn.Conv2d(64, 64, 1))
        self.head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, points: Tensor) -> Tensor:
        turn = self.matrix(self.transform(points).amax(2)).view(-1, 3, 3) + torch.eye(3).to(points.dtype)
        points = torch.bmm(turn, points)
        gram = points.transpose(1, 2) @ points
        squares = (points**2).sum(1)
        distance = squares[:, :, None] - 2 * gram + squares[:, None, :]
        nearest = distance.topk(8, largest=False)[1]
        n, c, count = points.shape
        flat = nearest.reshape(n, 1, -1).expand(-1, c, -1)
        around = torch.gather(points, 2, flat).view(n, c, count, 8)
        edges = torch.cat([around - points[..., None], points[..., None].expand(-1, -1, -1, 8)], 1)
        return F.log_softmax(self.head(self.local(edges).amax(3).mean(2)), -1)


class GraphNetwork(nn.Module):
    """Graph attention and a mean aggregation: gathers along edges, and sums at their ends."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.value = nn.Linear(16, width), nn.Linear(width, width)
        self.score, self.out = nn.Linear(2 * width, 1), nn.Linear(2 * width, 7)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        x = self.embed(nodes)
        source, target = edges[0], edges[1]
        value = self.value(x)
        score = F.leaky_relu(self.score(torch.cat([value[source], value[target]], -1)), 0.2).squeeze(-1)
        weight = torch.exp(score - score.max())
        total = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, target, weight)
        message = value[source] * (weight / (total[target] + 1e-6))[:, None]
        gathered = torch.zeros_like(x).scatter_add(0, target[:, None].expand_as(message), message)
        largest = torch.zeros_like(x).scatter_reduce(
            0, target[:, None].expand_as(message), message, "amax", include_self=False
        )
        return F.log_softmax(self.out(torch.cat([F.elu(gathered), largest], -1)), -1)


def graph_network() -> Sample:
    return Sample(
        GraphNetwork(),
        {"nodes": torch.randn(40, 16), "edges": torch.randint(0, 40, (2, 150))},
        {"nodes": {0: "nodes"}, "edges": {1: "edges"}},
    )


class LstmModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.out = (
            nn.Embedding(1000, 128),
            nn.LSTM(128, 256, 2, batch_first=True),
            nn.Linear(256, 1000),
        )

    def forward(self, tokens: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, (h, c) = self.lstm(self.embed(tokens), (h, c))
        return self.out(y), h, c


def lstm_model() -> Sample:
    return Sample(
        LstmModel(),
        {"tokens": torch.randint(0, 1000, (2, 35)), "h": torch.randn(2, 2, 256), "c": torch.randn(2, 2, 256)},
    )


class Seq2Seq(nn.Module):
    """A bidirectional GRU, and a GRU cell with additive attention that feeds its best guess back."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed, self.encoder = nn.Embedding(200, width), nn.GRU(width, width, bidirectional=True, batch_first=True)
        self.cell, self.key, self.query = (
            nn.GRUCell(3 * width, width),
            nn.Linear(2 * width, width),
            nn.Linear(width, width),
        )
        self.energy, self.out = nn.Linear(width, 1, bias=False), nn.Linear(width, 200)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        memory, last = self.encoder(self.embed(tokens))
        keys, state, word = self.key(memory), last[0], tokens[:, 0]
        words, looks = [], []
        for _ in range(6):
            weight = self.energy(torch.tanh(keys + self.query(state)[:, None])).softmax(1)
            state = self.cell(torch.cat([self.embed(word), (weight * memory).sum(1)], -1), state)
            word = self.out(state).argmax(-1)
            words.append(word)
            looks.append(weight.squeeze(-1))
        return torch.stack(words, 1), torch.stack(looks, 1)


class Tcn(nn.Module):
    """Dilated causal convolutions with weight normalisation folded, and WaveNet's gates."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.first = nn.Conv1d(8, width, 1)
        self.gates = nn.ModuleList([nn.Conv1d(width, 2 * width, 3, dilation=2**i) for i in range(5)])
        self.mixes = nn.ModuleList([nn.Conv1d(width, width, 1) for _ in range(5)])
        self.last = nn.Conv1d(width, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        skip = torch.zeros_like(x)
        for gate, mix in zip(self.gates, self.mixes):
            a, b = gate(F.pad(x, (2 * gate.dilation[0], 0))).chunk(2, 1)
            h = mix(torch.tanh(a) * torch.sigmoid(b))
            x, skip = x + h, skip + h
        return self.last(F.relu(skip))


class TransformerXl(nn.Module):
    """A layer with memory and relative positions, shifted by padding and reshaping."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.q, self.kv, self.r, self.o = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
            nn.Linear(width, width),
        )
        self.u, self.v = (
            nn.Parameter(torch.randn(heads, width // heads) * 0.1),
            nn.Parameter(torch.randn(heads, width // heads) * 0.1),
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        n, length, _ = x.shape
        both = torch.cat([memory, x], 1)
        total = both.shape[1]
        angles = torch.arange(total - 1, -1, -1.0)[:, None] / 10000 ** (torch.arange(0, self.width, 2.0) / self.width)
        position = self.r(torch.cat([angles.sin(), angles.cos()], -1).to(x.dtype)).view(total, self.heads, -1)
        q = self.q(x).view(n, length, self.heads, -1)
        k, v = (part.view(n, total, self.heads, -1) for part in self.kv(both).chunk(2, -1))
        content = torch.einsum("nihd,njhd->nhij", q + self.u, k)
        relative = torch.einsum("nihd,jhd->nhij", q + self.v, position)
        padded = F.pad(relative, (1, 0)).view(n, self.heads, total + 1, length)
        score = (content + padded[:, :, 1:].reshape(n, self.heads, length, total)) / math.sqrt(self.width // self.heads)
        mask = torch.triu(torch.ones(length, total, dtype=torch.bool), 1 + total - length)
        weight = score.masked_fill(mask, float("-inf")).softmax(-1)
        return self.norm(x + self.o(torch.einsum("nhij,njhd->nihd", weight, v).reshape(n, length, -1)))


def transformer_xl() -> Sample:
    return Sample(TransformerXl(), {"x": torch.randn(2, 12, 64), "memory": torch.randn(2, 20, 64)})


class Dlrm(nn.Module):
    """Bags of embeddings, pairwise dot products, two MLPs."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(500, 16, mode="sum") for _ in range(6)])
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(16 + 21, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        rows = torch.stack([x] + [table.weight[sparse[:, index]].sum(1) for index, table in enumerate(self.tables)], 1)
        dots = rows @ rows.transpose(1, 2)
        i, j = torch.tril_indices(7, 7, -1)
        return self.top(torch.cat([x, dots[:, i, j]], 1))


def dlrm() -> Sample:
    return Sample(
        Dlrm(),
        {"dense": torch.rand(32, 13), "sparse": torch.randint(0, 500, (32, 6, 4))},
        {"dense": {0: "batch"}, "sparse": {0: "batch"}},
    )


class WideDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.embed = nn.Embedding(1000, 1), nn.Embedding(1000, 8)
        self.deep = nn.Sequential(nn.Linear(10 * 8 + 5, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: Tensor, values: Tensor) -> Tensor:
        e = self.embed(ids)
        second = 0.5 * (e.sum(1) ** 2 - (e**2).sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.wide(ids).sum(1) + second + self.deep(torch.cat([e.flatten(1), values], 1)))


class TabNet(nn.Module):
    """Steps with sparsemax masks: a sort and a cumulative sum inside."""

    def __init__(self, features: int = 20, width: int = 16) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(features)
        self.steps = nn.ModuleList([nn.Linear(features, 4 * width) for _ in range(3)])
        self.masks = nn.ModuleList([nn.Linear(width, features) for _ in range(3)])
        self.out, self.width = nn.Linear(width, 3), width

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        a, prior = torch.ones(x.shape[0], self.width, dtype=x.dtype), torch.ones_like(x)
        total = torch.zeros_like(a)
        for step, mask in zip(self.steps, self.masks):
            z = mask(a) * prior
            ordered = z.sort(-1, descending=True)[0]
            count = torch.arange(1, x.shape[1] + 1).to(x.dtype)
            sums = ordered.cumsum(-1)
            support = (1 + count * ordered > sums).to(x.dtype).sum(-1, keepdim=True)
            threshold = (torch.gather(sums, -1, support.long() - 1) - 1) / support
            chosen = (z - threshold).clamp(min=0)
            prior = prior * (1.5 - chosen)
            d, a = F.glu(step(x * chosen)).chunk(2, -1)
            total = total + F.relu(d)
        return self.out(total)


class Nerf(nn.Module):
    """Positional encoding, an MLP with a skip, and volume rendering by cumulative products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(39, 128), nn.Linear(128 + 39, 128)
        self.sigma, self.colour = nn.Linear(128, 1), nn.Linear(128, 3)

    def forward(self, origin: Tensor, ray: Tensor) -> tuple[Tensor, Tensor]:
        depth = torch.linspace(0.1, 2.0, 24).to(origin.dtype)
        points = origin[:, None] + ray[:, None] * depth[None, :, None]
        waves = points[..., None] * (2.0 ** torch.arange(6)).to(origin.dtype)
        code = torch.cat([points, waves.sin().flatten(-2), waves.cos().flatten(-2)], -1)
        h = F.relu(self.second(torch.cat([F.relu(self.first(code)), code], -1)))
        alpha = 1 - torch.exp(-F.softplus(self.sigma(h)[..., 0]) * 0.08)
        through = torch.exp(torch.log(1 - alpha + 1e-6).cumsum(-1))
        weight = alpha * F.pad(through, (1, 0), value=1.0)[:, :-1]
        return (weight[..., None] * self.colour(h).sigmoid()).sum(1), (weight * depth).sum(-1)


class Fourier(nn.Module):
    """A Fourier neural operator: rfft2, products of complex weights of the low modes, irfft2."""

    def __init__(self, width: int = 12, modes: int = 6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, width, width, modes, modes) / width)
        self.lift, self.local, self.out, self.modes = (
            nn.Conv2d(3, width, 1),
            nn.Conv2d(width, width, 1),
            nn.Conv2d(width, 1, 1),
            modes,
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x)
        spectrum = torch.view_as_real(torch.fft.rfft2(x))[:, :, : self.modes, : self.modes]
        real, imaginary = spectrum[..., 0], spectrum[..., 1]
        a, b = self.weight[0], self.weight[1]
        re = torch.einsum("nixy,ioxy->noxy", real, a) - torch.einsum("nixy,ioxy->noxy", imaginary, b)
        im = torch.einsum("nixy,ioxy->noxy", real, b) + torch.einsum("nixy,ioxy->noxy", imaginary, a)
        power = re**2 + im**2
        return self.out(F.gelu(self.local(x)) * power.mean((2, 3), keepdim=True))


class Warp(nn.Module):
    """A spatial transformer, a flow warp and a correlation volume: grid sampling and unfolding."""

    def __init__(self) -> None:
        super().__init__()
        self.where, self.flow = nn.Linear(3 * 64, 6), nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        theta = self.where(F.adaptive_avg_pool2d(image, 8).flatten(1)).view(-1, 2, 3)
        grid = F.affine_grid(theta, [1, 3, 24, 20], align_corners=False)
        turned = F.grid_sample(image, grid, padding_mode="border", align_corners=False)
        shift = torch.tanh(self.flow(image)).permute(0, 2, 3, 1)
        warped = F.grid_sample(image, shift, padding_mode="reflection", mode="bilinear", align_corners=True)
        patches = F.unfold(image, 3, padding=1).view(1, 3, 9, 24, 20)
        return turned, warped, (patches * warped[:, :, None]).mean(1)


class Experts(nn.Module):
    """Top-2 of 4 experts: scores by topk, masked by one-hot, all experts computed by batched products."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 4, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(4, width, 64) / 6), nn.Parameter(torch.randn(4, 64, width) / 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weight, index = self.gate(x).softmax(-1).topk(2)
        weight = weight / weight.sum(-1, keepdim=True)
        mixing = (F.one_hot(index, 4).to(x.dtype) * weight[..., None]).sum(-2)
        y = torch.einsum("nth,ehd->ntedh"[:0] + "nti,eio->nteo", x, self.up)
        y = torch.einsum("nteo,eoi->ntei", F.silu(y), self.down)
        return (y * mixing[..., None]).sum(2), index


class Rnnt(nn.Module):
    """A transducer's joint network: broadcast sum of time and label, log-softmax over 5-D."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.label = nn.LSTM(40, 64, bidirectional=True, batch_first=True), nn.GRU(32, 48, batch_first=True)
        self.embed, self.a, self.b, self.out = (
            nn.Embedding(30, 32),
            nn.Linear(128, 64),
            nn.Linear(48, 64),
            nn.Linear(64, 30),
        )

    def forward(self, sound: Tensor, labels: Tensor) -> Tensor:
        a, b = self.a(self.time(sound)[0]), self.b(self.label(self.embed(labels))[0])
        return F.log_softmax(self.out(torch.tanh(a[:, :, None] + b[:, None])), -1)


class Volume(nn.Module):
    """A 3-D U-Net: convolutions, transposed convolutions, instance normalisation and trilinear growth."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv3d(1, 8, 3, padding=1), nn.Conv3d(8, 16, 3, stride=2, padding=1)
        self.norm, self.up, self.out = (
            nn.InstanceNorm3d(16, affine=True),
            nn.ConvTranspose3d(16, 8, 2, stride=2),
            nn.Conv3d(24, 2, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        a = F.leaky_relu(self.a(x))
        b = F.leaky_relu(self.norm(self.b(a)))
        grown = F.interpolate(b[:, :8], scale_factor=2.0, mode="trilinear", align_corners=False)
        return self.out(torch.cat([a, self.up(b), grown], 1)).softmax(1)


class Gan(nn.Module):
    """A generator of transposed convolutions with modulated weights (StyleGAN's demodulation)."""

    def __init__(self) -> None:
        super().__init__()
        self.map, self.style = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2)), nn.Linear(64, 32)
        self.const, self.weight = nn.Parameter(torch.randn(1, 32, 4, 4)), nn.Parameter(torch.randn(24, 32, 3, 3) / 17)
        self.up = nn.Sequential(
            nn.ConvTranspose2d(24, 16, 4, 2, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z: Tensor) -> Tensor:
        z = z * torch.rsqrt((z**2).mean(1, keepdim=True) + 1e-8)
        style = self.style(self.map(z)) + 1
        weight = self.weight[None] * style[:, None, :, None, None]
        weight = weight * torch.rsqrt((weight**2).sum((2, 3, 4), keepdim=True) + 1e-8)
        n = z.shape[0]
        x = F.conv2d(
            self.const.expand(n, -1, -1, -1).reshape(1, n * 32, 4, 4),
            weight.reshape(n * 24, 32, 3, 3),
            padding=1,
            groups=n,
        )
        return self.up(x.view(n, 24, 4, 4))


class Looping(nn.Module):
    """Control flow that depends on data: a while loop (power iteration until it settles)."""

    def forward(self, matrix: Tensor, steps: Tensor) -> Tensor:
        x = torch.ones(matrix.shape[0], 1)
        for _ in range(int(steps)):
            x = matrix @ x
            x = x / (x.abs().sum() + 1e-3)
        if bool(x.sum() > 0.5):
            x = x * 2
        else:
            x = x - 1
        return x


def looping() -> Sample:
    return Sample(torch.jit.script(Looping()), {"matrix": torch.rand(8, 8), "steps": torch.tensor(5)})


class Statistics(nn.Module):
    """Reductions of every kind along odd axes, cumulative sums, sorts, products, norms and triangles."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        mean, var = x.mean((0, 2), keepdim=True), x.var((0, 2), keepdim=True, unbiased=True)
        z = (x - mean) / (var + 1e-3).sqrt()
        return (
            z.logsumexp(1), z.norm(dim=-1), z.norm(p=1, dim=1), z.prod(1), z.cumsum(1), z.std(-1), z.median(-1)[0],
            z.argmin(1), z.sort(1)[0], torch.tril(z), z.flip(1), z.roll(2, 2), (z > 0).any(1), (z > 2).sum(-1),
            F.normalize(z, dim=0), torch.where(z > 0, z, z * 0.5).clamp(-1, 1), torch.floor_divide(z, 0.3),
            torch.remainder(z, 0.7), z.erf(), torch.atan2(z, mean),
        )  # fmt: skip


class Kan(nn.Module):
    """A Kolmogorov-Arnold layer: B-splines by the recursion of de Boor."""

    def __init__(self) -> None:
        super().__init__()
        self.grid: Tensor
        self.register_buffer("grid", torch.linspace(-2, 2, 12))
        self.weight, self.base = nn.Parameter(torch.randn(10, 6, 8) / 8), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        y, g = x[..., None], self.grid.to(x.dtype)
        basis = ((y >= g[:-1]) & (y < g[1:])).to(x.dtype)
        for k in range(1, 4):
            left = (y - g[: -(k + 1)]) / (g[k:-1] - g[: -(k + 1)])
            right = (g[k + 1 :] - y) / (g[k + 1 :] - g[1:-k])
            basis = left * basis[..., :-1] + right * basis[..., 1:]
        return self.base(F.silu(x)) + torch.einsum("bik,oik->bo", basis, self.weight)


class StateSpace(nn.Module):
    """A diagonal state-space layer by a convolution with its own kernel, and squeeze-excitation over time."""

    def __init__(self, width: int = 16, length: int = 64) -> None:
        super().__init__()
        self.log, self.c, self.d = (
            nn.Parameter(torch.rand(width, 8) - 1),
            nn.Parameter(torch.randn(width, 8)),
            nn.Parameter(torch.randn(width)),
        )
        self.out, self.length = nn.Linear(width, width), length

    def forward(self, u: Tensor) -> Tensor:
        time = torch.arange(self.length).to(u.dtype)
        kernel = (self.c[..., None] * torch.exp(-torch.exp(self.log)[..., None] * time)).sum(1)
        y = F.conv1d(F.pad(u, (self.length - 1, 0)), kernel.flip(-1)[:, None], groups=u.shape[1])
        return self.out(F.gelu(y + self.d[:, None] * u).transpose(1, 2))


def of(module: type[nn.Module], **inputs: tuple[int, ...]) -> Build:
    """MODULE with normally distributed inputs of these shapes, and the first axis open."""

    def build() -> Sample:
        values = {name: torch.randn(shape) for name, shape in inputs.items()}
        return Sample(module(), values, {name: {0: "batch"} for name in inputs})

    return build


MODELS: dict[str, Build] = {
    "unet": unet,
    "vae_decoder": vae_decoder,
    "yolo": of(Yolo, image=(1, 3, 96, 128)),
    "super_resolution": super_resolution,
    "pointnet": of(PointNet, points=(2, 3, 100)),
    "graph_network": graph_network,
    "lstm_model": lstm_model,
    "seq2seq": lambda: Sample(Seq2Seq(), {"tokens": torch.randint(0, 200, (3, 17))}),
    "tcn": of(Tcn, x=(2, 8, 120)),
    "transformer_xl": transformer_xl,
    "dlrm": dlrm,
    "wide_deep": lambda: Sample(
        WideDeep(),
        {"ids": torch.randint(0, 1000, (16, 10)), "values": torch.rand(16, 5)},
        {"ids": {0: "batch"}, "values": {0: "batch"}},
    ),
    "tabnet": of(TabNet, x=(16, 20)),
    "nerf": of(Nerf, origin=(50, 3), ray=(50, 3)),
    "fourier": of(Fourier, x=(1, 3, 32, 32)),
    "warp": lambda: Sample(Warp(), {"image": torch.randn(1, 3, 24, 20)}),
    "experts": of(Experts, x=(2, 7, 32)),
    "transducer": lambda: Sample(Rnnt(), {"sound": torch.randn(2, 31, 40), "labels": torch.randint(0, 30, (2, 7))}),
    "volume": of(Volume, x=(1, 1, 12, 16, 20)),
    "gan": lambda: Sample(Gan(), {"z": torch.randn(3, 32)}),
    "looping": looping,
    "statistics": lambda: Sample(Statistics(), {"x": torch.randn(4, 7, 6)}),
    "kan": of(Kan, x=(20, 6)),
    "state_space": of(StateSpace, u=(2, 16, 64)),
}
