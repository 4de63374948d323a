"""The benchmark models, exported from PyTorch to ONNX with random weights from a fixed seed.

    python -m benchmarks.models [NAME ...]

Nothing is downloaded. The files go to benchmarks/models/ and are kept; one that exists is made again with
`--force` only.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .branchy import Experts, NasnetCells, TwoTowers
from .recent_models import convnext_t, minilm, spectrogram, swin_t, whisper_encoder
from .zoo.detection_operators import declare_operators

FOLDER = Path(__file__).parent / "models"
OPSET = 20
SEED = 0


@dataclass(frozen=True)
class Model:
    """What `export` needs: how to build it, and one set of inputs by name."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.onnx"


def export(name: str, force: bool = False) -> Path:
    """Exports the model NAME of ALL and returns the path of its file."""
    path = path_of(name)
    if path.exists() and not force:
        return path
    FOLDER.mkdir(parents=True, exist_ok=True)
    declare_operators()  # transformers fails to import where torchvision does
    torch.manual_seed(SEED)
    module = ALL[name].build().eval()
    randomise(module)
    inputs = ALL[name].inputs()
    unfinished = path.with_suffix(".part")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that torchvision is absent
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module, tuple(inputs.values()), dynamo=True, opset_version=OPSET, verbose=False,
            input_names=list(inputs), output_names=["output"],
        )  # fmt: skip
    assert program is not None
    program.save(str(unfinished), external_data=False)
    os.replace(unfinished, path)
    return path


def randomise(module: nn.Module) -> None:
    """Gives biases and normalisations the values of a trained model's kind.

    A fresh module has zeros and ones there, which a compiler would rightly fold away.
    """
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() == 1:
                low = 0.8 if name.endswith("weight") else -0.1
                parameter.uniform_(low, low + (0.4 if name.endswith("weight") else 0.2))
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.uniform_(-0.1, 0.1)
            elif name.endswith("running_var"):
                buffer.uniform_(0.8, 1.2)


# --- convolutional networks -------------------------------------------------------------------------------------------


