"""The five benchmark models, exported from PyTorch to ONNX with random weights from a fixed seed.

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
from pathlib import Path

import torch
from torch import Tensor, nn

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
    """Exports the model NAME of MODELS and returns the path of its file."""
    path = path_of(name)
    if path.exists() and not force:
        return path
    FOLDER.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    module = MODELS[name].build().eval()
    randomise(module)
    inputs = MODELS[name].inputs()
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


def calibrated(module: nn.Module) -> nn.Module:
    """Gives the batch normalisations parameters as of a trained network: activations neither vanish nor explode."""
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.uniform_(layer.bias, -0.5, 0.5)
            layer.momentum = None  # a plain average: of the one batch below
    with torch.no_grad():
        module.train()(torch.randn(4, 3, 224, 224))
    return module.eval()


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


def vit_b16() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return Only(ViTForImageClassification(ViTConfig(num_labels=1000)), ("pixel_values",), "logits")


def image() -> dict[str, Tensor]:
    return {"image": torch.randn(1, 3, 224, 224)}


def bert_inputs() -> dict[str, Tensor]:
    mask = torch.ones(1, 128, dtype=torch.int64)
    return {"input_ids": torch.randint(0, 30522, (1, 128)), "attention_mask": mask}


def gpt2_inputs() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 50257, (1, 64))}


MODELS = {
    "resnet50": Model(resnet50, image),
    "mobilenetv2": Model(mobilenetv2, image),
    "bert_base": Model(bert_base, bert_inputs),
    "gpt2_small": Model(gpt2_small, gpt2_inputs),
    "vit_b16": Model(vit_b16, image),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description="Export the benchmark models.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)}; all when none is named")
    parser.add_argument("--force", action="store_true", help="export again what is there")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in MODELS]
    if unknown:
        parser.error(f"no model named {', '.join(unknown)}; there are {', '.join(MODELS)}")
    for name in options.names or MODELS:
        path = export(name, options.force)
        print(f"{path}  {path.stat().st_size / 2**20:.1f} MiB", file=sys.stderr)


if __name__ == "__main__":
    main()