def conv_bn(cin: int, cout: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(cin, cout, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(cout)]


class Bottleneck(nn.Module):
    """ResNet's block (version 1.5: the stride is in the 3x3 convolution)."""

    def __init__(self, cin: int, width: int, stride: int) -> None:
        super().__init__()
        cout = 4 * width
        self.body = nn.Sequential(
            *conv_bn(cin, width, 1), nn.ReLU(), *conv_bn(width, width, 3, stride), nn.ReLU(), *conv_bn(width, cout, 1)
        )
        changes = stride != 1 or cin != cout
        self.shortcut = nn.Sequential(*conv_bn(cin, cout, 1, stride)) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [*conv_bn(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    cin = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(blocks):
            layers.append(Bottleneck(cin, width, stride if index == 0 else 1))
            cin = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, 1000)]
    return calibrated(nn.Sequential(*layers))


class InvertedResidual(nn.Module):
    """MobileNetV2's block: expand, depthwise, project."""

    def __init__(self, cin: int, cout: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = cin * expand
        layers = [*conv_bn(cin, hidden, 1), nn.ReLU6()] if expand != 1 else []
        layers += [*conv_bn(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6(), *conv_bn(hidden, cout, 1)]
        self.body = nn.Sequential(*layers)
        self.residual = stride == 1 and cin == cout

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


def mobilenetv2() -> nn.Module:
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    layers: list[nn.Module] = [*conv_bn(3, 32, 3, 2), nn.ReLU6()]
    cin = 32
    for expand, cout, blocks, stride in stages:
        for index in range(blocks):
            layers.append(InvertedResidual(cin, cout, stride if index == 0 else 1, expand))
            cin = cout
    layers += [*conv_bn(cin, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
    return calibrated(nn.Sequential(*layers))


def calibrated(module: nn.Module, channels: int = 3, size: int = 224) -> nn.Module:
    """Gives the batch normalisations parameters as of a trained network: activations neither vanish nor explode."""
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.uniform_(layer.bias, -0.5, 0.5)
            layer.momentum = None  # a plain average: of the one batch below
    with torch.no_grad():
        module.train()(torch.randn(4, channels, size, size))
    return module.eval()


# --- inception --------------------------------------------------------------------------------------------------------


class Branches(nn.Module):
    """Several ways through one block, side by side in the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def conv_relu(cin: int, cout: int, kernel: int | tuple[int, int], stride: int = 1, padding: Any = None) -> nn.Module:
    sides = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    padding = tuple(side // 2 for side in sides) if padding is None else padding
    conv = nn.Conv2d(cin, cout, kernel, stride, padding, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(cout), nn.ReLU())


def googlenet() -> nn.Module:
    """Inception v1 with batch normalisation."""

    def block(cin: int, one: int, three: tuple[int, int], five: tuple[int, int], pool: int) -> nn.Module:
        return Branches(
            conv_relu(cin, one, 1),
            nn.Sequential(conv_relu(cin, three[0], 1), conv_relu(three[0], three[1], 3)),
            nn.Sequential(conv_relu(cin, five[0], 1), conv_relu(five[0], five[1], 5)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_relu(cin, pool, 1)),
        )

    layers = [
        conv_relu(3, 64, 7, 2), nn.MaxPool2d(3, 2, ceil_mode=True),
        conv_relu(64, 64, 1), conv_relu(64, 192, 3), nn.MaxPool2d(3, 2, ceil_mode=True),
        block(192, 64, (96, 128), (16, 32), 32), block(256, 128, (128, 192), (32, 96), 64),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        block(480, 192, (96, 208), (16, 48), 64), block(512, 160, (112, 224), (24, 64), 64),
        block(512, 128, (128, 256), (24, 64), 64), block(512, 112, (144, 288), (32, 64), 64),
        block(528, 256, (160, 320), (32, 128), 128), nn.MaxPool2d(2, 2, ceil_mode=True),
        block(832, 256, (160, 320), (32, 128), 128), block(832, 384, (192, 384), (48, 128), 128),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000),
    ]  # fmt: skip
    return calibrated(nn.Sequential(*layers))


def inception_v3() -> nn.Module:
    """Inception v3 for images of 299x299, without its auxiliary classifier."""

    def block_a(cin: int, pool: int) -> nn.Module:
        return Branches(
            conv_relu(cin, 64, 1),
            nn.Sequential(conv_relu(cin, 48, 1), conv_relu(48, 64, 5)),
            nn.Sequential(conv_relu(cin, 64, 1), conv_relu(64, 96, 3), conv_relu(96, 96, 3)),
            nn.Sequential(nn.AvgPool2d(3, 1, 1), conv_relu(cin, pool, 1)),
        )

    def block_c(mid: int) -> nn.Module:
        wide, tall = (1, 7), (7, 1)
        return Branches(
            conv_relu(768, 192, 1),
            nn.Sequential(conv_relu(768, mid, 1), conv_relu(mid, mid, wide), conv_relu(mid, 192, tall)),
            nn.Sequential(
                conv_relu(768, mid, 1), conv_relu(mid, mid, tall), conv_relu(mid, mid, wide),
                conv_relu(mid, mid, tall), conv_relu(mid, 192, wide),
            ),
            nn.Sequential(nn.AvgPool2d(3, 1, 1), conv_relu(768, 192, 1)),
        )  # fmt: skip

    def both(cin: int) -> nn.Module:
        return Branches(conv_relu(cin, 384, (1, 3)), conv_relu(cin, 384, (3, 1)))

    def block_e(cin: int) -> nn.Module:
        return Branches(
            conv_relu(cin, 320, 1),
            nn.Sequential(conv_relu(cin, 384, 1), both(384)),
            nn.Sequential(conv_relu(cin, 448, 1), conv_relu(448, 384, 3), both(384)),
            nn.Sequential(nn.AvgPool2d(3, 1, 1), conv_relu(cin, 192, 1)),
        )

    shrink_b = Branches(
        conv_relu(288, 384, 3, 2, 0),
        nn.Sequential(conv_relu(288, 64, 1), conv_relu(64, 96, 3), conv_relu(96, 96, 3, 2, 0)),
        nn.MaxPool2d(3, 2),
    )
    shrink_d = Branches(
        nn.Sequential(conv_relu(768, 192, 1), conv_relu(192, 320, 3, 2, 0)),
        nn.Sequential(
            conv_relu(768, 192, 1), conv_relu(192, 192, (1, 7)), conv_relu(192, 192, (7, 1)),
            conv_relu(192, 192, 3, 2, 0),
        ),
        nn.MaxPool2d(3, 2),
    )  # fmt: skip
    layers = [
        conv_relu(3, 32, 3, 2, 0), conv_relu(32, 32, 3, 1, 0), conv_relu(32, 64, 3), nn.MaxPool2d(3, 2),
        conv_relu(64, 80, 1), conv_relu(80, 192, 3, 1, 0), nn.MaxPool2d(3, 2),
        block_a(192, 32), block_a(256, 64), block_a(288, 64), shrink_b,
        block_c(128), block_c(160), block_c(160), block_c(192), shrink_d,
        block_e(1280), block_e(2048), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000),
    ]  # fmt: skip
    return calibrated(nn.Sequential(*layers), size=299)


# --- recurrent networks -----------------------------------------------------------------------------------------------


class Crnn(nn.Module):
    """A recogniser of text lines (32x100 pixels, grey): convolutions, bidirectional LSTMs over 12 columns, letters."""

    def __init__(self, hidden: int = 256, letters: int = 37) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_relu(1, 64, 3), nn.MaxPool2d(2), conv_relu(64, 128, 3), nn.MaxPool2d(2),
            conv_relu(128, 256, 3), conv_relu(256, 256, 3), nn.MaxPool2d(2),
            conv_relu(256, 512, 3), conv_relu(512, 512, 3), nn.AvgPool2d((4, 1)),
        )  # fmt: skip
        self.memory = nn.LSTM(512, hidden, num_layers=2, bidirectional=True)
        self.letters = nn.Linear(2 * hidden, letters)

    def forward(self, image: Tensor) -> Tensor:
        columns = self.features(image).squeeze(2).permute(2, 0, 1)  # [12, B, 512]
        return torch.log_softmax(self.letters(self.memory(columns)[0]), -1)


class Dien(nn.Module):
    """A recommender after DIEN: a GRU over the history of a user, attention to it from the candidate, an MLP."""

    def __init__(self, items: int = 20_000, kinds: int = 500, users: int = 10_000, width: int = 64) -> None:
        super().__init__()
        self.items, self.kinds = nn.Embedding(items, width), nn.Embedding(kinds, width)
        self.users = nn.Embedding(users, width)
        self.interests = nn.GRU(2 * width, 2 * width)
        self.attention = nn.Sequential(nn.Linear(8 * width, 80), nn.Sigmoid(), nn.Linear(80, 1))
        hidden = [nn.Linear(5 * width, 200), nn.PReLU(), nn.Linear(200, 80), nn.PReLU()]
        self.mlp = nn.Sequential(*hidden, nn.Linear(80, 1))

    def forward(self, user: Tensor, item: Tensor, kind: Tensor, past_items: Tensor, past_kinds: Tensor) -> Tensor:
        """Identifiers of users and candidates [B], of the history [B, T]; the probability of a click [B, 1]."""
        candidate = torch.cat([self.items(item), self.kinds(kind)], -1)
        history = torch.cat([self.items(past_items), self.kinds(past_kinds)], -1)
        states = self.interests(history.transpose(0, 1))[0].transpose(0, 1)  # [B, T, 2 * width]
        query = candidate.unsqueeze(1).expand_as(states)
        scores = self.attention(torch.cat([query, states, query - states, query * states], -1))
        weights = torch.softmax(scores.masked_fill(past_items.unsqueeze(-1) == 0, -1e9), 1)
        interest = (weights * states).sum(1)
        return torch.sigmoid(self.mlp(torch.cat([self.users(user), candidate, interest], -1)))


# --- transformers -----------------------------------------------------------------------------------------------------


class Only(nn.Module):
    """Calls a `transformers` model with its inputs by name, and gives one of its outputs."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], output: str) -> None:
        super().__init__()
        self.model, self.names, self.output = model, names, output

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.model(**dict(zip(self.names, inputs)))[self.output]


def bert_base() -> nn.Module:
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(), add_pooling_layer=False)
    return Only(model, ("input_ids", "attention_mask"), "last_hidden_state")


def gpt2_small() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return Only(GPT2LMHeadModel(GPT2Config(use_cache=False)), ("input_ids",), "logits")


def vit_b16(size: int = 224) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(image_size=size, num_labels=1000))
    return Only(model, ("pixel_values",), "logits")


def image(size: int = 224) -> dict[str, Tensor]:
    return {"image": torch.randn(1, 3, size, size)}


def bert_inputs(tokens: int = 128) -> dict[str, Tensor]:
    mask = torch.ones(1, tokens, dtype=torch.int64)
    return {"input_ids": torch.randint(0, 30522, (1, tokens)), "attention_mask": mask}


def wide_image(batch: int = 1) -> dict[str, Tensor]:
    return {"image": torch.randn(batch, 3, 299, 299)}


def text_line() -> dict[str, Tensor]:
    return {"image": torch.randn(1, 1, 32, 100)}


def recommendation(batch: int = 64, steps: int = 20) -> dict[str, Tensor]:
    past_items = torch.randint(1, 20_000, (batch, steps))
    past_items[:, steps - 4 :] = 0  # shorter histories are padded
    return {
        "user": torch.randint(0, 10_000, (batch,)), "item": torch.randint(1, 20_000, (batch,)),
        "kind": torch.randint(0, 500, (batch,)), "past_items": past_items,
        "past_kinds": torch.randint(0, 500, (batch, steps)),
    }  # fmt: skip


def gpt2_inputs(tokens: int = 64) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 50257, (1, tokens))}


def tokens(count: int = 16, width: int = 512) -> dict[str, Tensor]:
    return {"tokens": torch.randn(count, width)}


def user_and_item(batch: int = 16, features: int = 128) -> dict[str, Tensor]:
    return {
        "user": torch.randint(0, 20_000, (batch,)), "user_features": torch.randn(batch, features),
        "item": torch.randint(0, 20_000, (batch,)), "item_features": torch.randn(batch, features),
    }  # fmt: skip


MODELS = {
    "resnet50": Model(resnet50, image),
    "mobilenetv2": Model(mobilenetv2, image),
    "bert_base": Model(bert_base, bert_inputs),
    "gpt2_small": Model(gpt2_small, gpt2_inputs),
    "vit_b16": Model(vit_b16, image),
    "crnn": Model(Crnn, text_line),
    "dien": Model(Dien, recommendation),
    "googlenet": Model(googlenet, image),
    "inception_v3": Model(inception_v3, wide_image),
}

LONG = {
    "bert_base_512": Model(bert_base, partial(bert_inputs, 512)),
    "gpt2_small_1024": Model(gpt2_small, partial(gpt2_inputs, 1024)),
    "vit_b16_384": Model(partial(vit_b16, 384), partial(image, 384)),
}
"""The transformers again, with all the context that they were made for."""
BRANCHY = {
    "nasnet_a_cells": Model(lambda: calibrated(NasnetCells()), image),
    "experts_4": Model(partial(Experts, 4), tokens),
    "experts_16": Model(partial(Experts, 16), tokens),
    "two_towers": Model(TwoTowers, user_and_item),
}
"""Models of many branches."""
BATCHED = {"inception_v3_32": Model(inception_v3, partial(wide_image, 32))}
"""As published measurements have them."""
RECENT = {
    "minilm": Model(minilm, bert_inputs),
    "convnext_t": Model(convnext_t, image),
    "swin_t": Model(swin_t, image),
    "whisper_encoder": Model(whisper_encoder, spectrogram),
}
"""For comparison in bfloat16 (`benchmarks.bfloat16`)."""
ALL = MODELS | LONG | BRANCHY | BATCHED | RECENT


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description="Export the benchmark models.")
    which = f"of {', '.join(ALL)}; the first {len(MODELS)} when none is named"
    parser.add_argument("names", nargs="*", metavar="NAME", help=which)
    parser.add_argument("--force", action="store_true", help="export again what is there")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in ALL]
    if unknown:
        parser.error(f"no model named {', '.join(unknown)}; there are {', '.join(ALL)}")
    for name in options.names or MODELS:
        path = export(name, options.force)
        print(f"{path}  {path.stat().st_size / 2**20:.1f} MiB", file=sys.stderr)


if __name__ == "__main__":
    main()
